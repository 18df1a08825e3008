"""Dependencies between resources, within one stack and between two."""

from __future__ import annotations

from collections.abc import Iterable

from constructs import Construct

from podwright_constructs.kit import ITerraformDependable, TerraformElement, TerraformStack


def before(construct: Construct, elements: Iterable[ITerraformDependable]) -> list[ITerraformDependable]:
    """Order elements before whatever is made for ``construct``; returns those to be named in its ``depends_on``.

    Terraform orders resources of one stack; elements of another stack make the whole stack come first.
    """
    stack = TerraformStack.of(construct)
    same_stack = []
    for element in elements:
        owner = TerraformStack.of(element) if isinstance(element, TerraformElement) else stack
        if owner is stack:
            same_stack.append(element)
        else:
            stack.add_dependency(owner)
    return same_stack

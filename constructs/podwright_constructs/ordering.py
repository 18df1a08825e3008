"""Dependencies between resources, within one stack and between two."""

from __future__ import annotations

from collections.abc import Iterable

from constructs import Construct

from podwright_constructs.kit import ITerraformDependable, TerraformElement, TerraformStack


def before(construct: Construct, elements: Iterable[ITerraformDependable]) -> list[ITerraformDependable]:
    """Order elements before whatever is made for ``construct``; returns those to be named in its ``depends_on``.

    Terraform orders resources of one stack; elements of another stack make the whole stack come first.
    """
    stack = _stack_of(construct)
    same_stack, other_stacks = [], list[TerraformStack]()
    for element in elements:
        owner = _stack_of(element) if isinstance(element, TerraformElement) else stack
        if owner is stack:
            same_stack.append(element)
        elif owner not in other_stacks:
            other_stacks.append(owner)
            stack.add_dependency(owner)
    return same_stack


def _stack_of(construct: Construct) -> TerraformStack:
    """Return the construct's stack, which is asked of the kit once: each answer crosses to Node and back."""
    stack: TerraformStack | None = getattr(construct, "_podwright_stack", None)
    if stack is None:
        stack = TerraformStack.of(construct)
        construct._podwright_stack = stack  # type: ignore[attr-defined] # noqa: SLF001 -- a construct has no other memory
    return stack

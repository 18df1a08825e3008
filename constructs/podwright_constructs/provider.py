"""Choose the provider of a construct among those of its stack."""

from __future__ import annotations

import jsii
from constructs import Construct, IConstruct

from podwright_constructs.bindings import DataSource, Provider, Resource
from podwright_constructs.kit import Aspects, IAspect


def use_provider(scope: Construct, provider: Provider) -> None:
    """Have everything below ``scope``, now or later, made by this provider: another region or another account.

    What names a provider of its own keeps it. Without this a resource belongs to the stack's provider without alias.
    https://developer.hashicorp.com/terraform/language/meta-arguments/resource-provider
    """
    Aspects.of(scope).add(_UseProvider(provider))


@jsii.implements(IAspect)
class _UseProvider:
    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    def visit(self, node: IConstruct) -> None:
        if isinstance(node, Resource | DataSource) and node.provider is None:
            node.provider = self._provider

"""Base classes of the generated bindings in ``podwright_constructs.aws``: Terraform blocks over cdktf's core.

They hold no jsii assembly of their own, so they load in milliseconds and live beside other bindings of the provider.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypedDict

from constructs import Construct

from podwright_constructs.kit import (
    ITerraformDependable,
    TerraformDataSource,
    TerraformProvider,
    TerraformProviderGeneratorMetadata,
    TerraformResource,
    TerraformResourceLifecycle,
)

# Generated from the oldest version we support: what it does not deprecate, the next major still has.
# tools/compare_provider.py found all of it in 6.25.0.
PROVIDER_VERSION = "5.100.0"
PROVIDER_VERSIONS = ">= 5.100, < 7"
# cdktf writes ``provider_version`` into required_providers, whatever other version it is given.
_METADATA = TerraformProviderGeneratorMetadata(provider_name="aws", provider_version=PROVIDER_VERSIONS)


class Meta(TypedDict, total=False):
    """Terraform's meta-arguments."""

    depends_on: Sequence[ITerraformDependable]
    lifecycle: TerraformResourceLifecycle
    provider: TerraformProvider


class Resource(TerraformResource):
    """A managed resource whose arguments are written as they are given."""

    TYPE: ClassVar[str]

    def __init__(self, scope: Construct, id_: str, arguments: Mapping[str, object], meta: Meta) -> None:
        super().__init__(scope, id_, terraform_resource_type=self.TYPE, terraform_generator_metadata=_METADATA, **meta)
        self._arguments: Mapping[str, Any] = without_none(arguments)

    def add_tag(self, key: str, value: str) -> None:
        """One more of the tags of a type that takes any."""
        self._arguments = {**self._arguments, "tags": {**self._arguments.get("tags", {}), key: value}}

    def _synthesize_attributes(self) -> Mapping[str, Any]:
        return self._arguments


class DataSource(TerraformDataSource):
    """A data source whose arguments are written as they are given."""

    TYPE: ClassVar[str]

    def __init__(self, scope: Construct, id_: str, arguments: Mapping[str, object], meta: Meta) -> None:
        super().__init__(scope, id_, terraform_resource_type=self.TYPE, terraform_generator_metadata=_METADATA, **meta)
        self._arguments: Mapping[str, Any] = without_none(arguments)

    def _synthesize_attributes(self) -> Mapping[str, Any]:
        return self._arguments

    def append(self, name: str, value: object) -> None:
        """Add one more item to an argument that is a list."""
        self._arguments = {**self._arguments, name: [*self._arguments.get(name, ()), without_none(value)]}


class Provider(TerraformProvider):
    """A provider whose arguments are written as they are given."""

    TYPE: ClassVar[str]

    def __init__(self, scope: Construct, id_: str, arguments: Mapping[str, object]) -> None:
        self._arguments: Mapping[str, Any] = without_none(arguments)  # cdktf may ask for the alias at once
        super().__init__(
            scope,
            id_,
            terraform_resource_type=self.TYPE,
            terraform_generator_metadata=_METADATA,
            terraform_provider_source=f"hashicorp/{self.TYPE}",
        )

    @property  # type: ignore[misc] # an argument needs no setter
    def alias(self) -> str | None:
        """The alias that distinguishes it from the stack's other providers; the default provider has no alias."""
        alias: str | None = self._arguments.get("alias")
        return alias

    def _synthesize_attributes(self) -> Mapping[str, Any]:
        return self._arguments


def without_none(value: Any) -> Any:
    """Remove values that are None: cdktf's own clean-up does not look into lists."""
    if isinstance(value, Mapping):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [without_none(item) for item in value]
    return value

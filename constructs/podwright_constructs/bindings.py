"""Base classes of the generated bindings in ``podwright_constructs.aws``: Terraform blocks over cdktf's core.

They hold no jsii assembly of their own, so they load in milliseconds and live beside other bindings of the provider.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypedDict, cast

import jsii
from constructs import Construct

from podwright_constructs.construct import Immutable, Made
from podwright_constructs.kit import (
    IImportableConfig,
    ImportableResource,
    ITerraformDependable,
    ITerraformIterator,
    TerraformCount,
    TerraformDataSource,
    TerraformProvider,
    TerraformProviderGeneratorMetadata,
    TerraformResource,
    TerraformResourceLifecycle,
)
from podwright_constructs.problems import NUMBER_IN_TEXT_HINT, has_number_token

# Generated from the oldest version we support: what it does not deprecate, the next major still has.
# tools/compare_provider.py found all of it in 6.25.0 and 6.69.1.
PROVIDER_VERSION = "5.100.0"
PROVIDER_VERSIONS = ">= 5.100, < 7"
# cdktf writes ``provider_version`` into required_providers, whatever other version it is given.
_METADATA = TerraformProviderGeneratorMetadata(provider_name="aws", provider_version=PROVIDER_VERSIONS)


class Meta(TypedDict, total=False):
    """Terraform's meta-arguments."""

    count: int | float | TerraformCount
    depends_on: Sequence[ITerraformDependable]
    for_each: ITerraformIterator
    lifecycle: TerraformResourceLifecycle
    provider: TerraformProvider


@jsii.implements(IImportableConfig)
class _Imported:
    """An existing resource, as the kit asks for it when it imports."""

    def __init__(self, type_: str, id_: str, provider: TerraformProvider | None) -> None:
        self._type, self._id, self._provider = type_, id_, provider

    @property
    def terraform_resource_type(self) -> str:
        return self._type

    @property
    def import_id(self) -> str:
        return self._id

    @property
    def provider(self) -> TerraformProvider | None:
        return self._provider


class Resource(Immutable, TerraformResource, metaclass=Made):
    """A managed resource whose arguments are written as they are given."""

    TF_RESOURCE_TYPE: ClassVar[str]

    def __init__(self, scope: Construct, id_: str, arguments: Mapping[str, object], meta: Meta) -> None:
        super().__init__(
            scope,
            id_,
            terraform_resource_type=self.TF_RESOURCE_TYPE,
            terraform_generator_metadata=_METADATA,
            **meta,
        )
        self._arguments: Mapping[str, Any] = without_none(arguments)
        self._scope, self._id = scope, id_

    @property
    def construct_path(self) -> str:
        """Its ``node.path``; the kit is asked for its scope's alone, once for all resources of the scope."""
        scope_path: str | None = getattr(self._scope, "_podwright_path", None)
        if scope_path is None:
            scope_path = self._scope._podwright_path = self._scope.node.path  # type: ignore[attr-defined] # noqa: SLF001
        return f"{scope_path}/{self._id.replace('/', '--')}".lstrip("/")

    @classmethod
    def generate_config_for_import(
        cls, scope: Construct, import_to_id: str, import_from_id: str, provider: TerraformProvider | None = None
    ) -> ImportableResource:
        """Have ``cdktf plan`` write the configuration of a resource that exists: the kit's own method has this name.

        https://developer.hashicorp.com/terraform/cdktf/concepts/resources#importing-resources
        """
        source = _Imported(cls.TF_RESOURCE_TYPE, import_from_id, provider)
        # The interface asks for setters, which the kit never calls.
        return ImportableResource(scope, import_to_id, cast("IImportableConfig", source))

    def _synthesize_attributes(self) -> Mapping[str, Any]:
        return self._arguments


class TaggedResource(Resource):
    """A managed resource that takes tags, with the two names by which aspects read and write them."""

    @property
    def tags_input(self) -> Mapping[str, str] | None:
        """The tags that it was given, and that were added; None if there are none."""
        tags: Mapping[str, str] | None = self._arguments.get("tags")
        return tags

    @property
    def tags(self) -> Mapping[str, str]:
        """The tags that it was given, and that were added; an assignment replaces them."""
        return self.tags_input or {}

    @tags.setter
    def tags(self, tags: Mapping[str, str]) -> None:
        self._arguments = {**self._arguments, "tags": tags}

    def add_tag(self, key: str, value: str) -> None:
        """One more tag."""
        self.tags = {**self.tags, key: value}


class DataSource(Immutable, TerraformDataSource, metaclass=Made):
    """A data source whose arguments are written as they are given."""

    TF_RESOURCE_TYPE: ClassVar[str]

    def __init__(self, scope: Construct, id_: str, arguments: Mapping[str, object], meta: Meta) -> None:
        super().__init__(
            scope,
            id_,
            terraform_resource_type=self.TF_RESOURCE_TYPE,
            terraform_generator_metadata=_METADATA,
            **meta,
        )
        self._arguments: Mapping[str, Any] = without_none(arguments)

    def _synthesize_attributes(self) -> Mapping[str, Any]:
        return self._arguments

    def has_any(self, name: str) -> bool:
        """Return whether an argument that is a list has an item."""
        return bool(self._arguments.get(name))

    def append(self, name: str, value: object) -> None:
        """Add one more item to an argument that is a list."""
        self._arguments = {**self._arguments, name: [*self._arguments.get(name, ()), without_none(value)]}


class Provider(Immutable, TerraformProvider, metaclass=Made):
    """A provider whose arguments are written as they are given."""

    TF_RESOURCE_TYPE: ClassVar[str]

    def __init__(self, scope: Construct, id_: str, arguments: Mapping[str, object]) -> None:
        self._arguments: Mapping[str, Any] = without_none(arguments)  # cdktf may ask for the alias at once
        super().__init__(
            scope,
            id_,
            terraform_resource_type=self.TF_RESOURCE_TYPE,
            terraform_generator_metadata=_METADATA,
            terraform_provider_source=f"hashicorp/{self.TF_RESOURCE_TYPE}",
        )

    @property  # type: ignore[misc] # an argument needs no setter
    def alias(self) -> str | None:
        """The alias that distinguishes it from the stack's other providers; the default provider has no alias."""
        alias: str | None = self._arguments.get("alias")
        return alias

    def _synthesize_attributes(self) -> Mapping[str, Any]:
        return self._arguments


def without_none(value: Any) -> Any:
    """Remove values that are None: cdktf's own clean-up does not look into lists.

    Raises:
        ValueError: a text contains a number that only Terraform will know, as digits.
    """
    if isinstance(value, Mapping):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [without_none(item) for item in value]
    if isinstance(value, str) and has_number_token(value):
        raise ValueError(f"{value} contains the kit's code for a number. {NUMBER_IN_TEXT_HINT}")
    return value

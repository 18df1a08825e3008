"""Tag resources with their construct paths, by which `podwright adopt` finds what an interrupted run created."""

from __future__ import annotations

from podwright.resource_types import resource_type
from podwright.settings import names
from podwright_constructs.bindings import TaggedResource
from podwright_constructs.kit import TerraformStack


def tag_construct_paths(stack: TerraformStack) -> None:
    """Tag each resource of the stack that takes tags with its construct path, which is the same in every account."""
    for construct in stack.node.find_all():
        if isinstance(construct, TaggedResource) and not resource_type(construct.TF_RESOURCE_TYPE).untagged:
            construct.add_tag(names.CONSTRUCT_PATH_TAG, construct.construct_path)

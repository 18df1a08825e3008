"""File systems and bucket of the settings file."""

from typing import Literal

from pydantic import Field

from podwright.settings.section import Section
from podwright_constructs.arguments import data_repository
from podwright_constructs.arguments.bucket import ExistingBucketArguments
from podwright_constructs.arguments.lustre import ExistingLustreArguments, LustreArguments
from podwright_constructs.arguments.openzfs import ExistingOpenZfsArguments, OpenZfsArguments


class DataRepository(Section, data_repository.DataRepository):
    """A folder of the Lustre file system that shows a prefix of an S3 bucket."""


class CreatedLustre(Section, LustreArguments):
    """An FSx for Lustre file system."""

    source: Literal["create"] = Field(description="A new file system.")
    data_repositories: tuple[DataRepository, ...] = ()


class ExistingLustre(Section, ExistingLustreArguments):
    """An existing FSx for Lustre file system."""

    source: Literal["existing"] = Field(description="An existing file system.")


class CreatedOpenZfs(Section, OpenZfsArguments):
    """An FSx for OpenZFS file system, for home directories."""

    source: Literal["create"] = Field(description="A new file system.")


class ExistingOpenZfs(Section, ExistingOpenZfsArguments):
    """An existing FSx for OpenZFS file system; nodes mount its root volume, /fsx."""

    source: Literal["existing"] = Field(description="An existing file system.")


class NoOpenZfs(Section):
    """Homes are on each node's own disk."""

    source: Literal["none"] = Field(description="No OpenZFS file system: homes are on each node's own disk.")


class CreatedBucket(Section):
    """An S3 bucket for lifecycle scripts and training payload, named as HyperPod's managed policy wants it."""

    source: Literal["create"] = Field(description="A new bucket.")
    on_destroy: Literal["retain", "destroy"] = Field(
        "retain",
        description="Effect of destroying the foundation on the bucket: retain refuses while it holds objects, "
        "destroy deletes them too.",
    )
    noncurrent_version_expiration_days: int = Field(
        90, description="Days after which S3 deletes overwritten and deleted objects for good."
    )
    access_log_bucket: str | None = Field(
        None, description="A bucket of yours, in this region, that receives a line for each request."
    )
    access_log_prefix: str | None = Field(
        None,
        description="Key prefix of the access logs in access_log_bucket. Default: the beginning of the bucket's name.",
    )


class ExistingBucket(Section, ExistingBucketArguments):
    """An S3 bucket of yours."""

    source: Literal["existing"] = Field(description="An existing bucket.")

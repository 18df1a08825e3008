"""The link between a folder of a Lustre file system and a prefix of an S3 bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typing_extensions import Doc

from podwright_constructs.arguments import PassedAs


@dataclass(frozen=True, kw_only=True)
class DataRepository:
    """A folder of a Lustre file system that shows a prefix of an S3 bucket."""

    path: Annotated[
        str,
        Doc("The folder below the file system's root, such as /data. Folders do not overlap."),
        PassedAs("file_system_path"),
    ]
    s3_uri: Annotated[
        str,
        Doc("s3://BUCKET or s3://BUCKET/PREFIX, in the file system's region."),
        PassedAs("data_repository_path"),
    ]
    import_changes: Annotated[bool, Doc("Show objects that are new, changed or deleted in S3. Default: true.")] = True
    export_changes: Annotated[
        bool, Doc("Write files that are new, changed or deleted in the folder to S3. Default: false.")
    ] = False

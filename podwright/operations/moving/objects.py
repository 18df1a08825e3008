"""Copy the objects of the old cluster's bucket, but not podwright's own, into the new one's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from podwright.aws_session import Session
from podwright.errors import OperationError
from podwright.settings import names

COPIED_AT_A_TIME = 16
FLOW_LOGS = "AWSLogs/"  # VPC flow logs describe the old network only.


@dataclass(frozen=True)
class CopiedObjects:
    """The number of objects that were copied, of those that had been copied before, and the bytes of both."""

    copied: int
    existing: int
    size: int


def bucket_of(session: Session, cluster: str) -> str:
    """Return the bucket that a cluster's foundation made.

    Raises:
        OperationError: AWS lists none, as it does for a while after the bucket was made.
        AwsError: AWS refuses; needs ``tag:GetResources``.
    """
    tag_filters = [{"Key": names.CLUSTER_TAG, "Values": [cluster]}]
    tagged = session.items(
        "resourcegroupstaggingapi", "get_resources", "ResourceTagMappingList", TagFilters=tag_filters
    )
    arns = [item["ResourceARN"] for item in tagged if item["ResourceARN"].split(":")[2] == "s3"]
    if not arns:
        hint = "run `podwright move` again in a minute"
        raise OperationError(f"AWS does not list the bucket of {cluster} by its tag {names.CLUSTER_TAG} yet", hint)
    return str(arns[0].rpartition(":")[2])


def copy(old: Session, new: Session, *, source: str, target: str, clusters: tuple[str, str]) -> CopiedObjects:
    """Copy every object that the target lacks or has an older copy of; the content does not pass this machine.

    Keys below the old cluster's name get the new one's, because nodes may write only there.

    Args:
        old: the region of the source.
        new: the region of the target.
        source: the old bucket.
        target: the new bucket.
        clusters: names of the old and the new cluster.

    Raises:
        AwsError: AWS refuses; needs ``s3:GetObject`` on the old bucket and ``s3:PutObject`` on the new one.
    """
    excluded_prefixes = tuple(f"{prefix}/" for prefix in names.readable_prefixes(clusters[0]))
    before = [item for item in _objects(old, source) if not item["Key"].startswith((*excluded_prefixes, FLOW_LOGS))]
    existing = {item["Key"]: item for item in _objects(new, target)}
    renamed = [(item, _renamed(item["Key"], clusters)) for item in before]
    missing = [(item, key) for item, key in renamed if not _is_copy(existing.get(key), item)]
    with new.translated("s3"):
        client, source_client = new.client("s3"), old.client("s3")

        def copy_object(item: Mapping[str, Any], key: str) -> None:
            client.copy({"Bucket": source, "Key": item["Key"]}, target, key, SourceClient=source_client)

        with ThreadPoolExecutor(COPIED_AT_A_TIME) as pool:
            list(pool.map(lambda pair: copy_object(*pair), missing))
    return CopiedObjects(len(missing), len(before) - len(missing), sum(item["Size"] for item in before))


def _objects(session: Session, bucket: str) -> Iterator[Mapping[str, Any]]:
    return session.items("s3", "list_objects_v2", "Contents", Bucket=bucket)


def _renamed(key: str, clusters: tuple[str, str]) -> str:
    before, after = clusters
    return f"{after}/{key.removeprefix(f'{before}/')}" if key.startswith(f"{before}/") else key


def _is_copy(existing: Mapping[str, Any] | None, item: Mapping[str, Any]) -> bool:
    return (
        existing is not None and existing["Size"] == item["Size"] and existing["LastModified"] >= item["LastModified"]
    )

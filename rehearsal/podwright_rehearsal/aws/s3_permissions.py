"""The actions and ARNs that a call to S3 needs; its operations have other names than its actions.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/using-with-s3-policy-actions.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote

if TYPE_CHECKING:
    from podwright_rehearsal.aws.call import Call

# The action after its verb, by the subresource in the query.
SUBRESOURCES = {
    "accelerate": "AccelerateConfiguration",
    "acl": "BucketAcl",
    "cors": "BucketCORS",
    "encryption": "EncryptionConfiguration",
    "lifecycle": "LifecycleConfiguration",
    "location": "BucketLocation",
    "logging": "BucketLogging",
    "notification": "BucketNotification",
    "object-lock": "BucketObjectLockConfiguration",
    "ownershipControls": "BucketOwnershipControls",
    "policy": "BucketPolicy",
    "publicAccessBlock": "BucketPublicAccessBlock",
    "replication": "ReplicationConfiguration",
    "requestPayment": "BucketRequestPayment",
    "tagging": "BucketTagging",
    "versioning": "BucketVersioning",
    "website": "BucketWebsite",
}
DELETE_ACTIONS = ("policy", "website")  # Actions on other subresources allow their deletion with Put.
LISTS = {"versions": "ListBucketVersions", "uploads": "ListBucketMultipartUploads"}
BUCKET_METHODS = {"PUT": "CreateBucket", "DELETE": "DeleteBucket"}
_DELETED = re.compile(r"<Object>(.*?)</Object>", re.DOTALL)
_KEY, _VERSION = re.compile(r"<Key>(.*?)</Key>", re.DOTALL), re.compile(r"<VersionId>(.+?)</VersionId>")


def permissions(call: Call, partition: str) -> Iterator[tuple[str, str]]:
    """Yield each action with the ARN of its bucket or object; bucket and key are in the path."""
    path, _, query = call.uri.partition("?")
    bucket, _, key = unquote(path).lstrip("/").partition("/")
    parameters = parse_qs(query, keep_blank_values=True)
    bucket_arn = f"arn:{partition}:s3:::{bucket}"
    if not bucket:
        yield "s3:ListAllMyBuckets", "*"
    elif key:
        source = unquote(call.headers.get("X-Amz-Copy-Source", "")).lstrip("/").partition("?")
        if source[0]:
            yield f"s3:{'GetObjectVersion' if source[2] else 'GetObject'}", f"arn:{partition}:s3:::{source[0]}"
        yield f"s3:{_object_action(call.method, parameters)}", f"{bucket_arn}/{key}"
        if call.headers.get("X-Amz-Tagging"):
            yield "s3:PutObjectTagging", f"{bucket_arn}/{key}"
    elif "delete" in parameters:
        for deleted in _DELETED.findall(call.body.decode()):
            (name,) = _KEY.findall(deleted)
            version = "Version" if _VERSION.search(deleted) else ""
            yield f"s3:DeleteObject{version}", f"{bucket_arn}/{name}"
    else:
        yield f"s3:{_bucket_action(call.method, parameters)}", bucket_arn


def _object_action(method: str, parameters: dict[str, list[str]]) -> str:
    version = "Version" if "versionId" in parameters else ""
    if "tagging" in parameters:
        return f"{_verb(method, can_delete=True)}Object{version}Tagging"
    if "uploadId" in parameters and method in {"GET", "DELETE"}:
        return {"GET": "ListMultipartUploadParts", "DELETE": "AbortMultipartUpload"}[method]
    if method in {"PUT", "POST"}:  # The parts of an upload too, its beginning and its end.
        return "PutObject"
    return f"DeleteObject{version}" if method == "DELETE" else f"GetObject{version}"


def _bucket_action(method: str, parameters: dict[str, list[str]]) -> str:
    for name, noun in SUBRESOURCES.items():
        if name in parameters:
            return f"{_verb(method, can_delete=name in DELETE_ACTIONS)}{noun}"
    listing = next((action for name, action in LISTS.items() if name in parameters), "ListBucket")
    return BUCKET_METHODS.get(method, listing)


def _verb(method: str, *, can_delete: bool) -> str:
    return {"PUT": "Put", "DELETE": "Delete" if can_delete else "Put"}.get(method, "Get")

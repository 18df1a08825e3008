"""The IAM permissions that a call needs: actions, ARNs and condition keys.

Actions, resource types and their ARNs are those of the Service Authorization Reference. Guessed, where no reference on
this machine says it:

- Of several resource types that an action may be on, those count whose name or id the request has, or the one that the
  operation creates. AWS may need more of them.
- An operation that sends tags needs the service's action for tags, and one that sends the ARN of a role needs
  ``iam:PassRole``.
- A handler of Cloud Control needs all permissions that its CloudFormation schema lists, except those for EKS, which no
  Slurm cluster has. AWS's handlers make some of these calls only for some properties, and an update passes the roles
  that its patch does not change too.
- A schedule without a group is in the group ``default``.
- What services ask of other services with the caller's rights is left out: KMS for S3, FSx and RDS, service-linked
  roles, log deliveries.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import botocore.session
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE
from moto.iam.models import iam_backends
from moto.utilities.utils import get_partition

from podwright_rehearsal.aws import cluster_schema, s3_permissions, service_authorization
from podwright_rehearsal.aws.identity import ACCOUNT_ID
from podwright_rehearsal.aws.permission import Permission

if TYPE_CHECKING:
    from podwright_rehearsal.aws.call import Call

# IAM's prefix, where it is not the name in the request's signature.
PREFIXES = {"cloudcontrolapi": "cloudformation", "monitoring": "cloudwatch", "tagging": "tag"}
TAG_ACTIONS = {"ec2": "CreateTags", "rds": "AddTagsToResource", "ssm": "AddTagsToResource"}
TAGS = ("resourcetags", "tag", "tags", "tagspecification", "tagspecifications")
# https://docs.aws.amazon.com/IAM/latest/UserGuide/id_roles_use_passrole.html
PASSED_TO = {"ec2": "vpc-flow-logs.amazonaws.com", "rds": "monitoring.rds.amazonaws.com"}
ROLE_ARN = re.compile(r"arn:[\w-]+:iam::\d{12}:role/\S+")
# The parameter that names a resource, by the type's name in the reference, where they differ.
PARAMETERS = {
    "db": "dbinstance",
    "pg": "dbparametergroup",
    "rule-on-default-event-bus": "rule",
    "subgrp": "dbsubnetgroup",
}
NAMED_BY_NAME = {"events": "rule-on-default-event-bus", "scheduler": "schedule", "ssm": "document"}
# moto's and the reference's words for EC2's types.
EC2_TYPES = {"flow-logs": "vpc-flow-log", "nat-gateway": "natgateway", "vpc-elastic-ip": "elastic-ip"}
REST_SERVICES = {"aps": "amp", "scheduler": "scheduler"}  # botocore's names, by the signature's
HANDLERS = {
    "CreateResource": "create",
    "DeleteResource": "delete",
    "GetResource": "read",
    "ListResources": "list",
    "UpdateResource": "update",
}
NOT_FOR_SLURM = "eks:"
_OPERATION_PATH = re.compile(r"/operation/(\w+)$")  # Smithy's RPC protocol with CBOR.
_SUFFIX = re.compile(r"(?:id|ids|name|names|identifier|identifiers|arn|arns)$")


class Requirement:
    """The permissions of one call.

    Args:
        call: the call.
        cluster_arn: of the cluster that the call names, if it exists.
    """

    def __init__(self, call: Call, *, cluster_arn: str = "*") -> None:
        self._call = call
        self._partition = get_partition(call.region)
        self._prefix = PREFIXES.get(call.service, call.service)
        self._cluster_arn = cluster_arn
        self._operation, in_path = _operation(call)
        self._parameters = [*in_path, *_parameters(call)]

    def permissions(self) -> Iterator[Permission]:
        """Yield each permission, the call's own first."""
        context = {"aws:requestedregion": [self._call.region], **self._tags()}
        if self._call.service == "s3":
            for s3_action, arn in s3_permissions.permissions(self._call, self._partition):
                yield Permission(action=s3_action, resource=arn, context=context)
            return
        action = self._action()
        for resource in self._resources(action):
            yield Permission(action=action, resource=resource, context=context)
        tagging = self._tag_action()
        if tagging != action and self._has_tags() and service_authorization.is_action(tagging):
            created = {**context, f"{self._prefix}:createaction": [self._operation]}
            yield Permission(action=tagging, resource=self._created(tagging, action), context=created)
        if self._call.service == "cloudcontrolapi":
            yield from self._handler(context)
        elif self._prefix not in {"iam", "sts", "tag"}:
            service = PASSED_TO.get(self._prefix, f"{self._prefix}.amazonaws.com")
            for _, value in self._parameters:
                if ROLE_ARN.fullmatch(value):
                    yield _pass_role(value, service, context)

    def _action(self) -> str:
        action = f"{self._prefix}:{self._operation}"
        if self._prefix == "budgets" and not service_authorization.is_action(action):
            # https://docs.aws.amazon.com/service-authorization/latest/reference/list_awsbudgetservice.html
            return "budgets:ViewBudget" if self._operation.startswith("Describe") else "budgets:ModifyBudget"
        return action

    def _tag_action(self) -> str:
        """Return the action for tags, such as ``iam:TagRole`` for CreateRole."""
        of_iam = f"Tag{self._operation.removeprefix('Create')}"
        name = of_iam if self._prefix == "iam" else TAG_ACTIONS.get(self._prefix, "TagResource")
        return f"{self._prefix}:{name}"

    def _resources(self, action: str) -> list[str]:
        if self._call.service == "cloudcontrolapi":
            return [f"arn:{self._partition}:cloudformation:{self._call.region}:{ACCOUNT_ID}:resource/*"]
        types = service_authorization.resource_types(action)
        if not types:
            return ["*"]
        named = [arn for name, value in self._parameters for arn in self._arns(types, name, value)]
        created = self._created_type(types)
        creates = self._operation.startswith(("Create", "Allocate")) and created
        if creates and not any(self._format(created).rpartition("*")[0] in arn for arn in named):
            named.append(self._format(created))
        return list(dict.fromkeys(named)) or [self._format(created) if created else "*"]

    def _created(self, tagging: str, action: str) -> str:
        """Return the resource whose tags a creation sets: its id is not known before."""
        if self._prefix == "iam":
            return self._resources(action)[0]
        created = self._created_type(service_authorization.resource_types(tagging))
        if not created:
            return "*"
        prefix = self._format(created).partition("*")[0]
        named = (arn for arn in self._resources(action) if arn.startswith(prefix))
        return next(named, self._format(created))

    def _created_type(self, types: list[str]) -> str:
        operation = self._operation.lower()
        matching = [name for name in types if _parameter(name) in operation or name.replace("-", "") in operation]
        return max(matching, key=len, default="")

    def _format(self, resource_type: str) -> str:
        return service_authorization.arn_format(
            self._prefix, resource_type, partition=self._partition, region=self._call.region, account=ACCOUNT_ID
        )

    def _arns(self, types: list[str], name: str, value: str) -> Iterator[str]:
        """Yield the ARN of the resource that a parameter names, if it names one of these types."""
        for resource_type in types:
            pattern = self._format(resource_type)
            stem = _SUFFIX.sub("", name)
            if value.startswith(pattern.partition("*")[0]):
                yield value
                return
            if value.startswith("arn:"):
                continue
            if self._prefix == "ec2":
                kind = EC2_PREFIX_TO_RESOURCE.get(value.rpartition("-")[0], "")
                if EC2_TYPES.get(kind, kind) == resource_type:
                    yield pattern.replace("*", value)
            elif (self._prefix, resource_type) == ("iam", "role") and name == "rolename":
                yield self._role(value)
            elif (self._prefix, resource_type) == ("sagemaker", "cluster") and stem == "cluster":
                yield self._cluster_arn if self._cluster_arn != "*" else pattern
            elif stem == _parameter(resource_type) or (
                name == "name" and NAMED_BY_NAME.get(self._prefix) == resource_type
            ):
                yield pattern.replace("*", f"default/{value}" if resource_type == "schedule" else value)

    def _role(self, name: str) -> str:
        """Return the ARN of a role with its path, which its name does not have."""
        role = next(
            (role for role in iam_backends[ACCOUNT_ID][self._partition].roles.values() if role.name == name), None
        )
        path = self._call.form.get("Path", "/") if role is None else role.path
        return f"arn:{self._partition}:iam::{ACCOUNT_ID}:role{path}{name}"

    def _handler(self, context: Mapping[str, list[str]]) -> Iterator[Permission]:
        """Yield the permissions with which the cluster's handler acts for the caller."""
        handler = HANDLERS.get(self._operation)
        request = json.loads(self._call.body or b"{}")
        if handler is None or request.get("TypeName") != cluster_schema.CLUSTER_TYPE:
            return
        clusters = f"arn:{self._partition}:sagemaker:{self._call.region}:{ACCOUNT_ID}:cluster/*"
        cluster = clusters if self._cluster_arn == "*" else self._cluster_arn
        linked = f"arn:{self._partition}:iam::{ACCOUNT_ID}:role/aws-service-role/*"
        resources = {"sagemaker": cluster, "iam": linked}
        for action in dict.fromkeys(cluster_schema.schema(self._call.region)["handlers"][handler]["permissions"]):
            if action != "iam:PassRole" and not action.startswith(NOT_FOR_SLURM):
                resource = resources.get(action.partition(":")[0], "*")
                yield Permission(action=action, resource=resource, context=context, by_handler=True)
        model = f"{request.get('DesiredState', '')}{request.get('PatchDocument', '')}"
        for role in dict.fromkeys(re.findall(r'arn:[\w-]+:iam::\d{12}:role/[^"\\]+', model)):
            yield _pass_role(role, "sagemaker.amazonaws.com", context, by_handler=True)

    def _has_tags(self) -> bool:
        names = {name for name, _ in self._parameters if name.startswith(TAGS)}
        return self._operation.startswith(("Create", "Put", "Allocate", "Copy")) and bool(names)

    def _tags(self) -> dict[str, list[str]]:
        """Return the condition keys of the tags that a call sends."""
        keys = [value for name, value in self._parameters if name == "tagskey"]
        values = [value for name, value in self._parameters if name == "tagsvalue"]
        by_key = {f"aws:requesttag/{key.lower()}": [value] for key, value in zip(keys, values, strict=False)}
        return {**by_key, "aws:tagkeys": keys} if keys else {}


def _pass_role(
    role_arn: str, service: str, context: Mapping[str, list[str]], *, by_handler: bool = False
) -> Permission:
    with_service = {**context, "iam:passedtoservice": [service]}
    return Permission(action="iam:PassRole", resource=role_arn, context=with_service, by_handler=by_handler)


def _parameter(resource_type: str) -> str:
    return PARAMETERS.get(resource_type, resource_type.replace("-", ""))


def _parameters(call: Call) -> Iterator[tuple[str, str]]:
    """Yield name and value of each parameter of a call, deep inside too: ``subnetid`` for ``SubnetIds.member.1``."""
    for name, value in call.form.items():
        words = [word for word in name.split(".") if not word.isdigit() and word not in {"member", "Value"}]
        is_tag = words[0].lower() in TAGS
        yield (f"tags{name.rpartition('.')[2]}" if is_tag else "".join(words[-1:])).lower(), value
    if call.service == "s3" or call.form:
        return
    try:
        body = json.loads(call.body or b"{}")
    except ValueError:  # CBOR: its actions are on all resources here.
        return
    yield from _leaves("", body)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, member in value.items():
            is_tag = name.startswith("tags") or name.lower() in TAGS
            yield from _leaves(f"tags{key}".lower() if is_tag else key.lower(), member)
    elif isinstance(value, list):
        for member in value:
            yield from _leaves(name, member)
    else:
        yield name, str(value)


def _operation(call: Call) -> tuple[str, list[tuple[str, str]]]:
    """Return the operation's name, and the parameters in the path of a REST call."""
    if call.operation or call.service == "s3":
        return call.operation, []
    if match := _OPERATION_PATH.search(call.path):
        return match[1], []
    path = call.uri.partition("?")[0]
    for method, pattern, name in _rest_operations(REST_SERVICES.get(call.service, call.service)):
        match = pattern.fullmatch(path) if method == call.method else None
        if match:
            return name, [(key.lower(), unquote(value)) for key, value in match.groupdict().items()]
    return "", []


@lru_cache
def _rest_operations(service: str) -> list[tuple[str, re.Pattern[str], str]]:
    """Return method, pattern of the path and name of each operation of a service with a REST protocol."""
    model = botocore.session.Session().get_service_model(service)
    operations = (model.operation_model(name) for name in model.operation_names)
    return [(operation.http["method"], _path(operation.http["requestUri"]), operation.name) for operation in operations]


def _path(uri: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", uri.partition("?")[0]))

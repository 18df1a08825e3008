"""Patch moto where its answers differ from AWS's and Terraform or a policy of ours depends on them.

One function a method: what moto does, what AWS does, and the difference as a patch to moto would have it. State is
kept on moto's objects, so that a reset of moto forgets it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from typing import Any

from moto.amp.models import Workspace
from moto.amp.responses import PrometheusServiceResponse
from moto.budgets.responses import BudgetsResponse
from moto.ec2.exceptions import InvalidPermissionNotFoundError, InvalidSecurityGroupRuleIdNotFoundError
from moto.ec2.models.flow_logs import FlowLogsBackend
from moto.ec2.models.nat_gateways import NatGatewayBackend
from moto.ec2.models.security_groups import SecurityGroupBackend, SecurityGroupRule
from moto.ec2.models.subnets import Subnet, SubnetBackend
from moto.iam.access_control import IAMPolicy, PermissionResult
from moto.iam.exceptions import NotFoundException
from moto.iam.models import iam_backends
from moto.logs.models import logs_backends
from moto.rds.models import DBParameterGroup
from moto.s3.models import FakeBucket
from moto.sns.exceptions import SNSInvalidParameter
from moto.sns.models import SNSBackend

# The loopback stands for TLS: statements about requests without it never apply.
WITHOUT_TLS = {"Bool": {"aws:SecureTransport": "false"}}
EVENTS_SERVICE = "events.amazonaws.com"
ALL_PROTOCOLS = "-1"
FLOW_LOGS_SERVICE = "vpc-flow-logs.amazonaws.com"
Method = Callable[..., Any]
PATCHES: list[tuple[type, str, Method]] = []


def install() -> None:
    """Patch moto."""
    for owner, name, patch in PATCHES:
        setattr(owner, name, _with_original(patch, getattr(owner, name, None)))
    SecurityGroupRule.description = property(_description)


def _patches(owner: type, *names: str) -> Callable[[Method], Method]:
    """Register a function for moto's methods of these names: its first argument is moto's, or None if there is none."""

    def register(patch: Method) -> Method:
        PATCHES.extend((owner, name, patch) for name in names)
        return patch

    return register


def _with_original(patch: Method, original: Method | None) -> Method:
    @functools.wraps(patch)
    def patched(*args: Any, **kwargs: Any) -> Any:
        return patch(original, *args, **kwargs)

    return patched


@_patches(DBParameterGroup, "update_parameters")
def _update_parameters(original: Method, group: Any, new_parameters: Iterable[dict[str, Any]]) -> None:
    """Keep the source of a parameter, which moto drops and Terraform compares.

    https://docs.aws.amazon.com/AmazonRDS/latest/APIReference/API_Parameter.html
    """
    original(group, [{**parameter, "Source": "user"} for parameter in new_parameters])


@_patches(SNSBackend, "set_topic_attribute")
def _set_topic_attribute(
    original: Method, backend: Any, topic_arn: str, attribute_name: str, attribute_value: str
) -> None:
    """Refuse a policy that would block all events; AWS accepts it, but EventBridge fulfils none of its conditions.

    https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-use-resource-based.html#eb-sns-permissions
    """
    if attribute_name == "policy":  # moto has snake case here
        for statement in json.loads(attribute_value)["Statement"]:
            principal = statement["Principal"]
            services = principal.get("Service", ()) if isinstance(principal, dict) else ()
            if EVENTS_SERVICE in ([services] if isinstance(services, str) else services) and statement.get("Condition"):
                raise SNSInvalidParameter(f"Condition of {EVENTS_SERVICE}: EventBridge cannot publish to {topic_arn}")
    original(backend, topic_arn, attribute_name, attribute_value)


@_patches(FakeBucket, "get_permission")
def _permission(_original: Method, bucket: Any, action: str, resource: str) -> Any:
    """Evaluate the bucket's policy. moto reads no conditions: "deny without TLS" would deny all."""
    if bucket.policy is None:
        return PermissionResult.NEUTRAL
    policy = json.loads(bucket.policy)
    policy["Statement"] = [item for item in policy["Statement"] if item.get("Condition") != WITHOUT_TLS]
    return IAMPolicy(json.dumps(policy)).is_action_permitted(action, resource)


def _description(rule: Any) -> str | None:
    """Return a rule's description, which moto loses when the rule's peer is a security group."""
    description: str | None = rule.ip_range.get("Description") or rule.source_group.get("Description")
    return description


@_patches(SecurityGroupBackend, "modify_security_group_rules")
def _modify_rules(original: Method, backend: Any, group_id: str, rules: dict[str, dict[str, Any]]) -> None:
    """Add the ports that moto wants of a rule for all protocols, and AWS does not."""
    for rule in rules.values():
        if rule.get("IpProtocol") == ALL_PROTOCOLS:
            rule.update(FromPort="-1", ToPort="-1")
    original(backend, group_id, rules)


@_patches(SecurityGroupBackend, "revoke_security_group_ingress", "revoke_security_group_egress")
def _revoke_rules(original: Method, backend: Any, *args: Any, **kwargs: Any) -> Any:
    """Name the missing rule id, as AWS does: an SDK that retries after a lost answer takes that as done."""
    try:
        return original(backend, *args, **kwargs)
    except InvalidPermissionNotFoundError:
        if rule_ids := kwargs.get("security_rule_ids"):
            raise InvalidSecurityGroupRuleIdNotFoundError(rule_ids[0]) from None
        raise


@_patches(NatGatewayBackend, "describe_nat_gateways")
def _describe_nat_gateways(
    original: Method, backend: Any, filters: Any = None, nat_gateway_ids: list[str] | None = None
) -> list[Any]:
    """Filter by tags too, which moto passes over."""
    values_by_tag = {
        name.removeprefix("tag:"): values for name, values in (filters or {}).items() if name.startswith("tag:")
    }
    gateways = original(backend, filters=filters, nat_gateway_ids=nat_gateway_ids)
    return [item for item in gateways if all(_tags(item).get(key) in values for key, values in values_by_tag.items())]


def _tags(item: Any) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in item.get_tags()}


@_patches(NatGatewayBackend, "delete_nat_gateway")
def _delete_nat_gateway(original: Method, backend: Any, nat_gateway_id: str) -> Any:
    """Delete the NAT gateway's network interface too: moto keeps it, and the subnet seems used."""
    gateway = original(backend, nat_gateway_id)
    for address in gateway.address_set:
        backend.enis.pop(address["networkInterfaceId"], None)
    return gateway


@_patches(SubnetBackend, "create_subnet")
def _create_subnet(original: Method, backend: Any, vpc_id: str, *args: Any, **kwargs: Any) -> Subnet:
    """Give a subnet no public addresses unless its VPC is the default one; moto does for the first in each zone.

    Terraform would change that and wait ten seconds.
    https://docs.aws.amazon.com/vpc/latest/userguide/subnet-public-ip.html
    """
    subnet = original(backend, vpc_id, *args, **kwargs)
    is_default = backend.get_vpc(vpc_id).is_default
    subnet.default_for_az = subnet.default_for_az and is_default
    subnet.map_public_ip_on_launch = subnet.map_public_ip_on_launch and is_default
    return subnet


@_patches(FlowLogsBackend, "create_flow_logs")
def _create_flow_logs(original: Method, backend: Any, *args: Any, **kwargs: Any) -> Any:
    """Set the delivery status of flow logs; moto looks up the log group by name only, not by ARN."""
    created, refused = original(backend, *args, **kwargs)
    for flow_log in created:
        if flow_log.log_destination_type == "cloud-watch-logs" and flow_log.log_destination:
            arrives = _can_write(backend, flow_log.deliver_logs_permission_arn, flow_log.log_destination)
            flow_log.deliver_logs_status = "SUCCESS" if arrives else "FAILED"
            flow_log.deliver_logs_error_message = None if arrives else "Access error"
    return created, refused


def _can_write(backend: Any, role_arn: str, group_arn: str) -> bool:
    """Return True if the log group exists, and the service may assume the role, which may write there."""
    group_arn = group_arn.removesuffix(":*")
    if group_arn.split(":", 6)[6] not in logs_backends[backend.account_id][backend.region_name].groups:
        return False
    try:
        role = iam_backends[backend.account_id][backend.partition].get_role_by_arn(role_arn)
    except NotFoundException:
        return False
    stream = f"{group_arn}:log-stream:eni"
    may_write = any(
        IAMPolicy(policy).is_action_permitted("logs:PutLogEvents", stream) is PermissionResult.PERMITTED
        for policy in role.policies.values()
    )
    return may_write and FLOW_LOGS_SERVICE in role.assume_role_policy_document


@_patches(BudgetsResponse, "describe_subscribers_for_notification")
def _describe_subscribers(_original: None, response: Any) -> str:
    """Return the subscribers of a budget's notification, which moto stores and does not return."""
    account, name, notification = _parameters(response, "AccountId", "BudgetName", "Notification")
    stored = next(
        item for item in response.backend.budgets[account][name].notifications if item.details == notification
    )
    return json.dumps({"Subscribers": stored.subscribers})


@_patches(BudgetsResponse, "create_budget")
def _create_budget(original: Method, response: Any) -> str:
    """Keep the tags, which moto drops."""
    answer: str = original(response)
    account, budget, tags = _parameters(response, "AccountId", "Budget", "ResourceTags")
    response.backend.budgets[account][budget["BudgetName"]].tags = tags or []
    return answer


@_patches(BudgetsResponse, "list_tags_for_resource")
def _tags_of_budget(_original: Method | None, response: Any) -> str:
    """Return the tags of ``arn:aws:budgets::ACCOUNT:budget/NAME``."""
    (arn,) = _parameters(response, "ResourceARN")
    budget = response.backend.budgets[arn.split(":")[4]].get(arn.partition("/")[2])
    return json.dumps({"ResourceTags": getattr(budget, "tags", [])})


def _parameters(response: Any, *names: str) -> list[Any]:
    return [response._get_param(name) for name in names]  # noqa: SLF001 -- moto's own way to read them


@_patches(PrometheusServiceResponse, "create_workspace")
def _create_workspace(original: Method, response: Any) -> str:
    """Keep the key, which moto drops."""
    answer: str = original(response)
    workspace = response.amp_backend.workspaces[json.loads(answer)["workspaceId"]]
    workspace.kms_key_arn = json.loads(response.body).get("kmsKeyArn")
    return answer


@_patches(Workspace, "to_dict")
def _workspace(original: Method, workspace: Any) -> dict[str, Any]:
    """Return moto's description of a workspace, with its key."""
    key_arn = getattr(workspace, "kms_key_arn", None)
    return {**original(workspace), **({"kmsKeyArn": key_arn} if key_arn else {})}

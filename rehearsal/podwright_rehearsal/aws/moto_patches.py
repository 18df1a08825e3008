"""Patch moto where its answers differ from AWS's and Terraform or a policy of ours depends on them."""

from __future__ import annotations

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
CREATE_BUDGET = BudgetsResponse.create_budget
TAGS_BY_BUDGET: dict[str, list[dict[str, str]]] = {}
CREATE_WORKSPACE = PrometheusServiceResponse.create_workspace
WORKSPACE_TO_DICT = Workspace.to_dict
KEYS_BY_WORKSPACE: dict[str, str] = {}
DELETE_NAT_GATEWAY = NatGatewayBackend.delete_nat_gateway  # moto's own
DESCRIBE_NAT_GATEWAYS = NatGatewayBackend.describe_nat_gateways  # moto's own
CREATE_FLOW_LOGS = FlowLogsBackend.create_flow_logs  # moto's own
MODIFY_RULES = SecurityGroupBackend.modify_security_group_rules  # moto's own
UPDATE_PARAMETERS = DBParameterGroup.update_parameters  # moto's own
CREATE_SUBNET = SubnetBackend.create_subnet  # moto's own
SET_TOPIC_ATTRIBUTE = SNSBackend.set_topic_attribute  # moto's own
EVENTS_SERVICE = "events.amazonaws.com"
ALL_PROTOCOLS = "-1"
FLOW_LOGS_SERVICE = "vpc-flow-logs.amazonaws.com"


def install() -> None:
    """Patch moto."""
    FakeBucket.get_permission = _permission
    SecurityGroupRule.description = property(_description)
    NatGatewayBackend.delete_nat_gateway = _delete_nat_gateway
    NatGatewayBackend.describe_nat_gateways = _describe_nat_gateways
    FlowLogsBackend.create_flow_logs = _create_flow_logs
    SubnetBackend.create_subnet = _create_subnet
    BudgetsResponse.describe_subscribers_for_notification = _describe_subscribers
    BudgetsResponse.create_budget = _create_budget
    BudgetsResponse.list_tags_for_resource = _tags_of_budget
    PrometheusServiceResponse.create_workspace = _create_workspace
    Workspace.to_dict = _workspace
    SecurityGroupBackend.modify_security_group_rules = _modify_rules
    DBParameterGroup.update_parameters = _update_parameters
    SNSBackend.set_topic_attribute = _set_topic_attribute
    for revoke in ("revoke_security_group_ingress", "revoke_security_group_egress"):
        setattr(SecurityGroupBackend, revoke, _naming_unknown_rules(getattr(SecurityGroupBackend, revoke)))


def _update_parameters(group: Any, new_parameters: Iterable[dict[str, Any]]) -> None:
    """Keep the source of a parameter, which Terraform compares.

    https://docs.aws.amazon.com/AmazonRDS/latest/APIReference/API_Parameter.html
    """
    UPDATE_PARAMETERS(group, [{**parameter, "Source": "user"} for parameter in new_parameters])


def _set_topic_attribute(backend: Any, topic_arn: str, attribute_name: str, attribute_value: str) -> None:
    """Refuse a policy that would block all events; AWS accepts it, but EventBridge fulfils none of its conditions.

    https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-use-resource-based.html#eb-sns-permissions
    """
    if attribute_name == "policy":  # moto has snake case here
        for statement in json.loads(attribute_value)["Statement"]:
            principal = statement["Principal"]
            services = principal.get("Service", ()) if isinstance(principal, dict) else ()
            if EVENTS_SERVICE in ([services] if isinstance(services, str) else services) and statement.get("Condition"):
                raise SNSInvalidParameter(f"Condition of {EVENTS_SERVICE}: EventBridge cannot publish to {topic_arn}")
    SET_TOPIC_ATTRIBUTE(backend, topic_arn, attribute_name, attribute_value)


def _permission(bucket: Any, action: str, resource: str) -> Any:
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


def _modify_rules(backend: Any, group_id: str, rules: dict[str, dict[str, Any]]) -> None:
    """Add the ports that moto wants of a rule for all protocols."""
    for rule in rules.values():
        if rule.get("IpProtocol") == ALL_PROTOCOLS:
            rule.update(FromPort="-1", ToPort="-1")
    MODIFY_RULES(backend, group_id, rules)


def _describe_nat_gateways(backend: Any, filters: Any = None, nat_gateway_ids: list[str] | None = None) -> list[Any]:
    """Filter by tags too, which moto passes over."""
    values_by_tag = {
        name.removeprefix("tag:"): values for name, values in (filters or {}).items() if name.startswith("tag:")
    }
    gateways = DESCRIBE_NAT_GATEWAYS(backend, filters=filters, nat_gateway_ids=nat_gateway_ids)
    return [item for item in gateways if all(_tags(item).get(key) in values for key, values in values_by_tag.items())]


def _tags(item: Any) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in item.get_tags()}


def _delete_nat_gateway(backend: Any, nat_gateway_id: str) -> Any:
    """Delete the NAT gateway's network interface too: moto keeps it, and the subnet seems used."""
    gateway = DELETE_NAT_GATEWAY(backend, nat_gateway_id)
    for address in gateway.address_set:
        backend.enis.pop(address["networkInterfaceId"], None)
    return gateway


def _create_subnet(backend: Any, vpc_id: str, *args: Any, **kwargs: Any) -> Subnet:
    """Give a subnet no public addresses unless its VPC is the default one; moto does for the first in each zone.

    Terraform would change that and wait ten seconds.
    https://docs.aws.amazon.com/vpc/latest/userguide/subnet-public-ip.html
    """
    subnet = CREATE_SUBNET(backend, vpc_id, *args, **kwargs)
    is_default = backend.get_vpc(vpc_id).is_default
    subnet.default_for_az = subnet.default_for_az and is_default
    subnet.map_public_ip_on_launch = subnet.map_public_ip_on_launch and is_default
    return subnet


def _create_flow_logs(backend: Any, *args: Any, **kwargs: Any) -> Any:
    """Set the delivery status of flow logs; moto looks up the log group by name only, not by ARN."""
    created, refused = CREATE_FLOW_LOGS(backend, *args, **kwargs)
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


def _naming_unknown_rules(revoke: Callable[..., None]) -> Callable[..., None]:
    """Name the missing rule id, as AWS does: an SDK that retries after a lost answer takes that as done."""

    def revoke_or_name(backend: Any, *args: Any, **kwargs: Any) -> None:
        try:
            revoke(backend, *args, **kwargs)
        except InvalidPermissionNotFoundError:
            if rule_ids := kwargs.get("security_rule_ids"):
                raise InvalidSecurityGroupRuleIdNotFoundError(rule_ids[0]) from None
            raise

    return revoke_or_name


def _describe_subscribers(response: Any) -> str:
    """Return the subscribers of a budget's notification, which moto stores and does not return."""
    parameters = {name: response._get_param(name) for name in ("AccountId", "BudgetName", "Notification")}  # noqa: SLF001 -- moto's own way to read them
    budget = response.backend.budgets[parameters["AccountId"]][parameters["BudgetName"]]
    notification = parameters["Notification"]
    stored = next(item for item in budget.notifications if item.details == notification)
    return json.dumps({"Subscribers": stored.subscribers})


def _create_budget(response: Any) -> str:
    """Keep the tags, which moto drops."""
    answer: str = CREATE_BUDGET(response)
    name = response._get_param("Budget")["BudgetName"]  # noqa: SLF001 -- moto's own way to read them
    TAGS_BY_BUDGET[name] = response._get_param("ResourceTags", [])  # noqa: SLF001 -- moto's own way to read them
    return answer


def _tags_of_budget(response: Any) -> str:
    """Return the tags of ``arn:aws:budgets::ACCOUNT:budget/NAME``."""
    name = response._get_param("ResourceARN").partition("/")[2]  # noqa: SLF001 -- moto's own way to read them
    return json.dumps({"ResourceTags": TAGS_BY_BUDGET.get(name, [])})


def _create_workspace(response: Any) -> str:
    """Keep the key, which moto drops."""
    answer: str = CREATE_WORKSPACE(response)
    if key_arn := json.loads(response.body).get("kmsKeyArn"):
        KEYS_BY_WORKSPACE[json.loads(answer)["workspaceId"]] = key_arn
    return answer


def _workspace(workspace: Any) -> dict[str, Any]:
    """Return moto's description of a workspace, with its key."""
    key_arn = KEYS_BY_WORKSPACE.get(workspace.workspace_id)
    return {**WORKSPACE_TO_DICT(workspace), **({"kmsKeyArn": key_arn} if key_arn else {})}

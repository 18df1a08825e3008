"""Differences between AWS, Terraform's state and the settings, as findings.

Terraform plans twice: with the state alone, which shows what the settings changed since the deployment, and after
asking AWS, which shows what was changed there. What Terraform does not compare is asked for here: the cluster, which
Cloud Control only reads, the content of uploaded scripts, and rules and policies that somebody added.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from podwright.aws_session import Session
from podwright.check.findings import Finding, KeyPath, Level
from podwright.errors import AwsError
from podwright.operations.deployment.adopt import as_made
from podwright.operations.deployment.deployed_stacks import DeployedStack, state_in
from podwright.resource_types import CLUSTER

if TYPE_CHECKING:
    from podwright.settings.root import Settings

PUT_BACK = "`podwright deploy` puts it back; to keep it, write it into the settings"
UNDO = "Terraform cannot see it: write it into the settings and deploy, or undo it: `aws sagemaker update-cluster`"
MADE_AGAIN = "`podwright deploy` makes it again"
DELETE_IT = "delete it, or write it into the settings"
DUPLICATE_ARGUMENTS = {"tags_all", "inline_policy", "managed_policy_arns"}  # Other arguments report the same values.
SHOWN = 60

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Plans:
    """Two plans of a stack: ``by_settings`` compares the settings with the state, ``by_aws`` with AWS."""

    part: str
    by_settings: Values
    by_aws: Values
    paths: Mapping[str, str]

    @classmethod
    def of(cls, part: str, stack: DeployedStack) -> Plans:
        """Plan a stack, synthesized from the settings.

        Raises:
            NotDeployedError: it was not deployed from this folder.
            TerraformError: Terraform cannot plan.
        """
        stack.check()
        paths = {address: path.partition("/")[2] for path, address in stack.addresses().items()}
        return cls(part, stack.plan(), stack.plan(refresh=True), paths)

    @property
    def state(self) -> dict[str, Values]:
        """The resources by address, as the last deployment left them."""
        return state_in(self.by_settings)

    def place(self, address: str) -> KeyPath:
        """Return the path of a finding about a resource: its stack, and the path of its construct."""
        return (self.part, self.paths.get(address, address))


def findings_of_stack(plans: Plans, session: Session) -> list[Finding]:
    """Return the differences of all resources of a stack but the cluster itself.

    Raises:
        OperationError: AWS does not answer.
    """
    return [
        *_pending(plans),
        *_edited(plans),
        *_overwritten(plans),
        *_added_rules(plans, session),
        *_added_policies(plans, session),
    ]


def findings_of_cluster(settings: Settings, plans: Plans, session: Session) -> list[Finding]:
    """Return the differences between the cluster in AWS and the one that was deployed.

    Raises:
        OperationError: AWS does not answer.
    """
    findings: list[Finding] = []
    for address, values in plans.state.items():
        if not _is(CLUSTER, address):
            continue
        try:
            answer = session.call("cloudcontrol", "get_resource", TypeName=values["type_name"], Identifier=values["id"])
        except AwsError as error:
            if not error.absent:
                raise
            findings.append(_error("gone", ("cluster",), f"{settings.name} is gone from AWS", MADE_AGAIN))
            continue
        deployed, current = json.loads(values["desired_state"]), json.loads(answer["ResourceDescription"]["Properties"])
        findings += [
            _cluster_finding(settings, path, was, now)
            for path, was, now in unequal(deployed, as_made(deployed, current))
        ]
        findings += _software(settings, session)
    return findings


def _pending(plans: Plans) -> Iterator[Finding]:
    """Yield resources that the settings changed since the deployment."""
    for item in plans.by_settings.get("resource_changes", ()):
        change = item["change"]
        if item["mode"] != "managed" or change["actions"] in (["no-op"], ["read"]):
            continue
        replaced = [".".join(map(str, path)) for path in change.get("replace_paths", ())]
        unknown = change.get("after_unknown") or {}
        edited = (path for path, _, _ in _differing(change["after"], change) if not unknown.get(path[0]))
        keys = replaced or [".".join(path) for path in edited]
        verb = "replace" if len(change["actions"]) > 1 else change["actions"][0]
        message = f"the settings {verb} what was deployed" + (f": {', '.join(keys)}" if keys else "")
        yield Finding(Level.WARNING, "not-deployed", plans.place(item["address"]), message, "run `podwright deploy`")


def _edited(plans: Plans) -> Iterator[Finding]:
    """Yield resources that were changed in AWS since the last deployment, or deleted."""
    now, changed = state_in(plans.by_aws), {item["address"]: item for item in plans.by_aws.get("resource_changes", ())}
    for address, values in plans.state.items():
        item = changed.get(address)
        if _is(CLUSTER, address) or item is None:
            continue
        if address not in now:
            yield _error("gone", plans.place(address), "is gone from AWS", MADE_AGAIN)
            continue
        for path, was, is_now in _differing(values, item["change"]):
            message = f"AWS has {_short(is_now)}, deployed was {_short(was)}"
            yield _error("edited", (*plans.place(address), ".".join(path)), message, PUT_BACK)


def _differing(deployed: Values | None, change: Values) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield path, deployed value and AWS's value of each difference in arguments that the change would set.

    An argument that refers to another edited resource is unknown until the deployment, and may be edited itself.
    """
    before, after, unknown = (change.get(key) or {} for key in ("before", "after", "after_unknown"))
    for key in sorted({*before, *after, *unknown} - DUPLICATE_ARGUMENTS):
        if unknown.get(key) or _plain(before.get(key)) != _plain(after.get(key)):
            for path, was, now in unequal((deployed or {}).get(key), before.get(key)):
                yield (key, *path), was, now


def _overwritten(plans: Plans) -> Iterator[Finding]:
    """Yield uploaded objects whose content was changed: nodes run the scripts as root."""
    for item in plans.by_aws.get("resource_drift", ()):
        change = item["change"]
        if item["type"] == "aws_s3_object" and change["after"] and change["before"]["etag"] != change["after"]["etag"]:
            message = f"s3://{change['after']['bucket']}/{change['after']['key']} is not what was uploaded"
            hint = f"nodes run it as root: find out who wrote it, then `terraform taint {item['address']}` and deploy"
            yield _error("overwritten", plans.place(item["address"]), message, hint)


def _added_rules(plans: Plans, session: Session) -> Iterator[Finding]:
    """Yield rules of created security groups that are in no state."""
    rule_ids = {values.get("security_group_rule_id") for values in plans.state.values()}
    for address, values in plans.state.items():
        if not address.startswith("aws_security_group."):
            continue
        filters = [{"Name": "group-id", "Values": [values["id"]]}]
        rules = session.items("ec2", "describe_security_group_rules", "SecurityGroupRules", Filters=filters)
        for rule in rules:
            if rule["SecurityGroupRuleId"] not in rule_ids:
                path = (*plans.place(address), rule["SecurityGroupRuleId"])
                yield _error("added", path, f"AWS has one more rule: {_rule(rule)}", DELETE_IT)


def _rule(rule: Values) -> str:
    direction = "to" if rule["IsEgress"] else "from"
    peer = next((rule[key] for key in ("CidrIpv4", "CidrIpv6", "PrefixListId") if rule.get(key)), "")
    peer = peer or rule.get("ReferencedGroupInfo", {}).get("GroupId", "anywhere")
    ports = "all" if rule["IpProtocol"] == "-1" else f"{rule['IpProtocol']} {rule['FromPort']}-{rule['ToPort']}"
    return f"{ports} {direction} {peer}"


def _added_policies(plans: Plans, session: Session) -> Iterator[Finding]:
    """Yield policies of created roles that are in no state."""
    policy_names = {
        (item["role"], item["name"]) for key, item in plans.state.items() if _is("aws_iam_role_policy", key)
    }
    for address, values in plans.state.items():
        if not _is("aws_iam_role", address):
            continue
        role = values["name"]
        inline = session.items("iam", "list_role_policies", "PolicyNames", RoleName=role)
        attached = session.items("iam", "list_attached_role_policies", "AttachedPolicies", RoleName=role)
        added = [name for name in inline if (role, name) not in policy_names]
        for name in [*added, *(item["PolicyArn"] for item in attached)]:
            yield _error("added", plans.place(address), f"role {role} has one more policy: {name}", DELETE_IT)


def _cluster_finding(settings: Settings, path: tuple[str, ...], was: Any, now: Any) -> Finding:
    """Return a finding about the cluster, placed at the instance group in the settings file if it is about one."""
    names = [group.name for group in settings.cluster.instance_groups]
    message = f"{'.'.join(path)}: AWS has {_short(now)}, deployed was {_short(was)}"
    in_file: KeyPath = ("cluster",)
    if path[0] == "InstanceGroups" and len(path) > 1 and path[1] in names:
        in_file = ("cluster", "instance_groups", names.index(path[1]))
        in_file += ("count",) if path[-1] == "InstanceCount" else ("name",)
    return _error("edited", in_file, message, UNDO)


def _software(settings: Settings, session: Session) -> Iterator[Finding]:
    """Yield groups whose image is not the newest; a remark, because a deployment does not change it."""
    answer = session.call("sagemaker", "describe_cluster", ClusterName=settings.name)
    for group in answer["InstanceGroups"]:
        status = group.get("ImageVersionStatus", "")
        if status and status != "UpToDate":
            version = group.get("CurrentImageReleaseVersion", "its image")
            message = f"{group['InstanceGroupName']} runs {version}, which is {status}"
            yield Finding(
                Level.INFO, "software", ("cluster",), message, "`podwright update-software` installs the newest"
            )


def unequal(deployed: Any, current: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield path and both values of each difference; items of lists are matched by name."""
    deployed, current = _by_name(_parsed(deployed)), _by_name(_parsed(current))
    if isinstance(deployed, dict) and isinstance(current, dict):
        for key in dict.fromkeys([*deployed, *current]):
            yield from unequal(deployed.get(key), current.get(key), (*path, str(key)))
    elif _plain(deployed) != _plain(current):
        yield path, deployed, current


def _by_name(value: Any) -> Any:
    """Return a list of items as a mapping: by their names, or by their numbers from 0."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        for key, content in (("InstanceGroupName", None), ("Sid", None), ("Key", "Value")):
            if all(key in item for item in value):
                return {item[key]: item[content] if content else item for item in value}
        return {str(number): item for number, item in enumerate(value)}
    return value


def _plain(value: Any) -> Any:
    """Return a value, or None for the empty values, which AWS and Terraform do not distinguish."""
    return None if value in ("", [], {}, ()) else value


def _parsed(value: Any) -> Any:
    """Return the data of a JSON text, such as a policy, and any other value as it is."""
    if isinstance(value, str) and value[:1] in {"{", "["}:
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _is(kind: str, address: str) -> bool:
    return address.partition(".")[0] == kind


def _error(code: str, path: KeyPath, message: str, hint: str) -> Finding:
    return Finding(Level.ERROR, code, path, message, hint)


def _short(value: Any) -> str:
    """Return a value as text, cut off after 60 characters."""
    if value is None:
        return "nothing"
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"

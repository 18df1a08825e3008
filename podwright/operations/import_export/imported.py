"""A cluster that podwright did not make, as the sections of a settings file.

Every value is AWS's answer. A remark says where a value was chosen, and what the file does not say stays as it is.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from podwright.operations.account.hyperpod import Cluster, InstanceGroup
from podwright_bootstrap.contract import COMPUTE, CONTROLLER, LOGIN
from podwright_constructs import facts

READ_ONLY = {"ClusterArn", "ClusterStatus", "CreationTime", "FailureMessage", "CurrentCount"}
DEFAULTS = {"NodeRecovery": "Automatic"}  # the API's own, where an answer leaves them out
GROUP_DEFAULTS = {"ThreadsPerCore": 1}
AWS_TAGS = "aws:"  # AWS's own tags begin so; nobody can set them.
LINE_LENGTH = 100

Values = Mapping[str, Any]


@dataclass(frozen=True)
class ClusterDescription:
    """AWS's answers about a cluster.

    ``model`` is the cluster in the words of CloudFormation, ``parameters`` its provisioning_parameters.json.
    """

    cluster: Cluster
    model: Values
    parameters: Values
    vpc_id: str
    bucket: str
    lustre: Values
    openzfs: Values | None

    @property
    def groups(self) -> Sequence[tuple[InstanceGroup, dict[str, Any]]]:
        """Each instance group with a copy of its part of the model."""
        group_by_name = {group.name: group for group in self.cluster.groups}
        return [(group_by_name[item["InstanceGroupName"]], dict(item)) for item in self.model["InstanceGroups"]]


@dataclass(frozen=True)
class FileSection:
    """One section of the file, and the remarks above it."""

    key: str
    value: Any
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Description:
    """A settings file: its sections, and the properties of the cluster that it cannot describe."""

    parts: Sequence[FileSection]
    not_managed: Sequence[str]

    @property
    def choices(self) -> list[str]:
        """All remarks."""
        return [remark for part in self.parts for remark in part.remarks]

    def text(self, heading: Sequence[str]) -> str:
        """Return the file, beginning with these remarks."""
        unmanaged_note = f"Not in this file, and kept by every update: {', '.join(self.not_managed)}."
        lines = [*_comment(heading), *(_comment([unmanaged_note]) if self.not_managed else [])]
        for part in self.parts:
            section = {part.key: part.value}
            lines += [*_comment(part.remarks), yaml.safe_dump(section, sort_keys=False, allow_unicode=True).rstrip()]
        return "\n".join([*lines, ""])


def describe(source: ClusterDescription) -> Description:
    """Return the settings of a cluster on Slurm."""
    remaining = {key: value for key, value in source.model.items() if key not in READ_ONLY}
    network, tags = remaining.pop("VpcConfig"), _tags(remaining.pop("Tags", None) or ())
    described = [_group(group, model) for group, model in source.groups]
    for key in ("ClusterName", "InstanceGroups"):
        remaining.pop(key)
    cluster: dict[str, Any] = {
        "node_recovery": remaining.pop("NodeRecovery", DEFAULTS["NodeRecovery"]).lower(),
        "node_provisioning": (remaining.pop("NodeProvisioningMode", None) or "").lower(),
        "own_tags": False,
        "extra_security_group_ids": list(network["SecurityGroupIds"][1:]) or "",
        "slurm": _slurm(source, remaining.pop("Orchestrator", None) or {}),
        "instance_groups": [group for group, _ in described],
    }
    parts = [
        FileSection("name", source.cluster.name),
        FileSection("region", source.cluster.region),
        *([FileSection("tags", tags)] if tags else []),
        FileSection("network", {"source": "existing", "vpc_id": source.vpc_id, **_network(network)}),
        FileSection("lustre", source.lustre, _remarks_on_mount(source, source.lustre, "FsxLustreConfig")),
        *([FileSection("openzfs", source.openzfs)] if source.openzfs else []),
        FileSection("bucket", {"source": "existing", "name": source.bucket}),
        FileSection("role", _role(source)),
        *_accounting(source),
        FileSection("cluster", {key: value for key, value in cluster.items() if value != ""}, tuple(_remarks(source))),
        FileSection(
            "training", {"source": "none"}, ("The scripts are not podwright's: no training program is installed.",)
        ),
    ]
    return Description(
        parts, [*(key for key, value in remaining.items() if value), *(word for _, w in described for word in w)]
    )


def _role(source: ClusterDescription) -> Values:
    """Return the section of the roles, each of which all groups of a kind share."""
    by_kind = {group.role or COMPUTE: group.execution_role_arn for group in source.cluster.groups}
    arn = by_kind.get(COMPUTE) or next(iter(by_kind.values()))
    other_arns = {
        key: by_kind[kind]
        for kind, key in ((CONTROLLER, "controller_arn"), (LOGIN, "login_arn"))
        if by_kind.get(kind, arn) != arn
    }
    return {"source": "existing", "arn": arn, **other_arns}


def normalised(model: Values) -> dict[str, Any]:
    """Return a model without AWS's own tags, and with the API's defaults where it has none."""
    tags = [tag for tag in model.get("Tags") or () if not tag["Key"].startswith(AWS_TAGS)]
    groups = [{**GROUP_DEFAULTS, **group} for group in model["InstanceGroups"]]
    return {**DEFAULTS, **model, "Tags": tags, "InstanceGroups": groups}


def _group(group: InstanceGroup, remaining: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a group's settings, and the properties that they leave out."""
    volumes = [
        item["EbsVolumeConfig"]
        for item in remaining.pop("InstanceStorageConfigs", None) or ()
        if "EbsVolumeConfig" in item
    ]
    network = remaining.pop("OverrideVpcConfig", None) or {}
    kinds = (remaining.pop("InstanceRequirements", None) or {}).get("InstanceTypes") or [remaining.get("InstanceType")]
    remaining.pop("InstanceType", None)
    capacity = next(iter(remaining.pop("CapacityRequirements", None) or {}), "")
    settings = {
        "name": remaining.pop("InstanceGroupName"),
        "role": group.role or "compute",
        "instance_type": kinds[0],
        "other_instance_types": kinds[1:],
        "count": remaining.pop("InstanceCount", group.target_count),
        "min_count": remaining.pop("MinInstanceCount", None),
        "partition": None if group.role in {"controller", "login"} else _partition(group) or group.name,
        "volume_gib": next((volume["VolumeSizeInGB"] for volume in volumes if "VolumeSizeInGB" in volume), 0),
        "key_arn": next((volume["VolumeKmsKeyId"] for volume in volumes if "VolumeKmsKeyId" in volume), None),
        "threads_per_core": remaining.pop("ThreadsPerCore", None),
        "training_plan_arn": remaining.pop("TrainingPlanArn", None),
        "capacity": _word(capacity),
        "deep_health_checks": [_word(check) for check in remaining.pop("OnStartDeepHealthChecks", None) or ()],
        "network_interface": (remaining.pop("NetworkInterface", None) or {}).get("InterfaceType"),
        "subnet_ids": list(network.get("Subnets", ())),
        "security_group_ids": list(network.get("SecurityGroupIds", ())),
        "image_id": remaining.pop("ImageId", None),
        "auto_patch": _word((remaining.pop("AutoPatchConfig", None) or {}).get("PatchingStrategy", "")),
        "scheduled_update": _scheduled_update(remaining.pop("ScheduledUpdateConfig", None) or {}),
    }
    for key in ("ExecutionRole", "LifeCycleConfig", "SlurmConfig"):
        remaining.pop(key, None)
    not_managed = [f"{key} of {group.name}" for key, value in remaining.items() if value and key not in READ_ONLY]
    return {key: value for key, value in settings.items() if value not in (None, "", [], {})}, not_managed


def _partition(group: InstanceGroup) -> str:
    """Return the group's partition; empty if it is unknown, or one that every HyperPod cluster has."""
    return "" if group.partition in facts.RESERVED_PARTITIONS else group.partition


def _scheduled_update(config: Values) -> dict[str, Any]:
    if not config:
        return {}
    deployment = config.get("DeploymentConfig") or {}
    policy = deployment.get("RollingUpdatePolicy") or {}
    settings = {
        "schedule": config["ScheduleExpression"],
        **_batch("", policy.get("MaximumBatchSize") or {}),
        **_batch("rollback_", policy.get("RollbackMaximumBatchSize") or {}),
        "wait_s": deployment.get("WaitIntervalInSeconds"),
        "rollback_alarms": [alarm["AlarmName"] for alarm in deployment.get("AutoRollbackConfiguration") or ()],
    }
    return {key: value for key, value in settings.items() if value}


def _batch(prefix: str, size: Values) -> dict[str, Any]:
    unit = "percent" if size.get("Type") == "CAPACITY_PERCENTAGE" else "count"
    return {f"{prefix}max_{unit}": size.get("Value")}


def _slurm(source: ClusterDescription, orchestrator: Values) -> dict[str, Any]:
    scripts: Values = next((model["LifeCycleConfig"] for _, model in source.groups if model.get("LifeCycleConfig")), {})
    if "Slurm" not in orchestrator:
        return {"source": "existing", "source_s3_uri": scripts["SourceS3Uri"], "on_create": scripts.get("OnCreate", "")}
    strategy = orchestrator["Slurm"].get("SlurmConfigStrategy", "").lower()
    slurm: dict[str, Any] = {"source": "api", **({"strategy": strategy} if strategy else {})}
    if scripts:
        location = {"source_s3_uri": scripts["SourceS3Uri"], "on_init_complete": scripts.get("OnInitComplete", "")}
        slurm["init_script"] = location
    return slurm


def _accounting(source: ClusterDescription) -> Iterator[FileSection]:
    orchestrator = source.model.get("Orchestrator") or {}
    database = (orchestrator.get("Slurm") or {}).get("AccountingDatabase")
    if database:
        location = {"endpoint": database["Endpoint"], "secret_arn": database["SecretArn"]}
        optional = {"port": "Port", "database_name": "Name"}
        given_values = {key: database[name] for key, name in optional.items() if name in database}
        yield FileSection("accounting", {"source": "existing", **location, **given_values})


def _network(config: Values) -> dict[str, Any]:
    return {"subnet_ids": list(config["Subnets"]), "security_group_id": config["SecurityGroupIds"][0]}


def _tags(tags: Sequence[Values]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in tags if not tag["Key"].startswith(AWS_TAGS)}


def _remarks_on_mount(source: ClusterDescription, lustre: Values, kind: str) -> tuple[str, ...]:
    storage = [config for _, model in source.groups for config in model.get("InstanceStorageConfigs") or ()]
    if any(kind in config for config in storage):
        return ()
    return (f"AWS does not say where nodes mount it: {lustre['mount_path']} is assumed.",)


def _remarks(source: ClusterDescription) -> Iterator[str]:
    yield "own_tags: false keeps the cluster's tags. With true, the next deployment adds podwright's."
    unnamed = [group.name for group in source.cluster.groups if not group.role]
    if unnamed:
        yield f"The scripts' parameters do not name {', '.join(unnamed)}: compute is assumed."
    computing = [group for group in source.cluster.groups if group.role in {"", "compute"}]
    without = [group.name for group in computing if not group.partition]
    if without:
        yield f"AWS does not say the partition of {', '.join(without)}: the group's name is assumed."
    shared = [f"{group.name} ({group.partition})" for group in computing if group.partition and not _partition(group)]
    if shared:
        yield f"The group's name stands for a partition that every HyperPod cluster has: {', '.join(shared)}."


def _word(word: str) -> str:
    """Return our spelling of the API's word: ``WhenIdle`` is ``when-idle``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", word).lower()


def _comment(remarks: Sequence[str]) -> list[str]:
    """Return the remarks as lines of comments."""
    return [
        f"# {line}" for remark in remarks for line in textwrap.wrap(remark, LINE_LENGTH - 2, break_on_hyphens=False)
    ]

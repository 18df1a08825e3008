"""Refuse clusters on which HyperPod fails to set Slurm up, by lifecycle scripts or by the API.

Sources: https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-run-jobs-slurm-lifecycle.html,
https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-slurm-api-config-migration.html
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from podwright_rehearsal.aws.cluster_request import PROVISIONING_PARAMETERS, Request

SOURCE_PREFIX = "s3://sagemaker-"
MULTI_HEAD = ("slurm_database_secret_arn", "slurm_database_endpoint", "slurm_shared_directory")
FILE_SYSTEMS = ("FsxLustreConfig", "FsxOpenZfsConfig")


def scripts_exist(request: Request) -> Iterator[str]:
    """Each script that a group names lies in a bucket that its role reads; without the API each group names one.

    AWS's managed policy for roles reads buckets with the prefix alone.
    https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterLifeCycleConfig.html
    """
    for group in request.groups:
        name, config = group["InstanceGroupName"], group.get("LifeCycleConfig", {})
        entry = "OnInitComplete" if request.by_api else "OnCreate"
        source, script = config.get("SourceS3Uri", ""), config.get(entry, "")
        if request.by_api and not config:
            continue
        if not (source and script):
            yield f"LifeCycleConfig of {name} needs SourceS3Uri and {entry}"
        elif not source.startswith(SOURCE_PREFIX) and not _reads(request, group, source):
            yield (
                f"SourceS3Uri {source} of {name} must begin with {SOURCE_PREFIX}, or a policy of "
                f"{group['ExecutionRole']} must allow s3:GetObject in its bucket"
            )
        elif request.read(f"{source.rstrip('/')}/{script}") is None:
            yield f"Lifecycle scripts did not run successfully on {name}: there is no {source.rstrip('/')}/{script}"


def _reads(request: Request, group: dict[str, Any], source: str) -> bool:
    bucket = source.removeprefix("s3://").partition("/")[0]
    return request.account.reads_bucket(group["ExecutionRole"], bucket)


def modes_are_not_mixed(request: Request) -> Iterator[str]:
    """A cluster by the API has Slurm's members in itself and each group, and no parameters beside its scripts."""
    if not request.by_api:
        return
    if "Slurm" not in (request.model.get("Orchestrator") or {}):
        yield "Orchestrator.Slurm is missing, but instance groups have a SlurmConfig"
    for group in request.groups:
        if "SlurmConfig" not in group:
            yield f"SlurmConfig of {group['InstanceGroupName']} is missing"
    for source in request.sources:
        if request.read(f"{source}/{PROVISIONING_PARAMETERS}") is not None:
            yield (
                f"A cluster cannot include both a SLURM Orchestrator Config and a {PROVISIONING_PARAMETERS} "
                f"file, which is in {source}"
            )


def scripts_name_one_controller(request: Request) -> Iterator[str]:
    """provisioning_parameters.json names groups of this cluster, one instance as controller."""
    if request.by_api:
        return
    yield from request.parameter_problems()
    for uri, content in request.provisioning_parameters:
        yield from _controller(request, uri, content)
        workers = [worker.get("instance_group_name") for worker in content.get("worker_groups") or []]
        if not workers:
            yield f"worker_groups of {uri} is empty"
        names_by_key = {
            "worker_groups": workers,
            "login_group": [content["login_group"]] if content.get("login_group") else [],
        }
        for key, names in names_by_key.items():
            unknown = [str(name) for name in names if name not in request.counts]
            if unknown:
                yield f"{key} of {uri} names {', '.join(unknown)}, not an instance group: {_names(request)}"


def api_names_one_controller(request: Request) -> Iterator[str]:
    """One controller, at most one login group; compute groups, and they alone, have a partition."""
    if not request.by_api:
        return
    types = Counter(group.get("SlurmConfig", {}).get("NodeType") for group in request.groups)
    if types["Controller"] != 1:
        yield f"SlurmConfig: exactly 1 instance group must have NodeType Controller, not {types['Controller']}"
    if types["Login"] > 1:
        yield f"SlurmConfig: at most 1 instance group may have NodeType Login, not {types['Login']}"
    for name in request.controller_groups:
        if request.counts[name] != 1:
            yield f"Controller group {name} must have InstanceCount 1, not {request.counts[name]}"
    for group in request.groups:
        config, name = group.get("SlurmConfig", {}), group["InstanceGroupName"]
        is_compute = config.get("NodeType") == "Compute"
        if is_compute and not config.get("PartitionNames"):
            yield f"PartitionNames of {name} is missing: NodeType Compute needs one"
        if not is_compute and config.get("PartitionNames"):
            yield f"PartitionNames of {name} is for NodeType Compute only"


def api_strategy_fits(request: Request) -> Iterator[str]:
    """The strategy is for clusters that are provisioned at once, the accounting database for the others."""
    slurm = (request.model.get("Orchestrator") or {}).get("Slurm", {})
    if request.model.get("NodeProvisioningMode") == "Continuous":
        if "SlurmConfigStrategy" in slurm:
            yield "SlurmConfigStrategy is not supported with NodeProvisioningMode Continuous"
    elif "AccountingDatabase" in slurm:
        yield "AccountingDatabase is supported with NodeProvisioningMode Continuous only"


def api_mounts_once(request: Request) -> Iterator[str]:
    """One file system of each kind in a group, and only by the API."""
    for group in request.groups:
        counts = Counter(kind for config in group.get("InstanceStorageConfigs", []) for kind in config)
        for kind in FILE_SYSTEMS:
            if counts[kind] > 1:
                yield f"{group['InstanceGroupName']} has {counts[kind]} {kind}: at most 1"
            if counts[kind] and not request.by_api:
                yield f"{kind} of {group['InstanceGroupName']} needs Slurm by the API: add Orchestrator.Slurm"


def _controller(request: Request, uri: str, content: dict[str, Any]) -> Iterator[str]:
    controller = content.get("controller_group")
    if controller not in request.counts:
        yield f"controller_group {controller} of {uri} is not an instance group: {_names(request)}"
        return
    shared = content.get("slurm_configurations") or {}
    missing = [key for key in MULTI_HEAD if not shared.get(key)]
    count = request.counts[controller]
    continuous = request.model.get("NodeProvisioningMode") == "Continuous"
    if count < 1:
        yield f"controller_group {controller} of {uri} must have InstanceCount 1, not {count}"
    elif count > 1 and continuous:
        yield f"controller_group {controller} of {uri}: NodeProvisioningMode Continuous knows no multi-head"
    elif count > 1 and missing:
        without = f"must have InstanceCount 1, not {count}" if not shared else f"lacks {', '.join(missing)}"
        yield f"controller_group {controller} of {uri} {without}"


def _names(request: Request) -> str:
    return f"the cluster has {', '.join(request.counts)}"

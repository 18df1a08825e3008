"""A requested cluster, and the resources of the account that it refers to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from podwright_rehearsal.aws.account import Account

PROVISIONING_PARAMETERS = "provisioning_parameters.json"  # AWS's name, which its agent looks for


@dataclass(frozen=True)
class Request:
    """A resource model that fits the schema, and the account it is to live in."""

    model: dict[str, Any]
    account: Account

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The instance groups."""
        groups: list[dict[str, Any]] = self.model.get("InstanceGroups") or []
        return groups

    @cached_property
    def counts(self) -> dict[str, int]:
        """Instances asked for, by group name."""
        return {group["InstanceGroupName"]: group["InstanceCount"] for group in self.groups}

    @cached_property
    def networks(self) -> list[dict[str, list[str]]]:
        """The VpcConfig of the cluster and of its groups, where given."""
        overrides = [group.get("OverrideVpcConfig") for group in self.groups]
        return [network for network in (self.model.get("VpcConfig"), *overrides) if network]

    @cached_property
    def sources(self) -> list[str]:
        """The S3 prefixes of lifecycle scripts, each once, without a slash at the end."""
        uris = [group.get("LifeCycleConfig", {}).get("SourceS3Uri", "") for group in self.groups]
        return list(dict.fromkeys(uri.rstrip("/") for uri in uris if uri))

    @cached_property
    def provisioning_parameters(self) -> list[tuple[str, dict[str, Any]]]:
        """The readable ``provisioning_parameters.json`` files: address and content."""
        return [(uri, content) for uri, content, problem in map(self._parameters, self.sources) if not problem]

    @property
    def by_api(self) -> bool:
        """True if HyperPod itself sets Slurm up, not lifecycle scripts."""
        orchestrated = "Slurm" in (self.model.get("Orchestrator") or {})
        return orchestrated or any("SlurmConfig" in group for group in self.groups)

    @property
    def controller_groups(self) -> list[str]:
        """Names of the groups that run slurmctld."""
        if self.by_api:
            return [group["InstanceGroupName"] for group in self.of_type("Controller")]
        return [str(content.get("controller_group")) for _, content in self.provisioning_parameters]

    def host_names(self, group: dict[str, Any]) -> Iterator[str]:
        """Yield the host names of file systems that a group mounts and of the database that its controllers use."""
        for config in group.get("InstanceStorageConfigs") or []:
            yield from (member["DnsName"] for member in config.values() if "DnsName" in member)
        name = group["InstanceGroupName"]
        if name in self.controller_groups:
            slurm = (self.model.get("Orchestrator") or {}).get("Slurm", {})
            yield from filter(None, [slurm.get("AccountingDatabase", {}).get("Endpoint")])
        source = group.get("LifeCycleConfig", {}).get("SourceS3Uri", "").rstrip("/")
        for uri, content in self.provisioning_parameters:
            if uri == f"{source}/{PROVISIONING_PARAMETERS}":
                yield from (content[key] for key in ("fsx_dns_name", "fsx_openzfs_dns_name") if content.get(key))
                shared = content.get("slurm_configurations") or {}
                if name in self.controller_groups and shared.get("slurm_database_endpoint"):
                    yield shared["slurm_database_endpoint"]

    def of_type(self, node_type: str) -> list[dict[str, Any]]:
        """Return the groups whose SlurmConfig has this NodeType."""
        return [group for group in self.groups if group.get("SlurmConfig", {}).get("NodeType") == node_type]

    def read(self, uri: str) -> bytes | None:
        """Return an object's bytes by its ``s3://`` address."""
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        return self.account.read_object(bucket=bucket, key=key)

    def parameter_problems(self) -> Iterator[str]:
        """Yield each unreadable ``provisioning_parameters.json`` with the reason."""
        for uri, _, problem in map(self._parameters, self.sources):
            if problem:
                yield f"{uri} {problem}"

    def _parameters(self, source: str) -> tuple[str, dict[str, Any], str]:
        uri = f"{source}/{PROVISIONING_PARAMETERS}"
        text = self.read(uri)
        if text is None:
            return uri, {}, "does not exist"
        try:
            content = json.loads(text)
        except ValueError as error:
            return uri, {}, f"is not JSON: {error}"
        return (uri, content, "") if isinstance(content, dict) else (uri, {}, "is not an object")

"""The Resource Groups Tagging API: the region's resources and their tags.

moto covers some services; this adds the others that the stacks use, and ARNs as AWS writes them.
https://docs.aws.amazon.com/resourcegroupstagging/latest/APIReference/API_GetResources.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from moto.amp.models import amp_backends
from moto.core.resource_tagging import iter_taggable_backends, make_tag_matcher
from moto.ec2.models import ec2_backends
from moto.events.models import events_backends
from moto.rds.models import rds_backends

from podwright_rehearsal.aws.account import Account
from podwright_rehearsal.aws.file_systems import FileSystems
from podwright_rehearsal.aws.hyperpod import EmulatedClusters
from podwright_rehearsal.aws.identity import ACCOUNT_ID

PAGE_SIZE = 100
ARN_WORDS = {":flow-logs/": ":vpc-flow-log/"}  # moto's and AWS's

Tagged = tuple[str, Mapping[str, str]]  # ARN and tags


class Tagging:
    """The service. Not thread-safe: the server calls it under its lock."""

    def __init__(self, *, account: Account, clusters: EmulatedClusters, file_systems: FileSystems) -> None:
        self._account = account
        self._clusters = clusters
        self._file_systems = file_systems
        self.operations = {"GetResources": self.get_resources}

    def get_resources(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """GetResources: one page of the resources that match all filters; the token is the number returned so far."""
        matches = make_tag_matcher(request.get("TagFilters"))
        resources = [(arn, tags) for arn, tags in self._everything() if tags and matches(dict(tags))]
        start = int(request.get("PaginationToken") or 0)
        end = start + min(request.get("ResourcesPerPage") or PAGE_SIZE, PAGE_SIZE)
        page = [
            {"ResourceARN": arn, "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
            for arn, tags in resources[start:end]
        ]
        return {"ResourceTagMappingList": page, "PaginationToken": str(end) if end < len(resources) else ""}

    def tags(self, arn: str) -> Mapping[str, str]:
        """Return the tags of a resource; none if there is no such resource."""
        return next((tags for name, tags in self._everything() if name == arn), {})

    def _everything(self) -> Iterator[Tagged]:
        emulated = chain(self._ec2(), self._services(), self._file_systems.tagged(), self._clusters.tagged())
        yield from emulated
        for backend in iter_taggable_backends(ACCOUNT_ID, self._account.region):
            for item in backend.iter_tagged_resources():
                arn = item.arn
                for word, right in ARN_WORDS.items():
                    arn = arn.replace(word, right)
                yield arn, item.tags

    def _ec2(self) -> Iterator[Tagged]:
        backend = ec2_backends[ACCOUNT_ID][self._account.region]
        groups = chain.from_iterable(groups.values() for groups in backend.groups.values())
        rules = chain.from_iterable((*group.ingress_rules, *group.egress_rules) for group in groups)
        kinds = {
            "elastic-ip": backend.addresses,
            "security-group-rule": rules,
            "vpc-endpoint": backend.vpc_end_points.values(),
        }
        for kind, resources in kinds.items():
            for resource in resources:
                yield self._account.arn("ec2", f"{kind}/{resource.id}"), backend.tags.get(resource.id, {})

    def _services(self) -> Iterator[Tagged]:
        region = self._account.region
        events, workspaces = events_backends[ACCOUNT_ID][region], amp_backends[ACCOUNT_ID][region]
        for bus in events.event_buses.values():
            for rule in bus.rules.values():
                yield rule.arn, events.tagger.get_tag_dict_for_resource(rule.arn)
        for workspace in workspaces.workspaces.values():
            yield workspace.arn, workspaces.list_tags_for_resource(workspace.arn)
        for group in rds_backends[ACCOUNT_ID][region].subnet_groups.values():
            yield group.arn, {tag["Key"]: tag["Value"] for tag in group.get_tags()}

"""Arguments of constructs: one dataclass that settings, construct, check and documentation read."""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from podwright import checkout
from podwright_constructs import arguments, checks, cluster, facts, instance_group, lustre, openzfs, slurm
from podwright_constructs.arguments import documentation, passed_names
from podwright_constructs.arguments.data_repository import DataRepository
from podwright_constructs.arguments.instance_group import InstanceGroup, ScheduledUpdate
from podwright_constructs.arguments.lustre import ExistingLustreArguments, LustreArguments
from podwright_constructs.arguments.openzfs import OpenZfsArguments
from podwright_rehearsal.aws import cluster_schema

Code = ModuleType | Callable[..., Any]

# The code that turns each class of arguments into resources.
READERS: dict[type, tuple[Code, ...]] = {
    LustreArguments: (lustre, checks.lustre_throughput, checks.lustre_capacities),
    DataRepository: (lustre,),
    OpenZfsArguments: (openzfs,),
    InstanceGroup: (cluster, instance_group.in_order, arguments.instance_group),
    ScheduledUpdate: (cluster,),
}

FOR_EKS = "AWS's schema, or its page of the property, keeps it for clusters with EKS"
# Properties of AWS's schema that the constructs never write.
NOT_WRITTEN = {
    "ClusterInstanceGroup": {
        "CurrentCount": "read-only",
        "ImageReleaseVersion": FOR_EKS,
        "KubernetesConfig": FOR_EKS,
    },
    "AutoPatchConfig": {"PatchSchedule": "read-only: AWS sets the date"},
    "ClusterAccountingDatabase": {},
    "cluster": {
        **dict.fromkeys(("ClusterArn", "ClusterStatus", "CreationTime", "FailureMessage"), "read-only"),
        **dict.fromkeys(("AutoScaling", "ClusterRole", "TieredStorageConfig"), FOR_EKS),
        **dict.fromkeys(("RestrictedInstanceGroups", "RestrictedInstanceGroupsConfig"), "of Amazon Nova's recipes"),
    },
}


def attributes(code: Code) -> set[str]:
    """Names of all attributes that a module or function reads."""
    tree = ast.parse(inspect.getsource(code))
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize("arguments", READERS)
def test_every_argument_reaches_its_resource(arguments: type) -> None:
    """A field is passed on under the name that its annotation gives, or its construct reads it."""
    passed = passed_names(arguments)
    read = set().union(*map(attributes, READERS[arguments]))
    assert passed
    assert [field.name for field in fields(arguments) if field.name not in {*passed, *read}] == []


@pytest.mark.parametrize("arguments", READERS)
def test_every_argument_is_documented(arguments: type) -> None:
    """Each field has a text, which settings, `podwright explain` and the page of constructs print."""
    assert set(documentation(arguments)) == {field.name for field in fields(arguments)}


def test_own_arguments_come_before_inherited_ones() -> None:
    """Documentation and `podwright explain` begin with what distinguishes a resource."""
    assert [*documentation(ExistingLustreArguments)] == ["dns_name", "mount_name", "efa", "mount_path"]


@pytest.mark.parametrize("kind", NOT_WRITTEN)
def test_every_property_that_aws_takes_is_written_or_left_out_for_a_reason(kind: str) -> None:
    """The constructs name each property of AWS's schema of the cluster, except those listed above."""
    schema = cluster_schema.schema("us-west-2")
    properties = set((schema if kind == "cluster" else schema["definitions"][kind])["properties"])
    sources = "".join(inspect.getsource(module) for module in (cluster, slurm, arguments.instance_group))
    written = {name for name in properties if f'"{name}"' in sources}
    assert properties - written == set(NOT_WRITTEN[kind])


def test_every_fact_is_used() -> None:
    """Each limit of AWS has a reader: another line of facts.py, or other code."""
    root, own = checkout.ROOT, Path(facts.__file__)
    folders = ("common", "constructs", "podwright", "stacks", "lifecycle_scripts", "rehearsal", "tests/constructs")
    files = {file for folder in folders for file in (root / folder).rglob("*.py")} - {own}
    read = {name for file in files for name in re.findall(r"[A-Z][A-Z0-9_]+", file.read_text(encoding="utf-8"))}
    read |= {name for name, times in Counter(re.findall(r"\w+", own.read_text(encoding="utf-8"))).items() if times > 1}
    assert {name for name in vars(facts) if name.isupper() and not name.startswith("_")} <= read

"""Arguments of constructs: one dataclass that settings, construct, check and documentation read."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import fields
from types import ModuleType
from typing import Any

import pytest

from podwright_constructs import arguments, checks, cluster, instance_group, lustre, openzfs
from podwright_constructs.arguments import documentation, passed_names
from podwright_constructs.arguments.data_repository import DataRepository
from podwright_constructs.arguments.instance_group import InstanceGroup, ScheduledUpdate
from podwright_constructs.arguments.lustre import ExistingLustreArguments, LustreArguments
from podwright_constructs.arguments.openzfs import OpenZfsArguments

Code = ModuleType | Callable[..., Any]

# The code that turns each class of arguments into resources.
READERS: dict[type, tuple[Code, ...]] = {
    LustreArguments: (lustre, checks.lustre_throughput, checks.lustre_capacities),
    DataRepository: (lustre,),
    OpenZfsArguments: (openzfs,),
    InstanceGroup: (cluster, instance_group.in_order, arguments.instance_group),
    ScheduledUpdate: (cluster,),
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

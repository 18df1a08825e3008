"""Every argument of every construct takes a value that only Terraform will know, or is refused with its name."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
import runpy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import cdktf
from cdktf import TerraformStack, TerraformVariable
from constructs import Construct

import podwright_constructs
from podwright_constructs.aws.provider import AwsProvider
from podwright_constructs.bucket import TrainingBucket
from podwright_constructs.cluster import HyperPodCluster
from podwright_constructs.instance_group import InstanceGroup, ScheduledUpdate
from podwright_constructs.lifecycle import ExistingLifecycleScripts
from podwright_constructs.network import ExistingNetwork
from podwright_constructs.problems import InvalidArgumentsError
from podwright_constructs.role import ExecutionRole, ExistingRole

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = runpy.run_path(str(REPOSITORY / "examples" / "constructs" / "each_construct.py"))
TOKENS: dict[str, Callable[[TerraformVariable], Any]] = {
    "text": lambda variable: variable.string_value,
    "number": lambda variable: variable.number_value,
    "list": lambda variable: variable.list_value,
}
REFUSED = "got a value that only Terraform will know"
OURS_ALONE = {f"podwright_constructs.{name}" for name in ("arguments", "aws", "catalog", "kit", "problems")}
# Only programs on nodes read a mount's path, from the contract; an existing network's VPC, only a file system.
WITHOUT_SYNTHESIS = {"mount_path", "ExistingNetwork.vpc_id"}


def cluster_of_parts(scope: Construct) -> None:
    """A cluster whose network and groups are made here, not when the examples are read."""
    HyperPodCluster(
        scope,
        "cluster",
        cluster_name="research",
        instance_groups=[
            InstanceGroup(name="controller", role="controller", instance_type="ml.m5.xlarge", count=1),
            InstanceGroup(
                name="workers",
                role="compute",
                instance_type="ml.g5.12xlarge",
                count=2,
                scheduled_update=ScheduledUpdate(schedule="cron(0 3 ? * SUN *)"),
            ),
        ],
        network=ExistingNetwork(vpc_id="vpc-00000001", subnet_ids=["subnet-00000001"], security_group_id="sg-00000001"),
        role=ExistingRole(arn="arn:aws:iam::111122223333:role/nodes"),
        lifecycle=ExistingLifecycleScripts(source_s3_uri="s3://sagemaker-mine/scripts"),
    )


def role_for_a_bucket(scope: Construct) -> None:
    """A role for a bucket that is named here; another bucket's account is in no condition."""
    bucket = TrainingBucket.from_name("sagemaker-research", account_id="111122223333")
    ExecutionRole(scope, "role", name="research-nodes", bucket=bucket, network=EXAMPLES["NETWORK"])


# The first that makes an object of a class is the example of it.
ADDERS = {"role_for_a_bucket": role_for_a_bucket} | {
    name: add for name, add in EXAMPLES.items() if inspect.isfunction(add)
}
ADDERS["cluster_of_parts"] = cluster_of_parts


def synthesized(name: str, with_variable: Callable[[TerraformVariable], None] = lambda _: None) -> str:
    """Return the JSON of a stack with one example."""
    stack = TerraformStack(cdktf.Testing.app(), "test")
    AwsProvider(stack, "aws", region="us-west-2")
    with_variable(TerraformVariable(stack, "known_later", type="any"))
    ADDERS[name](Construct(stack, "example"))
    return cdktf.Testing.synth(stack)


def classes() -> list[type]:
    """Return the classes whose arguments users write: constructs, and the dataclasses that these take."""
    names = [
        module.name
        for module in pkgutil.iter_modules(podwright_constructs.__path__, "podwright_constructs.")
        if module.name not in OURS_ALONE
    ]
    names += [
        module.name
        for module in pkgutil.iter_modules(podwright_constructs.arguments.__path__, "podwright_constructs.arguments.")
    ]
    found = {
        member
        for name in names
        for member in vars(importlib.import_module(name)).values()
        if inspect.isclass(member) and member.__module__ == name and "__init__" in vars(member)
    }
    return sorted(
        (
            kind
            for kind in found
            if not kind.__name__.startswith("_") and (issubclass(kind, Construct) or dataclasses.is_dataclass(kind))
        ),
        key=lambda kind: kind.__qualname__,
    )


def tokens(kind: type) -> Iterator[tuple[str, str]]:
    """Yield each argument of a class that takes text, numbers or a list of texts, with the token to try."""
    for argument in list(inspect.signature(kind.__init__).parameters.values())[1:]:
        annotation = str(argument.annotation).removeprefix("Annotated[")
        if argument.name in {"scope", "id_"} or argument.kind == argument.VAR_POSITIONAL:
            continue
        if re.match(r"(Sequence|list)\[(str|DeepHealthCheck)\]", annotation):
            yield argument.name, "list"
        elif re.match(r"(str|Literal|Capacity|NetworkInterface|AutoPatch)\b", annotation):
            yield argument.name, "text"
        elif re.match(r"(int|float)\b", annotation):
            yield argument.name, "number"


@contextmanager
def with_argument(kind: type, change: Callable[[inspect.BoundArguments], None]) -> Iterator[None]:
    """Change the arguments with which objects of a class are made."""
    original = kind.__init__
    signature = inspect.signature(original)

    def init(self: object, *positional: object, **named: object) -> None:
        bound = signature.bind(self, *positional, **named)
        change(bound)
        original(*bound.args, **bound.kwargs)

    with mock.patch.object(kind, "__init__", init):
        yield


def outcome(example: str, kind: type, argument: str, token: str) -> str:
    """Return what is wrong after an argument was a token, or an empty text."""
    value: list[object] = []

    def change(bound: inspect.BoundArguments) -> None:
        bound.arguments[argument] = value[0]

    try:
        with with_argument(kind, change):
            text = synthesized(example, lambda variable: value.append(TOKENS[token](variable)))
    except InvalidArgumentsError as error:
        message = str(error)
        needs_another = re.search(r"need (one of the two|\w+ too|continuous provisioning|no value on)", message)
        return "" if REFUSED in message or needs_another else message
    except Exception as error:  # noqa: BLE001 -- whatever it is, it is no message to a user
        return f"{type(error).__name__}: {error}"
    if "TfToken" in text or re.search(r"-\d\.\d+e\+\d{3}", text):
        return "its placeholder is in Terraform's configuration"
    if not {argument, f"{kind.__name__}.{argument}"} & WITHOUT_SYNTHESIS and "var.known_later" not in text:
        return "it is not in Terraform's configuration"
    is_nested = token == "list" and re.search(r'\[\s*"\$\{var\.known_later\}"\s*\]', text)  # noqa: S105 -- of Terraform
    return "a list is an item of a list" if is_nested else ""


def examples() -> dict[type, str]:
    """Return an example that makes objects of each class."""
    made: dict[type, str] = {}
    for name in ADDERS:
        with ExitStack() as stack:
            for kind in classes():
                stack.enter_context(with_argument(kind, lambda _, kind=kind, name=name: made.setdefault(kind, name)))
            synthesized(name)
    return made


def test_every_argument_takes_a_token_or_names_it() -> None:
    """No placeholder of the kit is judged as a value, computed with, or left in what Terraform reads."""
    made = examples()
    assert len(made) > 30
    results = {
        f"{kind.__name__}.{argument}": outcome(example, kind, argument, token)
        for kind, example in made.items()
        for argument, token in tokens(kind)
    }
    assert {argument: result[:300] for argument, result in results.items() if result} == {}

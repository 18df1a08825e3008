"""For all tests."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from podwright.operations.deployment.terraform import find_mirror, terraform_environment

if TYPE_CHECKING:
    from cdktf import TerraformStack

pytest_plugins = [
    f"podwright_testing.{name}" for name in ("slowest", "running", "time_limit", "report_file", "failure_state")
]

# Before cdktf is imported: its Node process reads them once.
for warning in ("DEPRECATED", "END_OF_LIFE"):
    os.environ.setdefault(f"JSII_SILENCE_WARNING_{warning}_NODE_VERSION", "18,20,22")

# A shell's background job ignores SIGINT, and so would every program that a test starts and ends by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What `nohup` starts ignores SIGHUP, and so would they. This process goes on when the terminal closes: a handler of its
# own, unlike SIG_IGN, is not inherited.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

# Thousands of collected tests are no garbage: looking through them for some took a fifth of a worker's time.
gc.set_threshold(100_000, 50, 100)

# How fast a machine is, is no property of the code.
settings.register_profile("podwright", deadline=None)
settings.load_profile("podwright")

# Terraform's cache of providers, used where there is no mirror, is not for several at once.
worker = os.environ.get("PYTEST_XDIST_WORKER")
if worker and not find_mirror():
    cache = Path(__file__).parents[1] / ".cache" / "terraform-plugins" / worker
    os.environ.setdefault("TF_PLUGIN_CACHE_DIR", str(cache))


# Scopes that take minutes start first, the longest at the top: one that starts last is waited for. xdist gives a worker
# a second scope where the first has less than three tests: a short one stands after it.
LONGEST_FIRST = (
    "rehearsal/test_move.py",
    "operations/test_deploy.py",
    "test_flat_rehearsal.py",
    "test_interrupted_applies.py",
    "test_tutorial.py",
    "test_elastic_run.py",
    "test_operations.py",
    "test_dry_run.py",
    "test_slurm_faults.py",
    "test_slurm_accounting.py",
    "test_slurm_controllers.py",
    "test_job_survives.py",
    "test_slurm_node_features.py",
    "test_deployed_cluster.py",
    "test_parallel.py",
    "training/test_elastic.py",
    "test_resume.py",
    "test_deployed_examples.py",
    "test_own_stack.py",
    "test_foundation.py",
    "test_import.py",
    "test_aws_terraform.py",
)
# Markers of tests that wait for hosts and Terraform more than they compute.
WAITING = ("hosts", "terraform", "rehearsal")
# Files whose tests share nothing, and take minutes each.
ONE_BY_ONE = ("test_deployed_examples.py", "test_own_stack.py")
# Tests that need their file's fixtures, and nothing that its other tests leave: by how their names begin. They run
# beside those, on fixtures of their own.
APART = {"test_operations.py": "test_validate_"}
# Files that share this checkout's rehearsals, which `podwright rehearse --clean` ends, run one after the other.
ONE_AFTER_ANOTHER = ("test_flat_rehearsal.py", "test_rehearsal.py")
# Of a test without hosts and Terraform: seconds as a rule, but the machine may be busy. pyproject.toml has the others'.
LIMIT_S = 1800


@cache
def scope(nodeid: str) -> str:
    """Return what shares a worker: a file, since its tests share fixtures, or what else they share."""
    file, _, test = nodeid.partition("::")
    name = file.rpartition("/")[2]
    if name in ONE_BY_ONE:
        return nodeid
    if name in APART and test.startswith(APART[name]):
        return f"{file}::{APART[name]}"
    return file.replace(name, ONE_AFTER_ANOTHER[0]) if name in ONE_AFTER_ANOTHER else file


@cache
def start_rank(test_scope: str) -> int:
    """Return when a scope starts: its number in ``LONGEST_FIRST``, or after them."""
    return next((rank for rank, name in enumerate(LONGEST_FIRST) if name in test_scope), len(LONGEST_FIRST))


class LongestFirst(LoadFileScheduling):  # type: ignore[misc]
    """Of ``pytest -n``: scopes as ``scope`` says, in the order of the collection."""

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)


@pytest.hookimpl(optionalhook=True)  # there is none under `-p no:xdist`
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LongestFirst:
    """Distribute tests by scope."""
    config.option.loadscopereorder = False
    return LongestFirst(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Limit tests in time; under ``pytest -n``, put the longest scopes first, then those that wait for other programs.

    Files that only compute come last, those with the most tests first: they end together.
    """
    limit = pytest.mark.timeout(LIMIT_S)
    waiting: set[str] = set()
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if not marks.isdisjoint(WAITING):
            waiting.add(scope(item.nodeid))
        elif "timeout" not in marks:
            item.add_marker(limit)
    if worker:
        tests = Counter(scope(item.nodeid) for item in items)

        def start(item: pytest.Item) -> tuple[int, bool, int, str]:
            own = scope(item.nodeid)
            return start_rank(own), own not in waiting, -tests[own], own

        items.sort(key=start)


def pytest_collection_finish() -> None:
    """Leave out of later garbage collections what was imported and collected: it stays until the end."""
    gc.freeze()


# ---- expected texts -------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--update``."""
    parser.addoption(
        "--update", action="store_true", help="rewrite golden cases, the tutorial or counts; refused in CI"
    )


@pytest.fixture(scope="session")
def update(pytestconfig: pytest.Config) -> bool:
    """Return whether expected texts are to be rewritten."""
    wanted = bool(pytestconfig.getoption("--update", default=False))
    if wanted and os.environ.get("CI"):
        pytest.fail("--update rewrites what tests expect: run it at your desk, not in CI")
    return wanted


# ---- synthesized stacks, and the real Terraform to validate them -----------------------------------

REGION = "us-west-2"
Synthesize = Callable[[Callable[["TerraformStack"], object]], dict[str, Any]]
Evaluate = Callable[[str], Any]


@pytest.fixture(scope="session")
def terraform(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Environment in which Terraform finds the AWS provider, if this machine has it, without the network."""
    return {**os.environ, **terraform_environment(tmp_path_factory.mktemp("terraform"))}


@pytest.fixture
def stack(tmp_path: Path) -> TerraformStack:
    """An empty stack with a provider."""
    from cdktf import App, TerraformStack  # starts Node

    from podwright_constructs.aws.provider import AwsProvider

    empty = TerraformStack(App(outdir=str(tmp_path / "cdktf.out")), "test")
    AwsProvider(empty, "aws", region=REGION)
    return empty


@pytest.fixture
def synthesize(stack: TerraformStack) -> Synthesize:
    """Add what the test builds to the stack; its JSON as Terraform reads it."""

    def run(build: Callable[[TerraformStack], object]) -> dict[str, Any]:
        from cdktf import Testing

        build(stack)
        return dict(json.loads(Testing.synth(stack, True)))

    return run


@pytest.fixture
def evaluate(tmp_path: Path, terraform: Mapping[str, str]) -> Evaluate:
    """Return what Terraform makes of a ``${jsonencode(…)}`` argument whose only references are the region's."""

    def run(argument: str) -> Any:
        expression = re.sub(r"\$\{(.*)\}", r"\1", argument, flags=re.DOTALL)
        expression = re.sub(r"data\.aws_region\.\w+\.id", json.dumps(REGION), expression)
        answer = subprocess.run(
            ["terraform", "console"],
            input=expression,
            env=terraform,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(json.loads(answer.stdout))

    return run

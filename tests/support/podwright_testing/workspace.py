"""The user's stacks under Terraform without cdktf: one command at a time, each of which can be killed.

``podwright_rehearsal.run.deployment`` deploys through cdktf, as users do; cdktf runs a command to its end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from podwright import checkout
from podwright.check.load import load
from podwright.diagram.stack_resources import read
from podwright.operations.deployment.kit import OUTPUT
from podwright.operations.deployment.policy import deployer_policy
from podwright.operations.deployment.terraform import TerraformError, terraform_environment
from podwright_rehearsal.aws import AwsStandIn
from podwright_testing.provider import VARIABLE, running_provider

if TYPE_CHECKING:
    from typing_extensions import Self  # typing's own is Python 3.11's

Stack = Literal["foundation", "cluster"]
STACKS: tuple[Stack, ...] = ("foundation", "cluster")
NOTHING_TO_CHANGE, SOMETHING_TO_CHANGE = 0, 2  # of `plan -detailed-exitcode`
LIMIT_S, POLL_S = 1500, 0.05  # to adopt twenty resources on a busy machine takes minutes
PLANNED = "Terraform will perform"
ALL_AT_ONCE = "-parallelism=40"  # the account is on this machine


class Workspace:
    """A folder with the synthesized stacks and, unless the settings keep it elsewhere, their state.

    All commands call the account with what `podwright policy deployer` allows, and no more.

    Args:
        config: the settings file.
        folder: made if missing.
        aws: the account.
    """

    def __init__(self, *, config: Path, folder: Path, aws: AwsStandIn) -> None:
        self.config = config.resolve()
        self.folder = folder
        self._aws = aws
        self._name = load(config).name
        folder.mkdir(parents=True, exist_ok=True)
        own = {"PODWRIGHT_CONFIG": str(self.config), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._environment = {**os.environ, **aws.environment(), **terraform_environment(folder), **own}
        self._provider: dict[str, str] = {}

    @contextmanager
    def synthesized(self) -> Iterator[Self]:
        """Run the app and prepare Terraform in each stack's folder, with one provider until the end of the block."""
        _run([sys.executable, str(checkout.ROOT / "main.py")], cwd=self.folder, environment=self._environment)
        for stack in STACKS:  # Tests destroy what users keep, and Terraform refuses to without this.
            synthesized = self.directory(stack) / "cdk.tf.json"
            text = synthesized.read_text(encoding="utf-8")
            synthesized.write_text(
                text.replace('"prevent_destroy": true', '"prevent_destroy": false'), encoding="utf-8"
            )
        self._environment |= self._aws.as_principal(self.policy())
        for stack in STACKS:
            self.terraform(stack, "init")
        with running_provider(self.directory("cluster"), self._environment) as self._provider:
            yield self

    def policy(self) -> dict[str, Any]:
        """Return the deployer's policy for the synthesized stacks."""
        types = {resource.type for resource in read(self.folder / OUTPUT)}
        return deployer_policy(load(self.config), types)

    def deploy(self) -> None:
        """Apply both stacks."""
        for stack in STACKS:
            self.apply(stack)

    def destroy(self) -> None:
        """Destroy both stacks."""
        for stack in reversed(STACKS):
            self.terraform(stack, "destroy", "-auto-approve", ALL_AT_ONCE)

    def apply(self, stack: Stack) -> str:
        """Apply a stack and return Terraform's output."""
        return self.terraform(stack, "apply", "-auto-approve", ALL_AT_ONCE)

    def adopt(self, *arguments: str) -> str:
        """Run ``podwright adopt`` and return its output."""
        return self.podwright("adopt", *arguments)

    def podwright(self, name: str, *arguments: str) -> str:
        """Run a command on the cluster's file and return its output."""
        command = [sys.executable, "-m", "podwright", name, str(self.config), *arguments]
        return _run(command, cwd=self.folder, environment=self._environment | self._provider)

    def changes(self) -> str:
        """Return the plans of both stacks without those that say "No changes"."""
        plans = (self.terraform(stack, "plan", "-detailed-exitcode") for stack in STACKS)
        return "\n".join(plan[plan.find(PLANNED) :] for plan in plans if "No changes." not in plan)

    def orphans(self) -> list[str]:
        """Return type and id of each resource of the account that is in no state in the folder.

        Terraform records a resource when AWS reports it ready; what a killed Terraform was creating exists without
        a record, and only its tags show its owner. Objects are left out: the next run writes them again.
        """
        known = "".join(state.read_text(encoding="utf-8") for state in self.folder.glob("*.tfstate"))
        found = (item.split(" ", 1) for item in self._aws.inventory())
        return [f"{kind} {name}" for kind, name in found if kind != "AWS::S3::Object" and name not in known]

    def terraform(self, stack: Stack, *arguments: str) -> str:
        """Run Terraform in a stack's folder and return its output.

        Raises:
            TerraformError: it failed; the message is what it printed.
        """
        environment = self._environment | self._provider
        return _run(self._command(*arguments), cwd=self.directory(stack), environment=environment)

    @contextmanager
    def started(self, stack: Stack, *arguments: str, log: Path) -> Iterator[Callable[[], int | None]]:
        """Start Terraform with a provider of its own; kill both at the end of the block.

        Yields what returns Terraform's exit code, or None while it runs.
        """
        with running_provider(self.directory("cluster"), self._environment) as provider, log.open("wb") as output:
            (reattached,) = json.loads(provider[VARIABLE]).values()
            with subprocess.Popen(
                self._command(*arguments),
                cwd=self.directory(stack),
                env=self._environment | provider,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as process:
                try:
                    yield process.poll
                finally:
                    with suppress(ProcessLookupError):  # it may have ended
                        os.killpg(process.pid, signal.SIGKILL)
                    os.kill(reattached["Pid"], signal.SIGKILL)

    def directory(self, stack: Stack) -> Path:
        """Return the folder of the synthesized stack."""
        return self.folder / "cdktf.out" / "stacks" / f"{self._name}-{stack}"

    def _command(self, *arguments: str) -> list[str]:
        return [self._environment["TERRAFORM_BINARY_NAME"], *arguments, "-no-color"]


def wait_until(happened: Callable[[], object]) -> None:
    """Return when a condition holds; raise ``TimeoutError`` if it does not in time."""
    deadline = time.monotonic() + LIMIT_S
    while not happened():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing happened within {LIMIT_S} s")
        time.sleep(POLL_S)


def _run(command: list[str], *, cwd: Path, environment: Mapping[str, str]) -> str:
    answer = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if answer.returncode not in {NOTHING_TO_CHANGE, SOMETHING_TO_CHANGE}:
        raise TerraformError(answer.stdout + answer.stderr)
    return answer.stdout

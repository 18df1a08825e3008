"""A stack in the folder that cdktf deployed it from: its state and its plan.

Plans are made with the replacement guard replaced, so that podwright can show a change that Terraform would refuse.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podwright.errors import PodwrightError
from podwright.operations.deployment import state_lock
from podwright.operations.deployment.supervised_process import supervised
from podwright.operations.deployment.terraform import TerraformError, find_terraform, hint
from podwright.settings import names
from podwright.state_owner import StateOwner
from podwright_common.atomic_file import write_file

GUARD = "terraform_data"
STATE_OWNER = "state_owner"  # The construct that records account and region; no plan may replace it.
SYNTHESIZED = "cdk.tf.json"
PREVENTED = "lifecycle.prevent_destroy"  # In the error of a plan that deletes what the settings keep.
BACKEND_CACHE = Path(".terraform", "terraform.tfstate")  # Terraform notes the place of the state here.
INITIALIZED = Path(".terraform", "podwright.initialized")  # Requirements and backend of the last complete init.
REGION_NAME = re.compile(r"\b[a-z]{2}(-[a-z]+)+-\d\b")
STACKS = Path("cdktf.out", "stacks")  # cdktf runs Terraform here, below the folder of cdktf.json.


class NotDeployedError(PodwrightError):
    """This folder has no deployment; the message names the folder and the next step."""


@dataclass(frozen=True)
class DeployedStack:
    """A stack's folder below cdktf.out."""

    folder: Path

    @property
    def name(self) -> str:
        """The name of the stack."""
        return self.folder.name

    @property
    def was_initialized(self) -> bool:
        """Return whether Terraform was ever started in the stack's folder."""
        return (self.folder / ".terraform").is_dir()

    def check(self) -> None:
        """Check that Terraform was started in the folder.

        Raises:
            NotDeployedError: Terraform was not started there.
        """
        if not self.was_initialized:
            raise NotDeployedError(
                f"{self.folder}: nothing was deployed from here: run `podwright deploy`, or go to the folder that you "
                "deployed from"
            )

    def terraform(self, *arguments: str, text: str | None = None) -> str:
        """Run Terraform in the folder, which is initialized first; return its output.

        Args:
            arguments: the command and its options.
            text: what it reads from its standard input.

        Raises:
            TerraformError: there is none, or it failed; the message ends with what it printed.
            StateLockedError: another Terraform has the stack's state.
            KeyboardInterrupt: the user stopped it; it has finished what it had begun.
        """
        self._initialize()
        return self._run(*arguments, text=text)

    def _initialize(self) -> None:
        """Run ``terraform init``, unless it succeeded with the same requirements and backend.

        That the folder ``.terraform`` is there says nothing: an init that failed leaves it behind.
        """
        stack = json.loads((self.folder / SYNTHESIZED).read_text(encoding="utf-8"))
        requirements = json.dumps(stack.get("terraform", {}), sort_keys=True)
        note = self.folder / INITIALIZED
        if note.is_file() and note.read_text(encoding="utf-8") == requirements:
            return
        self._run("init", "-input=false", "-no-color", *self._reconfigured(stack))
        note.parent.mkdir(exist_ok=True)
        write_file(note, requirements)

    def _reconfigured(self, stack: Mapping[str, Any]) -> list[str]:
        """Return the option that lets Terraform forget the state of another region; none if the state has not moved.

        Raises:
            TerraformError: the settings keep states elsewhere, so this one would be empty.
        """
        cache = self.folder / BACKEND_CACHE
        content = json.loads(cache.read_text(encoding="utf-8") or "{}") if cache.is_file() else {}
        before = content.get("backend") or {}
        terraform = stack.get("terraform", {})
        cloud = {"cloud": terraform["cloud"]} if "cloud" in terraform else None
        ((kind, after),) = (cloud or terraform.get("backend") or {"local": {}}).items()
        if not before:
            return []
        has_moved = kind == before["type"] == "local" and self._is_renamed(before["config"], after)
        if has_moved or _place(before["type"], before["config"]) == _place(kind, after):
            return ["-reconfigure"]
        help_ = "undo that change, or move the state: `podwright state` moves a local one"
        was, now = (":".join(_place(*backend)) for backend in ((before["type"], before["config"]), (kind, after)))
        raise TerraformError(f"the state of {self.name} is in {was}, and the settings keep it in {now}", help_)

    def _is_renamed(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
        """Return whether the project's folder has another name now, so that the state came along with it."""
        former, present = (self.folder / str(backend.get("path") or "") for backend in (before, after))
        return present.is_file() or not former.is_file()

    def _run(self, *arguments: str, text: str | None = None) -> str:
        program = str(find_terraform())
        # Terraform writes into files: a pipe could break, and then Terraform ends before it has written its state.
        with (
            tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output,
            tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        ):
            with supervised(
                [program, *arguments],
                folder=self.folder,
                stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
                stdout=output,
                stderr=errors,
            ) as process:
                process.communicate(text)
            output.seek(0)
            errors.seek(0)
            if process.returncode:
                printed = (errors.read() or output.read()).strip()
                if locked := state_lock.explain(printed, stacks=self.folder.parent, terraform=program):
                    raise locked
                raise TerraformError(f"`terraform {arguments[0]}` failed in {self.folder}: {printed}", hint(printed))
            return output.read()

    def plan(self, *, refresh: bool = False) -> dict[str, Any]:
        """Return the state and the planned changes in Terraform's JSON, also changes that its configuration refuses.

        Args:
            refresh: ask AWS for what differs from the state.

        https://developer.hashicorp.com/terraform/internals/json-format#plan-representation
        """
        with tempfile.TemporaryDirectory() as folder:  # a plan holds what the state holds
            file = str(Path(folder) / "plan")
            options = (f"-refresh={str(refresh).lower()}", *(f"-replace={address}" for address in self.guards()))
            command = ("plan", *options, "-input=false", "-no-color", f"-out={file}")
            try:
                self.terraform(*command)
            except TerraformError as error:
                if PREVENTED not in str(error):
                    raise
                with self.released():
                    self.terraform(*command)
            plan = dict(json.loads(self.terraform("show", "-json", file)))
        plan["resource_changes"] = [
            item
            for item in plan.get("resource_changes", ())
            if item["type"] != GUARD or item["change"]["actions"] == ["create"]
        ]
        return plan

    @contextmanager
    def released(self, kinds: Collection[str] | None = None) -> Iterator[None]:
        """Let Terraform plan to delete what the settings keep, within the block.

        Args:
            kinds: Terraform's types of the resources. Default: all.

        The synthesized file changes rather than an override file beside it: the next synthesis writes it again, also
        where a kill has ended the block.
        """
        file = self.folder / SYNTHESIZED
        content = file.read_text(encoding="utf-8")
        stack = json.loads(content)
        resources = stack.get("resource", {})
        blocks = [block for kind in kinds or resources for block in resources.get(kind, {}).values()]
        prevented = [block["lifecycle"] for block in blocks if block.get("lifecycle", {}).get("prevent_destroy")]
        for lifecycle in prevented:
            lifecycle["prevent_destroy"] = False
        if not prevented:
            yield
            return
        write_file(file, json.dumps(stack, indent=2))
        try:
            yield
        finally:
            write_file(file, content)

    def guards(self) -> list[str]:
        """Return the addresses of the replacement guards; a guard that Terraform replaces has no effect."""
        return [
            address
            for path, address in self.addresses().items()
            if address.startswith(f"{GUARD}.") and path != f"{self.name}/{STATE_OWNER}"
        ]

    def check_owner(self, *, account_id: str, region: str) -> None:
        """Check that the stack's state belongs to an account and a region.

        Raises:
            StateOwnerError: it is of another.
            TerraformError: Terraform cannot read it.
        """
        StateOwner.of(self.state()).check(self.name, account_id=account_id, region=region)

    def state(self) -> dict[str, Any]:
        """Return Terraform's state as it is stored; empty if nothing was deployed.

        Unlike `terraform show`, this needs no provider, whose start takes seconds.

        Raises:
            TerraformError: Terraform cannot read it.
        """
        return dict(json.loads(self.terraform("state", "pull") or "{}"))

    def forget_guards(self) -> None:
        """Remove the replacement guards from the state; older deployments have no guards."""
        recorded = self.terraform("state", "list").splitlines()
        if guards := [address for address in self.guards() if address in recorded]:
            self.terraform("state", "rm", *guards)

    def record_outputs(self) -> None:
        """Write only the stack's outputs into its state.

        Raises:
            TerraformError: Terraform cannot plan, or the plan would change a resource.
        """
        with tempfile.TemporaryDirectory() as folder:
            file = str(Path(folder) / "plan")
            self.terraform("plan", "-refresh=false", "-input=false", "-no-color", f"-out={file}")
            plan = json.loads(self.terraform("show", "-json", file))
            changed = [
                item["address"]
                for item in plan.get("resource_changes", ())
                if item["mode"] == "managed" and item["change"]["actions"] != ["no-op"]
            ]
            if changed:
                raise TerraformError(f"{self.name} differs from its files: {', '.join(changed)} would change")
            self.terraform("apply", "-input=false", "-no-color", file)

    def addresses(self) -> dict[str, str]:
        """Terraform's address of each resource by its construct path."""
        return {
            block["//"]["metadata"]["path"]: f"{kind}.{name}"
            for kind, blocks in self._resources().items()
            for name, block in blocks.items()
        }

    def _resources(self) -> dict[str, dict[str, Any]]:
        """Return the resources of the synthesized stack by type and name."""
        return dict(json.loads((self.folder / SYNTHESIZED).read_text(encoding="utf-8")).get("resource", {}))


def _place(kind: str, backend: Mapping[str, Any]) -> tuple[str, str]:
    """Return where a backend keeps states of all regions: the kind, and the bucket, folder or arguments."""
    if kind in {"local", "s3"}:
        return kind, str(backend.get("bucket") or Path(backend.get("path") or "").parent)
    return kind, REGION_NAME.sub("REGION", json.dumps(_given(backend), sort_keys=True))


def _given(value: Any) -> Any:
    """Return arguments without those that are not given; Terraform notes each, and a block as a list."""
    if isinstance(value, Mapping):
        arguments = {key: _given(item) for key, item in value.items()}
        return {key: item for key, item in arguments.items() if item not in (None, [], {})}
    items = [_given(item) for item in value] if isinstance(value, list) else value
    is_block = isinstance(items, list) and len(items) == 1 and isinstance(items[0], Mapping)
    return items[0] if is_block else items


def stacks(name: str, *, folder: Path) -> dict[str, DeployedStack]:
    """A cluster's stacks by ``foundation`` and ``cluster``, in the order of their deployment."""
    folders = {"foundation": names.foundation_stack(name), "cluster": names.cluster_stack(name)}
    return {part: DeployedStack(folder / STACKS / stack) for part, stack in folders.items()}


def attributes_in(state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the attributes of each managed resource in a stored state, by address, with the resource's type."""
    return {
        _address(resource, instance): {**instance["attributes"], "type": resource["type"]}
        for resource in state.get("resources", ())
        if resource["mode"] == "managed" and "module" not in resource
        for instance in resource["instances"]
    }


def dependencies_in(state: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Return the managed resources that each managed resource in a stored state depends on, by address."""
    return {
        _address(resource, instance): frozenset(instance.get("dependencies", ()))
        for resource in state.get("resources", ())
        if resource["mode"] == "managed" and "module" not in resource
        for instance in resource["instances"]
    }


def _address(resource: Mapping[str, Any], instance: Mapping[str, Any]) -> str:
    index = f"[{json.dumps(instance['index_key'])}]" if "index_key" in instance else ""
    return f"{resource['type']}.{resource['name']}{index}"


def state_in(plan: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the attributes that each resource of a plan has in the state, by address."""
    root = plan.get("prior_state", {}).get("values", {}).get("root_module", {})
    return {item["address"]: item["values"] for item in root.get("resources", ()) if item["mode"] == "managed"}

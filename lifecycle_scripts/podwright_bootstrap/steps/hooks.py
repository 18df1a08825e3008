"""Scripts of the cluster's owner, before and after the other steps of a boot."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Iterator, List

from podwright_bootstrap import contract
from podwright_bootstrap.aws import s3
from podwright_bootstrap.features import Hook
from podwright_bootstrap.host import process
from podwright_bootstrap.host.errors import BootstrapError, CommandError
from podwright_bootstrap.node import Node
from podwright_bootstrap.steps import Step
from podwright_common.atomic_file import rename_durably
from podwright_common.checksum import sha256_of

FOLDER = contract.STATE_DIRECTORY / "hooks"
LAST_LINES = 3


class _Hooks(Step):
    """Run the scripts of one moment, in the order of cluster.yaml, each time the node boots."""

    when: str
    hint = f"{FOLDER} on the node has the script; correct it beside cluster.yaml, deploy, and replace the node"
    time_limit_s = 2 * 3600  # limit of all scripts together; each has its own, too

    def applies(self, node: Node) -> bool:
        """Run where nodes.hooks has a script for the node's group."""
        return bool(self._wanted(node))

    def apply(self, node: Node) -> Iterator[str]:
        """Fetch and run each script; the first that fails ends the boot."""
        for hook in self._wanted(node):
            _run(_fetch(hook, node), hook, node)
            yield f"ran {hook.script}"

    def verify(self, node: Node) -> None:
        """Do nothing: a script's exit code was its check."""

    def _wanted(self, node: Node) -> List[Hook]:
        hooks = node.parameters.nodes.hooks
        return [
            hook for hook in hooks if hook.when == self.when and (not hook.groups or node.instance_group in hook.groups)
        ]


class HooksBeforeStep(_Hooks):
    """The scripts of nodes.hooks that come before the other steps have run."""

    name, when = "hooks_before", "before"
    audience = "groups with a script in nodes.hooks before the steps"


class HooksAfterStep(_Hooks):
    """The scripts of nodes.hooks that come after the other steps have run; Slurm starts after them."""

    name, when = "hooks_after", "after"
    audience = "groups with a script in nodes.hooks after the steps"


def _fetch(hook: Hook, node: Node) -> Path:
    """Return the script on this node, with the content that was deployed."""
    sha256 = node.parameters.hook_sha256.get(hook.script)
    if not sha256:
        raise BootstrapError(f"{hook.script} was not uploaded", hint="deploy the cluster stack again")
    path = FOLDER / sha256[:16] / PurePosixPath(hook.script).name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{path.name}.new")
        s3.copy(f"{node.parameters.hooks_s3_uri}/{sha256}", new, region=node.parameters.region)
        new.chmod(0o700)
        rename_durably(new, path)
    if sha256_of(path) != sha256:
        path.unlink()
        hint = "deploy the cluster stack again, which uploads it"
        raise BootstrapError(f"{hook.script} in the bucket has another SHA-256 than {sha256}", hint=hint)
    return path


def _run(path: Path, hook: Hook, node: Node) -> None:
    variables = {
        "PODWRIGHT_CLUSTER": node.parameters.cluster_name,
        "PODWRIGHT_GROUP": node.instance_group,
        "PODWRIGHT_ROLE": node.role,
        "PODWRIGHT_SHARED": str(node.mount_path) if node.has_shared else "",
    }
    try:
        outcome = process.run(path, timeout_s=hook.timeout_minutes * 60, check=False, variables=variables)
    except (CommandError, OSError) as error:
        raise BootstrapError(f"{hook.script}: {error}") from error
    if outcome.exit_code:
        lines = [line.strip() for line in outcome.lines if line.strip()] or ["it printed nothing"]
        raise BootstrapError(f"{hook.script} failed (exit {outcome.exit_code}): {' / '.join(lines[-LAST_LINES:])}")

"""Rules about lifecycle steps and S3 mounts."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from podwright.check.findings import Finding, KeyPath, error, findings_of
from podwright.settings import names
from podwright.settings.cluster import LifecycleSlurm
from podwright.settings.nodes import Nodes
from podwright.settings.root import Settings
from podwright_constructs import checks

S3_MOUNTS: KeyPath = ("nodes", "s3_mounts")


def nodes_without_scripts(settings: Settings) -> Iterator[Finding]:
    """A setting of nodes needs podwright's lifecycle scripts, but Slurm is set up without them."""
    slurm = settings.cluster.slurm
    if isinstance(slurm, LifecycleSlurm):
        return
    for name, field in Nodes.model_fields.items():
        if getattr(settings.nodes, name) != field.default:
            hint = "delete it, or write `slurm: {source: lifecycle}`"
            yield error(("nodes", name), f"{name} has no effect with `slurm: {{source: {slurm.source}}}`", hint)


def skipped_steps(settings: Settings) -> Iterator[Finding]:
    """A skipped step does not exist, or the boot needs it."""
    if not settings.nodes.skip:
        return
    from podwright_bootstrap.boot import STEPS  # noqa: PLC0415 — the whole bootstrap, for a setting that few use

    steps = {step.name: step for step in STEPS}
    allowed = [name for name, step in steps.items() if not step.needed]
    for index, name in enumerate(settings.nodes.skip):
        path = ("nodes", "skip", index)
        if name not in steps:
            similar = [f"did you mean {word}?" for word in get_close_matches(name, allowed, n=1)]
            yield error(
                path, f"skip: no step is called {name!r}", " ".join([*similar, f"allowed: {', '.join(allowed)}"])
            )
        elif steps[name].needed:
            yield error(path, f"skip: the boot needs {name}: {steps[name].needed}", "delete it from the list")


def s3_mounts(settings: Settings) -> Iterator[Finding]:
    """A mount's arguments are invalid, or it would let nodes write scripts that all nodes run as root."""
    own_prefixes = [names.scripts_prefix(settings.name), names.payload_prefix(settings.name)]
    for index, mount in enumerate(settings.nodes.s3_mounts):
        own = mount.bucket if names.is_own_bucket(settings, mount.bucket) else ""
        yield from findings_of(
            (*S3_MOUNTS, index), checks.s3_access_problems(mount, own_bucket=own, own_prefixes=own_prefixes)
        )
        yield from findings_of((*S3_MOUNTS, index), checks.mount_path_problems(mount.path, "path"))

"""Rules about what nodes have beyond Slurm and file systems."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from podwright.check.findings import Finding, KeyPath, error, findings_of
from podwright.settings import names
from podwright.settings.cluster import ApiSlurm
from podwright.settings.nodes import Nodes
from podwright.settings.root import Settings
from podwright.settings.storage import CreatedBucket
from podwright_constructs import checks, facts

S3_MOUNTS: KeyPath = ("nodes", "s3_mounts")


def nodes_without_scripts(settings: Settings) -> Iterator[Finding]:
    """Something is asked of nodes that podwright's scripts would set up, where HyperPod sets nodes up itself."""
    if not isinstance(settings.cluster.slurm, ApiSlurm):
        return
    for name, field in Nodes.model_fields.items():
        if getattr(settings.nodes, name) != field.default:
            hint = "delete it, or let the scripts set Slurm up: `slurm: {source: lifecycle}`"
            yield error(("nodes", name), f"{name} has no effect with `slurm: {{source: api}}`", hint)


def skipped_steps(settings: Settings) -> Iterator[Finding]:
    """A boot has no step of that name, or nothing works without it."""
    if not settings.nodes.skip:
        return
    from podwright_bootstrap.boot import STEPS  # noqa: PLC0415 — the whole bootstrap, for a setting that few use

    steps = {step.name: step for step in STEPS}
    allowed = [name for name, step in steps.items() if not step.needed]
    for index, name in enumerate(settings.nodes.skip):
        path = ("nodes", "skip", index)
        if name not in steps:
            similar = [f"did you mean {word}?" for word in get_close_matches(name, allowed, n=1)]
            yield error(path, f"skip: {name!r} is no step", " ".join([*similar, f"allowed: {', '.join(allowed)}"]))
        elif steps[name].needed:
            yield error(path, f"skip: {name} cannot be skipped: {steps[name].needed}", "delete it from the list")


def s3_mounts(settings: Settings) -> Iterator[Finding]:
    """A bucket cannot be mounted so, or the nodes could write there what all of them run as root."""
    own_prefixes = [names.scripts_prefix(settings.name), names.payload_prefix(settings.name)]
    for index, mount in enumerate(settings.nodes.s3_mounts):
        own = _own_bucket(settings, mount.bucket)
        yield from findings_of(
            (*S3_MOUNTS, index), checks.s3_access_problems(mount, own_bucket=own, own_prefixes=own_prefixes)
        )
        if not facts.MOUNT_PATH_PATTERN.fullmatch(mount.path) or ".." in mount.path:
            yield error(
                (*S3_MOUNTS, index, "path"),
                f"path cannot be {mount.path!r}",
                "allowed: an absolute path like /mnt/data",
            )


def _own_bucket(settings: Settings, bucket: str) -> str:
    """The cluster's own bucket; a created one ends in digits that Terraform adds."""
    if isinstance(settings.bucket, CreatedBucket):
        return bucket if bucket.startswith(names.bucket_prefix(settings.name)) else ""
    return settings.bucket.name

"""Rules about lifecycle steps and S3 mounts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from podwright.check.findings import Finding, KeyPath, error, findings_of, remark, warning
from podwright.check.rules.rule import OWN_BUCKET, findings_of_section, reads, scripts_in_place_of_ours
from podwright.check.secrets import find
from podwright.settings import names
from podwright.settings.cluster import ApiSlurm
from podwright.settings.nodes import NodesSection, S3Mount
from podwright.settings.root import Settings
from podwright_bootstrap.features import MAX_ACTS_PER_HOUR, MAX_CHECK_MINUTES, MAX_HOOK_MINUTES, MAX_OUT_PERCENT
from podwright_common.similar_names import did_you_mean
from podwright_constructs import checks
from podwright_constructs.hooks import hook_problems
from podwright_constructs.problems import Problem

S3_MOUNTS: KeyPath = ("nodes", "s3_mounts")
HOOKS: KeyPath = ("nodes", "hooks")
REMEDIATION: KeyPath = ("nodes", "remediation")


def nodes_without_scripts(settings: Settings) -> Iterator[Finding]:
    """A setting of nodes needs podwright's lifecycle scripts, but nodes run scripts of yours."""
    if settings.has_own_scripts:
        return
    scripts, instead = scripts_in_place_of_ours(settings)
    for name, field in NodesSection.model_fields.items():
        if getattr(settings.nodes, name) != field.default:
            hint = f"delete it, or {instead}: `nodes.hooks` runs scripts of yours beside podwright's"
            yield error(("nodes", name), f"{name} has no effect: nodes run the scripts of {scripts}", hint)


def skipped_steps(settings: Settings) -> Iterator[Finding]:
    """A skipped step does not exist, or the boot needs it."""
    if not settings.nodes.skip:
        return
    from podwright_bootstrap.boot import STEPS  # noqa: PLC0415 — the whole bootstrap, for a setting that few use

    steps = {step.name: step for step in STEPS}
    allowed = [name for name, step in steps.items() if not step.required_because]
    for index, name in enumerate(settings.nodes.skip):
        path = ("nodes", "skip", index)
        if name not in steps:
            hint = f"{did_you_mean(name, allowed)} allowed: {', '.join(allowed)}".lstrip()
            yield error(path, f"skip: no step is called {name!r}", hint)
        elif steps[name].required_because:
            yield error(path, f"skip: the boot needs {name}: {steps[name].required_because}", "delete it from the list")


def hooks(settings: Settings) -> Iterator[Finding]:
    """A script of nodes.hooks does not exist or cannot run, or a group that it names does not exist."""
    groups = [group.name for group in settings.cluster.instance_groups]
    for index, hook in enumerate(settings.nodes.hooks):
        path: KeyPath = (*HOOKS, index)
        problems = list(hook_problems({hook.script: settings.path(hook.script)}))
        yield from findings_of(path, problems)
        if not problems:
            yield from _secrets_of(settings.path(hook.script), (*path, "script"))
        for position, group in enumerate(hook.groups if settings.are_valid("cluster.instance_groups.name") else ()):
            if group not in groups:
                yield error(
                    (*path, "groups", position),
                    f"groups: got {group!r}, need an instance group",
                    f"allowed: {', '.join(groups)}",
                )
        if not 1 <= hook.timeout_minutes <= MAX_HOOK_MINUTES:
            need = f"1 to {MAX_HOOK_MINUTES}"
            yield error((*path, "timeout_minutes"), f"timeout_minutes: got {hook.timeout_minutes}, need {need}", "")


def _secrets_of(script: Path, path: KeyPath) -> Iterator[Finding]:
    """Report the secrets of a script: all users who may read the bucket or a node could read them."""
    text = script.read_text(encoding="utf-8", errors="replace")
    for secret in find(text):
        line = text.count("\n", 0, secret.start) + 1
        hint = "delete and revoke it; let the script read a secret of Secrets Manager"
        yield error(path, f"script: line {line} of {script.name} holds {secret.kind}", hint)


@reads("cluster.slurm.strategy")
def managed_partitions(settings: Settings) -> Iterator[Finding]:
    """HyperPod refuses updates of partitions that were edited on the controller, as nodes.slurm edits their limits."""
    slurm, policy = settings.cluster.slurm, settings.nodes.slurm
    if isinstance(slurm, ApiSlurm) and slurm.strategy != "merge" and policy and policy.partitions:
        message = f"partitions: with `strategy: {slurm.strategy or 'none'}` HyperPod may refuse or undo the limits"
        yield warning(("nodes", "slurm", "partitions"), message, "write `strategy: merge` into the section slurm")


@reads("cluster.node_recovery", "training.source")
def resumed_jobs(settings: Settings) -> Iterator[Finding]:
    """HyperPod replaces a faulty node but may not resume its job, because of a flag that a setting of nodes needs.

    A public log of March 2025 shows that HyperPod's auto-resume refuses PrologFlags=Alloc, which Contain implies. The
    setting wins: Slurm requeues the job instead. podwright-train goes on from its newest checkpoint then, so this is
    for clusters without it.
    https://github.com/awslabs/awsome-distributed-ai/pull/584
    """
    if settings.cluster.node_recovery != "automatic" or settings.training.source != "none":
        return
    for name, flag in (("prolog", "Alloc"), ("pam_slurm_adopt", "Contain")):
        if getattr(settings.nodes, name) is not None:
            message = f"{name}: with PrologFlags={flag}, which it sets, HyperPod may not resume the job of a lost node"
            hint = "Slurm requeues the job, which starts again from its own checkpoint: test that your program does so"
            yield remark(("nodes", name), message, hint)


def remediation(settings: Settings) -> Iterator[Finding]:
    """A limit of nodes.remediation is out of its range, or HyperPod may not act because node_recovery is off."""
    policy = settings.nodes.remediation
    if policy is None:
        return
    limits = {"interval_minutes": MAX_CHECK_MINUTES, "max_percent": MAX_OUT_PERCENT, "max_per_hour": MAX_ACTS_PER_HOUR}
    for name, maximum in limits.items():
        if not 1 <= getattr(policy, name) <= maximum:
            yield error((*REMEDIATION, name), f"{name}: got {getattr(policy, name)}, need 1 to {maximum}", "")
    if settings.cluster.node_recovery != "automatic":
        hint = "write `node_recovery: automatic` into the section cluster, or delete remediation"
        yield warning(
            REMEDIATION, "remediation: with `node_recovery: none` HyperPod may leave sick nodes as they are", hint
        )


def s3_mounts(settings: Settings) -> Iterator[Finding]:
    """A mount's arguments are invalid, or it would let nodes write scripts that all nodes run as root."""
    own_prefixes = names.readable_prefixes(settings.name) if settings.are_valid(*OWN_BUCKET) else ()

    def check(mount: S3Mount) -> list[Problem]:
        own_bucket = mount.bucket if names.is_own_bucket(settings, mount.bucket) else ""
        return [
            *checks.s3_access_problems(mount, own_bucket=own_bucket, own_prefixes=own_prefixes),
            *checks.mount_path_problems(mount.path, "path"),
        ]

    for index, mount in enumerate(settings.nodes.s3_mounts):
        yield from findings_of_section(settings, (*S3_MOUNTS, index), mount, check)

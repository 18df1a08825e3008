"""``podwright rehearse``: run the steps, report a failure."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from podwright import checkout
from podwright.check.load import load
from podwright.config_file import CONFIG_VARIABLE, DEFAULT_CONFIG, config_path
from podwright.errors import ArgumentError, OperationError
from podwright.operations.deployment import setup
from podwright.operations.deployment.terraform import TerraformError
from podwright.settings.cluster import ApiSlurm
from podwright.settings.root import Settings
from podwright_common.exit_status import FAILED, OK, WRONG_INPUT
from podwright_common.file_lock import locked
from podwright_rehearsal import processes
from podwright_rehearsal.clusters.profile import Release
from podwright_rehearsal.clusters.releases import NEWEST, RELEASES
from podwright_rehearsal.hosts import leftovers
from podwright_rehearsal.run import operator, story
from podwright_rehearsal.run.hosting import KINDS, FlatHosts, Hosts
from podwright_rehearsal.run.progress import StepFailed, progress_for
from podwright_rehearsal.run.rehearsal import Rehearsal, steps, trains
from podwright_rehearsal.run.resize import resized
from podwright_rehearsal.run.supplies import CACHE, FAILURES, SuppliesError, available_release, supplies

AS_ASKED = "as --flat says"  # why hosts are flat, where nothing else is the reason
EXAMPLE = checkout.ROOT / DEFAULT_CONFIG  # Users without a file rehearse it; it is in the wheel too.


def file_to_rehearse() -> Path:
    """Return the user's settings file; without one, say so and return the bundled example."""
    settings_file = config_path()
    if os.environ.get(CONFIG_VARIABLE) or settings_file.exists() or settings_file.is_symlink():
        return settings_file
    print(f"podwright: no {settings_file} in this folder, so an example is rehearsed: {EXAMPLE}", file=sys.stderr)
    return EXAMPLE


def rehearse(
    config: Path, *, as_json: bool, keep: bool, kind: str, profile: str | None = None, compute_nodes: int | None = None
) -> int:
    """Run every step; return 0 if all succeed, 1 if one fails, 2 if this machine cannot run them.

    ``kind`` is a key of ``KINDS``; where this machine does not permit it, simpler hosts take its place.
    ``profile`` is a key of ``RELEASES``; None: the newest.
    ``compute_nodes`` replaces the number of nodes in the first compute group.
    """
    settings, user_file, release = load(config), config, RELEASES[profile] if profile else NEWEST
    require_accounting(settings, release)
    try:
        setup.programs()
    except (OperationError, TerraformError) as error:
        print(error.render(), file=sys.stderr)
        return WRONG_INPUT
    hosts, why = kind_of_hosts(kind)
    if compute_nodes is not None:
        config, settings = resized(config, compute_nodes, folder=hosts.folder / "settings")
        nodes = "1 node" if compute_nodes == 1 else f"{compute_nodes} nodes"
        print(f"podwright: as if {config.name} had {nodes} in its first compute group", file=sys.stderr)
    if why:
        flat = ", their boot is not rehearsed" if hosts is FlatHosts else ""
        simpler = f"hosts {hosts.description}{flat}: {why}"
        flat_notice = "--flat: nodes are plain processes, and their boot is not rehearsed"
        print(f"podwright: {flat_notice if why == AS_ASKED else simpler}", file=sys.stderr)
    profile_description = describe(release, hosts) if profile or hosts.release else ""
    if profile_description not in {"", release.name}:
        print(f"podwright: {profile_description}", file=sys.stderr)
    progress = progress_for(list(steps(hosts, trains=trains(settings))), as_json=as_json)
    try:
        with _locked(hosts.folder):
            materials = supplies(hosts.release, added=settings.added_requirements)
            processes.adopt_orphans()
            for number in (
                signal.SIGINT,
                signal.SIGTERM,
            ):  # both end it cleanly, even where `&` ignores the first
                signal.signal(number, signal.default_int_handler)
            rehearsal = Rehearsal(
                config.resolve(), settings, materials, progress, keep=keep, kind_of_hosts=hosts, profile=release
            )
            summary = rehearsal.run_steps()
    except StepFailed as failure:
        _explain(failure)
        return FAILED
    except FAILURES as error:
        print(f"podwright: {error}", file=sys.stderr)
        return WRONG_INPUT
    described = f"{hosts.description} ({why})" if why else hosts.description
    run = rehearsal.run if trains(settings) else None
    afterwards = story.after(user_file, run, rehearsal.logs, is_example=user_file == EXAMPLE)
    progress.summary(
        [
            ("hosts", described),
            *([("profile", profile_description)] if profile_description else []),
            *summary.rows(),
            *afterwards,
        ]
    )
    return OK


def shell(node: str) -> int:
    """Open a shell on a node of the rehearsal that stays up; this process becomes ``podwright connect``.

    Raises:
        ArgumentError: no rehearsal is up.
    """
    variables = next(filter(None, (operator.read(hosts.folder) for hosts in KINDS.values())), None)
    if variables is None:
        raise ArgumentError("no rehearsal is up", "start one in another terminal: podwright rehearse --keep")
    command = [sys.executable, "-m", "podwright", "connect", node, "--user", "root"]
    os.execve(command[0], command, {**os.environ, **variables})  # noqa: S606 -- a list, and no shell


def clean() -> int:
    """End leftovers of earlier rehearsals: processes, and with them namespaces and mounts, and control groups."""
    has_leftovers = False
    for kind in KINDS.values():
        hosts = leftovers.clean(kind.folder)
        pids = processes.marked(kind.folder)
        processes.end(pids)
        for leftover in hosts:
            print(f"ended {leftover}")
        for pid in pids:
            print(f"ended process {pid}")
        has_leftovers = has_leftovers or bool(hosts or pids)
    if not has_leftovers:
        print(f"no leftovers of a rehearsal in {CACHE}")
    return OK


def kind_of_hosts(kind: str) -> tuple[type[Hosts], str | None]:
    """Return the hosts that this machine permits, and why, unless they are the obvious ones."""
    requested = KINDS[kind]
    if requested.release is None:
        return FlatHosts, AS_ASKED
    release, why = available_release(requested.release)
    return next(hosts for hosts in KINDS.values() if hosts.release == release), why


def describe(release: Release, hosts: type[Hosts]) -> str:
    """Return the month of a release, or the sentence that says which part of it these hosts lack."""
    if hosts.release is None:
        return f"profile {release.name} is not rehearsed: flat hosts have no files of the service"
    return release.missing_slurm(hosts.release.slurm) or release.name


def require_accounting(settings: Settings, release: Release) -> None:
    """Refuse an external database where the release's service connects slurmdbd to none.

    Raises:
        ArgumentError: the file has such a database, and the release is too old.
    """
    has_database = isinstance(settings.cluster.slurm, ApiSlurm) and settings.accounting.source in {"create", "existing"}
    if has_database and not release.external_accounting:
        raise ArgumentError(
            f"--profile {release.name}: `accounting` with `cluster.slurm: {{source: api}}` needs HyperPod's image of "
            "2026-08-30 or later",
            f"leave --profile out, or give a later month: {NEWEST.name}",
        )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other rehearsals out of the folder.

    Raises:
        SuppliesError: another one runs.
    """

    def refuse() -> None:
        raise SuppliesError(
            f"another rehearsal runs in {folder}: wait for it, or end it with `podwright rehearse --clean`"
        )

    with locked(folder / "lock", before_waiting=refuse):
        yield


def _explain(failure: StepFailed) -> None:
    print(f"podwright: step '{failure.step}' failed on {failure.host}: {failure.message}", file=sys.stderr)
    for line in failure.tail:
        print(f"    {line}", file=sys.stderr)
    if failure.log:
        print(f"the whole log: {failure.log}", file=sys.stderr)

"""The command ``podwright rehearse``, which podwright finds in the entry point group ``podwright.commands``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from podwright.config_file import CONFIG_VARIABLE, DEFAULT_CONFIG
from podwright.errors import ArgumentError
from podwright_common.command_line import add_examples, positive_count

DEFAULT_HOSTS = "debian-13"
PROFILES = ("2025-11", "2026-04", "2026-07", "2026-11")  # releases.RELEASES, which --help need not load
SHELL = "shell"  # The word in place of a file, in `podwright rehearse shell`.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add FILE, NODE, and the flags for the hosts and the end of the rehearsal."""
    parser.add_argument(
        "file", nargs="?", type=Path, metavar="FILE",
        help=f"settings file; or the word `{SHELL}`, which opens a shell on a node of a rehearsal started with "
        f"--keep. Default: ${CONFIG_VARIABLE}, else {DEFAULT_CONFIG}, else an example that comes with podwright",
    )  # fmt: skip
    parser.add_argument("node", nargs="?", metavar="NODE", help=f"after {SHELL}: the node. Default: controller")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.add_argument("--keep", action="store_true", help="stay up instead of destroying, until Ctrl-C")
    parser.add_argument(
        "--hosts",
        choices=["debian-13", "debian-12", "flat"],
        help="host type: debian-13 or debian-12 (each host boots systemd on its own Debian root, with Slurm 24.11 or "
        f"22.05; needs root), or flat (plain processes, without root). Default: {DEFAULT_HOSTS}",
    )
    parser.add_argument(
        "--profile",
        choices=PROFILES,
        help="month of the HyperPod release whose files and order of events the service follows; hosts run the Slurm "
        f"of --hosts. Default: {PROFILES[-1]}, the newest",
    )
    parser.add_argument("--flat", action="store_true", help="the same as --hosts flat")
    parser.add_argument(
        "--compute-nodes",
        type=positive_count,
        metavar="N",
        help="nodes in the first compute group. Default: its count",
    )
    parser.add_argument("--clean", action="store_true", help="end and list leftovers of an earlier rehearsal")
    add_examples(
        parser,
        "podwright rehearse",
        "podwright rehearse --hosts debian-12 --compute-nodes 4",
        "podwright rehearse --profile 2026-04",
        "podwright rehearse --keep",
        "podwright rehearse shell controller",
    )


def run(options: argparse.Namespace) -> int:
    """Rehearse, open a shell on a node of a rehearsal, or end leftovers."""
    problems = list(_contradictions(options))
    if problems:
        raise ArgumentError("; ".join(problems))
    from podwright_rehearsal import command  # --help need not wait for pydantic and boto3

    if options.clean:
        return command.clean()
    if options.file == Path(SHELL):
        return command.shell(options.node or "controller")
    return command.rehearse(
        options.file or command.file_to_rehearse(),
        as_json=options.json,
        keep=options.keep,
        kind="flat" if options.flat else options.hosts or DEFAULT_HOSTS,
        compute_nodes=options.compute_nodes,
        profile=options.profile,
    )


def _contradictions(options: argparse.Namespace) -> Iterator[str]:
    """Yield the arguments that exclude each other."""
    opens_shell = options.file == Path(SHELL)
    destinations = ("json", "keep", "hosts", "profile", "flat", "compute_nodes")
    flags = [f"--{name.replace('_', '-')}" for name in destinations if getattr(options, name)]
    if options.flat and options.hosts not in {None, "flat"}:
        yield f"--hosts {options.hosts} and --flat: give one of them"
    if options.profile and (options.flat or options.hosts == "flat"):
        yield f"--profile {options.profile}: flat hosts have no files of the service; choose other --hosts"
    if options.clean and (options.file or flags):
        yield f"--clean: give it without {', '.join([*([str(options.file)] if options.file else []), *flags])}"
    if opens_shell and flags:
        yield f"{SHELL}: give it without {', '.join(flags)}"
    if options.node and not opens_shell:
        yield f"got {options.node}: name a node after {SHELL} only, as in podwright rehearse {SHELL} NODE"

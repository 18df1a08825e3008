"""``podwright logs``: show the output of a job, of a node's lifecycle scripts, of health checks or of Slurm."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from podwright.errors import ArgumentError, AwsError, OperationError
from podwright.json_document import JsonObject
from podwright.operations.access.remote import Remote, add_remote_arguments, connection, pick, quoted, remote
from podwright.operations.account.hyperpod import Node
from podwright.operations.account.log_streams import Line, LogGroup, Stream
from podwright.operations.jobs import runs, slurm_jobs
from podwright.operations.output import Column, print_document, print_table
from podwright.operations.target import NODE_HELP, Target, add_examples, add_target_arguments, target
from podwright_bootstrap.contract import CONTROLLER
from podwright_common.command_line import positive_count
from podwright_training.run_folder import NXDT_STEPS, RunFolder

LAST_LINES = 50
# HyperPod's streams: PREFIX/GROUP/INSTANCE.
# https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-resiliency-slurm.html
LIFECYCLE, HEALTH = "LifecycleConfig", "SagemakerHealthMonitoringAgent"
ANY = ""  # An option without its NODE lists the logs.
RUN_FOLDER = RunFolder(Path())  # Its paths are relative to a run's folder.
# A job's user names the file: a pipe or a device would never end.
REGULAR = (
    'for each in {paths}; do if [ -e "$each" ] && [ ! -f "$each" ]; then '
    'echo "$each is not a regular file" >&2; exit 1; fi; done; '
)
LIMIT_BYTES = 64 << 20  # A line may have no end.
# Ends with the job or, because its standard input ends, with the command here.
# A job has ended when squeue says so, and not when Slurm does not answer or squeue only warns.
FOLLOW = """exec 3<&0
tail -n {lines} -F {paths} 2>/dev/null 3<&- & tail=$!
( exec 0<&3 3<&- >/dev/null 2>&1; while read -r _; do :; done; kill $tail ) & watch=$!
exec 3<&- 0</dev/null
while kill -0 $tail 2>/dev/null; do
  sleep 1
  if said=$({alive} 2>/dev/null); then
    [ -z "$said" ] || continue
  else
    case $({alive} 2>&1) in *"Invalid job id"*) ;; *) continue ;; esac
  fi
  sleep 1; kill $tail $watch
done 2>/dev/null
true"""


@dataclass(frozen=True)
class _Line(JsonObject):
    time: datetime | None
    """null for lines of a file."""
    message: str


@dataclass(frozen=True, kw_only=True)
class _LogLines(JsonObject):
    schema: Literal["podwright.logs/1"] = "podwright.logs/1"
    cluster: str
    source: str
    """A file on the cluster, or a log stream."""
    lines: list[_Line]


@dataclass(frozen=True, kw_only=True)
class _LogStreams(JsonObject):
    schema: Literal["podwright.log-streams/1"] = "podwright.log-streams/1"
    cluster: str
    streams: list[Stream]


Logs = Annotated[
    _LogLines | _LogStreams, "The documents of `podwright logs --json`: lines, or the streams to choose from."
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that select a log and the number of its lines."""
    log_choice = parser.add_mutually_exclusive_group(required=True)
    log_choice.add_argument("job", nargs="?", metavar="JOB|RUN", help="a job's number, or the name of a run's folder")
    log_choice.add_argument(
        "--lifecycle",
        nargs="?",
        const=ANY,
        metavar="NODE",
        help="log of a node's lifecycle scripts, from CloudWatch; without NODE: list these logs",
    )
    log_choice.add_argument(
        "--health",
        nargs="?",
        const=ANY,
        metavar="NODE",
        help="log of HyperPod's health agent, from CloudWatch; without NODE: list these logs",
    )
    log_choice.add_argument(
        "--slurm",
        nargs="?",
        const=CONTROLLER,
        metavar="NODE",
        help="log of the node's slurmd; without NODE: log of slurmctld",
    )
    parser.add_argument("-f", "--follow", action="store_true", help="follow the log until the job ends, or Ctrl-C")
    parser.add_argument(
        "-n",
        "--lines",
        type=positive_count,
        default=LAST_LINES,
        metavar="N",
        help="number of last lines. Default: %(default)s",
    )
    runs.add_runs_argument(parser)
    add_remote_arguments(parser)
    add_target_arguments(parser)
    add_examples(
        parser,
        "podwright logs 12 --follow",
        "podwright logs llama3_2_1b",
        "podwright logs --lifecycle workers/1",
        "podwright logs --slurm",
    )
    parser.epilog = f"{parser.epilog}\nNODE: {NODE_HELP}. --lifecycle and --health take ids of replaced instances too."


def run(options: argparse.Namespace) -> int:
    """Show the log."""
    if options.json and options.follow:
        raise ArgumentError("--json and --follow do not go together", "leave one of them out")
    cluster_target = target(options)
    if options.job is not None:
        _show_job(remote(cluster_target, options), options)
    elif options.slurm is not None:
        _show_slurm(cluster_target, options)
    else:
        _show_stream(cluster_target, options)
    return 0


# ---- on nodes ----------------------------------------------------------------------------------


def _show_job(node: Remote, options: argparse.Namespace) -> None:
    if slurm_jobs.JOB_ID.fullmatch(options.job):
        paths, alive = [_output_of(node, options.job)], quoted("squeue", "--noheader", f"--jobs={options.job}")
    else:
        name = runs.run_name(options.job)
        paths = _outputs_of_run(node, name, options.runs)
        owner = f"$(stat --format=%u {quoted(str(Path(paths[0]).parent))})"  # a run's jobs are its owner's
        alive = slurm_jobs.of_run(name, user=owner)
    if options.follow:
        together = quoted(*_together(paths))
        follow = FOLLOW.format(lines=options.lines, paths=together, alive=alive)
        node.show(REGULAR.format(paths=together) + follow)
    else:
        _show_file(node, paths[0], options)


def _output_of(node: Remote, job_id: str) -> str:
    state = slurm_jobs.job(node, job_id)["state"]
    path = slurm_jobs.output_of(node, job_id)
    if not path or path == "/dev/null":
        raise OperationError(f"job {job_id} has no output file: it is {state}")
    return path


def _outputs_of_run(node: Remote, name: str, folder: str | None) -> list[str]:
    """Return the logs of podwright-train's jobs, or else outputs of batch scripts in the run's folder, newest first.

    Raises:
        ArgumentError: there is none.
    """
    of_trainer = " ".join(map(str, (RUN_FOLDER.log, RUN_FOLDER.step_log("*"), RUN_FOLDER.host_log("*"))))
    run_folders = runs.find(node, folder)
    listed = f"{{ ls -t {of_trainer} 2>/dev/null | grep . || ls -t *.out 2>/dev/null; }}"
    output = node.run(f"cd {quoted(run_folders.path(name))} 2>/dev/null && {listed}; true")
    paths = [run_folders.path(name, path) for path in output.splitlines()]
    if not paths:
        existing = ", ".join(node.run(f"ls {quoted(run_folders.folder)} 2>/dev/null | head -n 20; true").split())
        raise ArgumentError(f"no output of a run {name!r} in {run_folders.folder}", f"runs there: {existing or 'none'}")
    return paths


def _together(paths: list[str]) -> list[str]:
    """Return the logs to follow: the newest, or all of its chain of jobs, also those to come, or of its hosts."""
    newest = Path(paths[0])
    run = RunFolder(Path(newest.parent.parent))
    if newest.parent.name == RUN_FOLDER.nxdt.name:
        return [str(run.step_log(step)) for step in NXDT_STEPS]
    if newest.parent.name == RUN_FOLDER.elastic.name:
        return sorted(path for path in paths if Path(path).parent == newest.parent)
    return paths[:1]


def _show_slurm(cluster_target: Target, options: argparse.Namespace) -> None:
    cluster = cluster_target.cluster()
    place = pick(cluster_target, cluster, options.slurm)
    node = connection(cluster_target, cluster, place, options)
    key = "SlurmctldLogFile" if place.is_controller else "SlurmdLogFile"
    output = node.run("scontrol show config")
    values = (line.split("=", 1)[1].strip() for line in output.splitlines() if line.split("=")[0].strip() == key)
    path = next(values, "").replace("%h", place.name).replace("%n", place.name)
    if not path.startswith("/"):
        raise OperationError(f"slurm.conf of {cluster.name} names no {key}", f"`podwright connect {place.name}`")
    if options.follow:
        script = FOLLOW.format(lines=options.lines, paths=quoted(path), alive="echo yes")
        node.show(quoted("exec", "sudo", "-n", "/bin/sh", "-c", script))  # all of it: a user cannot end root's tail
    else:
        _show_file(node, path, options, sudo="sudo -n ")


def _show_file(node: Remote, path: str, options: argparse.Namespace, *, sudo: str = "") -> None:
    file = quoted(path)
    refuse = "" if sudo else REGULAR.format(paths=file)
    output = node.output(
        f"{refuse}{sudo}tail -c 1 {file} >/dev/null && {sudo}tail -n {options.lines} {file} | tail -c {LIMIT_BYTES}"
    )
    text = output.decode(errors="replace")
    if options.json:
        lines = [_Line(None, line) for line in text.splitlines()]
        print_document(_LogLines(cluster=node.cluster.name, source=path, lines=lines))
    elif sys.stdout.isatty():
        sys.stdout.write(text)
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(output)


# ---- in CloudWatch -----------------------------------------------------------------------------


def _show_stream(cluster_target: Target, options: argparse.Namespace) -> None:
    cluster = cluster_target.cluster()
    prefix, word = (LIFECYCLE, options.lifecycle) if options.lifecycle is not None else (HEALTH, options.health)
    group = LogGroup(cluster_target.session, cluster.log_group)
    streams = _streams(group, prefix)
    if word == ANY:
        _list(streams, cluster.name, options)
        return
    stream = _stream(streams, word, of=lambda: cluster_target.nodes(cluster, [word])[0])
    if options.follow:
        for line in group.follow(stream.name, options.lines):
            print(_text(line), flush=True)
        return
    lines = group.newest_lines(stream.name, options.lines)
    if options.json:
        printed_lines = [_Line.of(line) for line in lines]
        print_document(_LogLines(cluster=cluster.name, source=stream.name, lines=printed_lines))
    else:
        print("\n".join(map(_text, lines)))


def _streams(group: LogGroup, prefix: str) -> list[Stream]:
    try:
        return group.streams(f"{prefix}/")
    except AwsError as error:
        if not error.absent:
            raise
        raise OperationError(
            f"no log group {group.name}: no node of this cluster has written a line",
            "see the nodes' messages in `podwright nodes list`; the role needs logs:CreateLogStream, the subnet a way "
            "to CloudWatch Logs",
        ) from error


def _list(streams: list[Stream], cluster: str, options: argparse.Namespace) -> None:
    streams = sorted(streams, key=lambda stream: stream.written_at.timestamp() if stream.written_at else 0)
    if options.json:
        print_document(_LogStreams(cluster=cluster, streams=streams))
        return
    rows = [(*stream.name.rsplit("/", 2)[1:], _clock(stream)) for stream in streams]
    print_table((Column("GROUP"), Column("INSTANCE ID"), Column("LAST LINE")), rows)


def _stream(streams: list[Stream], word: str, *, of: Callable[[], Node]) -> Stream:
    """Return the stream of the node that ``of`` finds, or of an instance that was replaced.

    Raises:
        OperationError: there is none.
    """
    of_instance = {stream.name.rpartition("/")[2]: stream for stream in streams}
    if word in of_instance:
        return of_instance[word]
    node = of()
    if node.instance_id not in of_instance:
        raise OperationError(
            f"{node.name} ({node.instance_id}) has written no line yet; it is {node.status}",
            "those that have: " + (", ".join(of_instance) or "none"),
        )
    return of_instance[node.instance_id]


def _text(line: Line) -> str:
    return f"{line.time:%Y-%m-%d %H:%M:%S} {line.message}"


def _clock(stream: Stream) -> str:
    return f"{stream.written_at:%Y-%m-%d %H:%M:%S} UTC" if stream.written_at else ""

"""``podwright validate``: measure nodes, network and shared file system of a cluster, and name slow ones."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from podwright.check.findings import Finding, FindingDocument, summary, write
from podwright.errors import ArgumentError
from podwright.json_document import JsonObject, to_json
from podwright.operations.access.remote import add_remote_arguments, remote
from podwright.operations.account.hyperpod import Cluster, Node
from podwright.operations.jobs import runs
from podwright.operations.output import Column, print_document, print_table
from podwright.operations.target import Target, add_examples, add_target_arguments, target
from podwright.operations.validation import validation_job
from podwright.output_file import place_of
from podwright.planning.collectives import all_reduce
from podwright_bootstrap.contract import COMPUTE
from podwright_common.atomic_file import new_file
from podwright_common.command_line import positive_count
from podwright_common.exit_status import FAILED, OK
from podwright_training.validation.measurements import Measurements, NodeReport

FILE_MIB = 1024
COLUMNS = (
    Column("NODE"),
    Column("PAIRS GB/s", right=True),
    Column("INSIDE GB/s", rank=1, right=True),
    Column("WRITE MiB/s", rank=2, right=True),
    Column("READ MiB/s", rank=2, right=True),
    Column("GPU TFLOP/s", rank=3, right=True),
    Column("GPU MHz", rank=4, right=True),
    Column("CLOCK s", rank=5, right=True),
    Column("FINDINGS", rank=1),
)


@dataclass(frozen=True, kw_only=True)
class Validate(JsonObject):
    """The document of `podwright validate --json`."""

    schema: Literal["podwright.validate/1"] = "podwright.validate/1"
    cluster: str
    folder: str
    instance_type: str
    pair_bus_gb_s: float | None
    """1e9 bytes/s of all-reduces between two nodes, the median; null without one."""
    node_bus_gb_s: float | None
    """The same within nodes."""
    transports: list[str]
    findings: list[FindingDocument]
    measurements: Measurements


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add flags for the nodes, the size of the measurements and their output."""
    parser.add_argument(
        "--group", action="append", default=[], help="only this instance group; repeatable. Default: all compute nodes"
    )
    parser.add_argument("--partition", help="Slurm partition. Default: the partition that has most of the nodes")
    parser.add_argument(
        "--rounds", type=positive_count, metavar="N", help="largest number of rounds of pairs. Default: all pairs"
    )
    parser.add_argument(
        "--file-mib",
        type=positive_count,
        default=FILE_MIB,
        metavar="N",
        help="size of each node's file. Default: %(default)s",
    )
    parser.add_argument(
        "--python", metavar="PATH", help="Python with torch, on the nodes. Default: podwright's environment"
    )
    parser.add_argument("--of", metavar="RUN", help="read the results of an earlier validation, without measuring")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="also write the JSON document to a file")
    runs.add_runs_argument(parser)
    add_remote_arguments(parser)
    add_target_arguments(parser)
    add_examples(
        parser,
        "podwright validate",
        "podwright validate --group workers --output validate.json",
        "podwright plan cluster.yaml --run run.yaml --measured validate.json",
    )


def run(options: argparse.Namespace) -> int:
    """Measure, print a table and all problems; return 1 if there are any.

    Raises:
        OperationError: the nodes or Slurm do not answer, or the job failed.
    """
    from podwright.operations.validation.validation_findings import findings, node_bus_gb_s, pair_bus_gb_s

    cluster_target = target(options)
    node = remote(cluster_target, options)
    run_folders = runs.find(node, options.runs, extra_command=validation_job.SINFO)
    nodes = _compute_nodes(cluster_target, node.cluster, options.group)
    excluded_nodes: Mapping[str, str] = {}
    job_id = ""
    if options.of:
        name = runs.run_name(options.of)
    else:
        selection = validation_job.select(nodes, run_folders.extra_output, partition=options.partition)
        name, excluded_nodes = validation_job.run_name(), selection.excluded_nodes
        job_id = validation_job.submit(
            node,
            run_folders,
            name,
            selection,
            python=options.python,
            file_mib=options.file_mib,
            rounds=options.rounds,
        )
        print(f"job {job_id}: `podwright validate --of {name}` reads its results later", file=sys.stderr)
        validation_job.wait(node, run_folders.path(name), job_id)
    measured = validation_job.measurements(node, run_folders.path(name), job_id)
    instance_type = _type_of(measured, nodes)
    problems = findings(measured, instance_type, excluded_nodes)
    document = Validate(
        cluster=node.cluster.name,
        folder=run_folders.path(name),
        instance_type=instance_type,
        pair_bus_gb_s=pair_bus_gb_s(measured),
        node_bus_gb_s=node_bus_gb_s(measured),
        transports=sorted({pair.transport for pair in measured.pairs if pair.transport}),
        findings=[finding.document() for finding in problems],
        measurements=measured,
    )
    if options.output:
        _write(options.output, document)
    if options.json:
        print_document(document)
    else:
        _print(node.cluster.name, instance_type, measured, problems)
    return FAILED if problems else OK


def _compute_nodes(cluster_target: Target, cluster: Cluster, groups: list[str]) -> list[Node]:
    """Return the compute nodes of the groups.

    Raises:
        ArgumentError: there is no such group, or it has no compute nodes.
    """
    for group in groups:
        cluster.group(group)
    existing = cluster_target.nodes(cluster)
    nodes = [node for node in existing if node.role in {COMPUTE, ""} and (not groups or node.group in groups)]
    if not nodes:
        raise ArgumentError(f"{cluster.name} has no compute nodes{f' in {groups}' if groups else ''}")
    return nodes


def _type_of(measured: Measurements, nodes: list[Node]) -> str:
    """Return the instance type of the measured nodes; empty if the nodes are gone."""
    names = {node.name for node in measured.nodes}
    return next((node.instance_type for node in nodes if node.slurm_name in names), "")


def _write(path: Path, document: Validate) -> None:
    """Write the document under its name when it is whole."""
    try:
        with new_file(place_of(path)) as file:  # Permissions are as the umask gives them.
            file.write(f"{to_json(document)}\n".encode())
    except OSError as error:
        raise ArgumentError(f"--output {path}: {error.strerror}") from error


def _print(cluster: str, instance_type: str, measured: Measurements, problems: list[Finding]) -> None:
    from podwright_training.validation.slow import fastest_of_nodes

    fastest = fastest_of_nodes(measured.speeds_of_pairs())
    inside = {item.nodes[0]: max(item.bus_gb_s) for item in measured.inside if item.bus_gb_s}
    codes: dict[str, list[str]] = {}
    for finding in problems:
        codes.setdefault(str(finding.path[-1]), []).append(finding.code)
    rows = [
        (
            node.name,
            _figure(fastest.get(node.name)),
            _figure(inside.get(node.name)),
            _figure(max(node.write_mib_s, default=None)),
            _figure(max(node.read_mib_s, default=None)),
            *_gpu_figures(node),
            "" if node.clock_offset_s is None else f"{node.clock_offset_s:+.2g}",
            " ".join(dict.fromkeys(codes.get(node.name, ()))),
        )
        for node in measured.nodes
    ]
    print_table(COLUMNS, rows)
    for line in _lines(instance_type, measured):
        print(line)
    write(problems, file=Path(cluster), text="", stream=sys.stdout)
    print(f"{cluster}: {summary(problems) or 'no problems'}")


def _gpu_figures(node: NodeReport) -> tuple[str, str]:
    """Return speed and clock of the node's slowest GPU."""
    speeds = [gpu.tflops for gpu in node.gpus if gpu.tflops]
    clocks = [gpu.sm_clock_mhz for gpu in node.gpus if gpu.sm_clock_mhz]
    return _figure(min(speeds, default=None)), _figure(min(clocks, default=None))


def _lines(instance_type: str, measured: Measurements) -> list[str]:
    """Return the pairs' common results, and published values to compare with."""
    from statistics import median

    fastest = {pair: max(speeds) for pair, speeds in measured.speeds_of_pairs().items()}
    if not fastest:
        return []
    slowest = min(fastest, key=fastest.__getitem__)
    example = next(pair for pair in measured.pairs if pair.bus_gb_s)
    measured_pairs = f"{len(fastest)} pairs, all-reduce of {example.size_bytes >> 20} MiB over {example.transport}"
    middle, slowest_speed = _figure(median(fastest.values())), _figure(fastest[slowest])
    lines = [f"{measured_pairs}: median {middle} GB/s, slowest {slowest_speed} ({' and '.join(slowest)})"]
    published = all_reduce(instance_type, nodes=2, size_bytes=example.size_bytes)
    if published:
        figures = " to ".join(dict.fromkeys(f"{speed:.0f}" for speed in (published.low_gb_s, published.high_gb_s)))
        lines.append(f"published for two {instance_type}: {figures} GB/s ({'; '.join(published.sources)})")
    return lines


def _figure(value: float | None) -> str:
    """Return three significant digits, or an empty text."""
    return "" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"  # noqa: PLR2004

"""The job's order of events: nodes, files, all-reduce within nodes, then between pairs in rounds.

Each measurement is a Slurm step of its own with a time limit, so a node that hangs spoils its own results alone.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

from podwright_training.run_folder import write_atomically
from podwright_training.validation.files import remove_files
from podwright_training.validation.measurements import FILE_NAME, Measurements, NodeReport, Reduction
from podwright_training.validation.rounds import Pair, rounds
from podwright_training.validation.slow import fastest_of_nodes, slow_nodes, slow_pairs
from podwright_training.validation.steps import ALL_REDUCE, NODE, READ, SrunStep, hostnames, read_result

STEP_LIMIT_S = 300  # One measurement includes the start of Python and torch on a cold file system.
FIRST_PORT, PORTS = 20000, 10000  # Ephemeral ports begin above.
PARTNERS = 2  # A slow node is measured again with so many others; a silent one fails with so many.


def measure(folder: Path, *, file_mib: int, max_rounds: int | None = None) -> None:
    """Measure the job's nodes and write ``measurements.json`` into the folder.

    Args:
        folder: on the shared file system.
        file_mib: size of each node's file.
        max_rounds: largest number of rounds of pairs. Default: until all pairs have met.
    """
    started_at = _now()
    nodes = JobNodes(folder, sorted(hostnames(os.environ["SLURM_JOB_NODELIST"])))
    try:
        reports = nodes.report(file_mib)
        equal, ranks = _with_as_many_gpus(reports)
        reductions = Reductions(folder, ranks)
        inside = reductions.inside(equal) if ranks > 1 else []
        pairs = reductions.between(equal, max_rounds)
    finally:
        remove_files(folder)
    measurements = Measurements(
        started_at=started_at,
        finished_at=_now(),
        job_id=os.environ["SLURM_JOB_ID"],
        ranks_per_node=ranks,
        nodes=tuple(reports),
        inside=tuple(inside),
        pairs=tuple(pairs),
    )
    write_atomically(folder / FILE_NAME, measurements.to_json())
    print("done", flush=True)


@dataclass(frozen=True)
class JobNodes:
    """The nodes of the job."""

    folder: Path
    names: Sequence[str]

    def report(self, file_mib: int) -> list[NodeReport]:
        """Return the report of each node; all measure at the same time."""
        print(f"{len(self.names)} nodes: GPUs, EFA, clock, files", flush=True)
        failed = self._step(NODE, f"--file-mib={file_mib}")
        result_by_node = {name: read_result(self.folder, f"{NODE}-{name}") for name in self.names}
        missing = [name for name, result in result_by_node.items() if result is None]
        if not missing:
            failed = self._step(READ)
        return [self._report(name, result_by_node[name], failed) for name in self.names]

    def _step(self, part: str, *words: str) -> str:
        return SrunStep(self.names, 1, STEP_LIMIT_S).run(part, f"--folder={self.folder}", *words)

    def _report(self, name: str, result: dict[str, object] | None, failed: str) -> NodeReport:
        if result is None:
            return NodeReport(name=name, error=failed or "it left no report")
        report = NodeReport.from_dict(result)
        return replace(report, read_mib_s=tuple(read_result(self.folder, f"{READ}-{name}") or ()))


@dataclass(frozen=True)
class Reductions:
    """All-reduces of some nodes, with one rank per GPU or one per node."""

    folder: Path
    ranks: int
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def inside(self, names: Sequence[str]) -> list[Reduction]:
        """Measure within each node, all nodes at once."""
        print(f"{len(names)} nodes: all-reduce within each", flush=True)
        return self._at_once([(name,) for name in names])

    def between(self, names: Sequence[str], max_rounds: int | None) -> list[Reduction]:
        """Measure between pairs in rounds; measure failed and slow pairs again, alone."""
        planned = rounds(names)[:max_rounds]
        reductions: list[Reduction] = []
        for number, meeting in enumerate(planned, start=1):
            broken = silent_nodes(reductions)  # each of their pairs would take the whole time limit
            pairs = [pair for pair in meeting if not broken & set(pair)]
            print(f"round {number} of {len(planned)}: all-reduce of {len(pairs)} pairs", flush=True)
            reductions += self._at_once(pairs)
        again = doubtful(reductions)
        if again:
            print(f"again, one by one: {len(again)} pairs", flush=True)
        return reductions + [self._measure(pair) for pair in again]

    def _at_once(self, groups: Sequence[tuple[str, ...]]) -> list[Reduction]:
        with ThreadPoolExecutor(max_workers=max(1, len(groups))) as pool:
            return list(pool.map(self._measure, groups))

    def _measure(self, names: tuple[str, ...]) -> Reduction:
        number = next(self._numbers)
        name = f"{ALL_REDUCE}-{number}"
        port = FIRST_PORT + (int(os.environ["SLURM_JOB_ID"]) + number) % PORTS
        step = SrunStep(names, self.ranks, STEP_LIMIT_S)
        failed = step.run(ALL_REDUCE, f"--folder={self.folder}", f"--name={name}", f"--port={port}")
        result = read_result(self.folder, name)
        if result is None:
            return Reduction(names, error=failed or "it left no result")
        return Reduction(names, tuple(result["bus_gb_s"]), result["transport"], result["size_bytes"])


def silent_nodes(reductions: Sequence[Reduction]) -> set[str]:
    """Return the nodes that failed with several partners and never succeeded."""
    failures = Counter(name for pair in reductions if not pair.bus_gb_s for name in pair.nodes)
    succeeded = {name for pair in reductions if pair.bus_gb_s for name in pair.nodes}
    return {name for name, count in failures.items() if count >= PARTNERS and name not in succeeded}


def doubtful(reductions: Sequence[Reduction]) -> list[Pair]:
    """Return the pairs to measure again: failed pairs, slow pairs, and slow nodes with the fastest others."""
    measured = {(pair.nodes[0], pair.nodes[1]): pair.bus_gb_s for pair in reductions}
    fastest = fastest_of_nodes(measured)
    slow = slow_nodes(measured)
    partners = sorted(set(fastest) - set(slow), key=fastest.__getitem__, reverse=True)[:PARTNERS]
    silent = silent_nodes(reductions)
    failed = [pair for pair, speeds in measured.items() if not speeds and not silent & set(pair)]
    return list(dict.fromkeys([*failed, *slow_pairs(measured), *itertools.product(slow, partners)]))


def _with_as_many_gpus(reports: Sequence[NodeReport]) -> tuple[list[str], int]:
    """Return the nodes that have as many GPUs as most, and the number of ranks on each."""
    answered = [report for report in reports if not report.error]
    usual = Counter(len(report.gpus) for report in answered).most_common(1)
    gpus = usual[0][0] if usual else 0
    return [report.name for report in answered if len(report.gpus) == gpus], max(1, gpus)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")

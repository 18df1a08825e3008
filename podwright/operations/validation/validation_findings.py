"""Findings of a validation: which node, pair or GPU is slow or faulty, and why we think so.

``podwright_training.validation.slow`` decides what is slow, on the nodes and here, so that both decide alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from podwright.check.findings import Finding, Level
from podwright.planning.collectives import all_reduce
from podwright_constructs.catalog import InstanceType, UnknownInstanceTypeError
from podwright_training.validation.job import silent_nodes
from podwright_training.validation.measurements import Measurements, NodeReport, Reduction
from podwright_training.validation.slow import fastest_of_nodes, slow, slow_nodes, slow_pairs

EFA = "efa"
CLOCK_LIMIT_S = 0.1  # Amazon's time service is within a millisecond
FILE_TOLERANCE = 0.5  # file servers share their bandwidth out unevenly
GPU_TOLERANCE = 0.1  # GPUs of one type differ by less
PUBLISHED_TOLERANCE = 0.2


def findings(measurements: Measurements, instance_type: str, excluded: Mapping[str, str]) -> list[Finding]:
    """Return all problems, those that name a node first.

    Args:
        measurements: the measurements.
        instance_type: of all nodes.
        excluded: Slurm's state of the nodes that were not measured.
    """
    try:
        type_: InstanceType | None = InstanceType.of(instance_type)
    except UnknownInstanceTypeError:
        type_ = None
    return [
        *_failures(measurements),
        *_slow_nodes(measurements),
        *_slow_inside(measurements),
        *(finding for node in measurements.nodes for finding in _of_node(node, type_)),
        *_slow_gpus(measurements.nodes),
        *_slow_pairs(measurements),
        *_slow_files(measurements.nodes),
        *_transport(measurements, type_),
        *_below_published(measurements, instance_type),
        *(_warning("not-measured", name, f"{name} was left out: {state}") for name, state in excluded.items()),
    ]


def pair_bus_gb_s(measurements: Measurements) -> float | None:
    """Return the median of all pairs' fastest all-reduce, or None without pairs."""
    fastest = [max(speeds) for speeds in measurements.speeds_of_pairs().values()]
    return median(fastest) if fastest else None


def node_bus_gb_s(measurements: Measurements) -> float | None:
    """Return the median of all nodes' fastest all-reduce among their own GPUs, or None with one rank on each."""
    fastest = [max(item.bus_gb_s) for item in measurements.inside if item.bus_gb_s]
    return median(fastest) if fastest else None


def _failures(measurements: Measurements) -> Iterator[Finding]:
    for node in measurements.nodes:
        if node.error:
            yield _error("no-answer", node.name, f"{node.name} was not measured: {node.error}", _LOOK)
    measured = {pair for pair, speeds in measurements.speeds_of_pairs().items() if speeds}
    measured |= {(item.nodes[0], item.nodes[0]) for item in measurements.inside if item.bus_gb_s}
    failed = {
        (min(item.nodes), max(item.nodes)): item for item in (*measurements.inside, *measurements.pairs) if item.error
    }
    silent = silent_nodes(measurements.pairs)
    for name in sorted(silent):
        reason = next(item.error for pair, item in failed.items() if name in pair)
        message = f"{name} had no all-reduce with any other node: {reason}"
        yield _error("no-all-reduce", name, message, _REPLACE.format(name=name))
    for pair, item in failed.items():
        if pair not in measured and not silent & set(pair):
            place = " and ".join(item.nodes)
            yield _error("no-all-reduce", place, f"no all-reduce on {place}: {item.error}", _LOOK)


def _slow_nodes(measurements: Measurements) -> Iterator[Finding]:
    pairs = measurements.speeds_of_pairs()
    fastest = fastest_of_nodes(pairs)
    reports = {node.name: node for node in measurements.nodes}
    for name in slow_nodes(pairs):
        count = sum(name in pair for pair in pairs)
        message = (
            f"{name} is slow in all its {count} pairs: {fastest[name]:.3g} GB/s at most, where the median node reaches "
            f"{median(fastest.values()):.3g}{_reasons(reports[name], measurements)}"
        )
        yield _error("slow-node", name, message, _REPLACE.format(name=name))


def _reasons(node: NodeReport, measurements: Measurements) -> str:
    """Return the node's other figures that could explain a slow network."""
    interface_counts = [report.efa_interfaces for report in measurements.nodes if report.efa_interfaces is not None]
    reasons = [f"GPU {gpu.index} is throttled" for gpu in node.gpus if gpu.throttled_by]
    if node.efa_interfaces is not None and node.efa_interfaces < max(interface_counts):
        reasons.append(f"it has {node.efa_interfaces} EFA interfaces of {max(interface_counts)}")
    if node.name in _slow_names(measurements.inside):
        reasons.append("its own GPUs are slow among each other")
    return f"; {', '.join(reasons)}" if reasons else ""


def _slow_inside(measurements: Measurements) -> Iterator[Finding]:
    fastest = {item.nodes[0]: max(item.bus_gb_s) for item in measurements.inside if item.bus_gb_s}
    for name in _slow_names(measurements.inside):
        message = f"GPUs of {name} reach {fastest[name]:.3g} GB/s among each other, the median node's "
        yield _error("slow-links", name, f"{message}{median(fastest.values()):.3g}", _REPLACE.format(name=name))


def _slow_names(inside: Iterable[Reduction]) -> list[str]:
    return slow({item.nodes[0]: item.bus_gb_s for item in inside if item.bus_gb_s})


def _of_node(node: NodeReport, type_: InstanceType | None) -> Iterator[Finding]:
    for gpu in node.gpus:
        gpu_name = f"GPU {gpu.index} of {node.name}"
        if gpu.throttled_by:
            clock = f" at {gpu.sm_clock_mhz:.0f} MHz" if gpu.sm_clock_mhz else ""
            message = f"{gpu_name} is throttled{clock}: {', '.join(gpu.throttled_by)}"
            yield _error("gpu-throttled", node.name, message, _REPLACE.format(name=node.name))
        if gpu.ecc_uncorrected:
            message = f"{gpu_name} has {gpu.ecc_uncorrected} uncorrected ECC errors"
            yield _error("gpu-ecc", node.name, message, _REPLACE.format(name=node.name))
    if node.error or type_ is None:
        return
    if node.gpus and len(node.gpus) != type_.accelerator_count:
        message = f"{node.name} has {len(node.gpus)} GPUs; {type_.name} has {type_.accelerator_count}"
        yield _error("gpu-count", node.name, message, _REPLACE.format(name=node.name))
    if node.efa_interfaces is not None and node.efa_interfaces != type_.efa_interfaces:
        message = f"{node.name} has {node.efa_interfaces} EFA interfaces; {type_.name} has {type_.efa_interfaces}"
        yield _error("efa-count", node.name, message, _LOOK)
    if node.clock_offset_s is not None and abs(node.clock_offset_s) > CLOCK_LIMIT_S:
        message = f"the clock of {node.name} is {node.clock_offset_s:+.3g} s off, says {node.clock_source}"
        yield _warning("clock", node.name, message, "see `chronyc sources` there")


def _slow_gpus(nodes: Sequence[NodeReport]) -> Iterator[Finding]:
    speeds = {(node.name, gpu.index): gpu.tflops for node in nodes for gpu in node.gpus if gpu.tflops}
    named = {f"GPU {index} of {name}": (name, speed) for (name, index), speed in speeds.items()}
    for gpu_name in slow({gpu_name: [speed] for gpu_name, (_, speed) in named.items()}, tolerance=GPU_TOLERANCE):
        name, speed = named[gpu_name]
        message = f"{gpu_name} multiplies with {speed:.3g} TFLOP/s, the median GPU with {median(speeds.values()):.3g}"
        yield _error("slow-gpu", name, message, _REPLACE.format(name=name))


def _slow_pairs(measurements: Measurements) -> Iterator[Finding]:
    pairs = measurements.speeds_of_pairs()
    middle = pair_bus_gb_s(measurements)
    for pair in slow_pairs(pairs):
        message = f"{' and '.join(pair)} reach {max(pairs[pair]):.3g} GB/s, the median pair {middle:.3g}"
        hint = "each is fast with others: measure again, and if it stays, ask AWS about the network between them"
        yield _warning("slow-pair", " and ".join(pair), message, hint)


def _slow_files(nodes: Sequence[NodeReport]) -> Iterator[Finding]:
    for verb, speeds in (
        ("writes", {node.name: node.write_mib_s for node in nodes if node.write_mib_s}),
        ("reads", {node.name: node.read_mib_s for node in nodes if node.read_mib_s}),
    ):
        for name in slow(speeds, tolerance=FILE_TOLERANCE):
            middle = median(max(values) for values in speeds.values())
            message = f"{name} {verb} {max(speeds[name]):.0f} MiB/s on the shared file system, the median {middle:.0f}"
            yield _warning("slow-files", name, message, "see `lfs check servers` there")


def _transport(measurements: Measurements, type_: InstanceType | None) -> Iterator[Finding]:
    used = sorted({pair.transport for pair in measurements.pairs if pair.transport})
    on_gpus = any(node.gpus for node in measurements.nodes)
    if type_ and type_.efa_interfaces and on_gpus and any(not word.startswith(EFA) for word in used):
        message = f"NCCL used {' and '.join(used)} between nodes; {type_.name} has EFA"
        yield _error("no-efa", "", message, "install aws-ofi-nccl where the job's NCCL finds it: LD_LIBRARY_PATH")


def _below_published(measurements: Measurements, instance_type: str) -> Iterator[Finding]:
    middle = pair_bus_gb_s(measurements)
    size = max((pair.size_bytes for pair in measurements.pairs), default=0)
    published = all_reduce(instance_type, nodes=2, size_bytes=size)
    if middle and published and middle < published.low_gb_s * (1 - PUBLISHED_TOLERANCE):
        message = (
            f"pairs reach {middle:.3g} GB/s, published are {published.low_gb_s:.3g} ({'; '.join(published.sources)})"
        )
        yield _warning("below-published", "", message, "compare driver, NCCL and aws-ofi-nccl with the newest image's")


_LOOK = "see results and log in the run's folder, and `podwright logs --health NODE`"
_REPLACE = "run no job there: `podwright nodes drain {name} --reason slow`, and `podwright nodes replace {name}`"


def _error(code: str, place: str, message: str, hint: str = "") -> Finding:
    return Finding(Level.ERROR, code, ("nodes", place) if place else ("nodes",), message, hint)


def _warning(code: str, place: str, message: str, hint: str = "") -> Finding:
    return Finding(Level.WARNING, code, ("nodes", place) if place else ("nodes",), message, hint)

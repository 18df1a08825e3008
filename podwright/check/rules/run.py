"""Rules that compare a training run, or another trainer's job, with the cluster.

These are the only rules with two arguments: the settings, and the run or job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from podwright.check.findings import Finding, KeyPath, error, remark, warning
from podwright.check.rules.rule import GROUPS, reads, reads_compute_groups, valid_items
from podwright.settings.cluster import InstanceGroupSection
from podwright.settings.root import Settings
from podwright_constructs.catalog import InstanceType, cluster_instance_types

if TYPE_CHECKING:
    from podwright_training.config.train_config import TrainConfig
    from podwright_training.jobs.spec import JobSpec

    Run: TypeAlias = TrainConfig | JobSpec  # The file that --run names is one of these.

_PARTITIONS = ("name", "instance_type", "count", "partition")


@reads("region")
def run_fits(settings: Settings, run: Run) -> Iterator[Finding]:
    """The run of --run does not run on the compute group's accelerators, or needs more memory than they have.

    A warning: it fits if the planner is right, but not if it is wrong by what nine of ten published runs keep to.
    On trn1 the run is checked as one of AWS's NxD Training.
    """
    # Only `check --run` needs the trainer's options; `explain` reads the line above without them.
    from podwright.planning.cluster_hardware import accelerated_types  # noqa: PLC0415 — only `--run` needs it
    from podwright_training import neuron  # noqa: PLC0415 — only `--run` needs it
    from podwright_training.config.train_config import TrainConfig  # noqa: PLC0415 — only `--run` needs it
    from podwright_training.nxdt.plan import MEMBERS as NXDT  # noqa: PLC0415 — only `--run` needs it

    if not isinstance(run, TrainConfig):
        return
    groups = settings.cluster.instance_groups
    for path, group in valid_items(settings, GROUPS, groups, "name", "role", "instance_type", "count"):
        if group.role != "compute" or group.instance_type not in accelerated_types() or group.count < 1:
            continue
        device = neuron.device_of(group.instance_type)
        if not neuron.native_problem(device):
            yield from _natively(run, settings.region, group, path)
        elif group.instance_type in NXDT:
            yield from _with_nxdt(run, group, (*path, "instance_type"))
        else:
            need = f"{group.instance_type}: native PyTorch needs {' or '.join(neuron.DEVICES)}, not {device}"
            yield error((*path, "instance_type"), need, neuron.LEGACY)


def _natively(run: TrainConfig, region: str, group: InstanceGroupSection, path: KeyPath) -> Iterator[Finding]:
    from podwright.planning.cluster_hardware import Hardware  # noqa: PLC0415 — only `--run` needs it
    from podwright.planning.trainer_run import plan_run  # noqa: PLC0415 — only `--run` needs it
    from podwright_training.config import parallel_dims  # noqa: PLC0415 — only `--run` needs it

    hardware = Hardware(instance_type=group.instance_type, nodes=group.count, region=region)
    problems = list(parallel_dims.problems(run, world_size=hardware.gpus, nodes=group.count))
    for problem in problems:
        yield error((*path, "count"), problem, "change these options of the run, or the count")
    if problems:
        return
    plan = plan_run(run, hardware)
    shares = plan.layout.data
    if run.data_streams % shares:
        streams = f"data_streams is {run.data_streams}, no multiple of the {shares} shares that {group.name} reads"
        multiple = -(-run.data_streams // shares) * shares
        yield error((*path, "count"), streams, f"set --data-streams={multiple}")
    if not plan.fits:
        yield error((*path, "instance_type"), plan.need(), plan.remedy())
    elif not plan.memory.fits_surely:
        yield warning((*path, "instance_type"), plan.tight(), plan.remedy())


def _with_nxdt(run: TrainConfig, group: InstanceGroupSection, path: KeyPath) -> Iterator[Finding]:
    from podwright.planning import nxdt  # noqa: PLC0415 — only `--run` needs it

    problems = nxdt.problems(nxdt.plan_of(run, group.instance_type, group.count))
    for problem in problems:
        yield error(path, problem, "change these options of the run: on trn1 AWS's NxD Training trains it")
    if not problems:
        how = f"podwright submit run.yaml --nodes {group.count} --launch-arguments=--backend=nxdt"
        yield remark(path, f"{group.instance_type} trains with AWS's NxD Training, which takes this run", how)


@reads_compute_groups(*_PARTITIONS)
def job_fits(settings: Settings, run: Run, partition: str | None = None) -> Iterator[Finding]:
    """The job.yaml of --run asks for more nodes or ranks than any partition has, or names other accelerators."""
    findings_by_partition = [findings for findings, _, _ in _partitions(settings, run, partition)]
    yield from min(findings_by_partition, key=len, default=[])


@reads("region")
@reads_compute_groups(*_PARTITIONS)
def job_costs(settings: Settings, run: Run) -> Iterator[Finding]:
    """The job.yaml of --run takes a time for a step and a price for its tokens, at the MFU that published runs reach.

    It needs `parameters` and `tokens_per_step` in the job's `model`. The price is EC2's on demand.
    """
    from podwright.planning.job import figures  # noqa: PLC0415 — only `--run` needs it
    from podwright_training.jobs.spec import JobSpec  # noqa: PLC0415 — only `--run` needs it

    for findings, path, group in _partitions(settings, run):
        if findings or not isinstance(run, JobSpec):
            continue
        prediction = figures(run, InstanceType.of(group.instance_type), settings.region)
        if prediction:
            hint = "`podwright fetch RUN --export` writes a report with measured values"
            yield remark(
                (*path, "instance_type"), f"the job on {run.nodes} {group.instance_type}, {prediction.text}", hint
            )
        return


def _partitions(
    settings: Settings, run: Run, partition: str | None = None
) -> Iterator[tuple[list[Finding], KeyPath, InstanceGroupSection]]:
    """Yield the resources that each partition, or the named one, lacks for a job, with its largest group."""
    from podwright_training.jobs.spec import JobSpec  # noqa: PLC0415 — only `--run` needs it

    if not isinstance(run, JobSpec):
        return
    partitions: dict[str, list[tuple[KeyPath, InstanceGroupSection]]] = defaultdict(list)
    for index, group in enumerate(settings.cluster.instance_groups):
        is_known = group.instance_type in cluster_instance_types()
        if is_known and group.role == "compute" and group.count and partition in (None, group.partition):
            partitions[group.partition or group.name].append(((*GROUPS, index), group))
    for name, groups in partitions.items():
        path, largest = max(groups, key=lambda item: item[1].count)
        yield list(_of_partition(run, name, groups)), path, largest


def _of_partition(job: JobSpec, name: str, groups: Sequence[tuple[KeyPath, InstanceGroupSection]]) -> Iterator[Finding]:
    """Yield a finding for each resource that a partition lacks for a job: nodes, ranks, accelerator."""
    from podwright_training.neuron import ranks_per_device  # noqa: PLC0415 — only `--run` needs it

    count = sum(group.count for _, group in groups)
    path, group = max(groups, key=lambda item: item[1].count)
    kind = InstanceType.of(group.instance_type)
    ranks, of = kind.accelerator_count * ranks_per_device(kind.accelerator_name), kind.accelerator_name
    if job.nodes > count:
        words = f"the job needs {job.nodes} nodes, and partition {name} has {count}"
        yield error((*path, "count"), words, "change `nodes` of the job, or the count")
    if not ranks and not job.ranks_per_node:
        words = f"{kind.name} has no accelerators to count the ranks by"
        yield error((*path, "instance_type"), words, "set `ranks_per_node` of the job")
    elif ranks and job.ranks_per_node > ranks:
        words = f"the job starts {job.ranks_per_node} ranks on a node, and {kind.name} has {of} for {ranks}"
        yield error((*path, "instance_type"), words, "lower `ranks_per_node` of the job")
    if job.model.accelerator and job.model.accelerator != of:
        words = f"the job computes MFU for {job.model.accelerator}, but {kind.name} has {of or 'no accelerator'}"
        yield error((*path, "instance_type"), words, "change `accelerator` of the job's model, or leave it out")

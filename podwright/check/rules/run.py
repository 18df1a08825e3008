"""A rule that compares a training run with the cluster, through the planner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from podwright.check.findings import Finding, error, warning
from podwright.check.rules.rule import GROUPS
from podwright.settings.root import Settings

if TYPE_CHECKING:
    from podwright_training.config.train_config import TrainConfig


def run_fits(settings: Settings, run: TrainConfig) -> Iterator[Finding]:
    """The run of --run does not run on the compute group's accelerators, or needs more memory than they have.

    A warning: it fits if the planner is right, but not if it is wrong by what nine of ten published runs keep to.
    """
    # Only `check --run` needs the trainer's options; `explain` reads the line above without them.
    from podwright.planning.hardware import Hardware, accelerated_types  # noqa: PLC0415 — only `--run` needs it
    from podwright.planning.trainer_run import plan_run  # noqa: PLC0415 — only `--run` needs it
    from podwright_training import neuron  # noqa: PLC0415 — only `--run` needs it
    from podwright_training.config import parallel_dims  # noqa: PLC0415 — only `--run` needs it

    for index, group in enumerate(settings.cluster.instance_groups):
        if group.role != "compute" or group.instance_type not in accelerated_types() or group.count < 1:
            continue
        device = neuron.device_of(group.instance_type)
        if neuron.native_problem(device):
            need = f"{group.instance_type}: native PyTorch needs {' or '.join(neuron.DEVICES)}, and this is {device}"
            yield error((*GROUPS, index, "instance_type"), need, neuron.LEGACY)
            continue
        hardware = Hardware(instance_type=group.instance_type, nodes=group.count, region=settings.region)
        problems = list(parallel_dims.problems(run, world_size=hardware.gpus, nodes=group.count))
        for problem in problems:
            yield error((*GROUPS, index, "count"), problem, "change these options of the run, or the count")
        if problems:
            continue
        plan = plan_run(run, hardware)
        shares = plan.layout.data
        if run.data_streams % shares:
            streams = f"data_streams is {run.data_streams}, no multiple of the {shares} shares that {group.name} reads"
            multiple = -(-run.data_streams // shares) * shares
            yield error((*GROUPS, index, "count"), streams, f"set --data-streams={multiple}")
        if not plan.fits:
            yield error((*GROUPS, index, "instance_type"), plan.need(), plan.remedy())
        elif not plan.memory.fits_surely:
            yield warning((*GROUPS, index, "instance_type"), plan.tight(), plan.remedy())

"""The time that a run.yaml or job.yaml takes on nodes of a type, to be held against the hours of a training plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from podwright.errors import PodwrightError
from podwright.planning.cluster_hardware import Hardware, accelerated_types
from podwright.planning.job import figures
from podwright.planning.trainer_run import plan_run
from podwright_constructs.catalog import InstanceType
from podwright_training import neuron
from podwright_training.config import parallel_dims
from podwright_training.config.train_config import TrainConfig

if TYPE_CHECKING:
    from podwright_training.jobs.spec import JobSpec

    Run: TypeAlias = TrainConfig | JobSpec


class RunHours(NamedTuple):
    """The hours of a run with its failures; None, with the reason, if it does not run or nothing predicts it."""

    hours: float | None
    problem: str = ""


def run_hours(run: Run, instance_type: str, nodes: int, region: str) -> RunHours:
    """Predict the hours of all steps of a run on nodes of a type."""
    try:
        if isinstance(run, TrainConfig):
            return _hours_of_run(run, instance_type, nodes, region)
        prediction = figures(replace(run, nodes=nodes), InstanceType.of(instance_type), region)
    except PodwrightError as error:
        return RunHours(None, str(error))
    if prediction is None or prediction.hours is None:
        return RunHours(None, "the job does not say its steps, and the FLOPs and tokens of one")
    return RunHours(prediction.hours)


def _hours_of_run(run: TrainConfig, instance_type: str, nodes: int, region: str) -> RunHours:
    if instance_type not in accelerated_types() or neuron.native_problem(neuron.device_of(instance_type)):
        return RunHours(None, f"the planner has no times of {instance_type}")
    hardware = Hardware(instance_type=instance_type, nodes=nodes, region=region)
    problems = list(parallel_dims.problems(run, world_size=hardware.gpus, nodes=nodes))
    plan = None if problems else plan_run(run, hardware)
    if plan is None or not plan.fits:
        return RunHours(None, plan.need() if plan else problems[0])
    return RunHours(plan.cost.hours) if plan.cost else RunHours(None, "nothing predicts its time")

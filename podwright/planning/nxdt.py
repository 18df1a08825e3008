"""Check a run of NxD Training where the planner is: options, heads, ranks, and the memory of a device."""

from __future__ import annotations

from pathlib import Path

from podwright.planning.layout import LayoutError
from podwright.planning.nxdt_memory import predict
from podwright_training.config.train_config import TrainConfig
from podwright_training.nxdt import memory, plan
from podwright_training.nxdt.memory import Prediction
from podwright_training.nxdt.plan import Plan
from podwright_training.run_folder import RunFolder

SHARED = Path("/fsx")  # Most clusters mount it here, and only names of folders depend on it.


def plan_of(run: TrainConfig, instance_type: str, nodes: int) -> Plan:
    """Return the plan of a run on these nodes, with NxD Training's layout where the run says nothing."""
    tensor = run.tensor_parallel if run.tensor_parallel > 1 else None
    return Plan(
        run=RunFolder(Path(run.run_dir)),
        config=run,
        instance_type=instance_type,
        nodes=nodes,
        layout=plan.layout_of(run, instance_type, nodes, key_value_copies=None, tensor=tensor),
        shared=SHARED,
        podwright=SHARED,
    )


def problems(nxdt_plan: Plan) -> list[str]:
    """Return why NxD Training, the nodes or their memory refuse a plan; none if it runs."""
    if plan_problems := list(plan.problems(nxdt_plan)):
        return plan_problems
    needed = prediction(nxdt_plan)
    return [memory.problem(nxdt_plan, needed)] if needed and not needed.fits else []


def prediction(nxdt_plan: Plan) -> Prediction | None:
    """Return the memory of a device that a plan needs; ``None`` if the planner cannot say."""
    try:
        return memory.prediction(nxdt_plan, predict(memory.description(nxdt_plan)).to_dict())
    except LayoutError:
        return None

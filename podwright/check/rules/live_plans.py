"""Rules of ``check --live`` about training plans: what they reserve, and whether a run ends before them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from podwright.check.account import Account
from podwright.check.findings import Finding, error, warning
from podwright.check.plan_hours import HINT, shortfall
from podwright.check.rules.rule import GROUPS
from podwright.settings.root import Settings

if TYPE_CHECKING:
    from podwright.check.rules.run import Run

TARGET = "hyperpod-cluster"


def training_plans(settings: Settings, account: Account) -> Iterator[Finding]:
    """A group's training plan does not exist, has ended, or does not reserve the group's nodes.

    Asked: the training plans that groups name.
    Passes: each is for HyperPod, has not ended, and reserves the groups' type and at least as many nodes.
    Fails: one does not (error), or has fewer nodes than its groups (warning).
    By hand: aws sagemaker describe-training-plan --training-plan-name ARN
    """
    nodes_by_plan: Counter[str] = Counter()
    for index, group in enumerate(settings.cluster.instance_groups):
        if not group.training_plan_arn:
            continue
        nodes_by_plan[group.training_plan_arn] += group.count
        path = (*GROUPS, index, "training_plan_arn")
        plan = account.training_plan(group.training_plan_arn)
        if problem := _problem(plan, group.instance_type):
            yield error(path, f"training_plan_arn: {problem}", "`podwright capacity` finds plans to buy")
            continue
        reserved = (plan or {}).get("TotalInstanceCount", 0)
        if reserved and nodes_by_plan[group.training_plan_arn] > reserved:
            count = nodes_by_plan[group.training_plan_arn]
            message = f"training_plan_arn: the plan reserves {reserved} nodes, its groups have {count}"
            yield warning(path, message, f"lower the count to {reserved}, or buy a larger plan: `podwright capacity`")


def _problem(plan: Mapping[str, Any] | None, instance_type: str) -> str:
    """Return why a group of a type cannot use a plan; empty if it can."""
    if plan is None:
        return "there is no such plan in this account and region"
    if plan["Status"] in {"Expired", "Failed"}:
        return f"the plan is {plan['Status']}"
    types = sorted({part["InstanceType"] for part in plan.get("ReservedCapacitySummaries", ())})
    if types and instance_type not in types:
        return f"the plan reserves {' and '.join(types)}, the group has {instance_type}"
    if TARGET not in plan.get("TargetResources", [TARGET]):
        return f"the plan is for {', '.join(plan['TargetResources'])}, not for {TARGET}"
    return ""


def run_within_plan(settings: Settings, account: Account, run: Run) -> Iterator[Finding]:
    """The run of --run takes longer than what is left of its nodes' training plan.

    Asked: the training plans that compute groups name.
    Passes: the planner's time of the run, with its failures, is within the hours left, or nothing predicts the time.
    Fails: the run takes longer (warning). When the plan ends, AWS takes the nodes back; the
    run can continue from its newest checkpoint on other nodes.
    By hand: aws sagemaker describe-training-plan --training-plan-name ARN --query EndTime, and `podwright plan --run`
    """
    from podwright.planning.run_hours import run_hours  # noqa: PLC0415 — only `--run` needs it

    for index, group in enumerate(settings.cluster.instance_groups):
        if not group.training_plan_arn or group.role != "compute" or not group.count:
            continue
        hours = run_hours(run, group.instance_type, group.count, settings.region).hours
        plan = account.training_plan(group.training_plan_arn)
        if hours and plan and (message := shortfall(plan, hours)):
            yield warning((*GROUPS, index, "training_plan_arn"), message, HINT)

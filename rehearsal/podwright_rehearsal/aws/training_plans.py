"""SageMaker's training plans: offerings, plans, and what a cluster may use one for.

An offering is whatever was searched for, at no fee: the stand-in always has capacity.
https://docs.aws.amazon.com/sagemaker/latest/dg/reserve-capacity-with-training-plans.html
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from podwright_rehearsal.aws import clock, service_model
from podwright_rehearsal.aws.account import Account
from podwright_rehearsal.aws.aws_errors import AwsError

TARGET = "hyperpod-cluster"
HOUR_S = 3600


@dataclass(frozen=True)
class Offering:
    """Capacity that can be reserved."""

    offering_id: str
    instance_type: str
    instance_count: int
    start_at: float
    duration_hours: int
    target_resources: tuple[str, ...]

    @property
    def end_at(self) -> float:
        """Seconds since the epoch."""
        return self.start_at + self.duration_hours * HOUR_S

    def described(self) -> dict[str, Any]:
        """Return the members that an offering and a plan have in common."""
        return {
            "DurationHours": self.duration_hours,
            "DurationMinutes": 0,
            "UpfrontFee": "0.00",
            "CurrencyCode": "USD",
            "TargetResources": list(self.target_resources),
        }


class TrainingPlans:
    """The service. Not thread-safe: the server calls it under its lock.

    Args:
        account: for the plans' ARNs.
    """

    def __init__(self, *, account: Account) -> None:
        self._account = account
        self._offerings: dict[str, Offering] = {}
        self._plans: dict[str, Offering] = {}  # The reserved capacity, by the plan's ARN.
        handlers = {
            "SearchTrainingPlanOfferings": self.search_training_plan_offerings,
            "CreateTrainingPlan": self.create_training_plan,
            "DescribeTrainingPlan": self.describe_training_plan,
        }
        self.operations = {name: service_model.validated(name, handle) for name, handle in handlers.items()}

    def search_training_plan_offerings(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """SearchTrainingPlanOfferings: one offering, of instances."""
        offering = Offering(
            offering_id=f"tpo-{secrets.token_hex(8)}",
            instance_type=request.get("InstanceType", "ml.p5.48xlarge"),
            instance_count=request.get("InstanceCount", 1),
            start_at=max(clock.now(), request.get("StartTimeAfter", 0)),
            duration_hours=request.get("DurationHours", 24),
            target_resources=tuple(request.get("TargetResources") or [TARGET]),
        )
        self._offerings[offering.offering_id] = offering
        capacity = {
            "InstanceType": offering.instance_type,
            "InstanceCount": offering.instance_count,
            "DurationHours": offering.duration_hours,
            "StartTime": offering.start_at,
            "EndTime": offering.end_at,
        }
        answer = {
            "TrainingPlanOfferingId": offering.offering_id,
            "ReservedCapacityOfferings": [capacity],
            **offering.described(),
        }
        return {"TrainingPlanOfferings": [answer]}

    def create_training_plan(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """CreateTrainingPlan: reserve an offering."""
        offering = self._offerings.get(request["TrainingPlanOfferingId"])
        if offering is None:
            raise AwsError("ResourceNotFound", f"No training plan offering {request['TrainingPlanOfferingId']}")
        arn = self._arn(request["TrainingPlanName"])
        if arn in self._plans:
            raise AwsError("ResourceInUse", f"Training plan {request['TrainingPlanName']} already exists")
        self._plans[arn] = offering
        return {"TrainingPlanArn": arn}

    def describe_training_plan(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """DescribeTrainingPlan, by name or ARN."""
        arn = self._arn(request["TrainingPlanName"])
        plan = self._plans.get(arn)
        if plan is None:
            raise AwsError("ResourceNotFound", f"Training plan {request['TrainingPlanName']} not found")
        return {
            "TrainingPlanArn": arn,
            "TrainingPlanName": arn.rpartition("/")[2],
            "Status": _status(plan),
            "StartTime": plan.start_at,
            "EndTime": plan.end_at,
            "TotalInstanceCount": plan.instance_count,
            **plan.described(),
        }

    def problems(self, model: Mapping[str, Any]) -> Iterator[str]:
        """Yield the instance groups of a cluster that cannot use their training plans.

        https://docs.aws.amazon.com/sagemaker/latest/dg/training-plan-utilization-for-hyperpod.html
        """
        for group in model.get("InstanceGroups") or []:
            arn = group.get("TrainingPlanArn")
            if arn is None:
                continue
            plan = self._plans.get(arn)
            if plan is None:
                yield f"TrainingPlanArn {arn} of {group['InstanceGroupName']} does not exist"
            elif plan.instance_type != group.get("InstanceType"):
                yield f"Training plan {arn} of {group['InstanceGroupName']} reserves {plan.instance_type}"
            elif TARGET not in plan.target_resources:
                yield f"Training plan {arn} of {group['InstanceGroupName']} is not for {TARGET}"

    def _arn(self, name_or_arn: str) -> str:
        return (
            name_or_arn
            if name_or_arn.startswith("arn:")
            else self._account.arn("sagemaker", f"training-plan/{name_or_arn}")
        )


def _status(plan: Offering) -> str:
    now = clock.now()
    return "Scheduled" if now < plan.start_at else "Active" if now < plan.end_at else "Expired"

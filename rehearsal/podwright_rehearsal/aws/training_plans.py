"""SageMaker's training plans: offerings, plans, extensions, and what a cluster may use a plan for.

An offering is whatever was searched for, in one zone and at a made-up fee: the stand-in always has capacity, except of
nodes of an UltraServer, which are found as UltraServers alone. The answers have the members of AWS's sample answers.
https://docs.aws.amazon.com/sagemaker/latest/dg/reserve-capacity-with-training-plans.html
https://docs.aws.amazon.com/sagemaker/latest/dg/search-extension-offerings-api-cli-sdk.html
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from podwright_rehearsal.aws import clock, service_model
from podwright_rehearsal.aws.account import Account
from podwright_rehearsal.aws.aws_errors import AwsError

TARGET = "hyperpod-cluster"
HOUR_S = 3600
DAY_H = 24
USD_PER_NODE_HOUR = 20.0
# Nodes of each UltraServer: https://docs.aws.amazon.com/eks/latest/userguide/ml-eks-nvidia-ultraserver.html
ULTRASERVER_TYPE = "ml.p6e-gb200.36xlarge"
ULTRASERVER_NODES = {"ml.u-p6e-gb200x36": 9, "ml.u-p6e-gb200x72": 18}


@dataclass(frozen=True)
class Offering:
    """Capacity that can be reserved."""

    offering_id: str
    instance_type: str
    instance_count: int
    start_at: float
    duration_hours: int
    target_resources: tuple[str, ...]
    availability_zone: str
    availability_zone_id: str
    ultraserver_type: str = ""

    @property
    def end_at(self) -> float:
        """Seconds since the epoch."""
        return self.start_at + self.duration_hours * HOUR_S

    def described(self) -> dict[str, Any]:
        """Return the members that an offering and a plan have in common."""
        return {**self.price(self.duration_hours), "DurationMinutes": 0, "TargetResources": list(self.target_resources)}

    def price(self, hours: int) -> dict[str, Any]:
        """Return the fee for hours of this capacity."""
        usd = f"{hours * self.instance_count * USD_PER_NODE_HOUR:.2f}"
        return {"DurationHours": hours, "UpfrontFee": usd, "CurrencyCode": "USD"}

    def capacity(self) -> dict[str, Any]:
        """Return the members that the reserved capacity of an offering and of a plan have in common."""
        kind: dict[str, Any] = {"ReservedCapacityType": "Instance"}
        if self.ultraserver_type:
            count = self.instance_count // ULTRASERVER_NODES[self.ultraserver_type]
            kind = {
                "ReservedCapacityType": "UltraServer",
                "UltraServerType": self.ultraserver_type,
                "UltraServerCount": count,
            }
        return {
            **kind,
            "InstanceType": self.instance_type,
            "AvailabilityZone": self.availability_zone,
            "DurationHours": self.duration_hours,
            "DurationMinutes": 0,
            "StartTime": self.start_at,
            "EndTime": self.end_at,
        }


@dataclass(frozen=True)
class Extension:
    """Time that can be added to a plan, or was."""

    extension_id: str
    plan_arn: str
    start_at: float
    hours: int


class TrainingPlans:
    """The service. Not thread-safe: the server calls it under its lock.

    Args:
        account: for the plans' ARNs, and the region's zones.
    """

    def __init__(self, *, account: Account) -> None:
        self._account = account
        self._offerings: dict[str, Offering] = {}
        self._plans: dict[str, Offering] = {}  # The reserved capacity, by the plan's ARN.
        self._extensions: dict[str, Extension] = {}
        handlers = {
            "SearchTrainingPlanOfferings": self.search_training_plan_offerings,
            "CreateTrainingPlan": self.create_training_plan,
            "DescribeTrainingPlan": self.describe_training_plan,
            "ExtendTrainingPlan": self.extend_training_plan,
        }
        self.operations = {name: service_model.validated(name, handle) for name, handle in handlers.items()}

    def search_training_plan_offerings(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """SearchTrainingPlanOfferings: one offering of instances or UltraServers, or one extension of a plan."""
        if "TrainingPlanArn" in request:
            return {"TrainingPlanOfferings": [], "TrainingPlanExtensionOfferings": [self._extension(request)]}
        instance_type = request.get("InstanceType", "ml.p5.48xlarge")
        count, ultraserver = request.get("InstanceCount", 1), request.get("UltraServerType", "")
        if ultraserver in ULTRASERVER_NODES:
            instance_type = ULTRASERVER_TYPE
            count = request.get("UltraServerCount", 1) * ULTRASERVER_NODES[ultraserver]
        elif ultraserver or instance_type == ULTRASERVER_TYPE:
            return {"TrainingPlanOfferings": []}
        zone_name, zone_id = self._account.zones()[0]
        offering = Offering(
            offering_id=f"tpo-{secrets.token_hex(8)}",
            instance_type=instance_type,
            instance_count=count,
            start_at=max(clock.now(), request.get("StartTimeAfter", 0)),
            duration_hours=request.get("DurationHours", DAY_H),
            target_resources=tuple(request.get("TargetResources") or [TARGET]),
            availability_zone=zone_name,
            availability_zone_id=zone_id,
            ultraserver_type=ultraserver,
        )
        if offering.end_at > request.get("EndTimeBefore", offering.end_at):
            return {"TrainingPlanOfferings": []}
        self._offerings[offering.offering_id] = offering
        answer = {
            "TrainingPlanOfferingId": offering.offering_id,
            "ReservedCapacityOfferings": [{**offering.capacity(), "InstanceCount": count}],
            **offering.described(),
        }
        return {"TrainingPlanOfferings": [answer]}

    def _extension(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return an extension offering of whole days, from the plan's end on.

        Raises:
            AwsError: there is no such plan, or it has ended.
        """
        arn = request["TrainingPlanArn"]
        plan = self._plan(arn)
        if _status(plan) == "Expired":
            raise AwsError("ValidationException", f"Training plan {arn} is Expired, not Active or Scheduled")
        hours = -(-request.get("DurationHours", DAY_H) // DAY_H) * DAY_H
        extension = Extension(f"tpeo-{secrets.token_hex(8)}", arn, plan.end_at, hours)
        self._extensions[extension.extension_id] = extension
        return {**self._dates(extension), "AvailabilityZone": plan.availability_zone, **plan.price(hours)}

    def _dates(self, extension: Extension) -> dict[str, Any]:
        return {
            "TrainingPlanExtensionOfferingId": extension.extension_id,
            "StartDate": extension.start_at,
            "EndDate": extension.start_at + extension.hours * HOUR_S,
        }

    def extend_training_plan(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """ExtendTrainingPlan: the plan ends later by the extension."""
        extension = self._extensions.pop(request["TrainingPlanExtensionOfferingId"], None)
        if extension is None:
            offering_id = request["TrainingPlanExtensionOfferingId"]
            raise AwsError("ResourceNotFound", f"No training plan extension offering {offering_id}")
        plan = self._plan(extension.plan_arn)
        self._plans[extension.plan_arn] = replace(plan, duration_hours=plan.duration_hours + extension.hours)
        return {
            "TrainingPlanExtensions": [{**self._dates(extension), "Status": "Scheduled", "ExtendedAt": clock.now()}]
        }

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
        plan = self._plan(arn)
        summary = {
            **plan.capacity(),
            "ReservedCapacityArn": self._account.arn("sagemaker", f"reserved-capacity/{plan.offering_id}"),
            "TotalInstanceCount": plan.instance_count,
            "AvailabilityZoneId": plan.availability_zone_id,
            "Status": _status(plan),
        }
        return {
            "TrainingPlanArn": arn,
            "TrainingPlanName": arn.rpartition("/")[2],
            "Status": _status(plan),
            "StartTime": plan.start_at,
            "EndTime": plan.end_at,
            "TotalInstanceCount": plan.instance_count,
            "ReservedCapacitySummaries": [summary],
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

    def _plan(self, name_or_arn: str) -> Offering:
        """Return the capacity of a plan.

        Raises:
            AwsError: there is no such plan.
        """
        plan = self._plans.get(self._arn(name_or_arn))
        if plan is None:
            raise AwsError("ResourceNotFound", f"Training plan {name_or_arn} not found")
        return plan

    def _arn(self, name_or_arn: str) -> str:
        return (
            name_or_arn
            if name_or_arn.startswith("arn:")
            else self._account.arn("sagemaker", f"training-plan/{name_or_arn}")
        )


def _status(plan: Offering) -> str:
    now = clock.now()
    return "Scheduled" if now < plan.start_at else "Active" if now < plan.end_at else "Expired"

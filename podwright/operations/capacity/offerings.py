"""Search SageMaker for training plans and extensions that can be bought; nothing here buys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from podwright.aws_session import Session
from podwright.errors import OperationError

TARGET = "hyperpod-cluster"
# GB200 nodes are sold as whole UltraServers: https://docs.aws.amazon.com/eks/latest/userguide/ml-eks-nvidia-ultraserver.html
ULTRASERVERS = {"ml.p6e-gb200.36xlarge": {"ml.u-p6e-gb200x72": 18, "ml.u-p6e-gb200x36": 9}}


@dataclass(frozen=True)
class Criteria:
    """The nodes and hours to search for in one region."""

    instance_type: str
    nodes: int
    hours: int
    starts_after: datetime | None = None
    ends_before: datetime | None = None

    def requests(self) -> Iterator[dict[str, Any]]:
        """Yield the arguments of each search; there is none if the nodes fill no UltraServer of the type."""
        times = {"StartTimeAfter": self.starts_after, "EndTimeBefore": self.ends_before}
        common = {"DurationHours": self.hours, "TargetResources": [TARGET], **{k: v for k, v in times.items() if v}}
        if self.instance_type not in ULTRASERVERS:
            yield {**common, "InstanceType": self.instance_type, "InstanceCount": self.nodes}
            return
        for ultraserver, nodes in ULTRASERVERS[self.instance_type].items():
            if self.nodes % nodes == 0:
                yield {**common, "UltraServerType": ultraserver, "UltraServerCount": self.nodes // nodes}


@dataclass(frozen=True)
class Offering:
    """A training plan that can be bought."""

    id: str
    region: str
    zones: tuple[str, ...]
    zone_ids: tuple[str, ...]
    instance_type: str
    nodes: int
    ultraserver_type: str | None
    starts_at: datetime | None
    ends_at: datetime | None
    hours: float
    upfront_fee: float | None
    currency: str

    @property
    def fee_per_node_hour(self) -> float | None:
        """The fee of one node for an hour."""
        return None if self.upfront_fee is None or not self.hours else self.upfront_fee / self.nodes / self.hours


@dataclass(frozen=True)
class Extension:
    """Time that can be added to a plan."""

    id: str
    region: str
    training_plan_arn: str
    starts_at: datetime | None
    ends_at: datetime | None
    hours: float
    upfront_fee: float | None
    currency: str


def search(session: Session, criteria: Criteria) -> Iterator[Offering]:
    """Yield the offerings in the session's region.

    Raises:
        AwsError: AWS refuses or does not answer; needs ``sagemaker:SearchTrainingPlanOfferings``.
    """
    zone_ids: Mapping[str, str] = {}
    for request in criteria.requests():
        answer = session.call("sagemaker", "search_training_plan_offerings", **request)
        for described in answer.get("TrainingPlanOfferings", ()):
            zone_ids = zone_ids or _zone_ids(session)
            yield _offering(described, session.region, criteria, zone_ids)


def extensions(session: Session, training_plan_arn: str, hours: int) -> Iterator[Extension]:
    """Yield the extensions of a plan that has not ended; AWS rounds the hours up to whole days.

    https://docs.aws.amazon.com/sagemaker/latest/dg/search-extension-offerings-api-cli-sdk.html

    Raises:
        AwsError: AWS refuses or does not answer; needs ``sagemaker:SearchTrainingPlanOfferings``.
    """
    arguments = {"TrainingPlanArn": training_plan_arn, "DurationHours": hours}
    answer = session.call("sagemaker", "search_training_plan_offerings", **arguments)
    for described in answer.get("TrainingPlanExtensionOfferings", ()):
        yield Extension(
            id=described["TrainingPlanExtensionOfferingId"],
            region=session.region,
            training_plan_arn=training_plan_arn,
            starts_at=described.get("StartDate"),
            ends_at=described.get("EndDate"),
            hours=described.get("DurationHours", 0),
            upfront_fee=_fee(described),
            currency=described.get("CurrencyCode", "USD"),
        )


def _offering(described: Mapping[str, Any], region: str, criteria: Criteria, zone_ids: Mapping[str, str]) -> Offering:
    parts: Sequence[Mapping[str, Any]] = described.get("ReservedCapacityOfferings", ())
    zones = tuple(dict.fromkeys(part["AvailabilityZone"] for part in parts if "AvailabilityZone" in part))
    first_part: Mapping[str, Any] = parts[0] if parts else {}
    return Offering(
        id=described["TrainingPlanOfferingId"],
        region=region,
        zones=zones,
        zone_ids=tuple(zone_ids[zone] for zone in zones if zone in zone_ids),
        instance_type=first_part.get("InstanceType", criteria.instance_type),
        nodes=first_part.get("InstanceCount", criteria.nodes),
        ultraserver_type=first_part.get("UltraServerType"),
        starts_at=min((part["StartTime"] for part in parts if "StartTime" in part), default=None),
        ends_at=max((part["EndTime"] for part in parts if "EndTime" in part), default=None),
        hours=described.get("DurationHours", criteria.hours) + described.get("DurationMinutes", 0) / 60,
        upfront_fee=_fee(described),
        currency=described.get("CurrencyCode", "USD"),
    )


def _fee(described: Mapping[str, Any]) -> float | None:
    """Return the fee, which AWS writes as text; None if it is no number."""
    try:
        return float(described["UpfrontFee"])
    except (KeyError, ValueError):
        return None


def _zone_ids(session: Session) -> dict[str, str]:
    """Return the ids of the region's zones by their names, which differ between accounts; none if AWS denies it."""
    try:
        zones = session.call("ec2", "describe_availability_zones")["AvailabilityZones"]
    except OperationError:
        return {}
    return {zone["ZoneName"]: zone["ZoneId"] for zone in zones if "ZoneId" in zone}

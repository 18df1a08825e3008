"""A metric of CloudWatch, for alarms of your own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from constructs import Construct

from podwright_constructs.aws.cloudwatch_metric_alarm import CloudwatchMetricAlarm


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number that AWS publishes, such as a file system's free capacity.

    Args:
        namespace: such as AWS/FSx.
        name: such as FreeDataStorageCapacity.
        dimensions: of what it is.
        statistic: over a period.
        period_s: Seconds of a period.
    """

    namespace: str
    name: str
    dimensions: Mapping[str, str]
    statistic: Literal["Average", "Maximum", "Minimum", "Sum"] = "Average"
    period_s: int = 300

    def alarm(
        self,
        scope: Construct,
        id_: str,
        *,
        name: str,
        comparison: Literal["GreaterThanThreshold", "LessThanThreshold"],
        threshold: float,
        periods: int = 1,
        topic_arns: Sequence[str] = (),
    ) -> CloudwatchMetricAlarm:
        """Return an alarm that notifies topics when the metric is beyond a threshold."""
        return CloudwatchMetricAlarm(
            scope,
            id_,
            alarm_name=name,
            namespace=self.namespace,
            metric_name=self.name,
            dimensions=self.dimensions,
            statistic=self.statistic,
            period=self.period_s,
            comparison_operator=comparison,
            threshold=threshold,
            evaluation_periods=periods,
            alarm_actions=list(topic_arns),
        )

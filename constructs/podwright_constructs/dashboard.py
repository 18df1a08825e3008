"""One page of graphs of a cluster in CloudWatch."""

from __future__ import annotations

from typing import Any

from constructs import Construct

from podwright_constructs.aws.cloudwatch_dashboard import CloudwatchDashboard
from podwright_constructs.aws.data_region import DataRegion
from podwright_constructs.construct import CheckedConstruct
from podwright_constructs.kit import Fn

WIDTH = 24  # CloudWatch's grid has 24 columns.
HEIGHT = 6
LOG_LINES = 50
LOG_HEIGHT = 9


class ClusterDashboard(CheckedConstruct):
    """A dashboard of the nodes' latest complaints and the file system's load.

    https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/CloudWatch-Dashboard-Body-Structure.html
    https://docs.aws.amazon.com/fsx/latest/LustreGuide/fs-metrics.html

    ``log_group`` is the cluster's; ``file_system_id`` is the FSx for Lustre's.
    """

    def __init__(self, scope: Construct, id_: str, *, name: str, log_group: str, file_system_id: str) -> None:
        super().__init__(scope, id_)
        self._region = DataRegion(self, "region").id
        graphs = {
            "Bytes read and written each minute": (["DataReadBytes", "DataWriteBytes"], "Sum"),
            "Metadata operations each minute": (["MetadataOperations"], "Sum"),
            "Free capacity in bytes": (["FreeDataStorageCapacity"], "Sum"),
        }
        width = WIDTH // len(graphs)
        widgets = [
            _widget("metric", self._lustre(title, *metrics, file_system_id), x=column * width, y=0, width=width)
            for column, (title, metrics) in enumerate(graphs.items())
        ]
        widgets.append(_widget("log", self._complaints(log_group), x=0, y=HEIGHT, width=WIDTH, height=LOG_HEIGHT))
        body = Fn.jsonencode({"widgets": widgets})
        self.dashboard = CloudwatchDashboard(self, "dashboard", dashboard_name=name, dashboard_body=body)
        self.name = self.dashboard.dashboard_name

    def _lustre(self, title: str, metrics: list[str], statistic: str, file_system_id: str) -> dict[str, Any]:
        series = [["AWS/FSx", metric, "FileSystemId", file_system_id] for metric in metrics]
        return {"title": title, "region": self._region, "metrics": series, "stat": statistic, "period": 60}

    def _complaints(self, log_group: str) -> dict[str, Any]:
        query = (
            f"SOURCE '{log_group}' | fields @timestamp, @logStream, @message "
            f"| filter @message like /(?i)error|failed/ | sort @timestamp desc | limit {LOG_LINES}"
        )
        return {"title": "What nodes complained of", "region": self._region, "query": query, "view": "table"}


def _widget(
    kind: str, properties: dict[str, Any], *, x: int, y: int, width: int, height: int = HEIGHT
) -> dict[str, Any]:
    return {"type": kind, "x": x, "y": y, "width": width, "height": height, "properties": properties}

"""Amazon Managed Service for Prometheus: an existing or a new workspace for the nodes' metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from constructs import Construct

from podwright_constructs import checks
from podwright_constructs.aws.prometheus_workspace import PrometheusWorkspace as Workspace
from podwright_constructs.construct import CheckedConstruct
from podwright_constructs.grants import Grantee
from podwright_constructs.problems import refuse


class Prometheus(Protocol):
    """The attributes of a workspace that roles and collectors need."""

    @property
    def arn(self) -> str:
        """Its ARN: the role may write to it."""

    @property
    def remote_write_url(self) -> str:
        """The URL that collectors send to, signed with the role's credentials."""


@dataclass(frozen=True, kw_only=True)
class ExistingPrometheus:
    """A workspace you have.

    Raises:
        InvalidArgumentsError: ARN or URL are malformed; all problems are in it.
    """

    arn: str
    remote_write_url: str

    def __post_init__(self) -> None:
        refuse(self, checks.existing_prometheus(arn=self.arn, remote_write_url=self.remote_write_url))


class PrometheusWorkspace(CheckedConstruct):
    """A new workspace.

    https://docs.aws.amazon.com/prometheus/latest/userguide/AMP-onboard-ingest-metrics.html
    """

    def __init__(self, scope: Construct, id_: str, *, name: str, key_arn: str | None = None) -> None:
        refuse(self, checks.prometheus_workspace(key_arn=key_arn))
        super().__init__(scope, id_)
        self.workspace = Workspace(self, "workspace", kms_key_arn=key_arn, tags={"Name": name})
        self.arn = self.workspace.arn
        self.remote_write_url = f"{self.workspace.prometheus_endpoint}api/v1/remote_write"

    @staticmethod
    def from_arn(arn: str, *, remote_write_url: str) -> ExistingPrometheus:
        """Return a workspace you have.

        Raises:
            InvalidArgumentsError: ARN or URL are malformed; all problems are in it.
        """
        return ExistingPrometheus(arn=arn, remote_write_url=remote_write_url)

    def grant_remote_write(self, role: Grantee) -> None:
        """Let a role send metrics to the workspace."""
        role.add_statement({"actions": ["aps:RemoteWrite"], "resources": [self.arn]})

    def grant_query(self, role: Grantee) -> None:
        """Let a role read the workspace's metrics."""
        actions = ["aps:GetLabels", "aps:GetMetricMetadata", "aps:GetSeries", "aps:QueryMetrics"]
        role.add_statement({"actions": actions, "resources": [self.arn]})

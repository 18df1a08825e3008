"""The instance's metadata, which gives programs on the node the rights of its role."""

from __future__ import annotations

from typing import Iterator, List

from podwright_bootstrap.aws import instance_metadata
from podwright_bootstrap.contract import COMPUTE
from podwright_bootstrap.host import waits
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.node import Node
from podwright_bootstrap.steps import Step

LIMIT_S = 60


class MetadataStep(Step):
    """The metadata service answers, knows the instance by the service's name for it and has credentials of its role."""

    name = "metadata"
    audience = "compute nodes that fetch the training program"
    hint = "has the instance group an execution role, and is the node's metadata service reachable (169.254.169.254)?"
    time_limit_s = 120
    degraded_feature = "a check of its credentials: the next step that needs them fails if they are missing"

    def applies(self, node: Node) -> bool:
        """Run where a later step uses S3, unless the metadata service is switched off."""
        return node.role == COMPUTE and node.environment is not None and not instance_metadata.is_disabled()

    def apply(self, node: Node) -> Iterator[str]:
        """Do nothing: this step only checks."""
        return iter(())

    def verify(self, node: Node) -> None:
        """Wait for the role, then compare instance and region; another region would ask another bucket."""
        waits.wait_until(
            lambda: bool(instance_metadata.read("iam/security-credentials/")),
            event="the instance's metadata to name a role",
            limit_s=LIMIT_S,
            hint=self.hint,
        )
        expected = {"instance-id": node.instance_id, "placement/region": node.parameters.region}
        problems: List[str] = []
        for path, value in expected.items():
            reported = instance_metadata.read(path)
            if value and reported and reported != value:
                problems.append(f"{path} is {reported} in the metadata, {value} in the service's configuration")
        if problems:
            raise BootstrapError(
                "; ".join(problems), hint="deploy the cluster stack again; if it stays, ask AWS support"
            )

"""Write node.json: the node's facts that jobs rely on."""

from __future__ import annotations

from typing import Iterator

from podwright_bootstrap import contract
from podwright_bootstrap.contract import NodeRecord
from podwright_bootstrap.host import files
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.node import Node
from podwright_bootstrap.steps import Step


class RecordStep(Step):
    """The node's record has its identity and facts for jobs."""

    name = "node_record"
    required_because = "jobs and their prolog read the record that it writes"
    hint = f"look at {contract.STATE_DIRECTORY} and the space left on its disk (df -h)"
    time_limit_s = 300

    def apply(self, node: Node) -> Iterator[str]:
        """Write the record."""
        if files.write_file(contract.NODE_JSON, record_of(node).to_json()):
            yield f"wrote {contract.NODE_JSON}"

    def verify(self, node: Node) -> None:
        """Check that the file reads back with the expected content."""
        if contract.record_of_this_node() != record_of(node):
            raise BootstrapError(f"{contract.NODE_JSON} does not describe this node")


def record_of(node: Node) -> NodeRecord:
    """The node in the words of the contract."""
    parameters = node.parameters
    return NodeRecord(
        cluster_name=parameters.cluster_name,
        cluster_arn=node.cluster_arn,
        hostname=node.hostname,
        instance_id=node.instance_id,
        instance_group=node.instance_group,
        instance_type=node.instance_type,
        role=node.role,
        partition=node.partition,
        accelerator=node.facts.accelerator,
        accelerators_per_node=node.facts.accelerators_per_node,
        accelerator_name=node.facts.accelerator_name,
        efa_interfaces=node.facts.efa_interfaces,
        shared_root=str(node.mount_path) if node.has_shared else "",
        environment=str(node.environment) if node.environment else None,
        wheel_sha256=parameters.training.wheel_sha256 if parameters.training else None,
        partitions={
            group.partition_name: parameters.facts_of(group.instance_group_name) for group in parameters.worker_groups
        },
    )

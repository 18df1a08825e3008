"""What the settings want of the nodes, in the contract's words."""

from __future__ import annotations

from podwright.settings.nodes import Nodes
from podwright_bootstrap.features import NodeSettings


def node_settings(wanted: Nodes) -> NodeSettings:
    """Settings and contract call a feature and what it takes by the same names."""
    return NodeSettings.from_dict(wanted.model_dump(exclude_none=True))

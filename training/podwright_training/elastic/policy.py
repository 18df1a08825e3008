"""Decide how many nodes an elastic run may have, and how long it waits for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from podwright_training.config import parallel_dims
from podwright_training.config.parallel_dims import ParallelDims
from podwright_training.config.train_config import TrainConfig
from podwright_training.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Sizes and waits that the leader of an elastic run uses.

    Attributes:
        sizes: Numbers of nodes that divide model and data, in ascending order.
        ranks_per_node: Ranks on each of them.
        elastic_wait_s: Longest wait for a node in a lost one's place.
        nodes_timeout_s: Longest wait for the smallest size.
        heartbeat_timeout_s: Longest silence of a host.
    """

    sizes: tuple[int, ...]
    ranks_per_node: int
    elastic_wait_s: float
    nodes_timeout_s: float
    heartbeat_timeout_s: float

    @classmethod
    def of(cls, config: TrainConfig, *, ranks_per_node: int) -> Policy:
        """Return the policy that a configuration describes.

        Raises:
            ConfigError: The run cannot train on its fewest or its most nodes.
        """
        if config.min_nodes is None:
            raise ConfigError(["min_nodes is not set: the fewest nodes that the run trains on"])
        fewest_nodes, most_nodes = config.min_nodes, config.max_nodes or config.min_nodes
        if problems := list(_problems(config, ranks_per_node, {"min_nodes": fewest_nodes, "max_nodes": most_nodes})):
            raise ConfigError(problems)
        return cls(
            sizes=tuple(
                nodes
                for nodes in range(fewest_nodes, most_nodes + 1)
                if not any(problems_on(config, nodes, ranks_per_node))
            ),
            ranks_per_node=ranks_per_node,
            elastic_wait_s=config.elastic_wait_s,
            nodes_timeout_s=config.nodes_timeout_s,
            heartbeat_timeout_s=config.heartbeat_timeout_s,
        )

    def fitting(self, nodes: int) -> int:
        """Return the largest size that so many nodes allow; 0 if they are too few."""
        return max((size for size in self.sizes if size <= nodes), default=0)


def problems_on(config: TrainConfig, nodes: int, ranks_per_node: int) -> Iterator[str]:
    """Yield why the run cannot train on so many nodes: they hold no whole copies of the model, or share no batch."""
    world_size = nodes * ranks_per_node
    layout_problems = list(parallel_dims.problems(config, world_size=world_size, nodes=nodes))
    yield from layout_problems
    if not layout_problems:
        dims = ParallelDims.of(config, world_size=world_size, nodes=nodes)
        yield from parallel_dims.problems_of_data(config, dims.data_size)


def _problems(config: TrainConfig, ranks_per_node: int, bounds: dict[str, int]) -> Iterator[str]:
    for name, nodes in bounds.items():
        for problem in problems_on(config, nodes, ranks_per_node):
            yield f"{name} {nodes} x {ranks_per_node} ranks: {problem}"

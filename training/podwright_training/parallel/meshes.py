"""Build device meshes over the same ranks in the same order, one per kind of weight."""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from podwright_training.config.parallel_dims import ParallelDims


@dataclass(frozen=True)
class Meshes:
    """Meshes of the job's ranks; a pipeline stage has one of each.

    Attributes:
        ranks: every parallel dimension but experts.
        matrices: ``replicate``, ``shard``, ``tensor``: matrices of a block, divided by tensor parallelism.
        data_parallel: ``replicate``, ``shard``: embedding, head, router, which each rank has whole for its own tokens.
        experts: ``replicate``, ``shard``, ``expert``: experts, each rank of ``expert`` holding others.
    """

    ranks: DeviceMesh
    matrices: DeviceMesh
    data_parallel: DeviceMesh
    experts: DeviceMesh

    @classmethod
    def of(cls, dims: ParallelDims, device_type: str) -> Meshes:
        """Build the meshes; called by all ranks of the job."""
        shards = dims.shards * dims.context
        every = shards * dims.tensor

        def mesh(**sizes: int) -> DeviceMesh:
            return init_device_mesh(device_type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))

        outer = {"pipeline": dims.pipeline, "replicate": dims.replicas}
        return cls(
            ranks=mesh(**outer, shard=dims.shards, context=dims.context, tensor=dims.tensor),
            matrices=mesh(**outer, shard=shards, tensor=dims.tensor),
            data_parallel=mesh(**outer, shard=every),
            experts=mesh(**outer, shard=every // dims.expert, expert=dims.expert),
        )


def sharding(mesh: DeviceMesh) -> DeviceMesh:
    """Return the mesh dimensions for FSDP: with replicas only if there are any."""
    return mesh["replicate", "shard"] if mesh["replicate"].size() > 1 else mesh["shard"]

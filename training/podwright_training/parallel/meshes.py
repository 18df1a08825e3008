"""The ranks of a job as meshes: the same ranks in the same order, with the dimensions each kind of weight needs."""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from podwright_training.config.parallel_dims import ParallelDims


@dataclass(frozen=True)
class Meshes:
    """Views of the job's ranks; a stage of the pipeline has one of each.

    Attributes:
        ranks: every parallel dimension but experts.
        matrices: ``replicate``, ``shard``, ``tensor``: matrices of a block, divided by tensor parallelism.
        whole: ``replicate``, ``shard``: what each rank applies whole to its own tokens: embedding, head, router.
        experts: ``replicate``, ``shard``, ``expert``: experts, each rank of ``expert`` holding others.
    """

    ranks: DeviceMesh
    matrices: DeviceMesh
    whole: DeviceMesh
    experts: DeviceMesh

    @classmethod
    def of(cls, dims: ParallelDims, device_type: str) -> Meshes:
        """Make them, with all ranks of the job."""
        shards = dims.shards * dims.context
        every = shards * dims.tensor

        def mesh(**sizes: int) -> DeviceMesh:
            return init_device_mesh(device_type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))

        outer = {"pipeline": dims.pipeline, "replicate": dims.replicas}
        return cls(
            ranks=mesh(**outer, shard=dims.shards, context=dims.context, tensor=dims.tensor),
            matrices=mesh(**outer, shard=shards, tensor=dims.tensor),
            whole=mesh(**outer, shard=every),
            experts=mesh(**outer, shard=every // dims.expert, expert=dims.expert),
        )


def sharding(mesh: DeviceMesh) -> DeviceMesh:
    """The dimensions of a mesh that FSDP uses: with replicas only if there are any."""
    return mesh["replicate", "shard"] if mesh["replicate"].size() > 1 else mesh["shard"]

"""The ranks of a job as meshes: the same ranks in the same order, with the dimensions each kind of weight needs."""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from podwright_training.config.layout import Layout


@dataclass(frozen=True)
class Meshes:
    """Views of the job's ranks; a stage of the pipeline has one of each.

    Attributes:
        ranks: every parallel dimension of the layout but experts.
        matrices: ``replicate``, ``shard``, ``tensor``: matrices of a block, divided by tensor parallelism.
        whole: ``replicate``, ``shard``: what each rank applies whole to its own tokens: embedding, head, router.
        experts: ``replicate``, ``shard``, ``expert``: experts, each rank of ``expert`` holding others.
    """

    ranks: DeviceMesh
    matrices: DeviceMesh
    whole: DeviceMesh
    experts: DeviceMesh

    @classmethod
    def of(cls, layout: Layout, device_type: str) -> Meshes:
        """Make them, with all ranks of the job."""
        shards = layout.shards * layout.context
        every = shards * layout.tensor

        def mesh(**sizes: int) -> DeviceMesh:
            return init_device_mesh(device_type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))

        outer = {"pipeline": layout.pipeline, "replicate": layout.replicas}
        return cls(
            ranks=mesh(**outer, shard=layout.shards, context=layout.context, tensor=layout.tensor),
            matrices=mesh(**outer, shard=shards, tensor=layout.tensor),
            whole=mesh(**outer, shard=every),
            experts=mesh(**outer, shard=every // layout.expert, expert=layout.expert),
        )


def sharding(mesh: DeviceMesh) -> DeviceMesh:
    """The dimensions of a mesh that FSDP uses: with replicas only if there are any."""
    return mesh["replicate", "shard"] if mesh["replicate"].size() > 1 else mesh["shard"]

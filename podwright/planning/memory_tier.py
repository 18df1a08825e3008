"""Predict checkpoints in the memory of nodes: their size, the time they cost, and the time they save."""

from __future__ import annotations

from dataclasses import dataclass

from podwright.json_document import JsonObject
from podwright.planning.cluster_hardware import Hardware
from podwright.planning.units import GB
from podwright_training.config.memory_checkpoints import STATE_BYTES, MemoryCheckpoints
from podwright_training.failures import Failures, best_interval_steps, failures, seconds_between_failures

GIB = 2**30
COPY_GB_S = 20.0  # One accelerator copies to pinned memory so fast: PCIe 4.0 x16 has 32 in theory
# One TCP connection per rank, of 5 Gbit/s each outside a placement group, on one network card of 100 Gbit/s:
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-network-bandwidth.html
FLOW_GB_S, CARD_GB_S = 5 / 8, 100 / 8
SHARED_MEMORY_SHARE = 0.5  # Linux lets /dev/shm take half of the memory by default.


@dataclass(frozen=True)
class TierDocument(JsonObject):
    """Checkpoints in the memory of the nodes."""

    rank_gb: float
    node_folder_gb: float
    node_gb: float
    node_memory_gb: float
    fits: bool
    node_sends_gb: float
    send_s: float
    pause_s: float
    freq_steps: int
    goodput: float


@dataclass(frozen=True, kw_only=True)
class MemoryTier:
    """Checkpoints in memory of a run on these nodes.

    Attributes:
        need: Of each node.
        node_gb: Memory of a node, in 1e9 bytes.
        send_s: Seconds to send one to the next node.
        pause_s: Of these, training waits.
        interval_steps: Steps between two that lose the least time.
        failures: Predicted with them, at that interval.
    """

    need: MemoryCheckpoints
    node_gb: float
    send_s: float
    pause_s: float
    interval_steps: int
    failures: Failures

    @classmethod
    def of(cls, hardware: Hardware, *, parameters: float, step_s: float) -> MemoryTier:
        """Predict checkpoints in memory for a model with so many parameters, whose steps take ``step_s``."""
        ranks = hardware.instance.accelerator_count
        need = MemoryCheckpoints(STATE_BYTES * parameters / hardware.gpus, ranks, hardware.nodes)
        pause_s = need.rank_bytes / GB / COPY_GB_S
        send_s = need.sent_bytes / GB / min(hardware.network_gb_s, ranks * FLOW_GB_S, CARD_GB_S)
        between_s = seconds_between_failures(hardware.gpus)
        return cls(
            need=need,
            node_gb=hardware.instance.memory_gib * GIB / GB,
            send_s=send_s,
            pause_s=pause_s,
            interval_steps=best_interval_steps(pause_s, between_s, step_s=step_s, at_least_s=pause_s + send_s),
            failures=failures(hardware.gpus, parameters=parameters, checkpoint_s=pause_s),
        )

    @property
    def fits(self) -> bool:
        """True if the node has the memory."""
        room_gb = SHARED_MEMORY_SHARE * self.node_gb
        return self.need.folder_bytes / GB <= room_gb and self.need.host_bytes / GB <= self.node_gb

    def document(self) -> TierDocument:
        """Return the checkpoints as `podwright plan --json` prints them."""
        return TierDocument.of(
            self,
            rank_gb=self.need.rank_bytes / GB,
            node_folder_gb=self.need.folder_bytes / GB,
            node_gb=self.need.host_bytes / GB,
            node_memory_gb=self.node_gb,
            node_sends_gb=self.need.sent_bytes / GB,
            freq_steps=self.interval_steps,
            goodput=self.failures.goodput,
        )

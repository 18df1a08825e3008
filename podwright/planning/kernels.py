"""Predict the time, in seconds, of products, attention, memory traffic and collectives on one accelerator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from podwright.planning.accelerator import Accelerator
from podwright.planning.calibration import Calibration
from podwright.planning.layout import Precision

TILE_ROWS, TILE_COLUMNS = 128, 256  # cuBLAS and CUTLASS choose these tiles for large matrix products.


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """The speed of one accelerator under the calibrated constants."""

    element_bytes: ClassVar[Mapping[str, float]] = {"bf16": 2.0, "fp32": 4.0, "fp8": 1.0}

    accelerator: Accelerator
    calibration: Calibration
    precision: Precision

    @property
    def sustained_flops(self) -> float:
        """FLOP/s of a large product of ideal shape."""
        device = self.accelerator
        share = self.calibration("matrix", device.generation, self.precision, device.name)
        return device.peak_flops(self.precision) * share

    @property
    def memory_bytes_s(self) -> float:
        """Bytes per second that streaming kernels reach."""
        return self.accelerator.memory_tb_s * 1e12 * self.calibration("memory_bandwidth")

    def product(self, rows: float, columns: float, depth: float, *, groups: float = 1) -> float:
        """Time ``groups`` products ``(rows, depth) x (depth, columns)``: the slower of compute and memory.

        A product of few tiles leaves multiprocessors idle (half a wave on average). A shallow one spends time filling
        the pipeline. Widths that are not a multiple of 64 elements load more slowly.
        """
        if rows <= 0 or columns <= 0 or depth <= 0 or groups <= 0:
            return 0.0
        tiles = groups * max(1.0, rows / TILE_ROWS) * max(1.0, columns / TILE_COLUMNS)
        filled = min(1.0, rows / TILE_ROWS) * min(1.0, columns / TILE_COLUMNS)
        waves = tiles / self.accelerator.multiprocessors
        efficiency = (
            filled
            * waves
            / (waves + self.calibration("idle_waves"))
            * depth
            / (depth + self.calibration("depth_latency"))
        )
        efficiency *= min(_alignment(columns), _alignment(depth))
        arithmetic = 2.0 * rows * columns * depth * groups / (self.sustained_flops * efficiency)
        element = self.element_bytes[self.precision]
        traffic = groups * (element * (rows * depth + depth * columns) + 2.0 * rows * columns) / self.memory_bytes_s
        return max(arithmetic, traffic)

    def product_and_gradients(
        self,
        rows: float,
        columns: float,
        depth: float,
        *,
        groups: float = 1,
        of_weight: Kernels | None = None,
    ) -> tuple[float, float]:
        """Time forward and backward of a linear layer.

        The kernels ``of_weight`` compute the gradient of the weight, if they are others.
        """
        forward = self.product(rows, columns, depth, groups=groups)
        backward = self.product(rows, depth, columns, groups=groups)
        return forward, backward + (of_weight or self).weight_gradient(rows, columns, depth, groups=groups)

    def weight_gradient(self, rows: float, columns: float, depth: float, *, groups: float) -> float:
        """Time the gradient of a linear layer's weight."""
        return self.product(columns, depth, rows, groups=groups)

    def fused_attention(self, flops: float, *, sequence: float, head_dim: int, share: float) -> tuple[float, float]:
        """Time forward and backward of flash attention. Backward does 2.5 times the work (arXiv:2307.08691)."""
        peak = self.accelerator.peak_flops("bf16")
        efficiency = self.calibration("attention", self.accelerator.generation, self.accelerator.name) * share
        efficiency *= (
            sequence / (sequence + self.calibration("attention_ramp")) * min(1.0, head_dim / (head_dim + 24) * 1.19)
        )
        return flops / (peak * efficiency), 2.5 * flops / (peak * efficiency * 0.9)

    def stream(self, size: float) -> float:
        """Time ``size`` bytes of reads plus writes."""
        return size / self.memory_bytes_s

    # ---- communication ---------------------------------------------------------------------------

    def bandwidth(self, ranks: int, *, stride: int = 1) -> float:
        """Return the bus bandwidth, in bytes per second, of ``ranks`` ranks ``stride`` accelerators apart."""
        device = self.accelerator
        near = max(1, min(ranks, device.link_domain // stride))
        if ranks <= near:
            return device.link_gb_s * 1e9
        return min(device.link_gb_s, near * device.nic_gb_s * self.calibration("network")) * 1e9

    def latency(self, ranks: int, *, stride: int = 1) -> float:
        """Return the part of a collective's time that does not depend on its size."""
        near = self.accelerator.link_domain // stride >= ranks
        return 2e-5 if near else self.accelerator.latency_us * 1e-6

    def gather(self, size: float, ranks: int, *, stride: int = 1) -> float:
        """Time an all-gather or reduce-scatter of ``size`` bytes in total. An all-reduce takes two."""
        if ranks <= 1:
            return 0.0
        return self.latency(ranks, stride=stride) + size * (ranks - 1) / ranks / self.bandwidth(ranks, stride=stride)

    def send(self, size: float, *, stride: int) -> float:
        """Time ``size`` bytes from a rank to another that is ``stride`` accelerators away."""
        device = self.accelerator
        near = stride < device.link_domain
        gb_s = device.link_gb_s if near else device.nic_gb_s * self.calibration("network")
        return self.latency(2, stride=stride) + size / (gb_s * 1e9)

    def dispatch(self, token_bytes: float, copies: int, ranks: int, *, stride: int = 1) -> float:
        """Time an all-to-all: each rank sends its tokens to ``copies`` experts on any of ``ranks``.

        ``token_bytes`` is the size of all tokens of a rank. A token crosses to each node only once.
        """
        if ranks <= 1:
            return 0.0
        near = max(1, min(ranks, self.accelerator.link_domain // stride))
        nodes = ranks / near
        time = token_bytes * copies * (near - 1) / near / (self.accelerator.link_gb_s * 1e9)
        if nodes > 1:
            reached = nodes * (1 - (1 - 1 / nodes) ** copies) * (1 - 1 / nodes)
            time = max(time, token_bytes * reached / (self.accelerator.nic_gb_s * 1e9 * self.calibration("all_to_all")))
        return time + self.latency(ranks, stride=stride) / 4


def _alignment(width: float) -> float:
    """Return the share of full speed at a width that is a multiple of only 32, 16, 8 … elements.

    https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/
    """
    columns = round(width)
    if columns % 64 == 0 or columns != width:
        return 1.0
    for multiple, share in ((32, 0.85), (16, 0.8), (8, 0.72)):
        if columns % multiple == 0:
            return share
    return 0.4

"""Options that change how the model is computed: precision, compilation, kernels."""

from __future__ import annotations

from dataclasses import dataclass

from podwright_training.config.option import Conflicts, option

PRECISIONS = ("bf16", "fp16", "fp32")


@dataclass(frozen=True, kw_only=True)
class ComputeOptions:
    """Set precision, compilation and the attention kernel."""

    bf16: bool = option(True, "Compute in bf16; weights, reductions and optimizer state stay in fp32.")
    precision: str | None = option(
        None,
        "Precision to compute in; fp16 uses dynamic loss scaling. Default: bf16, or fp32 with --no-bf16.",
        choices=PRECISIONS,
    )
    float8: bool = option(
        False,
        "Compute the blocks' linear layers in float8, forward and input gradients, with a scale per row; gradients "
        "of weights, routed experts, embedding and head stay in bf16. Needs an H100 or newer, or a CPU to try it.",
    )
    compile: bool | None = option(
        None,
        "Compile each block and the loss with torch.compile; the first step then takes a minute or more. Default: on "
        "NVIDIA GPUs where a C compiler and Python's headers are installed, but not with offload_activations or a "
        "pipeline_schedule that splits the backward pass.",
    )
    attention: str = option(
        "auto",
        "Kernel for document masks and sliding windows on accelerators; flex: flex_attention, which skips masked "
        "blocks; sdpa: a mask of all pairs of tokens, also on a CPU; auto: flex on GPUs, sdpa on other accelerators.",
        choices=("auto", "flex", "sdpa"),
    )

    @property
    def compute_precision(self) -> str:
        """Return the precision of matrix products, one of ``PRECISIONS``."""
        return self.precision or ("bf16" if self.bf16 else "fp32")


def conflicts(config: ComputeOptions) -> Conflicts:
    """Yield the conflicts among these options."""
    if config.float8 and config.compute_precision != "bf16":
        yield ("float8", "precision"), f"float8 needs precision bf16, not {config.compute_precision}"

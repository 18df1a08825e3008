"""Options of the optimizer."""

from __future__ import annotations

from dataclasses import dataclass

from podwright_training.config.option import option


@dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """Set the optimizer, gradient clipping and the weight average."""

    optimizer: str = option(
        "adamw",
        "adamw, or muon: Muon for the blocks' matrices and AdamW for the rest, with one learning rate.",
        choices=("adamw", "muon"),
    )
    weight_decay: float = option(0.2, "Weight decay of matrices; norms are not decayed.", at_least=0)
    beta1: float = option(0.9, "AdamW's beta1.", at_least=0, below=1)
    beta2: float = option(0.95, "AdamW's beta2.", at_least=0, below=1)
    z_loss: float = option(
        0.0, "Weight of the squared log of the softmax's denominator (PaLM, arXiv:2204.02311).", at_least=0
    )
    grad_clip: float = option(1.0, "Largest global gradient norm.", above=0)
    adaptive_grad_clip: float | None = option(
        None,
        "Largest gradient norm of a matrix, as a fraction of the matrix's own norm. Default: no limit.",
        above=0,
    )
    ema_decay: float | None = option(
        None,
        "Keep an exponential moving average of the weights with this decay per step. Default: no average.",
        above=0,
        below=1,
    )

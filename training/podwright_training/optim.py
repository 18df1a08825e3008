"""Update the weights: optimizers, moving average of the weights, adaptive gradient clipping."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Muon, Optimizer

from podwright_training.config.train_config import TrainConfig
from podwright_training.errors import UserError
from podwright_training.model import is_router_bias

EMA = "ema"
# Adaptive clipping raises a matrix's norm to this one: a matrix that starts at zero must be able to grow.
SMALLEST_NORM = 1e-3


class Optimizers:
    """All optimizers of this rank's parameters; their state is keyed by parameter name.

    Fused AdamW (arXiv:1711.05101): matrices decay, norms do not. With ``muon``, the blocks' matrices use Muon
    (https://kellerjordan.github.io/posts/muon/) instead, its update scaled to that of AdamW (arXiv:2502.16982),
    so that one learning rate fits both; stacked matrices of experts keep AdamW.
    """

    def __init__(self, named_parameters: Iterable[tuple[str, nn.Parameter]], config: TrainConfig) -> None:
        self._named = dict(named_parameters)
        self._ema_decay = config.ema_decay
        self._ema = {name: item.detach().clone() for name, item in self._named.items()} if config.ema_decay else {}
        biases = [item for name, item in self._named.items() if is_router_bias(name)]
        muon = {name for name, item in self._named.items() if config.optimizer == "muon" and _is_hidden(name, item)}
        adamw_parameters = [item for name, item in self._named.items() if name not in muon and not is_router_bias(name)]
        self._all: list[Optimizer] = []
        if adamw_parameters:
            self._all.append(
                AdamW(_groups(adamw_parameters, config), lr=config.lr, betas=(config.beta1, config.beta2), fused=True)
            )
        if muon:
            matrices = [self._named[name] for name in self._named if name in muon]
            self._all.append(
                Muon(matrices, lr=config.lr, weight_decay=config.weight_decay, adjust_lr_fn="match_rms_adamw")
            )

        if biases:
            self._all.append(BiasDescent(biases, speed=config.router_bias_speed))

    @torch.no_grad()
    def step(self, *, lr: float) -> None:
        """Update the parameters with this learning rate, then their average, and clear the gradients."""
        for optimizer in self._all:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
        if self._ema_decay is not None:
            averages, weights = _locals(self._ema.values()), _locals(self._named.values())
            torch._foreach_lerp_(averages, weights, 1 - self._ema_decay)
        self.forget_gradients()

    def forget_gradients(self) -> None:
        """Clear the gradients without an update."""
        for optimizer in self._all:
            optimizer.zero_grad()

    def allocate(self) -> None:
        """Reallocate the optimizers' state, by a step that does not change weights and does not count."""
        for optimizer in self._all:
            optimizer.state.clear()
        for parameter in self._named.values():
            parameter.grad = torch.zeros_like(parameter)
        self.step(lr=0.0)
        for optimizer in self._all:
            for parameter_state in optimizer.state.values():
                if "step" in parameter_state:
                    parameter_state["step"].zero_()

    @torch.no_grad()
    def restart_average(self) -> None:
        """Restart the moving average from the current weights."""
        for name, average in self._ema.items():
            average.copy_(self._named[name])

    def state_dict(self) -> dict[str, Tensor]:
        """Return the optimizers' state by ``<parameter>.<key>``; hyperparameters are in the configuration.

        Key ``ema`` is the moving average of the weights, where there is one.

        Raises:
            UserError: A parameter has no state: this checkpoint could not be resumed.
        """
        state = {
            parameter: parameter_state
            for optimizer in self._all
            for parameter, parameter_state in optimizer.state.items()
        }
        forgotten = [name for name, parameter in self._named.items() if not state.get(parameter)]
        if forgotten:
            raise UserError(
                f"the optimizer has no state for {', '.join(forgotten)}: this checkpoint could not be resumed"
            )
        memory = {f"{name}.{key}": value for name, item in self._named.items() for key, value in state[item].items()}
        return memory | {f"{name}.{EMA}": average for name, average in self._ema.items()}


class BiasDescent(Optimizer):
    """Move each expert's bias a fixed way against its load, which is its gradient (``model.BiasedRouter``)."""

    def __init__(self, biases: Iterable[nn.Parameter], *, speed: float) -> None:
        super().__init__(biases, {"speed": speed})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002 - of its class
        """Move every bias that has a gradient."""
        for group in self.param_groups:
            for item in group["params"]:
                if item.grad is not None:
                    self.state[item].setdefault("step", torch.zeros(())).add_(1)
                    item.add_(item.grad.sign(), alpha=-group["speed"])


@torch.no_grad()
def clip_adaptively(parameters: Iterable[nn.Parameter], share: float) -> None:
    """Scale down each matrix's gradient whose norm exceeds ``share`` of the matrix's norm (arXiv:2102.06171, eq. 3).

    The paper clips rows; whole matrices need one reduction for all parameters with the same placement.
    """
    alike = defaultdict(list)
    for item in parameters:
        if item.grad is not None and item.ndim > 1:
            alike[(item.device_mesh, item.placements) if isinstance(item, DTensor) else None].append(item)
    for group in alike.values():
        gradients = [item.grad for item in group if item.grad is not None]
        limits = share * _norms(group).clamp(min=SMALLEST_NORM)
        factors = (limits / _norms(gradients)).clamp(max=1.0)  # no gradient: share / 0 is infinite, so 1
        torch._foreach_mul_(_locals(gradients), list(factors.unbind()))


def _is_hidden(name: str, parameter: nn.Parameter) -> bool:
    """Return whether a parameter is a matrix of a block: not embedding, head or norm."""
    return parameter.ndim == 2 and ".layers." in name  # noqa: PLR2004 - a matrix


def _groups(parameters: list[nn.Parameter], config: TrainConfig) -> list[dict[str, object]]:
    return [
        {"params": [item for item in parameters if item.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [item for item in parameters if item.ndim <= 1], "weight_decay": 0.0},
    ]


def _norms(tensors: Sequence[Tensor]) -> Tensor:
    """Return the norm of each whole tensor, ``[len(tensors)]``, on all ranks."""
    norms = torch.stack(torch._foreach_norm(list(tensors)))  # noqa: SLF001 - what clip_grad_norm_ uses
    return norms.full_tensor() if isinstance(norms, DTensor) else norms


def _locals(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return this rank's shards, for elementwise operations."""
    return [item.to_local() if isinstance(item, DTensor) else item.detach() for item in tensors]

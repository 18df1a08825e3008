"""Refuse on any device operations that Neuron's compiler cannot do, so that a run on a CPU shows them.

TorchNeuron compiles each operation, or each graph, for the shapes it sees: a shape that depends on values ends on the
CPU, and a new one compiles again. https://awsdocs-neuron.readthedocs-hosted.com/en/latest/torch/reference/best-practices-pytorch-neuron.html
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from podwright_training.errors import UserError

Rules = Callable[[str], AbstractContextManager[None]]

# NeuronCore v2 and later have no units for these:
# https://awsdocs-neuron.readthedocs-hosted.com/en/latest/about-neuron/arch/neuron-features/data-types.html
UNSUPPORTED_DTYPES = frozenset({torch.float64, torch.complex32, torch.complex64, torch.complex128})
TO_HOST = frozenset({Tensor.cpu, Tensor.item, Tensor.numpy, Tensor.tolist, Tensor.__bool__, Tensor.__int__})


class DeviceRuleError(UserError):
    """An operation breaks a rule; the message names it, its part of the step, and the solution."""


def rules_of(name: str) -> Rules:
    """Return the checker of a part of a step; ``name`` is ``TrainConfig.device_rules``."""
    return NeuronRules().part if name == "neuron" else lambda _part: nullcontext()


class NeuronRules:
    """Check parts of steps, each against the shapes that its first run had."""

    def __init__(self) -> None:
        self._parts: dict[str, _Shapes] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Check the operations within, on any device.

        Raises:
            DeviceRuleError: Of the first operation that Neuron cannot do, or not without another compilation.
        """
        shapes = self._parts.setdefault(name, _Shapes(name))
        with _Transfers(name), _Operations(name, shapes):
            yield
        shapes.complete = True


class _Shapes:
    """The shapes with which each operation of a part was compiled."""

    def __init__(self, part: str) -> None:
        self._part = part
        self._of: defaultdict[Any, set[tuple[Any, ...]]] = defaultdict(set)
        self.complete = False  # the part ran once

    def add(self, operation: Any, tensors: list[Tensor]) -> None:
        shapes = tuple((*tensor.shape, tensor.dtype) for tensor in tensors)
        known_shapes = self._of[operation]
        if shapes in known_shapes:
            return
        if self.complete and known_shapes:
            sizes = ", ".join(str([*tensor.shape]) for tensor in tensors)
            raise _broken(
                self._part, f"{operation} has another shape than in the steps before: {sizes}", "keep shapes static"
            )
        known_shapes.add(shapes)


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """See every operation, of forward, backward and optimizer."""

    def __init__(self, part: str, shapes: _Shapes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._part, self._shapes = part, shapes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = [item for item in tree_iter((args, kwargs or {})) if isinstance(item, Tensor)]
        if torch.Tag.dynamic_output_shape in func.tags and not _indexes_by_numbers(func, inputs):
            raise _broken(self._part, f"{func} has a result whose shape depends on values", "mask instead of selecting")
        if torch.Tag.data_dependent_output in func.tags:
            raise _broken(self._part, f"{func} waits for the device", "keep the value on the device until it is logged")
        self._shapes.add(func, inputs)
        result = func(*args, **(kwargs or {}))
        for tensor in (*inputs, *(item for item in tree_iter(result) if isinstance(item, Tensor))):
            if tensor.dtype in UNSUPPORTED_DTYPES:
                name = str(tensor.dtype).removeprefix("torch.")
                raise _broken(self._part, f"{func} has a tensor of {name}, which Neuron lacks", "use float32 or less")
        return result


class _Transfers(TorchFunctionMode):
    """See values that Python reads: on a CPU they are no operations."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self._part = part

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in TO_HOST:
            name = f"Tensor.{func.__name__}"
            raise _broken(self._part, f"{name} waits for the device", "keep the value on the device until it is logged")
        return func(*args, **(kwargs or {}))


def _indexes_by_numbers(func: Any, inputs: list[Tensor]) -> bool:
    """Return whether an operation's shape follows from its indices' shapes: only a mask's depends on values."""
    return func is torch.ops.aten.index.Tensor and not any(index.dtype == torch.bool for index in inputs[1:])


def _broken(part: str, violation: str, hint: str) -> DeviceRuleError:
    return DeviceRuleError(f"device_rules neuron: in {part}, {violation}; {hint}")

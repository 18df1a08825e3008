"""Let parts of a run act around its steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext


class RuinedWeightsError(Exception):
    """No step can go on from the model's weights."""


class Callback:
    """Part of a run that acts around its steps; all ranks call its methods, in the same order.

    A method that a subclass does not override has no effect.
    """

    def step(self, number: int) -> AbstractContextManager[None]:  # noqa: ARG002 - subclasses read it
        """Return a context in which a step runs."""
        return nullcontext()

    def before_update(self, step: int) -> None:
        """Act before the weights change, and so before ``step`` counts."""

    def needs_loss(self) -> bool:
        """Return whether the last step must be checked, because this callback will act on its weights."""
        return False

    def after_step(self) -> None:
        """Act after a good step.

        Raises:
            RuinedWeightsError: The weights are of no use; callbacks that follow are skipped.
        """


class Callbacks(Callback):
    """Several callbacks as one, called in their order."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = callbacks

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Run a step in the contexts of all callbacks."""
        with ExitStack() as contexts:
            for callback in self._callbacks:
                contexts.enter_context(callback.step(number))
            yield

    def before_update(self, step: int) -> None:
        """Call all callbacks before the weights change."""
        for callback in self._callbacks:
            callback.before_update(step)

    def needs_loss(self) -> bool:
        """Return whether a callback needs the last step to be checked."""
        return any(callback.needs_loss() for callback in self._callbacks)

    def after_step(self) -> None:
        """Call all callbacks after a good step."""
        for callback in self._callbacks:
            callback.after_step()

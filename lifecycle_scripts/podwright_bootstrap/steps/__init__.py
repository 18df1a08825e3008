"""The steps of a boot, one noun each. A step can be repeated: it changes only what is not yet as it should be.

``nodes.skip`` in cluster.yaml may leave out every step without ``required_because``. If a step with
``degraded_feature`` fails, the boot logs a warning and continues. At the next boot, a step that no longer applies to a
node removes its leftovers there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Iterator

from podwright_bootstrap.node import Node


class Step(ABC):
    """A condition that must hold on a node; the first line of a step's docstring states it."""

    name: str
    audience = "every node"  # the nodes that it applies to, in words: shown on nodes that skip it
    hint: str  # a remedy, shown if it fails
    time_limit_s: float
    attempts = 1  # attempts at the whole step, where trying again may help
    required_because = ""  # the reason why no boot works without it; a step without a reason may be in nodes.skip
    degraded_feature = ""  # the feature that a node lacks if the step fails; without one, a failure ends the boot

    def applies(self, node: Node) -> bool:
        """Return whether the step is for this node."""
        return True

    @abstractmethod
    def apply(self, node: Node) -> Iterator[str]:
        """Make the condition hold; yields a phrase for each change, after it was made."""

    def remove(self, node: Node) -> Iterator[str]:
        """Remove leftovers of earlier boots from a node that the step does not apply to; yields a phrase for each."""
        yield from ()

    @abstractmethod
    def verify(self, node: Node) -> None:
        """Check that the condition holds; raises ``BootstrapError`` that names the problem."""

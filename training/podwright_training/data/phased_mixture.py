"""Choose the source of each sequence where the weights of a mixture change during the run."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from podwright_training.data.mixture import Mixture


@dataclass(frozen=True)
class MixtureChange:
    """Weights that apply from one global sequence of a run on.

    Attributes:
        first_sequence: The first one.
        weights: Weight of each source that is read, by its name; others pause at their position.
    """

    first_sequence: int
    weights: Mapping[str, float]


class PhasedMixture:
    """Assign every global sequence to a source, by its number and the changes alone.

    Within a phase, sequences are spread as in any ``Mixture``. So a source of share w has provided n·w of any n
    sequences in a row of one phase, with the error that ``Mixture`` states; the errors of phases add up.

    Args:
        changes: Changes of the weights; the first one at sequence 0. Of several at one sequence, the last one counts.
        names: Names of all sources; indices of sources follow their order.
        streams: Streams of the run.

    Attributes:
        changes: The changes that count, in order.
    """

    def __init__(self, changes: Iterable[MixtureChange], names: Sequence[str], *, streams: int) -> None:
        last_changes = {change.first_sequence: change for change in changes}
        self.changes = [last_changes[begin] for begin in sorted(last_changes)]
        self._begins = [change.first_sequence for change in self.changes]
        self._sources = [[names.index(name) for name in change.weights] for change in self.changes]
        self._mixtures = [Mixture(list(change.weights.values()), streams=streams) for change in self.changes]
        self._names = list(names)
        self._streams = streams

    def followed_by(self, changes: Iterable[MixtureChange]) -> PhasedMixture:
        """Return the mixture that begins as this one does and then has these changes."""
        return PhasedMixture([self.changes[0], *changes], self._names, streams=self._streams)

    def source(self, sequence: int) -> int:
        """Return the index of the source of a global sequence."""
        phase = bisect_right(self._begins, sequence) - 1
        return self._sources[phase][self._mixtures[phase].source(sequence)]

    def counts(self, sequences: range) -> list[int]:
        """Return how many of some global sequences in a row each source provides."""
        totals = [0] * len(self._names)
        inner = [begin for begin in self._begins if sequences.start < begin < sequences.stop]
        for start, stop in pairwise([sequences.start, *inner, sequences.stop]):
            phase = bisect_right(self._begins, start) - 1
            for source, count in zip(
                self._sources[phase], self._mixtures[phase].counts(range(start, stop)), strict=True
            ):
                totals[source] += count
        return totals

    def weights_in(self, sequences: range) -> list[MixtureChange]:
        """Return the weights that the first of some global sequences has, and the changes within them."""
        present = self.changes[bisect_right(self._begins, sequences.start) - 1]
        inner = [change for change in self.changes if sequences.start < change.first_sequence < sequences.stop]
        return [MixtureChange(sequences.start, present.weights), *inner]

    def share(self, source: int, sequence: int) -> float:
        """Return the share of a source in the phase of a global sequence."""
        phase = bisect_right(self._begins, sequence) - 1
        sources = self._sources[phase]
        return self._mixtures[phase].shares[sources.index(source)] if source in sources else 0.0

    def sequences_until(self, source: int, count: float) -> int | None:
        """Return about how many sequences of the run have ``count`` of a source; ``None`` if it is read less often."""
        for begin, end in pairwise([*self._begins, math.inf]):
            share = self.share(source, int(begin))
            if share and begin + count / share <= end:
                return math.ceil(begin + count / share)
            count -= (end - begin) * share if share else 0
        return None

"""Predict the loss from parameters and tokens, and forecast the loss of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ParametricLoss:
    """``L(N, D) = E + A / N^alpha + B / D^beta`` in nats per token; ``N`` parameters, ``D`` tokens."""

    name: str
    irreducible: float
    parameter_scale: float
    parameter_exponent: float
    token_scale: float
    token_exponent: float
    standard_error: float  # The predicted loss's, in nats.
    source: str

    def loss(self, parameters: float, tokens: float) -> float:
        """Return the predicted loss on the data the law was fitted to (MassiveText)."""
        by_size = self.parameter_scale / parameters**self.parameter_exponent
        return float(self.irreducible + by_size + self.token_scale / tokens**self.token_exponent)

    def optimal_parameters(self, flops: float) -> float:
        """Return the size with the lowest loss for ``flops = 6 N D`` (Hoffmann et al., equation 4)."""
        alpha, beta = self.parameter_exponent, self.token_exponent
        scale = (alpha * self.parameter_scale / (beta * self.token_scale)) ** (1 / (alpha + beta))
        return float(scale * (flops / 6) ** (beta / (alpha + beta)))

    def optimal_tokens(self, flops: float) -> float:
        """Return the number of tokens for ``optimal_parameters``."""
        return flops / 6 / self.optimal_parameters(flops)

    def tokens_for_loss(self, parameters: float, loss: float) -> float:
        """Return the tokens after which a model of that size reaches the loss, or infinity if it never does."""
        reducible_loss = loss - self.irreducible - self.parameter_scale / parameters**self.parameter_exponent
        return (
            float((self.token_scale / reducible_loss) ** (1 / self.token_exponent)) if reducible_loss > 0 else math.inf
        )


EPOCH = ParametricLoss(
    name="Epoch's refit of Chinchilla",
    irreducible=1.81686,
    parameter_scale=482.006,
    parameter_exponent=0.34781,
    token_scale=2085.43,
    token_exponent=0.36585,
    standard_error=0.03,
    source="epoch-research/analyzing-chinchilla (arXiv:2404.10102); error: that of E, 0.0257, and of the fit",
)


@dataclass(frozen=True, kw_only=True)
class OverTraining:
    """A smaller model trained longer to the same loss, with its FLOPs for training and serving."""

    parameters: float
    tokens: float
    training_flops: float
    serving_flops: float
    loss: float

    @property
    def total_flops(self) -> float:
        """FLOPs of training plus serving."""
        return self.training_flops + self.serving_flops


def cheapest_with_serving(
    parameters: float, tokens: float, served_tokens: float, *, law: ParametricLoss = EPOCH
) -> OverTraining:
    """Return the size that reaches the loss of ``(parameters, tokens)`` with the fewest FLOPs in total.

    Training takes 6 N D, serving 2 N a token (arXiv:2401.00448). Sizes are tried in steps of 2 % from a fiftieth to
    four times the given one.
    """
    loss = law.loss(parameters, tokens)
    candidates = []
    size = parameters / 50
    while size < parameters * 4:
        needed = law.tokens_for_loss(size, loss)
        if math.isfinite(needed):
            candidates.append(
                OverTraining(
                    parameters=size,
                    tokens=needed,
                    training_flops=6 * size * needed,
                    serving_flops=2 * size * served_tokens,
                    loss=loss,
                )
            )
        size *= 1.02
    return min(candidates, key=lambda item: item.total_flops)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """``loss = floor + scale / tokens^exponent`` fitted to a run's curve, with its forecast."""

    floor: float
    scale: float
    exponent: float
    loss: float
    low: float
    high: float


def forecast(curve: Sequence[tuple[float, float]], tokens: float) -> Forecast:
    """Fit a run's ``(tokens, loss)`` points and predict the loss at ``tokens``.

    The exponent is searched in steps, then by trisection; floor and scale follow by least squares. ``low`` and
    ``high`` span all fits with up to twice the smallest squared error.

    Raises:
        ValueError: Fewer than five points, a loss that does not fall, or one that only a floor below zero fits.
    """
    points = [(position, loss) for position, loss in curve if position > 0]
    if len(points) < 5 or points[-1][1] >= points[0][1]:  # noqa: PLR2004 - three unknowns
        raise ValueError(f"a forecast needs at least 5 points of a falling loss, got {len(points)}")
    fits = [_least_squares(points, exponent / 100) for exponent in range(5, 101)]
    fits = [fit for fit in fits if fit[1] > 0]
    if not fits:
        raise ValueError(f"the {len(points)} points end lower than they begin, but as a whole they do not fall")
    closest = _refined(points, min(fits, key=lambda fit: fit[3]))
    limit = 2 * closest[3]
    near = [fit for fit in (closest, *fits) if fit[0] >= 0 and fit[3] <= limit]
    if not near:
        raise ValueError(
            f"the best fit has a floor of {closest[0]:.2f} nats, and no loss is below 0: "
            "the curve is too short for a forecast"
        )
    best = min(near, key=lambda fit: fit[3])
    losses = [floor + scale / tokens**exponent for floor, scale, exponent, _ in near]
    floor, scale, exponent, error = best
    noise = 2 * math.sqrt(error / len(points))
    return Forecast(
        floor=floor,
        scale=scale,
        exponent=exponent,
        loss=floor + scale / tokens**exponent,
        low=min(losses) - noise,
        high=max(losses) + noise,
    )


def read_curve(lines: Iterable[str], *, sequence: int) -> list[tuple[float, float]]:
    """Read ``(tokens, loss)`` from a run's ``metrics.jsonl``, averaged to at most 50 points.

    After a resume steps occur twice; the last one counts. The first tenth, the warm-up, is left out. Damaged lines, as
    of a job that was killed, and steps whose loss is no number are skipped.
    """
    steps = dict(point for point in (_step(line, sequence) for line in lines) if point)
    points = [steps[step] for step in sorted(steps)]
    points = points[len(points) // 10 :]
    size = max(1, len(points) // 50)
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(_mean([tokens for tokens, _ in group]), _mean([loss for _, loss in group])) for group in groups]


def _step(line: str, sequence: int) -> tuple[int, tuple[float, float]] | None:
    """Return the step in a line of metrics, with its tokens so far and its loss; ``None`` if it has none."""
    from podwright_training.events import TrainEvent, event_of  # noqa: PLC0415 — it takes 13 ms, only for --curve

    event = event_of(line)
    if not isinstance(event, TrainEvent) or event.sequences is None or not math.isfinite(event.loss):
        return None
    return event.step, (float(event.sequences * sequence), event.loss)


def _mean(values: Sequence[float]) -> float:
    """Return the mean, exactly summed as ``statistics.fmean`` does; importing that module takes 10 ms."""
    return math.fsum(values) / len(values)


def _refined(
    points: Sequence[tuple[float, float]], best: tuple[float, float, float, float]
) -> tuple[float, float, float, float]:
    low, high = best[2] - 0.01, best[2] + 0.01
    for _ in range(40):
        lower_third, upper_third = low + (high - low) / 3, high - (high - low) / 3
        if _least_squares(points, lower_third)[3] < _least_squares(points, upper_third)[3]:
            high = upper_third
        else:
            low = lower_third
    return _least_squares(points, (low + high) / 2)


def _least_squares(points: Sequence[tuple[float, float]], exponent: float) -> tuple[float, float, float, float]:
    """Return floor, scale, exponent and squared error of the best line through ``(tokens^-exponent, loss)``."""
    xs = [tokens**-exponent for tokens, _ in points]
    ys = [loss for _, loss in points]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    scale = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread if spread else 0.0
    floor = mean_y - scale * mean_x
    error = sum((y - floor - scale * x) ** 2 for x, y in zip(xs, ys, strict=True))
    return floor, scale, exponent, error

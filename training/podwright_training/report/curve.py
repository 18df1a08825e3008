"""Analyse a loss curve: smooth it, thin it out for drawing, forecast it, and judge it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

SMOOTHING_STEPS = 50  # time constant of the smoothed curve; of short runs a fortieth, or it lags behind
SPIKE_SIGMAS = 6.0  # above the smoothed curve, in robust standard deviations of the noise around it
SPIKE_SHARE = 0.02  # and by this share of the loss: a curve with almost no noise has no spikes
DIVERGED_SHARE = 0.05  # the smoothed curve ends this share above its minimum
PLATEAU_SHARE = 0.002  # the smoothed curve falls by less than this share in the last fifth of the run
SPIKES_NAMED = 5
TINY = 1e-12  # a loss of 0 falls by no share of itself
FEWEST_TO_JUDGE = 50  # training steps; of fewer the curve says nothing
RESAMPLES, BLOCK = 60, 10  # Moving-block bootstrap (Kuensch 1989): noise of neighbouring steps is alike.
EXPONENTS = np.linspace(0.05, 1.5, 60)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Verdict:
    """Judgement of a loss curve, with the numbers behind it."""

    word: str  # healthy, plateau, spikes, diverged, too short
    reason: str
    spikes: list[int]  # the first step of each


@dataclass(frozen=True)
class Forecast:
    """Loss expected at later steps if the curve continues, with the band that holds 90 % of the refits."""

    steps: list[float]
    loss: list[float]
    low: list[float]
    high: list[float]


def smooth(values: Sequence[float], time_constant: float) -> list[float]:
    """Return the exponential moving average with Adam's bias correction (arXiv:1412.6980 section 3)."""
    decay = math.exp(-1 / time_constant)
    average, weight, smoothed = 0.0, 0.0, []
    for value in values:
        average = decay * average + (1 - decay) * value
        weight = decay * weight + (1 - decay)
        smoothed.append(average / weight)
    return smoothed


def smooth_run(losses: Sequence[float]) -> list[float]:
    """Return the smoothed loss of a run, with a time constant that suits its length."""
    return smooth(losses, min(SMOOTHING_STEPS, max(1.0, len(losses) / 40)))


def buckets(count: int, at_most: int) -> list[slice]:
    """Divide ``count`` points into at most ``at_most`` runs of neighbours of almost the same length."""
    number = min(count, at_most)
    edges = [count * index // max(number, 1) for index in range(number + 1)]
    return [slice(low, high) for low, high in pairwise(edges)]


def judge(steps: Sequence[int], losses: Sequence[float]) -> Verdict:
    """Judge the curve; the worst finding gives the word."""
    if len(losses) < FEWEST_TO_JUDGE:
        return Verdict("too short", f"{len(losses)} steps are too few to judge; {FEWEST_TO_JUDGE} are needed", [])
    smoothed = np.array(smooth_run(losses))
    spikes = _spikes(steps, np.array(losses), smoothed)
    lowest = int(np.argmin(smoothed))
    rise = _share(smoothed[-1] - smoothed[lowest], smoothed[lowest])
    if rise > DIVERGED_SHARE:
        since = f"the smoothed loss rose {rise:.1%} above its minimum of {smoothed[lowest]:.3f} at step {steps[lowest]}"
        return Verdict("diverged", since, spikes)
    tail = smoothed[-max(2, len(smoothed) // 5) :]
    fall = _share(tail[0] - tail[-1], tail[0])
    fell = f"the smoothed loss {'fell' if fall >= 0 else 'rose'} {abs(fall):.1%} in the last fifth of the run"
    if spikes:
        named_steps = ", ".join(str(step) for step in spikes[:SPIKES_NAMED])
        more = f" and {len(spikes) - SPIKES_NAMED} more" if len(spikes) > SPIKES_NAMED else ""
        return Verdict("spikes", f"the loss jumped at step {named_steps}{more}; {fell}", spikes)
    word = "plateau" if fall < PLATEAU_SHARE else "healthy"
    return Verdict(word, f"{fell}; no spike", spikes)


def forecast(steps: Sequence[int], losses: Sequence[float], *, until: int, points: int = 40) -> Forecast | None:
    """Extrapolate ``E + A * step ** -a`` (Kaplan et al., arXiv:2001.08361, equation 1.6 plus a floor) to ``until``.

    The first fifth of the run, where the learning rate warms up, is left out.

    Returns:
        None if the run is too short or already at ``until``.
    """
    skipped = len(steps) // 5
    x, y = np.array(steps[skipped:], dtype=float), np.array(losses[skipped:])
    if len(x) < FEWEST_TO_JUDGE or until <= steps[-1]:
        return None
    parts = buckets(len(x), 400)
    x = np.array([x[part].mean() for part in parts])
    y = np.array([y[part].mean() for part in parts])
    ahead = np.linspace(steps[-1], until, points)
    fitted, predicted = _fit(x, y, x), _fit(x, y, ahead)
    noise, dice = y - fitted, np.random.default_rng(0)
    refits = np.array([_fit(x, fitted + _resample(noise, dice), ahead) for _ in range(RESAMPLES)])
    low, high = np.quantile(refits, (0.05, 0.95), axis=0)
    low, high = np.minimum(low, predicted), np.maximum(high, predicted)
    return Forecast(ahead.tolist(), predicted.tolist(), low.tolist(), high.tolist())


def _share(change: float, reference: float) -> float:
    return change / max(abs(reference), TINY)


def _spikes(steps: Sequence[int], losses: Floats, smoothed: Floats) -> list[int]:
    """Return the first step of each jump above the curve's previous level."""
    before = np.concatenate(([losses[0]], smoothed[:-1]))
    residual = losses - before
    sigma = 1.4826 * float(np.median(np.abs(residual - np.median(residual))))
    high = residual > np.maximum(SPIKE_SIGMAS * sigma, SPIKE_SHARE * np.abs(before))
    starts = np.flatnonzero(high & ~np.concatenate(([False], high[:-1])))
    return [int(steps[int(index)]) for index in starts]


def _fit(x: Floats, y: Floats, at: Floats) -> Floats:
    """Return the least-squares curve at ``at``: for each exponent, floor and factor are a linear regression."""
    falling = (x / x[0]) ** -EXPONENTS[:, None]  # [exponents, points]
    centred = falling - falling.mean(axis=1, keepdims=True)
    factor = centred @ y / (centred**2).sum(axis=1)
    floor = y.mean() - factor * falling.mean(axis=1)
    through_zero = falling @ y / (falling**2).sum(axis=1)  # a loss has no negative floor
    factor, floor = np.where(floor < 0, through_zero, factor), np.maximum(floor, 0.0)
    errors = ((floor[:, None] + factor[:, None] * falling - y) ** 2).sum(axis=1)
    best = int(np.argmin(errors))
    curve: Floats = floor[best] + factor[best] * (at / x[0]) ** -EXPONENTS[best]
    return curve


def _resample(noise: Floats, dice: np.random.Generator) -> Floats:
    starts = dice.integers(0, max(1, len(noise) - BLOCK), size=len(noise) // BLOCK + 1)
    return np.concatenate([noise[start : start + BLOCK] for start in starts])[: len(noise)]

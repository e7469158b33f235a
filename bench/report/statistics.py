"""Pure functions on arrays of numbers: nothing here knows what they mean or how they are drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import ndtri

BARS = "▁▂▃▄▅▆▇█"


def spread(values: Sequence[float] | np.ndarray) -> float | None:
    """Standard deviation over seeds, (n - 1 in the denominator); one seed has none."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def wilson(failures: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a failure rate (Wilson 1927, JASA 22, 209)."""
    if trials < 1 or not 0 <= failures <= trials:
        raise ValueError(f"{failures} failures in {trials} trials")
    rate, z = failures / trials, ndtri(0.5 + confidence / 2)
    centre = rate + z**2 / (2 * trials)
    half = z * np.sqrt(rate * (1 - rate) / trials + z**2 / (4 * trials**2))
    low, high = (centre - half) / (1 + z**2 / trials), (centre + half) / (1 + z**2 / trials)
    return 0.0 if failures == 0 else float(low), 1.0 if failures == trials else float(high)


def bootstrap_medians(processes: Sequence[np.ndarray], resamples: int = 2000, seed: int = 0) -> np.ndarray:
    """Resampled medians of times that were taken in several processes, (resamples,): first processes, then repeats.

    Each resample draws as many processes as there are, with replacement, then the median of a resample of the repeats
    of each; its value is the median over processes. The median of n values drawn from n is the sample's quantile at a
    Beta((n + 1) / 2, (n + 1) / 2) position, so no repeat is drawn one by one.
    """
    rng = np.random.default_rng(seed)
    drawn = np.empty((resamples, len(processes), len(processes)))
    for i, samples in enumerate(processes):
        ordered, n = np.sort(np.asarray(samples, float)), len(samples)
        where = rng.beta((n + 1) / 2, (n + 1) / 2, (resamples, len(processes)))
        drawn[:, :, i] = ordered[np.minimum((where * n).astype(int), n - 1)]
    chosen = rng.integers(0, len(processes), (resamples, len(processes)))
    return np.median(np.take_along_axis(drawn, chosen[..., None], 2)[..., 0], axis=1)


def interval(values: np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """The central interval of resampled values."""
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def exponent(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> float | None:
    """The slope of log y over log x by least squares; one x has none."""
    if len(set(x)) < 2:
        return None
    return float(np.polyfit(np.log(np.asarray(x, float)), np.log(np.asarray(y, float)), 1)[0])


def exponent_interval(
    x: Sequence[float] | np.ndarray, resampled: Sequence[np.ndarray], seed: int = 0
) -> tuple[float, float]:
    """The 95 % interval of the slope of log y over log x, from resampled y at each x, (resamples,) each; x differ.

    Points are paired anew, so that draws that were made alike count as independent.
    """
    rng = np.random.default_rng(seed)
    drawn = np.log(np.stack([rng.permutation(values) for values in resampled]))
    return interval(np.polyfit(np.log(np.asarray(x, float)), drawn, 1)[0])


def ratio_interval(over: np.ndarray, under: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of a ratio of two resampled positive numbers, on the log scale, paired anew likewise."""
    rng = np.random.default_rng(seed)
    low, high = interval(np.log(rng.permutation(over)) - np.log(under))
    return float(np.exp(low)), float(np.exp(high))


def crossings(x: Sequence[float], first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Where two positive curves over x meet, between neighbouring points as straight lines on log-log axes."""
    position = np.log(np.asarray(x, float))
    difference = np.log(np.asarray(first, float)) - np.log(np.asarray(second, float))
    found = []
    for i in range(len(x) - 1):
        a, b = difference[i], difference[i + 1]
        if a == 0 or a * b < 0:
            share = a / (a - b) if a != b else 0.0
            found.append(float(np.exp(position[i] + share * (position[i + 1] - position[i]))))
    return found


def pareto(cost: Sequence[float] | np.ndarray, score: Sequence[float] | np.ndarray) -> np.ndarray:
    """Which points no other beats, (points,): none costs no more and scores no less, and one of both truly so."""
    x, y = np.asarray(cost, float), np.asarray(score, float)
    no_worse = (x[None] <= x[:, None]) & (y[None] >= y[:, None])
    better = (x[None] < x[:, None]) | (y[None] > y[:, None])
    return np.array([not row.any() for row in no_worse & better])


def sparkline(values: Sequence[float] | np.ndarray, low: float, high: float) -> str:
    """One bar a value, from `low` to `high`; a dot for a value that is not finite."""
    span = high - low
    bars = []
    for value in values:
        if not np.isfinite(value):
            bars.append("·")
        else:
            share = (value - low) / span if span > 0 else 0.5
            bars.append(BARS[int(np.clip(share * len(BARS), 0, len(BARS) - 1))])
    return "".join(bars)

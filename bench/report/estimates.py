"""What one set of scores says: mean, median, interquartile mean, failure rate and performance profile, with intervals.

Scores are (seeds,), or (seeds, tasks) with seeds that are independent between tasks. NaN stands where a seed has no
value: it is left out and counted. What does not exist is None, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np
from scipy.special import ndtr, stdtrit

from bench.report.statistics import interval, wilson

BOOTSTRAP_FROM = 10
"""Seeds, in each task, from which an interval is bootstrapped; with fewer, resampling sees too little spread."""

PROFILE_FROM = 5
"""Seeds, in each task, from which distributions are compared, not only their centres."""

RESAMPLES = 2000

ROUNDING = 4 * np.finfo(float).eps
"""Numbers that differ by this share of the largest of them are equal."""

DECIMALS = 12
"""Digits, as a share of the largest, to which sums and means are compared: rounding must not break ties."""

NO_VALUE, ONE_SEED, NO_SPREAD = "no value", "one seed", "no spread between seeds"

Method = Literal["t", "bootstrap"]
Sizes = Sequence[int] | np.ndarray
Statistic = Callable[[np.ndarray, Sizes], np.ndarray]
"""(..., values of all tasks, one task after the other), how many each task has -> (...)."""


@dataclass(frozen=True)
class Estimate:
    """A number and its interval.

    `method` is how the interval was made, `unit` what was taken to vary, `n` how many of these there are (in the task
    that has the fewest), `missing` how many had no value and were left out: where it is not 0, `value` is of a part of
    what was planned. `low`, `high` and `method` are None where there is no interval, `value` where there is no number;
    `reason` says why.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    method: str | None = None
    unit: str = "seeds"
    n: int = 0
    missing: int = 0
    reason: str | None = None
    confidence: float = 0.95


@dataclass(frozen=True)
class Profile:
    """Share of runs with a score above each threshold, mean over tasks, and its pointwise interval: (thresholds,) each.

    Where all runs lie on one side of a threshold resampling shows no spread and the band closes. That is no certainty.
    """

    thresholds: np.ndarray
    share: np.ndarray
    low: np.ndarray
    high: np.ndarray
    method: str
    unit: str
    n: int
    missing: int
    confidence: float


@dataclass(frozen=True)
class Course:
    """Means over seeds at several points, and their intervals: (points,) each, NaN where there is none.

    `n` is how many seeds have values; `low` and `high` are None where no point has an interval.
    """

    value: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None
    n: int


def course(scores: Sequence[Sequence[float]] | np.ndarray, *, confidence: float = 0.95) -> Course:
    """`mean` of each point of scores (points, seeds), all of the same seeds.

    Seeds without any value are left out. Where one of the others has none, or one that is not finite, there is no mean:
    it would be of other seeds than its neighbours'.
    """
    found = np.asarray(scores, float)
    finite = np.isfinite(found)
    found, finite = found[:, finite.any(axis=0)], finite[:, finite.any(axis=0)]
    whole = finite.all(axis=1) & (found.shape[1] > 0)
    means = [mean(row, confidence=confidence) if ok else Estimate() for row, ok in zip(found, whole, strict=True)]
    value, low, high = (np.array([getattr(one, name) for one in means], float) for name in ("value", "low", "high"))
    none = not np.isfinite(low).any()
    return Course(value, None if none else low, None if none else high, found.shape[1])


def mean(
    scores: Sequence[float] | np.ndarray, *, confidence: float = 0.95, method: Method | None = None, seed: int = 0
) -> Estimate:
    """Mean over seeds; of several tasks the mean of their means.

    Below `BOOTSTRAP_FROM` seeds the interval is Student's (1908); over several tasks, with the degrees of freedom of
    Satterthwaite (1946) and Welch (1947). From there on seeds are resampled within tasks (Efron 1979; Agarwal et al.
    2021), and quantiles are taken further out for what n draws from n lack in spread (Hesterberg 2015, the expanded
    percentile interval). `method` takes one of the two whatever n is. All values equal: no interval, for seeds
    without spread say nothing about it. ValueError: a score is infinite, or the array has no or more than two axes.
    """
    return _estimate(scores, _mean, confidence, method, seed)


def median(
    scores: Sequence[float] | np.ndarray, *, confidence: float = 0.95, method: Method | None = None, seed: int = 0
) -> Estimate:
    """Median over seeds; of several tasks the median of their means over seeds (Agarwal et al. 2021).

    As `mean`, but that the standard error in the t interval is the bootstrap's, times sqrt(n / (n - 1)): of a mean that
    is Student's own. The degrees of freedom are those of one task, for a median may hang on one alone.
    """
    return _estimate(scores, _median, confidence, method, seed)


def interquartile_mean(
    scores: Sequence[float] | np.ndarray, *, confidence: float = 0.95, method: Method | None = None, seed: int = 0
) -> Estimate:
    """Mean of the scores of all seeds and tasks without the lowest and the highest quarter (Agarwal et al. 2021).

    int(n / 4) of n values go at either end, as in scipy.stats.trim_mean, so below four values it is the mean. Interval
    as for `median`. A task that lacks seeds has less weight.
    """
    return _estimate(scores, _interquartile_mean, confidence, method, seed)


def failure_rate(failures: int, trials: int, confidence: float = 0.95) -> Estimate:
    """Failures among runs that ended, with Wilson's score interval (1927). ValueError: more failures than trials."""
    if trials == 0 and failures == 0:
        return Estimate(unit="runs", reason=NO_VALUE, confidence=confidence)
    low, high = wilson(failures, trials, confidence)
    return Estimate(failures / trials, low, high, "Wilson", "runs", trials, confidence=confidence)


def performance_profile(
    scores: Sequence[float] | np.ndarray,
    thresholds: Sequence[float] | np.ndarray,
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> Profile | None:
    """Share of runs above each threshold, mean over tasks (Dolan and Moré 2002, in the form of Agarwal et al. 2021).

    Scores of all tasks are on one scale; intervals are the bootstrap's. None below `PROFILE_FROM` seeds in any task.
    """
    tasks, missing = by_task(scores)
    if fewest(tasks) < PROFILE_FROM:
        return None
    at = np.asarray(thresholds, float)
    sizes = [len(task) for task in tasks]
    above = [[(task > threshold).astype(float) for task in tasks] for threshold in at]
    share = np.array([_mean(np.concatenate(one), sizes) for one in above])
    bands = [expanded_interval(resampled(one, _mean, seed), sizes, confidence) for one in above]
    low, high = np.array(bands).reshape(-1, 2).T
    return Profile(at, share, low, high, "stratified bootstrap", unit(tasks), fewest(tasks), missing, confidence)


def by_task(scores: Sequence[float] | np.ndarray) -> tuple[list[np.ndarray], int]:
    """The values that each task has, and how many are missing (NaN), from scores (seeds,) or (seeds, tasks)."""
    found = np.asarray(scores, float)
    if found.ndim == 1:
        found = found[:, None]
    if found.ndim != 2 or found.shape[1] == 0:
        raise ValueError(f"scores are (seeds,) or (seeds, tasks), not {np.shape(scores)}")
    if np.isinf(found).any():
        raise ValueError("a score is infinite: a seed without a value is NaN")
    return [task[~np.isnan(task)] for task in found.T], int(np.isnan(found).sum())


def side_by_side(scores: Sequence[Sequence[float] | np.ndarray]) -> np.ndarray:
    """Scores of several tasks, of as many seeds each as it has, as (seeds, tasks), with NaN where there is none."""
    found = np.full((max(map(len, scores)), len(scores)), np.nan)
    for i, own in enumerate(scores):
        found[: len(own), i] = own
    return found


def fewest(tasks: Sequence[np.ndarray]) -> int:
    """Seeds in the task that has the fewest."""
    return min(len(task) for task in tasks)


def unit(tasks: Sequence[np.ndarray]) -> str:
    """What is taken to vary."""
    return "seeds" if len(tasks) == 1 else "seeds within tasks"


def level(values: np.ndarray, scale: float | None = None) -> bool:
    """Whether all values are equal, up to the rounding of numbers as large as `scale` (default: the values')."""
    largest = np.abs(values).max() if scale is None else scale
    return bool(np.ptp(values) <= ROUNDING * largest)


def student(centre: Any, error: Any, freedom: Any, confidence: float = 0.95) -> tuple[Any, Any]:
    """The t interval: `centre` ± t quantile x `error`; numbers or arrays of one shape."""
    half = stdtrit(freedom, 0.5 + confidence / 2) * error
    return centre - half, centre + half


def expanded_interval(drawn: np.ndarray, sizes: Sizes, confidence: float) -> tuple[float, float]:
    """Quantiles of resampled values at Phi(-sqrt(n / (n - 1)) t) and its mirror (Hesterberg 2015, section 5.3).

    n is the smallest of `sizes`, the numbers of seeds that were resampled apart; t has sum(size - 1) degrees of
    freedom.
    """
    n = min(sizes)
    quantile = stdtrit(sum(sizes) - len(sizes), 0.5 + confidence / 2)
    return interval(drawn, 1 - 2 * float(ndtr(-np.sqrt(n / (n - 1)) * quantile)))


def resampled(tasks: Sequence[np.ndarray], statistic: Statistic, seed: int = 0, first: int = 0) -> np.ndarray:
    """The statistic of resamples of each task's seeds, (RESAMPLES,)."""
    drawn = [task[picks(len(task), seed, first + i)] for i, task in enumerate(tasks)]
    return statistic(np.concatenate(drawn, axis=1), [len(task) for task in tasks])


@lru_cache(maxsize=64)
def picks(n: int, seed: int, stratum: int) -> np.ndarray:
    """Which of n seeds each resample draws, (RESAMPLES, n): of its own for every stratum."""
    found = np.random.default_rng((seed, stratum)).integers(0, n, (RESAMPLES, n))
    found.flags.writeable = False
    return found


@lru_cache(maxsize=64)
def weights(n: int, seed: int, stratum: int) -> np.ndarray:
    """The share that each of n seeds has in each of these resamples, (RESAMPLES, n)."""
    found = (picks(n, seed, stratum)[:, :, None] == np.arange(n)).mean(axis=1)
    found.flags.writeable = False
    return found


def _estimate(scores: Any, statistic: Statistic, confidence: float, method: Method | None, seed: int) -> Estimate:
    tasks, missing = by_task(scores)
    n = fewest(tasks)
    known = partial(Estimate, unit=unit(tasks), n=n, missing=missing, confidence=confidence)
    if n == 0:
        return known(reason=NO_VALUE)
    sizes = np.array([len(task) for task in tasks])
    value = float(statistic(np.concatenate(tasks), sizes))
    if n == 1:
        return known(value, reason=ONE_SEED)
    if all(level(task) for task in tasks):
        return known(value, reason=NO_SPREAD)
    if (method or ("t" if n < BOOTSTRAP_FROM else "bootstrap")) == "bootstrap":
        low, high = expanded_interval(resampled(tasks, statistic, seed), sizes, confidence)
        return known(value, low, high, "stratified bootstrap")
    squares = np.array([task.var(ddof=1) for task in tasks]) / sizes
    freedom = n - 1 if statistic is _median else squares.sum() ** 2 / (squares**2 / (sizes - 1)).sum()
    if statistic is _mean:
        low, high = student(value, np.sqrt(squares.sum()) / len(tasks), freedom, confidence)
        return known(value, float(low), float(high), "t")
    error = resampled(tasks, statistic, seed).std() * np.sqrt(n / (n - 1))
    low, high = student(value, error, freedom, confidence)
    return known(value, float(low), float(high), "t, bootstrapped standard error")


def _task_means(values: np.ndarray, sizes: Sizes) -> np.ndarray:
    """(..., values of all tasks) -> (..., tasks)."""
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return np.add.reduceat(values, starts, axis=-1) / np.asarray(sizes)


def _mean(values: np.ndarray, sizes: Sizes) -> np.ndarray:
    return _task_means(values, sizes).mean(-1)


def _median(values: np.ndarray, sizes: Sizes) -> np.ndarray:
    over = values if len(sizes) == 1 else _task_means(values, sizes)
    return _middle(over, (over.shape[-1] - 1) // 2)


def _interquartile_mean(values: np.ndarray, sizes: Sizes) -> np.ndarray:
    return _middle(values, values.shape[-1] // 4)


def _middle(values: np.ndarray, cut: int) -> np.ndarray:
    """Mean over the last axis without the `cut` lowest and highest. Whole rows are sorted, which is vectorised."""
    return np.sort(values, axis=-1)[..., cut : values.shape[-1] - cut].mean(-1)

"""Which of two is better, and is that more than chance: differences paired by seed, many at once, and orders of scores.

Every difference is first - second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from scipy.special import ndtri, stdtrit
from scipy.stats import false_discovery_control, nct, permutation_test

from bench.report.estimates import (
    DECIMALS,
    NO_SPREAD,
    NO_VALUE,
    ONE_SEED,
    PROFILE_FROM,
    ROUNDING,
    Estimate,
    by_task,
    expanded_interval,
    fewest,
    level,
    student,
    unit,
    weights,
)

EXACT_SEEDS = 16
"""Pairs up to which the sign-flip test goes through all 2^n flips."""

RANDOM_FLIPS = 100_000
"""Flips that are drawn beyond."""

Correction = Literal["holm", "benjamini-hochberg"]


@dataclass(frozen=True)
class Comparison:
    """Two sets of scores, paired by seed.

    `difference` is the mean of first - second over the `n` seeds that both have; `left_out` seeds have a value in one
    only, or in none. `low`, `high`: paired t interval. `p`: two-sided sign-flip test by `test`; `smallest_p`: the least
    that n pairs can give, whatever they hold. `effect_size`: d_z, the mean of the differences over their standard
    deviation (Cohen 1988). `correlation`: Pearson's, of the scores over seeds; pairing makes the interval narrower as
    far as it is positive. `more_seeds`: what a paired t test lacks to see this effect. None: does not exist, and
    `reason` says why there is no interval.
    """

    n: int
    left_out: int
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    smallest_p: float | None = None
    test: str | None = None
    effect_size: float | None = None
    correlation: float | None = None
    more_seeds: int | None = None
    unit: str = "seeds"
    reason: str | None = None
    confidence: float = 0.95


@dataclass(frozen=True)
class Family:
    """Tests that are read together, in the order given.

    `corrected` are their p values, `marked` those of at most `alpha`; `smallest` is the least that any of them can
    reach with its seeds, corrected: above `alpha` (`reachable` false) nothing can be marked, whatever the scores are.
    `seeds_needed` is the number of seeds from which on one of as many tests can. `tests` of them have a p value.
    """

    corrected: tuple[float | None, ...]
    marked: tuple[bool, ...]
    smallest: float | None
    reachable: bool
    seeds_needed: int | None
    tests: int
    method: Correction
    alpha: float


def align(first: Mapping[Any, float | None], second: Mapping[Any, float | None]) -> tuple[np.ndarray, np.ndarray]:
    """Values by seed -> two arrays over the same seeds, those of either, NaN where one has no value."""
    seeds = list(dict.fromkeys([*first, *second]))
    at = [[math.nan if (value := scores.get(seed)) is None else value for seed in seeds] for scores in (first, second)]
    return np.array(at[0], float), np.array(at[1], float)


def compare(
    first: Sequence[float] | np.ndarray,
    second: Sequence[float] | np.ndarray,
    *,
    confidence: float = 0.95,
    alpha: float = 0.05,
    power: float = 0.8,
    seed: int = 0,
) -> Comparison:
    """Scores of two models on the same seeds, (seeds,) each, NaN where one has no value.

    One pair has a difference and nothing else. Differences that are all equal have no t interval, no effect size and
    no number of seeds: their formulas give a width of 0, an infinity and a power of 1, from seeds that have shown no
    spread at all. The test stands, for signs are exchangeable all the same. ValueError: other shapes, infinite scores.
    """
    first, second = np.asarray(first, float), np.asarray(second, float)
    if first.ndim != 1 or first.shape != second.shape:
        raise ValueError(f"scores by seed are (seeds,) and (seeds,), not {first.shape} and {second.shape}")
    if np.isinf(first).any() or np.isinf(second).any():
        raise ValueError("a score is infinite: a seed without a value is NaN")
    both = ~(np.isnan(first) | np.isnan(second))
    a, b, n = first[both], second[both], int(both.sum())
    left_out = len(both) - n
    if n == 0:
        return Comparison(n, left_out, reason=NO_VALUE, confidence=confidence)
    if n == 1:
        return Comparison(n, left_out, float(a[0] - b[0]), reason=ONE_SEED, confidence=confidence)
    differences, scale = a - b, _scale(a, b)
    difference = 0.0 if abs(differences.mean()) <= ROUNDING * scale else float(differences.mean())
    low = high = effect_size = None
    spread = not level(differences, scale)
    if spread:
        deviation = float(differences.std(ddof=1))
        low, high = map(float, student(difference, deviation / math.sqrt(n), n - 1, confidence))
        effect_size = difference / deviation
    needed = seeds_needed(effect_size, alpha, power) if effect_size else None
    return Comparison(
        n=n,
        left_out=left_out,
        difference=difference,
        low=low,
        high=high,
        p=sign_flip(a, b, seed),
        smallest_p=smallest_p(n),
        test="sign-flip, exact" if n <= EXACT_SEEDS else f"sign-flip, {RANDOM_FLIPS:,} random flips",
        effect_size=effect_size,
        correlation=_correlation(a, b),
        more_seeds=None if needed is None else max(0, needed - n),
        reason=None if spread else NO_SPREAD,
        confidence=confidence,
    )


def sign_flip(first: np.ndarray, second: np.ndarray, seed: int = 0) -> float:
    """Two-sided p of the mean difference of pairs, (pairs,) each, at least two, under flips of their signs.

    Fisher's test (1935, The Design of Experiments, section 21; Pitman 1937): exact up to `EXACT_SEEDS` pairs, then over
    `RANDOM_FLIPS` random flips, of which the observed one is counted as one more (Phipson and Smyth 2010).
    """
    scale = _scale(first, second) or 1.0
    return float(
        permutation_test(
            (first, second),
            lambda x, y, axis: np.round(np.mean(x - y, axis=axis) / scale, DECIMALS),
            permutation_type="samples",
            vectorized=True,
            n_resamples=2**EXACT_SEEDS if len(first) <= EXACT_SEEDS else RANDOM_FLIPS,
            batch=10_000,
            random_state=seed,
        ).pvalue
    )


def smallest_p(n: int) -> float:
    """The least two-sided p that the sign-flip test of n pairs can give: all signs alike. .25 at 3, .0625 at 5."""
    return 2.0 ** (1 - n) if n <= EXACT_SEEDS else 2 / (RANDOM_FLIPS + 1)


def paired_power(effect_size: float, n: int, alpha: float = 0.05) -> float:
    """Power of the two-sided paired t test of n pairs at d_z, by the noncentral t (Cohen 1988)."""
    critical, shift = stdtrit(n - 1, 1 - alpha / 2), abs(effect_size) * math.sqrt(n)
    # Beyond 5 the other side is at most Phi(-5) = 3e-7, and its series fails.
    other_side = nct.cdf(-critical, n - 1, shift) if shift < 5 else 0.0
    return float(nct.sf(critical, n - 1, shift) + other_side)


def seeds_needed(effect_size: float, alpha: float = 0.05, power: float = 0.8) -> int | None:
    """The smallest number of pairs, from 2, with which a paired t test has that power at d_z; None: d_z is 0.

    `effect_size` is taken for the true one. Seen in few seeds it is a rough guess of that, and so is the answer.
    """
    if effect_size == 0:
        return None
    normal = ((ndtri(1 - alpha / 2) + ndtri(power)) / effect_size) ** 2
    if normal > 1e9:  # t is normal to more digits than matter
        return math.ceil(normal)
    enough = 2
    while paired_power(effect_size, enough, alpha) < power:
        enough *= 2
    short = enough // 2
    while enough - short > 1:
        middle = (short + enough) // 2
        if paired_power(effect_size, middle, alpha) < power:
            short = middle
        else:
            enough = middle
    return enough


def corrected(p: Sequence[float | None], method: Correction = "holm") -> list[float | None]:
    """p values for being read together; None has no test, stays None and does not count as one.

    "holm": the chance of any false mark stays below alpha, however the tests depend on each other (Holm 1979).
    "benjamini-hochberg": the expected share of false ones among the marked does, for tests that are independent or
    positively dependent (Benjamini and Hochberg 1995). ValueError: another method, or no probability.
    """
    there = [value for value in p if value is not None]
    if any(not 0 <= value <= 1 for value in there):
        raise ValueError(f"p values lie between 0 and 1, not {there}")
    if method == "benjamini-hochberg":
        found = iter(false_discovery_control(there, method="bh") if there else [])
    elif method == "holm":
        order = np.argsort(there, kind="stable")
        steps = np.maximum.accumulate((len(there) - np.arange(len(there))) * np.asarray(there, float)[order])
        found = iter(np.minimum(steps, 1.0)[np.argsort(order)])
    else:
        raise ValueError(f"no correction {method!r}: holm or benjamini-hochberg")
    return [None if value is None else float(next(found)) for value in p]


def could_be_marked(
    p: Sequence[float | None], smallest: Sequence[float | None], method: Correction = "holm", alpha: float = 0.05
) -> list[bool]:
    """Whether each test could have been marked beside the others as they came out: at the least p that it can reach."""
    if not any(bound is not None and bound <= alpha for bound in corrected(smallest, method)):
        return [False] * len(smallest)
    found = []
    for i, bound in enumerate(smallest):
        own = corrected([*p[:i], bound, *p[i + 1 :]], method)[i]
        found.append(own is not None and own <= alpha)
    return found


def family(
    p: Sequence[float | None], smallest: Sequence[float | None], method: Correction = "holm", alpha: float = 0.05
) -> Family:
    """Corrects p values that stand in one table, and says whether its seeds could have marked anything.

    `smallest` are the least p that each test can reach (`Comparison.smallest_p`). Both corrections grow with every p,
    so these, corrected, bound what can be had. ValueError: one has a test that the other lacks, and as for `corrected`.
    """
    if [value is None for value in p] != [value is None for value in smallest]:
        raise ValueError(f"p values {list(p)} and the smallest ones {list(smallest)} are not of the same tests")
    found = corrected(p, method)
    bounds = [bound for bound in corrected(smallest, method) if bound is not None]
    least = min(bounds, default=None)
    tests = sum(value is not None for value in p)
    return Family(
        corrected=tuple(found),
        marked=tuple(value is not None and value <= alpha for value in found),
        smallest=least,
        reachable=least is not None and least <= alpha,
        seeds_needed=_seeds_to_reach(alpha, tests, method),
        tests=tests,
        method=method,
        alpha=alpha,
    )


def probability_of_improvement(
    first: Sequence[float] | np.ndarray,
    second: Sequence[float] | np.ndarray,
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """Chance that a run of the first scores above a run of the second on the same task, mean over tasks.

    Scores are (seeds,) or (seeds, tasks), NaN where there is no value; any two seeds meet, and ties count one half
    (Mann and Whitney 1947; Agarwal et al. 2021). Seeds are resampled within tasks, those of the two apart. No value
    below `PROFILE_FROM` seeds; no interval where all runs of one lie above all of the other: no resample differs.
    ValueError: unequal numbers of tasks, infinite scores.
    """
    (ours, lack), (theirs, lacking) = by_task(first), by_task(second)
    if len(ours) != len(theirs):
        raise ValueError(f"scores of {len(ours)} and of {len(theirs)} tasks")
    n, missing = min(fewest(ours), fewest(theirs)), lack + lacking
    known = partial(Estimate, unit=unit(ours), n=n, missing=missing, confidence=confidence)
    if n < PROFILE_FROM:
        return known(reason=f"fewer than {PROFILE_FROM} seeds")
    wins = [_wins(a, b) for a, b in zip(ours, theirs, strict=True)]
    value = float(np.mean([task.mean() for task in wins]))
    drawn = np.mean([_resampled_wins(task, seed, 2 * i) for i, task in enumerate(wins)], axis=0)
    if level(drawn, 1.0):
        return known(value, reason=NO_SPREAD)
    sizes = [size for task in wins for size in task.shape]
    low, high = expanded_interval(drawn, sizes, confidence)
    return known(value, low, high, "stratified bootstrap")


def _scale(first: np.ndarray, second: np.ndarray) -> float:
    return float(max(np.abs(first).max(), np.abs(second).max()))


def _correlation(first: np.ndarray, second: np.ndarray) -> float | None:
    """Pearson's; of two pairs it is always 1 or -1, and of equal values it does not exist."""
    if len(first) < 3 or level(first) or level(second):
        return None
    return float(np.clip(np.corrcoef(first, second)[0, 1], -1, 1))


def _seeds_to_reach(alpha: float, tests: int, method: Correction) -> int | None:
    for n in range(2, EXACT_SEEDS + 2):
        least = corrected([smallest_p(n)] * tests, method)
        if least and least[0] is not None and least[0] <= alpha:
            return n
    return None


def _wins(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """1 where a value of the first lies above one of the second, 1/2 where they tie: (first, second)."""
    apart = first[:, None] - second
    ties = np.abs(apart) <= ROUNDING * _scale(first, second)
    return np.where(ties, 0.5, apart > 0)


def _resampled_wins(wins: np.ndarray, seed: int, stratum: int) -> np.ndarray:
    """Means of `wins` over resampled rows and columns, (resamples,)."""
    rows, columns = wins.shape
    return ((weights(rows, seed, stratum) @ wins) * weights(columns, seed, stratum + 1)).sum(axis=1)

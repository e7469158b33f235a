"""Which models are better over tasks: mean ranks, Friedman's test, and the numbers of a critical-difference plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.stats import permutation_test, rankdata, studentized_range

from bench.report.estimates import DECIMALS

PERMUTATIONS = 20_000
"""Orders of the ranks within tasks that are drawn where there are more of them; where not, all are gone through."""


@dataclass(frozen=True)
class Ranking:
    """Models over the `n` tasks on which all have a score; `left_out` tasks lack one.

    `mean_ranks` (models,), 1 the best, ties share theirs. `friedman`: chi-squared with correction for ties, `p` by
    `test`; None of one task, or where all tie in every task. `critical_difference`: how far mean ranks must lie apart.
    `cliques`: the largest sets of models, by index from the best to the worst, that the tasks do not tell apart; sets
    may overlap, and there is none of one model. Where Friedman's test does not reject, all models are one.
    """

    n: int
    left_out: int
    alpha: float
    mean_ranks: tuple[float, ...] | None = None
    critical_difference: float | None = None
    cliques: tuple[tuple[int, ...], ...] = ()
    friedman: float | None = None
    p: float | None = None
    test: str | None = None
    unit: str = "tasks"


def ranking(
    scores: Sequence[Sequence[float]] | np.ndarray,
    *,
    higher_is_better: bool = True,
    alpha: float = 0.05,
    seed: int = 0,
) -> Ranking:
    """Ranks of scores (tasks, models), one for each (such as the mean over seeds), NaN where a model has none.

    Friedman (1937) asks whether models differ at all; its p comes from permuting ranks within tasks, because the
    chi-squared approximation needs more tasks than benchmarks have. Then two models differ if their mean ranks lie at
    least q sqrt(k (k + 1) / (6 n)) apart, q the studentised range of k models over sqrt(2) (Nemenyi 1963; Demšar 2006).
    ValueError: fewer than two models, infinite scores, other shapes.
    """
    given = np.asarray(scores, float)
    if given.ndim != 2 or given.shape[1] < 2:
        raise ValueError(f"scores are (tasks, models) of two models at least, not {given.shape}")
    if np.isinf(given).any():
        raise ValueError("a score is infinite: a task without a value is NaN")
    kept = given[~np.isnan(given).any(axis=1)]
    (n, k), left_out = kept.shape, len(given) - len(kept)
    if n == 0:
        return Ranking(n, left_out, alpha)
    scale = np.abs(kept).max(axis=1, keepdims=True)
    rounded = np.round(kept / np.where(scale > 0, scale, 1.0), DECIMALS)
    ranks = rankdata(-rounded if higher_is_better else rounded, axis=1)
    means = ranks.mean(axis=0)
    order = np.argsort(means, kind="stable").tolist()
    distance = float(studentized_range.ppf(1 - alpha, k, np.inf) / math.sqrt(2) * math.sqrt(k * (k + 1) / (6 * n)))
    known = partial(Ranking, n, left_out, alpha, tuple(means.tolist()), distance)
    squares = ((ranks - (k + 1) / 2) ** 2).sum()
    if squares == 0 or n == 1:
        return known((tuple(order),))
    result = permutation_test(
        tuple(ranks.T),
        _between,
        permutation_type="samples",
        vectorized=True,
        n_resamples=PERMUTATIONS,
        batch=2000,
        alternative="greater",
        random_state=seed,
    )
    p = float(result.pvalue)
    how = "exact" if math.factorial(k) ** n <= PERMUTATIONS else f"{PERMUTATIONS:,} random"
    return known(
        _cliques(order, means, distance) if p <= alpha else (tuple(order),),
        friedman=float((k - 1) * result.statistic / squares),
        p=p,
        test=f"permutations within tasks, {how}",
    )


def _between(*models: np.ndarray, axis: int) -> np.ndarray:
    """Sum over models of (rank sum - its expectation)^2: all of Friedman's statistic that such permutations change."""
    middle = models[0].shape[axis] * (len(models) + 1) / 2
    return np.sum([(ranks.sum(axis=axis) - middle) ** 2 for ranks in models], axis=0)


def _cliques(order: Sequence[int], means: np.ndarray, distance: float) -> tuple[tuple[int, ...], ...]:
    """Runs of neighbours in order whose ends lie less than `distance` apart, and that are in no longer one."""
    found, reached = [], 0
    for start in range(len(order)):
        end = start
        while end + 1 < len(order) and means[order[end + 1]] - means[order[start]] < distance:
            end += 1
        if end > start and end + 1 > reached:
            found.append(tuple(order[start : end + 1]))
        reached = max(reached, end + 1)
    return tuple(found)

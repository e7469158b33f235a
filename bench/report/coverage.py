"""How often the intervals of the reports hold the true value: the tables of docs/statistics.md, measured.

python -m bench.report.coverage prints them, in less than a minute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.special import ndtr
from scipy.stats import binom

from bench.report import estimates
from bench.report.comparison import probability_of_improvement
from bench.report.estimates import BOOTSTRAP_FROM, PROFILE_FROM, Estimate, Method, student
from bench.report.statistics import wilson

SEEDS = (3, 5, 10, 30)
RATES = (0.02, 0.1, 0.25, 0.5)

STUDENT_REPEATS = 20_000
REPEATS = 1000

STATISTICS: dict[str, Callable[..., Estimate]] = {
    "mean": estimates.mean,
    "median": estimates.median,
    "interquartile mean": estimates.interquartile_mean,
}


@dataclass(frozen=True)
class Data:
    """Scores from a distribution of which each statistic is known.

    `draw` makes scores (repeats, seeds) or (repeats, seeds, tasks) of (generator, repeats, seeds).
    """

    name: str
    draw: Callable[[np.random.Generator, int, int], np.ndarray]
    true: dict[str, float]


NORMAL = Data(
    "normal", lambda rng, repeats, seeds: rng.standard_normal((repeats, seeds)), dict.fromkeys(STATISTICS, 0.0)
)
EXPONENTIAL = Data(
    "exponential",
    lambda rng, repeats, seeds: rng.exponential(size=(repeats, seeds)),
    {
        "mean": 1.0,
        "median": math.log(2),
        # twice the integral of x exp(-x) from log(4 / 3) to log(4)
        "interquartile mean": 1.5 * (math.log(4 / 3) + 1) - 0.5 * (math.log(4) + 1),
    },
)
TASKS = Data(
    "normal, 3 tasks",
    lambda rng, repeats, seeds: rng.normal((0.0, 1.0, 2.0), (1.0, 2.0, 1.0), (repeats, seeds, 3)),
    dict.fromkeys(STATISTICS, 1.0),
)


@dataclass(frozen=True)
class Row:
    """An interval, and the share of `repeats` data sets in which `measure` (seeds, repeats, seed) finds it right.

    `used` are the numbers of seeds with which reports show it, `defined` those with which it exists.
    """

    interval: str
    data: str
    measure: Callable[[int, int, int], float]
    used: Sequence[int]
    defined: Sequence[int] = SEEDS
    repeats: int = REPEATS

    def line(self) -> str:
        """As the table has it: in percent, in brackets where reports show another interval."""
        return _line([self.interval, self.data, *map(self._entry, SEEDS)])

    def _entry(self, seeds: int) -> str:
        if seeds not in self.defined:
            return "-"
        share = _percent(self.measure(seeds, self.repeats, 0))
        return share if seeds in self.used else f"({share})"


def student_coverage(data: Data, seeds: int, repeats: int, seed: int) -> float:
    """Of the t interval of the mean over seeds of one task."""
    scores = data.draw(np.random.default_rng((seed, seeds)), repeats, seeds)
    error = scores.std(axis=1, ddof=1) / math.sqrt(seeds)
    low, high = student(scores.mean(axis=1), error, seeds - 1)
    return float(np.mean((low <= data.true["mean"]) & (data.true["mean"] <= high)))


def coverage(statistic: str, method: Method, data: Data, seeds: int, repeats: int, seed: int) -> float:
    """Of the interval of a statistic over seeds, by `method`."""
    every = data.draw(np.random.default_rng((seed, seeds)), repeats, seeds)
    return _held([STATISTICS[statistic](scores, method=method) for scores in every], data.true[statistic])


def improvement_coverage(shift: float, seeds: int, repeats: int, seed: int) -> float:
    """Of the interval of the probability of improvement between normal scores whose means are `shift` apart."""
    first, second = np.random.default_rng((seed, seeds)).standard_normal((2, repeats, seeds))
    found = [probability_of_improvement(a + shift, b) for a, b in zip(first, second, strict=True)]
    return _held(found, _improvement(shift))


def wilson_coverage(rate: float, trials: int) -> float:
    """Of Wilson's interval, exactly."""
    failures = range(trials + 1)
    held = [low <= rate <= high for low, high in (wilson(count, trials) for count in failures)]
    return float(binom.pmf(failures, trials, rate) @ held)


def lowest_wilson_coverage(trials: int) -> float:
    """The same at the rate where it is least: right outside the interval of some number of failures."""
    bounds = [bound for failures in range(trials + 1) for bound in wilson(failures, trials) if 0 < bound < 1]
    return min(wilson_coverage(bound * side, trials) for bound in bounds for side in (1 - 1e-12, 1 + 1e-12))


def rows() -> list[Row]:
    """The first table."""
    used: dict[Method, list[int]] = {
        "t": [n for n in SEEDS if n < BOOTSTRAP_FROM],
        "bootstrap": [n for n in SEEDS if n >= BOOTSTRAP_FROM],
    }
    found = []
    for statistic in STATISTICS:
        for method, seeds in used.items():
            for data in (NORMAL, EXPONENTIAL, TASKS):
                named = f"{statistic}, {method}"
                if named == "mean, t" and data is not TASKS:
                    measure = partial(student_coverage, data)
                    found.append(Row(named, data.name, measure, seeds, repeats=STUDENT_REPEATS))
                else:
                    found.append(Row(named, data.name, partial(coverage, statistic, method, data), seeds))
    enough = [n for n in SEEDS if n >= PROFILE_FROM]
    for shift in (0.0, 1.0):
        data_name = f"normal, P = {_improvement(shift):.2f}"
        measure = partial(improvement_coverage, shift)
        found.append(Row("probability of improvement, bootstrap", data_name, measure, enough, enough))
    return found


def wilson_lines() -> list[str]:
    """The lines of the second table: coverage at some rates, and the lowest at any."""
    found = [_line([f"{rate:g}", *(_percent(wilson_coverage(rate, n)) for n in SEEDS)]) for rate in RATES]
    return [*found, _line(["lowest", *(_percent(lowest_wilson_coverage(n)) for n in SEEDS)])]


def main() -> None:
    """Prints both tables."""
    numbers = [str(n) for n in SEEDS]
    print(_line(["interval", "data", *numbers]), _line(["---"] * 6), sep="\n")
    for row in rows():
        print(row.line(), flush=True)
    print("", _line(["failure rate", *numbers]), _line(["---"] * 5), *wilson_lines(), sep="\n")


def _improvement(shift: float) -> float:
    """The true probability of improvement."""
    return float(ndtr(shift / math.sqrt(2)))


def _held(found: Sequence[Estimate], true: float) -> float:
    """The share of estimates whose interval holds `true`; one that has none does not."""
    bounds = [(one.low, one.high) for one in found if one.low is not None and one.high is not None]
    return sum(low <= true <= high for low, high in bounds) / len(found)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _line(entries: Sequence[str]) -> str:
    return "| " + " | ".join(entries) + " |"


if __name__ == "__main__":
    main()

"""Tables of scores: a grid with its statistics, tests and ranks."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np

from bench.contract import require
from bench.report import comparison, estimates
from bench.report.comparison import Comparison, Correction, Family
from bench.report.estimates import Estimate
from bench.report.grid import Entry, Grid
from bench.report.ranking import Ranking, ranking
from bench.report.sheet import Field, Key, Mark, Row, Sheet, decimals, written

Statistic = Literal["mean", "median", "iqm"]
STATISTICS: Mapping[Statistic, Callable[..., Estimate]] = {
    "mean": estimates.mean, "median": estimates.median, "iqm": estimates.interquartile_mean,
}  # fmt: skip
NAMES: Mapping[Statistic, str] = {"mean": "mean", "median": "median", "iqm": "interquartile mean"}
CORRECTIONS: Mapping[Correction, str] = {"holm": "Holm", "benjamini-hochberg": "Benjamini-Hochberg"}
UNVERIFIED = "unverified"
"""What stands for the status of a cell whose layer did not agree with the oracle."""
FAILURES = ("diverged", "oom", "timeout", "error", "crashed", "compile_failed", "missing", "unsupported", "interrupted",
            UNVERIFIED)  # fmt: skip
"""Statuses that a footnote names."""


class Scores(ABC):
    """What both kinds of sheet share: tests against one row of each column, corrected over the whole table."""

    def __init__(
        self, grid: Grid, statistic: Statistic = "mean", correction: Correction = "holm", alpha: float = 0.05
    ) -> None:
        self.grid, self.statistic, self.estimate = grid, statistic, STATISTICS[statistic]
        self.correction, self.alpha = correction, alpha
        self.footnotes: list[str] = []
        self.style: Literal["plain", "signed", "ratio"] = "plain"
        self.unit, self.units = ("process", "processes") if grid.measure.repeats == "process" else ("seed", "seeds")

    @abstractmethod
    def reference(self, row: Key, column: Key) -> Key | None:
        """The row that an entry is compared with; None where it is compared with none."""

    @abstractmethod
    def field(self, row: Key, column: Key, digits: int) -> Field:
        """The number at a place where cells were planned."""

    @abstractmethod
    def digits(self, column: Key) -> int:
        """The decimals of a column's numbers."""

    @abstractmethod
    def over_all(self, row: Key) -> Field | None:
        """The row's number over all columns; None where a column is not whole."""

    @abstractmethod
    def over_all_is(self) -> str:
        """What that number is."""

    @abstractmethod
    def caption(self) -> list[str]:
        """What the numbers are, how they were compared, and what could be seen at all."""

    def title(self) -> str:
        unit = f" [{self.grid.measure.unit}]" if self.grid.measure.unit else ""
        return self.grid.measure.title + unit + ("" if self.statistic == "mean" else f", {NAMES[self.statistic]}")

    def shown(self) -> list[Key]:
        """The rows that have a line."""
        return list(self.grid.rows)

    def rows(self) -> list[Row]:
        digits = {column: self.digits(column) for column in self.grid.columns}
        return [
            (row, [
                self.field(row, column, digits[column]) if (row, column) in self.grid.entries else Field("-")
                for column in self.grid.columns
            ])
            for row in self.shown()
        ]  # fmt: skip

    def sheet(self, overall: bool) -> Sheet:
        rows, caption = self.rows(), self.caption()
        columns = [
            ", ".join(_named(*pair) for pair in zip(self.grid.column_heads, c, strict=True)) for c in self.grid.columns
        ]
        if overall:
            rows, columns, caption = self.with_overall(rows, columns, caption)
        heads = [name.replace("_", " ") for name in self.grid.row_heads]
        return Sheet(self.title(), heads, columns, rows, caption, self.footnotes)

    @cached_property
    def tests(self) -> dict[tuple[Key, Key], Comparison]:
        """(row, column) -> what came of comparing its entry, of all entries that are whole and have another to meet."""
        found = {}
        for (row, column), entry in self.grid.entries.items():
            other = self.grid.entries.get((reference, column)) if (reference := self.reference(row, column)) else None
            if entry.whole and other is not None and other.whole:
                found[row, column] = comparison.compare(*self.scores(entry, other))
        return found

    @cached_property
    def family(self) -> Family:
        tests = self.tests.values()
        return comparison.family(
            [test.p for test in tests], [test.smallest_p for test in tests], self.correction, self.alpha
        )

    @cached_property
    def corrected(self) -> dict[tuple[Key, Key], float | None]:
        return dict(zip(self.tests, self.family.corrected, strict=True))

    @cached_property
    def could_be_marked(self) -> dict[tuple[Key, Key], bool]:
        """Of each test, whether its pairs are enough to be marked beside the others."""
        p, smallest = ([getattr(test, name) for test in self.tests.values()] for name in ("p", "smallest_p"))
        return dict(zip(self.tests, comparison.could_be_marked(p, smallest, self.correction, self.alpha), strict=True))

    def tested(self, row: Key, column: Key) -> dict[str, Any]:
        """What a field keeps of its test; seeds still needed: for its power, and for a mark in such a table at all."""
        test, least = self.tests.get((row, column)), self.family.seeds_needed
        if test is None:
            return {}
        more = None if test.more_seeds is None or least is None else max(test.more_seeds, least - test.n)
        return {"compared": test, "p": self.corrected[row, column], "more_seeds": more}

    def apart(self, row: Key, column: Key) -> bool | None:
        """Whether a test tells the entry from the one that it is compared with; None where there is no test."""
        p = self.corrected.get((row, column))
        return None if p is None else p <= self.alpha

    def scores(self, first: Entry, second: Entry) -> tuple[np.ndarray, np.ndarray]:
        """By seed, larger is better; of ratios the logarithms."""
        pairs = comparison.align(first.values, second.values)
        a, b = (np.log(values) if self.grid.measure.ratio else values for values in pairs)
        return self.grid.measure.key(a), self.grid.measure.key(b)

    def values(self, entry: Entry) -> list[float]:
        return list(entry.values.values())

    def column(self, column: Key) -> dict[Key, Entry]:
        return {row: entry for row in self.grid.rows if (entry := self.grid.entries.get((row, column))) is not None}

    def notes(self, entry: Entry) -> tuple[int, ...]:
        """The numbers of the footnotes on what became of the entry's cells."""
        failed = {status: entry.statuses[status] for status in FAILURES if entry.statuses[status]}
        if empty := entry.planned - entry.measured - sum(failed.values()):
            failed["without a value"] = empty
        if not failed:
            return ()
        text = ", ".join(f"{count} of {entry.planned} {status}" for status, count in failed.items())
        return (self.note(text + (f"; the {NAMES[self.statistic]} is over the others" if entry.values else "")),)

    def note(self, text: str) -> int:
        if text not in self.footnotes:
            self.footnotes.append(text)
        return self.footnotes.index(text) + 1

    def counted(self) -> str:
        """Over how many seeds: "3 seeds", "2 to 5 processes"."""
        counts = sorted({len(entry.values) for entry in self.grid.entries.values() if entry.values})
        many = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1])))) if counts else "no"
        return f"{many} {self.unit if many == '1' else self.units}"

    def how(self) -> str:
        over = f"{CORRECTIONS[self.correction]} over {self.family.tests} test{'' if self.family.tests == 1 else 's'}"
        return f"two-sided sign-flip test of differences paired by {self.unit}, {over}"

    def unreachable(self) -> str:
        needed = ""
        if self.family.seeds_needed:
            needed = f"; from {self.family.seeds_needed} on one could be"
        return (
            f"No difference is marked by a test: with {self.counted()} the least p that can be had is "
            f"{self.family.smallest:.2g} ({self.how()}){needed}."
        )

    def with_overall(
        self, rows: list[Row], columns: list[str], caption: list[str]
    ) -> tuple[list[Row], list[str], list[str]]:
        """The same with the statistic over all columns, and mean ranks, beside it."""
        count = len(self.grid.columns)
        require(count > 1, "--overall needs more than one column to go over: name them with --columns")
        made = {row: self.over_all(row) for row, _ in rows}
        ranked, order = self.ranks()
        place = {row: i for i, row in enumerate(order)}
        digits = decimals([Estimate(one.number, one.low, one.high) for one in made.values() if one])
        found: list[Row] = []
        for row, fields in rows:
            one = made[row]
            whole = Field("-") if one is None else written(one, digits, self.style)
            ranks = ranked.mean_ranks if ranked else None
            rank = Field("-") if row not in place or ranks is None else Field(
                f"{ranks[place[row]]:.2f}", number=ranks[place[row]], cells=self.cells_of(row),
                n=ranked.n if ranked else 0, planned=count,
            )  # fmt: skip
            found.append((row, [*fields, whole, rank, *self.beside_all(row)]))
        heads = [f"all {count}", "mean rank", *self.heads_beside_all()]
        return found, [*columns, *heads], [*caption, *self.said_of_all(ranked, order)]

    def heads_beside_all(self) -> list[str]:
        """The columns of more numbers over all columns. Default: none."""
        return []

    def beside_all(self, row: Key) -> list[Field]:
        """As many numbers."""
        return []

    def ranks(self) -> tuple[Ranking | None, list[Key]]:
        """Ranks of the rows that are whole in every column, by their means."""
        order = [row for row in self.grid.rows if self.whole_everywhere(row)]
        if len(order) < 2:
            return None, order
        means = [[float(np.mean(self.grid.measure.key(np.array(self.values(self.grid.entries[row, column])))))
                  for row in order] for column in self.grid.columns]  # fmt: skip
        return ranking(means), order

    @cached_property
    def independent(self) -> bool:
        """Whether each column is of a task of its own: else what varies is the same in several, as a network is."""
        tasks = [dict(zip(self.grid.column_heads, column, strict=True)).get("task") for column in self.grid.columns]
        return None not in tasks and len(set(tasks)) == len(tasks)

    def together(self, columns: Sequence[Mapping[Hashable, float]], method: estimates.Method | None = None) -> Estimate:
        """The statistic over columns of numbers by seed, or by seed and process.

        Of columns that are not independent the mean's interval is that of each seed's mean over them, where all have
        the same seeds; other statistics have none.
        """
        found = self.estimate(estimates.side_by_side([[*own.values()] for own in columns]), method=method)
        if self.independent:
            return found
        if self.statistic == "mean" and all(own.keys() == columns[0].keys() for own in columns):
            return self.estimate([np.mean([own[key] for own in columns]) for key in columns[0]], method=method)
        return dataclasses.replace(found, low=None, high=None, method=None, reason=f"columns share {self.units}")

    def cells_of(self, *rows: Key) -> tuple[str, ...]:
        """The ids of all cells of rows that are whole."""
        places = [(row, column) for row in rows for column in self.grid.columns]
        return tuple(cell for place in places for cell in self.grid.entries[place].cells.values())

    def whole_everywhere(self, row: Key) -> bool:
        found = [self.grid.entries.get((row, column)) for column in self.grid.columns]
        return all(entry is not None and entry.whole for entry in found)

    def said_of_all(self, ranked: Ranking | None, order: Sequence[Key]) -> list[str]:
        """What the numbers over all columns are, and which rows their ranks do not tell apart."""
        what = f"all {len(self.grid.columns)}: {self.over_all_is()}, of rows that lack nothing."
        by_means = "" if self.statistic == "mean" else ", by means"
        if ranked is None or ranked.mean_ranks is None or ranked.critical_difference is None:
            return [what]
        said = [f"mean rank: over the {ranked.n} columns{by_means}, 1 is best"]
        if not self.independent:
            return [what, f"{said[0]}; no test, as columns have {self.units} in common."]
        if ranked.p is None:
            return [what, said[0] + "."]
        told = ranked.p <= self.alpha
        test = f"Friedman's test: p = {ranked.p:.2g} ({ranked.test})"
        said.append(test if told else f"{test}, which does not tell the rows apart")
        if told:
            sets = [" = ".join(", ".join(order[i]) for i in clique) for clique in ranked.cliques]
            said.append(f"ranks {ranked.critical_difference:.2f} apart differ (Nemenyi)")
            said.append("not told apart: " + "; ".join(sets) if sets else "all are told apart")
        return [what, "; ".join(said) + "."]


class Values(Scores):
    """The numbers themselves, compared with the best of their column."""

    def reference(self, row: Key, column: Key) -> Key | None:
        best = self.best(column)
        return None if row == best else best

    def digits(self, column: Key) -> int:
        return decimals([self.estimate(self.values(one)) for one in self.column(column).values() if one.values])

    def best(self, column: Key) -> Key | None:
        """The row with the best number of those that are whole."""
        found = self.ordered[column]
        return max(found, key=lambda row: found[row]) if len(found) > 1 else None

    @cached_property
    def ordered(self) -> dict[Key, dict[Key, float]]:
        """column -> row -> its number, of those that are whole, such that larger is better."""
        found: dict[Key, dict[Key, float]] = {}
        for column in self.grid.columns:
            numbers = {row: self.estimate(self.values(entry)).value
                       for row, entry in self.column(column).items() if entry.whole}  # fmt: skip
            found[column] = {row: float(self.grid.measure.key(np.array(number))) for row, number in numbers.items()}
        return found

    def mark(self, row: Key, column: Key) -> Mark:
        best, numbers = self.best(column), self.ordered[column]
        if best is None:
            return ""
        ties = {other for other in numbers if _equal(numbers[other], numbers[best])}
        like = {
            other for other in numbers if self.could_be_marked.get((other, column)) and not self.apart(other, column)
        }
        first = ties | like
        if row in first:
            return "best"
        rest = [other for other in numbers if other not in first]
        return "second" if row in rest and _equal(numbers[row], max(numbers[other] for other in rest)) else ""

    def field(self, row: Key, column: Key, digits: int) -> Field:
        entry = self.grid.entries[row, column]
        found = Field("-", notes=self.notes(entry), cells=tuple(entry.cells.values()), planned=entry.planned)
        if not entry.values:
            return found
        estimate = self.estimate(self.values(entry))
        made = dataclasses.replace(
            found, mark=self.mark(row, column), number=estimate.value, low=estimate.low, high=estimate.high,
            n=len(entry.values), against=", ".join(self.reference(row, column) or ()), **self.tested(row, column),
        )  # fmt: skip
        return written(made, digits)

    def over_all(self, row: Key) -> Field | None:
        require(
            not self.grid.measure.ratio,
            f"--overall: {self.grid.measure.title} has no scale that columns share: add --baseline, for ratios",
        )
        if not self.whole_everywhere(row):
            return None
        entries = [self.grid.entries[row, column] for column in self.grid.columns]
        found = self.together([entry.values for entry in entries])
        longest = max(len(entry.values) for entry in entries)
        return Field("-", number=found.value, low=found.low, high=found.high, cells=self.cells_of(row), n=found.n,
                     planned=longest)  # fmt: skip

    def over_all_is(self) -> str:
        what = {
            "mean": "mean of the columns' means",
            "median": "median of the columns' means",
            "iqm": f"interquartile mean of the {self.units} of all columns together",
        }[self.statistic]
        if self.independent:
            return f"{what} (±: {self.units} vary within columns, columns do not)"
        shared = f"columns have {self.units} in common"
        return f"{what} (±: over {self.units}, as {shared})" if self.statistic == "mean" else f"{what} (no ±: {shared})"

    def caption(self) -> list[str]:
        found = [f"{NAMES[self.statistic].capitalize()} over {self.counted()}; {self.grid.measure.better} is better."]
        if any(len(entry.values) > 1 for entry in self.grid.entries.values()):
            found.append(f"±: half of the 95 % interval (Student's t below {estimates.BOOTSTRAP_FROM} {self.units}, "
                         f"else bootstrap over {self.units}).")  # fmt: skip
        if not self.tests:
            return found
        if self.family.tests and self.family.reachable:
            found.append(f"Bold: the best of a column and all that do not differ from it at {self.alpha:g} "
                         f"({self.how()}); underlined: the best of the rest.")  # fmt: skip
            if few := list(self.could_be_marked.values()).count(False):
                found.append(f"{few} test{'' if few == 1 else 's'} had too few {self.units} to tell anything.")
        else:
            found.append("Bold: the best of a column; underlined: the second.")
            if self.family.smallest is not None:
                found.append(self.unreachable())
        return found


def _equal(first: float, second: float) -> bool:
    """Up to the rounding of means."""
    return math.isclose(first, second, rel_tol=1e-9, abs_tol=1e-12)


def _named(head: str, value: str) -> str:
    """A column's name: what is no name by itself follows that of its factor."""
    return value if head in ("task", "model", "backend") else f"{head.replace('_', ' ')} {value}"

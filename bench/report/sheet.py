"""A grid with its statistics: finished texts, marks and notes, the same for every format."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from bench.report import comparison, estimates
from bench.report.comparison import Correction
from bench.report.grid import Entry, Grid

Mark = Literal["best", "second", ""]
FEWEST_DECIMALS, MOST_DECIMALS = 0, 6
FAILURES = ("diverged", "oom", "timeout", "error", "crashed", "compile_failed", "missing", "unsupported", "interrupted")
"""Statuses that a footnote names."""


@dataclass(frozen=True)
class Field:
    """One number of a sheet, or why there is none."""

    value: str
    """"-" where there is no number."""
    half: str = ""
    """Half of the 95 % interval; empty where there is none."""
    mark: Mark = ""
    notes: tuple[int, ...] = ()
    """Numbers of footnotes, from 1."""
    cells: tuple[str, ...] = ()
    number: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    planned: int = 0


Row = tuple[tuple[str, ...], Sequence[Field]]
"""The names of a row, and a number for each column."""


class Published(NamedTuple):
    """Figures from elsewhere: rows, whose notes count from 1, and their footnotes."""

    rows: Sequence[Row]
    footnotes: Sequence[str]


@dataclass(frozen=True)
class Sheet:
    """A finished table. `published` are rows of their own, set apart."""

    title: str
    row_heads: Sequence[str]
    columns: Sequence[str]
    rows: Sequence[Row]
    caption: Sequence[str]
    footnotes: Sequence[str]
    published: Sequence[Row] = ()


def sheet(grid: Grid, correction: Correction = "holm", alpha: float = 0.05) -> Sheet:
    """Means with their intervals, and marks: the best of a column and all that no test tells from it, then the second.

    Entries are compared with the best of their column, paired by seed; p values are corrected over the whole table.
    Only whole entries take part: one that lost a seed is neither the best nor compared.
    """
    best = {column: _best(grid, column) for column in grid.columns}
    tests: dict[tuple[tuple[str, ...], tuple[str, ...]], comparison.Comparison] = {}
    for (row, column), entry in grid.entries.items():
        top = best[column]
        if top is not None and row != top and _whole(entry):
            tests[row, column] = comparison.compare(*_scores(grid, grid.entries[top, column], entry))
    family = comparison.family(
        [test.p for test in tests.values()], [test.smallest_p for test in tests.values()], correction, alpha
    )
    apart = dict(zip(tests, family.marked, strict=True))
    footnotes: list[str] = []
    rows = []
    for row in grid.rows:
        found = []
        for column in grid.columns:
            here = grid.entries.get((row, column))
            mark = _mark(grid, row, column, best[column], apart, family.reachable)
            decimals = _decimals([grid.entries[r, column] for r in grid.rows if (r, column) in grid.entries])
            found.append(Field("-") if here is None else _field(here, decimals, mark, footnotes))
        rows.append((row, found))
    columns = [", ".join(_named(*pair) for pair in zip(grid.column_heads, c, strict=True)) for c in grid.columns]
    heads = [name.replace("_", " ") for name in grid.row_heads]
    unit = f" [{grid.measure.unit}]" if grid.measure.unit else ""
    return Sheet(f"{grid.measure.title}{unit}", heads, columns, rows, _caption(grid, tests, family), footnotes)


def _named(head: str, value: str) -> str:
    """A column's name: what is no name by itself follows that of its factor."""
    return value if head in ("task", "model", "backend") else f"{head.replace('_', ' ')} {value}"


def _whole(entry: Entry) -> bool:
    return len(entry.values) == entry.planned > 0


def _scores(grid: Grid, first: Entry, second: Entry) -> tuple[np.ndarray, np.ndarray]:
    """By seed, larger is better; of ratios the logarithms."""
    pairs = comparison.align(first.values, second.values)
    a, b = (np.log(values) if grid.measure.ratio else values for values in pairs)
    return grid.measure.key(a), grid.measure.key(b)


def _best(grid: Grid, column: tuple[str, ...]) -> tuple[str, ...] | None:
    """The row with the best mean of those that are whole."""
    means = _means(grid, column)
    return max(means, key=lambda row: means[row]) if len(means) > 1 else None


def _means(grid: Grid, column: tuple[str, ...]) -> dict[tuple[str, ...], float]:
    """Means of the rows that are whole, such that larger is better."""
    return {
        row: float(np.mean(grid.measure.key(np.array([*entry.values.values()]))))
        for row in grid.rows
        if (entry := grid.entries.get((row, column))) is not None and _whole(entry)
    }


def _mark(
    grid: Grid, row: tuple[str, ...], column: tuple[str, ...], best: tuple[str, ...] | None,
    apart: Mapping[tuple[tuple[str, ...], tuple[str, ...]], bool], reachable: bool,
) -> Mark:  # fmt: skip
    if best is None:
        return ""
    means = _means(grid, column)
    ties = {other for other, mean in means.items() if math.isclose(mean, means[best], rel_tol=1e-9, abs_tol=1e-12)}
    first = ties | {other for other in means if reachable and apart.get((other, column)) is False}
    rest = [other for other in means if other not in first]
    if row in first:
        return "best"
    return "second" if rest and row == max(rest, key=lambda other: means[other]) else ""


def _field(entry: Entry, decimals: int, mark: Mark, footnotes: list[str]) -> Field:
    failed = {status: entry.statuses[status] for status in FAILURES if entry.statuses[status]}
    notes = []
    if failed:
        text = ", ".join(f"{count} of {entry.planned} {status}" for status, count in failed.items())
        text += "; the mean is over the others" if entry.values else ""
        if text not in footnotes:
            footnotes.append(text)
        notes.append(footnotes.index(text) + 1)
    cells = tuple(entry.cells.values())
    if not entry.values:
        return Field("-", notes=tuple(notes), cells=cells, planned=entry.planned)
    found = estimates.mean(list(entry.values.values()))
    half = "" if found.low is None or found.high is None else f"{(found.high - found.low) / 2:.{decimals}f}"
    return Field(
        value=f"{found.value:.{decimals}f}", half=half, mark=mark, notes=tuple(notes), cells=cells, number=found.value,
        low=found.low, high=found.high, n=len(entry.values), planned=entry.planned,
    )  # fmt: skip


def _decimals(entries: Iterable[Entry]) -> int:
    """So many that the widest interval of a column keeps two digits; without intervals four digits of the largest."""
    halves, sizes = [], []
    for entry in entries:
        if entry.values:
            found = estimates.mean(list(entry.values.values()))
            sizes.append(abs(found.value or 0.0))
            if found.low is not None and found.high is not None and found.high > found.low:
                halves.append((found.high - found.low) / 2)
    if halves:
        decimals = 1 - math.floor(math.log10(float(np.median(halves))))
    else:
        largest = max(sizes, default=0.0)
        decimals = 3 - math.floor(math.log10(largest)) if largest > 0 else 1
    return min(max(decimals, FEWEST_DECIMALS), MOST_DECIMALS)


def _caption(
    grid: Grid,
    tests: Mapping[tuple[tuple[str, ...], tuple[str, ...]], comparison.Comparison],
    family: comparison.Family,
) -> list[str]:
    """What the numbers are, how they were compared, and what could be seen at all."""
    counts = sorted({len(entry.values) for entry in grid.entries.values() if entry.values})
    seeds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1])))) if counts else "no"
    found = [f"Mean over {seeds} seed{'' if seeds == '1' else 's'}; {grid.measure.better} is better."]
    if any(len(entry.values) > 1 for entry in grid.entries.values()):
        found.append("±: half of the 95 % interval (Student's t below 10 seeds, else bootstrap over seeds).")
    if not tests:
        return found
    names = {"holm": "Holm", "benjamini-hochberg": "Benjamini-Hochberg"}
    how = f"two-sided sign-flip test of differences paired by seed, {names[family.method]} over {family.tests} tests"
    if family.tests and family.reachable:
        found.append(f"Bold: the best of a column and all that do not differ from it at {family.alpha:g} ({how}); "
                     "underlined: the best of the rest.")  # fmt: skip
    else:
        found.append("Bold: the best mean of a column; underlined: the second.")
        if family.smallest is not None:
            needed = f"; {family.seeds_needed} seeds could" if family.seeds_needed else ""
            found.append(f"No difference is marked by a test: with these seeds the least p that can be had is "
                         f"{family.smallest:.2g} ({how}){needed}.")  # fmt: skip
    return found


def with_published(found: Sheet, published: Published) -> Sheet:
    """The same sheet with rows of published figures, and their footnotes after the sheet's own."""
    before = len(found.footnotes)
    rows = [
        (row, [dataclasses.replace(field, notes=tuple(i + before for i in field.notes)) for field in fields])
        for row, fields in published.rows
    ]
    return dataclasses.replace(found, published=rows, footnotes=[*found.footnotes, *published.footnotes])

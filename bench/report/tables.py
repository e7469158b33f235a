"""From results and a user's choice of rows, columns and measure to a finished sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from bench import registry
from bench.contract import require
from bench.options import unknown
from bench.report.comparison import Correction
from bench.report.grid import Grid, chosen, left_together, varies, with_factors
from bench.report.sheet import Sheet, sheet, with_published

ACROSS = ("task", "length", "depth")
"""What makes the columns where none are named: the first of these that varies, or that there is."""


def build(
    results: pd.DataFrame, *, suite: str | None = None, metric: str | None = None, rows: Sequence[str] = (),
    columns: Sequence[str] = (), where: Mapping[str, str] | None = None, correction: Correction = "holm",
    published: bool = False, summaries: bool = False,
) -> Sheet:  # fmt: skip
    """ValueError says which choice is wrong or missing, with what is allowed."""
    name = _suite(results, suite)
    cls = registry.find("suite", name)
    results = results[results["suite"] == name]
    require(bool(cls.measures), f"the suite {name} declares no measure that a table could show")
    wanted = metric or next(iter(cls.measures))
    if wanted not in cls.measures:
        raise unknown(f"metric of suite {name}", wanted, cls.measures)
    results = chosen(results, where or {})
    cells = with_factors(results)
    across = list(columns) or [f for f in ACROSS if f not in rows and varies(cells, f)][:1] or ["task"]
    down = list(rows) or ["model"]
    while not rows and (apart := left_together(cells, [*down, *across])):
        down.append(apart[0])
    grid = Grid.of(results, cls.measures[wanted], down, across)
    found = sheet(grid, correction)
    if published:
        found = with_published(found, cls().published(results, grid, summaries))
    return found


def _suite(results: pd.DataFrame, asked: str | None) -> str:
    there = list(results["suite"].dropna().unique())
    if asked is not None and asked not in there:
        raise unknown("suite in --suite", asked, there)
    several = f"these runs are of several suites: choose one with --suite: {', '.join(there)}"
    require(asked is not None or len(there) == 1, several)
    return asked or there[0]

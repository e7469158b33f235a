"""From results and a user's choice of rows, columns and measure to a finished sheet."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from bench import registry
from bench.contract import require
from bench.options import unknown
from bench.report.comparison import Correction
from bench.report.contrast import Differences
from bench.report.grid import Grid, chosen, left_together, varies, with_factors
from bench.report.overview import machines, unverified_cells
from bench.report.scores import STATISTICS, UNVERIFIED, Statistic, Values
from bench.report.sheet import Sheet, with_published

ACROSS = ("task", "length", "depth")
"""What makes the columns where none are named: the first of these that varies, or that there is."""


def build(
    results: pd.DataFrame, *, suite: str | None = None, metric: str | None = None, rows: Sequence[str] = (),
    columns: Sequence[str] = (), where: Mapping[str, str] | None = None, correction: Correction = "holm",
    statistic: Statistic = "mean", baseline: str | None = None, overall: bool = False, published: bool = False,
    summaries: bool = False, unverified: bool = False, folders: Sequence[Path] = (),
) -> Sheet:  # fmt: skip
    """A statistic over seeds with its interval, and what tests say; with `baseline` differences from that row.

    `overall` adds the same over all columns, and mean ranks. Cells whose layer did not agree with the oracle count as
    planned, and have a value only with `unverified`. `folders` are those that the results were read from, for the names
    of machines. ValueError says which choice is wrong or missing, with what is allowed.
    """
    name = _suite(results, suite)
    cls = registry.find("suite", name)
    results = results[results["suite"] == name]
    require(bool(cls.measures), f"the suite {name} declares no measure that a table could show")
    wanted = metric or next(iter(cls.measures))
    if wanted not in cls.measures:
        raise unknown(f"metric of suite {name}", wanted, cls.measures)
    if statistic not in STATISTICS:
        raise unknown("statistic in --statistic", statistic, STATISTICS)
    results = chosen(results, where or {})
    if not unverified and (bad := unverified_cells(results)):
        results = results.assign(status=results["status"].mask(results["cell_id"].isin(bad), UNVERIFIED))
    cells = with_factors(results)
    across = list(columns) or [f for f in ACROSS if f not in rows and varies(cells, f)][:1] or ["task"]
    down = list(rows) or ["model"]
    while not rows and (apart := left_together(cells, [*down, *across])):
        down.append(apart[0])
    grid = Grid.of(results, cls.measures[wanted], down, across)
    if baseline is None:
        found = Values(grid, statistic, correction).sheet(overall)
    else:
        require(statistic == "mean", f"--baseline compares means: leave out --statistic {statistic}")
        require(not published, "--published: figures from elsewhere have no seeds to compare: leave out --baseline")
        found = Differences(grid, baseline, correction).sheet(overall)
    only = "".join(f", {factor.replace('_', ' ')} {value}" for factor, value in (where or {}).items())
    caption = [*found.caption, _measured(results, folders)]
    found = dataclasses.replace(found, title=found.title + only, caption=caption)
    if published:
        found = with_published(found, cls().published(results, grid, summaries))
    return found


def _measured(results: pd.DataFrame, folders: Sequence[Path]) -> str:
    """With what, and on what."""
    frameworks, dtypes = (", ".join(results[name].dropna().unique()) for name in ("backend", "dtype"))
    return f"Measured with {frameworks} in {dtypes} on {', '.join(machines(results, folders))}."


def _suite(results: pd.DataFrame, asked: str | None) -> str:
    there = list(results["suite"].dropna().unique())
    if asked is not None and asked not in there:
        raise unknown("suite in --suite", asked, there)
    several = f"these runs are of several suites: choose one with --suite: {', '.join(there)}"
    require(asked is not None or len(there) == 1, several)
    return asked or there[0]

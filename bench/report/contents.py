"""What a page shows, gathered from the store: all that is computed, before anything decides how it is written."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench import registry, store
from bench.contract import View
from bench.report import overview, tables
from bench.report.blocks import Block, Note, Table
from bench.report.figures import Figure
from bench.report.sheet import Sheet

ROWS_SHOWN = 250_000
"""So many rows of the store a page takes; a browser keeps all of them in memory."""
FIRST = ("suite", "model", "backend", "task", "depth", "seed", "metric", "value", "unit")
"""The columns of the store that a reader looks for; the others follow in the order of the schema."""


@dataclasses.dataclass(frozen=True)
class Section:
    """What is shown of one suite: the table of its first measure, its report, its figures."""

    suite: str
    sheet: Sheet | None
    blocks: Sequence[Block]
    figures: Sequence[Figure]
    notes: Sequence[Note]
    """What is missing of the former, and why."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of the store: the columns that vary, what all rows have in common, and how many rows there are in all."""

    varying: pd.DataFrame
    constant: Sequence[tuple[str, str]]
    total: int


@dataclasses.dataclass(frozen=True)
class Contents:
    """A page. `facts` are terms and what they are; `warnings` are what reading the store gave rise to."""

    title: str
    facts: Sequence[tuple[str, str]]
    counts: dict[str, int]
    warnings: Sequence[Note]
    failures: Sequence[Block]
    sections: Sequence[Section]
    measured_on: Sequence[Block]
    provenance: Sequence[Table]
    rows: Rows

    def faults(self) -> list[Note]:
        """What stands for parts that are missing."""
        said = [note for section in self.sections for note in (*section.notes, *section.blocks)]
        return [note for note in said if isinstance(note, Note) and note.fault]

    def blocks(self) -> list[Block]:
        """What the terminal's report shows, in its order."""
        return [*self.failures, *(block for section in self.sections for block in section.blocks), *self.measured_on]


def gather(
    results: pd.DataFrame, folders: Sequence[Path], view: View | None = None, unverified: bool = False,
    warnings: Sequence[str] = (),
) -> Contents:  # fmt: skip
    """Contents of the rows of some runs; without cells that did not agree with the oracle, unless `unverified`."""
    kept, left_out = (results, []) if unverified else overview.verified(results)
    return Contents(
        title=", ".join(folder.name for folder in folders) or "no run",
        facts=list(_facts(results)),
        counts=overview.counts(results),
        warnings=[Note(text, warning=True) for text in warnings],
        failures=[*overview.failures(results), *left_out],
        sections=[
            _section(suite, rows, results if left_out else rows, view or View(), folders, unverified)
            for suite, rows in overview.by_suite(kept)
        ],
        measured_on=overview.measured_on(results, list(folders)),
        provenance=[_runs(results, folders), *_machines(results, folders)],
        rows=rows_of(results),
    )


def _section(
    suite: str, rows: pd.DataFrame, planned: pd.DataFrame, view: View, folders: Sequence[Path], unverified: bool
) -> Section:
    """Of a suite's rows, and a table that counts all that was planned. One part's fault must not hide the others."""
    blocks = overview.suite_blocks(suite, rows, view)
    sheet, notes = None, []
    try:
        cls = registry.find("suite", suite)
    except ValueError:  # the blocks say so
        return Section(suite, None, blocks, [], [])
    try:
        if cls.measures:
            sheet = tables.build(planned, suite=suite, folders=folders, unverified=unverified)
    except ValueError as error:
        notes.append(Note(f"No table of this suite: {error}"))
    except Exception as error:
        notes.append(Note(f"suite {suite} has no table, {type(error).__name__}: {error}", warning=True, fault=True))
    figures, missing = overview.suite_figures(suite, rows, view)
    return Section(suite, sheet, blocks, figures, [*notes, *missing])


def _facts(results: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """What was run: the values of what a reader asks for first."""
    cells = results.drop_duplicates("cell_id")
    for name, column in (("models", "model"), ("tasks", "task"), ("backends", "backend"), ("devices", "device"),
                         ("dtypes", "dtype"), ("seeds", "seed")):  # fmt: skip
        found = [str(value) for value in cells[column].dropna().unique()]
        if found:
            yield name if len(found) > 1 else name.removesuffix("s"), ", ".join(found)
    started = sorted(cells["started_at"].dropna())
    if started:
        yield "measured", _between(started[0], started[-1])
    seconds = cells["duration_s"].sum()
    if seconds:
        yield "time in cells", f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"


def _between(first: str, last: str) -> str:
    """Two times to the minute; what they share stands once."""
    start, end = _minute(first), _minute(last)
    if start == end:
        return end
    same_zone, same_day = start[16:] == end[16:], start[:10] == end[:10]
    return f"{start[:16] if same_zone else start} to {end[11:] if same_zone and same_day else end}"


def _minute(text: str) -> str:
    """A time of the store to the minute."""
    return text[:16].replace("T", " ") + (" UTC" if text.endswith("+00:00") else "")


def _runs(results: pd.DataFrame, folders: Sequence[Path]) -> Table:
    """When and by which command each run was made, and under which code its cells ran."""
    lines = []
    for folder in folders:
        made = store.load_json(folder / "run.json")
        rows = results[results["run_id"] == folder.name].drop_duplicates("cell_id")
        command = shlex.join(["bench", *(_without_folders(str(word)) for word in made.get("command", []))])
        code = ", ".join(sorted(rows["code"].dropna().unique())) or "-"
        lines.append([folder.name, _minute(str(made.get("created", "-"))), f"{len(rows):,}", code, command])
    return Table("Runs", ["run", "created", "cells", "code", "command"], lines, numeric=["cells"])


def _without_folders(word: str) -> str:
    """An absolute path by its last name: a page is handed on, and folders tell of whose machine it was."""
    return "…/" + Path(word).name if word.startswith(("/", "~")) else word


def _machines(results: pd.DataFrame, folders: Sequence[Path]) -> list[Table]:
    """The environments of the runs, a column each; nothing where none was kept."""
    found: dict[str, dict[str, str]] = {}
    for folder in folders:
        for path in sorted((folder / "environments").glob("*.json")):
            content = store.load_json(path)
            packages = content.pop("packages", None) or {}
            found[path.stem] = {name: _plain(value) for name, value in (content | packages).items()}
    names = list(dict.fromkeys(name for one in found.values() for name in one))
    rows = [[name, *(one.get(name, "-") for one in found.values())] for name in names]
    return [Table("Machines and versions", ["environment", *found], rows)] if found else []


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else "-" if value is None else str(value)


def rows_of(results: pd.DataFrame, most: int = ROWS_SHOWN) -> Rows:
    """The first `most` rows of the store, in its order."""
    shown = results.head(most)
    names = [name for name in FIRST if name in shown] + [name for name in shown if name not in FIRST]
    varying, constant = [], []
    for name in names:
        column = shown[name]
        if not column.notna().any():
            continue
        if column.nunique(dropna=False) == 1 and name not in ("metric", "value"):
            constant.append((name, str(column.iloc[0])))
        else:
            varying.append(name)
    return Rows(shown[varying], constant, len(results))


def columns_of(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """The columns of a frame as JSON can have them: their different values, and `runs` of them: which, how often, ..

    Of numbers that mostly differ, all values and no runs. What is empty or not finite is null.
    """
    return [{"name": name, **_column(rows[name])} for name in rows]


def _column(column: pd.Series) -> dict[str, Any]:
    numeric = pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype)
    if pd.api.types.is_integer_dtype(column.dtype):
        numeric = not (column.abs() > 2**53).any()  # a browser's numbers are doubles; greater ones stay text
    codes, different = pd.factorize(column, use_na_sentinel=False)
    values = [_json(value, numeric) for value in different.tolist()]
    if numeric and 2 * len(values) > len(codes):
        return {"numeric": True, "values": [values[code] for code in codes]}
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    counts = np.diff(starts, append=len(codes))
    return {"numeric": numeric, "values": values, "runs": np.stack([codes[starts], counts], axis=1).ravel().tolist()}


def _json(value: Any, numeric: bool) -> float | str | None:
    if pd.isna(value) or (numeric and not math.isfinite(value)):
        return None
    return value if numeric else str(value).lower() if isinstance(value, bool) else str(value)

"""Rows by columns of one measure: what every table is computed from, in whichever format it is written."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from bench.contract import require
from bench.options import unknown
from bench.report.measures import Measure
from bench.store import COMPLETE_STATUSES

COLUMNS = ("suite", "model", "task", "backend", "device", "dtype", "compiled", "depth", "d_model", "d_state", "recipe")
"""Columns of the store that rows and columns of a table can be made of, beside the suites' factors."""


@dataclass(frozen=True)
class Entry:
    """All cells of one row and column: they differ by their seed alone."""

    cells: Mapping[int, str]
    """Seed -> cell id, of all that were planned."""
    values: Mapping[Hashable, float]
    """Seed -> value, of those that have one; (seed, process) -> value where processes are what repeats."""
    measured: int
    """How many of the cells have a value."""
    statuses: Counter[str] = field(default_factory=Counter)

    @property
    def planned(self) -> int:
        return len(self.cells)

    @property
    def whole(self) -> bool:
        """Whether no planned cell lacks its value."""
        return self.measured == self.planned > 0


@dataclass(frozen=True)
class Grid:
    """The entries under names of rows and columns; where nothing was planned there is none."""

    measure: Measure
    row_heads: Sequence[str]
    column_heads: Sequence[str]
    rows: Sequence[tuple[str, ...]]
    columns: Sequence[tuple[str, ...]]
    entries: Mapping[tuple[tuple[str, ...], tuple[str, ...]], Entry]

    @classmethod
    def of(cls, results: pd.DataFrame, measure: Measure, rows: Sequence[str], columns: Sequence[str]) -> Grid:
        """Of results that are all of one suite. ValueError where rows and columns leave cells together that differ."""
        cells = with_factors(results)
        for name in (*rows, *columns):
            if name not in cells.columns:
                raise unknown("factor in --rows and --columns", name, factors(cells))
        if apart := left_together(cells, [*rows, *columns]):
            name, values_, place = apart
            raise ValueError(
                f"{place}: its cells differ in {name} ({', '.join(values_)}): name it in --rows or --columns, or "
                f"choose one with --where {name}={values_[0]}"
            )
        values = by_cell(measure, results)
        entries: dict[tuple[tuple[str, ...], tuple[str, ...]], Entry] = {}
        for _, group in cells.groupby([*rows, *columns], dropna=False, sort=False):
            texts = tuple(_text(group[name].iloc[0]) for name in (*rows, *columns))
            if twice := _same_seed(group, [*rows, *columns], texts):
                raise ValueError(twice)
            found = dict(zip(group["seed"].astype(int), group["cell_id"], strict=True))
            good = group[group["status"].isin(COMPLETE_STATUSES)]
            counted = [(int(seed), own) for seed, cell in zip(good["seed"], good["cell_id"], strict=True)
                       if (own := values.get(cell))]  # fmt: skip
            entries[texts[: len(rows)], texts[len(rows) :]] = Entry(
                cells=found,
                values={seed if process is None else (seed, process): value
                        for seed, own in counted for process, value in own.items()},
                measured=len(counted),
                statuses=Counter(group["status"]),
            )  # fmt: skip
        names = list(entries)
        return cls(
            measure, rows, columns, list(dict.fromkeys(row for row, _ in names)),
            list(dict.fromkeys(column for _, column in names)), entries,
        )  # fmt: skip


def by_cell(measure: Measure, results: pd.DataFrame) -> dict[str, dict[int | None, float]]:
    """cell_id -> process -> value; the process is None where it is not what repeats."""
    if measure.repeats == "seed":
        return {str(cell): {None: float(value)} for cell, value in measure.values(results).items()}
    found: dict[str, dict[int | None, float]] = {}
    for (cell, process), value in measure.values(results, "process").items():
        found.setdefault(str(cell), {})[0 if pd.isna(process) else int(process)] = float(value)
    return found


def with_factors(results: pd.DataFrame) -> pd.DataFrame:
    """One row a cell, with a column for each of the suite's factors beside those of the store.

    A cell that failed lacks what is known once it runs, such as its length, where no factor says it. Options of models
    are columns too, where nothing else has their names.
    """
    cells = results.drop_duplicates("cell_id").reset_index(drop=True)
    parsed, options = (_table(_objects(cells[name])) for name in ("factors", "options"))
    for name in parsed.columns.intersection(cells.columns):
        cells[name] = cells[name].fillna(parsed[name])
    for more in (parsed, options):
        cells = pd.concat([cells, more[[name for name in more.columns if name not in cells.columns]]], axis=1)
    return cells


def _table(objects: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A column for each name; whole numbers stay whole where some have none."""
    names = dict.fromkeys(name for one in objects for name in one)
    columns = {name: pd.Series([one.get(name) for one in objects], dtype=object) for name in names}
    return pd.DataFrame(columns, index=range(len(objects)))


def _objects(texts: pd.Series) -> list[dict[str, Any]]:
    known = {text: json.loads(text) if isinstance(text, str) else {} for text in texts.unique()}
    return [known[text] for text in texts]


def factors(cells: pd.DataFrame) -> list[str]:
    """The names that rows and columns can be made of: of the store, of the suite, then options of models."""
    own, options = (
        sorted({name for found in _objects(cells[column].drop_duplicates()) for name in found})
        for column in ("factors", "options")
    )
    return list(dict.fromkeys([*COLUMNS, *own, *options]))


def chosen(results: pd.DataFrame, where: Mapping[str, str]) -> pd.DataFrame:
    """The rows of the cells that have all these values. ValueError: no such factor, or no cell has the value."""
    cells = with_factors(results)
    for name, wanted in where.items():
        if name not in cells.columns:
            raise unknown("factor in --where", name, factors(cells))
        has = cells[name].map(_text)
        known = ", ".join(dict.fromkeys(has))
        require(bool((has == wanted).any()), f"--where {name}={wanted}: no cell has it: there are {known}")
        cells = cells[has == wanted]
    return results[results["cell_id"].isin(cells["cell_id"])]


def varies(cells: pd.DataFrame, name: str) -> bool:
    """Whether cells differ in a factor; what an older store does not know of a cell is no difference."""
    return name in cells.columns and cells[name].dropna().map(str).nunique() > 1


FOLLOWS = ("recipe", "d_state")
"""What follows from the model and the task, as a rule: asked about last."""


def left_together(cells: pd.DataFrame, named: Sequence[str]) -> tuple[str, list[str], str] | None:
    """A factor in which cells differ that are alike in the named ones, its values there, and where; or None."""
    options = [name for found in _objects(cells["options"].drop_duplicates()) for name in found]
    last = [*FOLLOWS, *dict.fromkeys(options), "suite_version"]
    first = [name for name in factors(cells) if name not in last]
    others = [name for name in dict.fromkeys([*first, *last]) if name not in named and varies(cells, name)]
    place = cells.groupby(list(named), dropna=False, sort=False).ngroup()
    for name in others:
        texts = cells[name].map(str, na_action="ignore")
        apart = texts.groupby(place).nunique() > 1
        if apart.any():
            group = place == apart.idxmax()
            return (
                name,
                list(texts[group].dropna().unique()),
                _place(named, cells.loc[group, list(named)].iloc[0].map(_text)),
            )
    return None


def _same_seed(group: pd.DataFrame, named: Sequence[str], texts: Sequence[str]) -> str:
    """What is wrong with cells of one seed that are not one cell, as those of two versions of a model; or nothing."""
    twice = group[group.duplicated("seed", keep=False)]
    if twice.empty:
        return ""
    first, second = (twice[twice["seed"] == twice["seed"].iloc[0]].iloc[i] for i in range(2))
    names = [name for name in (*factors(group), "suite_version") if name in group.columns]
    differ = [f"{n} {_text(first[n])} / {_text(second[n])}" for n in names if _text(first[n]) != _text(second[n])]
    apart = f"{', '.join(differ) or 'alike in all that is stored'}; runs {first['run_id']}, {second['run_id']}"
    return (
        f"{_place(named, texts)}: {first['cell_id']} and {second['cell_id']} are two cells of seed {first['seed']} "
        f"({apart}): name one run"
    )


def _place(named: Sequence[str], texts: Iterable[str]) -> str:
    return ", ".join(f"{name} {text}" for name, text in zip(named, texts, strict=True))


def _text(value: Any) -> str:
    return "-" if value is None or pd.isna(value) else str(value)

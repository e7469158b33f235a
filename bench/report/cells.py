"""Which cells a table shows as one (they differ by their seed alone), and what tells cells apart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import pandas as pd

from bench.store import ROW_COLUMNS

GROUP = [
    "task", "device", "dtype", "backend", "compiled", "model", "options", "d_model", "factors", "depth",
    "suite_version",
]  # fmt: skip
SHOWN = ("task", "backend", "device", "dtype", "d_model")
"""Columns that are shown beside the model where they vary; where not, in the title."""

APART = ("backend", "device", "dtype", "compiled", "task", "depth", "d_model", "seed")
"""Columns that tell cells of a suite apart, beside the model and the suite's own factors."""


def told_apart(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """For each cell, given by the store's columns, the names and values of what varies within its suite, or any other.

    All have the same names, in one order: those of `APART`, then factors, where cells that are alike in suite, model,
    backend and the former differ in them: not what follows from the model, as in a recipe. A dash: it has none.
    """
    parsed = {text: json.loads(text) for cell in cells if isinstance(text := cell.get("factors"), str)}
    whole = [dict(cell) | parsed.get(str(cell.get("factors")), {}) for cell in cells]
    factors = sorted({name for found in parsed.values() for name in found} - set(APART))
    values: dict[tuple, set[str]] = {}
    for cell in whole:
        for name in (*APART, *factors):
            among = (cell.get("suite"), cell.get("backend") if name == "compiled" else None, name)  # jax always is
            values.setdefault(among, set()).add(_text(cell.get(name)))
    varying = {name for (_, _, name), found in values.items() if len(found) > 1}
    names = [name for name in APART if name in varying]
    shown = ("suite", "model", "backend", *names)
    alike: dict[tuple, dict[str, set[str]]] = {}
    for cell in whole:
        own = alike.setdefault(tuple(_text(cell.get(name)) for name in shown), {})
        for name in factors:
            own.setdefault(name, set()).add(_text(cell.get(name)))
    names += [name for name in factors if any(len(found[name]) > 1 for found in alike.values())]
    return [{name: _text(cell.get(name)) for name in names} for cell in whole]


PLAIN = ("backend", "device", "dtype", "task", "recipe")
"""Columns whose values say by themselves what they are of."""


def legend(groups: Sequence[Cells], panels: Sequence[str] = ()) -> list[str]:
    """The name of each group in a figure: its model, and what tells groups apart but for what `panels` names.

    `panels` are the factors that make panels and axes. Where two of one panel would still have one name, the options
    that they differ in follow.
    """
    told = told_apart([group.cells.iloc[0].to_dict() | {"seed": 0} for group in groups])
    options = [json.loads(group.key["options"] or "{}") for group in groups]
    alike: dict[tuple, list[dict[str, Any]]] = {}
    for group, apart, own in zip(groups, told, options, strict=True):
        alike.setdefault((group.key["model"], *apart.values()), []).append(own)
    known = sorted({name for own in options for name in own})
    differing = [n for n in known if any(len({_text(own.get(n)) for own in found}) > 1 for found in alike.values())]
    names = []
    for group, apart, own in zip(groups, told, options, strict=True):
        values = {name: value for name, value in apart.items() if name not in panels}
        values |= {name: _text(own.get(name)) for name in differing}
        beside = (value if name in PLAIN else f"{name} {value}" for name, value in values.items() if value != "-")
        names.append(", ".join([group.key["model"], *beside]))
    return names


def seeds_left(measured: int, planned: int) -> str:
    """What is said of a group that lost seeds; nothing of one that lost none."""
    return f"{measured}/{planned} seeds" if measured < planned else ""


def lost(groups: Sequence[Cells]) -> list[str]:
    """What is said of lengths that gave no number: which, and how their cells ended."""
    gone = [group for group in groups if not group.ok]
    return [f"none at {group.key['length']:,}: {' '.join(sorted(set(group.cells['status'])))}" for group in gone]


def _text(value: Any) -> str:
    return "-" if value is None or pd.isna(value) else str(value)


WORKLOAD = ("mode", "length", "batch", "tokens")
"""Factors of a workload: in tables of time and memory they have a place of their own."""

ROWS = ("cell_id", "seed", *ROW_COLUMNS, "message")
"""Columns of what a cell has recorded; the others say the same in each of its rows."""

_ANY: Mapping[str, Any] = MappingProxyType({})


class Recorded:
    """What some cells have recorded: rows of a frame, of which no more is copied than is asked for.

    `places` holds where the rows of each metric stand.
    """

    def __init__(self, frame: pd.DataFrame, places: Mapping[str, np.ndarray]) -> None:
        self._frame, self._places = frame, places

    @property
    def metrics(self) -> list[str]:
        """The metrics that there are rows of."""
        return list(self._places)

    def rows(
        self, metrics: Sequence[str] | None = None, columns: Sequence[str] = ROWS, where: Mapping[str, Any] = _ANY
    ) -> pd.DataFrame:
        """Rows of some metrics, or all, one metric after the other; `where` as in `Cells.metric`."""
        asked = self._places if metrics is None else metrics
        at = np.concatenate([*(self._places[name] for name in asked if name in self._places), np.array([], np.intp)])
        for column, value in where.items():
            found = self._frame[column].iloc[at]
            wanted = found.isna() if value is None else found == value
            at = at[wanted.to_numpy(bool, na_value=False)]
        known = (name for name in columns if name in self._frame)
        return pd.DataFrame({name: self._frame[name].array.take(at) for name in known}, copy=False)


class Cells:
    """The cells that differ by their seed alone, and what they have recorded.

    `key` holds the columns of `GROUP`, the suite's own factors and the model's options by name; `varying` the names of
    those that are shown because they differ between groups. `cells` has a row a cell, with all columns of the store;
    `recorded` is of the cells with one of the statuses `counted`.
    """

    counted: tuple[str, ...] = ("ok",)
    shown: tuple[str, ...] = SHOWN
    elsewhere: tuple[str, ...] = ()
    """Factors that the suite shows in a place of their own."""

    def __init__(self, key: dict[str, Any], varying: Sequence[str], cells: pd.DataFrame, recorded: Recorded) -> None:
        self.key, self.cells, self.recorded = key, cells, recorded
        self.varying = [name for name in varying if name not in self.elsewhere]
        self.planned = len(cells)
        self.ok = int(cells["status"].isin(self.counted).sum())

    @classmethod
    def of(cls, results: pd.DataFrame) -> list[Self]:
        """All groups of a suite's rows, in the order of the plan."""
        cells = results.drop_duplicates("cell_id").reset_index(drop=True)
        varying = [column for column in cls.shown if _varies(cells, column)]
        factors = {text: json.loads(text) for text in cells["factors"].unique()}
        names = sorted({name for found in factors.values() for name in found})
        varying += [name for name in names if len({str(found.get(name)) for found in factors.values()}) > 1]
        options = {text: json.loads(text) if isinstance(text, str) else {} for text in cells["options"].unique()}
        groups = []
        places = _places(results)
        recorded = results[[name for name in ROWS if name in results]]
        metric_of, metrics = pd.factorize(results["metric"])
        for values, group in cells.groupby(GROUP, dropna=False, sort=False):
            key = dict(zip(GROUP, values, strict=True))
            counted = [places[i] for i in group.index[group["status"].isin(cls.counted)]]
            at = np.concatenate([*counted, np.array([], np.intp)])
            of_metrics = {str(metrics[i]): at[rows] for i, rows in _alike(metric_of[at]).items() if i >= 0}
            named = key | factors[key["factors"]]
            own = {name: value for name, value in options[key["options"]].items() if name not in named}
            groups.append(cls(named | own, varying, group, Recorded(recorded, of_metrics)))
        alone = _alone_apart(groups)
        for one in groups:
            one.varying += [name for name in alone if name not in one.varying]
        return groups

    def label(self) -> list[str]:
        """The model, and what varies between groups."""
        return [self.key["model"], *(_text(self.key.get(name)) for name in self.varying)]

    def fixed(self) -> list[str]:
        """What is equal in all groups, for a title."""
        found = [f"{name} {self.key[name]}" for name in ("d_model", "depth") if name not in self.varying]
        return found + [str(self.key[name]) for name in ("backend", "device", "dtype") if name not in self.varying]

    def metric(self, name: str, columns: Sequence[str] = ROWS, **where: Any) -> pd.DataFrame:
        """The rows of a metric; `where` names columns and the value they must have, None for empty."""
        return self.recorded.rows([name], columns, where)

    def values(self, name: str, **where: Any) -> np.ndarray:
        """The values of a metric that are there."""
        return self.metric(name, ["value"], **where)["value"].dropna().to_numpy(float)

    def wide(self, metrics: Sequence[str], index: Sequence[str], **where: Any) -> pd.DataFrame:
        """The values of several metrics, a column each, a row for each combination of `index` that has any."""
        rows = self.recorded.rows(metrics, [*index, "metric", "value"], where)
        wide = rows.pivot(index=index, columns="metric", values="value").reindex(columns=metrics)
        return wide.astype(float).dropna(how="all")

    def column(self, name: str) -> Any:
        """The value of a cell's column, None where it is empty."""
        found = self.cells[name].dropna()
        return found.iloc[0] if len(found) else None


def _places(results: pd.DataFrame) -> list[np.ndarray]:
    """Where the rows of each cell stand, cells in the order in which they first come."""
    return list(_alike(pd.factorize(results["cell_id"])[0]).values())


def _alike(numbers: np.ndarray) -> dict[int, np.ndarray]:
    """Where each number stands, numbers in their order."""
    order = np.argsort(numbers, kind="stable")
    changes = np.flatnonzero(np.diff(numbers[order])) + 1
    return {int(numbers[places[0]]): places for places in np.split(order, changes) if len(places)}


def _alone_apart(groups: Sequence[Cells]) -> list[str]:
    """What tells groups apart that would have one label: such as a factor that a suite does not show, as a rule, or an
    option that a model got between two runs."""
    alike: dict[tuple, list[Cells]] = {}
    for group in groups:
        known = (*SHOWN, "depth", *group.elsewhere)
        alike.setdefault((*(_text(group.key.get(name)) for name in known), *group.label()), []).append(group)
    found: dict[str, None] = {}
    for same in alike.values():
        if len(same) > 1:
            names = dict.fromkeys(name for group in same for name in group.key if name not in ("options", "factors"))
            found |= {name: None for name in names if len({_text(group.key.get(name)) for group in same}) > 1}
    return list(found)


def _varies(cells: pd.DataFrame, column: str) -> bool:
    """Whether a column has several values; `compiled`, which jax always is, within one backend."""
    if column == "compiled":
        return bool((cells.groupby("backend")[column].nunique() > 1).any())
    return cells[column].nunique() > 1

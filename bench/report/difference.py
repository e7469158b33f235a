"""What has changed from one set of results, A, to another, B: cells that came or went, their statuses, their values.

Cells are the same where their ids are, so only what was specified alike is compared. Differences are B - A.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from bench import registry
from bench.options import parse_name, unknown
from bench.report import comparison, overview
from bench.report.blocks import Block, Note, Table
from bench.report.cells import GROUP, SHOWN, told_apart
from bench.report.comparison import Comparison, Correction, Family
from bench.report.grid import by_cell
from bench.report.measures import Measure
from bench.report.scores import CORRECTIONS
from bench.store import COMPLETE_STATUSES, GOOD_STATUSES

CELLS_SHOWN = 20
"""So many cells have a line; of the others there is the number."""

KINDS = ("status", "value gone", "missing", "added")
"""What a cell's change can be, in the order in which they are shown."""

WHERE = ["step", "epoch", "layer", "head", "t", "split", "process", "sample"]
"""Columns that say where in a cell a value stands."""

ASPECTS = {
    "suite version": ["suite_version"], "task": ["task"], "model": ["model", "options", "d_state"],
    "backend": ["backend", "compiled"], "device": ["device"], "dtype": ["dtype"], "depth": ["depth"],
    "d_model": ["d_model"], "seed": ["seed"], "factors": ["factors", "recipe"],
}  # fmt: skip
"""What cells may differ in -> the columns that follow it."""


@dataclass(frozen=True)
class CellChange:
    """A cell that is missing from B, was added, has another status, or whose value is gone; `kind` is of `KINDS`."""

    kind: str
    cell_id: str
    before: str
    after: str
    fault: bool = False
    reason: str = "-"


@dataclass(frozen=True)
class ValueChange:
    """One measure of the cells that differ by their seed alone, of which at least one has another value.

    `before`, `after`: means over the pairs, geometric where the measure is a ratio; there `test` is of logarithms.
    `mark` is "better" or "worse" by the test, "worse by tolerance", or why there is neither.
    """

    suite: str
    measure: Measure
    names: Mapping[str, str]
    """The model, and what tells these cells from the suite's others."""
    fixed: Mapping[str, Any]
    """The other columns of `SHOWN`, in which no cell of the suite differs."""
    before: float
    after: float
    test: Comparison
    corrected: float | None = None
    mark: str = ""

    @property
    def fault(self) -> bool:
        return self.mark.startswith("worse")


@dataclass(frozen=True)
class Difference:
    """All that changed. `matched`: cells that both have; `columns`: the store's columns of every cell, by its id.

    `equal`: title of a measure -> values that are equal to the last bit, and of how many; `notes` are for the reader.
    """

    matched: int
    columns: Mapping[str, Mapping[str, Any]]
    cells: Sequence[CellChange]
    values: Sequence[ValueChange]
    equal: Mapping[str, tuple[int, int]]
    family: Family
    notes: Sequence[Note]

    @property
    def fault(self) -> bool:
        changes: list[CellChange | ValueChange] = [*self.cells, *self.values]
        return any(change.fault for change in changes) or any(note.fault for note in self.notes)


def difference(
    before: pd.DataFrame, after: pd.DataFrame, *, metric: str | None = None, correction: Correction = "holm",
    tolerance: float | None = None, strict: bool = False, alpha: float = 0.05,
) -> Difference:  # fmt: skip
    """Compares two stores, as `read_results` gives them; values as tables have them, of cells that are verified.

    Values are compared by group, paired by what the measure repeats over (seeds; of times processes), with p values
    corrected over all groups that changed: where all pairs are equal there is nothing to test, and as the test is
    conditional on the sizes of the differences, leaving these out keeps its level. `tolerance`: by which share of A's
    mean a mean may become worse with no test to say so.
    `strict`: a cell that was ok must still be. ValueError: no suite has the measure `metric`.
    """
    old, new = _cells(before), _cells(after)
    both = old.index.intersection(new.index, sort=False)
    missing, added = old.loc[~old.index.isin(both)], new.loc[~new.index.isin(both)]
    cells = [CellChange("missing", id_, status, "-", fault=True) for id_, status in missing["status"].items()]
    cells += _statuses(old.loc[both], new.loc[both], strict)
    (kept, left_out), (kept_after, left_out_after) = overview.verified(before), overview.verified(after)
    notes = [Note(f"A: {note.text}", warning=True) for note in left_out]
    notes += [Note(f"B: {note.text}", warning=True) for note in left_out_after]
    suites = list(old.loc[both, "suite"].dropna().unique())
    measures, not_here = _measures(suites, metric)
    values: list[ValueChange] = []
    equal: dict[str, tuple[int, int]] = {}
    gone: dict[str, list[str]] = {}
    for suite, measure in measures:
        ids = both[(old.loc[both, "suite"] == suite).to_numpy()]
        first, second = _values(kept, old, measure), _values(kept_after, new, measure)
        for id_ in ids:
            if id_ in first and id_ not in second and new.at[id_, "status"] in COMPLETE_STATUSES:
                gone.setdefault(id_, []).append(measure.title)
        values += _changes(suite, measure, _groups(old.loc[ids]), first, second)
        there = [id_ for id_ in ids if id_ in first and id_ in second]
        same = sum(first[id_] == second[id_] for id_ in there)
        equal[measure.title if len(suites) == 1 else f"{measure.title} ({suite})"] = (same, len(there))
    unverified = set(new.index) - set(kept_after["cell_id"])
    for id_, titles in gone.items():
        reason = "its layer is not shown to agree with the oracle" if id_ in unverified else "no value"
        cells.append(CellChange("value gone", id_, *_pair(old, new, id_), True, f"{', '.join(titles)}: {reason}"))
    cells += [CellChange("added", id_, "-", status) for id_, status in added["status"].items()]
    family, values = _judged(values, correction, tolerance, alpha)
    notes += [*not_here, *_stored(before, after, suites), *_alike(missing, added)]
    return Difference(
        matched=len(both),
        columns={id_: row.to_dict() for frame in (old, new) for id_, row in frame.iterrows()},
        cells=sorted(cells, key=lambda change: (not change.fault, KINDS.index(change.kind))),
        values=sorted(values, key=lambda change: not change.fault),
        equal=equal,
        family=family,
        notes=notes,
    )


def _measures(suites: Sequence[str], metric: str | None) -> tuple[list[tuple[str, Measure]], list[Note]]:
    """Suites with each of their measures, or with the one of that name; and what is to be said of other suites."""
    found: dict[str, Mapping[str, Measure]] = {}
    notes = []
    for suite in suites:
        try:
            found[suite] = registry.find("suite", suite).measures
        except ValueError as error:
            text = f"suite {suite} is not installed here, so its values are not compared: {error}"
            notes.append(Note(text, warning=True, fault=True))
    known = {name for measures in found.values() for name in measures}
    if metric is not None and suites and metric not in known:
        raise unknown("measure in --metric", metric, known)
    pairs = [(suite, measure) for suite, of in found.items() for name, measure in of.items() if metric in (None, name)]
    return pairs, notes


def _stored(before: pd.DataFrame, after: pd.DataFrame, suites: Sequence[str]) -> list[Note]:
    """Which metrics of each suite are equal in all that is stored."""
    found = []
    for suite in suites:
        same, other = unequal(*(results[results["suite"] == suite] for results in (before, after)))
        differ = f"; not equal: {', '.join(other)}" if other else ""
        found.append(Note(f"{suite}: {len(same)} metrics are equal to the last bit in all that is stored{differ}."))
    return found


def _cells(results: pd.DataFrame) -> pd.DataFrame:
    """One row a cell, by its id."""
    found = results.drop_duplicates("cell_id").set_index("cell_id", drop=False)
    found["compiled"] = found["compiled"].fillna(found["backend"] == "jax")  # before torch could be, none was
    return found


def _pair(old: pd.DataFrame, new: pd.DataFrame, cell_id: str) -> tuple[str, str]:
    return old.at[cell_id, "status"], new.at[cell_id, "status"]


def _statuses(old: pd.DataFrame, new: pd.DataFrame, strict: bool) -> list[CellChange]:
    found = []
    for id_ in old.index[(old["status"] != new["status"]).to_numpy()]:
        before, after = _pair(old, new, id_)
        fault = (before in GOOD_STATUSES and after not in GOOD_STATUSES) or (strict and before == "ok")
        reason = overview.last_line(new.at[id_, "message"])
        found.append(CellChange("status", id_, before, after, fault, reason))
    return found


Repeats = Mapping[str, Mapping[int | None, float]]
"""cell_id -> process -> value; None for a process where seeds are what repeats."""


def _values(results: pd.DataFrame, cells: pd.DataFrame, measure: Measure) -> Repeats:
    """The measure of each cell that was measured to its end."""
    found = by_cell(measure, results)
    return {id_: values for id_, values in found.items() if cells.at[id_, "status"] in COMPLETE_STATUSES}


Group = tuple[dict[str, str], dict[str, Any], pd.Index]
"""Cells that differ by their seed alone: the model and what tells them from others, what does not, and their ids."""


def _groups(cells: pd.DataFrame) -> list[Group]:
    groups = [rows for _, rows in cells.groupby(GROUP, dropna=False, sort=False)]
    firsts = [rows.iloc[0].drop("seed").to_dict() for rows in groups]
    return [
        (
            {"model": str(first["model"])} | names,
            {name: first[name] for name in SHOWN if name not in names and not pd.isna(first[name])},
            rows.index,
        )
        for rows, first, names in zip(groups, firsts, told_apart(firsts), strict=True)
    ]


def _changes(suite: str, measure: Measure, groups: list[Group], before: Repeats, after: Repeats) -> list[ValueChange]:
    found = []
    for names, fixed, ids in groups:
        first, second = (
            {(id_, process): value for id_ in ids for process, value in side.get(id_, {}).items()}
            for side in (before, after)
        )
        a, b = comparison.align(first, second)
        pairs = ~(np.isnan(a) | np.isnan(b))
        if not (a[pairs] != b[pairs]).any():
            continue
        if measure.ratio:  # what is not above 0 has no logarithm
            a, b = (np.log(np.where(values > 0, values, math.nan)) for values in (a, b))
            pairs = ~(np.isnan(a) | np.isnan(b))
        mean_a, mean_b = (float(np.mean(values[pairs])) if pairs.any() else math.nan for values in (a, b))
        if measure.ratio:
            mean_a, mean_b = math.exp(mean_a), math.exp(mean_b)
        found.append(ValueChange(suite, measure, names, fixed, mean_a, mean_b, comparison.compare(b, a)))
    return found


def _judged(
    changes: list[ValueChange], correction: Correction, tolerance: float | None, alpha: float
) -> tuple[Family, list[ValueChange]]:
    smallest = [change.test.smallest_p for change in changes]
    family = comparison.family([change.test.p for change in changes], smallest, correction, alpha)
    bounds = comparison.corrected(smallest, correction)  # what each could reach if all others reached theirs
    return family, [
        replace(change, corrected=p, mark=_mark(change, marked, bound, tolerance, alpha))
        for change, p, marked, bound in zip(changes, family.corrected, family.marked, bounds, strict=True)
    ]


def _mark(change: ValueChange, marked: bool, bound: float | None, tolerance: float | None, alpha: float) -> str:
    if change.test.difference is None:
        return "no pair of values"
    gain = float(change.measure.key(np.array(change.test.difference)))
    if marked:
        return "better" if gain > 0 else "worse"
    if tolerance is not None and gain < 0 and _share(change) > tolerance:
        return "worse by tolerance"
    if bound is None:
        return "one pair"
    return "no difference shown" if bound <= alpha else "too few pairs"


def _share(change: ValueChange) -> float:
    """The size of the change of the mean, as a share of A's."""
    return abs(change.after - change.before) / abs(change.before) if change.before else math.inf


def _alike(missing: pd.DataFrame, added: pd.DataFrame) -> list[Note]:
    """How many cells that are missing are alike in all but one thing to one that was added, and in what."""
    found = []
    if missing.empty or added.empty:
        return []
    for aspect, columns in ASPECTS.items():
        others = ["suite", *(name for key, names in ASPECTS.items() if key != aspect for name in names)]
        partners: dict[tuple[str, ...], Mapping[str, Any]] = {}
        for cell in added.to_dict("records"):
            partners[_key(cell, others, aspect)] = cell
        pairs = [(c, partners.get(_key(c, others, aspect))) for c in missing.to_dict("records")]
        differing = [_names(cell, partner, aspect, columns) for cell, partner in pairs if partner is not None]
        if differing:
            names = ", ".join(dict.fromkeys(name for one in differing for name in one))
            count = "1 missing cell has" if len(differing) == 1 else f"{len(differing)} missing cells have"
            found.append(Note(f"{count} a counterpart among the added that differs in this alone: {names}."))
    return found


def _key(cell: Mapping[str, Any], columns: Sequence[str], aspect: str) -> tuple[str, ...]:
    """What two cells share that differ in one aspect at most; models with other options have one plain name."""
    plain = [parse_name(str(cell["model"]))[0]] if aspect == "model" else []
    return (*plain, *(str(cell[name]) for name in columns))


def _names(cell: Mapping[str, Any], partner: Mapping[str, Any], aspect: str, columns: Sequence[str]) -> list[str]:
    """In what two cells differ: of factors and of a model's options the names, else both values."""
    if aspect in ("factors", "model"):
        column = "factors" if aspect == "factors" else "options"
        one, two = (json.loads(side[column]) for side in (cell, partner))
        return sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
    return [f"{aspect} {cell[columns[0]]} -> {partner[columns[0]]}"]


def unequal(before: pd.DataFrame, after: pd.DataFrame) -> tuple[list[str], list[str]]:
    """The metrics of cells that both have: those of which all stored values are equal to the last bit, and others."""
    measured = [frame.dropna(subset="metric") for frame in (before, after)]
    ids = set(measured[0]["cell_id"]) & set(measured[1]["cell_id"])
    frames = [frame[frame["cell_id"].isin(ids)] for frame in measured]
    keys = ["cell_id", *WHERE]
    sides = [
        {
            name: rows[[*keys, "value"]].sort_values(keys, kind="stable").reset_index(drop=True)
            for name, rows in frame.groupby("metric")
        }
        for frame in frames
    ]
    same: list[str] = []
    other: list[str] = []
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        both = name in sides[0] and name in sides[1] and sides[0][name].equals(sides[1][name])
        (same if both else other).append(name)
    return same, other


def blocks(found: Difference) -> list[Block]:
    """Cells, then values by suite and measure, then notes and what is wrong, in one line."""
    shown: list[Block] = [*_cell_table(found)]
    for key in dict.fromkeys((change.suite, change.measure.title) for change in found.values):
        changes = [c for c in found.values if (c.suite, c.measure.title) == key]
        shown.append(_value_table(changes))
    if found.family.tests:
        shown.append(Note(_tested(found)))
    if found.equal:
        texts = [f"{title} {same} of {count}" for title, (same, count) in found.equal.items()]
        shown.append(Note(f"Values that are equal to the last bit: {', '.join(texts)}."))
    shown += found.notes
    kinds = Counter(change.kind if change.kind != "status" else "changed in status" for change in found.cells)
    marks = Counter("worse" if change.fault else change.mark for change in found.values)
    counts = [f"{kinds[kind]} {kind}" for kind in ("missing", "added", "changed in status", "value gone")]
    counts += [f"{marks[mark]} {mark}" for mark in ("worse", "better")]
    shown.append(Note(f"{found.matched} cells in both: {', '.join(counts)}", warning=found.fault))
    return shown


def _tested(found: Difference) -> str:
    """Which test was made, and what it could show with these pairs."""
    family, units = found.family, " or ".join(sorted({change.measure.repeats for change in found.values}))
    over = f"{CORRECTIONS[family.method]} over {family.tests} test{'' if family.tests == 1 else 's'}"
    how = f"two-sided sign-flip test of differences paired by {units}, {over}"
    if family.reachable:
        return f"Better and worse at {family.alpha:g} ({how})."
    needed = f"; from {family.seeds_needed} pairs on one could be" if family.seeds_needed else ""
    return f"No difference is marked by a test: the least p that can be had is {family.smallest:.2g} ({how}){needed}."


def _cell_table(found: Difference) -> list[Block]:
    changes = found.cells[:CELLS_SHOWN]
    if not changes:
        return []
    columns = list(found.columns.values())
    apart = dict(zip(found.columns, told_apart(columns), strict=True))
    said = [apart[change.cell_id] for change in changes]
    names = [name for name in said[0] if any(one[name] != "-" for one in said)]
    suites = list(dict.fromkeys(str(cell["suite"]) for cell in columns))
    own = ["suite", "model"] if len(suites) > 1 else ["model"]
    rows = [
        [
            change.kind, *(str(found.columns[change.cell_id][name]) for name in own),
            *(one[name] for name in names), change.before, change.after, change.reason, change.cell_id,
        ]
        for change, one in zip(changes, said, strict=True)
    ]  # fmt: skip
    left = Counter(change.kind for change in found.cells[CELLS_SHOWN:])
    more = ", ".join(f"{count} more {kind}" for kind, count in left.items())
    heads = ["change", *own, *names, "A", "B", "reason", "cell"]
    return [Table(f"Cells that differ ({', '.join(suites)})", heads, rows, [f"and {more}"] if more else [])]


def _value_table(changes: Sequence[ValueChange]) -> Table:
    measure = changes[0].measure
    names = [name for name in changes[0].names if name != "model"]
    same = changes[0].fixed.items()
    fixed = ", ".join(f"d_model {value}" if name == "d_model" else str(value) for name, value in same)
    unit = f" [{measure.unit}]" if measure.unit else ""
    change = "B / A" if measure.ratio else "B - A"
    rows = [[one.names["model"], *(one.names[name] for name in names), *_texts(one), one.mark] for one in changes]
    heads = ["model", *names, "pairs", "A", "B", change, "95 % interval", "p", "mark"]
    notes = ["A and B are geometric means over the pairs."] if measure.ratio else []
    return Table(
        title=f"{measure.title}{unit}, {measure.better} is better ({changes[0].suite}: {fixed})",
        columns=heads,
        rows=rows,
        notes=notes,
        numeric=["depth", "d_model", *heads[1 + len(names) : -1]],
    )


def _texts(change: ValueChange) -> list[str]:
    """Pairs, both means, their difference or ratio, its interval, and p."""
    test = change.test
    pairs = f"{test.n} of {test.n + test.left_out}" if test.left_out else str(test.n)
    if test.difference is None:
        return [pairs, "-", "-", "-", "-", "-"]
    shown = (lambda x: f"{math.exp(x):.4g}") if change.measure.ratio else (lambda x: f"{x:+.3g}")
    interval = "-" if test.low is None or test.high is None else f"[{shown(test.low)}, {shown(test.high)}]"
    p = "-" if change.corrected is None else f"{change.corrected:.2g}"
    return [pairs, *_means(change), shown(test.difference), interval, p]


def _means(change: ValueChange) -> list[str]:
    """Both means, to two digits of their difference and three of their own, or as many as their ratio has, four."""
    means, ratio = (change.before, change.after), change.measure.ratio
    needed = [
        (0.0 if ratio else abs(change.after - change.before), 2),
        *((abs(mean), 4 if ratio else 3) for mean in means),
    ]
    decimals = max((digits - 1 - math.floor(math.log10(size)) for size, digits in needed if size), default=0)
    return [f"{mean:,.{min(max(decimals, 0), 6)}f}" for mean in means]


def described(results: pd.DataFrame) -> str:
    """What one cell is, and how and when it ended."""
    cell = results.iloc[0]
    names = ("suite", "model", "backend", "device", "dtype", "task", "depth", "d_model", "seed")
    said = [f"{n} {cell[n]}" if n in ("depth", "d_model", "seed") else str(cell[n]) for n in names if pd.notna(cell[n])]
    when = f", {cell['started_at'][:19]}" if pd.notna(cell["started_at"]) else ""
    return f"{', '.join(said)}{when}; {ended(results)}"


def ended(results: pd.DataFrame) -> str:
    """The status of one cell, with the reason where it is not ok."""
    status, message = results["status"].iloc[0], overview.last_line(results["message"].iloc[0])
    return status if status == "ok" else f"{status}: {message}"


def _mean(values: Repeats) -> float | None:
    """Of one cell, as tables have it: over processes where these are what repeats."""
    return float(np.mean([*only.values()])) if (only := next(iter(values.values()), None)) else None


def again(before: pd.DataFrame, after: pd.DataFrame) -> list[Block]:
    """One cell, measured twice: the values of its suite's measures, and what is equal to the last bit."""
    suite = after["suite"].iloc[0]
    rows = []
    for measure in registry.find("suite", suite).measures.values():
        old, new = (_mean(by_cell(measure, results)) for results in (before, after))
        if old is None and new is None:
            continue
        unit = f" [{measure.unit}]" if measure.unit else ""
        change = "-" if old is None or new is None else f"{new - old:+.3g}" if new != old else "equal to the last bit"
        texts = ["-" if value is None else f"{value:,.6g}" for value in (old, new)]
        rows.append([f"{measure.title}{unit}", *texts, change])
    found: list[Block] = []
    if rows:
        found.append(Table("Then and now", ["measure", "then", "now", "now - then"], rows, numeric=["then", "now"]))
    same, other = unequal(before, after)
    if same and not other:
        found.append(Note(f"All stored values, of {len(same)} metrics, are equal to the last bit."))
    elif same or other:
        found.append(
            Note(f"{len(same)} metrics are equal to the last bit in all that is stored; not: {', '.join(other)}.")
        )
    return found

"""The tables of the suite `accuracy`, computed from its rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from bench.report.blocks import Block, Note, Table
from bench.report.cells import Cells, Recorded
from bench.report.statistics import sparkline, spread
from suites.accuracy.published import figure

NOTE = (
    "test: per example, of the step with the best validation accuracy, mean ± sd over seeds; a single seed has no sd. "
    "validation: at that step. floors: what needs no sequence model, fitted on the training split. "
    "published: under its own recipe; (q): quoted by another paper."
)
PARTIAL = "!: some seeds did not end ok, and the mean is over those that did."


def blocks(results: pd.DataFrame) -> list[Block]:
    """Scores by task, and how the training went."""
    groups = list(Group.of(results))
    if not groups:
        return [Note("no cells")]
    found: list[Block] = []
    tasks = list(dict.fromkeys(group.key["task"] for group in groups))
    for task in tasks:
        found.append(_scores([group for group in groups if group.key["task"] == task], task == tasks[-1]))
    measured = [group for group in groups if group.ok]
    return [*found, _course(measured)] if measured else found


class Group(Cells):
    """The cells that differ by their seed alone. A recipe's own values vary by task and model, and are not shown."""

    shown = ("backend", "device", "dtype")

    def __init__(self, key: dict[str, Any], varying: Sequence[str], cells: pd.DataFrame, recorded: Recorded) -> None:
        super().__init__(key, [name for name in varying if name in (*self.shown, "recipe")], cells, recorded)
        self.facts = json.loads(self.column("facts") or "{}")

    def heads(self) -> list[str]:
        return ["model", "depth", "d_model", *self.varying]

    def label(self) -> list[str]:
        return [self.key["model"], str(self.key["depth"]), str(self.key["d_model"]),
                *(str(self.key.get(name, "-")) for name in self.varying)]  # fmt: skip

    def best(self, split: str) -> np.ndarray:
        """The accuracy at the step that was chosen, for each seed that ended ok."""
        if split == "test":
            return self.values("accuracy", split="test")
        steps = self.metric("selected_step").set_index("cell_id")["value"]
        rows = self.metric("accuracy", split=split)
        return rows[rows["step"] == rows["cell_id"].map(steps)]["value"].to_numpy(float)


def _scores(groups: list[Group], last: bool) -> Table:
    """The table of one task; what its columns mean stands under the last."""
    floors: dict[str, float] = next((group.facts["floors"] for group in groups if group.facts.get("floors")), {})
    rows = []
    for group in groups:
        test, validation = group.best("test"), group.best("validation")
        partial = "!" if 0 < group.ok < group.planned else ""
        rows.append([
            *group.label(), f"{group.ok}/{group.planned}", _mean(test) + partial, _mean(validation),
            figure(group.facts.get("published"), group.key["model"]), _whole(group.column("params")),
            _whole(group.column("state_reals")),
        ])  # fmt: skip
    columns = [*groups[0].heads(), "ok", "test", "validation", "published", "params", "state reals"]
    notes = []
    if floors:
        notes.append("Floors: " + ", ".join(f"{name} {100 * value:.1f}" for name, value in floors.items()) + " %.")
    if last:
        notes.append(NOTE)
    if any(row[len(groups[0].heads()) + 1].endswith("!") for row in rows):
        notes.append(PARTIAL)
    title = f"Test accuracy [%] on {groups[0].key['task']}"
    return Table(title, columns, rows, notes, numeric=["test", "validation", "published", "params", "state reals"])


def _course(groups: list[Group]) -> Table:
    rows = []
    for group in groups:
        curve = group.metric("accuracy", split="validation").groupby("step")["value"].mean()
        seconds = group.metric("seconds").groupby("cell_id")["value"].max().dropna()
        waiting = group.values("waiting")
        train = group.metric("accuracy", split="train")
        rows.append([
            group.key["task"], *group.label(), sparkline(curve.to_numpy(), 0.0, 1.0), _whole(curve.index.max()),
            " ".join(f"{step:.0f}" for step in sorted(group.values("selected_step"))),
            _mean(train[train["step"] == train["step"].max()]["value"].to_numpy(float)),
            f"{seconds.median():.0f}" if len(seconds) else "-", f"{100 * waiting.mean():.0f}%" if len(waiting) else "-",
        ])  # fmt: skip
    columns = ["task", *groups[0].heads(), "validation over steps", "steps", "chosen", "train at the end", "seconds",
               "waiting"]  # fmt: skip
    notes = [
        "validation over steps: mean over seeds, from 0 to 1; chosen: the step that was tested, of each seed; seconds: "
        "of training, evaluations included, median over seeds; waiting: for data, of that time."
    ]
    return Table("How training went", columns, rows, notes, numeric=["steps", "train at the end", "seconds", "waiting"])


def _mean(values: np.ndarray) -> str:
    """In percent, with the standard deviation over seeds."""
    if not len(values):
        return "-"
    deviation = spread(values)
    return f"{100 * values.mean():.1f}" + ("" if deviation is None else f" ± {100 * deviation:.1f}")


def _whole(value: float | None) -> str:
    return "-" if value is None or pd.isna(value) else f"{int(value):,}"

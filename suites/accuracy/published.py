"""Published accuracies, from `published.csv`, as they stand beside what is measured here."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from bench.report.sheet import Field, Published

NAMES = {
    "lru": "LRU", "rotrnn": "RotRNN", "s4d": "S4D-Lin", "s5": "S5", "s4": "S4",
    "transformer": "Transformer", "gru": "GRU", "rnn": "RNN",
}  # fmt: skip
"""What the table calls our models."""


def figure(where: Sequence[str] | None, model: str) -> str:
    """The published accuracy of a model on (benchmark, task), in percent; "-" where none is known.

    With "(q)" where it is known from another paper that quotes it. A model with options is another one.
    """
    name = NAMES.get(model)
    if where is None or name is None:
        return "-"
    benchmark, task = where
    return _table().get((benchmark, task, name), "-")


@cache
def _read() -> list[dict[str, str]]:
    with Path(__file__).with_name("published.csv").open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["metric"] == "accuracy" and row["value"]]


def _table() -> dict[tuple[str, str, str], str]:
    mark = {"printed": "", "quoted": " (q)"}
    return {(row["benchmark"], row["task"], row["model"]): row["value"] + mark[row["evidence"]]
            for row in _read() if row["evidence"] in mark}  # fmt: skip


def rows(places: Sequence[Sequence[str] | None], heads: Sequence[str], summaries: bool) -> Published:
    """Published accuracies for columns, each a (benchmark, task) or None: a row a model, and where each is from.

    A model without a figure in a column reads "not available" there. Figures that are not read in the paper itself (the
    evidence `summary`) only with `summaries`.
    """
    wanted = {tuple(place) for place in places if place is not None}
    found = [row for row in _read() if (row["benchmark"], row["task"]) in wanted]
    if not summaries:
        found = [row for row in found if row["evidence"] != "summary"]
    notes: list[str] = []
    lines = []
    for model in dict.fromkeys(row["model"] for row in found):
        fields = []
        for place in places:
            row = next(
                (r for r in found if r["model"] == model and [r["benchmark"], r["task"]] == list(place or [])), None
            )
            if row is None:
                fields.append(Field("not available"))
                continue
            text = f"{row['source']} ({row['evidence']})"
            if text not in notes:
                notes.append(text)
            value = row["value"] + (f" ± {row['spread']}" if row["spread"] else "")
            fields.append(Field(value, notes=(notes.index(text) + 1,)))
        lines.append((tuple(model if head == "model" else "-" for head in heads), fields))
    return Published(lines, notes)

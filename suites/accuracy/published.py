"""Published accuracies, from `published.csv`, as they stand beside what is measured here."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import cache
from pathlib import Path

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
def _table() -> dict[tuple[str, str, str], str]:
    with Path(__file__).with_name("published.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "accuracy" and row["value"]]
    mark = {"printed": "", "quoted": " (q)"}
    return {(row["benchmark"], row["task"], row["model"]): row["value"] + mark[row["evidence"]] for row in rows}

"""Which number of a cell a table or a comparison is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

Better = Literal["higher", "lower", "nearer 0"]


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One number a cell, from the rows of a metric: those where all columns of `where` hold (None: empty).

    Several rows of a cell become one by `over`; `last` takes those of the last step, then their mean. What is shown is
    `scale` times what is stored, in `unit`; of what is better nearer 0, the size.
    """

    metric: str
    better: Better
    title: str
    where: Mapping[str, Any] = field(default_factory=dict)
    over: Literal["mean", "median", "last"] = "mean"
    unit: str = ""
    scale: float = 1.0
    ratio: bool = False
    """Whether differences are ratios, as of times: compared on the log scale."""
    repeats: Literal["seed", "process"] = "seed"
    """What spread is taken over: seeds, or the processes that a cell was measured in, seeds together."""

    def values(self, results: pd.DataFrame, within: str | None = None) -> pd.Series:
        """The value of each cell that has one, by cell_id, as shown; with `within` by (cell_id, that column)."""
        rows = results[results["metric"] == self.metric].dropna(subset="value")
        for column, value in self.where.items():
            rows = rows[rows[column].isna() if value is None else rows[column] == value]
        if self.over == "last" and len(rows):
            rows = rows[rows["step"] == rows.groupby("cell_id")["step"].transform("max")]
        values = rows.groupby(["cell_id", within] if within else "cell_id", sort=False, dropna=False)["value"]
        found = self.scale * (values.median() if self.over == "median" else values.mean()).astype(float)
        return found.abs() if self.better == "nearer 0" else found

    def key(self, values: np.ndarray) -> np.ndarray:
        """Values such that larger is better."""
        found = np.asarray(values, float)
        return found if self.better == "higher" else -found

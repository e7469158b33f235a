"""How long a layer remembers an impulse."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from bench import DiagonalLayer, Suite, Unsupported, View
from bench.contract import require
from bench.measurement import Measurement
from bench.report.blocks import Block, Table


@dataclass(frozen=True, kw_only=True)
class Impulse(Suite):
    """The energy of the output at time t = `delay` after a unit impulse at t = 0, at initialisation."""

    d_model: int = 8
    delay: int = 4

    presets = {"quick": {"delay": [1, 4]}, "default": {"delay": [1, 4, 16, 64]}}

    def __post_init__(self) -> None:
        require(self.delay >= 0, f"delay must not be negative, but is {self.delay}")

    def measure(self, cell: Measurement) -> None:
        if not isinstance(cell.layer, DiagonalLayer):
            raise Unsupported(f"{cell.cell.model} is no diagonal layer")
        u = np.zeros((1, self.delay + 1, self.d_model))
        u[:, 0] = 1
        params = cell.layer.initial(cell.generator("weights"))
        y = cell.backend.apply(cell.layer, params, u, dtype=cell.cell.dtype, device=cell.device)
        cell.describe(batch=1, length=self.delay + 1)
        cell.record("energy", (y[0, -1] ** 2).sum(), "")

    def report(self, results: pd.DataFrame, view: View) -> list[Block]:
        energies = results[results["metric"] == "energy"]
        rows = [[row.model, str(row.length - 1), f"{row.value:.3g}"] for row in energies.itertuples()]
        return [Table("Memory of an impulse", ["model", "delay", "energy"], rows, numeric=["delay", "energy"])]

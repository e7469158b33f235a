"""How much energy a recurrence keeps: exact theory and Monte Carlo for dense ones, exact energies for diagonal ones."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pandas as pd

from bench import registry
from bench.contract import Adaptation, DiagonalLayer, Params, Suite, Unsupported, View, require
from bench.dense import GaussianRecurrence
from bench.energy import doubling_times
from bench.measurement import Measurement
from bench.network import Network, layer_weights
from bench.options import fields
from bench.report.blocks import Block
from bench.report.figures import Figure
from suites.signal_propagation import dense, layers, trained
from suites.signal_propagation.figures import figures
from suites.signal_propagation.report import blocks


@dataclass(frozen=True, kw_only=True)
class SignalPropagation(Suite):
    """Energy of the state over time, against the exact one.

    Dense recurrences (`dense-rnn`, `dense-lru`) of the width n: `samples` of W and inputs, at `points` lengths
    t = round(c sqrt(n)) from 0 to `c`, or up to `t`, beside the exact energy.

    Diagonal layers: d_state = n at `d_model` features; at the initialisation, or with the parameters that the run
    `trained` (its folder) has kept: energies under `noise` sequences of white noise, a constant and an impulse of
    `length` steps, the spread over `draws` initialisations, and what goes through a network of the depth.
    `part=constant`: only the norm of the state over time where all inputs are `level`, as in the preset `toy`.
    """

    n: int | None = 256
    c: float = 5.0
    t: int | None = None
    points: int = 20
    samples: int = 1000
    length: int = 1024
    noise: int = 128
    draws: int = 32
    trained: str | None = None
    part: Literal["energies", "constant"] = "energies"
    level: float = 1.0

    version: ClassVar[int] = 1
    alternatives = {"c": "t", "t": "c"}
    presets = {
        "quick": {
            "models": ["dense-rnn", "dense-lru"], "seeds": [42], "n": [16, 64, 256], "c": [3.0], "points": [7],
            "noise": [64],
            "dense-rnn.ensemble": ["complex", "real"], "dense-rnn.tied": [True, False], "depths": [4],
        },
        "default": {
            "models": ["dense-rnn", "dense-lru"], "seeds": [42], "n": [100, 200, 500, 1000, 2000],
            "dense-rnn.ensemble": ["complex", "real"], "dense-rnn.tied": [True, False],
            "dense-lru.ensemble": ["complex", "real"], "depths": [4],
        },
        "toy": {
            "models": ["rotrnn", "lru", "s5"], "part": ["constant"], "level": [1.0, 10.0, 100.0], "n": [256],
            "d_model": [128], "length": [100_000],
            "rotrnn.gamma_min": [1e-9], "rotrnn.gamma_max": [1 - 1e-6], "lru.r_max": [1 - 1e-6],
        },
    }  # fmt: skip

    def __post_init__(self) -> None:
        for name in ("n", "points", "length", "d_model"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name} must be at least 1, not {value}")
        for name in ("samples", "noise", "draws"):
            require(
                getattr(self, name) >= 2, f"{name} must be at least 2, not {getattr(self, name)}: one has no spread"
            )
        require(self.c > 0, f"c must be above 0, not {self.c}")
        require(self.t is None or self.t >= 1, f"t must be at least 1, not {self.t}")
        if self.trained is not None:
            trained.check(Path(self.trained))

    def adapt(self, model: str, task: str | None) -> Adaptation:
        cls = registry.find("model", model)
        if self.trained is not None:
            return Adaptation(fixed={"n": None})
        if self.n is None:
            return Adaptation()
        if issubclass(cls, GaussianRecurrence):
            return Adaptation(fixed={"d_model": self.n}, depth=1)
        return Adaptation(options=_of_width(cls, self.n) if "d_state" in fields(cls) else {})

    def measure(self, cell: Measurement) -> None:
        layer = cell.layer
        if isinstance(layer, GaussianRecurrence):
            cell.describe(length=None)
            dense.measure(cell, layer, dense.grid(layer.d_model, self.c, self.points, self.t), self.samples)
            return
        if not isinstance(layer, DiagonalLayer):
            raise Unsupported(
                f"{cell.cell.model} is neither diagonal nor Gaussian: the energy of its state is not known"
            )
        if layer.has_reverse:
            raise Unsupported("a bidirectional layer has no single state at a time step")
        network, weights = self._network(cell)
        cell.describe(length=self.length)
        if self.part == "constant":
            layers.measure_constant(cell, layer, layer_weights(weights, 0), self.length, self.level)
            return
        blocks = [layer_weights(weights, i) for i in range(network.depth)] if self.trained else [
            layer_weights(weights, 0)
        ]  # fmt: skip
        layers.measure(cell, layer, blocks, self.length, self.noise)
        if self.trained is None:
            layers.measure_draws(cell, layer, doubling_times(self.length), self.draws)
        layers.measure_depth(cell, network, weights, self.length)
        if cell.task is not None:
            layers.measure_task(cell, cell.task, network, weights, self.noise)

    def _network(self, cell: Measurement) -> tuple[Network, Params]:
        """The network and its weights: as kept by a run, or at the initialisation."""
        if self.trained is not None:
            return trained.find(Path(self.trained), cell)
        layer, depth = cell.layer, cell.cell.depth
        if cell.task is not None:
            network = Network.of(layer, depth, cell.task)
        else:
            network = Network(layer=layer, depth=depth, inputs=layer.d_model, tokens=False, classes=2)
        return network, network.initial(cell.cell.plain_model, cell.cell.seed)

    def report(self, results: pd.DataFrame, view: View) -> list[Block]:
        return blocks(results)

    def figures(self, results: pd.DataFrame, view: View) -> list[Figure]:
        return figures(results)


def _of_width(cls: type[Any], n: int) -> dict[str, int]:
    """d_state = n, in the most heads or blocks, up to the default, that go with it."""
    for name in ("heads", "blocks"):
        for count in range(getattr(cls, name, 0), 0, -1):
            with contextlib.suppress(ValueError):
                cls(d_model=1, d_state=n, **{name: count})
                return {"d_state": n, name: count}
    return {"d_state": n}

"""A suite that is measured in rounds and one that wants a fresh process for each cell; a layer that fails late."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

import bench


@dataclass(frozen=True, kw_only=True)
class Traces(bench.Suite):
    """Records the process that measures, and leaves a line in the file that ROUNDS_LOG names."""

    d_model: int = 4
    length: int = 1

    exclusive: ClassVar[bool] = True

    def measure(self, cell):
        with Path(os.environ["ROUNDS_LOG"]).open("a") as log:
            log.write(f"{cell.process} {cell.cell.model} {self.length} {os.getpid()}\n")
        cell.describe(length=self.length)
        cell.record("pid", os.getpid(), "", sample=0)
        cell.fact(pid=os.getpid(), suite="traces")
        here = f"{cell.cell.plain_model} {self.length} {cell.process}"
        if here in os.environ.get("ROUNDS_FAIL", "").split(", "):
            raise ValueError("as was asked")
        if here == os.environ.get("ROUNDS_WIDE"):
            cell.unconverged("too wide in this round")

    def report(self, results, view):
        return []


@bench.register.suite("in-rounds")
@dataclass(frozen=True, kw_only=True)
class InRounds(Traces):
    rounds: int = 2

    isolation: ClassVar[Literal["shared", "cell", "rounds"]] = "rounds"


@bench.register.suite("alone")
@dataclass(frozen=True, kw_only=True)
class Alone(Traces):
    isolation: ClassVar[Literal["shared", "cell", "rounds"]] = "cell"


class Plain(bench.DiagonalLayer):
    """x_t = x_{t-1} / 2 + u_t, y_t = x_t."""

    def initial(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {"a": np.full(self.d_model, 0.5)}

    def roles(self):
        return {"a": "dynamics"}

    def system(self, params, ops) -> bench.DiagonalSystem:
        one = ops.constant(np.eye(self.d_model), params["a"])
        a, b = ops.complex(params["a"], 0 * params["a"]), ops.complex(one, 0 * one)
        return bench.DiagonalSystem(a, b, b, 0 * params["a"])


bench.register.model("first")(dataclass(frozen=True, kw_only=True)(type("First", (Plain,), {})))
bench.register.model("second")(dataclass(frozen=True, kw_only=True)(type("Second", (Plain,), {})))

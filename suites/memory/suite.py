"""Measures the memory of forward passes, training steps and decoding, in a fresh process for each cell."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import pandas as pd

from bench.contract import Suite, Unsupported, View, require
from bench.matching import count
from bench.measure import memory
from bench.measure.cost import ITEMSIZE, Mode, layer_cost
from bench.measure.workload import Part, Program, Workload
from bench.measurement import Measurement
from bench.report.blocks import Block
from suites.memory.report import blocks

if TYPE_CHECKING:
    from bench.selftest import Selftest

DISAGREEMENT = 0.2
"""A relative difference between two figures for the same memory from which on a row says so."""


@dataclass(frozen=True, kw_only=True)
class Memory(Suite):
    """Bytes above what the process held before weights and inputs were made, at the worst moment of one call.

    Side by side: the operating system's high-water mark of the process, the allocator's own peak, what the compiler
    predicts, and what the layer's own model expects. `mode`, `part`, `batch`, `length`, `tokens` as in the suite
    `throughput`. What cannot be had is null, with the reason.
    """

    d_model: int = 128
    mode: Mode = "train"
    batch: int = 8
    length: int = 1024
    tokens: int = 0
    part: Part = "layer"

    exclusive: ClassVar[bool] = True
    isolation: ClassVar[Literal["shared", "cell", "rounds"]] = "cell"
    presets = {
        "quick": {
            "seeds": [0],
            "d_model": [64],
            "length": [1024, 4096],
            "mode": ["forward", "train"],
        },
        "default": {
            "seeds": [0],
            "tokens": [65536],
            "length": [1024, 4096, 16384, 65536],
            "mode": ["forward", "train", "decode"],
        },
    }

    def __post_init__(self) -> None:
        for name in ("d_model", "batch", "length"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1, not {getattr(self, name)}")
        require(
            self.tokens >= 0 and self.tokens % self.length == 0,
            f"tokens must be a multiple of length = {self.length}, or 0, not {self.tokens}",
        )

    @property
    def rows(self) -> int:
        """The batch that is run."""
        return self.tokens // self.length if self.tokens else self.batch

    def measure(self, cell: Measurement) -> None:
        workload = Workload(
            layer=cell.layer, depth=cell.cell.depth, part=self.part, mode=self.mode, batch=self.rows, length=self.length
        )
        if self.part == "network" and cell.cell.dtype == "bfloat16":
            raise Unsupported("networks are not trained in bfloat16 yet: part=layer is")
        weights = workload.weights(cell.cell.plain_model, cell.cell.seed)
        params = sum(weights[name].size for name in workload.groups())
        cell.describe(batch=self.rows, length=self.length, mode=self.mode, params=params)
        if self.mode == "decode":
            cell.describe(kernel="step")

        # what a first call loads and allocates once and for all is not the cell's: a small one comes before
        small = self._program(cell, dataclasses.replace(workload, batch=1, length=min(8, self.length)))
        small.build()
        _run(small)
        del small
        program = self._program(cell, workload)
        program.build()
        why = "" if cell.device == "cpu" else "the system sees the host's memory, not the device's"
        system: int | None = None
        try:
            system = memory.peak(lambda: _run(program))
        except memory.Unmeasurable as reason:
            why = str(reason)
            _run(program)
        if cell.device != "cpu":
            system = None
        allocator, no_allocator = program.allocator_peak()
        predicted, no_prediction = program.predicted_bytes()
        cost = layer_cost(
            cell.layer, self.mode, self.rows, self.length, count(cell.layer), ITEMSIZE[cell.cell.dtype]
        ) if self.part == "layer" else None  # fmt: skip
        model = cost.held * cell.cell.depth if cost else None
        figures = {
            "peak_system": (system, why),
            "peak_allocator": (allocator, no_allocator),
            "predicted_compiler": (predicted, no_prediction),
            "predicted_layer": (model, "no model of what this holds: it is of bare layers that are diagonal"),
        }
        best = allocator if allocator is not None else system
        for name, (value, lacking) in figures.items():
            message = lacking if value is None else disagreement(value, best)
            cell.record(name, value, "B", message=message or None)
        cell.record("bytes_per_token", best / workload.tokens if best is not None else None, "B")
        cell.record("granularity", memory.granularity(), "B")

    def _program(self, cell: Measurement, workload: Workload) -> Program:
        weights = workload.weights(cell.cell.plain_model, cell.cell.seed)
        inputs = workload.inputs(cell.generator("memory", workload.mode, workload.batch, workload.length))
        return cell.backend.Program(workload, weights, inputs, cell.cell.dtype, cell.device)

    @classmethod
    def selftest(cls) -> Selftest:
        from suites.memory.selftest import SELFTEST

        return SELFTEST

    def report(self, results: pd.DataFrame, view: View) -> list[Block]:
        return blocks(results, view)


def _run(program: Program) -> None:
    program.place()
    program.launch()
    program.wait()


def disagreement(value: float, best: float | None) -> str:
    """A text where a figure is further from the best one than `DISAGREEMENT`; empty where it is not."""
    if best is None or abs(value - best) <= DISAGREEMENT * best:
        return ""
    return f"{value / best:.2f} x the measured peak"

"""Measures the memory of forward passes, training steps and decoding, in a fresh process for each cell."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import pandas as pd

from bench.contract import View
from bench.matching import count
from bench.measure import memory
from bench.measure.cost import ITEMSIZE, layer_cost
from bench.measure.suite import WorkloadSuite
from bench.measure.workload import Program
from bench.measurement import Measurement
from bench.report.blocks import Block
from bench.report.figures import Figure
from bench.report.measures import Measure
from suites.memory.figures import figures
from suites.memory.report import blocks

if TYPE_CHECKING:
    from bench.selftest import Selftest

DISAGREEMENT = 0.2
"""A relative difference between two figures for the same memory from which on a row says so."""


@dataclass(frozen=True, kw_only=True)
class Memory(WorkloadSuite):
    """Bytes above what the process held before weights and inputs were made, at the worst moment of one call.

    Side by side: the operating system's high-water mark of the process, the allocator's own peak, what the compiler
    predicts, and what the layer's own model expects. Factors as in `WorkloadSuite`. What cannot be had is null, with
    the reason.
    """

    exclusive: ClassVar[bool] = True
    isolation: ClassVar[Literal["shared", "cell", "rounds"]] = "cell"
    measures = {
        "system": Measure(metric="peak_system", better="lower", title="Memory, operating system", unit="MiB",
                          scale=2.0**-20, ratio=True),
        "allocator": Measure(metric="peak_allocator", better="lower", title="Memory, allocator", unit="MiB",
                             scale=2.0**-20, ratio=True),
        "compiler": Measure(metric="predicted_compiler", better="lower", title="Memory, compiler", unit="MiB",
                            scale=2.0**-20, ratio=True),
    }  # fmt: skip
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

    def measure(self, cell: Measurement) -> None:
        workload = self.workload(cell)

        # what a first call loads and allocates once and for all is not the cell's: a small one comes before
        small = self.program(cell, dataclasses.replace(workload, batch=1, length=min(8, self.length)))
        small.build()
        _run(small)
        del small
        program = self.program(cell, workload)
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
            cell.layer, self.mode, self.rows, self.length, count(cell.layer), ITEMSIZE[cell.cell.dtype], cell.cell.depth
        ) if self.part == "layer" else None  # fmt: skip
        model = cost.held if cost else None
        figures = {
            "peak_system": (system, why),
            "peak_allocator": (allocator, no_allocator),
            "predicted_compiler": (predicted, no_prediction),
            "predicted_layer": (model, "no model of what this holds: it is of bare layers that say what they do"),
        }
        best = allocator if allocator is not None or (system or 0) < memory.RESOLVED else system
        for name, (value, lacking) in figures.items():
            message = lacking if value is None else disagreement(value, best)
            cell.record(name, value, "B", message=message or None)
        per_token = None if best is None else best / workload.tokens
        cell.record("bytes_per_token", per_token, "B", message=unresolved(system) if per_token is None else None)
        cell.record("granularity", memory.granularity(), "B")

    @classmethod
    def selftest(cls) -> Selftest:
        from suites.memory.selftest import SELFTEST

        return SELFTEST

    def report(self, results: pd.DataFrame, view: View) -> list[Block]:
        return blocks(results, view)

    def figures(self, results: pd.DataFrame, view: View) -> list[Figure]:
        return figures(results)


def _run(program: Program) -> None:
    program.place()
    program.launch()
    program.wait()


def unresolved(system: int | None) -> str:
    """Why there is no figure to compare with, where there is no allocator's."""
    if system is None:
        return "there is neither an allocator's figure nor the system's"
    return f"there is no allocator's figure, and the system's is below the {memory.RESOLVED // 2**20} MiB it resolves"


def disagreement(value: float, best: float | None) -> str:
    """A text where a figure is further from the best one than `DISAGREEMENT`; empty where it is not."""
    if best is None or abs(value - best) <= DISAGREEMENT * best:
        return ""
    return f"{value / best:.2f} x the measured peak"

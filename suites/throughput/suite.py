"""Times forward passes, training steps and steps of decoding."""

from __future__ import annotations

import dataclasses
import functools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pandas as pd

from bench import conformance
from bench.backends import reference
from bench.conformance import Verdict
from bench.conformance.oracle import output_error
from bench.contract import DiagonalLayer, View, require
from bench.matching import count
from bench.measure import limits, machine, timing
from bench.measure.cost import ITEMSIZE, Mode, layer_cost
from bench.measure.suite import WorkloadSuite
from bench.measurement import Measurement
from bench.report.blocks import Block
from bench.report.figures import Figure
from bench.report.measures import Measure
from suites.throughput.figures import figures
from suites.throughput.report import blocks

if TYPE_CHECKING:
    from bench.selftest import Selftest

STEPS = 32
"""Steps of decoding that are compared with the loop before one is timed."""


@dataclass(frozen=True, kw_only=True)
class Throughput(WorkloadSuite):
    """Time of one call, everything compiled and warm, all outputs waited for; factors as in `WorkloadSuite`.

    Each cell is timed in `rounds` processes, in each until the 95 % interval of its median is within `width` of it or
    `budget` seconds are spent.
    """

    mode: Mode = "forward"
    rounds: int = 3
    width: float = 0.02
    budget: float = 20.0

    exclusive: ClassVar[bool] = True
    isolation: ClassVar[Literal["shared", "cell", "rounds"]] = "rounds"
    compiles: ClassVar[bool] = True
    measures = {
        "time": Measure(metric="time", over="median", better="lower", title="Time", unit="ms", scale=1e3, ratio=True,
                        repeats="process"),
        "tokens_per_s": Measure(metric="tokens_per_s", over="median", better="higher", title="Throughput",
                                unit="thousand tokens/s", scale=1e-3, ratio=True, repeats="process"),
    }  # fmt: skip
    presets = {
        "quick": {
            "seeds": [0],
            "d_model": [64],
            "batch": [4],
            "length": [256, 1024, 4096],
            "mode": ["forward", "train"],
            "rounds": [2],
            "width": [0.05],
            "budget": [3.0],
        },
        "default": {
            "seeds": [0],
            "tokens": [65536],
            "length": [1024, 4096, 16384, 65536],
            "mode": ["forward", "train", "decode"],
        },
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.rounds >= 1, f"rounds must be at least 1, not {self.rounds}")
        require(0 < self.width < 1, f"width is a share of the median, above 0 and below 1, not {self.width}")
        require(self.budget > 0, f"budget must be above 0 seconds, not {self.budget}")

    def measure(self, cell: Measurement) -> None:
        workload = self.workload(cell)
        program = self.program(cell, workload)
        # the first call meets everything cold, so the oracle comes after it; but torch.compile forgets what it compiled
        verdict = self._verdict(cell) if cell.cell.compiled else None
        compile_s = program.build()
        cell.fact(compile_cache=program.cache())
        program.place()
        started = time.perf_counter()
        program.launch()
        program.wait()
        first = time.perf_counter() - started
        verdict = verdict or self._verdict(cell)
        shorter = f", at length {verdict.length}" if verdict.length else ""
        cell.fact(verified=verdict.reason or f"yes{shorter}")
        before, width, budget = program.compilations(), self.width, self.budget
        found, state = machine.undisturbed(cell.device, lambda: timing.take(program, width=width, budget_s=budget))
        compilations = program.compilations() - before
        cell.fact(machine=state)
        record = functools.partial(cell.record, verified=verdict.verified)
        for sample, seconds in enumerate(found.samples):
            record("time" if sample >= found.steady else "unsteady_time", seconds, "s", sample=sample)
        for sample, seconds in enumerate([] if found.device is None else found.device[found.steady :]):
            record("device_time", seconds, "s", sample=sample + found.steady)
        record("output_error", verdict.output_error, "of the largest", message=verdict.reason or None)
        record("gradient_error", verdict.gradient_error, "of the largest", message=verdict.reason or None)
        why = None if compile_s is not None else "nothing is compiled ahead of the first call"
        record("compile_time", compile_s, "s", message=why)
        decoding = self.mode == "decode"
        why = "steps were made before, up to the position" if decoding else None
        record("first_call", None if decoding else first, "s", message=why)
        record("compilations_while_timed", compilations, "")
        record("calls_per_sample", found.calls, "")
        record("half_width", found.half_width, "of the median")
        record("tokens_per_s", workload.tokens / found.median, "1/s")
        sequences = None if self.mode == "decode" else self.rows / found.median
        record("sequences_per_s", sequences, "1/s", message=None if sequences else "a step is no whole sequence")
        self._record_limits(cell, record, found.median)
        if not found.converged:
            cell.unconverged(
                f"the 95 % interval of the median is within {found.half_width:.1%} of it after {self.budget:g} s, "
                f"not within {self.width:.1%}"
            )

    def _verdict(self, cell: Measurement) -> Verdict:
        """Whether the layer agrees with the oracle in the cell's own configuration."""
        verdict = conformance.verify(
            cell.layer,
            model=cell.cell.plain_model,
            backend=cell.cell.backend,
            dtype=cell.cell.dtype,
            device=cell.device,
            batch=self.rows,
            length=self.length,
            compile=cell.cell.compiled,
        )
        return self._with_steps(cell, verdict) if self.mode == "decode" and verdict.verified else verdict

    def _with_steps(self, cell: Measurement, verdict: Verdict) -> Verdict:
        """The verdict, after a look at single steps as well: they are another program than the scan."""
        layer: Any = cell.layer
        params = layer.initial(cell.generator("weights"))
        held = {"tf32": "float32"}.get(cell.cell.dtype, cell.cell.dtype)
        u = reference.round_input(cell.generator("steps").standard_normal((2, STEPS, self.d_model)), held)
        if isinstance(layer, DiagonalLayer):
            wanted = reference.apply(layer, params, u, dtype=held)
        else:
            wanted = layer.loop(reference.round_to(params, held), u)
        decode = cell.backend.decoder(layer, params, dtype=cell.cell.dtype, device=cell.device)
        state, found = None, []
        for t in range(STEPS):
            y, state = decode(u[:, t], state)
            found.append(y)
        error = output_error(np.stack(found, 1), wanted)
        worst = max(error, verdict.output_error or 0.0)
        if error <= verdict.limit:
            return dataclasses.replace(verdict, output_error=worst)
        reason = f"above the limit of {verdict.limit:g}: step by step {error:.1e}"
        return dataclasses.replace(verdict, verified=False, output_error=worst, reason=reason)

    def _record_limits(self, cell: Measurement, record, seconds: float) -> None:
        """Operations and traffic of the layer's own model, against what this machine reached in this process."""
        size = ITEMSIZE[cell.cell.dtype]
        depth = cell.cell.depth
        cost = None
        if self.part == "layer":
            cost = layer_cost(cell.layer, self.mode, self.rows, self.length, count(cell.layer), size, depth)
        backend, dtype, device = cell.cell.backend, cell.cell.dtype, cell.device
        reached = limits.of(backend, dtype, device)
        record("limit_flops", reached.products, "1/s")
        record("limit_state_flops", reached.others, "1/s")
        record("limit_bandwidth", reached.bandwidth, "B/s")
        why = None if cost else "no model of what this does: it is of bare layers that say what they do"
        least = limits.least_seconds(cost, backend, dtype, device) if cost else None
        record("flops", cost.flops if cost else None, "", message=why)
        record("bytes", cost.moved if cost else None, "B", message=why)
        record("limit_time", least, "s", message=why)
        record("limit_fraction", least / seconds if least is not None else None, "", message=why)

    @classmethod
    def selftest(cls) -> Selftest:
        from suites.throughput.selftest import SELFTEST

        return SELFTEST

    def report(self, results: pd.DataFrame, view: View) -> list[Block]:
        return blocks(results, view)

    def figures(self, results: pd.DataFrame, view: View) -> list[Figure]:
        return figures(results)

"""Memory of a training step, by the protocol of the suite `memory`."""

from __future__ import annotations

from bench.measure import memory
from bench.measure.workload import Program

from . import EachLayer, finite, program

BATCH, LENGTH = 8, 1024
"""Large enough for what a step holds to stand above what a process gains and loses by itself."""


class Layer(EachLayer):
    """Bytes at the worst moment above what was held before: the allocator's where it tells, else the system's."""

    unit = "B"

    def track_train(self, model: str, backend: str) -> float:
        # what a first call loads and allocates once and for all is not the step's: a small one comes before
        _run(program(model, backend, "train", batch=1, length=8))
        call = program(model, backend, "train", BATCH, LENGTH)
        system = memory.peak(lambda: _run(call))
        allocator, _ = call.allocator_peak()
        return finite(allocator if allocator is not None else system)


def _run(call: Program) -> None:
    call.place()
    call.launch()
    call.wait()

"""Time of one call, by the protocol of the suite `throughput`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.measure import machine, timing
from bench.measure.cost import Mode

from . import DEVICE, EachLayer, finite, program

WIDTH = 0.02
BUDGET_S = 0.5
ROUNDS = 2
"""Processes, with all other times between them: what the machine does in one minute is not taken for the commit's."""


def in_rounds(benchmark: Callable) -> Callable:
    """asv runs it in that many processes, and puts their samples together."""
    benchmark.__dict__["rounds"] = ROUNDS
    return benchmark


class Layer(EachLayer):
    """Everything compiled and warm, all outputs waited for; stored are the median and the steady samples."""

    unit = "s"

    @in_rounds
    def track_forward(self, model: str, backend: str) -> dict[str, Any]:
        return self._take(model, backend, "forward")

    @in_rounds
    def track_train(self, model: str, backend: str) -> dict[str, Any]:
        return self._take(model, backend, "train")

    def _take(self, model: str, backend: str, mode: Mode) -> dict[str, Any]:
        call = program(model, backend, mode)
        call.place()
        found, _ = machine.undisturbed(DEVICE, lambda: timing.take(call, width=WIDTH, budget_s=BUDGET_S))
        samples = [finite(seconds) for seconds in found.samples[found.steady :]]
        return {"samples": samples, "number": found.calls}  # asv keeps both, and the samples' median as the value

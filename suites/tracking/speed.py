"""Time of one call, by the protocol of the suite `throughput`."""

from __future__ import annotations

from typing import Any

from bench.measure import machine, timing
from bench.measure.cost import Mode

from . import DEVICE, EachLayer, finite, program

WIDTH = 0.02
BUDGET_S = 0.7


class Layer(EachLayer):
    """Everything compiled and warm, all outputs waited for; stored are the median and the steady samples."""

    unit = "s"

    def track_forward(self, model: str, backend: str) -> dict[str, Any]:
        return self._take(model, backend, "forward")

    def track_train(self, model: str, backend: str) -> dict[str, Any]:
        return self._take(model, backend, "train")

    def _take(self, model: str, backend: str, mode: Mode) -> dict[str, Any]:
        call = program(model, backend, mode)
        call.place()
        found, _ = machine.undisturbed(DEVICE, lambda: timing.take(call, width=WIDTH, budget_s=BUDGET_S))
        samples = [finite(seconds) for seconds in found.samples[found.steady :]]
        return {"samples": samples, "number": found.calls}  # asv keeps both, and the samples' median as the value

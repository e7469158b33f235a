"""Error of outputs and gradients against the float64 loop, by the check that every timing goes through."""

from __future__ import annotations

from bench import conformance

from . import DEVICE, DTYPE, EachLayer, finite, layer

BATCH, LENGTH = 2, 256


class Layer(EachLayer):
    """The largest error: of outputs, of the largest output; of a gradient, of its own size."""

    unit = "of the largest"

    def track_error(self, model: str, backend: str) -> float:
        found = conformance.verify(
            layer(model), model=model, backend=backend, dtype=DTYPE, device=DEVICE, batch=BATCH, length=LENGTH
        )
        return max(finite(error, found.reason) for error in (found.output_error, found.gradient_error))

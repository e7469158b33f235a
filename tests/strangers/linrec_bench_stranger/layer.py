"""Moving averages, a few a channel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench import DiagonalLayer, DiagonalSystem


@dataclass(frozen=True, kw_only=True)
class MovingAverage(DiagonalLayer):
    """One system a channel: x_t = a x_{t-1} + (1 - a) u_t,  y_t = C x_t + D u_t,  a = 1 / (1 + exp(-a_logit))."""

    averages: int = 4

    def initial(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        shape = (self.d_model, self.averages)
        a_logit = np.broadcast_to(np.linspace(0, 3, self.averages), shape).copy()
        return {"a_logit": a_logit, "C": rng.standard_normal(shape) / self.averages, "D": np.zeros(self.d_model)}

    def roles(self):
        return {"a_logit": "dynamics", "C": "output", "D": "skip"}

    def system(self, params, ops) -> DiagonalSystem:
        a = 1 / (1 + ops.exp(-params["a_logit"]))
        return DiagonalSystem(*(ops.complex(x, 0 * x) for x in (a, 1 - a, params["C"])), params["D"])

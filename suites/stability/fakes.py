"""A layer whose state grows by a known factor a step, which the suite `stability` must recover: `bench selftest`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import bench
from suites.stability.selftest import GROWTH


@bench.register.model("growing")
@dataclass(frozen=True, kw_only=True)
class Growing(bench.DiagonalLayer):
    """x_t = 1.01 x_{t-1} + B u_t,  y_t = C x_t: nothing of it is trained but C."""

    d_state: int = 32

    def initial(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        n, h = self.d_state, self.d_model
        C = rng.standard_normal((h, n)) / (100 * np.sqrt(n))
        return {"B": rng.standard_normal((n, h)) / np.sqrt(h), "C": C, "a": np.full(n, GROWTH)}

    def roles(self):
        return {"B": "constant", "C": "output", "a": "constant"}

    def system(self, params, ops) -> bench.DiagonalSystem:
        a, B, C = (ops.complex(params[name], 0 * params[name]) for name in ("a", "B", "C"))
        return bench.DiagonalSystem(a, B, C, 0 * params["C"][:, 0])

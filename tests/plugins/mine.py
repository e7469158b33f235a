"""A layer of one's own in one file: `bench run --suite stability --models rotrnn,mine --plugin mine.py`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import bench


@bench.register.model("mine")
@dataclass(frozen=True, kw_only=True)
class Leaky(bench.DiagonalLayer):
    """x_t = a x_{t-1} + (1 - a) B u_t,  y_t = C x_t + D * u_t,  with 0 < a = exp(-exp(rate_log)) < 1."""

    d_state: int = 16
    slowest: float = 100.0

    variants = {"fast": {"slowest": 10.0}}

    def initial(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        n, h = self.d_state, self.d_model
        B, C = rng.standard_normal((n, h)) / np.sqrt(h), rng.standard_normal((h, n)) / np.sqrt(n)
        return {"rate_log": np.linspace(-np.log(self.slowest), 0, n), "B": B, "C": C, "D": np.ones(h)}

    def roles(self):
        return {"rate_log": "dynamics", "B": "input", "C": "output", "D": "skip"}

    def system(self, params, ops) -> bench.DiagonalSystem:
        a = ops.exp(-ops.exp(params["rate_log"]))
        real = [ops.complex(x, 0 * x) for x in (a, (1 - a)[:, None] * params["B"], params["C"])]
        return bench.DiagonalSystem(*real, params["D"])

"""The Linear Recurrent Unit."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi
from typing import ClassVar, Literal

import numpy as np

from bench.contract import DiagonalLayer, DiagonalSystem, Ops, Params, Role, require
from bench.sampling import normal, open_uniform


@dataclass(frozen=True, kw_only=True)
class LRU(DiagonalLayer):
    """x_t = Lambda x_{t-1} + exp(gamma_log) * (B u_t),  y_t = Re(C x_t) + D * u_t.

    Lambda = exp(-exp(nu_log) + i exp(theta_log)), so |Lambda| < 1 whatever the parameters. At the start Lambda is
    uniform on the ring r_min <= |Lambda| <= r_max with phases in [0, max_phase], and exp(gamma_log) is
    sqrt(1 - |Lambda|^2). With `gamma="trained"` gamma_log is then a free parameter, with "tied" it stays that function
    of Lambda, with "none" there is no normaliser.

    Shapes: nu_log, theta_log, gamma_log (d_state,), B_re, B_im (d_state, d_model), C_re, C_im (d_model, d_state),
    D (d_model,); bidirectional: C2_re, C2_im like C.
    """

    d_state: int = 64
    r_min: float = 0.0
    r_max: float = 0.99
    max_phase: float = 2 * pi
    gamma: Literal["trained", "tied", "none"] = "trained"
    bidirectional: bool = False

    source: ClassVar[str] = "Orvieto et al. 2023, arXiv 2303.06349"
    variants = {"gamma tied to Lambda": {"gamma": "tied"}, "without normaliser": {"gamma": "none"}}

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.d_state >= 1, f"d_state must be at least 1, not {self.d_state}")
        require(
            0 <= self.r_min <= self.r_max <= 1 and self.r_min < 1 and self.r_max > 0,
            "0 <= r_min <= r_max <= 1, r_min < 1 and r_max > 0 must hold, "
            f"not r_min = {self.r_min}, r_max = {self.r_max}",
        )
        require(self.max_phase > 0, f"max_phase must be above 0, not {self.max_phase}")

    def initial(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        n, h = self.d_state, self.d_model
        nu = -0.5 * np.log(open_uniform(rng, n, self.r_min**2, self.r_max**2))
        params = {"nu_log": np.log(nu), "theta_log": np.log(self.max_phase * open_uniform(rng, n))}
        if self.gamma == "trained":
            params["gamma_log"] = 0.5 * np.log(-np.expm1(-2 * nu))
        params |= {"B_re": normal(rng, (n, h), 1 / (2 * h)), "B_im": normal(rng, (n, h), 1 / (2 * h))}
        params |= {"C_re": normal(rng, (h, n), 1 / n), "C_im": normal(rng, (h, n), 1 / n)}
        if self.bidirectional:
            params |= {"C2_re": normal(rng, (h, n), 1 / n), "C2_im": normal(rng, (h, n), 1 / n)}
        return params | {"D": normal(rng, (h,))}

    def roles(self) -> dict[str, Role]:
        roles: dict[str, Role] = {"nu_log": "dynamics", "theta_log": "dynamics"}
        if self.gamma == "trained":
            roles["gamma_log"] = "normaliser"
        roles |= {"B_re": "input", "B_im": "input", "C_re": "output", "C_im": "output", "D": "skip"}
        if self.bidirectional:
            roles |= {"C2_re": "output", "C2_im": "output"}
        return roles

    def system(self, params: Params, ops: Ops) -> DiagonalSystem:
        nu, theta = ops.exp(params["nu_log"]), ops.exp(params["theta_log"])
        modulus = ops.exp(-nu)
        Lambda = ops.complex(modulus * ops.cos(theta), modulus * ops.sin(theta))
        B = ops.complex(params["B_re"], params["B_im"])
        if self.gamma == "trained":
            B = ops.exp(params["gamma_log"])[:, None] * B
        elif self.gamma == "tied":
            B = ops.sqrt(-ops.expm1(-2 * nu))[:, None] * B  # 1 - |Lambda|^2, which rounds to 0 when subtracted
        C = ops.complex(params["C_re"], params["C_im"])
        C2 = ops.complex(params["C2_re"], params["C2_im"]) if self.bidirectional else None
        return DiagonalSystem(Lambda, B, C, params["D"], C2)

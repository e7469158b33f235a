"""The Linear Recurrent Unit."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi
from typing import Any, ClassVar, Literal

import numpy as np

from bench.contract import Array, DiagonalLayer, DiagonalSystem, Ops, Params, Role, require
from bench.sampling import normal, open_uniform

DYNAMICS = {
    "stable": ("nu_log", "theta_log"),
    "exponential": ("nu", "theta"),
    "complex": ("Lambda_re", "Lambda_im"),
}
"""The parameters that Lambda comes from, by parameterisation."""

DISC: dict[str, Any] = {
    "parameterisation": "stable", "r_min": 0.0, "r_max": 1.0, "max_phase": 2 * pi, "gamma": "none"
}  # fmt: skip
"""The whole unit disc, no normaliser. All options that change along the ladder, so that a recipe sets none of them."""

RING = DISC | {"r_min": 0.9, "r_max": 0.999}


@dataclass(frozen=True, kw_only=True)
class LRU(DiagonalLayer):
    """x_t = Lambda x_{t-1} + exp(gamma_log) * (B u_t),  y_t = Re(C x_t) + D * u_t.

    `parameterisation` says what Lambda comes from: "stable" is exp(-exp(nu_log) + i exp(theta_log)), so |Lambda| < 1
    whatever the parameters; "exponential" is exp(-nu + i theta), "complex" is Lambda_re + i Lambda_im, and training can
    take both of these out of the unit disc. At the start Lambda is, by equal draws for all three, uniform on the ring
    r_min <= |Lambda| <= r_max with phases in [0, max_phase], and exp(gamma_log) is sqrt(1 - |Lambda|^2). With
    `gamma="trained"` gamma_log is then a free parameter, with "tied" it stays that function of Lambda, which only
    "stable" keeps defined, with "none" there is no normaliser.

    The variants "ladder" are the paper's ablation, each with one change to the one before. It tunes the ring for each
    task: here 4 to 6 have the one of Pathfinder, which is the same with and without normaliser, and 6 has the phases of
    Path-X. That B, C and D start alike on all of them is a choice made here.

    Shapes: nu_log, theta_log, or nu, theta, or Lambda_re, Lambda_im, and gamma_log (d_state,), B_re, B_im (d_state,
    d_model), C_re, C_im (d_model, d_state), D (d_model,); bidirectional: C2_re, C2_im like C.
    """

    d_state: int = 64
    parameterisation: Literal["stable", "exponential", "complex"] = "stable"
    r_min: float = 0.0
    r_max: float = 0.99
    max_phase: float = 2 * pi
    gamma: Literal["trained", "tied", "none"] = "trained"
    bidirectional: bool = False

    source: ClassVar[str] = "Orvieto et al. 2023, arXiv 2303.06349"
    variants = {
        "gamma tied to Lambda": {"gamma": "tied"},
        "without normaliser": {"gamma": "none"},
        "ladder 1: complex diagonal": DISC | {"parameterisation": "complex"},
        "ladder 2: exponential": DISC | {"parameterisation": "exponential"},
        "ladder 3: stable exponential": DISC,
        "ladder 4: with ring initialisation": RING,
        "ladder 5: with normaliser": RING | {"gamma": "trained"},
        "ladder 6: with small phases": RING | {"gamma": "trained", "max_phase": pi / 10},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.d_state >= 1, f"d_state must be at least 1, not {self.d_state}")
        require(
            0 <= self.r_min <= self.r_max <= 1 and self.r_min < 1 and self.r_max > 0,
            "0 <= r_min <= r_max <= 1, r_min < 1 and r_max > 0 must hold, "
            f"not r_min = {self.r_min}, r_max = {self.r_max}",
        )
        require(self.max_phase > 0, f"max_phase must be above 0, not {self.max_phase}")
        require(
            self.gamma != "tied" or self.parameterisation == "stable",
            "gamma = tied is sqrt(1 - |Lambda|^2) and needs parameterisation = stable, which keeps |Lambda| below 1, "
            f"not {self.parameterisation}",
        )

    def initial(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        n, h = self.d_state, self.d_model
        nu = -0.5 * np.log(open_uniform(rng, n, self.r_min**2, self.r_max**2))
        theta = self.max_phase * open_uniform(rng, n)
        if self.parameterisation == "stable":
            dynamics = np.log(nu), np.log(theta)
        elif self.parameterisation == "exponential":
            dynamics = nu, theta
        else:
            dynamics = np.exp(-nu) * np.cos(theta), np.exp(-nu) * np.sin(theta)
        params = dict(zip(DYNAMICS[self.parameterisation], dynamics, strict=True))
        if self.gamma == "trained":
            params["gamma_log"] = 0.5 * np.log(-np.expm1(-2 * nu))
        params |= {"B_re": normal(rng, (n, h), 1 / (2 * h)), "B_im": normal(rng, (n, h), 1 / (2 * h))}
        params |= {"C_re": normal(rng, (h, n), 1 / n), "C_im": normal(rng, (h, n), 1 / n)}
        if self.bidirectional:
            params |= {"C2_re": normal(rng, (h, n), 1 / n), "C2_im": normal(rng, (h, n), 1 / n)}
        return params | {"D": normal(rng, (h,))}

    def roles(self) -> dict[str, Role]:
        roles: dict[str, Role] = dict.fromkeys(DYNAMICS[self.parameterisation], "dynamics")
        if self.gamma == "trained":
            roles["gamma_log"] = "normaliser"
        roles |= {"B_re": "input", "B_im": "input", "C_re": "output", "C_im": "output", "D": "skip"}
        if self.bidirectional:
            roles |= {"C2_re": "output", "C2_im": "output"}
        return roles

    def system(self, params: Params, ops: Ops) -> DiagonalSystem:
        B = ops.complex(params["B_re"], params["B_im"])
        if self.gamma == "trained":
            B = ops.exp(params["gamma_log"])[:, None] * B
        elif self.gamma == "tied":
            # 1 - |Lambda|^2, which rounds to 0 when subtracted
            B = ops.sqrt(-ops.expm1(-2 * ops.exp(params["nu_log"])))[:, None] * B
        C = ops.complex(params["C_re"], params["C_im"])
        C2 = ops.complex(params["C2_re"], params["C2_im"]) if self.bidirectional else None
        return DiagonalSystem(self._eigenvalues(params, ops), B, C, params["D"], C2)

    def _eigenvalues(self, params: Params, ops: Ops) -> Array:
        """Lambda, (d_state,)."""
        one, other = (params[name] for name in DYNAMICS[self.parameterisation])
        if self.parameterisation == "complex":
            return ops.complex(one, other)
        nu, theta = (ops.exp(one), ops.exp(other)) if self.parameterisation == "stable" else (one, other)
        modulus = ops.exp(-nu)
        return ops.complex(modulus * ops.cos(theta), modulus * ops.sin(theta))

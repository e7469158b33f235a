"""The diagonal structured state space layer, S4D."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi
from typing import ClassVar, Literal

import numpy as np

from bench.contract import Array, DiagonalLayer, DiagonalSystem, Ops, Params, Role, require
from bench.sampling import normal, open_uniform
from bench.state_space import Discretization, discretize, hippo_input, hippo_normal


@dataclass(frozen=True, kw_only=True)
class S4D(DiagonalLayer):
    """For each channel a state space of its own, x' = A x + B u, y = 2 Re(C x) + D u, with one step size.

    N = d_state counts conjugate pairs twice; N / 2 are stored. A = -exp(log_A_real) + i A_imag. At the start, with
    n = 0 .. N/2 - 1: "lin" -1/2 + i pi n; "inv" -1/2 + i (N / pi) (N / (2 n + 1) - 1); "legs" the spectrum of
    HiPPO-N; "real" -(n + 1). B is 1 and fixed unless `train_B`, but for "legs" the HiPPO input in the eigenbasis, its
    imaginary part kept within 2, and trained. `n_ssm` (A, B) are shared by the channels, channel h taking number
    h mod n_ssm; None: each has its own. `C2` (bidirectional) reads the reversed scan of the same system; with `offset`
    from the next time step on, as the published form of two kernels does, so that u_t enters y_t by the first alone.

    Shapes: log_dt, D (d_model,), log_A_real, A_imag (n_ssm, N / 2), B (n_ssm, N / 2, 2) and C (d_model, N / 2, 2) with
    real and imaginary part on the last axis; bidirectional: C2 like C.
    """

    d_state: int = 64
    A_init: Literal["lin", "inv", "legs", "real"] = "lin"
    discretization: Discretization = "zoh"
    dt_min: float = 1e-3
    dt_max: float = 1e-1
    train_B: bool = False
    bidirectional: bool = False
    offset: bool = False
    n_ssm: int | None = None

    source: ClassVar[str] = "Gu et al. 2022, arXiv 2206.11893"
    variants = {
        "inverse spectrum": {"A_init": "inv"},
        "HiPPO-N spectrum": {"A_init": "legs"},
        "real spectrum": {"A_init": "real"},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.d_state >= 2 and self.d_state % 2 == 0,
            f"d_state must be even, for conjugate pairs, not {self.d_state}",
        )
        require(
            0 < self.dt_min <= self.dt_max,
            f"0 < dt_min <= dt_max must hold, not dt_min = {self.dt_min}, dt_max = {self.dt_max}",
        )
        require(self.bidirectional or not self.offset, "offset is of the reversed scan: it needs bidirectional = true")
        require(
            self.n_ssm is None or (self.n_ssm >= 1 and self.d_model % self.n_ssm == 0),
            f"n_ssm must divide d_model = {self.d_model}, not {self.n_ssm}",
        )

    @property
    def has_B(self) -> bool:
        return self.train_B or self.A_init == "legs"

    def initial(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        h, pairs, own = self.d_model, self.d_state // 2, self.n_ssm or self.d_model
        A, B = self._spectrum()
        params = {
            "log_dt": open_uniform(rng, (h,), np.log(self.dt_min), np.log(self.dt_max)),
            "log_A_real": np.tile(np.log(-A.real), (own, 1)),
            "A_imag": np.tile(A.imag, (own, 1)),
            "C": normal(rng, (h, pairs, 2), 1 / 2),
        }
        if self.bidirectional:
            params["C2"] = normal(rng, (h, pairs, 2), 1 / 2)
        if self.has_B:
            params["B"] = np.tile(np.stack([B.real, B.imag], axis=-1), (own, 1, 1))
        return params | {"D": normal(rng, (h,))}

    def _spectrum(self) -> tuple[np.ndarray, np.ndarray]:
        """A and B of one channel, (N / 2,) complex, imaginary parts of A not negative."""
        N, n = self.d_state, np.arange(self.d_state // 2)
        if self.A_init == "legs":
            rates, vectors = hippo_normal(N)
            B = vectors[:, N // 2 :].conj().T @ hippo_input(N)
            return rates[N // 2 :], B.real + 1j * np.clip(B.imag, -2, 2)
        if self.A_init == "lin":
            A = -0.5 + 1j * pi * n
        elif self.A_init == "inv":
            A = -0.5 + 1j * (N / pi) * (N / (2 * n + 1) - 1)
        else:
            A = -(n + 1.0) + 0j
        return A, np.ones(N // 2, complex)

    def roles(self) -> dict[str, Role]:
        roles: dict[str, Role] = {"log_dt": "step", "log_A_real": "dynamics", "A_imag": "dynamics", "C": "output"}
        if self.bidirectional:
            roles["C2"] = "output"
        if self.has_B:
            roles["B"] = "input"
        return roles | {"D": "skip"}

    def system(self, params: Params, ops: Ops) -> DiagonalSystem:
        def shared(x: Array) -> Array:
            return x if self.n_ssm is None else ops.concatenate([x] * (self.d_model // self.n_ssm), 0)

        A = shared(ops.complex(-ops.exp(params["log_A_real"]), params["A_imag"]))
        Lambda, B = discretize(A, ops.exp(params["log_dt"])[:, None], self.discretization, ops)
        if self.has_B:
            B = B * shared(ops.complex(params["B"][..., 0], params["B"][..., 1]))
        C, D = 2 * ops.complex(params["C"][..., 0], params["C"][..., 1]), params["D"]
        C2 = 2 * ops.complex(params["C2"][..., 0], params["C2"][..., 1]) if self.bidirectional else None
        if self.offset:
            C2 = C2 / Lambda  # a step later is a step less of Lambda; what then is too much stands at u_t alone
            D = D - ops.sum((C2 * B).real, -1)
        return DiagonalSystem(Lambda, B, C, D, C2)

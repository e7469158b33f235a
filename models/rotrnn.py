"""The rotational RNN."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi
from typing import ClassVar, Literal

import numpy as np

from bench.contract import Array, DiagonalLayer, DiagonalSystem, Ops, Params, Role, require
from bench.sampling import normal, open_uniform


@dataclass(frozen=True, kw_only=True)
class RotRNN(DiagonalLayer):
    """Per head h: x_t = gamma_h A_h x_{t-1} + xi_h B_h u_t with a rotation A_h;  y_t = C [x^1 .. x^heads]_t + D * u_t.

    A = P Theta P^T, P = exp(M - M^T), Theta = rotations by theta_1 .. theta_{d/2} in d/2 planes, d = d_state / heads;
    gamma = exp(-exp(gamma_log)); xi = sqrt((1 - gamma^2) / tr(B^T B)), so under white input of unit variance
    E||x_t||^2 = 1 - gamma^{2t} in every head. In the coordinates z = P^T x a plane is one complex number and its
    rotation is exp(i theta): that is the diagonal system here.

    `normaliser`: "trained" is the above; "frozen" keeps xi at its initial value; "none" sets it to 1.
    `scheme` is how parameters start: "clean" (theta and log(-log gamma) uniform, M ~ N(0, 1)); "main" (the same with
    log theta as the parameter and M ~ N(0, 1) / sqrt(d_state + d)); "listing" (gamma^2 uniform, M ~ N(0, 1), B and C
    scaled by their fan-in alone).

    Shapes: theta (heads, d / 2), or theta_log; gamma_log (heads, 1), M (heads, d, d), B (heads, d, d_model),
    C (d_model, d_state), D (d_model,); frozen: xi (heads, 1); bidirectional: C2 like C.
    """

    d_state: int = 128
    heads: int = 32
    gamma_min: float = 0.9
    gamma_max: float = 0.999
    max_phase: float = 2 * pi
    scheme: Literal["clean", "main", "listing"] = "clean"
    normaliser: Literal["trained", "frozen", "none"] = "trained"
    bidirectional: bool = False

    source: ClassVar[str] = "Biegun et al. 2024, arXiv 2407.07239"
    variants = {
        "normaliser frozen at the start": {"normaliser": "frozen"},
        "without normaliser": {"normaliser": "none"},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.d_state >= 2, f"d_state must be at least 2, not {self.d_state}")
        require(
            self.heads >= 1 and self.d_state % self.heads == 0 and self.d_state // self.heads % 2 == 0,
            f"heads must divide d_state into heads of even size, not heads = {self.heads}, d_state = {self.d_state}",
        )
        require(
            0 < self.gamma_min <= self.gamma_max < 1,
            f"0 < gamma_min <= gamma_max < 1 must hold, not gamma_min = {self.gamma_min}, gamma_max = {self.gamma_max}",
        )
        require(self.max_phase > 0, f"max_phase must be above 0, not {self.max_phase}")

    @property
    def head_size(self) -> int:
        return self.d_state // self.heads

    @property
    def groups(self) -> np.ndarray:
        return np.repeat(np.arange(self.heads), self.head_size)

    def initial(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        heads, d, n, h = self.heads, self.head_size, self.d_state, self.d_model
        listing = self.scheme == "listing"
        if listing:
            gamma_log = np.log(-0.5 * np.log(open_uniform(rng, (heads, 1), self.gamma_min**2, self.gamma_max**2)))
        else:
            gamma_log = open_uniform(rng, (heads, 1), np.log(-np.log(self.gamma_max)), np.log(-np.log(self.gamma_min)))
        theta = open_uniform(rng, (heads, d // 2), 0, self.max_phase)
        params = {
            "theta_log" if self.scheme == "main" else "theta": np.log(theta) if self.scheme == "main" else theta,
            "gamma_log": gamma_log,
            "M": normal(rng, (heads, d, d), 1 / (n + d) if self.scheme == "main" else 1),
            "B": normal(rng, (heads, d, h), 1 / h if listing else 1 / (h + n)),
            "C": normal(rng, (h, n), 1 / n if listing else 1 / (h + n)),
        }
        if self.bidirectional:
            params["C2"] = normal(rng, (h, n), 1 / n if listing else 1 / (h + n))
        params["D"] = normal(rng, (h,))
        if self.normaliser == "frozen":
            squares = np.sum(params["B"] ** 2, axis=(1, 2))[:, None]
            params["xi"] = np.sqrt(-np.expm1(-2 * np.exp(gamma_log)) / squares)
        return params

    def roles(self) -> dict[str, Role]:
        roles: dict[str, Role] = {
            "theta_log" if self.scheme == "main" else "theta": "dynamics",
            "gamma_log": "dynamics",
            "M": "dynamics",
            "B": "input",
            "C": "output",
        }
        if self.bidirectional:
            roles["C2"] = "output"
        roles["D"] = "skip"
        if self.normaliser == "frozen":
            roles["xi"] = "constant"
        return roles

    def system(self, params: Params, ops: Ops) -> DiagonalSystem:
        n, h = self.d_state, self.d_model
        nu = ops.exp(params["gamma_log"])  # gamma = exp(-nu)
        gamma = ops.exp(-nu)
        theta = ops.exp(params["theta_log"]) if self.scheme == "main" else params["theta"]
        Lambda = ops.complex(gamma * ops.cos(theta), gamma * ops.sin(theta)).reshape((n // 2,))

        P = self._rotation(params, ops)
        B = P.swapaxes(-1, -2) @ self._normalised(params, nu, ops)
        B = ops.complex(B[:, 0::2], B[:, 1::2]).reshape((n // 2, h))

        def output(C: Array) -> Array:
            rotated = (C.reshape((h, self.heads, 1, self.head_size)) @ P)[:, :, 0]  # P, not P^T: y = C x = (C P) z
            return ops.complex(rotated[..., 0::2], -rotated[..., 1::2]).reshape((h, n // 2))

        C2 = output(params["C2"]) if self.bidirectional else None
        return DiagonalSystem(Lambda, B, output(params["C"]), params["D"], C2)

    def coordinates(self, params: Params, x: Array, ops: Ops) -> Array:
        """From the planes' complex numbers, (..., d_state / 2), to the real x = P z, (..., d_state)."""
        z = ops.stack([x.real, x.imag], -1).reshape((*x.shape[:-1], self.heads, self.head_size, 1))
        return (self._rotation(params, ops) @ z).reshape((*x.shape[:-1], self.d_state))

    def diagnostics(self, params: Params, ops: Ops) -> dict[str, Array]:
        """How far the computed P is from a rotation: the largest ||P P^T - I||_F and |det P - 1| over heads."""
        P = self._rotation(params, ops)
        error = P @ P.swapaxes(-1, -2) - ops.constant(np.eye(self.head_size), P)
        return {
            "orthogonality_error": ops.amax(ops.sqrt(ops.sum(error * error, (-2, -1))), 0),
            "determinant_error": ops.amax(abs(ops.det(P) - 1), 0),
        }

    def _rotation(self, params: Params, ops: Ops) -> Array:
        return ops.expm(params["M"] - params["M"].swapaxes(-1, -2))

    def _normalised(self, params: Params, nu: Array, ops: Ops) -> Array:
        """xi B, (heads, d, d_model)."""
        B = params["B"]
        if self.normaliser == "none":
            return B
        if self.normaliser == "frozen":
            return ops.stop_gradient(params["xi"])[:, :, None] * B
        B = B / ops.stop_gradient(ops.amax(abs(B), (1, 2)))[:, None, None]  # its size cancels: no square overflows
        norm = ops.sqrt(ops.sum(B * B, (1, 2)))[:, None]
        xi = ops.sqrt(-ops.expm1(-2 * nu)) / norm  # 1 - gamma^2, which rounds to 0 when subtracted
        return xi[:, :, None] * B

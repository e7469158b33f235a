"""The structured state space layer, S4: diagonal plus low rank."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bench.backends.reference import ops as numpy_ops
from bench.contract import Array, Decoder, Layer, Ops, Params, Role, require
from bench.sampling import normal, open_uniform
from bench.state_space import hippo_input, hippo_normal

if TYPE_CHECKING:
    import torch

SHORTEST = 1024
"""Kernels are computed at this length at least, and cut. I - A^L loses digits where L is small: in float32 the gradient
of log_dt is wrong by 4e-4 of its size at length 2 from a kernel of 64, and by 5e-5 from one of 1024."""


@dataclass(frozen=True, kw_only=True)
class S4(Layer):
    """For each channel a state space of its own, x' = A x + B u, y = C x + D u, with one step size, made discrete by

        x_t = (I - dt/2 A)^-1 ((I + dt/2 A) x_{t-1} + dt B u_t),  the bilinear method.

    A = Lambda - P P^*, Lambda diagonal. N = d_state counts conjugate pairs twice; N / 2 are stored. Lambda =
    -exp(log_A_real) + i A_imag; y = 2 Re(C x) + D u over the stored half. At the start A and B are HiPPO-LegS in the
    eigenbasis of its normal part, for which P_n = sqrt(n + 1/2) and B_n = sqrt(2 n + 1); C and D are standard normal.

    It trains through a convolution: the kernel comes from its generating function at roots of unity, sums over
    1 / (g - Lambda) corrected for the low rank by Woodbury's formula, and an inverse FFT. It decodes with the dense
    discrete matrices.

    Shapes: log_dt, D (d_model,), log_A_real, A_imag (d_model, N / 2), P, B and C (d_model, N / 2, 2) with real and
    imaginary part on the last axis.
    """

    d_state: int = 64
    dt_min: float = 1e-3
    dt_max: float = 1e-1

    source: ClassVar[str] = "Gu et al. 2022, arXiv 2111.00396"
    comparator: ClassVar[bool] = True

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

    def initial(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        h, N = self.d_model, self.d_state
        rates, vectors = hippo_normal(N)
        rates, basis = rates[N // 2 :], vectors[:, N // 2 :].conj().T
        P, B = basis @ np.sqrt(np.arange(N) + 0.5), basis @ hippo_input(N)
        return {
            "log_dt": open_uniform(rng, (h,), np.log(self.dt_min), np.log(self.dt_max)),
            "log_A_real": np.tile(np.log(-rates.real), (h, 1)),
            "A_imag": np.tile(rates.imag, (h, 1)),
            "P": np.tile(np.stack([P.real, P.imag], -1), (h, 1, 1)),
            "B": np.tile(np.stack([B.real, B.imag], -1), (h, 1, 1)),
            "C": normal(rng, (h, N // 2, 2), 1 / 2),
            "D": normal(rng, (h,)),
        }

    def roles(self) -> dict[str, Role]:
        return {
            "log_dt": "step",
            "log_A_real": "dynamics",
            "A_imag": "dynamics",
            "P": "dynamics",
            "B": "input",
            "C": "output",
            "D": "skip",
        }

    @property
    def state_reals(self) -> int:
        return self.d_model * self.d_state

    def work(self, mode: str, batch: int, length: int) -> tuple[float, float]:
        h, N = self.d_model, self.d_state
        if mode == "decode":
            return batch * h * (2 * N * N + 4 * N + 2), batch * h * N
        points, squarings = _points(length) // 2 + 1, np.log2(_points(length))
        kernel = points * N / 2 * (10 + 32) + (squarings + 1) * 2 * N**3
        size = 2 * length
        transforms = (2 * batch + 1) * 2.5 * size * np.log2(size) + batch * 3 * size
        # spectra, sums over 1 / (g - Lambda), and powers of the matrix
        stored = size * (batch + 1) + points * N + squarings * N * N
        return h * (kernel + transforms + 2 * batch * length), h * stored

    def loop(self, params: Params, u: np.ndarray) -> np.ndarray:
        A, B, C, D = dense(params, numpy_ops, np)
        x, y = np.zeros((*B.shape, len(u))), np.empty(u.shape)
        for t in range(u.shape[1]):
            x = A @ x + B[..., None] * u[:, t].T[:, None]
            y[:, t] = (C[:, None] @ x)[:, 0].T + D * u[:, t]
        return y

    def torch_module(self, params: Params) -> torch.nn.Module:
        from bench.backends.torch import FunctionModule

        return FunctionModule(self, params, _torch_outputs)

    def flax_module(self, params: Params) -> Any:
        from bench.backends.jax import FunctionModule

        return FunctionModule(self, params, _flax_outputs)

    def torch_decoder(self) -> Decoder:
        import torch

        from bench.backends.torch import ops

        def start(built: tuple, batch: int, length: int) -> Array:
            return built[1].new_zeros((batch, *built[1].shape, 1))

        return Decoder(lambda p: dense(p, ops, torch), start, _step)

    def flax_decoder(self) -> Decoder:
        import jax.numpy as jnp

        from bench.backends.jax import ops

        def start(built: tuple, batch: int, length: int) -> Array:
            return jnp.zeros((batch, *built[1].shape, 1), built[1].dtype)

        return Decoder(lambda p: dense(p, ops, jnp), start, _step)


def dense(params: Params, ops: Ops, xp: ModuleType | Any) -> tuple[Array, Array, Array, Array]:
    """Discrete matrices A (d_model, N, N), B and C (d_model, N), and D, all real.

    In real coordinates, the real and then the imaginary parts of the stored half of the state: multiplying by Lambda
    rotates and scales the pairs, and P^* x over all N is 2 (Re P . Re x + Im P . Im x). `xp` is numpy, torch or
    jax.numpy.
    """
    half = params["A_imag"].shape[-1]
    eye = ops.constant(np.eye(half), params["A_imag"])
    decay = -ops.exp(params["log_A_real"])[..., None] * eye
    turn = params["A_imag"][..., None] * eye
    rotated = ops.concatenate([ops.concatenate([decay, -turn], -1), ops.concatenate([turn, decay], -1)], -2)
    p, B, C = (ops.concatenate([params[k][..., 0], params[k][..., 1]], -1) for k in ("P", "B", "C"))
    sign = ops.constant(np.repeat([2.0, -2.0], half), C)

    dt = ops.exp(params["log_dt"])[:, None]
    A = dt[..., None] / 2 * (rotated - 2 * p[..., :, None] * p[..., None, :])
    eye = ops.constant(np.eye(2 * half), A)
    solved = xp.linalg.solve(eye - A, ops.concatenate([eye + A, (dt * B)[..., None]], -1))
    return solved[..., :-1], solved[..., -1], sign * C, params["D"]


def kernel(params: Params, length: int, ops: Ops, xp: ModuleType | Any) -> Array:
    """K_l = C A^l B with the discrete A and B, (d_model, length). `xp` is numpy, torch or jax.numpy.

    With z = exp(-2 pi i k / L) and C' = C (I - A^L), sum_l K_l z^l = C' (I - z A)^-1 B. For the bilinear method that is
    2 / (1 + z) C' (g + P P^* - Lambda)^-1 B with g = 2 / dt (1 - z) / (1 + z), which is imaginary. With half the angle
    phi of z, s = 2 sin(phi), b = 1 - a = cos(phi) dt / (s + cos(phi) dt), and r_vw = sum v w / (i a - b Lambda) over
    all N, it is

        exp(i phi) dt / (s + cos(phi) dt) (r_CB - b r_CP r_PB / (1 + b r_PP)),

    where nothing is singular, neither at z = -1 nor for small dt. L is a power of two, so A^L is a few squarings.
    """
    points = _points(length)
    A, _, C, _ = dense(params, ops, xp)
    power = A
    for _ in range(points.bit_length() - 1):
        power = power @ power
    C = C - (C[:, None] @ power)[:, 0]  # in real coordinates 2 Re and -2 Im
    half = C.shape[-1] // 2

    def pair(name: str) -> tuple[Array, Array]:
        return params[name][..., 0], params[name][..., 1]

    def product(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
        return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]

    def conj(a: tuple[Array, Array]) -> tuple[Array, Array]:
        return a[0], -a[1]

    C_, B, P = (C[:, :half] / 2, -C[:, half:] / 2), pair("B"), pair("P")
    Lambda = -ops.exp(params["log_A_real"]), params["A_imag"]
    weights = [product(C_, B), product(C_, P), product(conj(P), B), product(conj(P), P)]
    turned = [product(w, conj(Lambda))[0] for w in weights]
    rows = ops.stack([w[0] for w in weights] + turned, 1)  # (d_model, 8, N / 2)

    phi = pi * np.arange(points // 2 + 1) / points
    dt = ops.exp(params["log_dt"])[:, None]
    cos, s = ops.constant(np.cos(phi), dt), ops.constant(2 * np.sin(phi), dt)
    scale = s + cos * dt  # (d_model, points / 2 + 1), as all that follows
    a, b = (s / scale)[:, None], (cos * dt / scale)[:, None]

    # v / (i a - m) and its conjugate pair's add up to 2 (i a Re v - Re(v conj(m))) / (|m|^2 - a^2 - 2 i a Re m)
    m_re, m_im = b * Lambda[0][..., None], b * Lambda[1][..., None]
    re, im = (m_im - a) * (m_im + a) + m_re * m_re, -2 * a * m_re  # |m|^2 - a^2 itself would lose digits
    size = re * re + im * im
    sums_re, sums_im = rows @ (re / size), rows @ (-im / size)  # (d_model, 8, points / 2 + 1)
    r = ops.complex(
        -2 * (a * sums_im[:, :4] + b * sums_re[:, 4:]),
        2 * (a * sums_re[:, :4] - b * sums_im[:, 4:]),
    )
    turn = ops.complex(cos * dt / scale, s / 2 * dt / scale)
    b = b[:, 0]
    spectrum = turn * (r[:, 0] - b * r[:, 1] * r[:, 2] / (1 + b * r[:, 3]))
    return xp.fft.irfft(spectrum, points)[:, :length]


def _points(length: int) -> int:
    """The length at which a kernel is computed: the next power of two."""
    return max(SHORTEST, 1 << (length - 1).bit_length())


def _step(built: tuple[Array, ...], u: Array, x: Array) -> tuple[Array, Array]:
    """The same in both frameworks; x is (batch, d_model, N, 1)."""
    A, B, C, D = built
    wide = u + 0 * D  # at least float32
    x = A @ x + (B * wide[..., None])[..., None]
    return (C[:, None] @ x)[..., 0, 0] + D * wide, x


def _torch_outputs(p: Params, u: torch.Tensor) -> torch.Tensor:
    import torch

    from bench.backends.torch import ops
    from bench.backends.torch.convolution import convolve

    return convolve(kernel(p, u.shape[1], ops, torch), u) + p["D"] * u


def _flax_outputs(p: Params, u: Array) -> Array:
    import jax.numpy as jnp

    from bench.backends.jax import ops
    from bench.backends.jax.convolution import convolve

    return convolve(kernel(p, u.shape[1], ops, jnp), u) + p["D"] * u

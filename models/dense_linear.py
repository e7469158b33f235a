"""A linear recurrence with a dense matrix: what a diagonal one leaves out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from bench.contract import Array, Decoder, Layer, Params, Role, require
from bench.sampling import normal

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class DenseLinear(Layer):
    """h_t = W h_{t-1} + B u_t,  y_t = C h_t + D * u_t,  all real, h_0 = 0.

    At the start W, B and C are Gaussian with variance 2 / (rows + columns), and W is then scaled so that its largest
    |eigenvalue| is `radius`. With radius = 0 W stays as drawn: its eigenvalues fill the unit disc, at any finite size
    some lie outside, and over thousands of steps their powers overflow. D is standard normal.

    Shapes: W (d_state, d_state), B (d_state, d_model), C (d_model, d_state), D (d_model,).
    """

    d_state: int = 128
    radius: float = 0.99

    source: ClassVar[str] = "Glorot and Bengio 2010 for the initialisation"
    comparator: ClassVar[bool] = True
    variants = {"W as drawn": {"radius": 0.0}}

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.d_state >= 1, f"d_state must be at least 1, not {self.d_state}")
        require(self.radius >= 0, f"radius must not be negative, but is {self.radius}")

    def initial(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        n, h = self.d_state, self.d_model
        W, B, C = (normal(rng, shape, 2 / sum(shape)) for shape in ((n, n), (n, h), (h, n)))
        if self.radius:
            W *= self.radius / np.abs(np.linalg.eigvals(W)).max()
        return {"W": W, "B": B, "C": C, "D": normal(rng, (h,))}

    def roles(self) -> dict[str, Role]:
        return {"W": "dynamics", "B": "input", "C": "output", "D": "skip"}

    @property
    def state_reals(self) -> int:
        return self.d_state

    def work(self, mode: str, batch: int, length: int) -> tuple[float, float]:
        tokens, n, h = batch * (1 if mode == "decode" else length), self.d_state, self.d_model
        return tokens * (2 * n * n + 4 * n * h + n + 2 * h), tokens * n

    def loop(self, params: Params, u: np.ndarray) -> np.ndarray:
        return loop_states(params["W"], u @ params["B"].T) @ params["C"].T + params["D"] * u

    def torch_module(self, params: Params) -> torch.nn.Module:
        from bench.backends.torch import FunctionModule

        return FunctionModule(self, params, _torch_outputs)

    def flax_module(self, params: Params) -> Any:
        from bench.backends.jax import FunctionModule

        return FunctionModule(self, params, _flax_outputs)

    def torch_decoder(self) -> Decoder:
        return Decoder(dict, lambda p, batch, length: p["W"].new_zeros((batch, self.d_state)), _step)

    def flax_decoder(self) -> Decoder:
        import jax.numpy as jnp

        return Decoder(dict, lambda p, batch, length: jnp.zeros((batch, self.d_state), p["W"].dtype), _step)


def _step(p: Params, u: Array, h: Array) -> tuple[Array, Array]:
    """The same in both frameworks; where u is bfloat16 the products with parameters are in float32, and y is."""
    wide = u + 0 * p["D"]
    h = h @ p["W"].T + wide @ p["B"].T
    return h @ p["C"].T + p["D"] * wide, h


Activation = Literal["linear", "relu", "leaky-relu"]

SLOPE = 0.5
"""Of the leaky rectifier below 0."""


def activated(activation: Activation, x: Array, maximum: Callable[[Array, Array], Array]) -> Array:
    """The activation in any framework, of which `maximum` is the elementwise maximum of two arrays."""
    if activation == "linear":
        return x
    return maximum(x, 0 * x if activation == "relu" else SLOPE * x)


def torch_states(W: torch.Tensor, v: torch.Tensor, activation: Activation = "linear") -> torch.Tensor:
    """h_t = phi(W h_{t-1}) + v_t from h_0 = 0: all h_t, (batch, length, n), like v.

    W is (n, n), or (batch, n, n) with a matrix for each sequence; complex if v is.
    """
    import torch

    h, states, many = v[:, 0], [v[:, 0]], W.ndim == 3
    W_T = W.mT.contiguous()
    for v_t in v.unbind(1)[1:]:
        if activation != "linear":
            before = torch.einsum("bi,bij->bj", h, W_T) if many else h @ W_T
            h = activated(activation, before, torch.maximum) + v_t
        elif many:
            h = torch.baddbmm(v_t[:, None], h[:, None], W_T)[:, 0]
        else:
            h = torch.addmm(v_t, h, W_T)
        states.append(h)
    return torch.stack(states, 1)


def flax_states(W: Array, v: Array, activation: Activation = "linear") -> Array:
    """As `torch_states`, in jax."""
    import jax
    import jax.numpy as jnp

    def step(h: Array, v_t: Array) -> tuple[Array, Array]:
        before = jnp.einsum("bi,bji->bj", h, W) if W.ndim == 3 else h @ W.T
        h = activated(activation, before, jnp.maximum) + v_t
        return h, h

    states = jax.lax.scan(step, jnp.zeros_like(v[:, 0]), jnp.swapaxes(v, 0, 1))[1]
    return jnp.swapaxes(states, 0, 1)


def loop_states(W: np.ndarray, v: np.ndarray, activation: Activation = "linear") -> np.ndarray:
    """As `torch_states`, as a plain loop in numpy."""
    states, h = np.empty_like(v), np.zeros_like(v[:, 0])
    for t in range(v.shape[1]):
        states[:, t] = h = activated(activation, np.einsum("...ij,...j->...i", W, h), np.maximum) + v[:, t]
    return states


def _torch_outputs(p: Params, u: torch.Tensor) -> torch.Tensor:
    wide = u.to(p["W"].dtype)
    return torch_states(p["W"], wide @ p["B"].T) @ p["C"].T + p["D"] * wide


def _flax_outputs(p: Params, u: Array) -> Array:
    wide = u.astype(p["W"].dtype)
    return flax_states(p["W"], wide @ p["B"].T) @ p["C"].T + p["D"] * wide

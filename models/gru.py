"""The gated recurrent unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bench.contract import Array, Decoder, Layer, Params, Role, require
from bench.sampling import normal, open_uniform

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class GRU(Layer):
    """h_t = (1 - z_t) * n_t + z_t * h_{t-1},  y_t = C h_t,  h_0 = 0, with gates

        r_t = sigmoid(W_r u_t + a_r + U_r h_{t-1} + b_r)
        z_t = sigmoid(W_z u_t + a_z + U_z h_{t-1} + b_z)
        n_t = tanh(W_n u_t + a_n + r_t * (U_n h_{t-1} + b_n))

    The reset gate acts after the product with U_n, as in torch.nn.GRU and cuDNN, whose names the parameters have: W, U,
    a, b for r, z and n below one another are weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0. At the start they
    are uniform within 1 / sqrt(d_state), as there; C is Gaussian with variance 1 / d_state.

    Shapes: weight_ih_l0 (3 d_state, d_model), weight_hh_l0 (3 d_state, d_state), bias_ih_l0, bias_hh_l0 (3 d_state,),
    C (d_model, d_state).
    """

    d_state: int = 128

    source: ClassVar[str] = "Cho et al. 2014, arXiv 1406.1078"
    comparator: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.d_state >= 1, f"d_state must be at least 1, not {self.d_state}")

    def initial(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        n, h = self.d_state, self.d_model
        shapes = {
            "weight_ih_l0": (3 * n, h),
            "weight_hh_l0": (3 * n, n),
            "bias_ih_l0": (3 * n,),
            "bias_hh_l0": (3 * n,),
        }
        drawn = {name: open_uniform(rng, shape, -(n**-0.5), n**-0.5) for name, shape in shapes.items()}
        return drawn | {"C": normal(rng, (h, n), 1 / n)}

    def roles(self) -> dict[str, Role]:
        return {
            "weight_ih_l0": "input",
            "weight_hh_l0": "dynamics",
            "bias_ih_l0": "input",
            "bias_hh_l0": "dynamics",
            "C": "output",
        }

    @property
    def state_reals(self) -> int:
        return self.d_state

    def work(self, mode: str, batch: int, length: int) -> tuple[float, float]:
        tokens, n, h = batch * (1 if mode == "decode" else length), self.d_state, self.d_model
        stored = n if mode == "decode" else 4 * n  # and the three gates
        return tokens * (6 * n * n + 8 * n * h + 14 * n), tokens * stored

    def loop(self, params: Params, u: np.ndarray) -> np.ndarray:
        def sigmoid(x: np.ndarray) -> np.ndarray:
            return (1 + np.tanh(x / 2)) / 2

        h, y = np.zeros((len(u), self.d_state)), np.empty(u.shape)
        for t in range(u.shape[1]):
            of_u = np.split(u[:, t] @ params["weight_ih_l0"].T + params["bias_ih_l0"], 3, axis=1)
            of_h = np.split(h @ params["weight_hh_l0"].T + params["bias_hh_l0"], 3, axis=1)
            r, z = sigmoid(of_u[0] + of_h[0]), sigmoid(of_u[1] + of_h[1])
            h = (1 - z) * np.tanh(of_u[2] + r * of_h[2]) + z * h
            y[:, t] = h @ params["C"].T
        return y

    def torch_module(self, params: Params) -> torch.nn.Module:
        from bench.backends.torch import FunctionModule

        return FunctionModule(self, params, _torch_outputs)

    def flax_module(self, params: Params) -> Any:
        from bench.backends.jax import FunctionModule

        return FunctionModule(self, params, _flax_outputs)

    def torch_decoder(self) -> Decoder:
        import torch

        def step(p: Params, u: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            h = torch.gru_cell(u.to(h.dtype), h, *(p[name] for name in _NAMES))
            return (h @ p["C"].T).to(u.dtype), h

        return Decoder(dict, lambda p, batch, length: p["C"].new_zeros((batch, self.d_state)), step)

    def flax_decoder(self) -> Decoder:
        import jax.numpy as jnp

        def step(p: Params, u: Array, h: Array) -> tuple[Array, Array]:
            h = _flax_cell(p, u.astype(h.dtype) @ p["weight_ih_l0"].T + p["bias_ih_l0"], h)
            return (h @ p["C"].T).astype(u.dtype), h

        return Decoder(dict, lambda p, batch, length: jnp.zeros((batch, self.d_state), p["C"].dtype), step)


_NAMES = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
"""In the order in which torch's own functions take them."""


def _torch_outputs(p: Params, u: torch.Tensor) -> torch.Tensor:
    """By torch's own fused recurrence."""
    import torch

    u, start = u.to(p["C"].dtype), p["C"].new_zeros((1, len(u), p["C"].shape[1]))
    h, _ = torch.gru(u, start, [p[name] for name in _NAMES], True, 1, 0.0, True, False, True)
    return h @ p["C"].T


def _flax_outputs(p: Params, u: Array) -> Array:
    import jax
    import jax.numpy as jnp

    of_u = jnp.swapaxes(u.astype(p["C"].dtype) @ p["weight_ih_l0"].T + p["bias_ih_l0"], 0, 1)

    def step(h: Array, of_u: Array) -> tuple[Array, Array]:
        h = _flax_cell(p, of_u, h)
        return h, h

    start = jnp.zeros((u.shape[0], p["C"].shape[1]), p["C"].dtype)
    h = jax.lax.scan(step, start, of_u)[1]
    return jnp.swapaxes(h @ p["C"].T, 0, 1)


def _flax_cell(p: Params, of_u: Array, h: Array) -> Array:
    """h_t from what u_t gives to the gates, (batch, 3 d_state), and h_{t-1}."""
    import jax
    import jax.numpy as jnp

    of_u, of_h = jnp.split(of_u, 3, 1), jnp.split(h @ p["weight_hh_l0"].T + p["bias_hh_l0"], 3, 1)
    r, z = jax.nn.sigmoid(of_u[0] + of_h[0]), jax.nn.sigmoid(of_u[1] + of_h[1])
    return (1 - z) * jnp.tanh(of_u[2] + r * of_h[2]) + z * h

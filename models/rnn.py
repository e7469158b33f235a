"""The vanilla recurrent network, with tanh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bench.contract import Array, Decoder, Layer, Params, Role, require
from bench.sampling import normal

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class RNN(Layer):
    """h_t = tanh(W h_{t-1} + B u_t + b),  y_t = C h_t,  h_0 = 0.

    At the start W, B and C are Gaussian with variance 2 / (rows + columns), and b is 0.

    Shapes: W (d_state, d_state), B (d_state, d_model), b (d_state,), C (d_model, d_state).
    """

    d_state: int = 128

    source: ClassVar[str] = "Elman 1990; Glorot and Bengio 2010 for the initialisation"
    comparator: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.d_state >= 1, f"d_state must be at least 1, not {self.d_state}")

    def initial(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        n, h = self.d_state, self.d_model
        W, B, C = (normal(rng, shape, 2 / sum(shape)) for shape in ((n, n), (n, h), (h, n)))
        return {"W": W, "B": B, "b": np.zeros(n), "C": C}

    def roles(self) -> dict[str, Role]:
        return {"W": "dynamics", "B": "input", "b": "input", "C": "output"}

    @property
    def state_reals(self) -> int:
        return self.d_state

    def work(self, mode: str, batch: int, length: int) -> tuple[float, float]:
        tokens, n, h = batch * (1 if mode == "decode" else length), self.d_state, self.d_model
        return tokens * (2 * n * n + 4 * n * h + 3 * n), tokens * n

    def loop(self, params: Params, u: np.ndarray) -> np.ndarray:
        h, y = np.zeros((len(u), self.d_state)), np.empty(u.shape)
        for t in range(u.shape[1]):
            h = np.tanh(h @ params["W"].T + u[:, t] @ params["B"].T + params["b"])
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
            h = torch.rnn_tanh_cell(u.to(h.dtype), h, p["B"], p["W"], p["b"], torch.zeros_like(p["b"]))
            return (h @ p["C"].T).to(u.dtype), h

        return Decoder(dict, lambda p, batch, length: p["W"].new_zeros((batch, self.d_state)), step)

    def flax_decoder(self) -> Decoder:
        import jax.numpy as jnp

        def step(p: Params, u: Array, h: Array) -> tuple[Array, Array]:
            h = jnp.tanh(h @ p["W"].T + u.astype(h.dtype) @ p["B"].T + p["b"])
            return (h @ p["C"].T).astype(u.dtype), h

        return Decoder(dict, lambda p, batch, length: jnp.zeros((batch, self.d_state), p["W"].dtype), step)


def _torch_outputs(p: Params, u: torch.Tensor) -> torch.Tensor:
    """By torch's own fused recurrence, which knows a second bias."""
    import torch

    u, start = u.to(p["W"].dtype), p["W"].new_zeros((1, len(u), len(p["W"])))
    weights = [p["B"], p["W"], p["b"], torch.zeros_like(p["b"])]
    h, _ = torch.rnn_tanh(u, start, weights, True, 1, 0.0, True, False, True)
    return h @ p["C"].T


def _flax_outputs(p: Params, u: Array) -> Array:
    import jax
    import jax.numpy as jnp

    v = jnp.swapaxes(u.astype(p["W"].dtype) @ p["B"].T + p["b"], 0, 1)

    def step(h: Array, v_t: Array) -> tuple[Array, Array]:
        h = jnp.tanh(h @ p["W"].T + v_t)
        return h, h

    h = jax.lax.scan(step, jnp.zeros_like(v[0]), v)[1]
    return jnp.swapaxes(h @ p["C"].T, 0, 1)

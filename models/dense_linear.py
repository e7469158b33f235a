"""A linear recurrence with a dense matrix: what a diagonal one leaves out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bench.backends import reference
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
        return reference.dense_states(params["W"], u @ params["B"].T) @ params["C"].T + params["D"] * u

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


def _torch_outputs(p: Params, u: torch.Tensor) -> torch.Tensor:
    from bench.backends.torch import dense_states

    wide = u.to(p["W"].dtype)
    return dense_states(p["W"], wide @ p["B"].T) @ p["C"].T + p["D"] * wide


def _flax_outputs(p: Params, u: Array) -> Array:
    from bench.backends.jax import dense_states

    wide = u.astype(p["W"].dtype)
    return dense_states(p["W"], wide @ p["B"].T) @ p["C"].T + p["D"] * wide

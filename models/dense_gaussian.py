"""Dense Gaussian recurrences, whose energy at a finite width is known exactly: `dense-rnn` and `dense-lru`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from bench.contract import Array, Decoder, Layer, Params, Role, Unsupported, require
from bench.sampling import normal
from models.dense_linear import SLOPE, Activation, flax_states, loop_states, torch_states

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class DenseGaussian(Layer):
    """What both have: a square matrix W of the width n = d_model, drawn with independent entries of variance 1/n.

    `ensemble`: complex entries (both parts of variance 1/2n) or real ones.
    """

    ensemble: Literal["complex", "real"] = "complex"

    source: ClassVar[str] = "arXiv 2605.05113"
    comparator: ClassVar[bool] = True

    @property
    def gain(self) -> float:
        """What a matrix of variance 1/n is multiplied with."""
        return 1.0

    @property
    def phi(self) -> Activation:
        return "linear"

    @property
    def parts(self) -> tuple[str, ...]:
        return ("W_re", "W_im") if self.ensemble == "complex" else ("W",)

    def draw(self, rng: np.random.Generator, *shape: int) -> np.ndarray:
        """Independent entries of W, of any shape, float64 or complex128."""
        variance = self.gain**2 / self.d_model
        if self.ensemble == "real":
            return normal(rng, shape, variance)
        return normal(rng, (*shape, 2), variance / 2).view(np.complex128)[..., 0]

    def initial(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        W = self.draw(rng, self.d_model, self.d_model)
        return dict(zip(self.parts, (W.real, W.imag), strict=False))

    def roles(self) -> dict[str, Role]:
        return dict.fromkeys(self.parts, "dynamics")

    @property
    def state_reals(self) -> int:
        return self.d_model * len(self.parts)

    def work(self, mode: str, batch: int, length: int) -> tuple[float, float]:
        tokens, n = batch * (1 if mode == "decode" else length), self.d_model
        return tokens * (2 * n * n if self.ensemble == "real" else 8 * n * n), tokens * self.state_reals

    @property
    def start_only(self) -> bool:
        """Whether only the first input is read."""
        return False

    def loop(self, params: Params, u: np.ndarray) -> np.ndarray:
        W = self._joined(params, lambda re, im: re + 1j * im)
        v = np.pad(u[:, :1], ((0, 0), (0, u.shape[1] - 1), (0, 0))) if self.start_only else u
        return loop_states(W, v.astype(W.dtype), self.phi).real

    def torch_module(self, params: Params) -> torch.nn.Module:
        from bench.backends.torch import FunctionModule

        return FunctionModule(self, params, self._torch_outputs)

    def flax_module(self, params: Params) -> Any:
        from bench.backends.jax import FunctionModule

        return FunctionModule(self, params, self._flax_outputs)

    def _torch_outputs(self, p: Params, u: torch.Tensor) -> torch.Tensor:
        import torch

        W = self._joined(p, torch.complex)
        v = torch.nn.functional.pad(u[:, :1], (0, 0, 0, u.shape[1] - 1)) if self.start_only else u
        states = torch_states(W, v.to(W.dtype), self.phi)
        return states.real if states.is_complex() else states

    def _flax_outputs(self, p: Params, u: Array) -> Array:
        import jax
        import jax.numpy as jnp

        W = self._joined(p, jax.lax.complex)
        v = jnp.pad(u[:, :1], ((0, 0), (0, u.shape[1] - 1), (0, 0))) if self.start_only else u
        return flax_states(W, v.astype(W.dtype), self.phi).real

    def _joined(self, params: Params, join: Any) -> Array:
        found = [params[name] for name in self.parts]
        return join(*found) if len(found) == 2 else found[0]


@dataclass(frozen=True, kw_only=True)
class DenseLRU(DenseGaussian):
    """h_t = W h_{t-1} + u_t,  y_t = Re h_t,  h_0 = 0. No diagonal LRU: its W is dense, of width n = d_model.

    Energies of h grow at every finite width, and over sqrt(n) steps leave those of an infinite one: E||h_t||^2 =
    n (Q_{n,0} + .. + Q_{n,t-1}) under white input of unit variance, where Q_{n,k} = E||W^k h||^2 / ||h||^2.

    Shapes: W_re, W_im (d_model, d_model); real: W (d_model, d_model).
    """

    def torch_decoder(self) -> Decoder:
        import torch

        def start(W: torch.Tensor, batch: int, length: int) -> torch.Tensor:
            return W.new_zeros((batch, self.d_model))

        return Decoder(lambda p: self._joined(p, torch.complex), start, _step)

    def flax_decoder(self) -> Decoder:
        import jax
        import jax.numpy as jnp

        def start(W: Array, batch: int, length: int) -> Array:
            return jnp.zeros((batch, self.d_model), W.dtype)

        return Decoder(lambda p: self._joined(p, jax.lax.complex), start, _step)


def _step(W: Array, u: Array, h: Array) -> tuple[Array, Array]:
    """The same in both frameworks."""
    h = h @ W.T + u
    return h.real, h


@dataclass(frozen=True, kw_only=True)
class DenseRNN(DenseGaussian):
    """h_1 = u_1,  h_t = phi(W h_{t-1}),  y_t = Re h_t: what becomes of a first input; later ones are not read.

    `activation`: "linear" is phi(x) = x; "relu" and "leaky-relu" (slope 0.5 below 0) take real W, whose entries are
    then multiplied with sqrt(2), sqrt(2 / (1 + 0.25)), so that at infinite width energies stay as they are.
    `tied=false` has a fresh W at each step, as a deep feed-forward network: no layer, only what the suite
    signal_propagation makes of it.

    Shapes: W_re, W_im (d_model, d_model); real: W (d_model, d_model).
    """

    activation: Activation = "linear"
    tied: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.activation == "linear" or self.ensemble == "real",
            f"activation = {self.activation} needs ensemble=real: rectifiers have no meaning for complex numbers",
        )

    @property
    def gain(self) -> float:
        return {"linear": 1.0, "relu": 2**0.5, "leaky-relu": (2 / (1 + SLOPE**2)) ** 0.5}[self.activation]

    @property
    def phi(self) -> Activation:
        return self.activation

    @property
    def start_only(self) -> bool:
        if not self.tied:
            raise Unsupported("dense-rnn[tied=false] has a fresh matrix at each step, and is no layer")
        return True

"""Dense Gaussian recurrences, whose energy at a finite width is known exactly: `dense-rnn` and `dense-lru`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bench.backends import reference
from bench.contract import Array, Decoder, Params, Role, Unsupported, require
from bench.dense import Activation, GaussianRecurrence

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class DenseGaussian(GaussianRecurrence):
    """What both have: W as trained parameters, real and imaginary parts apart, and y_t = Re h_t."""

    source: ClassVar[str] = "arXiv 2605.05113"
    comparator: ClassVar[bool] = True

    @property
    def fresh(self) -> bool:
        return False

    @property
    def parts(self) -> tuple[str, ...]:
        return ("W_re", "W_im") if self.ensemble == "complex" else ("W",)

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

    def loop(self, params: Params, u: np.ndarray) -> np.ndarray:
        self._require_one_matrix()
        W = self._joined(params, lambda re, im: re + 1j * im)
        v = u if self.driven else np.pad(u[:, :1], ((0, 0), (0, u.shape[1] - 1), (0, 0)))
        return reference.dense_states(W, v.astype(W.dtype), self.phi).real

    def torch_module(self, params: Params) -> torch.nn.Module:
        from bench.backends.torch import FunctionModule

        self._require_one_matrix()
        return FunctionModule(self, params, self._torch_outputs)

    def flax_module(self, params: Params) -> Any:
        from bench.backends.jax import FunctionModule

        self._require_one_matrix()
        return FunctionModule(self, params, self._flax_outputs)

    def _torch_outputs(self, p: Params, u: torch.Tensor) -> torch.Tensor:
        import torch

        from bench.backends.torch import dense_states

        W = self._joined(p, torch.complex)
        v = u if self.driven else torch.nn.functional.pad(u[:, :1], (0, 0, 0, u.shape[1] - 1))
        states = dense_states(W, v.to(W.dtype), self.phi)
        return states.real if states.is_complex() else states

    def _flax_outputs(self, p: Params, u: Array) -> Array:
        import jax
        import jax.numpy as jnp

        from bench.backends.jax import dense_states

        W = self._joined(p, jax.lax.complex)
        v = u if self.driven else jnp.pad(u[:, :1], ((0, 0), (0, u.shape[1] - 1), (0, 0)))
        return dense_states(W, v.astype(W.dtype), self.phi).real

    def _joined(self, params: Params, join: Any) -> Array:
        found = [params[name] for name in self.parts]
        return join(*found) if len(found) == 2 else found[0]

    def _require_one_matrix(self) -> None:
        if self.fresh:
            raise Unsupported("with tied=false each step has a matrix of its own: that is no layer")


@dataclass(frozen=True, kw_only=True)
class DenseLRU(DenseGaussian):
    """h_t = W h_{t-1} + u_t,  y_t = Re h_t,  h_0 = 0. No diagonal LRU: its W is dense, of width n = d_model.

    The entries of W have variance 1/n. Energies of h grow at every finite width, and over sqrt(n) steps leave those of
    an infinite one: E||h_t||^2 = n (Q_{n,0} + .. + Q_{n,t-1}) under white input of unit variance, where
    Q_{n,k} = E||W^k h||^2 / ||h||^2.

    Shapes: W_re, W_im (d_model, d_model); real: W (d_model, d_model).
    """

    driven: ClassVar[bool] = True

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

    `activation`: "linear" is phi(x) = x, and the entries of W have variance 1/n, n = d_model; "relu" and "leaky-relu"
    (slope 0.5 below 0) take real W, whose entries are then multiplied with sqrt(2), sqrt(2 / (1 + 0.25)), so that at
    infinite width energies stay as they are. `tied=false` has a fresh W at each step, as a deep feed-forward network:
    no layer, only what the suite signal_propagation makes of it.

    Shapes: W_re, W_im (d_model, d_model); real: W (d_model, d_model).
    """

    activation: Activation = "linear"
    tied: bool = True

    driven: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.activation == "linear" or self.ensemble == "real",
            f"activation = {self.activation} needs ensemble=real: rectifiers have no meaning for complex numbers",
        )

    @property
    def phi(self) -> Activation:
        return self.activation

    @property
    def fresh(self) -> bool:
        return not self.tied

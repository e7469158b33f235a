"""Causal softmax attention with rotary positions: the layer of a Transformer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bench.contract import Array, Decoder, Layer, Params, Role, require
from bench.sampling import normal

if TYPE_CHECKING:
    import torch

BLOCK = 256
"""Queries that the loop in numpy looks at together: its scores are never all there."""


@dataclass(frozen=True, kw_only=True)
class Transformer(Layer):
    """y_t = W_o concat_h( sum_{s <= t} softmax_s(q_t . k_s / sqrt(d)) v_s ), heads h of size d = d_state / heads.

    q, k, v = W_q u, W_k u, W_v u, and in each head the pairs (i, i + d / 2) of q_t and k_t are rotated by the angle
    t / base^(2 i / d): the scores depend on t - s. Attention alone: norm, gate and residual are the network's. At the
    start all matrices are Gaussian with variance 2 / (rows + columns).

    What is carried from step to step grows: k and v of every position, 2 d_state numbers each. `state_reals` is the
    share of one position; where the length is known, as in the suites of speed and memory, all are counted.

    Shapes: W_q, W_k, W_v (d_state, d_model), W_o (d_model, d_state).
    """

    d_state: int = 128
    heads: int = 4
    base: float = 10000.0

    source: ClassVar[str] = "Vaswani et al. 2017, arXiv 1706.03762; rotary positions: Su et al. 2021, arXiv 2104.09864"
    comparator: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.heads >= 1 and self.d_state >= 2 * self.heads and self.d_state % (2 * self.heads) == 0,
            f"heads must divide d_state into heads of even size, not heads = {self.heads}, d_state = {self.d_state}",
        )
        require(self.base > 1, f"base must be above 1, not {self.base}")

    def initial(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        n, h = self.d_state, self.d_model
        shapes = {"W_q": (n, h), "W_k": (n, h), "W_v": (n, h), "W_o": (h, n)}
        return {name: normal(rng, shape, 2 / (n + h)) for name, shape in shapes.items()}

    def roles(self) -> dict[str, Role]:
        """Matrices as in the rest of the network, at its rate and with its decay: nothing here is recurrent."""
        return dict.fromkeys(("W_q", "W_k", "W_v", "W_o"), "output")

    @property
    def state_reals(self) -> int:
        return 2 * self.d_state

    def state_at(self, length: int) -> int:
        return length * self.state_reals

    def work(self, mode: str, batch: int, length: int) -> tuple[float, float]:
        n, h = self.d_state, self.d_model
        if mode == "decode":  # all keys and values are read, and those of one position are written
            return batch * (8 * n * h + 4 * n * length + 5 * self.heads * length), batch * n * (length + 1)
        pairs = batch * length * (length + 1) / 2
        return batch * length * 8 * n * h + pairs * (4 * n + 5 * self.heads), batch * length * (4 * n + self.heads)

    def _rotations(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and sines at the positions 0 .. length - 1, (length, d / 2): from float64, where angles are exact."""
        half = self.d_state // self.heads // 2
        angles = np.outer(np.arange(length), self.base ** (-np.arange(half) / half))
        return np.cos(angles), np.sin(angles)

    def loop(self, params: Params, u: np.ndarray) -> np.ndarray:
        batch, length, _ = u.shape

        def split(W: np.ndarray) -> np.ndarray:
            return (u @ W.T).reshape(batch, length, self.heads, -1).swapaxes(1, 2)

        def rotated(x: np.ndarray) -> np.ndarray:
            z = x[..., : x.shape[-1] // 2] + 1j * x[..., x.shape[-1] // 2 :]
            cos, sin = self._rotations(length)
            z = z * (cos + 1j * sin)
            return np.concatenate([z.real, z.imag], -1)

        q, k, v = rotated(split(params["W_q"])), rotated(split(params["W_k"])), split(params["W_v"])
        mixed = np.empty_like(v)
        for begin in range(0, length, BLOCK):
            end = min(begin + BLOCK, length)
            scores = q[:, :, begin:end] @ k[:, :, :end].swapaxes(-1, -2) / np.sqrt(q.shape[-1])
            scores[..., np.arange(end) > np.arange(begin, end)[:, None]] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            mixed[:, :, begin:end] = weights @ v[:, :, :end] / weights.sum(-1, keepdims=True)
        return mixed.swapaxes(1, 2).reshape(batch, length, -1) @ params["W_o"].T

    def torch_module(self, params: Params) -> torch.nn.Module:
        from bench.backends.torch import FunctionModule

        return FunctionModule(self, params, self._torch_outputs)

    def flax_module(self, params: Params) -> Any:
        from bench.backends.jax import FunctionModule

        return FunctionModule(self, params, self._flax_outputs)

    def _torch_outputs(self, p: Params, u: torch.Tensor) -> torch.Tensor:
        """All in u's own dtype: attention is made of products. torch chooses its fastest kernel."""
        from torch.nn.functional import scaled_dot_product_attention

        cos, sin = (u.new_tensor(x) for x in self._rotations(u.shape[1]))
        q, k, v = (
            (u @ p[name].to(u.dtype).T).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for name in ("W_q", "W_k", "W_v")
        )
        y = scaled_dot_product_attention(_torch_rotated(q, cos, sin), _torch_rotated(k, cos, sin), v, is_causal=True)
        return y.transpose(1, 2).flatten(2) @ p["W_o"].to(u.dtype).T

    def _flax_outputs(self, p: Params, u: Array) -> Array:
        """All in u's own dtype: attention is made of products."""
        import jax.numpy as jnp

        cos, sin = (jnp.asarray(x, u.dtype)[:, None] for x in self._rotations(u.shape[1]))
        q, k, v = (
            (u @ p[name].astype(u.dtype).T).reshape(*u.shape[:2], self.heads, -1) for name in ("W_q", "W_k", "W_v")
        )
        q, k = _flax_rotated(q, cos, sin), _flax_rotated(k, cos, sin)
        y = _flax_attention(q, k, v, is_causal=True, implementation=self._flax_kernel(u))
        return y.reshape(*u.shape[:2], -1) @ p["W_o"].astype(u.dtype).T

    def _flax_kernel(self, u: Array) -> Any:
        """cuDNN's flash attention takes bfloat16 alone, and heads of at most 128 in steps of 8."""
        import jax
        import jax.numpy as jnp

        device, size = jax.config.jax_default_device, self.d_state // self.heads  # type: ignore[attr-defined]
        on_gpu = getattr(device, "platform", None) == "gpu"
        return "cudnn" if on_gpu and u.dtype == jnp.bfloat16 and size % 8 == 0 and size <= 128 else "xla"

    def torch_decoder(self) -> Decoder:
        """The state: keys and values, (batch, heads, room, d), the number of steps so far, cosines and sines."""
        import torch
        from torch.nn.functional import scaled_dot_product_attention

        def start(p: Params, batch: int, length: int) -> tuple[torch.Tensor, ...]:
            empty = p["W_k"].new_zeros((batch, self.heads, length, self.d_state // self.heads))
            steps = torch.zeros((), dtype=torch.int64, device=empty.device)
            return empty, empty.clone(), steps, *(empty.new_tensor(x) for x in self._rotations(length))

        def step(p: Params, u: torch.Tensor, state: tuple) -> tuple[torch.Tensor, tuple]:
            keys, values, t, cos, sin = state
            wide, at = u.to(keys.dtype), t.clamp(max=keys.shape[2] - 1)
            q, k, v = ((wide @ p[name].T).unflatten(-1, (self.heads, 1, -1)) for name in ("W_q", "W_k", "W_v"))
            q, k = (_torch_rotated(x, cos[at], sin[at]) for x in (q, k))
            keys.index_copy_(2, at[None], k)  # in place: a copy of all would be most of a step's time
            values.index_copy_(2, at[None], v)
            seen = torch.arange(keys.shape[2], device=at.device) <= at
            y = scaled_dot_product_attention(q, keys, values, attn_mask=seen[None])
            return (y.flatten(1) @ p["W_o"].T).to(u.dtype), (keys, values, t + 1, cos, sin)

        return Decoder(dict, start, step)

    def flax_decoder(self) -> Decoder:
        """The state: keys and values, (batch, room, heads, d), the number of steps so far, cosines and sines."""
        import jax
        import jax.numpy as jnp

        def start(p: Params, batch: int, length: int) -> tuple[Array, ...]:
            shape = (batch, length, self.heads, self.d_state // self.heads)
            keys, values = (jnp.zeros(shape, p["W_k"].dtype) for _ in range(2))
            return (
                keys,
                values,
                jnp.zeros((), jnp.int32),
                *(jnp.asarray(x, keys.dtype) for x in self._rotations(length)),
            )

        def step(p: Params, u: Array, state: tuple) -> tuple[Array, tuple]:
            keys, values, t, cos, sin = state
            wide, at = u.astype(keys.dtype), jnp.minimum(t, keys.shape[1] - 1)
            q, k, v = ((wide @ p[name].T).reshape(len(u), 1, self.heads, -1) for name in ("W_q", "W_k", "W_v"))
            q, k = (_flax_rotated(x, cos[at], sin[at]) for x in (q, k))
            keys = jax.lax.dynamic_update_slice_in_dim(keys, k, at, 1)
            values = jax.lax.dynamic_update_slice_in_dim(values, v, at, 1)
            seen = jnp.arange(keys.shape[1]) <= at
            y = _flax_attention(q, keys, values, mask=seen[None, None, None])
            return (y.reshape(len(u), -1) @ p["W_o"].T).astype(u.dtype), (keys, values, t + 1, cos, sin)

        return Decoder(dict, start, step)


def _torch_rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The pairs (i, i + d / 2) of x, (..., d), rotated; cos and sin broadcast to (..., d / 2)."""
    import torch

    one, two = x.chunk(2, -1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)


def _flax_rotated(x: Array, cos: Array, sin: Array) -> Array:
    """The pairs (i, i + d / 2) of x, (..., d), rotated; cos and sin broadcast to (..., d / 2)."""
    import jax.numpy as jnp

    one, two = jnp.split(x, 2, -1)
    return jnp.concatenate([one * cos - two * sin, two * cos + one * sin], -1)


def _flax_attention(
    q: Array, k: Array, v: Array, mask: Array = None, is_causal: bool = False, implementation: Any = None
) -> Array:
    """jax's own, (batch, length, heads, d); but its softmax is in float32, so for float64 the same written out."""
    import jax
    import jax.numpy as jnp

    if q.dtype != jnp.float64:
        return jax.nn.dot_product_attention(q, k, v, mask=mask, is_causal=is_causal, implementation=implementation)
    seen = jnp.tril(jnp.ones((q.shape[1], k.shape[1]), bool)) if is_causal else mask
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / q.shape[-1] ** 0.5
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)), v)

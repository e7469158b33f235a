"""The linear recurrence x_t = Lambda x_{t-1} + v_t over time, and its own backward pass; the convolution of S4D.

Lambda does not depend on t, so no product of Lambdas is carried along. The adjoint is the same scan run backwards
with conj(Lambda), so it is differentiable again. Real and imaginary parts are kept apart throughout.

Supported: reverse mode to any order, vmap, checkpointing. Forward mode is refused by jax itself.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from scipy.fft import next_fast_len

CHUNK = 32
"""Steps inside a chunk, on devices where one step is too small to keep them busy."""

Pair = tuple[Array, Array]
"""Real and imaginary part."""


@jax.custom_vjp
def scan(Lambda: Pair, v: Pair, start: Pair) -> Pair:
    """All states, (length, batch, *n), from v of that shape and the state before them, (batch, *n)."""
    return jax.lax.platform_dependent(Lambda, v, start, cpu=_loop, default=_chunked)


def _forward(Lambda: Pair, v: Pair, start: Pair) -> tuple[Pair, tuple[Pair, Pair, Pair]]:
    x = scan(Lambda, v, start)
    return x, (Lambda, start, x)


def _backward(saved: tuple[Pair, Pair, Pair], g: Pair) -> tuple[Pair, Pair, Pair]:
    (a_re, a_im), (s_re, s_im), (x_re, x_im) = saved
    zero = jnp.zeros_like(s_re)
    h_re, h_im = scan((a_re, -a_im), (jnp.flip(g[0], 0), jnp.flip(g[1], 0)), (zero, zero))
    h_re, h_im = jnp.flip(h_re, 0), jnp.flip(h_im, 0)
    before_re, before_im = jnp.concatenate([s_re[None], x_re[:-1]]), jnp.concatenate([s_im[None], x_im[:-1]])
    over = tuple(range(h_re.ndim - a_re.ndim))
    da_re = (h_re * before_re + h_im * before_im).sum(over)
    da_im = (h_im * before_re - h_re * before_im).sum(over)
    ds = _times((a_re, -a_im), (h_re[0], h_im[0]))
    return (da_re, da_im), (h_re, h_im), ds


scan.defvjp(_forward, _backward)


def convolution_kernel(Lambda: Pair, B: Pair, C: Pair, length: int) -> Array:
    """K_l = Re sum_n C_n Lambda_n^l B_n, (d_model, length), for one system a channel, each (d_model, n).

    Lambda^l is a coarse power times a fine one, so that (d_model, n, length) never exists.
    """
    fine = round(length**0.5)
    coarse = -(-length // fine)
    fine_re, fine_im = powers(Lambda, fine)
    top_re, top_im = powers(_times((fine_re[-1], fine_im[-1]), Lambda), coarse)
    weight = _times(B, C)
    left_re, left_im = _times((top_re, top_im), weight)
    left = jnp.moveaxis(jnp.concatenate([left_re, -left_im], -1), 0, 1)  # (d_model, coarse, 2 n)
    right = jnp.transpose(jnp.concatenate([fine_re, fine_im], -1), (1, 2, 0))  # (d_model, 2 n, fine)
    return (left @ right).reshape(left.shape[0], -1)[:, :length]


def convolve(kernel: Array, u: Array) -> Array:
    """Causal convolution over time of u, (batch, length, d_model), with kernel (d_model, steps), by FFT."""
    length = u.shape[1]
    kernel = kernel[:, :length]  # what is longer would wrap around
    size = next_fast_len(2 * length - 1, real=True)  # room for the whole product: nothing wraps around
    spectrum = jnp.fft.rfft(u, size, axis=1) * jnp.fft.rfft(kernel, size, axis=1).T
    return jnp.fft.irfft(spectrum, size, axis=1)[:, :length]


def powers(Lambda: Pair, count: int) -> Pair:
    """Lambda^0 .. Lambda^(count - 1) on a new first axis: what the scan makes of an impulse."""
    zero = jnp.zeros((count, *Lambda[0].shape), Lambda[0].dtype)
    return scan(Lambda, (zero.at[0].set(1), zero), (zero[0], zero[0]))


def _loop(a: Pair, v: Pair, start: Pair) -> Pair:
    """Step by step: fastest on a CPU, where a step of a whole batch fills the vector units."""

    def step(x: Pair, v_t: Pair) -> tuple[Pair, Pair]:
        moved = _times(a, x)
        x = (moved[0] + v_t[0], moved[1] + v_t[1])
        return x, x

    return jax.lax.scan(step, start, v)[1]


def _chunked(a: Pair, v: Pair, start: Pair) -> Pair:
    """Chunks of `CHUNK` steps side by side, then one short loop carries their last states."""
    length = v[0].shape[0]
    chunk = min(CHUNK, round(length**0.5))  # as many steps inside chunks as between them
    chunks = -(-length // chunk)
    padding = [(0, chunks * chunk - length)] + [(0, 0)] * (v[0].ndim - 1)
    split = tuple(jnp.pad(part, padding).reshape(chunks, chunk, *part.shape[1:]) for part in v)
    zero, one = jnp.zeros_like(split[0][:, 0]), jnp.ones_like(a[0])

    def step(carry: tuple[Pair, Pair], v_t: Pair) -> tuple[tuple[Pair, Pair], tuple[Pair, Pair]]:
        x, p = carry
        moved = _times(a, x)
        carry = (moved[0] + v_t[0], moved[1] + v_t[1]), _times(a, p)
        return carry, carry

    inner = (jnp.moveaxis(split[0], 1, 0), jnp.moveaxis(split[1], 1, 0))
    # (chunk, chunks, batch, *n), and Lambda^1 .. Lambda^chunk
    (x_re, x_im), (p_re, p_im) = jax.lax.scan(step, ((zero, zero), (one, jnp.zeros_like(one))), inner)[1]

    ends = _loop((p_re[-1], p_im[-1]), (x_re[-1], x_im[-1]), start)
    c_re, c_im = (jnp.concatenate([first[None], rest[:-1]]) for first, rest in zip(start, ends, strict=True))
    shape = (chunk, *[1] * (1 + start[0].ndim - a[0].ndim), *a[0].shape)
    more = _times((p_re.reshape(shape), p_im.reshape(shape)), (c_re[None], c_im[None]))
    joined = (jnp.moveaxis(x, 0, 1) + jnp.moveaxis(m, 0, 1) for x, m in zip((x_re, x_im), more, strict=True))
    re, im = (part.reshape(chunks * chunk, *part.shape[2:])[:length] for part in joined)
    return re, im


def _times(a: Pair, b: Pair) -> Pair:
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]

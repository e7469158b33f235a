"""The convolution that a layer with one system a channel trains through: kernel, FFT, powers of Lambda."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from bench.backends import fft
from bench.backends.jax.scan import Pair, scan, times


def convolution_kernel(Lambda: Pair, B: Pair, C: Pair, length: int) -> Array:
    """K_l = Re sum_n C_n Lambda_n^l B_n, (d_model, length), for one system a channel, each (d_model, n).

    Lambda^l is a coarse power times a fine one, so that (d_model, n, length) never exists.
    """
    fine = round(length**0.5)
    coarse = -(-length // fine)
    fine_re, fine_im = powers(Lambda, fine)
    top_re, top_im = powers(times((fine_re[-1], fine_im[-1]), Lambda), coarse)
    weight = times(B, C)
    left_re, left_im = times((top_re, top_im), weight)
    left = jnp.moveaxis(jnp.concatenate([left_re, -left_im], -1), 0, 1)  # (d_model, coarse, 2 n)
    right = jnp.transpose(jnp.concatenate([fine_re, fine_im], -1), (1, 2, 0))  # (d_model, 2 n, fine)
    return (left @ right).reshape(left.shape[0], -1)[:, :length]


@jax.custom_vjp
def convolve(kernel: Array, u: Array) -> Array:
    """Causal convolution over time of u, (batch, length, d_model), with kernel (d_model, steps), by FFT.

    In float32 at least, as FFTs in fewer bits do not exist, and so is the result.
    """
    return _convolve_forward(kernel, u)[0]


def _convolve_forward(kernel: Array, u: Array) -> tuple[Array, tuple]:
    length = u.shape[1]
    size = fft.size(length)
    spectrum = jnp.fft.rfft(_channels(u).astype(kernel.dtype), size)
    filters = jnp.fft.rfft(kernel[:, :length], size)  # what is longer would wrap around
    y = jnp.fft.irfft(spectrum * filters, size)[..., :length]
    return _channels(y), (kernel, u, spectrum, filters)


def _convolve_backward(saved: tuple, g: Array) -> tuple[Array, Array]:
    """The adjoint of an FFT by automatic differentiation is a complex one; this is a correlation by real ones."""
    kernel, u, spectrum, filters = saved
    length, steps = u.shape[1], kernel.shape[1]
    size = fft.size(length)
    g_spectrum = jnp.fft.rfft(_channels(g), size)
    du = jnp.fft.irfft(g_spectrum * filters.conj(), size)[..., :length]
    dk = jnp.fft.irfft((g_spectrum * spectrum.conj()).sum(0), size)[:, : min(steps, length)]
    return jnp.pad(dk, ((0, 0), (0, max(0, steps - length)))), _channels(du).astype(u.dtype)


convolve.defvjp(_convolve_forward, _convolve_backward)


def _channels(u: Array) -> Array:
    """(batch, length, d_model) as (batch, d_model, length), or back: an FFT is fastest along the last axis."""
    return jnp.swapaxes(u, 1, 2)


def powers(Lambda: Pair, count: int) -> Pair:
    """Lambda^0 .. Lambda^(count - 1) on a new first axis: what the scan makes of an impulse."""
    zero = jnp.zeros((count, 1, *Lambda[0].shape), Lambda[0].dtype)
    re, im = scan(Lambda, (zero.at[0].set(1), zero), (zero[0], zero[0]))
    return re[:, 0], im[:, 0]

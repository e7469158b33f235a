"""The convolution that a layer with one system a channel trains through: kernel, FFT, powers of Lambda."""

from __future__ import annotations

import torch
from torch import Tensor

from bench.backends import fft
from bench.backends.torch.scan import Pair, times


def convolution_kernel(Lambda: Pair, B: Pair, C: Pair, length: int) -> Tensor:
    """K_l = Re sum_n C_n Lambda_n^l B_n, (d_model, length), for one system a channel, each (d_model, n).

    Lambda^l is a coarse power times a fine one, so that (d_model, n, length) never exists.
    """
    fine = round(length**0.5)
    coarse = -(-length // fine)
    fine_re, fine_im = powers(Lambda, fine)
    top_re, top_im = powers(times((fine_re[-1], fine_im[-1]), Lambda), coarse)
    weight = times(B, C)
    left_re, left_im = times((top_re, top_im), weight)
    left = torch.cat([left_re, -left_im], -1).movedim(0, 1)  # (d_model, coarse, 2 n)
    right = torch.cat([fine_re, fine_im], -1).permute(1, 2, 0)  # (d_model, 2 n, fine)
    return (left @ right).flatten(1)[:, :length]


def convolve(kernel: Tensor, u: Tensor) -> Tensor:
    """Causal convolution over time of u, (batch, length, d_model), with kernel (d_model, steps), by FFT.

    In float32 at least, as FFTs in fewer bits do not exist, and so is the result.
    """
    if torch.compiler.is_compiling():
        return _Convolve.forward(kernel, u)  # the compiler derives it, and takes no function with a jvp
    return _Convolve.apply(kernel, u)


class _Convolve(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(kernel, u):
        length = u.shape[1]
        size = fft.size(length)
        filters = torch.fft.rfft(kernel[:, :length], size)  # what is longer would wrap around
        spectrum = torch.fft.rfft(_channels(u.to(kernel.dtype)), size)
        return _channels(torch.fft.irfft(spectrum * filters, size)[..., :length])

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        """The adjoint of an FFT by automatic differentiation is a complex one; this is a correlation by real ones."""
        kernel, u = ctx.saved_tensors
        length, steps = u.shape[1], kernel.shape[1]
        size = fft.size(length)
        g_spectrum = torch.fft.rfft(_channels(g), size)
        spectrum = torch.fft.rfft(_channels(u.to(kernel.dtype)), size).conj_physical_()  # a lazy one is copied first
        dk = torch.fft.irfft((g_spectrum * spectrum).sum(0), size)[:, : min(steps, length)]
        filters = torch.fft.rfft(kernel[:, :length], size)
        du = _channels(torch.fft.irfft(g_spectrum * filters.conj(), size)[..., :length])
        return torch.nn.functional.pad(dk, (0, max(0, steps - length))), du.to(u.dtype)

    @staticmethod
    def jvp(ctx, kernel_tangent, u_tangent):
        kernel, u = ctx.saved_tensors
        return convolve(kernel_tangent, u) + convolve(kernel, u_tangent)


def _channels(u: Tensor) -> Tensor:
    """(batch, length, d_model) as (batch, d_model, length), or back: an FFT is fastest along the last axis."""
    return u.transpose(1, 2)


def powers(Lambda: Pair, count: int) -> Pair:
    """Lambda^0 .. Lambda^(count - 1) on a new first axis, by doubling."""
    if torch.compiler.is_compiling():
        return _Powers.forward(*Lambda, count)
    re, im = _Powers.apply(*Lambda, count)
    return re, im


class _Powers(torch.autograd.Function):
    """With a backward pass of its own: one sum, where that of the doubling is a hundred small operations."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a_re, a_im, count):
        re, im = torch.ones_like(a_re)[None], torch.zeros_like(a_im)[None]
        square = a_re, a_im
        while len(re) < count:
            more = times((re, im), square)
            re, im = torch.cat([re, more[0]]), torch.cat([im, more[1]])
            square = times(square, square)
        return re[:count], im[:count]

    @staticmethod
    def setup_context(ctx, inputs, output):
        *Lambda, ctx.count = inputs
        ctx.save_for_backward(*Lambda)
        ctx.save_for_forward(*Lambda)

    @staticmethod
    def backward(ctx, g_re, g_im):
        re, im = _slopes(ctx.saved_tensors, ctx.count)
        return (re * g_re + im * g_im).sum(0), (re * g_im - im * g_re).sum(0), None

    @staticmethod
    def jvp(ctx, re_tangent, im_tangent, _):
        return times(_slopes(ctx.saved_tensors, ctx.count), (re_tangent, im_tangent))


def _slopes(Lambda: Pair, count: int) -> Pair:
    """The derivatives of the powers, l Lambda^(l - 1) with l = 0 .. count - 1."""
    re, im = powers(Lambda, count)
    exponents = torch.arange(count, dtype=re.dtype, device=re.device).reshape(-1, *[1] * (re.ndim - 1))
    re, im = (exponents * torch.cat([torch.zeros_like(part[:1]), part[:-1]]) for part in (re, im))
    return re, im

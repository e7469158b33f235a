"""The linear recurrence x_t = Lambda x_{t-1} + v_t over time, and its own backward pass; the convolution of S4D.

Lambda does not depend on t, so no product of Lambdas is carried along: chunks of `CHUNK` steps run side by side, then
one short loop carries their last states, and powers of Lambda spread what is carried. The adjoint is the same scan
run backwards with conj(Lambda), so it is differentiable again. Real and imaginary parts are kept apart throughout.

Supported: reverse mode to any order, vmap, checkpointing. Forward mode is refused by torch itself.
"""

from __future__ import annotations

import torch
from scipy.fft import next_fast_len
from torch import Tensor

CHUNK = 32
"""Steps inside a chunk: length / CHUNK + CHUNK vector operations in sequence."""

Pair = tuple[Tensor, Tensor]
"""Real and imaginary part."""


def scan(Lambda: Pair, v: Pair, start: Pair) -> Pair:
    """All states, (length, batch, *n), from v of that shape and the state before them, (batch, *n)."""
    re, im = _Scan.apply(*Lambda, *v, *start)
    return re, im


def convolution_kernel(Lambda: Pair, B: Pair, C: Pair, length: int) -> Tensor:
    """K_l = Re sum_n C_n Lambda_n^l B_n, (d_model, length), for one system a channel, each (d_model, n).

    Lambda^l is a coarse power times a fine one, so that (d_model, n, length) never exists.
    """
    fine = round(length**0.5)
    coarse = -(-length // fine)
    fine_re, fine_im = powers(Lambda, fine)
    top_re, top_im = powers(_times((fine_re[-1], fine_im[-1]), Lambda), coarse)
    weight = _times(B, C)
    left_re, left_im = _times((top_re, top_im), weight)
    left = torch.cat([left_re, -left_im], -1).movedim(0, 1)  # (d_model, coarse, 2 n)
    right = torch.cat([fine_re, fine_im], -1).permute(1, 2, 0)  # (d_model, 2 n, fine)
    return (left @ right).flatten(1)[:, :length]


def convolve(kernel: Tensor, u: Tensor) -> Tensor:
    """Causal convolution over time of u, (batch, length, d_model), with kernel (d_model, steps), by FFT."""
    length = u.shape[1]
    kernel = kernel[:, :length]  # what is longer would wrap around
    size = next_fast_len(2 * length - 1, real=True)  # room for the whole product: nothing wraps around
    spectrum = torch.fft.rfft(u, size, dim=1) * torch.fft.rfft(kernel, size, dim=1).T
    return torch.fft.irfft(spectrum, size, dim=1)[:, :length]


def powers(Lambda: Pair, count: int) -> Pair:
    """Lambda^0 .. Lambda^(count - 1) on a new first axis, by doubling."""
    re, im = torch.ones_like(Lambda[0])[None], torch.zeros_like(Lambda[1])[None]
    square = Lambda
    while len(re) < count:
        more = _times((re, im), square)
        re, im = torch.cat([re, more[0]]), torch.cat([im, more[1]])
        square = _times(square, square)
    return re[:count], im[:count]


class _Scan(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(a_re, a_im, v_re, v_im, s_re, s_im):
        return _chunked((a_re, a_im), (v_re, v_im), (s_re, s_im))

    @staticmethod
    def setup_context(ctx, inputs, output):
        a_re, a_im, _, _, s_re, s_im = inputs
        ctx.save_for_backward(a_re, a_im, s_re, s_im, *output)

    @staticmethod
    def backward(ctx, g_re, g_im):
        a_re, a_im, s_re, s_im, x_re, x_im = ctx.saved_tensors
        zero = torch.zeros_like(s_re)
        h_re, h_im = scan((a_re, -a_im), (g_re.flip(0), g_im.flip(0)), (zero, zero))
        h_re, h_im = h_re.flip(0), h_im.flip(0)
        before_re, before_im = torch.cat([s_re[None], x_re[:-1]]), torch.cat([s_im[None], x_im[:-1]])
        over = tuple(range(h_re.ndim - a_re.ndim))
        da_re = (h_re * before_re + h_im * before_im).sum(over)
        da_im = (h_im * before_re - h_re * before_im).sum(over)
        ds = _times((a_re, -a_im), (h_re[0], h_im[0]))
        return da_re, da_im, h_re, h_im, *ds


def _chunked(a: Pair, v: Pair, start: Pair) -> Pair:
    length = v[0].shape[0]
    chunk = min(CHUNK, round(length**0.5))  # as many steps inside chunks as between them
    chunks = -(-length // chunk)
    if chunks * chunk > length:
        padding = torch.zeros_like(v[0][:1]).expand(chunks * chunk - length, *v[0].shape[1:])
        v = (torch.cat([v[0], padding]), torch.cat([v[1], padding]))
    v_re, v_im = (part.reshape(chunks, chunk, *part.shape[1:]) for part in v)

    inner = [(v_re[:, 0], v_im[:, 0])]
    for t in range(1, chunk):
        inner.append(_advance(a, inner[-1], (v_re[:, t], v_im[:, t])))
    x_re, x_im = torch.stack([re for re, _ in inner], 1), torch.stack([im for _, im in inner], 1)

    p_re, p_im = powers(a, chunk + 1)
    carried = [start]
    for c in range(chunks - 1):
        carried.append(_advance((p_re[-1], p_im[-1]), carried[-1], (x_re[c, -1], x_im[c, -1])))
    c_re = torch.stack([part for part, _ in carried])[:, None]
    c_im = torch.stack([part for _, part in carried])[:, None]
    shape = (chunk, *[1] * (start[0].ndim - a[0].ndim), *a[0].shape)
    p_re, p_im = p_re[1:].reshape(shape), p_im[1:].reshape(shape)
    x_re, x_im = _advance((p_re, p_im), (c_re, c_im), (x_re, x_im))
    return x_re.flatten(0, 1)[:length], x_im.flatten(0, 1)[:length]


def _advance(a: Pair, x: Pair, v: Pair) -> Pair:
    """a x + v."""
    re = torch.addcmul(torch.addcmul(v[0], a[0], x[0]), a[1], x[1], value=-1)
    return re, torch.addcmul(torch.addcmul(v[1], a[0], x[1]), a[1], x[0])


def _times(a: Pair, b: Pair) -> Pair:
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]

"""What the layers are measured against: the same systems computed as papers and most public code write them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch

from bench.backends import jax as in_jax
from bench.backends import torch as in_torch


def scan_in_jax(layer):
    """(params, u) -> y by `associative_scan` over complex pairs (Lambda, B u), example by example, as S5 and LRU do."""

    def combine(first, second):
        return second[0] * first[0], second[0] * first[1] + second[1]

    def function(params, u):
        system = in_jax.system(layer, params)

        def one(u):
            Lambda = jnp.broadcast_to(system.Lambda, (len(u), *system.Lambda.shape))
            x = jax.lax.associative_scan(combine, (Lambda, jax.vmap(lambda u_t: system.B @ u_t)(u)))[1]
            return jax.vmap(lambda x_t: (system.C @ x_t).real)(x) + system.D * u

        with jax.default_matmul_precision("highest"):
            return jax.vmap(one)(u)

    return function


def convolution_in_torch(layer):
    """(params, u) -> y by the whole Vandermonde matrix exp(dt A l), (d_model, N / 2, length), and one convolution."""

    def function(params, u):
        system, length = in_torch.system(layer, params), u.shape[1]
        vandermonde = torch.exp(torch.log(system.Lambda)[..., None] * torch.arange(length))
        kernel = torch.einsum("hn,hnl->hl", system.B * system.C, vandermonde).real
        spectrum = torch.fft.rfft(u.transpose(1, 2), 2 * length) * torch.fft.rfft(kernel, 2 * length)
        return torch.fft.irfft(spectrum, 2 * length)[..., :length].transpose(1, 2) + system.D * u

    return function

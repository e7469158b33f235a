"""States of a recurrence with a dense matrix, in jax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from bench.dense import Activation, activated


def dense_states(W: Array, v: Array, activation: Activation = "linear") -> Array:
    """h_t = phi(W h_{t-1}) + v_t from h_0 = 0: all h_t, (batch, length, n), like v.

    W is (n, n), or (batch, n, n) with a matrix for each sequence; complex if v is.
    """

    def step(h: Array, v_t: Array) -> tuple[Array, Array]:
        before = jnp.einsum("bi,bji->bj", h, W) if W.ndim == 3 else h @ W.T
        h = activated(activation, before, jnp.maximum) + v_t
        return h, h

    states = jax.lax.scan(step, jnp.zeros_like(v[:, 0]), jnp.swapaxes(v, 0, 1))[1]
    return jnp.swapaxes(states, 0, 1)

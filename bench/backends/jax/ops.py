"""jax's side of `bench.contract.Ops`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from bench.backends.jax.expm import expm as expm

complex = jax.lax.complex
exp, expm1, log, sqrt, sin, cos = jnp.exp, jnp.expm1, jnp.log, jnp.sqrt, jnp.sin, jnp.cos
sum, amax, det = jnp.sum, jnp.max, jnp.linalg.det
stack, concatenate = jnp.stack, jnp.concatenate


def minimum(x: jax.Array, bound: float) -> jax.Array:
    return jnp.minimum(x, bound)


def constant(x: np.ndarray, like: jax.Array) -> jax.Array:
    return jnp.asarray(x, dtype=like.real.dtype)


def stop_gradient(x: jax.Array) -> jax.Array:
    return jax.lax.stop_gradient(x)

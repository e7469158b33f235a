"""The linear recurrence x_t = Lambda x_{t-1} + v_t over time, and its own backward pass.

Lambda does not depend on t, so no product of Lambdas is carried along. Two primitives, `states` and `adjoint`, are
chosen by device; all else is built on them. The adjoint is the same recurrence run backwards with conj(Lambda), and its
own derivative is made of scans, so it can be differentiated again. Real and imaginary parts are kept apart throughout.

Supported: reverse mode to any order, vmap, checkpointing. Forward mode is refused by jax itself.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

CHUNK = 32
"""Steps inside a chunk, on devices where one step is too small to keep them busy."""

Pair = tuple[Array, Array]
"""Real and imaginary part."""


# The primitives: time first, one axis of states, not differentiable by themselves.


def states(a: Pair, v: Pair, start: Pair) -> Pair:
    """x_t = a x_{t-1} + v_t, (length, batch, n), for a (n,) from the state before, (batch, n)."""
    return jax.lax.platform_dependent(a, v, start, cpu=_loop, default=_chunked)


def adjoint(a: Pair, g: Pair, x: Pair, start: Pair) -> tuple[Pair, Pair, Pair]:
    """Gradients of v, (length, batch, n), a, (n,), and start, (batch, n), from that of the states x, all of `states`.

    A gradient here is the pair of derivatives with respect to the real and the imaginary part.
    """
    return jax.lax.platform_dependent(a, g, x, start, cpu=_adjoint_loop, default=_adjoint_of_scans)


@jax.custom_vjp
def scan(Lambda: Pair, v: Pair, start: Pair) -> Pair:
    """All states, (length, batch, *n), from v of that shape and the state before them, (batch, *n); Lambda is (*n)."""
    return _shaped(states(*map(_flat, (Lambda, v, start), (0, 2, 1))), v)


def _scan_forward(Lambda: Pair, v: Pair, start: Pair) -> tuple[Pair, tuple[Pair, Pair, Pair]]:
    x = scan(Lambda, v, start)
    return x, (Lambda, x, start)


def _scan_backward(saved: tuple[Pair, Pair, Pair], g: Pair) -> tuple[Pair, Pair, Pair]:
    Lambda, x, start = saved
    h, da, ds = _adjoint(*map(_flat, (Lambda, g, x, start), (0, 2, 2, 1)))
    return _shaped(da, Lambda), _shaped(h, g), _shaped(ds, start)


scan.defvjp(_scan_forward, _scan_backward)


@jax.custom_vjp
def _adjoint(a: Pair, g: Pair, x: Pair, start: Pair) -> tuple[Pair, Pair, Pair]:
    """`adjoint`, differentiable."""
    return adjoint(a, g, x, start)


def _adjoint_backward(saved: tuple[Pair, Pair, Pair, Pair], cotangent: tuple[Pair, Pair, Pair]) -> tuple[Pair, ...]:
    return jax.vjp(_adjoint_of_scans, *saved)[1](cotangent)


_adjoint.defvjp(lambda *saved: (_adjoint(*saved), saved), _adjoint_backward)


def _adjoint_of_scans(a: Pair, g: Pair, x: Pair, start: Pair) -> tuple[Pair, Pair, Pair]:
    """`adjoint` in terms of `scan`."""
    conjugate, zero = (a[0], -a[1]), jnp.zeros_like(start[0])
    h_re, h_im = scan(conjugate, (jnp.flip(g[0], 0), jnp.flip(g[1], 0)), (zero, zero))
    h_re, h_im = jnp.flip(h_re, 0), jnp.flip(h_im, 0)
    before_re, before_im = (jnp.concatenate([s[None], part[:-1]]) for s, part in zip(start, x, strict=True))
    da = (h_re * before_re + h_im * before_im).sum((0, 1)), (h_im * before_re - h_re * before_im).sum((0, 1))
    return (h_re, h_im), da, times(conjugate, (h_re[0], h_im[0]))


def _flat(x: Pair, leading: int) -> Pair:
    """The axes after the first `leading` ones as one."""
    return x[0].reshape(*x[0].shape[:leading], -1), x[1].reshape(*x[1].shape[:leading], -1)


def _shaped(x: Pair, like: Pair) -> Pair:
    return x[0].reshape(like[0].shape), x[1].reshape(like[1].shape)


# Projection, scan, projection, with one backward pass.


def filtered(Lambda: Pair, B: Pair, C: Pair, u: Array) -> Array:
    """Re(C scan(B u)) from a zero state, float32 or float64, (length, batch, d_model), for u of that shape.

    Lambda (n,), B (n, d_model), C (d_model, n). u, and what stands in for y in the backward pass, meet the matrices in
    u's dtype; sums and states are in Lambda's. Between the passes u and the states are kept, nothing else.
    """
    return _filtered(jax.config.jax_default_matmul_precision, Lambda, B, C, u)  # type: ignore[attr-defined]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _filtered(precision: str | None, Lambda: Pair, B: Pair, C: Pair, u: Array) -> Array:
    return _filtered_forward(precision, Lambda, B, C, u)[0]


def _filtered_forward(precision: str | None, Lambda: Pair, B: Pair, C: Pair, u: Array) -> tuple[Array, tuple]:
    with jax.default_matmul_precision(precision):
        project = partial(product, dtype=u.dtype)
        rows, batch, n = _rows(u), u.shape[1], Lambda[0].shape[0]
        v = tuple(project(rows, part.T).reshape(-1, batch, n) for part in B)
        zero = jnp.zeros((batch, n), Lambda[0].dtype)
        x = scan(Lambda, v, (zero, zero))
        y = project(_rows(x[0]), C[0].T) - project(_rows(x[1]), C[1].T)
        return y.reshape(u.shape), (Lambda, B, C, u, x)


def _filtered_backward(precision: str | None, saved: tuple, g: Array) -> tuple[Pair, Pair, Pair, Array]:
    Lambda, B, C, u, x = saved
    # a backward pass is traced where it is asked for, perhaps under another precision
    with jax.default_matmul_precision(precision):
        project = partial(product, dtype=u.dtype)
        rows, g_rows, batch, n = _rows(u), _rows(g), u.shape[1], Lambda[0].shape[0]
        gx = project(g_rows, C[0]).reshape(-1, batch, n), project(g_rows, -C[1]).reshape(-1, batch, n)
        zero = jnp.zeros((batch, n), Lambda[0].dtype)
        h, da, _ = _adjoint(Lambda, gx, x, (zero, zero))
        du = project(_rows(h[0]), B[0]) + project(_rows(h[1]), B[1])
        dB = project(_rows(h[0]).T, rows), project(_rows(h[1]).T, rows)
        # so and not as g^T x, whose left factor would be the wide one: two thirds of the time where n is small
        dC = project(_rows(x[0]).T, g_rows).T, -project(_rows(x[1]).T, g_rows).T
        return da, dB, dC, du.reshape(u.shape).astype(u.dtype)


_filtered.defvjp(_filtered_forward, _filtered_backward)


def _rows(x: Array) -> Array:
    """Time and batch as one axis, laid out in memory so: without the barrier XLA's matrix products stride over both."""
    return jax.lax.optimization_barrier(x.reshape(-1, x.shape[-1]))


def product(a: Array, b: Array, dtype: jnp.dtype) -> Array:
    """a @ b of both rounded to `dtype`, summed and returned in float32 at least."""
    wide = jnp.promote_types(dtype, jnp.float32)
    return jax.lax.optimization_barrier(jnp.matmul(a.astype(dtype), b.astype(dtype), preferred_element_type=wide))


# What the primitives are on each device.


def _loop(a: Pair, v: Pair, start: Pair) -> Pair:
    """Step by step, each state written over its v: fastest on a CPU, where a step of a batch fills the vector units."""

    def step(t: Array, carry: tuple[Pair, Pair]) -> tuple[Pair, Pair]:
        x, rows = carry
        x = _plus(times(a, x), _row(rows, t))
        return x, _written(rows, x, t)

    return jax.lax.fori_loop(0, v[0].shape[0], step, (start, v))[1]


def _adjoint_loop(a: Pair, g: Pair, x: Pair, start: Pair) -> tuple[Pair, Pair, Pair]:
    """Step by step from the end; the gradient of a is summed on the way."""
    conjugate = (a[0], -a[1])
    zero = (jnp.zeros_like(start[0]), jnp.zeros_like(start[1]))

    def advance(h: Pair, da: Pair, g: Pair, before: Pair) -> tuple[Pair, Pair]:
        h = _plus(times(conjugate, h), g)
        return h, _plus(da, times((before[0], -before[1]), h))

    def step(i: Array, carry: tuple[Pair, Pair, Pair]) -> tuple[Pair, Pair, Pair]:
        h, da, rows = carry
        t = g[0].shape[0] - 1 - i
        h, da = advance(h, da, _row(rows, t), _row(x, t - 1))
        return h, da, _written(rows, h, t)

    h, da, rows = jax.lax.fori_loop(0, g[0].shape[0] - 1, step, (zero, zero, g))
    h, da = advance(h, da, _row(rows, 0), start)
    return _written(rows, h, 0), (da[0].sum(0), da[1].sum(0)), times(conjugate, h)


def _row(rows: Pair, t: Array | int) -> Pair:
    re, im = (jax.lax.dynamic_index_in_dim(part, t, 0, keepdims=False) for part in rows)
    return re, im


def _written(rows: Pair, x: Pair, t: Array | int) -> Pair:
    re, im = (jax.lax.dynamic_update_index_in_dim(part, row, t, 0) for part, row in zip(rows, x, strict=True))
    return re, im


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
        moved = times(a, x)
        carry = (moved[0] + v_t[0], moved[1] + v_t[1]), times(a, p)
        return carry, carry

    inner = (jnp.moveaxis(split[0], 1, 0), jnp.moveaxis(split[1], 1, 0))
    # (chunk, chunks, batch, *n), and Lambda^1 .. Lambda^chunk
    (x_re, x_im), (p_re, p_im) = jax.lax.scan(step, ((zero, zero), (one, jnp.zeros_like(one))), inner)[1]

    ends = _loop((p_re[-1], p_im[-1]), (x_re[-1], x_im[-1]), start)
    c_re, c_im = (jnp.concatenate([first[None], rest[:-1]]) for first, rest in zip(start, ends, strict=True))
    shape = (chunk, *[1] * (1 + start[0].ndim - a[0].ndim), *a[0].shape)
    more = times((p_re.reshape(shape), p_im.reshape(shape)), (c_re[None], c_im[None]))
    joined = (jnp.moveaxis(x, 0, 1) + jnp.moveaxis(m, 0, 1) for x, m in zip((x_re, x_im), more, strict=True))
    re, im = (part.reshape(chunks * chunk, *part.shape[2:])[:length] for part in joined)
    return re, im


def times(a: Pair, b: Pair) -> Pair:
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def _plus(a: Pair, b: Pair) -> Pair:
    return a[0] + b[0], a[1] + b[1]

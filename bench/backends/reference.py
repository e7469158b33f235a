"""The oracle: every diagonal layer as a plain loop over time in numpy float64. Slow, and obviously right."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt

import numpy as np
from scipy import linalg

from bench.contract import Array, DiagonalLayer, DiagonalSystem, Params
from bench.dense import Activation, activated


class ops:
    """numpy's side of `bench.contract.Ops`."""

    exp, expm1, log, sqrt, sin, cos = np.exp, np.expm1, np.log, np.sqrt, np.sin, np.cos
    sum, amax, minimum, stack, concatenate = np.sum, np.amax, np.minimum, np.stack, np.concatenate
    expm, det = staticmethod(linalg.expm), np.linalg.det

    @staticmethod
    def complex(re: Array, im: Array) -> Array:
        return re + 1j * im

    @staticmethod
    def constant(x: np.ndarray, like: Array) -> Array:
        return x

    @staticmethod
    def stop_gradient(x: Array) -> Array:
        return x


def system(layer: DiagonalLayer, params: Params) -> DiagonalSystem:
    """The layer's system in complex128."""
    return layer.system({name: np.asarray(value, np.float64) for name, value in params.items()}, ops)


def parts(z: np.ndarray) -> np.ndarray:
    """Complex (..., n) as real (..., 2 n), real and imaginary parts in turn: products with real arrays stay real."""
    return np.ascontiguousarray(z, np.complex128).view(np.float64)


def driven(system: DiagonalSystem, u: np.ndarray) -> np.ndarray:
    """B u, (..., *Lambda.shape), from u, (..., d_model)."""
    if system.Lambda.ndim == 1:
        return (u @ parts(system.B.T)).view(np.complex128)
    return system.B * u[..., None]


def output(system: DiagonalSystem, C: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Re(C x), (..., d_model), from states x, (..., *Lambda.shape); C is the system's C or its C_reverse."""
    if system.Lambda.ndim == 1:
        return parts(x) @ parts(C.conj()).T
    return np.einsum("...hn,hn->...h", x, C).real


def scan(system: DiagonalSystem, u: np.ndarray, x: np.ndarray) -> np.ndarray:
    """All states, (batch, length, *Lambda.shape), from u, (batch, length, d_model), and the state x before them."""
    states = driven(system, u)
    for t in range(u.shape[1]):
        states[:, t] += system.Lambda * x
        x = states[:, t]
    return states


def zero_state(system: DiagonalSystem, batch: int) -> np.ndarray:
    return np.zeros((batch, *system.Lambda.shape), np.complex128)


def apply(
    layer: DiagonalLayer,
    params: Params,
    u: np.ndarray,
    *,
    lengths: np.ndarray | None = None,
    dtype: str = "float64",
    device: str = "cpu",
) -> np.ndarray:
    """y, (batch, length, d_model), from a zero state."""
    if not layer.has_reverse:
        return apply_from(layer, params, u, None, dtype=dtype)[0]
    params, u = round_to(params, dtype), round_input(u, dtype)
    s = system(layer, params)
    y = output(s, s.C, scan(s, u, zero_state(s, len(u)))) + s.D * u
    if lengths is not None:
        u = np.where(np.arange(u.shape[1])[None, :, None] < np.asarray(lengths)[:, None, None], u, 0)
    assert s.C_reverse is not None
    backward = scan(s, u[:, ::-1], zero_state(s, len(u)))[:, ::-1]
    return (y + output(s, s.C_reverse, backward)).astype(result_dtype(dtype))


def apply_from(
    layer: DiagonalLayer,
    params: Params,
    u: np.ndarray,
    state: np.ndarray | None,
    *,
    dtype: str = "float64",
    device: str = "cpu",
) -> tuple[np.ndarray, np.ndarray]:
    """y and the state after the last step."""
    params, u = round_to(params, dtype), round_input(u, dtype)
    s = system(layer, params)
    x = scan(s, u, zero_state(s, len(u)) if state is None else np.asarray(state, np.complex128))
    return (output(s, s.C, x) + s.D * u).astype(result_dtype(dtype)), x[:, -1]


def states(
    layer: DiagonalLayer,
    params: Params,
    u: np.ndarray,
    *,
    state: np.ndarray | None = None,
    coordinates: str = "own",
    dtype: str = "float64",
    device: str = "cpu",
) -> np.ndarray:
    """States, (batch, length, n); complex diagonal ones, (batch, length, *Lambda.shape), with "diagonal"."""
    params, u = round_to(params, dtype), round_input(u, dtype)
    s = system(layer, params)
    x = scan(s, u, zero_state(s, len(u)) if state is None else np.asarray(state, np.complex128))
    x = x if coordinates == "diagonal" else layer.coordinates(params, x, ops)
    dtype = result_dtype(dtype)
    return x.astype(np.result_type(dtype, np.complex64) if np.iscomplexobj(x) else dtype)


def decoder(
    layer: DiagonalLayer, params: Params, *, dtype: str = "float64", device: str = "cpu"
) -> Callable[[np.ndarray, np.ndarray | None], tuple[np.ndarray, np.ndarray]]:
    """A function (u_t, state) -> (y_t, state) for u_t (batch, d_model)."""
    s = system(layer, round_to(params, dtype))

    def decode(u: np.ndarray, state: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        u = round_input(u, dtype)
        x = driven(s, u) + s.Lambda * (zero_state(s, len(u)) if state is None else np.asarray(state, np.complex128))
        return (output(s, s.C, x) + s.D * u).astype(result_dtype(dtype)), x

    return decode


def dense_states(W: np.ndarray, v: np.ndarray, activation: Activation = "linear") -> np.ndarray:
    """h_t = phi(W h_{t-1}) + v_t from h_0 = 0: all h_t, (batch, length, n), like v.

    W is (n, n), or (batch, n, n) with a matrix for each sequence; complex if v is.
    """
    states, h = np.empty_like(v), np.zeros_like(v[:, 0])
    for t in range(v.shape[1]):
        states[:, t] = h = activated(activation, np.einsum("...ij,...j->...i", W, h), np.maximum) + v[:, t]
    return states


def adjoint(
    system: DiagonalSystem, u: np.ndarray, cotangent: np.ndarray, lengths: np.ndarray | None = None
) -> tuple[np.ndarray, DiagonalSystem, np.ndarray]:
    """y, and the gradients of sum(cotangent * y) with respect to the system's fields and to u; from a zero state.

    Derived: with g the cotangent, h_t = conj(C)^T g_t + conj(Lambda) h_{t+1} runs back over time, and Lambda gets
    sum_t h_t conj(x_{t-1}), B sum_t h_t u_t^T, C sum_t g_t conj(x_t)^T, u Re(conj(B)^T h_t) + D g_t. The gradient of a
    complex number z is d/dRe(z) + i d/dIm(z). It is an oracle because no automatic differentiation and no scan of
    the backends is in it: two plain loops in float64, which finite differences confirm. States are kept at the ends of
    chunks of sqrt(length) steps and computed again inside, so memory grows with the root of the length.
    """
    y, dLambda, dB, dC, du = _adjoint(system, system.C, u, cotangent)
    dC_reverse = None
    if system.C_reverse is not None:
        ends = np.full(len(u), u.shape[1]) if lengths is None else np.asarray(lengths)
        inside = (np.arange(u.shape[1])[None, :] < ends[:, None])[..., None]
        found = _adjoint(system, system.C_reverse, np.where(inside, u, 0)[:, ::-1], cotangent[:, ::-1])
        dLambda, dB, dC_reverse = dLambda + found[1], dB + found[2], found[3]
        y, du = y + found[0][:, ::-1], du + np.where(inside, found[4][:, ::-1], 0)
    fields = DiagonalSystem(dLambda, dB, dC, np.sum(cotangent * u, (0, 1)), dC_reverse)
    return y + system.D * u, fields, du + system.D * cotangent


def _adjoint(system: DiagonalSystem, C: np.ndarray, u: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, ...]:
    """Re(C x), and the gradients of sum(g * Re(C x)): Lambda's, B's, C's, u's."""
    batch, length, h = u.shape
    chunk = isqrt(length)
    pieces = [slice(t, t + chunk) for t in range(0, length, chunk)]
    y, du = np.empty_like(u), np.empty_like(u)
    x, starts = zero_state(system, batch), []
    for piece in pieces:
        starts.append(x)
        states = scan(system, u[:, piece], x)
        y[:, piece] = output(system, C, states)
        x = states[:, -1].copy()  # a view would keep all states of the piece

    single = system.Lambda.ndim == 1
    conj_Lambda, conj_C = system.Lambda.conj(), C.conj()
    dLambda, dB, dC = np.zeros_like(conj_Lambda), np.zeros_like(system.B), np.zeros_like(conj_C)
    later = zero_state(system, batch)
    for piece, start in zip(reversed(pieces), reversed(starts), strict=True):
        u_, g_, states = u[:, piece], g[:, piece], scan(system, u[:, piece], start)
        steps = states.shape[1]
        adjoint = (g_ @ parts(conj_C)).view(np.complex128) if single else conj_C * g_[..., None]
        for t in reversed(range(steps)):
            adjoint[:, t] += conj_Lambda * later
            later = adjoint[:, t]
        before = np.concatenate([start[:, None], states[:, :-1]], 1)
        if single:
            dLambda += np.einsum("btn,btn->n", adjoint, before.conj())
            dB += (u_.reshape(-1, h).T @ parts(adjoint).reshape(batch * steps, -1)).view(np.complex128).T
            dC += (g_.reshape(-1, h).T @ parts(states).reshape(batch * steps, -1)).view(np.complex128).conj()
            du[:, piece] = parts(adjoint) @ parts(system.B.T).T
        else:
            dLambda += np.einsum("bthn,bthn->hn", adjoint, before.conj())
            dB += np.einsum("bthn,bth->hn", adjoint, u_)
            dC += np.einsum("bthn,bth->hn", states, g_).conj()
            du[:, piece] = np.einsum("bthn,hn->bth", adjoint, system.B.conj()).real
    return y, dLambda, dB, dC, du


def round_to(params: Params, dtype: str) -> dict[str, np.ndarray]:
    """The parameters as a computation in `dtype` holds them, in float64."""
    return {name: np.asarray(value, result_dtype(dtype)).astype(np.float64) for name, value in params.items()}


def round_input(u: np.ndarray, dtype: str) -> np.ndarray:
    """u as `dtype` holds it, in float64. bfloat16 is the upper half of float32, rounded to even."""
    held = np.asarray(u, result_dtype(dtype))
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(held).view(np.uint32)
        held = ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return held.astype(np.float64)


def result_dtype(dtype: str) -> str:
    """What parameters and results are in: numpy has no bfloat16, and parameters are never in it."""
    return "float32" if dtype == "bfloat16" else dtype

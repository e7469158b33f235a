"""The oracle: every diagonal layer as a plain loop over time in numpy float64. Slow, and obviously right."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import linalg

from bench.contract import Array, DiagonalLayer, DiagonalSystem, Params


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


def step(system: DiagonalSystem, x: np.ndarray, u: np.ndarray) -> np.ndarray:
    """x_t from x_{t-1}, (batch, *Lambda.shape), and u_t, (batch, d_model)."""
    if system.Lambda.ndim == 1:
        return system.Lambda * x + u @ system.B.T
    return system.Lambda * x + system.B * u[:, :, None]


def output(system: DiagonalSystem, C: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Re(C x), (..., d_model), from states x, (..., *Lambda.shape); C is the system's C or its C_reverse."""
    if system.Lambda.ndim == 1:
        return (x @ C.T).real
    return np.sum(C * x, axis=-1).real


def scan(system: DiagonalSystem, u: np.ndarray, x: np.ndarray) -> np.ndarray:
    """All states, (batch, length, *Lambda.shape), from u, (batch, length, d_model), and the state x before them."""
    states = np.empty((u.shape[0], u.shape[1], *system.Lambda.shape), np.complex128)
    for t in range(u.shape[1]):
        x = step(system, x, u[:, t])
        states[:, t] = x
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
    params, u = round_to(params, dtype), np.asarray(u, dtype).astype(np.float64)
    s = system(layer, params)
    y = output(s, s.C, scan(s, u, zero_state(s, len(u)))) + s.D * u
    if lengths is not None:
        u = np.where(np.arange(u.shape[1])[None, :, None] < np.asarray(lengths)[:, None, None], u, 0)
    assert s.C_reverse is not None
    backward = scan(s, u[:, ::-1], zero_state(s, len(u)))[:, ::-1]
    return (y + output(s, s.C_reverse, backward)).astype(dtype)


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
    params, u = round_to(params, dtype), np.asarray(u, dtype).astype(np.float64)
    s = system(layer, params)
    x = scan(s, u, zero_state(s, len(u)) if state is None else np.asarray(state, np.complex128))
    return (output(s, s.C, x) + s.D * u).astype(dtype), x[:, -1]


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
    params, u = round_to(params, dtype), np.asarray(u, dtype).astype(np.float64)
    s = system(layer, params)
    x = scan(s, u, zero_state(s, len(u)) if state is None else np.asarray(state, np.complex128))
    x = x if coordinates == "diagonal" else layer.coordinates(params, x, ops)
    return x.astype(np.result_type(dtype, np.complex64) if np.iscomplexobj(x) else dtype)


def decoder(
    layer: DiagonalLayer, params: Params, *, dtype: str = "float64", device: str = "cpu"
) -> Callable[[np.ndarray, np.ndarray | None], tuple[np.ndarray, np.ndarray]]:
    """A function (u_t, state) -> (y_t, state) for u_t (batch, d_model)."""
    s = system(layer, round_to(params, dtype))

    def decode(u: np.ndarray, state: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        u = np.asarray(u, dtype).astype(np.float64)
        x = step(s, zero_state(s, len(u)) if state is None else np.asarray(state, np.complex128), u)
        return (output(s, s.C, x) + s.D * u).astype(dtype), x

    return decode


def round_to(params: Params, dtype: str) -> dict[str, np.ndarray]:
    """The parameters as `dtype` holds them, in float64."""
    return {name: np.asarray(value, dtype).astype(np.float64) for name, value in params.items()}

"""Norms of hidden states as pure functions on arrays: energies (examples, length, heads) are squared norms."""

from __future__ import annotations

import numpy as np

from bench.contract import DiagonalSystem


def inside(lengths: np.ndarray, length: int) -> np.ndarray:
    """Which positions lie before each example's end, (examples, length)."""
    return np.arange(length)[None, :] < lengths[:, None]


def doubling_times(length: int) -> list[int]:
    """t = 1, 2, 4, ... and the length, counted from 1."""
    times = [2**k for k in range(length.bit_length()) if 2**k <= length]
    return times if times[-1] == length else [*times, length]


def rms_per_real(squares: np.ndarray, state_reals: int) -> float:
    """sqrt of the mean of sum |x|^2 / state_reals over all states, whose squared norms are given."""
    return float(np.sqrt(squares.mean() / state_reals))


def mean_norm(energies: np.ndarray, valid: np.ndarray) -> float:
    """Plain mean over valid positions, examples and heads of the Euclidean norm (of a head, where there are heads)."""
    return float(np.sqrt(energies.astype(np.float64))[valid].mean())


def drift(rms: np.ndarray) -> np.ndarray:
    """log2 of the rms norm against the first evaluation, (evaluations,)."""
    return np.log2(rms / rms[0])


def largest(values: np.ndarray) -> float:
    """The value of the largest size, with its sign."""
    return float(values[np.argmax(np.abs(values))])


def settling_step(steps: np.ndarray, rms: np.ndarray, tolerance: float = 0.1) -> int | None:
    """The first evaluation from which rms stays within `tolerance` of its last value; None if only the last does."""
    far = np.flatnonzero(np.abs(rms - rms[-1]) > tolerance * rms[-1])
    first = far[-1] + 1 if len(far) else 0
    return int(steps[first]) if first < len(rms) - 1 else None


def white_noise_energy(system: DiagonalSystem, times: list[int]) -> np.ndarray:
    """E|x_t|^2, summed over the state, under white real input of unit variance from a zero state, (times,).

    Derived: E|x_{t,j}|^2 = |b_j|^2 (1 - |lambda_j|^{2 t}) / (1 - |lambda_j|^2), |b_j|^2 summed over the inputs.
    """
    b = np.abs(system.B) ** 2
    b = b.sum(-1) if system.Lambda.ndim == 1 else b
    log_modulus = np.log(np.abs(system.Lambda))
    t = np.asarray(times, float).reshape(-1, *[1] * log_modulus.ndim)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        sums = np.where(log_modulus == 0, t, np.expm1(2 * t * log_modulus) / np.expm1(2 * log_modulus))
    return (b * sums).reshape(len(times), -1).sum(-1)

"""Norms of hidden states as pure functions on arrays: energies (examples, length, heads) are squared norms."""

from __future__ import annotations

import numpy as np


def inside(lengths: np.ndarray, length: int) -> np.ndarray:
    """Which positions lie before each example's end, (examples, length)."""
    return np.arange(length)[None, :] < lengths[:, None]


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

"""Continuous-time state spaces: the HiPPO-N matrix and how a diagonal system is discretised. Imports no framework."""

from __future__ import annotations

from typing import Literal

import numpy as np

from bench.contract import Array, Ops

Discretization = Literal["zoh", "bilinear"]


def hippo_normal(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues (n,), ascending imaginary part, and unitary eigenvectors (n, n) of the HiPPO-N matrix.

    HiPPO-N is the normal part of HiPPO-LegS: A + p p^T with p_i = sqrt(i + 1/2), that is -1/2 plus a skew-symmetric
    matrix, so every real part is exactly -1/2 (Gu et al. 2022, arXiv 2206.11893; Smith et al. 2023, 2208.04933).
    An eigenvector's phase is free; here its first component is real and positive, on every machine.
    """
    scale = np.sqrt(2 * np.arange(n) + 1)
    skew = np.tril(np.outer(scale, scale), -1) / 2
    imaginary, vectors = np.linalg.eigh(-1j * (skew.T - skew))
    return -0.5 + 1j * imaginary, vectors * (np.abs(vectors[0]) / vectors[0])


def hippo_input(n: int) -> np.ndarray:
    """The input vector of HiPPO-LegS, B_i = sqrt(2 i + 1), shape (n,)."""
    return np.sqrt(2 * np.arange(n) + 1)


def discretize(rate: Array, step: Array, method: Discretization, ops: Ops) -> tuple[Array, Array]:
    """Lambda and the factor on B of a continuous diagonal system x' = rate x + B u sampled every `step`.

    Zero-order hold: exp(rate step) and (exp(rate step) - 1) / rate. Bilinear: (1 + z) / (1 - z) and step / (1 - z),
    z = rate step / 2. `rate` is complex, `step` real; they broadcast.
    """
    if method == "zoh":
        z = rate * step
        return ops.exp(z), ops.expm1(z) / rate  # exp(z) - 1 would lose all digits at small steps
    half = rate * step / 2
    return (1 + half) / (1 - half), step / (1 - half)

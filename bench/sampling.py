"""Random draws for initialisation, in float64 from a numpy Generator."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr, ndtri


def open_uniform(rng: np.random.Generator, shape: int | tuple[int, ...], low: float = 0.0, high: float = 1.0):
    """Uniform on the open interval (low, high): never an end point, so that a logarithm of it is finite."""
    drawn = low + (high - low) * (rng.integers(0, 2**52, shape) + 0.5) / 2**52
    return np.clip(drawn, np.nextafter(low, high), np.nextafter(high, low))  # where the sum is rounded to an end


def normal(rng: np.random.Generator, shape: tuple[int, ...], variance: float = 1.0) -> np.ndarray:
    """Gaussian with mean 0."""
    return np.sqrt(variance) * rng.standard_normal(shape)


def truncated_normal(rng: np.random.Generator, shape: tuple[int, ...], variance: float = 1.0) -> np.ndarray:
    """Gaussian cut at two standard deviations and rescaled to the variance, as flax's `lecun_normal` draws it."""
    inside = ndtr(2) - ndtr(-2)
    cut_variance = 1 - 4 * np.exp(-2) / np.sqrt(2 * np.pi) / inside  # 1 - 2 * 2 phi(2) / (Phi(2) - Phi(-2))
    return np.sqrt(variance / cut_variance) * ndtri(ndtr(-2) + inside * open_uniform(rng, shape))

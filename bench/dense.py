"""Recurrences with a dense Gaussian matrix, whose energy at finite width is known: what suites ask of such layers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from bench.contract import Array, Layer
from bench.sampling import normal

Activation = Literal["linear", "relu", "leaky-relu"]

SLOPE = 0.5
"""Of the leaky rectifier below 0."""

GAINS: dict[Activation, float] = {"linear": 1.0, "relu": 2**0.5, "leaky-relu": (2 / (1 + SLOPE**2)) ** 0.5}
"""What keeps the energy of an infinitely wide recurrence where it is, for entries of variance gain^2 / n."""


def activated(activation: Activation, x: Array, maximum: Callable[[Array, Array], Array]) -> Array:
    """The activation in any framework, of which `maximum` is the elementwise maximum of two arrays."""
    if activation == "linear":
        return x
    return maximum(x, 0 * x if activation == "relu" else SLOPE * x)


@dataclass(frozen=True, kw_only=True)
class GaussianRecurrence(Layer):
    """h_t = phi(W h_{t-1}) + v_t with a W of the width n = d_model, its entries independent, of variance gain^2 / n.

    `ensemble`: complex entries, whose two parts have half of the variance each, or real ones.
    """

    ensemble: Literal["complex", "real"] = "complex"

    driven: ClassVar[bool]
    """Whether v_t is the input at every t, or at the first alone and then 0."""

    @property
    def phi(self) -> Activation:
        return "linear"

    @property
    @abstractmethod
    def fresh(self) -> bool:
        """Whether each step has a matrix of its own."""

    def draw(self, rng: np.random.Generator, *shape: int) -> np.ndarray:
        """Independent entries of W, of any shape, float64 or complex128."""
        variance = GAINS[self.phi] ** 2 / self.d_model
        if self.ensemble == "real":
            return normal(rng, shape, variance)
        return normal(rng, (*shape, 2), variance / 2).view(np.complex128)[..., 0]

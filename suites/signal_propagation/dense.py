"""Dense recurrences: what theory says of their energy, and the record of a Monte-Carlo estimate beside it."""

from __future__ import annotations

import numpy as np

from bench.dense import GaussianRecurrence
from bench.measurement import Measurement
from suites.signal_propagation import theory
from suites.signal_propagation.monte_carlo import Estimate, energies

UNKNOWN = "no exact value is known for these weights and this length"


def expected(layer: GaussianRecurrence, times: list[int]) -> list[float | None]:
    """The exact energy ||h_t||^2 / n at each time, t counted from 0; None where none is known."""
    if layer.fresh and not layer.driven:
        return [1.0] * len(times)
    if layer.fresh or layer.phi != "linear":
        return [1.0 if t <= 1 else None for t in times]
    recurrence = recurrence_of(layer)
    if layer.ensemble == "complex":
        found = np.exp(theory.log_energies(layer.d_model, max(times), recurrence))
        return [float(found[t]) for t in times]
    return [_real(layer.d_model, t, recurrence) for t in times]


def recurrence_of(layer: GaussianRecurrence) -> theory.Recurrence:
    return "lru" if layer.driven else "rnn"


def grid(n: int, c: float, points: int, t: int | None) -> list[int]:
    """t = round(c sqrt(n)) on an even grid from 0 to c, or from 0 to t."""
    last = c * np.sqrt(n) if t is None else t
    return sorted({round(x) for x in np.linspace(0, last, points)})


def measure(cell: Measurement, layer: GaussianRecurrence, times: list[int], samples: int) -> None:
    """Records the estimated energy at each time, in energies of an input, its error, and what theory says."""
    cell.fact(recurrence=recurrence_of(layer), fresh=layer.fresh, linear=layer.phi == "linear", ensemble=layer.ensemble)
    rng = cell.generator("dense recurrence", cell.cell.model, layer.d_model)
    found = Estimate.of(energies(layer, times, samples, rng, cell.cell.backend, cell.cell.dtype, cell.device))
    for i, (t, exact) in enumerate(zip(times, expected(layer, times), strict=True)):
        cell.record("energy", found.mean[i], "of an input", t=t)
        cell.record("energy_error", found.error[i], "of an input", t=t)
        cell.record("energy_median_of_means", found.median_of_means[i], "of an input", t=t)
        cell.record("effective_samples", found.effective[i], "samples", t=t)
        cell.record("energy_expected", exact, "of an input", t=t, message=None if exact is not None else UNKNOWN)


def _real(n: int, t: int, recurrence: theory.Recurrence) -> float | None:
    if t >= len(theory.REAL_POLYNOMIALS):
        return None
    return float(sum(theory.energy_real(n, k) for k in range(0 if recurrence == "lru" else t, t + 1)))

"""Energies of sampled dense recurrences: drawn in numpy, run on a backend, each sample with a matrix of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bench.backends import reference
from bench.contract import Array
from bench.dense import GaussianRecurrence, activated

AT_ONCE = 2**24
"""Numbers of W, or of the states, that are drawn together: 2 x 128 MiB in complex128."""
GROUPS = 20
"""Groups of the median of means."""
JUDGED_FROM = 300
"""Effective samples from which a z-score is judged: fewer have not seen the tail that carries the mean."""


class Estimate(NamedTuple):
    """What samples of an energy say about its mean; arrays over the times, (times,)."""

    mean: np.ndarray
    error: np.ndarray
    """Standard error of the mean; 0 where all samples agree."""
    effective: np.ndarray
    """(sum e)^2 / sum e^2."""
    median_of_means: np.ndarray

    @classmethod
    def of(cls, energies: np.ndarray) -> Estimate:
        """From (samples, times), samples >= 2."""
        e = np.asarray(energies, np.float64)
        groups = np.array_split(e, min(GROUPS, len(e)))
        top = e.max(0)  # squares of energies may not fit where energies do
        with np.errstate(invalid="ignore"):  # where one is infinite there is no mean
            share = e / np.where(top > 0, top, 1)
        return cls(
            mean=top * share.mean(0),
            error=top * share.std(0, ddof=1) / np.sqrt(len(e)),
            effective=share.sum(0) ** 2 / (share**2).sum(0),
            median_of_means=np.median([group.mean(0) for group in groups], axis=0),
        )


def energies(
    layer: GaussianRecurrence, times: list[int], samples: int, rng: np.random.Generator, backend: str = "reference",
    dtype: str = "float64", device: str = "cpu",
) -> np.ndarray:  # fmt: skip
    """||h_t||^2 / n of independent samples, (samples, times), t counted from 0: h_0 is the first input.

    Inputs are isotropic with squared norm n: a fresh one at each step where the layer is driven, else one. For a fresh
    W, W h has the law of ||h|| g, where g is one column of W: with a matrix for each step g is what is drawn.
    """
    run, length = _runner(backend, dtype, device), max(times) + 1
    found = []
    for count in _chunks(samples, layer.d_model * (length if layer.fresh else layer.d_model)):
        if layer.fresh:
            W = layer.draw(rng, count, length, layer.d_model)
            v = isotropic(layer, rng, count)
        else:
            W = layer.draw(rng, count, layer.d_model, layer.d_model)
            v = isotropic(layer, rng, count, length if layer.driven else 1)
            v = np.pad(v, ((0, 0), (0, length - v.shape[1]), (0, 0)))
        found.append(run(layer, W, v, times))
    return np.concatenate(found) / layer.d_model


def isotropic(layer: GaussianRecurrence, rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Directions without preference, of squared norm n, (*shape, n), complex or real as the layer's matrix."""
    n = layer.d_model
    g = rng.standard_normal((*shape, n if layer.ensemble == "real" else 2 * n))
    g *= np.sqrt(n) / np.linalg.norm(g, axis=-1, keepdims=True)
    return g if layer.ensemble == "real" else g.view(np.complex128)


def fresh_energies(layer: GaussianRecurrence, g: Array, h: Array, ops: Any) -> Iterator[Array]:
    """||h_t||^2 for t = 0, 1, ..: h_{t+1} = phi(||h_t|| g_t), g (samples, length, n), h (samples, n).

    phi is homogeneous, so only norms have to be carried on. `ops` is numpy, torch or jax.numpy.
    """
    squared = (abs(h) ** 2).sum(-1)
    for t in range(g.shape[1]):
        yield squared
        squared = squared * (abs(activated(layer.phi, g[:, t], ops.maximum)) ** 2).sum(-1)


def _chunks(samples: int, numbers: int) -> Iterator[int]:
    """Counts of samples that are drawn together, where one has so many numbers."""
    size = max(1, AT_ONCE // numbers)
    while samples > 0:
        yield min(size, samples)
        samples -= size


Runner = Callable[[GaussianRecurrence, np.ndarray, np.ndarray, list[int]], np.ndarray]
"""From W or g, v or the start, and times to ||h_t||^2 at the times, (samples, times)."""


def _runner(backend: str, dtype: str, device: str) -> Runner:
    run = {"reference": _reference, "torch": _torch, "jax": _jax}[backend](dtype, device)
    narrow = np.dtype(dtype)

    def rounded(x: np.ndarray) -> np.ndarray:
        return x.astype(np.result_type(narrow, np.complex64) if np.iscomplexobj(x) else narrow)

    return lambda layer, W, v, times: run(layer, rounded(W), rounded(v), times).astype(np.float64)


def _reference(dtype: str, device: str) -> Runner:
    return lambda layer, W, v, times: _energies(layer, W, v, times, np, reference.dense_states)


def _torch(dtype: str, device: str) -> Runner:
    import torch

    from bench.backends.torch import dense_states
    from bench.backends.torch.device import find, get, put

    @torch.no_grad()
    def run(layer: GaussianRecurrence, W: np.ndarray, v: np.ndarray, times: list[int]) -> np.ndarray:
        W_, v_ = (put(x, find(device)) for x in (W, v))
        return get(_energies(layer, W_, v_, times, torch, dense_states))

    return run


def _jax(dtype: str, device: str) -> Runner:
    import jax
    import jax.numpy as jnp

    from bench.backends.jax import dense_states
    from bench.backends.jax.device import computing, find, get, put

    where = find(device)
    compiled = jax.jit(
        lambda layer, W, v, times: _energies(layer, W, v, times, jnp, dense_states), static_argnums=(0, 3)
    )

    def run(layer: GaussianRecurrence, W: np.ndarray, v: np.ndarray, times: list[int]) -> np.ndarray:
        with computing(dtype, where):
            return get(compiled(layer, put(W, where), put(v, where), tuple(times)))

    return run


def _energies(layer: GaussianRecurrence, W: Array, v: Array, times: Sequence[int], ops: Any, states: Callable) -> Array:
    """In any framework: `ops` is numpy, torch or jax.numpy."""
    if layer.fresh:
        found = list(fresh_energies(layer, W, v, ops))
        return ops.stack([found[t] for t in times], 1)
    return (abs(states(W, v, layer.phi)[:, list(times)]) ** 2).sum(-1)

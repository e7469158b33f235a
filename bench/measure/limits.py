"""What the machine can do at best, measured in the same process: floating-point rates and memory bandwidth."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from bench import backends
from bench.measure import timing
from bench.measure.cost import WIDE, Cost

BUDGET_S = 0.2
"""Seconds for each call that is timed."""

ROWS = {"cpu": (256, 1024), "cuda": (4096, 8192)}
"""Of square matrices: on a CPU some kernels are fastest where all is in its cache, others where there is more work."""

COPIED = {"cpu": 2**27, "cuda": 2**30}
"""Bytes that are read, and written, in a copy far beyond any cache."""

LEAST_COPIED = 2**16
"""Of less a copy is mostly its call."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """Operations a second in matrix products, `products` in the dtype of u and y, `others` in that of the states;
    `bandwidth`, bytes a second in copies from memory."""

    products: float
    others: float
    bandwidth: float


@functools.cache
def of(backend: str, dtype: str, device: str) -> Limits:
    """The limits of a device as a backend reaches them: the fastest of several calls, once a process.

    Where products in a wider dtype are faster than those in `dtype`, as many processors do bfloat16 in software, their
    rate is the limit of both: nothing forbids to compute in more digits.
    """
    others = _products(backend, WIDE.get(dtype, dtype), device)
    products = _products(backend, dtype, device, worthwhile=others / 2) if dtype in WIDE else others
    return Limits(max(products, others), others, _copies(backend, device, COPIED[_kind(device)]))


def least_seconds(cost: Cost, backend: str, dtype: str, device: str) -> float:
    """The least time that a call's operations and its traffic would take at the rates reached here.

    What is moved may lie in a cache, so the faster of two copies counts: one far beyond any, and one of as many bytes
    as are moved, or held where that is less.
    """
    reached = of(backend, dtype, device)
    bandwidth = max(reached.bandwidth, cached_bandwidth(backend, device, min(cost.moved, cost.held)))
    computing = cost.products / reached.products + (cost.flops - cost.products) / reached.others
    return max(computing, cost.moved / bandwidth)


def cached_bandwidth(backend: str, device: str, size: float) -> float:
    """Bytes a second in a copy that reads and writes `size` bytes together, rounded down to a power of two."""
    half = 2 ** max(0, int(size).bit_length() - 2)
    return _copies(backend, device, min(max(half, LEAST_COPIED), COPIED[_kind(device)]))


@functools.cache
def _products(backend: str, dtype: str, device: str, worthwhile: float = 0.0) -> float:
    """The fastest over sizes, which grow: no further than one that is slower than `worthwhile`."""
    best = 0.0
    for rows in ROWS[_kind(device)]:
        best = max(best, _rate(backends.load(backend).matrix_product(dtype, device, rows)))
        if best < worthwhile:
            break
    return best


@functools.cache
def _copies(backend: str, device: str, size: int) -> float:
    return _rate(backends.load(backend).memory_copy(device, size))


def _rate(work: tuple[Any, float]) -> float:
    call, amount = work
    return amount / float(timing.take(call, width=1e-6, budget_s=BUDGET_S).samples.min())


def _kind(device: str) -> str:
    return device.partition(":")[0]

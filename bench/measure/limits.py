"""What the machine can do at best, measured in the same process: floating-point rate and memory bandwidth."""

from __future__ import annotations

import dataclasses
import functools

from bench import backends
from bench.measure import timing

BUDGET_S = 0.4
"""Seconds for each of the two limits."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """Floating-point operations a second, in matrix products; bytes a second, in copies."""

    flops: float
    bandwidth: float


@functools.cache
def of(backend: str, dtype: str, device: str) -> Limits:
    """The limits of a device as a backend reaches them: the fastest of several calls, once a process."""
    package = backends.load(backend)
    reached = []
    for call, amount in (package.matrix_product(dtype, device), package.memory_copy(device)):
        found = timing.take(call, width=1e-6, budget_s=BUDGET_S)
        reached.append(amount / float(found.samples.min()))
    return Limits(*reached)

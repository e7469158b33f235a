"""Time of a repeated call: steady state, the interval of the median, and when enough has been measured."""

from __future__ import annotations

import dataclasses
import gc
import math
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
from scipy.special import bdtr

SAMPLE_S = 1e-3
"""A sample lasts at least this long: shorter calls are repeated inside it, so that the clock's own cost is nothing."""

FEWEST = 6
"""Of fewer samples no two bound the median with 95 % confidence: 1 - 2 (1/2)^6 = 0.969."""

MOST = 20_000
"""Samples at most: what more of them could tell is below any machine's noise."""


class Call(Protocol):
    """Work that can be repeated. `launch` may return before it is done; after `wait` all its outputs are there.

    `device_clock` starts the device's own clock, where it has one: what it gives is called for the seconds since, when
    all is done. Elsewhere it gives None.
    """

    def launch(self) -> None: ...
    def wait(self) -> None: ...
    def device_clock(self) -> Callable[[], float] | None: ...


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds of one call, sample by sample in the order in which they were taken, (samples,).

    `first` is the first call of all; `steady` the index of the first sample that counts; `calls` how many calls a
    sample holds; `device` the same samples by the device's clock, or None; `half_width` half the 95 % interval of the
    steady samples' median over that median; `converged` whether it is as narrow as was asked.
    """

    first: float
    samples: np.ndarray
    steady: int
    calls: int
    device: np.ndarray | None
    half_width: float
    converged: bool

    @property
    def median(self) -> float:
        return float(np.median(self.samples[self.steady :]))


def take(call: Call, *, width: float, budget_s: float, clock: Callable[[], float] = time.perf_counter) -> Timing:
    """Times a call until the interval of its median is within `width` of it, or `budget_s` seconds are spent.

    Everything that is compiled at the first call is paid there. At least `FEWEST` steady samples are taken whatever
    they cost. Python's garbage collector rests meanwhile.
    """
    started = clock()
    call.launch()
    call.wait()
    first = clock() - started
    probe = _sample(call, 1, clock)[0]
    calls = max(1, math.ceil(SAMPLE_S / max(probe, 1e-9)))
    samples: list[float] = []
    device: list[float] = []
    judge_at, half_width, steady = FEWEST, math.inf, 0
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        began = clock()
        while len(samples) < MOST:
            seconds, on_device = _sample(call, calls, clock)
            samples.append(seconds)
            if on_device is not None:
                device.append(on_device)
            spent = clock() - began >= budget_s
            if len(samples) < judge_at and not (spent and len(samples) >= FEWEST):
                continue
            judge_at = math.ceil(len(samples) * 1.1) + 1  # judged at growing distances: it costs, and it is a bet
            found = np.array(samples)
            steady = steady_from(found)
            half_width = relative_half_width(found[steady:])
            if half_width <= width or (spent and len(found) - steady >= FEWEST):
                break
    finally:
        if collecting:
            gc.enable()
    return Timing(
        first=first,
        samples=np.array(samples),
        steady=steady,
        calls=calls,
        device=np.array(device) if device else None,
        half_width=half_width,
        converged=half_width <= width,
    )


def _sample(call: Call, calls: int, clock: Callable[[], float]) -> tuple[float, float | None]:
    """Seconds of one call, the mean of `calls` of them, each waited for: by the host's clock and by the device's."""
    on_device = call.device_clock()
    started = clock()
    for _ in range(calls):
        call.launch()
        call.wait()
    seconds = (clock() - started) / calls
    return seconds, None if on_device is None else on_device() / calls


def median_interval(samples: np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """Two order statistics that bound the median, whatever the distribution; infinite where too few samples are there.

    The number of samples below the median is binomial, so (x_(j), x_(n+1-j)) holds it with probability
    1 - 2 P(B(n, 1/2) < j) (e.g. David and Nagaraja, Order Statistics, 7.1).
    """
    n = len(samples)
    below = bdtr(np.arange(n // 2 + 1), n, 0.5) if n else np.array([])
    j = int((below <= (1 - confidence) / 2).sum())
    if j == 0:
        return -math.inf, math.inf
    ordered = np.sort(samples)
    return float(ordered[j - 1]), float(ordered[n - j])


def relative_half_width(samples: np.ndarray) -> float:
    """Half the 95 % interval of the median over the median; infinite where there is none."""
    low, high = median_interval(samples)
    return (high - low) / 2 / float(np.median(samples)) if math.isfinite(high) else math.inf


def steady_from(samples: np.ndarray) -> int:
    """The index from which samples look like the last half of them; at most half of them are left out.

    A start counts as unsteady while the median of `FEWEST` samples lies further from that of the last half than three
    of its (robust) standard deviations, and than 2 %, which no reader would call a trend.
    """
    n = len(samples)
    last = samples[n // 2 :]
    centre = float(np.median(last))
    allowed = max(3 * 1.4826 * float(np.median(np.abs(last - centre))), 0.02 * centre)
    for start in range(n // 2):
        if abs(float(np.median(samples[start : start + FEWEST])) - centre) <= allowed:
            return start
    return n // 2

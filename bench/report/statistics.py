"""Pure functions on arrays of numbers: nothing here knows what they mean or how they are drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import ndtri

BARS = "▁▂▃▄▅▆▇█"


def spread(values: Sequence[float] | np.ndarray) -> float | None:
    """Standard deviation over seeds, (n - 1 in the denominator); one seed has none."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def wilson(failures: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a failure rate (Wilson 1927, JASA 22, 209)."""
    if trials < 1 or not 0 <= failures <= trials:
        raise ValueError(f"{failures} failures in {trials} trials")
    rate, z = failures / trials, ndtri(0.5 + confidence / 2)
    centre = rate + z**2 / (2 * trials)
    half = z * np.sqrt(rate * (1 - rate) / trials + z**2 / (4 * trials**2))
    low, high = (centre - half) / (1 + z**2 / trials), (centre + half) / (1 + z**2 / trials)
    return 0.0 if failures == 0 else float(low), 1.0 if failures == trials else float(high)


def sparkline(values: Sequence[float] | np.ndarray, low: float, high: float) -> str:
    """One bar a value, from `low` to `high`; a dot for a value that is not finite."""
    span = high - low
    bars = []
    for value in values:
        if not np.isfinite(value):
            bars.append("·")
        else:
            share = (value - low) / span if span > 0 else 0.5
            bars.append(BARS[int(np.clip(share * len(BARS), 0, len(BARS) - 1))])
    return "".join(bars)

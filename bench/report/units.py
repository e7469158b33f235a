"""Numbers with units as a reader wants them."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10

TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
BYTES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def time_unit(seconds: Sequence[float]) -> tuple[float, str]:
    """The largest of s, ms, µs in which the smallest of the times is at least 1: all of a column in one unit."""
    smallest = min(seconds, default=1.0)
    return next((unit for unit in TIMES if smallest >= unit[0]), TIMES[-1])


def byte_unit(sizes: Sequence[float]) -> tuple[float, str]:
    """The same for GiB, MiB, KiB, by the largest."""
    largest = max(sizes, default=1.0)
    return next((unit for unit in BYTES if largest >= 2 * unit[0]), BYTES[-1])


def figure(value: float | None, digits: int = 3) -> str:
    """Three significant digits without an exponent, thousands apart; a dash for what was not measured."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    after = max(0, digits - 1 - floor(log10(abs(value))))
    return f"{value:,.{after}f}"

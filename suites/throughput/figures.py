"""The figures of the suite `throughput`, computed from its rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from bench.report.cells import legend, lost, seeds_left
from bench.report.figures import Figure, Panel, Series
from bench.report.statistics import interval
from bench.report.units import time_unit
from suites.throughput.report import Timed, curves, slope

CAPTION = (
    "median over processes of their medians, bars: 95 % bootstrap over processes and repeats; slope: of log(time / "
    "batch) over log(length)"
)
UNCONVERGED = "*: of a time whose interval inside a process was still wider than asked"


def figures(results: pd.DataFrame) -> list[Figure]:
    """Time over length, a panel a mode, where there are two lengths to compare."""
    groups = list(Timed.of(results))
    names = {id(group): name for group, name in zip(groups, legend(groups, ("mode", "length")), strict=True)}
    modes: dict[str, list[list[Timed]]] = {}
    for _, curve in curves([group for group in groups if group.processes]):
        modes.setdefault(curve[0].key["mode"], []).append(curve)
    if not modes:
        return []
    panels = [_over_length(mode, found, groups, names) for mode, found in modes.items()]
    starred = any("*" in one.note for panel in panels for one in panel.series)
    caption = f"{CAPTION}; {UNCONVERGED}" if starred else CAPTION
    return [Figure("time-over-length", "Time over length", panels, caption)]


def _over_length(mode: str, found: Sequence[list[Timed]], groups: Sequence[Timed], names: dict[int, str]) -> Panel:
    """Times of a call; of a sequence where the batch shrinks as the length grows."""
    each = any(group.key.get("tokens") for curve in found for group in curve)
    per = {id(group): (group.batch or 1) if each else 1 for curve in found for group in curve}
    scale, unit = time_unit([group.seconds / per[id(group)] for curve in found for group in curve])
    series = []
    for curve in found:
        name = names[id(curve[0])]
        y = [group.seconds / per[id(group)] / scale for group in curve]
        bounds = np.array([interval(group.resampled / per[id(group)] / scale) for group in curve])
        exponent, _, mark = slope(curve)
        alike = [group for group in groups if names[id(group)] == name and group.key["mode"] == mode]
        said = [f"slope {exponent}{mark}", *(seeds_left(group.ok, group.planned) for group in curve), *lost(alike)]
        note = ", ".join(text for text in dict.fromkeys(said) if text)
        x = [group.key["length"] for group in curve]
        series.append(Series(name, x, y, bounds[:, 0], bounds[:, 1], "joined", note=note))
    label = f"time of a sequence [{unit}]" if each else f"time [{unit}]"
    return Panel(mode, "length", label, series, log_x=True, log_y=True)

"""The figures of the suite `memory`, computed from its rows."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from bench.report.cells import legend, lost, seeds_left
from bench.report.figures import Figure, Panel, Series
from bench.report.statistics import exponent
from bench.report.units import byte_unit
from suites.memory.report import FIGURES, Held, by_source, curves

CAPTION = (
    "above what the process held before weights and inputs were made, at the worst moment of one call; slope: of "
    "log(memory) over log(length)"
)


def figures(results: pd.DataFrame) -> list[Figure]:
    """Memory over length, a panel a mode: of each cell the figure that the report compares others with."""
    groups = list(Held.of(results))
    names = {id(group): name for group, name in zip(groups, legend(groups, ("mode", "length")), strict=True)}
    modes: dict[str, list[tuple[str, list[Held]]]] = {}
    for curve in curves([group for group in groups if group.ok], "length"):
        for source, found in by_source(curve):
            if len({group.column("length") for group in found}) > 1:
                modes.setdefault(curve[0].key["mode"], []).append((source, found))
    if not modes:
        return []
    panels = [_over_length(mode, found, groups, names) for mode, found in modes.items()]
    return [Figure("memory-over-length", "Memory over length", panels, CAPTION)]


def _over_length(
    mode: str, found: Sequence[tuple[str, list[Held]]], groups: Sequence[Held], names: dict[int, str]
) -> Panel:
    sources = dict.fromkeys(source for source, _ in found)
    scale, unit = byte_unit([peak for _, curve in found for group in curve if (peak := group.measured)])
    series = []
    for source, cells in found:
        name = names[id(cells[0])]
        curve = sorted(cells, key=lambda group: group.column("length"))
        x = [group.column("length") for group in curve]
        peaks = [group.measured or 0.0 for group in curve]
        alike = [group for group in groups if names[id(group)] == name and group.key["mode"] == mode]
        said = [
            FIGURES[source] if len(sources) > 1 else "", f"slope {exponent(x, peaks):.2f}",
            *(seeds_left(group.ok, group.planned) for group in curve), *lost(alike),
        ]  # fmt: skip
        note = ", ".join(text for text in dict.fromkeys(said) if text)
        series.append(Series(name, x, [peak / scale for peak in peaks], style="joined", note=note))
    whose = f" ({FIGURES[next(iter(sources))]})" if len(sources) == 1 else ""
    return Panel(mode, "length", f"peak{whose} [{unit}]", series, log_x=True, log_y=True)

"""What a figure is made of, before anything decides how it is drawn: numbers and their names, and no colours."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

Style = Literal["line", "points", "joined", "theory", "front"]
"""A line through values, points with their errors, points that are joined as well, a curve that nothing was measured
for, or the points that no other beats, ringed and joined by steps; of a front x ascends, and nothing else has its name.
"""


@dataclasses.dataclass(frozen=True)
class Series:
    """Values over x, all of one length. Series of one name have one colour, in every panel of a figure.

    `low` and `high` bound a band around a line, or error bars at points, which `x_low` and `x_high` give sideways bars.
    What is not finite leaves a gap. `note` is what a legend says behind the name: it may differ between panels.
    """

    name: str
    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    low: Sequence[float] | np.ndarray | None = None
    high: Sequence[float] | np.ndarray | None = None
    style: Style = "line"
    x_low: Sequence[float] | np.ndarray | None = None
    x_high: Sequence[float] | np.ndarray | None = None
    note: str = ""

    def __post_init__(self) -> None:
        for name in ("y", "low", "high", "x_low", "x_high"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.x):
                raise ValueError(f"{self.name}: {len(values)} values of {name} over {len(self.x)} of x")


@dataclasses.dataclass(frozen=True)
class Panel:
    """Series on common axes.

    `bounds`: what y cannot be below and above, wherever an interval ends. `y_names`: what stands at y = 0, 1, .., from
    the top down, in place of numbers.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    bounds: tuple[float, float] | None = None
    y_names: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Heat:
    """A matrix of positive values, (rows, columns), in colours over its logarithm; the first row is at the bottom."""

    title: str
    x_label: str
    y_label: str
    value_label: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: np.ndarray

    def __post_init__(self) -> None:
        if np.shape(self.values) != (len(self.rows), len(self.columns)):
            raise ValueError(
                f"{self.title}: {np.shape(self.values)} values, {len(self.rows)} x {len(self.columns)} names"
            )


@dataclasses.dataclass(frozen=True)
class Figure:
    """Panels side by side, under a name that a file can have.

    `caption` is what a reader must know to read it; `share_y`: all panels have one scale of y; `columns`: panels in a
    row, None as many as fit.
    """

    name: str
    title: str
    panels: Sequence[Panel | Heat]
    caption: str = ""
    share_y: bool = False
    columns: int | None = None

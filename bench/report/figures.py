"""What a figure is made of, before anything decides how it is drawn: numbers and their names, and no colours."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

Style = Literal["line", "points", "theory"]
"""A line through values, points with their errors, or a curve that nothing was measured for."""


@dataclasses.dataclass(frozen=True)
class Series:
    """Values over x, all of one length. Series of one name have one colour, in every panel of a figure.

    `low` and `high` bound a band around a line, or error bars at points. What is not finite leaves a gap.
    """

    name: str
    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    low: Sequence[float] | np.ndarray | None = None
    high: Sequence[float] | np.ndarray | None = None
    style: Style = "line"

    def __post_init__(self) -> None:
        for name in ("y", "low", "high"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.x):
                raise ValueError(f"{self.name}: {len(values)} values of {name} over {len(self.x)} of x")


@dataclasses.dataclass(frozen=True)
class Panel:
    """Series on common axes."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False


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
    """Panels side by side, under a name that a file can have."""

    name: str
    title: str
    panels: Sequence[Panel | Heat]

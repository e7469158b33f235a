"""A finished table: numbers with their texts, marks and notes, the same for every format."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from bench.report.comparison import Comparison
from bench.report.estimates import Estimate

Mark = Literal["best", "second", "better", "worse", ""]
FEWEST_DECIMALS, MOST_DECIMALS = 0, 6

Key = tuple[str, ...]
"""The names of a row, or of a column."""


@dataclass(frozen=True)
class Field:
    """One number of a sheet, or why there is none."""

    value: str
    """"-" where there is no number."""
    half: str = ""
    """Half of the 95 % interval; empty where there is none."""
    bounds: tuple[str, str] | None = None
    """The 95 % interval where it is not symmetric."""
    mark: Mark = ""
    notes: tuple[int, ...] = ()
    """Numbers of footnotes, from 1."""
    cells: tuple[str, ...] = ()
    number: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    planned: int = 0
    against: str = ""
    """The row that this one was compared with; empty where it was not."""
    compared: Comparison | None = None
    """On the scale of the test: of ratios the logarithms; larger is better."""
    p: float | None = None
    """Corrected over the whole table."""
    more_seeds: int | None = None
    """How many more are needed to see such a difference, in such a table; None where no number shows it."""

    @property
    def text(self) -> str:
        """The number with its interval."""
        if self.bounds:
            return f"{self.value} [{', '.join(self.bounds)}]"
        return f"{self.value} ± {self.half}" if self.half else self.value


Row = tuple[Key, Sequence[Field]]
"""The names of a row, and a number for each column."""


class Published(NamedTuple):
    """Figures from elsewhere: rows, whose notes count from 1, and their footnotes."""

    rows: Sequence[Row]
    footnotes: Sequence[str]


@dataclass(frozen=True)
class Sheet:
    """A finished table. `published` are rows of their own, set apart."""

    title: str
    row_heads: Sequence[str]
    columns: Sequence[str]
    rows: Sequence[Row]
    caption: Sequence[str]
    footnotes: Sequence[str]
    published: Sequence[Row] = ()


def written(field: Field, decimals: int, style: Literal["plain", "signed", "ratio"] = "plain") -> Field:
    """The field with its texts: value ± half of the interval, of a ratio value [low, high]."""
    if field.number is None:
        return field
    value = f"{field.number:{'+' if style == 'signed' else ''}.{decimals}f}"
    if field.low is None or field.high is None:
        return dataclasses.replace(field, value=value)
    if style == "ratio":
        bounds = (f"{field.low:.{decimals}f}", f"{field.high:.{decimals}f}")
        return dataclasses.replace(field, value=value, bounds=bounds)
    return dataclasses.replace(field, value=value, half=f"{(field.high - field.low) / 2:.{decimals}f}")


def decimals(found: Iterable[Estimate]) -> int:
    """So many that the middle one of the intervals keeps two digits; without intervals four digits of the largest."""
    halves, sizes = [], []
    for estimate in found:
        sizes.append(abs(estimate.value or 0.0))
        if estimate.low is not None and estimate.high is not None and estimate.high > estimate.low:
            halves.append((estimate.high - estimate.low) / 2)
    if halves:
        digits = 1 - math.floor(math.log10(float(np.median(halves))))
    else:
        largest = max(sizes, default=0.0)
        digits = 3 - math.floor(math.log10(largest)) if largest > 0 else 1
    return min(max(digits, FEWEST_DECIMALS), MOST_DECIMALS)


def with_published(found: Sheet, published: Published) -> Sheet:
    """The same sheet with rows of published figures, and their footnotes after the sheet's own."""
    before = len(found.footnotes)
    rows: list[Row] = []
    for row, fields in published.rows:
        own = [dataclasses.replace(field, notes=tuple(i + before for i in field.notes)) for field in fields]
        rows.append((row, [*own, *[Field("-")] * (len(found.columns) - len(own))]))
    return dataclasses.replace(found, published=rows, footnotes=[*found.footnotes, *published.footnotes])

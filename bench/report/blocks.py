"""What a report is made of, before anything decides how it is drawn."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of finished text: a title, column heads, rows of as many cells, and notes that stand under it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    numeric: Sequence[str] = ()
    """The columns that are set flush right."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.title}: a row of {len(row)} cells under {len(self.columns)} columns")


@dataclasses.dataclass(frozen=True)
class Note:
    """A line of text; `warning` where the reader must not miss it."""

    text: str
    warning: bool = False
    fault: bool = False
    """Whether it stands for a part of the report that is missing."""


Block = Table | Note

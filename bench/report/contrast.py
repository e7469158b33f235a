"""Tables of differences: every row of a grid against one of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from bench.options import unknown
from bench.report import comparison, estimates
from bench.report.comparison import Correction
from bench.report.estimates import Estimate
from bench.report.grid import Grid
from bench.report.ranking import Ranking
from bench.report.scores import Scores
from bench.report.sheet import Field, Key, Mark, decimals, written

RATIO_DECIMALS = 2
"""A ratio has so many at least: near 1 is where it matters."""


class Differences(Scores):
    """Differences from one row, of ratios quotients, with what is better and worse marked."""

    def __init__(self, grid: Grid, baseline: str, correction: Correction = "holm", alpha: float = 0.05) -> None:
        super().__init__(grid, "mean", correction, alpha)
        there = {row[i]: i for row in grid.rows for i in range(len(row))}
        if baseline not in there:
            raise unknown("row in --baseline", baseline, there)
        self.baseline, self.place = baseline, there[baseline]
        self.style = "ratio" if grid.measure.ratio else "signed"

    def title(self) -> str:
        measure = self.grid.measure
        unit = f" [{measure.unit}]" if measure.unit and not measure.ratio else ""
        return f"{measure.title}{unit}, {'over that' if measure.ratio else 'difference from that'} of {self.baseline}"

    def reference(self, row: Key, column: Key) -> Key | None:
        found = self.beside(row)
        return None if found == row else found

    def beside(self, row: Key) -> Key:
        """The baseline's row that goes with a row."""
        return (*row[: self.place], self.baseline, *row[self.place + 1 :])

    def shown(self) -> list[Key]:
        return [row for row in self.grid.rows if row[self.place] != self.baseline]

    def differences(self, row: Key, column: Key) -> dict[Hashable, float]:
        """By seed: of ratios logarithms, in the direction of the numbers themselves."""
        entry, base = self.grid.entries[row, column], self.grid.entries.get((self.beside(row), column))
        if base is None:
            return {}
        both = [key for key in entry.values if key in base.values]
        a, b = (np.array([side.values[key] for key in both], float) for side in (entry, base))
        found = np.log(a) - np.log(b) if self.grid.measure.ratio else a - b
        return {key: value for key, value in zip(both, found.tolist(), strict=True) if not math.isnan(value)}

    def as_shown(self, estimate: Estimate) -> tuple[float | None, float | None, float | None]:
        values = (estimate.value, estimate.low, estimate.high)
        if not self.grid.measure.ratio:
            return values
        return tuple(None if value is None else math.exp(value) for value in values)  # type: ignore[return-value]

    def digits(self, column: Key) -> int:
        each = [self.differences(row, column) for row in self.shown() if (row, column) in self.grid.entries]
        found = decimals([Estimate(*self.as_shown(_paired(differences))) for differences in each if len(differences)])
        return max(found, RATIO_DECIMALS) if self.grid.measure.ratio else found

    def field(self, row: Key, column: Key, digits: int) -> Field:
        entry = self.grid.entries[row, column]
        base = self.grid.entries.get((self.beside(row), column))
        cells = tuple(entry.cells.values()) + (tuple(base.cells.values()) if base else ())
        notes = tuple(dict.fromkeys([*self.notes(entry), *(self.notes(base) if base else ())]))
        found = Field("-", notes=notes, cells=cells, planned=entry.planned, against=", ".join(self.beside(row)))
        differences = self.differences(row, column)
        if not len(differences):
            return found
        number, low, high = self.as_shown(_paired(differences))
        test = self.tests.get((row, column))
        mark: Mark = ""
        if self.family.reachable and test is not None and test.difference and self.apart(row, column):
            mark = "better" if test.difference > 0 else "worse"
        made = dataclasses.replace(
            found, mark=mark, number=number, low=low, high=high, n=len(differences), **self.tested(row, column)
        )  # fmt: skip
        return written(made, digits, self.style)

    def over_all(self, row: Key) -> Field | None:
        if not self.whole_everywhere(row) or not self.whole_everywhere(self.beside(row)):
            return None
        columns = [self.differences(row, column) for column in self.grid.columns]
        number, low, high = self.as_shown(self.together(columns, "t"))
        cells, longest = self.cells_of(row, self.beside(row)), max(map(len, columns))
        return Field("-", number=number, low=low, high=high, cells=cells, n=longest, planned=longest)

    def heads_beside_all(self) -> list[str]:
        return ["chance to be better"]

    def beside_all(self, row: Key) -> list[Field]:
        if not self.whole_everywhere(row) or not self.whole_everywhere(self.beside(row)):
            return [Field("-")]
        ours, theirs = (
            estimates.side_by_side([self.grid.measure.key(np.array(self.values(self.grid.entries[which, column])))
                          for column in self.grid.columns])
            for which in (row, self.beside(row))
        )  # fmt: skip
        found = comparison.probability_of_improvement(ours, theirs)
        low, high = (found.low, found.high) if self.independent else (None, None)
        bounds = None if low is None or high is None else (f"{low:.2f}", f"{high:.2f}")
        value = "-" if found.value is None else f"{found.value:.2f}"
        return [Field(value, bounds=bounds, number=found.value, low=low, high=high, n=found.n,
                      planned=found.n, cells=self.cells_of(row, self.beside(row)))]  # fmt: skip

    def said_of_all(self, ranked: Ranking | None, order: Sequence[Key]) -> list[str]:
        chance = (
            f"chance to be better: that one {self.unit} is better than one of {self.baseline} in the same column, "
            f"ties one half; from {estimates.PROFILE_FROM} {self.units} on."
        )
        return [*super().said_of_all(ranked, order), chance]

    def over_all_is(self) -> str:
        return (
            "geometric mean of the columns' ratios" if self.grid.measure.ratio else "mean of the columns' differences"
        )

    def caption(self) -> list[str]:
        better = self.grid.measure.better
        what = "Ratio of geometric means" if self.grid.measure.ratio else "Difference of means"
        found = [f"{what}, paired by {self.unit}, over {self.counted()}; {better} is better."]
        interval = "95 % interval of Student's t over pairs"
        found.append(
            f"[ ]: {interval}, on the log scale." if self.grid.measure.ratio else f"±: half of the {interval}."
        )
        if self.family.tests and self.family.reachable:
            found.append(f"Bold: better than {self.baseline} at {self.alpha:g}, underlined: worse ({self.how()}).")
        elif self.family.smallest is not None:
            found.append(self.unreachable())
        return found


def _paired(differences: Mapping[Hashable, float]) -> Estimate:
    """Mean and paired t interval, whatever the number of pairs."""
    return estimates.mean([*differences.values()], method="t")

"""What a user sees while cells are measured."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column


def what_varies(cells: Collection[Any]) -> dict[str, str]:
    """Cell id -> what tells the cell from the others of the plan, beside its model and backend."""
    from bench.report.cells import told_apart

    columns = [cell.columns() for cell in cells]
    several = len({one["suite"] for one in columns}) > 1
    return {
        one["cell_id"]: (f" {one['suite']}" if several else "")
        + "".join(f" {name} {value}" for name, value in apart.items() if name != "backend" and value != "-")
        for one, apart in zip(columns, told_apart(columns), strict=True)
    }


class ProgressLines:
    """Cells done, failed and the time left: a live line on a terminal, a plain line now and then in a pipe.

    `rounds` says how often something is measured for the cells of each suite. Of one that has not begun nobody knows
    how long it takes: it is named beside the time.
    """

    FAILURES_SHOWN = 20
    """So many failures have a line of their own in a pipe, however fast they come."""

    def __init__(self, total: int, rounds: Mapping[str, int], names: Mapping[str, str] | None = None) -> None:
        self.total, self.rounds, self.names = total, rounds, names or {}
        self.measured, self.seconds = Counter[str](), defaultdict[str, float](float)
        self.console = Console(stderr=True)
        self.done = self.failed = 0
        self.last = self.shown = time.monotonic()
        self.bar: Progress | None = None

    def __enter__(self) -> ProgressLines:
        if self.console.is_terminal:
            cut = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # what gives way where the window is narrow
            columns = (
                BarColumn(10), MofNCompleteColumn(), TimeElapsedColumn(),
                TextColumn("{task.description}", table_column=cut),
            )  # fmt: skip
            self.bar = Progress(*columns, console=self.console, transient=True, expand=True)
            self.bar.start()
            self.task = self.bar.add_task("cells", total=self.total)
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def ended(self, cell: Any, status: str) -> None:
        from bench.engines.local import ROUND
        from bench.store import GOOD_STATUSES

        now = time.monotonic()
        self.measured[cell.suite] += 1
        self.seconds[cell.suite] += now - self.last
        self.last = now
        if status == ROUND:
            return
        self.done += 1
        self.failed += status not in GOOD_STATUSES
        state = f"{self.failed} failed" + (f", {self._left()}" if self.done < self.total else "")
        last = f"{cell.model} {cell.backend}{self.names.get(cell.id, '')}: {status}"
        if self.bar:
            self.bar.update(self.task, completed=self.done, description=f"{state}; {last}")
        elif (
            self.done in (1, self.total)
            or now - self.shown >= 10
            or (status not in GOOD_STATUSES and self.failed <= self.FAILURES_SHOWN)
        ):
            self.shown = now
            typer.echo(f"{self.done}/{self.total} cells, {state}; {last}", err=True)

    def _left(self) -> str:
        """The time that suites which have begun still need, at the pace so far, and which have not."""
        rest = {suite: max(0, self.rounds[suite] - done) for suite, done in self.measured.items()}
        after = ", ".join(suite for suite in self.rounds if suite not in self.measured)
        if after and not any(rest.values()):
            return f"{after} left"
        left = sum(self.seconds[suite] / self.measured[suite] * count for suite, count in rest.items())
        return f"{_duration(left)} left" + (f", then {after}" if after else "")


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 100 else f"{minutes} min"

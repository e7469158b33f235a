"""What a user sees while cells are measured."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


def what_varies(cells: Collection[Any]) -> dict[str, str]:
    """Cell id -> what tells the cell from the others of the plan, beside its model and backend."""
    from bench.report.cells import told_apart

    columns = [cell.columns() for cell in cells]
    return {
        one["cell_id"]: "".join(f" {name} {value}" for name, value in apart.items() if name != "backend")
        for one, apart in zip(columns, told_apart(columns), strict=True)
    }


class ProgressLines:
    """Cells done, failed and the time left: a live line on a terminal, a plain line now and then in a pipe."""

    FAILURES_SHOWN = 20
    """So many failures have a line of their own in a pipe, however fast they come."""

    def __init__(self, total: int, rounds: int | None = None, names: Mapping[str, str] | None = None) -> None:
        self.total, self.rounds, self.names = total, rounds or total, names or {}
        self.rounds_done = 0
        self.console = Console(stderr=True)
        self.done = self.failed = 0
        self.started = self.shown = time.monotonic()
        self.bar: Progress | None = None

    def __enter__(self) -> ProgressLines:
        if self.console.is_terminal:
            columns = (BarColumn(20), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
            self.bar = Progress(*columns, console=self.console, transient=True)
            self.bar.start()
            self.task = self.bar.add_task("cells", total=self.total)
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def ended(self, cell: Any, status: str) -> None:
        from bench.engines.local import ROUND
        from bench.store import GOOD_STATUSES

        self.rounds_done += 1
        if status == ROUND:
            return
        self.done += 1
        self.failed += status not in GOOD_STATUSES
        seconds = time.monotonic() - self.started
        left = seconds / self.rounds_done * max(0, self.rounds - self.rounds_done)
        state = f"{self.failed} failed, {_duration(left)} left" if self.done < self.total else f"{self.failed} failed"
        last = f"{cell.model} {cell.backend}{self.names.get(cell.id, '')}: {status}"
        if self.bar:
            self.bar.update(self.task, completed=self.done, description=f"{state}; {last}")
        elif (
            self.done in (1, self.total)
            or time.monotonic() - self.shown >= 10
            or (status not in GOOD_STATUSES and self.failed <= self.FAILURES_SHOWN)
        ):
            self.shown = time.monotonic()
            typer.echo(f"{self.done}/{self.total} cells, {state}; {last}", err=True)


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 100 else f"{minutes} min"

"""Carries cells to worker processes on this machine, with a hard time limit for each cell."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench import store
from bench.plan import Cell
from bench.worker import cut_paths

POLL_S = 0.05
START_LIMIT_S = 180.0
"""How long a worker may take until its first cell begins: imports, on a file system that may be slow."""


@dataclasses.dataclass(frozen=True)
class Job:
    """Where results go and what every worker of a run is told."""

    folder: Path
    run_id: str
    env_id: str
    code: str
    device: str
    timeout: float
    plugins: tuple[str, ...] = ()
    data: str | None = None
    params: bool = True


Progress = Callable[[Cell, str], None]
"""Called with each cell that has ended and its status."""


def run(cells: list[Cell], job: Job, jobs: int, progress: Progress) -> None:
    """Measures all cells, `jobs` at a time. Whatever happens to a worker, each of its cells gets a file.

    KeyboardInterrupt ends the workers and their children; cells that were not done get no file.
    """
    slots = [_Slot(cpus) for cpus in processors(jobs)]
    waiting = list(cells)
    with contextlib.ExitStack() as stack:
        for slot in slots:
            stack.callback(slot.kill)
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="linrec-bench-")))
        while waiting or any(slot.cells for slot in slots):
            for slot in slots:
                if slot.cells:
                    slot.watch(job, progress)
                if not slot.cells and waiting:
                    share = max(1, len(waiting) // (2 * len(slots)))
                    batch = [cell for cell in waiting if cell.backend == waiting[0].backend][:share]
                    taken = {cell.id for cell in batch}
                    waiting = [cell for cell in waiting if cell.id not in taken]
                    slot.start(batch, job, scratch)
            time.sleep(POLL_S)


def threads_allowed() -> int | None:
    """The limit that OMP_NUM_THREADS sets, or None. Of a list, which it may be, the first counts."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else None


def processors(jobs: int) -> Iterator[list[int]]:
    """The processors that this process may use, dealt out to the jobs."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    for i in range(jobs):
        yield usable[i::jobs] or [usable[i % len(usable)]]


class _Slot:
    """A place for one worker at a time."""

    def __init__(self, cpus: list[int]) -> None:
        self.cpus = cpus[: threads_allowed()]
        self.cells: list[Cell] = []
        self.process: subprocess.Popen[bytes] | None = None
        self.scratch = Path()
        self.spec = Path()
        self.before: dict[str, Any] = {}
        self.since = 0.0
        self.begun = False
        self.kills = 0
        self.last_status: str | None = None

    def start(self, cells: list[Cell], job: Job, scratch: Path) -> None:
        self.cells = cells
        self.scratch = scratch
        self.before = {cell.id: store.stamp(job.folder, cell.id) for cell in cells}  # there, where a cell is retried
        handle, name = tempfile.mkstemp(suffix=".json", dir=scratch)
        self.spec = Path(name)
        spec = {
            "folder": str(job.folder.resolve()), "run_id": job.run_id, "env_id": job.env_id, "code": job.code,
            "device": job.device, "plugins": list(job.plugins), "data": job.data, "params": job.params,
            "cpus": self.cpus, "threads": len(self.cpus), "engine": os.getpid(), "begun": str(self._begun),
            "cells": [dataclasses.asdict(cell) for cell in cells],
        }  # fmt: skip
        with os.fdopen(handle, "w") as file:
            json.dump(spec, file)
        self.kills = _kernel_kills()
        self.last_status, self.begun = None, False
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "bench.worker", name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(job.device, len(self.cpus)),
                start_new_session=True,  # its children end with it
            )
        self.since = time.monotonic()

    @property
    def _log(self) -> Path:
        return self.spec.with_suffix(".log")

    @property
    def _begun(self) -> Path:
        return self.spec.with_suffix(".begun")

    def watch(self, job: Job, progress: Progress) -> None:
        """Takes note of finished cells; ends a worker that is past its limit, or replaces one that has ended."""
        assert self.process is not None
        exited = self.process.poll() is not None  # asked before files are looked at: a worker writes, then ends
        if not self.begun and self._begun.exists():
            self.begun, self.since = True, time.monotonic()
        self._take_note(job, progress)
        limit = job.timeout if self.begun else START_LIMIT_S
        if self.cells and not exited and time.monotonic() - self.since > limit:
            late = self.cells[0]
            self.kill()
            self._take_note(job, progress)
            if self.cells and self.cells[0] is late:
                what = "ended" if self.begun else "the worker had not begun and was ended"
                self._fail(job, progress, "timeout", f"{what} after {limit:g} s")
        elif exited and self.cells and self.last_status in (None, *store.GOOD_STATUSES):  # else a cell failed in it
            self._fail(job, progress, *self._reason(self.process.returncode))
        elif not exited and self.cells:
            return
        self.kill()
        if self.cells:
            self.start(self.cells, job, self.scratch)

    def _take_note(self, job: Job, progress: Progress) -> None:
        """Of cells that have a file now."""
        while self.cells and store.stamp(job.folder, self.cells[0].id) != self.before[self.cells[0].id]:
            self.last_status = store.status(job.folder, self.cells[0].id)
            progress(self.cells.pop(0), self.last_status)
            self.since = time.monotonic()

    def kill(self) -> None:
        """Ends the worker and whatever it has started."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process = None  # its number may be another process's from now on

    def _reason(self, code: int) -> tuple[str, str]:
        """Status and message of a cell in which the worker ended."""
        with self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - 2000))
            tail = cut_paths(log.read().decode(errors="replace")).strip()
        if code == -signal.SIGKILL and _kernel_kills() > self.kills:
            return "oom", "killed by the kernel, which was out of memory"
        what = f"signal {_signal_name(-code)}" if code < 0 else f"exit status {code}"
        return "crashed", f"the worker ended with {what}" + (f":\n{tail}" if tail else "")

    def _fail(self, job: Job, progress: Progress, status: str, message: str) -> None:
        cell = self.cells.pop(0)
        write_failure(job, cell, status, message, len(self.cpus), time.monotonic() - self.since)
        progress(cell, status)


def write_failure(
    job: Job, cell: Cell, status: str, message: str, threads: int | None = None, duration_s: float = 0.0
) -> None:
    """The file of a cell whose worker could not write one."""
    columns = cell.columns() | {
        "run_id": job.run_id, "env_id": job.env_id, "code": job.code, "status": status, "message": message,
        "started_at": (datetime.now(UTC) - timedelta(seconds=duration_s)).isoformat(timespec="milliseconds"),
        "duration_s": duration_s, "threads": threads,
    }  # fmt: skip
    store.write(job.folder / "cells" / f"{cell.id}.parquet", store.table(columns, []))


def _signal_name(number: int) -> str:
    """SIGKILL and the like; real-time signals have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _kernel_kills() -> int:
    """How many processes the kernel has ended for want of memory; 0 where it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def _environment(device: str, threads: int) -> dict[str, str]:
    """What must be set before a framework is imported."""
    count = str(threads)
    own = {
        "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count, "PJRT_NPROC": count,
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONHASHSEED": "0",
    }  # fmt: skip
    if device == "cpu":
        own["JAX_PLATFORMS"] = "cpu"
    return os.environ | own

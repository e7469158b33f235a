"""Carries cells to worker processes on this machine, with a hard time limit for each cell."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench import environment, store
from bench.contract import Suite
from bench.plan import Cell
from bench.worker import Task, cut_paths

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


ROUND = "round"
"""Said in the place of a status where a round of a cell is done and more follow."""

Progress = Callable[[Cell, str], None]
"""Called with each cell that has ended and its status, or with `ROUND`."""


def run(cells: list[Cell], job: Job, jobs: int, progress: Progress) -> None:
    """Measures all cells, `jobs` at a time. Whatever happens to a worker, each cell that it was given gets a file.

    KeyboardInterrupt ends the workers and their children; cells that were not done get no file.
    """
    slots = [_Slot(cpus) for cpus in processors(jobs)]
    waiting = order(cells, job.run_id)
    for cell in cells:
        store.remove_parts(job.folder, cell.id)  # of rounds that were interrupted: all are measured anew
    with contextlib.ExitStack() as stack:
        scratch = tempfile.TemporaryDirectory(prefix="linrec-bench-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(scratch))
        for slot in slots:
            stack.callback(slot.kill)
        while waiting or any(slot.cell for slot in slots):
            for slot in slots:
                if slot.cell:
                    slot.watch(job, progress)
                    waiting = [work for work in waiting if work.cell.id != slot.ended]  # no more rounds of it
                if not slot.cell and waiting:
                    others = {other.kind for other in slots if other is not slot and other.cell}
                    slot.give(waiting.pop(_choice(waiting, slot, others)), job, folder)
            time.sleep(POLL_S)
    store.remove_parts_folder(job.folder)


@dataclasses.dataclass(frozen=True)
class Work:
    """A cell, or one round of it. What has the same `group` may follow one another in one process.

    Of the same `kind` are those for which the same is compiled.
    """

    cell: Cell
    kind: str
    group: str
    round: int | None = None
    rounds: int = 1


def order(cells: list[Cell], run_id: str) -> list[Work]:
    """What is to be done, in its order: cells as planned; those that are measured in rounds round by round.

    Within a round models and backends come in an order that the run's name draws, so that no model always has the
    machine in the same state.
    """
    plain: list[Work] = []
    in_rounds: dict[str, list[Cell]] = {}
    most = 0
    for cell in cells:
        suite = cell.suite_object
        if suite.isolation == "rounds":
            in_rounds.setdefault(f"{cell.suite} {cell.model} {cell.backend}", []).append(cell)
            most = max(most, _rounds(suite))
        else:
            shared = suite.isolation == "shared"
            plain.append(Work(cell, cell.kind if shared else cell.id, cell.backend if shared else cell.id))
    found = plain
    for number in range(most):
        groups = sorted(in_rounds)
        random.Random(f"{run_id} {number}").shuffle(groups)
        for group in groups:
            for cell in in_rounds[group]:
                if number < (rounds := _rounds(cell.suite_object)):
                    found.append(Work(cell, f"{number} {cell.kind}", f"{number} {group}", number, rounds))
    return found


def _rounds(suite: Suite) -> int:
    return getattr(suite, "rounds", 1)


def _choice(waiting: list[Work], slot: _Slot, others: set[str]) -> int:
    """Which work a slot takes next: of the kind that it has compiled, else of its group and of nobody else's kind."""

    def cost(i: int) -> tuple[bool, bool, bool, int]:
        work = waiting[i]
        return slot.group is not None and work.group != slot.group, work.kind != slot.kind, work.kind in others, i

    return min(range(len(waiting)), key=cost)


def threads_allowed() -> int | None:
    """The limit that OMP_NUM_THREADS sets, or None. Of a list, which it may be, the first counts."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else None


def processors(jobs: int) -> Iterator[list[int]]:
    """The processors that this process may use, dealt out to the jobs."""
    usable = environment.processors()
    for i in range(jobs):
        yield usable[i::jobs] or [usable[i % len(usable)]]


def threads(jobs: int) -> int:
    """How many threads the first of so many workers has."""
    return len(next(processors(jobs))[: threads_allowed()])


class _Slot:
    """A place for one worker at a time, which measures one cell after another of its backend."""

    def __init__(self, cpus: list[int]) -> None:
        self.cpus = cpus[: threads_allowed()]
        self.process: subprocess.Popen[str] | None = None
        self.group: str | None = None
        self.kind = ""
        self.cell: Cell | None = None
        self.work: Work | None = None
        self.ended: str | None = None
        self.spec = Path()
        self.watched: list[Path] = []
        self.before: list[tuple[int, int] | None] = []
        self.since = 0.0
        self.begun = False
        self.kills = 0

    def give(self, work: Work, job: Job, scratch: Path) -> None:
        """Lets the worker measure a cell, or a fresh one where it has ended or is another group's."""
        cell, self.ended = work.cell, None
        self.cell, self.work, self.kind = cell, work, work.kind
        self.watched = [store.file(job.folder, cell.id)]
        if work.round is not None and work.round < work.rounds - 1:
            self.watched.append(store.part(job.folder, cell.id, work.round))
        self.before = [store.stamp(path) for path in self.watched]  # there, where a cell is tried again
        task = Task(dataclasses.asdict(cell), work.round, work.rounds)
        line = json.dumps(dataclasses.asdict(task)) + "\n"
        if self.process is None or self.group != work.group or not self._say(line):
            self.kill()
            self.group = work.group
            self._start(job, scratch)
            self._say(line)
        self.since = time.monotonic()

    def _say(self, line: str) -> bool:
        """Whether the worker could be told: not where it has ended since its last cell."""
        assert self.process is not None
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line)
            self.process.stdin.flush()
        except BrokenPipeError:
            return False
        return self.process.poll() is None

    def _start(self, job: Job, scratch: Path) -> None:
        handle, name = tempfile.mkstemp(suffix=".json", dir=scratch)
        self.spec, self.begun = Path(name), False
        spec = {
            "folder": str(job.folder.resolve()), "run_id": job.run_id, "env_id": job.env_id, "code": job.code,
            "device": job.device, "plugins": list(job.plugins), "data": job.data, "params": job.params,
            "cpus": self.cpus, "threads": len(self.cpus), "engine": os.getpid(), "begun": str(self._begun),
        }  # fmt: skip
        with os.fdopen(handle, "w") as file:
            json.dump(spec, file)
        self.kills = _kernel_kills()
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "bench.worker", name],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=_environment(job.device, len(self.cpus)),
                text=True,
                start_new_session=True,  # its children end with it
            )

    @property
    def _log(self) -> Path:
        return self.spec.with_suffix(".log")

    @property
    def _begun(self) -> Path:
        return self.spec.with_suffix(".begun")

    def watch(self, job: Job, progress: Progress) -> None:
        """Takes note of a cell that has ended, or of a worker that has ended in it; ends one that is past its limit."""
        assert self.process is not None
        code = self.process.poll()  # asked before the file is looked at: a worker writes, then ends
        if not self.begun and self._begun.exists():
            self.begun, self.since = True, time.monotonic()
        if self._take_note(job, progress):
            return
        limit = job.timeout if self.begun else START_LIMIT_S
        if code is not None:
            self._fail(job, progress, *self._reason(code))
        elif time.monotonic() - self.since > limit:
            self.kill()
            if not self._take_note(job, progress):
                what = "ended" if self.begun else "the worker had not begun and was ended"
                self._fail(job, progress, "timeout", f"{what} after {limit:g} s")

    def _take_note(self, job: Job, progress: Progress) -> bool:
        """Whether the cell, or its round, has its file now. A worker in which a cell failed is not used again."""
        cell = self.cell
        if cell is None or [store.stamp(path) for path in self.watched] == self.before:
            return False
        self.cell = None
        if store.stamp(self.watched[0]) == self.before[0]:
            progress(cell, ROUND)
            return True
        status = store.status(job.folder, cell.id)
        if status not in store.GOOD_STATUSES:
            self.kill()
        self.ended = cell.id
        progress(cell, status)
        return True

    def kill(self) -> None:
        """Ends the worker and whatever it has started."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
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
        assert self.cell is not None
        cell, self.cell = self.cell, None
        self.kill()
        write_failure(job, cell, status, message, len(self.cpus), time.monotonic() - self.since)
        store.remove_parts(job.folder, cell.id)
        self.ended = cell.id
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
    found = [*store.parts(job.folder, cell.id), store.table(columns, [])]  # with what earlier rounds have found
    store.write(store.file(job.folder, cell.id), store.joined(found) if len(found) > 1 else found[0])


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
        "JAX_TRACEBACK_FILTERING": "off",  # else a traceback ends with a text about itself
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",  # a compilation that is measured must be one
    }  # fmt: skip
    if device == "cpu":
        own["JAX_PLATFORMS"] = "cpu"
    return os.environ | own

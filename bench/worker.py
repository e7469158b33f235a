"""Measures cells in a process of their own: `python -P -m bench.worker SPEC.json`, JSON in, files out.

SPEC.json says where and how; cells come one a line through stdin, until it ends. Each cell's file is written to a
temporary name, synced and renamed. The file `begun` of the spec is touched as the work on a cell begins, when all is
imported. After a cell that failed the process ends: the engine starts a fresh one for the rest.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import backends, registry, store
from bench.checkpoint import Checkpoint
from bench.contract import CompileFailed, Diverged, Missing, Unsupported
from bench.measurement import Measurement
from bench.plan import Cell


def main(spec_file: str) -> int:
    """Measures cells one after another. Exit status 0, or 3 after a cell that failed."""
    faulthandler.enable()
    spec = json.loads(Path(spec_file).read_text())
    _end_with(spec["engine"])
    if hasattr(os, "sched_setaffinity") and spec["cpus"]:
        os.sched_setaffinity(0, spec["cpus"])
    if spec["data"]:
        os.environ["BENCH_DATA"] = spec["data"]
    folder = Path(spec["folder"])
    dry = folder / "cells" / f".{os.getpid()}.dry"  # saving must not fail after the work
    store.write(dry, store.table({}, []))
    dry.unlink()
    for line in _own_stdin():
        task = Task(**json.loads(line))
        if measure(task, spec, folder) not in store.GOOD_STATUSES:
            return 3
    _end_group()  # nobody is there any more
    return 0


def _own_stdin() -> Iterator[str]:
    """The lines of stdin, which from here on is empty for everybody else: a layer that asks for input gets none."""
    with os.fdopen(os.dup(0)) as lines, open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
        yield from iter(lines.readline, "")


@dataclasses.dataclass(frozen=True)
class Task:
    """What a worker is told of one cell: the cell, and which of how many rounds this is; None without rounds."""

    cell: dict[str, Any]
    round: int | None = None
    rounds: int = 1

    def part(self, folder: Path, cell_id: str) -> Path | None:
        """The file of this round, where more rounds follow; the last one writes the cell's own."""
        if self.round is None or self.round == self.rounds - 1:
            return None
        return store.part(folder, cell_id, self.round)


def measure(task: Task, spec: dict[str, Any], folder: Path) -> str:
    """Measures one cell, or one round of it, writes its file, returns its status.

    A round that could not be measured is the end of its cell; the last one joins what all rounds found.
    """
    cell = Cell(**task.cell)
    started, clock = datetime.now(UTC), time.monotonic()
    measurement = None
    status, message = "ok", None
    try:
        for plugin in spec["plugins"]:
            registry.load_file(Path(plugin))
        params = folder / "params" if spec["params"] else None
        backends.load(cell.backend).set_process(cell.dtype, spec["threads"])
        Path(spec["begun"]).touch()
        started, clock = datetime.now(UTC), time.monotonic()
        checkpoint = Checkpoint(folder / "checkpoints" / f"{cell.id}.safetensors", spec["code"])
        measurement = Measurement(cell, spec["device"], spec["threads"], params, task.round, checkpoint)
        measurement.suite.measure(measurement)
        status, message = measurement.status, measurement.message
    except Unsupported as reason:
        status, message = "unsupported", cut_paths(str(reason))
    except Missing as reason:
        status, message = "missing", cut_paths(str(reason))
    except Diverged as reason:
        status, message = "diverged", str(reason)
        if measurement:
            measurement.checkpoint.remove()  # from which it would only diverge again
            measurement.record("diverged_at_step", reason.step, "step", step=reason.step)
    except CompileFailed as error:
        status, message = "compile_failed", cut_paths(str(error))
    except MemoryError as error:
        status, message = "oom", f"out of host memory: {error}"
    except (Exception, SystemExit) as error:
        status = "oom" if _is_out_of_memory(error) else "error"
        message = short_traceback(error)
    columns = measurement.cell_columns() if measurement else cell.columns()
    columns |= {
        "run_id": spec["run_id"], "env_id": spec["env_id"], "code": spec["code"], "status": status,
        "message": message, "threads": spec["threads"], "started_at": started.isoformat(timespec="milliseconds"),
        "duration_s": time.monotonic() - clock,
    }  # fmt: skip
    found = store.table(columns, measurement.rows if measurement else [])
    part = task.part(folder, cell.id) if status in store.COMPLETE_STATUSES else None
    if part:
        part.parent.mkdir(exist_ok=True)
        store.write(part, found)
    else:
        parts = store.parts(folder, cell.id)
        store.write(store.file(folder, cell.id), store.joined([*parts, found]) if parts else found)
        store.remove_parts(folder, cell.id)
    return status


def short_traceback(error: BaseException, frames: int = 8, longest: int = 1500) -> str:
    """The last frames without locals, paths cut to the package; of the error's own text the beginning."""
    lines = traceback.format_list(traceback.extract_tb(error.__traceback__)[-frames:])
    text = "".join(traceback.format_exception_only(error)).strip()
    if len(text) > longest:
        text = f"{text[:longest]} ... ({len(text):,} characters)"
    return cut_paths("".join(lines) + text)


def cut_paths(text: str) -> str:
    """Absolute folders are the user's own business: what is left of a path starts at its package, or is its name."""
    if data := os.environ.get("BENCH_DATA"):
        text = text.replace(f"BENCH_DATA={data}", "BENCH_DATA").replace(data, "BENCH_DATA")
    known = [*sys.path, str(registry.ROOT), sys.prefix, sys.base_prefix]
    for folder in sorted({path.rstrip("/") for path in known if os.path.isabs(path)}, key=len, reverse=True):
        text = text.replace(f"{folder}/", "") if folder else text
    return _ABSOLUTE.sub(r"\1", text)


_ABSOLUTE = re.compile(r"(?<![\w./~-])~?/(?:[^\s/'\":,;]+/)+([^\s/'\":,;]*)")
"""An absolute path of at least one folder, and its last part."""


def _is_out_of_memory(error: BaseException) -> bool:
    """torch's OutOfMemoryError, XLA's RESOURCE_EXHAUSTED, and the allocators' own words on a CPU."""
    name, text = type(error).__name__, str(error)
    return name == "OutOfMemoryError" or "RESOURCE_EXHAUSTED" in text or "not enough memory" in text


def _end_with(engine: int) -> None:
    """A worker whose engine died measures nothing that anybody waits for."""

    def watch() -> None:
        while os.getppid() == engine:
            time.sleep(0.5)
        _end_group()
        os._exit(4)

    threading.Thread(target=watch, daemon=True).start()


def _end_group() -> None:
    """Ends this process with whatever it has started, where it has a group of its own."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

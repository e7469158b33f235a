"""Carries a request out: validate, find the device, plan, measure, and say what became of every cell."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import re
import statistics
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import environment, plan, registry, store
from bench.backends import INSTALL
from bench.contract import require
from bench.engines import local
from bench.options import parse_name, split_list, unknown
from bench.plan import Cell, Request
from bench.report.blocks import Block, Table

DEFAULT_TIMEOUT_S = 3600.0
MEMORY_PER_JOB_GIB = 2.0
"""What a worker with one framework needs at least; bounds the default of --jobs."""


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A validated run: nothing has been written yet."""

    cells: list[Cell]
    todo: list[Cell]
    folder: Path
    device: str
    probes: dict[str, dict[str, Any]]
    request: Request
    hashes: dict[str, str]
    resumed: bool
    jobs: int
    timeout: float
    params: bool


class Refused(ValueError):
    """A command that cannot be carried out as it stands; nothing was changed."""


def read_file(path: Path) -> dict[str, Any]:
    """The options of a TOML file, named as on the command line (`set` is a table); ValueError for unknown keys."""
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from error
    allowed = {
        "suite", "models", "backends", "device", "dtypes", "tasks", "depths", "seeds", "set", "preset", "variants",
        "plugin", "data",
    }  # fmt: skip
    for key in content:
        if key not in allowed:
            raise unknown(f"key in {path.name}", key, allowed)
    settings = content.pop("set", {})
    require(isinstance(settings, dict), f"{path.name}: `set` is a table, [set]")
    if settings:
        content["settings"] = [f"{key}={_joined(value)}" for key, value in _flat(settings)]
    if "plugin" in content:
        plugins = [content.pop("plugin")] if isinstance(content["plugin"], str) else content.pop("plugin")
        content["plugins"] = [str(path.parent / plugin) for plugin in plugins]
    if "suite" in content:
        content["suites"] = content.pop("suite")
    return content


def merge(file: str | Path | None, options: dict[str, Any]) -> Request:
    """The request of a file and of options, which win; named as on the command line. ValueError says what is wrong."""
    given = read_file(Path(file)) if file else {}
    own = {key: value for key, value in options.items() if value is not None}
    for name, key in (("suite", "suites"), ("plugin", "plugins"), ("set", "settings")):
        if name in own:
            own[key] = own.pop(name)
    if isinstance(own.get("settings"), dict):
        own["settings"] = [f"{key}={_joined(value)}" for key, value in _flat(own["settings"])]
    if isinstance(own.get("plugins"), str):
        own["plugins"] = [own["plugins"]]
    allowed = {field.name for field in dataclasses.fields(Request)}
    for key in own:
        if key not in allowed:
            raise unknown("option", key, allowed)
    return Request.parse(**given | own)


def prepare(
    request: Request,
    *,
    out: Path = Path("results"),
    name: str | None = None,
    jobs: int | None = None,
    shard: str | None = None,
    timeout: float = DEFAULT_TIMEOUT_S,
    params: bool = True,
) -> Prepared:
    """Everything that can go wrong before any work: ValueError with one line. Writes nothing."""
    _check_numbers(jobs, timeout)
    require(
        name is None or bool(re.fullmatch(r"[\w.][\w.+-]*", name)), f"--run {name!r}: letters, digits and . _ + - only"
    )
    first_suite = parse_name((request.suites or ["stability"])[0])[0]
    plan.cells(request, "cpu", request.preset or "quick")  # what is wrong is said before a device is looked for
    device, probes = find_device(request.device, request.backends or ["torch"])
    preset = request.preset or ("default" if device.startswith("cuda") else "quick")
    cells = plan.cells(request, device.partition(":")[0], preset)
    mine = plan.shard(cells, shard) if shard else cells
    require(name is not None or shard is None, "--shard needs --run NAME: all shards of a run share its folder")
    folder = out / (name or f"{datetime.now():%Y%m%d-%H%M%S}-{first_suite}")
    hashes = registry.code()
    resumed = (folder / "run.json").exists()
    if resumed:
        known = {cell["id"] for cell in store.load_json(folder / "run.json").get("cells", [])}
        if shard is None or known != {cell.id for cell in cells}:
            raise Refused(f"--run {name}: {folder} exists; to go on with it write --resume {name}")
    todo = [cell for cell in mine if store.status(folder, cell.id) is None]
    if request.data:
        require(Path(request.data).is_dir(), f"--data {request.data}: there is no such folder")
    _check_writable(folder)
    return Prepared(
        cells, todo, folder, device, probes, request, hashes, resumed,
        jobs or default_jobs(device, todo), timeout, params,
    )  # fmt: skip


def prepare_resume(
    run: str,
    *,
    out: Path = Path("results"),
    retry: Iterable[str] = (),
    jobs: int | None = None,
    shard: str | None = None,
    timeout: float = DEFAULT_TIMEOUT_S,
    allow_changed_code: bool = False,
) -> Prepared:
    """The cells of a run without a file, and those whose status is to be tried again."""
    _check_numbers(jobs, timeout)
    folder = Path(run) if (Path(run) / "run.json").is_file() else out / run
    require((folder / "run.json").is_file(), f"--resume {run}: no run in {folder}")
    content = store.load_json(folder / "run.json")
    require(bool(content.get("cells")), f"--resume {run}: its run.json cannot be read")
    statuses = split_list(retry)
    for status in statuses:
        if status not in store.STATUSES:
            raise unknown("status in --retry", status, store.STATUSES)
    request = Request(**content["request"])
    for plugin in request.plugins:
        registry.load_file(Path(plugin))
    hashes = registry.code()
    changed = sorted(k for k in hashes.keys() | content["code"].keys() if hashes.get(k) != content["code"].get(k))
    if changed and not allow_changed_code:
        names = ", ".join(changed[:5]) + (f" and {len(changed) - 5} more" if len(changed) > 5 else "")
        raise Refused(f"--resume {run}: the code changed since ({names}); --allow-changed-code goes on all the same")
    cells = [Cell(**cell["cell"]) for cell in content["cells"]]
    mine = plan.shard(cells, shard) if shard else cells
    found = {cell.id: store.status(folder, cell.id) for cell in mine}
    todo = [cell for cell in mine if found[cell.id] is None or found[cell.id] in statuses]
    device, probes = find_device(content["device"], request.backends or ["torch"])
    _check_writable(folder)
    return Prepared(
        cells, todo, folder, device, probes, request, hashes, True,
        jobs or default_jobs(device, todo), timeout, content["params"],
    )  # fmt: skip


def find_device(device: str, backends: list[str]) -> tuple[str, dict[str, dict[str, Any]]]:
    """The device of a run, one for all backends, and what each backend said; {"reason": ...} where it cannot use it."""
    probes: dict[str, dict[str, Any]] = {}
    for backend in backends:
        if reason := environment.installed(backend):
            probes[backend] = {"reason": reason}
    asked = [backend for backend in backends if backend not in probes and device != "cpu"]
    with concurrent.futures.ThreadPoolExecutor(max(1, len(asked))) as pool:
        probes |= dict(zip(asked, pool.map(environment.probe, asked), strict=True))
    if device == "auto":
        device = "cuda" if any(probe.get("cuda") for probe in probes.values()) else "cpu"
    if device.startswith("cuda"):
        for backend, probe in probes.items():
            if not probe.get("cuda") and "reason" not in probe:
                probe["reason"] = f"{backend} finds no GPU here; with one: {INSTALL[backend, 'cuda']}"
    return device, probes


def default_jobs(device: str, cells: list[Cell]) -> int:
    """One on a GPU and where cells need their device to themselves; else as many as processors and memory allow."""
    suites = {cell.suite for cell in cells}
    if device != "cpu" or any(registry.find("suite", suite).exclusive for suite in suites):
        return 1
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = environment.memory_gib() or MEMORY_PER_JOB_GIB
    return max(1, min(processors, int(memory / MEMORY_PER_JOB_GIB), len(cells)))


def measure(prepared: Prepared, command: list[str], progress: local.Progress) -> dict[str, str]:
    """Measures what is to be done and returns the status of every cell of the run that has one by then."""
    folder = prepared.folder
    (folder / "cells").mkdir(parents=True, exist_ok=True)
    (folder / "environments").mkdir(exist_ok=True)
    described = environment.describe(prepared.probes)
    env_id = environment.identity(described)
    store.write_text(folder / "environments" / f"{env_id}.json", json.dumps(described, indent=1))
    if not prepared.resumed:
        _write_plan(prepared, command, described)
    job = local.Job(
        folder=folder,
        run_id=folder.name,
        env_id=env_id,
        code=registry.code_id(prepared.hashes),
        device=prepared.device,
        timeout=prepared.timeout,
        plugins=tuple(prepared.request.plugins),
        data=prepared.request.data,
        params=prepared.params,
    )
    for cell in prepared.todo:
        (folder / "cells" / f"{cell.id}.parquet").unlink(missing_ok=True)
    runnable = []
    for cell in prepared.todo:
        if reason := prepared.probes.get(cell.backend, {}).get("reason"):
            local.write_failure(job, cell, "missing", reason)
            progress(cell, "missing")
        else:
            runnable.append(cell)
    local.run(runnable, job, prepared.jobs, progress)
    return {cell.id: found for cell in prepared.cells if (found := store.status(folder, cell.id))}


def plan_blocks(prepared: Prepared, out: Path) -> list[Block]:
    """The cells as a table, with parameters, state sizes, and the time that cells of their kind took before."""
    rows, seconds = [], _durations(out)
    sizes: dict[tuple, tuple[str, str]] = {}
    total, unknown_cells = 0.0, 0
    for cell in prepared.todo:
        key = (cell.model, cell.depth, cell.task, cell.d_model)
        if key not in sizes:
            trained = cell.trained
            sizes[key] = ("-" if trained is None else f"{trained:,}", f"{cell.layer.state_reals:,}")
        took = seconds.get(_kind(cell))
        total, unknown_cells = total + (took or 0), unknown_cells + (took is None)
        rows.append(
            [
                cell.id, cell.suite, cell.model, cell.backend, cell.device, cell.dtype, cell.task or "-",
                str(cell.depth), str(cell.seed), *sizes[key], "-" if took is None else f"{took:.0f}",
            ]
        )  # fmt: skip
    estimate = f"about {total / prepared.jobs:.0f} s with {prepared.jobs} at a time"
    if unknown_cells:
        estimate += f", and {unknown_cells} cells of kinds that have not run yet" if total else ""
        estimate = estimate if total else "no time estimate: no cell of these kinds has run yet"
    heads = ["cell", "suite", "model", "backend", "device", "dtype", "task", "depth", "seed", "parameters",
             "state reals", "seconds"]  # fmt: skip
    return [Table(f"Plan: {len(rows)} cells", heads, rows, notes=[estimate], numeric=heads[7:])]


def _kind(cell: Cell) -> str:
    """Cells that differ by their seed alone take about the same time."""
    return dataclasses.replace(cell, seed=0).id


def _durations(out: Path) -> dict[str, float]:
    """Kind of cell -> median duration in seconds over the runs in a folder."""
    found: dict[str, list[float]] = {}
    for folder in store.runs(out) if out.is_dir() else []:
        for content in store.load_json(folder / "run.json").get("cells", []):
            took = store.duration(folder, content["id"])
            if took is not None:
                found.setdefault(_kind(Cell(**content["cell"])), []).append(took)
    return {kind: statistics.median(values) for kind, values in found.items()}


def exit_code(statuses: Iterable[str], strict: bool) -> int:
    """0 where every cell ended ok, diverged, unconverged or unsupported and at least one was measured; else 1."""
    counts = Counter(statuses)
    bad = [status for status in counts if status not in store.GOOD_STATUSES]
    if bad or not counts or not (counts.keys() & {"ok", "diverged", "unconverged"}):
        return 1
    return 1 if strict and (counts["diverged"] or counts["unconverged"]) else 0


def _write_plan(prepared: Prepared, command: list[str], described: dict[str, Any]) -> None:
    content = {
        "schema_version": store.SCHEMA_VERSION,
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "command": command,
        "device": prepared.device,
        "params": prepared.params,
        "packages": described["packages"],
        "request": dataclasses.asdict(prepared.request),
        "code": prepared.hashes,
        "cells": [
            {"id": cell.id, "columns": cell.columns(), "cell": dataclasses.asdict(cell)} for cell in prepared.cells
        ],
    }
    store.write_text(prepared.folder / "run.json", json.dumps(content, indent=1))


def _check_numbers(jobs: int | None, timeout: float) -> None:
    require(jobs is None or jobs >= 1, f"--jobs is {jobs}: at least 1")
    require(timeout > 0, f"--timeout is {timeout:g}: above 0, in seconds")


def _check_writable(folder: Path) -> None:
    """The nearest folder that exists must take a file; nothing stays behind."""
    parent = folder
    while not parent.exists():
        parent = parent.parent
    try:
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        raise Refused(f"--out {folder.parent}: cannot write there: {error.strerror}") from error


def _flat(table: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _joined(value: Any) -> str:
    values = value if isinstance(value, list) else [value]
    return ",".join(str(v).lower() if isinstance(v, bool) else str(v) for v in values)

"""Carries a request out: validate, find the device, plan, measure, and say what became of every cell."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import itertools
import json
import os
import re
import statistics
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import environment, plan, registry, store
from bench.backends import INSTALL
from bench.contract import require
from bench.engines import local
from bench.options import parse_name, split_list, unknown
from bench.plan import Cell, Request, parse_settings, paths
from bench.report.blocks import Block, Table

MEMORY_PER_JOB_GIB = 2.0
"""What a worker with one framework needs at least; bounds the default of --jobs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Execution:
    """How a request is carried out: nothing here changes which cells there are or what they are called."""

    out: Path = Path("results")
    run: str | None = None
    jobs: int | None = None
    shard: str | None = None
    timeout: float = 3600.0
    params: bool = True

    @classmethod
    def parse(cls, **given: Any) -> Execution:
        """None is "not given". ValueError names the option and what is allowed."""
        values = {name: value for name, value in given.items() if value is not None}
        for name, kind in (("out", str | Path), ("run", str), ("shard", str), ("jobs", int), ("timeout", int | float)):
            if name in values:
                found = values[name]
                require(isinstance(found, kind) and not isinstance(found, bool), f"--{name} is {found!r}")
        require(isinstance(values.get("params", True), bool), f"params is {values.get('params')!r}: true or false")
        if "out" in values:
            values["out"] = Path(values["out"])
        found = cls(**values)
        require(
            found.run is None or bool(re.fullmatch(r"[\w.][\w.+-]*", found.run)),
            f"--run {found.run!r}: letters, digits and . _ + - only",
        )
        require(found.jobs is None or found.jobs >= 1, f"--jobs is {found.jobs}: at least 1")
        require(found.timeout > 0, f"--timeout is {found.timeout:g}: above 0, in seconds")
        return found


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A validated run: nothing has been written yet.

    `mine` are the cells of this shard, `todo` those to be measured; `joins` says that the folder is a run's already.
    """

    cells: list[Cell]
    mine: list[Cell]
    todo: list[Cell]
    folder: Path
    device: str
    probes: dict[str, dict[str, Any]]
    request: Request
    hashes: dict[str, str]
    joins: bool
    jobs: int
    execution: Execution


@dataclasses.dataclass(frozen=True)
class Stored:
    """What a run.json says: what was asked for, the plan, device and code, and whether parameters are kept."""

    request: Request
    cells: list[Cell]
    device: str
    code: dict[str, str]
    params: bool

    @classmethod
    def read(cls, folder: Path, what: str) -> Stored:
        """ValueError, which begins with `what`: the file is damaged, or another version's."""
        content = store.load_json(folder / "run.json")
        try:
            return cls(
                Request(**content["request"]),
                [Cell(**cell["cell"]) for cell in content["cells"]],
                content["device"],
                dict(content["code"]),
                content["params"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{what}: its run.json cannot be used: {type(error).__name__}: {error}") from error

    def moved(self, plugin: str | Path | Iterable[str | Path], data: str | None) -> Request:
        """The request with its plugin files and data where they lie now, if they have moved; plugins are loaded."""
        moved = paths("plugin", plugin) or self.request.plugin
        request = dataclasses.replace(self.request, plugin=moved, data=self.request.data if data is None else data)
        _check_data(request)
        for path in request.plugin:
            registry.load_file(Path(path))
        return request


class Refused(ValueError):
    """A command that cannot be carried out as it stands; nothing was changed."""


def read_file(path: Path) -> dict[str, Any]:
    """The options of a TOML file, named as on the command line (`set` is a table); ValueError for unknown keys.

    `plugin` and `data` are relative to the file, as they are read; `out` to where the command is given.
    """
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    allowed = _names(Request) | _names(Execution)
    for key in content:
        if key not in allowed:
            raise unknown(f"key in {path.name}", key, allowed)
    require(isinstance(content.get("set", {}), dict), f"{path.name}: `set` is a table, [set]")
    if "plugin" in content:
        content["plugin"] = [str(path.parent / plugin) for plugin in paths("plugin", content["plugin"])]
    if isinstance(content.get("data"), str):
        content["data"] = str(path.parent / content["data"])
    return content


def merge(file: str | Path | None, options: Mapping[str, Any]) -> tuple[Request, Execution]:
    """What a file and options ask for, named as on the command line; options win. ValueError says what is wrong.

    Single values of `set` win, and plugins add up.
    """
    given = read_file(Path(file)) if file else {}
    own = {key: value for key, value in options.items() if value is not None}
    allowed = _names(Request) | _names(Execution)
    for key in own:
        if key not in allowed:
            raise unknown("option", key, allowed)
    settings = parse_settings(given.get("set", {})) | parse_settings(own.get("set", {}))
    plugins = [*given.get("plugin", []), *paths("plugin", own.get("plugin", []))]
    given |= own | {"set": settings, "plugin": plugins}
    how = _names(Execution)
    return (
        Request.parse(**{key: value for key, value in given.items() if key not in how}),
        Execution.parse(**{key: value for key, value in given.items() if key in how}),
    )


def prepare_either(
    file: str | Path | None,
    options: Mapping[str, Any],
    resume: str | None,
    retry: str | Iterable[str] | None,
    allow_changed_code: bool,
) -> Prepared:
    """A new run, or one that goes on; named as on the command line. ValueError says what is wrong."""
    if resume is None:
        require(retry is None, "--retry goes with --resume RUN")
        return prepare(*merge(file, options), allow_changed_code=allow_changed_code)
    own = {key: value for key, value in options.items() if value is not None}
    taken = sorted(own.keys() & ((_names(Request) | {"run", "params"}) - {"plugin", "data"})) + ["FILE"] * bool(file)
    require(not taken, f"--resume takes the plan of its run, so {', '.join(taken)} cannot go with it")
    moved = {key: own.pop(key) for key in ("plugin", "data") if key in own}
    for key in own:
        if key not in _names(Execution):
            raise unknown("option", key, _names(Execution))
    return prepare_resume(resume, Execution.parse(**own), retry=retry, allow_changed_code=allow_changed_code, **moved)


def prepare(request: Request, execution: Execution, *, allow_changed_code: bool = False) -> Prepared:
    """Everything that can go wrong before any work: ValueError with one line. Writes nothing."""
    name, shard = execution.run, execution.shard
    require(name is not None or shard is None, "--shard needs --run NAME: all shards of a run share its folder")
    _check_data(request)
    first_suite = parse_name(request.suite[0])[0]
    planned = plan.cells(request, "cpu", request.preset or "quick")  # what is wrong is said before a device is sought
    _check_reachable(planned)
    folder = execution.out / (name or _dated(first_suite))
    _check_writable(folder)
    device, probes = find_device(request.device, request.backends)
    preset = request.preset or ("default" if device.startswith("cuda") else "quick")
    cells = plan.cells(request, device.partition(":")[0], preset)
    mine = plan.shard(cells, shard) if shard else cells
    hashes = registry.code()
    joins = (folder / "run.json").exists()
    if joins:
        _check_joins(folder, cells, hashes, shard, allow_changed_code)
    todo = [cell for cell in mine if store.status(folder, cell.id) == "interrupted"]
    jobs = choose_jobs(execution.jobs, device, todo)
    return Prepared(cells, mine, todo, folder, device, probes, request, hashes, joins, jobs, execution)


def prepare_resume(
    run: str,
    execution: Execution,
    *,
    retry: str | Iterable[str] | None = None,
    plugin: str | Path | Iterable[str | Path] = (),
    data: str | None = None,
    allow_changed_code: bool = False,
) -> Prepared:
    """The cells of a run without a result, and those whose status is to be tried again.

    `plugin` and `data` say where the run's own plugin files and data lie now, if they have moved.
    """
    folder = Path(run) if (Path(run) / "run.json").is_file() else execution.out / run
    require(bool(run) and (folder / "run.json").is_file(), f"--resume {run}: no run in {folder}")
    statuses = [] if retry is None else split_list(retry)
    require(retry is None or bool(statuses), "--retry is empty: name at least one status")
    for status in statuses:
        if status not in store.STATUSES:
            raise unknown("status in --retry", status, store.STATUSES)
    stored = Stored.read(folder, f"--resume {run}")
    request = stored.moved(plugin, data)
    hashes = registry.code()
    _check_code(f"--resume {run}", stored.code, hashes, allow_changed_code)
    cells = stored.cells
    mine = plan.shard(cells, execution.shard) if execution.shard else cells
    todo = [cell for cell in mine if store.status(folder, cell.id) in ("interrupted", *statuses)]
    _check_writable(folder)
    device, probes = find_device(stored.device, request.backends)
    execution = dataclasses.replace(execution, params=stored.params)
    jobs = choose_jobs(execution.jobs, device, todo)
    return Prepared(cells, mine, todo, folder, device, probes, request, hashes, True, jobs, execution)


SHORTEST_ID = 6
"""Digits of a cell's id from which on it may stand for the whole."""


def find_cell(text: str, folders: list[Path]) -> tuple[str, Path]:
    """The id that begins with `text`, and of these runs the one that has its newest result.

    ValueError: shorter than `SHORTEST_ID`, no such cell, or several.
    """
    require(len(text) >= SHORTEST_ID, f"cell {text!r}: give at least {SHORTEST_ID} digits of its id")
    found: dict[str, list[Path]] = {}
    for folder in folders:
        for cell in store.load_json(folder / "run.json").get("cells", []):
            if cell["id"].startswith(text.lower()):
                found.setdefault(cell["id"], []).append(folder)
    runs = folders[0].name if len(folders) == 1 else f"these {len(folders)} runs"
    require(bool(found), f"no cell {text} in {runs}: reports and `bench run --plan` show the ids")
    require(len(found) == 1, f"cell {text} may be any of {', '.join(sorted(found))}: give more digits")
    ((cell_id, places),) = found.items()
    return cell_id, max(reversed(places), key=lambda folder: store.first(folder, cell_id, "started_at") or "")


def prepare_rerun(
    cell_id: str,
    place: Path,
    execution: Execution,
    *,
    device: str | None = None,
    plugin: str | Path | Iterable[str | Path] = (),
    data: str | None = None,
) -> Prepared:
    """One cell of the run in `place` as a run of its own, with as many threads as it had, under whatever code is here.

    `device`, `plugin` and `data` say where it is measured, and where what it needs lies now. ValueError: under this
    code the cell's content is another, so that nothing measured now would be the same cell.
    """
    stored = Stored.read(place, place.name)
    cell = next((cell for cell in stored.cells if cell.id == cell_id), None)
    require(cell is not None, f"{place.name}: what it says of cell {cell_id} has another id under this code")
    assert cell is not None
    request = dataclasses.replace(stored.moved(plugin, data), backends=[cell.backend])
    now = plan.current(cell)
    require(now.id == cell.id, f"cell {cell.id} is another under this code: {'; '.join(_changed(cell, now))}")
    folder = execution.out / (execution.run or _dated(cell.suite))
    _check_writable(folder)
    hashes = registry.code()
    require(not (folder / "run.json").exists(), f"--run {folder.name}: {folder} exists: give the new run another name")
    asked = Request.parse(suite=[cell.suite], device=device or stored.device).device
    found, probes = find_device(asked, request.backends)
    require(
        found.partition(":")[0] == cell.device,
        f"--device {asked}: cell {cell.id} is one of {cell.device}, and on {found} it would be another",
    )
    threads = store.first(place, cell.id, "threads")
    processors = range(1, (os.cpu_count() or 1) + 1)
    jobs = next((n for n in processors if local.threads(n) == threads), choose_jobs(None, found, [cell]))
    execution = dataclasses.replace(execution, params=stored.params)
    return Prepared([cell], [cell], [cell], folder, found, probes, request, hashes, False, jobs, execution)


def _changed(before: Cell, now: Cell) -> list[str]:
    """What makes two ids of a cell differ: the names, with what they are and were."""
    found = []
    for name, old in dataclasses.asdict(before).items():
        new = getattr(now, name)
        if isinstance(old, Mapping):
            found += [
                f"{key} is {value}, and was {old[key]}" if key in old else f"{key} is new, and {value}"
                for key, value in new.items()
                if old.get(key) != value
            ]
        elif old != new:
            found.append(f"{name} is {new}, and was {old}")
    return found


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
        number = int(device.partition(":")[2] or 0)
        for backend, probe in probes.items():
            if "reason" in probe:
                continue
            if not probe.get("cuda"):
                probe["reason"] = f"{backend} finds no GPU here; with one: {INSTALL[backend, 'cuda']}"
            elif number >= len(probe["devices"]):
                probe["reason"] = f"{backend} finds {len(probe['devices'])} GPUs here, and no {device}"
    return device, probes


def choose_jobs(asked: int | None, device: str, cells: list[Cell]) -> int:
    """As asked; else one on a GPU and where cells need their device to themselves, else what the machine has room for.

    The number of cells does not count: it would change the threads of a cell, and with them its last digits.
    """
    classes = {name: registry.find("suite", name) for name in {cell.suite for cell in cells}}
    exclusive = [name for name, cls in classes.items() if cls.exclusive or cls.isolation == "rounds"]
    require(
        not exclusive or asked in (None, 1),
        f"--jobs is {asked}: cells of the suite {''.join(exclusive[:1])} need their device to themselves",
    )
    if asked:
        return asked
    if device != "cpu" or exclusive:
        return 1
    memory = environment.memory_gib() or MEMORY_PER_JOB_GIB
    return max(1, min(len(environment.processors()), int(memory / MEMORY_PER_JOB_GIB)))


def check_baseline(baseline: str | None, models: Iterable[str]) -> None:
    """ValueError unless the model that others are to be compared with is among these, by its row's or plain name."""
    names = dict.fromkeys(name for model in models for name in (model, parse_name(model)[0]))
    if baseline is not None and baseline not in names:
        raise unknown("model in --baseline", baseline, names)


def rounds(cells: Iterable[Cell]) -> dict[str, int]:
    """How often a worker measures something for these cells of each suite: once each, or once a round."""
    return dict(Counter(work.cell.suite for work in local.order(list(cells), "")))


def begin(prepared: Prepared, command: list[str]) -> Prepared:
    """Makes the run's folder with its plan, unless it joins one. Refused where another run was faster."""
    if prepared.joins:
        return prepared
    text = json.dumps(_plan(prepared, command), indent=1)
    folder = prepared.folder
    for attempt in itertools.count(2):
        folder.mkdir(parents=True, exist_ok=True)
        if store.write_text_once(folder / "run.json", text):
            return dataclasses.replace(prepared, folder=folder)
        if prepared.execution.run is not None:
            break
        folder = prepared.folder.with_name(f"{prepared.folder.name}-{attempt}")
    _check_joins(folder, prepared.cells, prepared.hashes, prepared.execution.shard, allowed=False)
    return prepared


def measure(prepared: Prepared, progress: local.Progress) -> dict[str, str]:
    """Measures what is to be done, in the folder that `begin` has made; cell id -> status, all cells of the shard."""
    folder = prepared.folder
    (folder / "cells").mkdir(exist_ok=True)
    (folder / "environments").mkdir(exist_ok=True)
    described = environment.describe(prepared.probes)
    env_id = environment.identity(described)
    store.write_text(folder / "environments" / f"{env_id}.json", json.dumps(described, indent=1))
    job = local.Job(
        folder=folder,
        run_id=folder.name,
        env_id=env_id,
        code=registry.code_id(prepared.hashes),
        device=prepared.device,
        timeout=prepared.execution.timeout,
        plugins=tuple(prepared.request.plugin),
        data=prepared.request.data,
        params=prepared.execution.params,
    )
    runnable = []
    for cell in prepared.todo:
        if reason := prepared.probes.get(cell.backend, {}).get("reason"):
            local.write_failure(job, cell, "missing", reason)
            progress(cell, "missing")
        else:
            runnable.append(cell)
    local.run(runnable, job, prepared.jobs, progress)
    return {cell.id: store.status(folder, cell.id) for cell in prepared.mine}


def plan_blocks(prepared: Prepared, out: Path) -> list[Block]:
    """The cells as a table, with parameters, state sizes, and the time that cells of their kind took before."""
    seconds = _durations(out)
    rows: list[list[str]] = []
    sizes: dict[tuple, tuple[str, str]] = {}
    factors = [{"d_model": cell.d_model} | dict(cell.factors) for cell in prepared.todo]
    names = dict.fromkeys(name for found in factors for name in found)
    varying = [name for name in names if len({str(found.get(name)) for found in factors}) > 1]
    total, unknown_cells = 0.0, 0
    for cell, found in zip(prepared.todo, factors, strict=True):
        key = (cell.model, cell.depth, cell.task, cell.d_model)
        if key not in sizes:
            task = cell.task_object
            reals = cell.layer.state_reals if task is None else cell.layer.state_at(task.length)
            sizes[key] = (f"{cell.trained:,}", f"{reals:,}")
        took = seconds.get(cell.kind)
        total, unknown_cells = total + (took or 0), unknown_cells + (took is None)
        rows.append(
            [
                cell.id, cell.suite, cell.model, cell.backend, cell.device, cell.dtype, cell.task or "-",
                *(str(found.get(name, "-")) for name in varying), str(cell.depth), str(cell.seed), *sizes[key],
                "-" if took is None else f"{took:.0f}",
            ]
        )  # fmt: skip
    estimate = f"about {total / prepared.jobs:.0f} s with {prepared.jobs} at a time"
    if unknown_cells:
        estimate += f", and {unknown_cells} cells of kinds that have not run yet" if total else ""
        estimate = estimate if total else "no time estimate: no cell of these kinds has run yet"
    heads = ["cell", "suite", "model", "backend", "device", "dtype", "task", *varying, "depth", "seed", "parameters",
             "state reals", "seconds"]  # fmt: skip
    return [Table(f"Plan: {len(rows)} cells", heads, rows, notes=[estimate], numeric=heads[7 + len(varying) :])]


def _durations(out: Path) -> dict[str, float]:
    """Kind of cell -> median duration in seconds over the runs in a folder."""
    found: dict[str, list[float]] = {}
    for folder in store.runs(out) if out.is_dir() else []:
        for content in store.load_json(folder / "run.json").get("cells", []):
            took = store.duration(folder, content["id"])
            if took is not None:
                with contextlib.suppress(TypeError):  # a cell of another version of this harness
                    found.setdefault(Cell(**content["cell"]).kind, []).append(took)
    return {kind: statistics.median(values) for kind, values in found.items()}


def exit_code(statuses: Iterable[str], strict: bool) -> int:
    """0 where every cell ended ok, diverged, unconverged or unsupported and at least one was measured; else 1."""
    found = set(statuses)
    if found - set(store.GOOD_STATUSES) or not found & set(store.MEASURED_STATUSES):
        return 1
    return int(strict and bool(found & {"diverged", "unconverged"}))


def _plan(prepared: Prepared, command: list[str]) -> dict[str, Any]:
    """What run.json holds."""
    return {
        "schema_version": store.SCHEMA_VERSION,
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "command": command,
        "device": prepared.device,
        "params": prepared.execution.params,
        "packages": environment.packages(),
        "request": dataclasses.asdict(prepared.request),
        "code": prepared.hashes,
        "cells": [
            {"id": cell.id, "columns": cell.columns(), "cell": dataclasses.asdict(cell)} for cell in prepared.cells
        ],
    }


def _dated(suite: str) -> str:
    """A run's name where none is given."""
    return f"{datetime.now():%Y%m%d-%H%M%S}-{suite}"


def _names(cls: type) -> set[str]:
    return {field.name for field in dataclasses.fields(cls)}


def _check_data(request: Request) -> None:
    if request.data is not None:
        require(Path(request.data).is_dir(), f"--data {request.data}: there is no such folder")


def _check_reachable(cells: list[Cell]) -> None:
    """A worker is a process of its own: it finds what is installed and what a plugin file registers."""
    used: list[tuple[registry.Kind, set[str]]] = [
        ("suite", {cell.suite for cell in cells}),
        ("model", {cell.plain_model for cell in cells}),
        ("task", {parse_name(cell.task)[0] for cell in cells if cell.task}),
    ]
    for kind, names in used:
        for name in sorted(names):
            if registry.is_local(kind, name):
                raise Refused(
                    f"{kind} {name!r} is registered in this process only, where no worker finds it: "
                    "put it into a file of its own and name that as plugin"
                )


def _check_joins(folder: Path, cells: list[Cell], hashes: dict[str, str], shard: str | None, allowed: bool) -> None:
    """A run that exists takes only shards of its own plan."""
    content = store.load_json(folder / "run.json")
    if shard is None:
        raise Refused(f"--run {folder.name}: {folder} exists; to go on with it write --resume {folder.name}")
    if {cell["id"] for cell in content.get("cells", [])} != {cell.id for cell in cells}:
        raise Refused(f"--run {folder.name}: {folder} exists and is a run of other cells")
    _check_code(f"--run {folder.name}", content.get("code", {}), hashes, allowed)


def _check_code(what: str, before: dict[str, str], now: dict[str, str], allowed: bool) -> None:
    changed = sorted(name for name in now.keys() | before.keys() if now.get(name) != before.get(name))
    if changed and not allowed:
        names = ", ".join(changed[:5]) + (f" and {len(changed) - 5} more" if len(changed) > 5 else "")
        raise Refused(f"{what}: the code changed since ({names}); --allow-changed-code goes on all the same")


def _check_writable(folder: Path) -> None:
    """The nearest folder that exists must take a file, and the run's own holds a run or nothing. Nothing is left."""
    try:
        parent = folder
        while not parent.exists():
            parent = parent.parent
        with tempfile.TemporaryFile(dir=parent):
            pass
        foreign = folder.exists() and not (folder / "run.json").exists() and any(folder.glob("[!.]*"))
    except OSError as error:
        raise Refused(f"--out {folder.parent}: cannot write {folder.name} there: {error.strerror or error}") from error
    require(not foreign, f"--run {folder.name}: {folder} exists and is no run")

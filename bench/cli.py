"""The command line: parses, calls, prints."""

from __future__ import annotations

import json
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    help="Compares linear recurrent sequence models: RotRNN, LRU, S4D, S5, and yours.",
)

Models = Annotated[str | None, typer.Option(help="Names, e.g. rotrnn,'lru[gamma=tied]'.  [default: all four]")]
Out = Annotated[Path, typer.Option(help="The folder that runs are made in.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Plugins = Annotated[list[str] | None, typer.Option("--plugin", help="A Python file that registers your own.")]


@app.command()
def run(
    file: Annotated[Path | None, typer.Argument(help="A TOML file that says the same as the options.")] = None,
    suite: Annotated[str | None, typer.Option(help="Suites.  [default: stability]")] = None,
    models: Models = None,
    backends: Annotated[str | None, typer.Option(help="torch, jax.  [default: torch]")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.  [default: auto]")] = None,
    dtypes: Annotated[str | None, typer.Option(help="float32, float64, tf32.  [default: float32]")] = None,
    tasks: Annotated[str | None, typer.Option(help="Tasks, e.g. digits,'listops[max_length=150]'.")] = None,
    depths: Annotated[str | None, typer.Option(help="Numbers of blocks, e.g. 1,2,4.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, e.g. 0-4,7.  [default: 0-2]")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="OPTION=V,.. of the suite, of models or tasks; MODEL.OPTION=V.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="quick, default.  [default: quick on a CPU]")] = None,
    variants: Annotated[bool, typer.Option("--variants", help="Add the variants that the models declare.")] = False,
    plugin: Plugins = None,
    data: Annotated[str | None, typer.Option(help="The folder with data sets of your own (or BENCH_DATA).")] = None,
    out: Out = Path("results"),
    name: Annotated[str | None, typer.Option("--run", help="The run's name.  [default: date and suite]")] = None,
    jobs: Annotated[int | None, typer.Option(help="Cells at a time.  [default: one a core on a CPU]")] = None,
    shard: Annotated[str | None, typer.Option(help="I/N: every N-th cell, for a job array; needs --run.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that a cell may take.")] = 3600.0,
    plan: Annotated[bool, typer.Option("--plan", help="Print the cells and stop.")] = False,
    resume: Annotated[str | None, typer.Option(help="A run whose missing cells are measured.")] = None,
    retry: Annotated[str | None, typer.Option(help="Statuses to try again, e.g. timeout,oom; with --resume.")] = None,
    allow_changed_code: Annotated[bool, typer.Option(help="Resume under other code.")] = False,
    params: Annotated[bool, typer.Option(help="Keep trained parameters.")] = True,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 for diverged and unconverged cells too.")] = False,
    as_json: Json = False,
) -> None:
    """Measures a suite: plans its cells, carries them to worker processes, reports.

    Exit status 0: every cell ended ok, diverged, unconverged or unsupported; 1: some did not, or nothing was measured;
    2: a wrong command; 130: interrupted, what was done is kept.
    """
    from bench import runner
    from bench.contract import require

    given = {
        "suite": suite, "models": models, "backends": backends, "device": device, "dtypes": dtypes, "tasks": tasks,
        "depths": depths, "seeds": seeds, "set": settings, "preset": preset, "variants": variants or None,
        "plugin": plugin, "data": data,
    }  # fmt: skip
    try:
        if resume is not None:
            taken = [f"--{key}" for key, value in {**given, "run": name, "FILE": file}.items() if value]
            require(not taken, f"--resume takes the plan of its run, so {', '.join(taken)} cannot go with it")
            prepared = runner.prepare_resume(
                resume, out=out, retry=retry or "", jobs=jobs, shard=shard, timeout=timeout,
                allow_changed_code=allow_changed_code,
            )  # fmt: skip
        else:
            require(retry is None, "--retry goes with --resume RUN")
            prepared = runner.prepare(
                runner.merge(file, given), out=out, name=name, jobs=jobs, shard=shard, timeout=timeout, params=params
            )
    except ValueError as error:
        _refuse(error)
    if plan:
        _show(runner.plan_blocks(prepared, out), as_json)
        return
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # what a scheduler sends
    started = time.monotonic()
    try:
        with _ProgressLines(len(prepared.todo), prepared.jobs) as progress:
            statuses = runner.measure(prepared, sys.argv[1:], progress.ended)
    except KeyboardInterrupt:
        done = sum((prepared.folder / "cells" / f"{cell.id}.parquet").exists() for cell in prepared.cells)
        message = f"interrupted: {done} of {len(prepared.cells)} cells are kept in {prepared.folder}"
        typer.echo(f"{message}; go on with: bench run --resume {prepared.folder}", err=True)
        raise typer.Exit(130) from None
    incomplete = _report([prepared.folder], as_json)
    typer.echo(f"{prepared.folder}: {time.monotonic() - started:.0f} s", err=True)
    raise typer.Exit(max(runner.exit_code(statuses.values(), strict), incomplete))


@app.command("report")
def report(
    runs: Annotated[list[Path] | None, typer.Argument(help="Runs.  [default: the newest in --out]")] = None,
    out: Out = Path("results"),
    as_json: Json = False,
    plugin: Plugins = None,
) -> None:
    """Shows what runs have measured: failures first. Exit status 1 where part of the results cannot be read."""
    from bench import registry, store

    try:
        for path in plugin or []:
            registry.load_file(Path(path))
        folders = []
        for path in runs or [_newest(out)]:
            found = store.runs(path if path.exists() else out / path)
            if not found:
                raise ValueError(f"{path}: there is no run here and none in {out}")
            folders += found
    except ValueError as error:
        _refuse(error)
    raise typer.Exit(_report(folders, as_json))


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(help="models, suites, tasks, backends or runs.")],
    out: Out = Path("results"),
    plugin: Plugins = None,
    as_json: Json = False,
) -> None:
    """Lists models, suites, tasks, backends or runs; what cannot be used is listed with the reason."""
    from bench import catalogue, registry
    from bench.options import unknown

    try:
        if what not in catalogue.LISTS:
            raise unknown("list", what, catalogue.LISTS)
        for path in plugin or []:
            registry.load_file(Path(path))
    except ValueError as error:
        _refuse(error)
    _show(catalogue.listing(what, out), as_json)


@app.command()
def show(model: str, plugin: Plugins = None, as_json: Json = False) -> None:
    """Shows a model: its equations, options, defaults, parameters with their roles, variants, source."""
    from bench import catalogue, registry

    try:
        for path in plugin or []:
            registry.load_file(Path(path))
        blocks = catalogue.model(model)
    except ValueError as error:
        _refuse(error)
    _show(blocks, as_json)


def main() -> None:
    """The console command."""
    app()


def _refuse(error: Exception) -> NoReturn:
    """One line, exit status 2."""
    typer.echo(f"bench: {' '.join(str(error).split())}", err=True)
    raise typer.Exit(2)


def _show(blocks: list[Any], as_json: bool) -> None:
    from bench.report import terminal

    if as_json:
        typer.echo(terminal.as_json(blocks))
    else:
        terminal.show(blocks)


def _newest(out: Path) -> Path:
    from bench import store

    found = store.runs(out) if out.is_dir() else []
    if not found:
        raise ValueError(f"no run in {out}: make one with `bench run`, or name a folder with --out")
    return found[-1]


def _report(folders: list[Path], as_json: bool) -> int:
    """Prints the report; 1 where results could not be read, else 0."""
    from bench import store
    from bench.report import overview, terminal

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = store.read_results(*folders)
    for warning in caught:
        typer.echo(f"bench: {warning.message}", err=True)
    incomplete = any(issubclass(warning.category, store.IncompleteResults) for warning in caught)
    if results.empty:
        typer.echo("bench: nothing was measured", err=True)
        return 1
    blocks = overview.report(results, folders)
    if as_json:
        runs = [str(folder) for folder in folders]
        content = {"runs": runs, "counts": overview.counts(results), "blocks": json.loads(terminal.as_json(blocks))}
        typer.echo(json.dumps(content, ensure_ascii=False, indent=1))
    else:
        terminal.show(blocks)
    return int(incomplete)


class _ProgressLines:
    """Cells done, failed and the time left: a live line on a terminal, a plain line now and then in a pipe."""

    def __init__(self, total: int, jobs: int) -> None:
        self.total, self.jobs = total, jobs
        self.console = Console(stderr=True)
        self.done = self.failed = 0
        self.started = self.shown = time.monotonic()
        self.bar: Progress | None = None

    def __enter__(self) -> _ProgressLines:
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
        from bench.store import GOOD_STATUSES

        self.done += 1
        self.failed += status not in GOOD_STATUSES
        seconds = time.monotonic() - self.started
        left = seconds / self.done * (self.total - self.done)
        state = f"{self.failed} failed, {_duration(left)} left" if self.done < self.total else f"{self.failed} failed"
        last = f"{cell.model} {cell.backend} depth {cell.depth} seed {cell.seed}: {status}"
        if self.bar:
            self.bar.update(self.task, completed=self.done, description=f"{state}; {last}")
        elif self.done == self.total or self.done == 1 or time.monotonic() - self.shown >= 10 or status != "ok":
            self.shown = time.monotonic()
            typer.echo(f"{self.done}/{self.total} cells, {state}; {last}", err=True)


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 100 else f"{minutes} min"

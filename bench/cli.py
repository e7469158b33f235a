"""The command line: parses, calls, prints."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import io
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn, cast, get_args

import typer
from rich.console import Console
from rich.markup import escape

COLLECTED_FROM = 50_000
"""New objects after which cycles are looked for: those of imports and tables live to a command's end."""


class _Commands(typer.core.TyperGroup):
    """Commands that refuse wrong options in one line, as they do wrong values."""

    def main(self, *args: Any, **extra: Any) -> Any:
        gc.set_threshold(COLLECTED_FROM)
        standalone = extra.pop("standalone_mode", True)
        try:
            status = super().main(*args, **(extra | {"standalone_mode": False}))
        except typer.Abort:
            status = 130
        except Exception as error:
            if not hasattr(error, "format_message"):  # what all errors of usage have, and only they
                raise
            status = 2
            typer.echo(_usage_line(error.format_message(), getattr(error, "ctx", None)), err=True)
        if standalone:
            sys.exit(status)
        return status


def _usage_line(message: str, context: Any) -> str:
    if message.startswith("Usage:"):  # what a bare `bench` shows
        return message
    command = context.command_path if context else "bench"
    return f"bench: {' '.join(message.split()).rstrip('.')}; see {command} --help"


def _whole(value: str | int) -> int:
    """Of what was typed, or of a default."""
    if not str(value).isdecimal():
        raise typer.BadParameter(f"{value!r}: allowed are whole numbers from 0")
    return int(value)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r}: allowed are numbers") from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode=None,  # square brackets are part of names and defaults
    pretty_exceptions_show_locals=False,
    help="Compares linear recurrent sequence models: RotRNN, LRU, S4D, S5, and yours.",
)

data_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Shows and makes data sets: list, check TASK, make TASK."
)
app.add_typer(data_app, name="data")

Listed = list[str] | None
Out = Annotated[Path, typer.Option(help="The folder that runs are made in.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Baseline = Annotated[str | None, typer.Option(help="The model that others are compared with.  [default: the first]")]
Timeout = Annotated[
    float | None,
    typer.Option(parser=_number, metavar="SECONDS", help="What a cell may take.  [default: 3600]"),
]
Unverified = Annotated[bool, typer.Option("--unverified", help="Show timings of layers that the oracle contradicts.")]
DataFolder = Annotated[str | None, typer.Option(help="The folder with data sets of your own (or BENCH_DATA).")]
TaskName = Annotated[str, typer.Argument(help="A name, e.g. digits or 'listops[max_length=150]'.")]
Plugins = Annotated[Listed, typer.Option("--plugin", help="A Python file that registers your own.")]


@app.command()
def run(
    file: Annotated[Path | None, typer.Argument(help="A TOML file that says the same as the options.")] = None,
    suite: Annotated[Listed, typer.Option(help="Suites, e.g. stability.")] = None,
    models: Annotated[Listed, typer.Option(help="Names, e.g. rotrnn,'lru[gamma=tied]'.  [default: all four]")] = None,
    backends: Annotated[Listed, typer.Option(help="torch, jax.  [default: torch]")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.  [default: auto]")] = None,
    dtypes: Annotated[Listed, typer.Option(help="float32, float64, tf32, bfloat16.  [default: float32]")] = None,
    tasks: Annotated[Listed, typer.Option(help="Tasks, e.g. digits,'listops[max_length=150]'.")] = None,
    depths: Annotated[Listed, typer.Option(help="Numbers of blocks, e.g. 1,2,4.")] = None,
    seeds: Annotated[Listed, typer.Option(help="Seeds, e.g. 0-4,7.  [default: 0-2]")] = None,
    settings: Annotated[
        Listed, typer.Option("--set", help="OPTION=V,.. of the suite, of models or tasks; MODEL.OPTION=V.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="quick, default.  [default: quick on a CPU]")] = None,
    tokens: Annotated[
        int | None, typer.Option(parser=_whole, metavar="N", help="Holds batch x length at this number.")
    ] = None,
    match: Annotated[
        str | None, typer.Option(help="params, state or flops: sets d_state of the others to the first model's size.")
    ] = None,
    compile_: Annotated[bool, typer.Option("--compile", help="torch.compile, verified against eager.")] = False,
    variants: Annotated[bool, typer.Option("--variants", help="Add the variants that the models declare.")] = False,
    plugin: Plugins = None,
    data: Annotated[str | None, typer.Option(help="The folder with data sets of your own (or BENCH_DATA).")] = None,
    out: Annotated[Path | None, typer.Option(help="Where the run's folder is made.  [default: results]")] = None,
    name: Annotated[str | None, typer.Option("--run", help="The run's name.  [default: date and suite]")] = None,
    jobs: Annotated[
        int | None,
        typer.Option(parser=_whole, metavar="N", help="Cells at a time.  [default: one a core on a CPU]"),
    ] = None,
    shard: Annotated[str | None, typer.Option(help="I/N: every N-th cell, for a job array; needs --run.")] = None,
    timeout: Timeout = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print the cells and stop.")] = False,
    resume: Annotated[str | None, typer.Option(help="A run whose missing cells are measured.")] = None,
    retry: Annotated[Listed, typer.Option(help="Statuses to try again, e.g. timeout,oom; with --resume.")] = None,
    allow_changed_code: Annotated[bool, typer.Option("--allow-changed-code", help="Go on under other code.")] = False,
    params: Annotated[
        bool | None, typer.Option("--params/--no-params", help="Keep trained parameters.  [default: --params]")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 for diverged and unconverged cells too.")] = False,
    baseline: Baseline = None,
    unverified: Unverified = False,
    as_json: Json = False,
) -> None:
    """Measures a suite in worker processes, and reports.

    Exit status 0: every cell ended ok, diverged, unconverged or unsupported; 1: some did not, or nothing was measured;
    2: a wrong command; 130: interrupted, what was done is kept.
    """
    from bench import runner
    from bench.contract import View

    given = {
        "suite": suite, "models": models, "backends": backends, "device": device, "dtypes": dtypes, "tasks": tasks,
        "depths": depths, "seeds": seeds, "set": settings, "preset": preset, "variants": variants or None,
        "plugin": plugin, "data": data, "out": out, "run": name, "jobs": jobs, "shard": shard, "timeout": timeout,
        "params": params, "tokens": tokens, "match": match, "compile": compile_ or None,
    }  # fmt: skip
    with _warnings_as_lines():
        try:
            prepared = runner.prepare_either(file, given, resume, retry, allow_changed_code)
            runner.check_baseline(baseline, (cell.model for cell in prepared.cells))
            if plan:
                _show(runner.plan_blocks(prepared, prepared.execution.out), as_json)
                return
            prepared = runner.begin(prepared, sys.argv[1:])
        except ValueError as error:
            _refuse(error)
    started = time.monotonic()
    statuses = _measure(prepared)
    view = View(baseline=baseline)
    only = statuses if prepared.execution.shard else None
    incomplete = _report([prepared.folder], as_json, view, unverified, only)
    typer.echo(f"{prepared.folder}: {time.monotonic() - started:.0f} s", err=True)
    raise typer.Exit(max(runner.exit_code(statuses.values(), strict), incomplete))


@app.command()
def rerun(
    cell: Annotated[str, typer.Argument(help="A cell's id, or its first digits, at least 6.")],
    runs: Annotated[list[Path] | None, typer.Argument(help="Runs to look in.  [default: all in --out]")] = None,
    device: Annotated[str | None, typer.Option(help="cuda, cuda:N or cpu.  [default: as it was]")] = None,
    plugin: Annotated[Listed, typer.Option("--plugin", help="Where its plugin files lie now, if they moved.")] = None,
    data: Annotated[str | None, typer.Option(help="Where its data lie now, if they moved.")] = None,
    out: Out = Path("results"),
    name: Annotated[str | None, typer.Option("--run", help="The new run's name.  [default: date and suite]")] = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Measures one cell again, as a run of its own, and compares.

    Says first what differs from then in code, packages, machine and threads; it gets as many threads as it had.

    Exit status 0: it ended ok, diverged or unconverged, whatever its values; 1: it did not; 2: a wrong command, or a
    cell that is another under today's code; 130: interrupted.
    """
    from bench import runner, store
    from bench.engines import local
    from bench.report import difference, provenance
    from bench.report.blocks import Note

    with _warnings_as_lines():
        try:
            cell_id, place = runner.find_cell(cell, _folders(runs or [out], out, None))
            execution = runner.Execution.parse(out=out, run=name, timeout=timeout)
            files = plugin or []
            prepared = runner.prepare_rerun(cell_id, place, execution, device=device, plugin=files, data=data)
        except ValueError as error:
            _refuse(error)
        before = store.read_results(place)
    before = before[before["cell_id"] == cell_id]
    then = provenance.Provenance.of_cells(before, [place])
    now = provenance.Provenance.of_process(prepared.hashes, prepared.probes, local.threads(prepared.jobs))
    blocks: list[Any] = [Note(f"cell {cell_id} of {place.name}: {difference.described(before)}")]
    if then.facts:
        blocks += provenance.differences(then, now, "then", "now")
    if not as_json:
        _show(blocks, as_json)
    started = time.monotonic()
    try:
        prepared = runner.begin(prepared, sys.argv[1:])
    except ValueError as error:
        _refuse(error)
    statuses = _measure(prepared)
    after = store.read_results(prepared.folder)
    found = [Note(f"now: {difference.ended(after)}"), *difference.again(before, after)]
    _show([*blocks, *found] if as_json else found, as_json)
    typer.echo(f"{prepared.folder}: {time.monotonic() - started:.0f} s", err=True)
    raise typer.Exit(runner.exit_code(statuses.values(), strict=False))


@app.command()
def diff(
    first: Annotated[Path, typer.Argument(metavar="A", help="A run, or a folder of runs, read as one.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="What is compared with it.")],
    metric: Annotated[str | None, typer.Option(help="A measure of the suites.  [default: all]")] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            parser=_number,
            metavar="X",
            help="0.05: a mean that is worse by more than 5 % of A's is a fault without a test.",
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="A cell that was ok must still be, or exit 1.")] = False,
    correction: Annotated[str, typer.Option(help="holm or benjamini-hochberg, over all that changed.")] = "holm",
    out: Out = Path("results"),
    plugin: Plugins = None,
    as_json: Json = False,
) -> None:
    """Compares two sets of results: cells, statuses, values.

    Cells are the same where their ids are. Values are compared by a test paired by seed, which three seeds are too few
    for: then --tolerance is what makes a worse mean a fault.

    Exit status 0: nothing is missing or worse; 1: a cell or a value is missing, a cell changed from ok, diverged,
    unconverged or unsupported to another status, a measure is worse, or a part could not be read; 2: a wrong command.
    """
    from bench import store
    from bench.options import unknown
    from bench.report import comparison, difference, provenance
    from bench.report.blocks import Note

    sides = [_folders([path], out, plugin) for path in (first, second)]
    try:
        if correction not in (corrections := get_args(comparison.Correction)):
            raise unknown("correction in --correction", correction, corrections)
        if tolerance is not None and not 0 <= tolerance < float("inf"):
            raise ValueError(f"--tolerance is {tolerance:g}: a share of the mean, 0 or more")
        with _warnings_as_lines() as caught:
            before, after = (store.read_results(*folders) for folders in sides)
        if before.empty:
            raise ValueError(f"{first}: its runs have no cells, so there is nothing to compare with")
        found = difference.difference(
            before, after, metric=metric, tolerance=tolerance, strict=strict,
            correction=cast(comparison.Correction, correction),
        )  # fmt: skip
    except ValueError as error:
        _refuse(error)
    old, new = (provenance.Provenance.of_cells(*side) for side in ((before, sides[0]), (after, sides[1])))
    heads = [
        Note(f"{name}: {path}, {results['cell_id'].nunique()} cells")
        for name, path, results in (("A", first, before), ("B", second, after))
    ]
    _show([*heads, *provenance.differences(old, new, "A", "B"), *difference.blocks(found)], as_json)
    incomplete = any(issubclass(warning.category, store.IncompleteResults) for warning in caught)
    raise typer.Exit(int(found.fault or incomplete))


@app.command("report")
def report(
    runs: Annotated[list[Path] | None, typer.Argument(help="Runs.  [default: the newest in --out]")] = None,
    out: Out = Path("results"),
    baseline: Baseline = None,
    unverified: Unverified = False,
    html: Annotated[Path | None, typer.Option(help="Write a page to this file instead, and print its name.")] = None,
    as_json: Json = False,
    plugin: Plugins = None,
) -> None:
    """Shows what runs have measured: failures first. Exit status 1 where part of the results cannot be read.

    With --html as one file for a browser, which loads nothing: tables to sort and filter, figures, all rows.
    """
    from bench.contract import View

    if html is not None:
        try:
            _check_file(html, "--html")
        except ValueError as error:
            _refuse(error)
    folders = _folders(runs, out, plugin)
    raise typer.Exit(_report(folders, as_json, View(baseline=baseline), unverified, html=html))


@app.command()
def table(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Runs, read as one.  [default: the newest in --out]")
    ] = None,
    suite: Annotated[str | None, typer.Option(help="Where the runs have several.")] = None,
    metric: Annotated[str | None, typer.Option(help="A measure of the suite.  [default: its first]")] = None,
    rows: Annotated[list[str] | None, typer.Option(help="Factors, e.g. model,backend.")] = None,
    columns: Annotated[list[str] | None, typer.Option(help="Factors, e.g. task.")] = None,
    where: Annotated[list[str] | None, typer.Option(help="FACTOR=VALUE: only these cells.")] = None,
    kind: Annotated[str, typer.Option("--format", help="text, latex, markdown, csv, html.")] = "text",
    statistic: Annotated[str, typer.Option(help="mean, median or iqm (interquartile mean), over seeds.")] = "mean",
    baseline: Annotated[
        str | None, typer.Option(help="A row's name: show differences from it, of times ratios, and all tests.")
    ] = None,
    overall: Annotated[bool, typer.Option("--overall", help="Add a column over all columns, and mean ranks.")] = False,
    correction: Annotated[str, typer.Option(help="holm or benjamini-hochberg, over the whole table.")] = "holm",
    published: Annotated[bool, typer.Option("--published", help="Add published figures, set apart.")] = False,
    summaries: Annotated[
        bool, typer.Option("--summaries", help="With --published: also figures that are not read in the paper itself.")
    ] = False,
    macros: Annotated[Path | None, typer.Option(help="Also write a file of LaTeX macros, one a number.")] = None,
    unverified: Unverified = False,
    out: Out = Path("results"),
    plugin: Plugins = None,
    as_json: Json = False,
) -> None:
    """Prints a table of one measure, with intervals and tests. Exit status 1 where results cannot all be read."""
    from bench import store
    from bench.options import split_list, unknown
    from bench.report import comparison, overview, scores, tables, terminal, writers

    folders = _folders(runs, out, plugin)
    try:
        if kind not in ("text", *writers.FORMATS):
            raise unknown("format in --format", kind, ("text", *writers.FORMATS))
        corrections = get_args(comparison.Correction)
        if correction not in corrections:
            raise unknown("correction in --correction", correction, corrections)
        chosen: dict[str, str] = {}
        for name, equals, value in (text.partition("=") for text in where or []):
            if not equals:
                raise ValueError(f"--where {name!r} should read FACTOR=VALUE")
            if chosen.setdefault(name.strip(), value.strip()) != value.strip():
                raise ValueError(f"--where {name.strip()}: {chosen[name.strip()]} and {value.strip()}: name one value")
        if macros is not None:
            _check_file(macros, "--macros")
        results, _, incomplete = _read(folders)
        found = tables.build(
            results, suite=suite, metric=metric, rows=split_list(rows or []), columns=split_list(columns or []),
            where=chosen, correction=cast(comparison.Correction, correction),
            statistic=cast(scores.Statistic, statistic), baseline=baseline, overall=overall, published=published,
            summaries=summaries, unverified=unverified, folders=folders,
        )  # fmt: skip
    except ValueError as error:
        _refuse(error)
    for note in [] if unverified else overview.verified(results)[1]:
        typer.echo(f"bench: {note.text}", err=True)
    if macros is not None:
        store.write_text(macros, writers.macros(found))
    if kind == "latex" and (wide := writers.too_wide(found)):
        typer.echo(f"bench: {wide}", err=True)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(found), ensure_ascii=False, indent=1))
    elif kind == "text":
        tests = [] if baseline is None else [writers.details(found)]
        terminal.show([writers.block(found), *tests])
    else:
        typer.echo(writers.FORMATS[kind](found), nl=False)
    raise typer.Exit(int(incomplete))


@app.command()
def why(
    place: Annotated[str, typer.Argument(help="FILE:LINE:COLUMN of a number in a table or a file of macros.")],
    runs: Annotated[list[Path] | None, typer.Argument(help="Runs to look in.  [default: all in --out]")] = None,
    out: Out = Path("results"),
    as_json: Json = False,
) -> None:
    """Shows the cells behind a number of a LaTeX table."""
    from bench import store
    from bench.report import why as reasons

    try:
        ids = reasons.cells_at(place)
        with _warnings_as_lines():
            folders = _folders(runs or [out], out, None)
            results = store.read_results(*folders)
    except (ValueError, OSError) as error:
        _refuse(error)
    _show(reasons.blocks(ids, results, folders), as_json)


@app.command()
def plot(
    runs: Annotated[list[Path] | None, typer.Argument(help="Runs.  [default: the newest in --results]")] = None,
    out: Annotated[Path, typer.Option(help="The folder that the files go to.")] = Path("figures"),
    formats: Annotated[str, typer.Option(help="png, pdf, svg.")] = "png,pdf",
    kind: Annotated[
        list[str] | None, typer.Option(help="Figures, by name.  [default: all that there is data for]")
    ] = None,
    results: Annotated[Path, typer.Option(help="Where runs are.")] = Path("results"),
    baseline: Baseline = None,
    plugin: Plugins = None,
    as_json: Json = False,
) -> None:
    """Draws the figures that runs have data for.

    Exit status 1 where there is none, where a suite could not make its own, or where results cannot all be read.
    """
    from bench import runner
    from bench.contract import Missing, View
    from bench.options import split_list, unknown
    from bench.report import drawing, overview

    folders = _folders(runs, results, plugin)
    try:
        if out.exists() and not out.is_dir():
            raise ValueError(f"--out {out}: this is no folder")
        wanted = split_list(formats)
        for name in wanted:
            if name not in drawing.FORMATS:
                raise unknown("format in --formats", name, drawing.FORMATS)
        if not wanted:
            raise ValueError("--formats is empty: name at least one")
        rows, _, incomplete = _read(folders)
        runner.check_baseline(baseline, rows["model"].dropna().unique())
        found, notes = overview.figures(rows, View(baseline=baseline))
        names = [figure.name for figure in found]
        kinds = split_list(kind or names)
        for name in kinds:
            if name not in names:
                raise unknown("figure in --kind", name, names)
        files = drawing.write([figure for figure in found if figure.name in kinds], out, wanted)
    except (ValueError, Missing) as error:
        _refuse(error)
    if as_json:
        typer.echo(json.dumps({"files": [str(file) for file in files]}, indent=1))
    else:
        for file in files:
            typer.echo(file)
    for note in notes:
        typer.echo(f"bench: {note.text}", err=True)
    if not files:
        typer.echo("bench: these runs have no figure", err=True)
    raise typer.Exit(int(incomplete or not files or any(note.fault for note in notes)))


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(help="models, suites, tasks, backends or runs.")],
    out: Out = Path("results"),
    plugin: Plugins = None,
    as_json: Json = False,
) -> None:
    """Lists models, suites, tasks, backends or runs. What cannot be used is listed with the reason."""
    from bench import catalogue, registry
    from bench.options import unknown

    try:
        if what not in catalogue.LISTS:
            raise unknown("list", what, catalogue.LISTS)
        for path in plugin or []:
            registry.load_file(Path(path))
    except ValueError as error:
        _refuse(error)
    with _warnings_as_lines():
        _show(catalogue.listing(what, out), as_json)


@app.command()
def show(model: str, plugin: Plugins = None, as_json: Json = False) -> None:
    """Shows a model: equations, options, roles, variants, source."""
    from bench import catalogue, registry

    try:
        for path in plugin or []:
            registry.load_file(Path(path))
        blocks = catalogue.model(model)
    except ValueError as error:
        _refuse(error)
    _show(blocks, as_json)


@app.command()
def check(
    model: Annotated[str, typer.Argument(help="A name, e.g. lru or 'lru[gamma=tied]'; d_model is 8 unless given.")],
    backends: Annotated[Listed, typer.Option(help="torch, jax.  [default: those that are installed]")] = None,
    dtypes: Annotated[Listed, typer.Option(help="float32, float64, bfloat16.  [default: float32,bfloat16]")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    plugin: Plugins = None,
    as_json: Json = False,
) -> None:
    """Checks that a layer is right, against a float64 loop.

    And whatever else a network asks of it. Exit status 0: it is; 1: it is not.
    """
    from bench import registry
    from bench.contract import Missing
    from bench.options import split_list

    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch needs room on the same GPU
    try:
        for path in plugin or []:
            registry.load_file(Path(path))
        from bench import conformance

        asked = split_list(dtypes) if dtypes else ["float32", "bfloat16"]
        named = split_list(backends) if backends else None
        with Console(stderr=True).status("") as status:  # a check takes up to a minute a backend
            rows = conformance.check(
                model, backends=named, dtypes=asked, device=device, begun=lambda what: status.update(escape(what))
            )
    except (ValueError, Missing) as error:
        _refuse(error)
    _show([conformance.table(model, rows)], as_json)
    raise typer.Exit(int(any(row.status == "failed" for row in rows)))


@app.command()
def selftest(
    backend: Annotated[str | None, typer.Option(help="torch or jax.  [default: the first that is installed]")] = None,
    as_json: Json = False,
) -> None:
    """Shows what this machine can resolve, by known fakes.

    Fakes of known behaviour go through the suites, which must recover it.

    Exit status 0: all recovered; 1: not.
    """
    from bench import selftest as tests

    checks: list[tuple[str, tests.Check]] = []
    with _warnings_as_lines():
        try:
            for suite, found in tests.run(backend):
                typer.echo(f"{suite}: {len(found)} checks", err=True)
                checks += [(suite, check) for check in found]
        except ValueError as error:
            _refuse(error)
    _show(tests.table(checks), as_json)
    raise typer.Exit(int(any(check.passed is False for _, check in checks)))


@app.command()
def track(
    first: Annotated[str | None, typer.Argument(metavar="A", help="A commit.  [default: the newest but one]")] = None,
    second: Annotated[str | None, typer.Argument(metavar="B", help="A commit.  [default: the newest]")] = None,
    measure: Annotated[bool, typer.Option("--run", help="Measure what is checked out, and keep it.")] = False,
    config: Annotated[Path, typer.Option(help="asv's configuration.")] = Path("asv.conf.json"),
    as_json: Json = False,
) -> None:
    """Compares figures of two commits; --run measures them.

    What is worse is marked. `make track` is `bench track --run`: asv measures what is checked out.

    Exit status 0: nothing is worse; 1: something is, or has no value; 2: a wrong command, or no results.
    """
    from bench import tracking

    try:
        found = tracking.Config.read(config)
        if measure:
            if first is not None:
                raise ValueError(f"--run measures what is checked out, so it takes no commit: {first}")
            ran = tracking.run(found, lambda text: typer.echo(f"bench: {text}", err=True))
        else:
            pairs = tracking.choose(found, first, second)
    except ValueError as error:
        _refuse(error)
    except tracking.NothingStored as error:
        typer.echo(f"bench: {error}", err=True)
        raise typer.Exit(1) from error
    if measure:
        _show(tracking.run_blocks(ran), as_json)
        raise typer.Exit(int(ran.file is None))
    unit = tracking.units(found.results)
    compared = [(before, after, tracking.compare(before, after, unit)) for before, after in pairs]
    _show([block for pair in compared for block in tracking.compare_blocks(*pair)], as_json)
    raise typer.Exit(int(any(change.fault for *_, changes in compared for change in changes)))


@data_app.command("list")
def data_list(data: DataFolder = None, plugin: Plugins = None, as_json: Json = False) -> None:
    """Lists all tasks, and whether their data are there."""
    from bench import datasets

    with _data_command(data, plugin):
        blocks = datasets.listing()
    _show(blocks, as_json)


@data_app.command("check")
def data_check(
    task: TaskName,
    seed: Annotated[int, typer.Option(parser=_whole, metavar="N", help="The seed of data that are generated.")] = 0,
    data: DataFolder = None,
    plugin: Plugins = None,
    as_json: Json = False,
) -> None:
    """Shows sizes, lengths, labels, leakage, floors.

    And a checksum over all of it. Exit status 0; 1: two splits share inputs.
    """
    from bench import datasets
    from bench.report.blocks import Note

    with _data_command(data, plugin):
        blocks = datasets.check(task, seed)
    _show(blocks, as_json)
    raise typer.Exit(int(any(isinstance(block, Note) and block.fault for block in blocks)))


@data_app.command("make")
def data_make(
    task: TaskName,
    seeds: Annotated[Listed, typer.Option(help="Seeds, e.g. 0-4,7.  [default: 0]")] = None,
    data: DataFolder = None,
    plugin: Plugins = None,
    as_json: Json = False,
) -> None:
    """Makes the data of these seeds, so that runs find them."""
    from bench import datasets
    from bench.options import split_numbers

    with _data_command(data, plugin):
        numbers = [0] if seeds is None else split_numbers(seeds)
        if not numbers:
            raise ValueError("--seeds is empty")
        blocks = datasets.make(task, numbers)
    _show(blocks, as_json)


def main() -> None:
    """The console command. A terminal that lacks a character shows another one in its place."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    app()


@contextlib.contextmanager
def _data_command(folder: str | None, plugins: Listed) -> Iterator[None]:
    """What all commands on data sets do first; a wrong name, or data that are not there, is refused."""
    from bench import registry
    from bench.contract import Missing

    before = os.environ.get("BENCH_DATA")
    try:
        if folder is not None:
            if not Path(folder).is_dir():
                raise ValueError(f"--data {folder}: there is no such folder")
            os.environ["BENCH_DATA"] = folder
        for path in plugins or []:
            registry.load_file(Path(path))
        yield
    except (ValueError, Missing) as error:
        _refuse(error)
    finally:
        if folder is not None and before is not None:
            os.environ["BENCH_DATA"] = before
        elif folder is not None:
            os.environ.pop("BENCH_DATA", None)


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


def _folders(runs: list[Path] | None, out: Path, plugin: list[str] | None) -> list[Path]:
    """The folders of the runs that are meant, the newest where none is named."""
    from bench import registry, store

    folders: list[Path] = []
    with _warnings_as_lines():
        try:
            for file in plugin or []:
                registry.load_file(Path(file))
            for path in runs or [_newest(out)]:
                found = store.runs(path if path.exists() else out / path)
                if not found:
                    raise ValueError(f"{path}: there is no run here and none in {out}")
                folders += found
        except ValueError as error:
            _refuse(error)
    return folders


def _measure(prepared: Any) -> dict[str, str]:
    """Measures a run that has begun, with progress on stderr; what interrupts it ends the command."""
    from bench import runner
    from bench.progress import ProgressLines, what_varies

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what a scheduler sends
    try:
        names = what_varies(prepared.cells)
        with ProgressLines(len(prepared.todo), runner.rounds(prepared.todo), names) as progress:
            return runner.measure(prepared, progress.ended)
    except (KeyboardInterrupt, OSError) as error:
        done = sum((prepared.folder / "cells" / f"{cell.id}.parquet").exists() for cell in prepared.mine)
        interrupted = isinstance(error, KeyboardInterrupt)
        message = f"{'interrupted' if interrupted else error}: {done} of {len(prepared.mine)} cells are kept"
        typer.echo(f"{message}; go on with: bench run --resume {prepared.folder}", err=True)
        raise typer.Exit(130 if interrupted else 1) from None


def _check_file(path: Path, option: str) -> None:
    """ValueError unless a file can be written there."""
    if path.is_dir():
        raise ValueError(f"{option} {path}: this is a folder: name a file in it")
    if not path.parent.is_dir():
        raise ValueError(f"{option} {path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"{option} {path}: nothing can be written into {path.parent}")


def _read(folders: list[Path]) -> tuple[Any, list[str], bool]:
    """The rows of these runs, what was warned of, and whether some could not be read."""
    from bench import store

    with _warnings_as_lines() as caught:
        results = store.read_results(*folders)
    incomplete = any(issubclass(warning.category, store.IncompleteResults) for warning in caught)
    return results, [str(warning.message) for warning in caught], incomplete


def _report(
    folders: list[Path], as_json: bool, view: Any, unverified: bool, only: Collection[str] | None = None,
    html: Path | None = None,
) -> int:  # fmt: skip
    """Prints the report, of `only` these cells, or writes it as a page; 1 where results could not be read, else 0."""
    from bench import runner
    from bench.report import overview, terminal
    from bench.report.blocks import Note

    results, warned, incomplete = _read(folders)
    if only is not None:
        results = results[results["cell_id"].isin(only)]
    if results.empty:
        typer.echo("bench: nothing was measured", err=True)
        return 1
    try:
        runner.check_baseline(view.baseline, results["model"].dropna().unique())
    except ValueError as error:
        _refuse(error)
    parts: list[Any] = []
    if html is None:
        blocks = overview.report(results, folders, view, unverified)
    else:
        blocks, parts = _write_page(html, results, folders, view, unverified, warned)
        typer.echo(html, err=as_json)
    if as_json:
        runs = [str(folder) for folder in folders]
        content = {"runs": runs, "counts": overview.counts(results), "blocks": json.loads(terminal.as_json(blocks))}
        typer.echo(json.dumps(content, ensure_ascii=False, indent=1))
    elif html is None:
        terminal.show(blocks)
    return int(incomplete or any(isinstance(block, Note) and block.fault for block in [*blocks, *parts]))


def _write_page(
    file: Path, results: Any, folders: list[Path], view: Any, unverified: bool, warned: list[str]
) -> tuple[list[Any], list[Any]]:
    """The blocks of the report, and notes on parts that the page alone has."""
    from bench import store
    from bench.report.contents import gather
    from bench.report.page import page

    with _warnings_as_lines():
        found = gather(results, folders, view, unverified, list(dict.fromkeys(warned)))
    try:
        store.write_text(file, page(found))
    except OSError as error:
        _refuse(error)
    return found.blocks(), [note for section in found.sections for note in section.notes]


@contextlib.contextmanager
def _warnings_as_lines() -> Iterator[list[warnings.WarningMessage]]:
    """Prints what was warned of inside as lines for a reader; yields the list that fills."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield caught
    for text in dict.fromkeys(str(warning.message) for warning in caught):
        typer.echo(f"bench: {text}", err=True)

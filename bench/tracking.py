"""Figures over commits: runs asv for what is checked out, refuses results with holes, and compares two commits.

Of asv's files, `RESULTS/MACHINE/COMMIT-ENVIRONMENT.json`, these fields are read: commit_hash, date, params.machine,
params.tree (ours: "dirty"), and of each row in `results`, by `result_columns`: result, params, version, started_at,
stats_ci_99_a and _b. In a result null is a failure and NaN was skipped. `RESULTS/benchmarks.json` gives the units.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench import backends, environment, registry, store
from bench.contract import require
from bench.report.blocks import Block, Note, Table
from bench.report.units import BYTES, TIMES, figure

INSTALL = 'pip install "linrec-bench[track]"'
DIRTY = "-dirty"
BUSY = 0.5
"""The load a processor from which on a machine is called busy."""

ABOUT_RUNS = ("benchmarks.json", "machine.json")
"""What asv keeps beside its results."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """By how much a figure may grow: by a share of what it was, and by so much at least, whatever it was."""

    share: float = 0.0
    least: float = 0.0

    def __str__(self) -> str:
        parts = [f"{self.share:.0%}"] * bool(self.share) + [f"{self.least:,.10g}"] * bool(self.least)
        return " and ".join(parts)


RULES = {
    "s": Rule(share=0.15),
    "B": Rule(share=0.1, least=4 * 2**20),
    "of the largest": Rule(least=2e-5),
    "log2": Rule(least=0.01),
}
"""By unit. Times: the 99 % intervals must be apart as well. Memory: a process gains and loses 2 MiB by itself. Errors:
a tenth of what float32 is allowed. Drift, by its size: rounding moves it by 1e-5, and a model that trains differently
by more than a hundredth of a doubling."""

OTHER = Rule(share=0.1)


@dataclasses.dataclass(frozen=True)
class Config:
    """What of asv's configuration matters here, with the folder that its paths start from."""

    folder: Path
    content: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> Config:
        """ValueError where there is no such file, or it is none of asv's."""
        require(path.is_file(), f"--config {path}: there is no such file; run this in a checkout")
        try:
            content = json.loads(path.read_text())
        except ValueError as error:
            raise ValueError(f"--config {path}: no JSON: {error}") from error
        for name in ("results_dir", "benchmark_dir", "repo"):
            require(isinstance(content.get(name), str), f"--config {path}: it has no {name}")
        return cls(path.resolve().parent, content)

    @property
    def results(self) -> Path:
        return self.folder / self.content["results_dir"]

    def writing_to(self, results: Path) -> str:
        """The same configuration for asv, with its results elsewhere, wherever it is read from."""
        where = {
            name: str(self.folder / self.content[name])
            for name in ("repo", "benchmark_dir", "env_dir", "html_dir")
            if name in self.content
        }
        return json.dumps(dict(self.content) | where | {"results_dir": str(results)})


@dataclasses.dataclass(frozen=True)
class Figure:
    """One value: None where measuring it failed, NaN where it was skipped. `interval`: 99 %, where times were taken."""

    value: float | None
    version: str
    interval: tuple[float, float] | None = None

    @property
    def measured(self) -> bool:
        return self.value is not None and math.isfinite(self.value)


Name = tuple[str, tuple[str, ...]]
"""A benchmark and its parameters."""


@dataclasses.dataclass(frozen=True)
class Stored:
    """What asv measured of one commit on one machine."""

    commit: str
    dirty: bool
    machine: str
    date: float
    """Of the commit, ms."""
    started: float
    """Of the first benchmark, ms."""
    figures: Mapping[Name, Figure]

    @property
    def name(self) -> str:
        return self.commit[:8] + DIRTY * self.dirty

    @property
    def order(self) -> tuple[float, float]:
        return self.date, self.started

    @classmethod
    def read(cls, path: Path) -> Stored:
        """ValueError where it is no file of asv's results."""
        try:
            content = json.loads(path.read_text())
            columns = content["result_columns"]
            figures: dict[Name, Figure] = {}
            started = []
            for benchmark, row in content["results"].items():
                found = dict(zip(columns, row, strict=False))  # asv leaves out what is empty at the end
                started.append(found.get("started_at") or 0)
                names = list(itertools.product(*(found.get("params") or [])))
                values = _spread(found.get("result"), len(names))
                low, high = (_spread(found.get(f"stats_ci_99_{end}"), len(names)) for end in "ab")
                for i, params in enumerate(names):
                    known = low[i] is not None and high[i] is not None
                    interval = (float(low[i]), float(high[i])) if known else None
                    value = None if values[i] is None else float(values[i])
                    plain = tuple(text.strip("'") for text in params)
                    figures[benchmark, plain] = Figure(value, str(found.get("version")), interval)
            return cls(
                commit=content["commit_hash"],
                dirty=content["params"].get("tree") == "dirty",
                machine=content["params"]["machine"],
                date=float(content["date"]),
                started=float(min(started, default=0)),
                figures=figures,
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: these are no results of asv: {type(error).__name__}: {error}") from error


def _spread(values: list[Any] | None, count: int) -> list[Any]:
    """asv writes one null where all of a list are null."""
    return [None] * count if values is None else list(values)


def stored(results: Path) -> list[Stored]:
    """All results in a folder of asv's, oldest commit first, and of one commit what was measured first."""
    paths = [path for path in results.glob("*/*.json") if path.name not in ABOUT_RUNS]
    return sorted((Stored.read(path) for path in paths), key=lambda found: found.order)


def units(results: Path) -> dict[str, str]:
    """Benchmark -> unit; a benchmark that is not there any more has none."""
    try:
        content = json.loads((results / "benchmarks.json").read_text())
        return {name: str(about.get("unit", "")) for name, about in content.items() if isinstance(about, dict)}
    except (OSError, ValueError):
        return {}


# measuring


class NothingStored(Exception):
    """asv ended without results; its own words are on stderr."""


@dataclasses.dataclass(frozen=True)
class Run:
    """What came of a run: the results, which of them failed, which were skipped and why, and what is to be said."""

    found: Stored
    failed: list[Name]
    skipped: dict[str, str]
    """Backend -> why."""
    file: Path | None
    """Where the results are kept; None where they are not, because some are missing."""


def run(config: Config, warn: Callable[[str], None]) -> Run:
    """Measures what is checked out, in the environment that is installed, and keeps it as the results of HEAD.

    Results with a null are not kept. What is measured is the working tree: where it differs from HEAD, that is warned
    of, and the results are kept beside those of HEAD, marked. asv's own output goes to stderr. ValueError: this cannot
    be measured here; NothingStored: asv gave up.
    """
    require(importlib.util.find_spec("asv") is not None, f"asv is not installed: {INSTALL}")
    own = config.folder / "bench" / "__init__.py"
    require(
        not own.is_file() or config.folder == registry.ROOT,
        f"what is installed is not this checkout: run `pip install -e .` in {config.folder}",
    )
    commit = _git(config, "rev-parse", "HEAD") or ""
    require(commit != "", f"{config.folder} is no git checkout with a commit: nothing to file results under")
    marked = commit[:8] + DIRTY
    changed = changes(config)
    if changed:
        warn(
            f"the working tree is not {commit[:8]}: {len(changed)} changed, the first is {changed[0]}. The working "
            f"tree is what is measured; it is kept as {marked}"
        )
    _warn_of_load(warn)
    with tempfile.TemporaryDirectory(prefix="linrec-bench-asv-") as name:
        folder = Path(name)
        (folder / "asv.conf.json").write_text(config.writing_to(folder / "results"))
        status = _asv(folder, commit)
        paths = [p for p in (folder / "results").glob("*/*.json") if p.name not in ABOUT_RUNS]
        if len(paths) != 1:
            raise NothingStored(f"asv ended with exit status {status} and has stored nothing")
        if not changed:
            changed = changes(config) if _git(config, "rev-parse", "HEAD") == commit else ["HEAD"]
            if changed:
                warn(f"{changed[0]} has changed while it was measured, so the results are kept as {marked}")
        found = Stored.read(paths[0])
        failed, skipped = holes(found, expected(folder / "results"))
        keep = not failed and any(figure.measured for figure in found.figures.values())
        file = _keep(paths[0], config.results, dirty=bool(changed)) if keep else None
        return Run(Stored.read(file) if file else found, failed, skipped, file)


def _warn_of_load(warn: Callable[[str], None]) -> None:
    processors = os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > BUSY * processors:
        warn(f"this machine is busy, a load of {load:.1f} on {processors} processors: times will show it")


def changes(config: Config) -> list[str]:
    """Files that differ from HEAD, and Python files that git does not know: these can change what is measured."""
    lines = (_git(config, "status", "--porcelain", "--untracked-files=all", strip=False) or "").splitlines()
    return [line[3:] for line in lines if not line.startswith("??") or line.endswith(".py")]


def expected(results: Path) -> set[Name]:
    """All benchmarks that asv has found, at all parameters."""
    content = json.loads((results / "benchmarks.json").read_text())
    found = {name: about for name, about in content.items() if isinstance(about, dict)}
    return {
        (name, tuple(text.strip("'") for text in params))
        for name, about in found.items()
        for params in itertools.product(*about.get("params", []))
    }


def holes(found: Stored, wanted: set[Name]) -> tuple[list[Name], dict[str, str]]:
    """What has no value: failures, and backends that are not installed here, with the reason.

    NaN, asv's word for skipped, is taken for an answer of these backends alone: elsewhere something went missing.
    """
    absent = {name: reason for name in backends.NAMES if (reason := environment.installed(name))}
    failed, skipped = [], {}
    for name in sorted(wanted | found.figures.keys()):
        figure = found.figures.get(name)
        if figure is not None and figure.measured:
            continue
        missing = next((param for param in name[1] if param in absent), None)
        if figure is not None and figure.value is not None and missing:
            skipped[missing] = absent[missing]
        else:
            failed.append(name)
    return failed, skipped


def run_blocks(found: Run) -> list[Block]:
    """What came of a run, failures first."""
    blocks: list[Block] = []
    if found.failed:
        rows = [[name, ", ".join(params)] for name, params in found.failed]
        blocks.append(Table("Without a value: these failed, see above why", ["benchmark", "at"], rows))
    for backend, reason in found.skipped.items():
        blocks.append(Note(f"{backend} is skipped: {reason}"))
    count = sum(figure.measured for figure in found.found.figures.values())
    if found.file:
        blocks.append(Note(f"{count} figures of {found.found.name} are in {found.file}; compare: bench track"))
    else:
        text = f"{len(found.failed)} without a value" if found.failed else "nothing was measured"
        blocks.append(Note(f"{text}, so nothing is kept of {found.found.name}", warning=True))
    return blocks


def _asv(folder: Path, commit: str) -> int:
    """Runs asv by the configuration in a folder; its exit status."""
    asv = [sys.executable, "-m", "asv", "--config", str(folder / "asv.conf.json")]
    if platform.node() not in _known_machines():
        subprocess.run([*asv, "machine", "--yes"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
    sys.stderr.flush()
    known = os.environ.get("PYTHONPATH")  # asv takes it from benchmarks unless it is said like this
    done = subprocess.run(
        [*asv, "run", "--python=same", f"--set-commit-hash={commit}", "--launch-method=spawn", "--record-samples",
         "--show-stderr"],
        stdin=subprocess.DEVNULL, stdout=2, env=os.environ | ({"ASV_PYTHONPATH": known} if known else {}), check=False,
    )  # fmt: skip
    return done.returncode


def _known_machines() -> list[str]:
    """The machines that asv has been told of: of any other it asks a terminal for its memory and processor."""
    try:
        return list(json.loads(Path("~/.asv-machine.json").expanduser().read_text()))
    except (OSError, ValueError):
        return []


def _keep(path: Path, results: Path, dirty: bool) -> Path:
    """Carries results over, and what asv keeps beside them, to where they stay; those of a changed tree are marked."""
    content = json.loads(path.read_text())
    name = path.name
    if dirty:
        name = f"{path.stem}{DIRTY}.json"
        content["env_name"] += DIRTY
        content["params"]["tree"] = "dirty"  # asv draws a line of its own for each of its values
    target = results / path.parent.name / name
    target.parent.mkdir(parents=True, exist_ok=True)
    for about, place in zip(ABOUT_RUNS, (results, target.parent), strict=True):
        store.write_text(place / about, (path.parents[1] / place.relative_to(results) / about).read_text())
    store.write_text(target, json.dumps(content))
    return target


# comparing


@dataclasses.dataclass(frozen=True)
class Change:
    """One figure of two commits. `mark`: worse, better, or nothing; failed; or why there is nothing to compare."""

    name: Name
    unit: str
    before: Figure | None
    after: Figure | None
    mark: str

    @property
    def fault(self) -> bool:
        return self.mark in ("WORSE", "FAILED")


def choose(config: Config, first: str | None, second: str | None) -> list[tuple[Stored, Stored]]:
    """Which results are compared, one pair a machine: those of two commits, by default the two newest.

    A commit is the beginning of its hash, with "-dirty" for a changed tree, or any name that git knows. With one commit
    given, it is compared with the newest. ValueError: an unknown commit, or no results.
    """
    found = stored(config.results) if config.results.is_dir() else []
    require(bool(found), f"no results in {config.results}: make some with `make track`")
    names = list(dict.fromkeys(one.name for one in reversed(found)))
    if first is None:
        require(len(names) > 1, f"only {names[0]} has results in {config.results}: there is nothing to compare it with")
        after, before = names[:2]
    else:
        before = _resolve(config, first, names)
        after = names[0] if second is None else _resolve(config, second, names)
    require(before != after, f"{before} and {after} are the same results")
    pairs = []
    for machine in sorted({one.machine for one in found}):
        of = {one.name: one for one in found if one.machine == machine}  # the last one measured
        if before in of and after in of:
            pairs.append((of[before], of[after]))
    require(bool(pairs), f"{before} and {after} were measured on different machines: nothing to compare")
    return pairs


def _resolve(config: Config, text: str, names: list[str]) -> str:
    """The name of stored results that a text means."""
    plain, dirty = text.removesuffix(DIRTY), text.endswith(DIRTY)
    known = [name for name in names if name.endswith(DIRTY) == dirty]
    matching = [name for name in known if len(plain) >= 4 and plain.startswith(name.removesuffix(DIRTY)[: len(plain)])]
    if not matching and (commit := _git(config, "rev-parse", "--verify", "--quiet", f"{plain}^{{commit}}")):
        matching = [name for name in known if commit.startswith(name.removesuffix(DIRTY))]
    if len(matching) == 1:
        return matching[0]
    problem = "means more than one" if matching else "has no results"
    raise ValueError(f"{text} {problem}: known are {', '.join(matching or names)}")


def compare(before: Stored, after: Stored, unit: Mapping[str, str]) -> list[Change]:
    """Every figure of either, the faults first."""
    found = []
    for name in sorted(before.figures.keys() | after.figures.keys()):
        one, two = before.figures.get(name), after.figures.get(name)
        found.append(Change(name, unit.get(name[0], ""), one, two, judge(one, two, unit.get(name[0], ""))))
    return sorted(found, key=lambda change: (not change.fault, change.mark == ""))


def judge(before: Figure | None, after: Figure | None, unit: str) -> str:
    """The mark of a figure. A null on either side is a failure."""
    if (before and before.value is None) or (after and after.value is None):
        return "FAILED"
    if before is None or after is None:
        return "new" if before is None else "gone"
    if before.value is None or after.value is None or not before.measured or not after.measured:
        return "skipped"
    if before.version != after.version:
        return "measured differently"
    rule = RULES.get(unit, OTHER)
    one, two = (abs(x) if unit == "log2" else x for x in (before.value, after.value))
    if before.interval and after.interval:
        (low, high), (later_low, later_high) = before.interval, after.interval
        if later_low <= high and low <= later_high:
            return ""
    if two - one > max(rule.share * abs(one), rule.least):
        return "WORSE"
    return "better" if one - two > max(rule.share * abs(two), rule.least) else ""


def compare_blocks(before: Stored, after: Stored, changes: list[Change]) -> list[Block]:
    """A table of all figures, and a line that says what matters."""
    rows = []
    for change in changes:
        (one, two), kind = _texts(change), change.name
        ratio = "-"
        if change.before and change.after and change.before.measured and change.after.measured and change.before.value:
            ratio = figure((change.after.value or 0.0) / change.before.value)
        rows.append([change.mark, kind[0], ", ".join(kind[1]), one, two, ratio])
    used = {change.unit: RULES.get(change.unit, OTHER) for change in changes}
    limits = "; ".join(f"{unit or 'others'} {rule}" for unit, rule in sorted(used.items()))
    table = Table(
        title=f"{before.name} against {after.name} on {after.machine}",
        columns=["", "benchmark", "at", before.name, after.name, "ratio"],
        rows=rows,
        notes=[f"WORSE: grown by more than {limits}; times with 99 % intervals apart, log2 by its size."],
        numeric=[before.name, after.name, "ratio"],
    )
    worse, failed = (sum(change.mark == mark for change in changes) for mark in ("WORSE", "FAILED"))
    text = f"{worse} worse, {failed} failed, of {len(changes)} figures"
    return [table, Note(text, warning=bool(worse or failed))]


def _texts(change: Change) -> list[str]:
    """Both values in one unit."""
    values = [one.value for one in (change.before, change.after) if one and one.measured and one.value is not None]
    factor, unit = 1.0, change.unit
    if change.unit == "s" and values:
        factor, unit = next((t for t in TIMES if min(values) >= t[0]), TIMES[-1])
    elif change.unit == "B" and values:
        factor, unit = next((b for b in BYTES if max(values) >= 2 * b[0]), BYTES[-1])
    return [_text(one, factor, unit) for one in (change.before, change.after)]


def _text(found: Figure | None, factor: float, unit: str) -> str:
    if found is None:
        return "-"
    if found.value is None:
        return "failed"
    if not found.measured:
        return "skipped"
    value = found.value / factor
    number = f"{value:.2e}" if 0 < abs(value) < 1e-3 else figure(value)
    return f"{number} {unit}" if unit in ("s", "ms", "µs", "B", "KiB", "MiB", "GiB") else number


def _git(config: Config, *words: str, strip: bool = True) -> str | None:
    """What git says of the checkout, or None."""
    command = ["git", "-C", str(config.folder), *words]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=True, env=os.environ | {"LC_ALL": "C"}
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if strip else done.stdout

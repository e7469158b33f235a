"""Runs asv for what is checked out, and keeps what it measured unless something is missing."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import backends, environment, registry, store
from bench.contract import require
from bench.report.blocks import Block, Note, Table
from bench.tracking.results import ABOUT_RUNS, DIRTY, Config, Name, Stored, git

INSTALL = 'pip install "linrec-bench[track]"'
BUSY = 0.5
"""The load a processor from which on a machine is called busy."""


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
    commit = git(config, "rev-parse", "HEAD") or ""
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
            changed = changes(config) if git(config, "rev-parse", "HEAD") == commit else ["HEAD"]
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
    lines = (git(config, "status", "--porcelain", "--untracked-files=all", strip=False) or "").splitlines()
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

"""What this machine can resolve: fakes of known behaviour go through the suites themselves, and must be recovered."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import environment, registry, runner, store
from bench.backends import NAMES
from bench.report.blocks import Block, Note, Table

if TYPE_CHECKING:
    import pandas as pd

MARK = "BENCH_SELFTEST"
"""A variable in the environment of all that a self-test starts, by which what is left behind is found."""

PATIENCE_S = 5.0
"""How long a process that was ended may take to go."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """What a fake does, what was found, whether it lies within the bounds that decide; `printed` decides nothing."""

    what: str
    planted: str
    found: str
    passed: bool | None
    printed: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selftest:
    """A suite's fakes: a plugin file, what is asked of `bench run`, and what its results must say."""

    plugin: Path
    request: Mapping[str, Any]
    judge: Callable[[pd.DataFrame], list[Check]]


def run(backend: str | None = None) -> Iterator[tuple[str, list[Check]]]:
    """The checks of each suite that has fakes, as they are done; last, whether a process was left behind.

    `backend` is the first that is installed unless given. ValueError where there is none.
    """
    installed = [name for name in NAMES if environment.installed(name) is None]
    if not installed or (backend and backend not in installed):
        raise ValueError(f"--backend {backend or 'torch or jax'}: {environment.installed(backend or NAMES[0])}")
    mark = uuid.uuid4().hex
    os.environ[MARK] = mark
    try:
        with tempfile.TemporaryDirectory(prefix="linrec-bench-selftest-") as folder:
            for name in registry.plugins("suite"):
                test = registry.find("suite", name).selftest()
                if test is None:
                    continue
                asked = dict(test.request) | {
                    "suite": name, "backends": backend or installed[0], "device": "cpu", "out": folder, "run": name,
                    "plugin": str(test.plugin),
                }  # fmt: skip
                prepared = runner.begin(runner.prepare(*runner.merge(None, asked)), ["bench.selftest"])
                runner.measure(prepared, lambda cell, status: None)
                yield name, test.judge(store.read_results(prepared.folder))
    finally:
        del os.environ[MARK]
    left = left_behind(mark)
    found = "none" if not left else ", ".join(map(str, left))
    yield "processes", [Check(what="left behind by all of these", planted="none", found=found, passed=not left)]


def left_behind(mark: str) -> list[int]:
    """The processes other than this one that carry the mark, after those that were ended have had time to go."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := list(_marked(mark))) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _marked(mark: str) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={mark}".encode() in path.read_bytes():
                yield int(path.parent.name)
        except OSError:  # it has gone, or is another user's
            continue


def table(checks: list[tuple[str, Check]]) -> list[Block]:
    """All checks, those that failed first, and how many passed."""
    words = {True: "passed", False: "FAILED", None: "floor"}
    ordered = sorted(checks, key=lambda pair: pair[1].passed is not False)
    rows = [
        [words[check.passed], suite, check.what, check.planted, check.found, check.printed or "-"]
        for suite, check in ordered
    ]
    judged = [check.passed for _, check in checks if check.passed is not None]
    text = f"{sum(judged)} of {len(judged)} checks passed"
    return [
        Table(
            title="What this machine can resolve",
            columns=["", "suite", "fake", "planted", "found", "beside it"],
            rows=rows,
            notes=["floor: the least that can be told apart here; it is measured and judged by nobody."],
        ),
        Note(text, warning=not all(judged)),
    ]

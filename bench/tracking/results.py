"""What asv has stored: its files read, of one commit or of all.

Of asv's files, `RESULTS/MACHINE/COMMIT-ENVIRONMENT.json`, these fields are read: commit_hash, date, params.machine,
params.tree (ours: "dirty"), and of each row in `results`, by `result_columns`: result, params, version, started_at,
stats_ci_99_a and _b. In a result null is a failure and NaN was skipped. `RESULTS/benchmarks.json` gives the units.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.contract import require

DIRTY = "-dirty"

ABOUT_RUNS = ("benchmarks.json", "machine.json")
"""What asv keeps beside its results."""


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


def git(config: Config, *words: str, strip: bool = True) -> str | None:
    """What git says of the checkout, or None."""
    command = ["git", "-C", str(config.folder), *words]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=True, env=os.environ | {"LC_ALL": "C"}
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if strip else done.stdout

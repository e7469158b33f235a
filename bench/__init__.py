"""A benchmarking harness for linear recurrent sequence models. Importing it imports no framework."""

from __future__ import annotations

from typing import Any

from bench import backends
from bench.arrays import ArrayLayer
from bench.contract import (
    DiagonalLayer,
    DiagonalSystem,
    Diverged,
    Layer,
    Missing,
    Suite,
    Task,
    Unsupported,
)
from bench.registry import register
from bench.store import read_results

__all__ = [
    "ArrayLayer",
    "DiagonalLayer",
    "DiagonalSystem",
    "Diverged",
    "Layer",
    "Missing",
    "Suite",
    "Task",
    "Unsupported",
    "backends",
    "layer",
    "read_results",
    "register",
    "run",
]


def layer(name: str, **options: Any) -> ArrayLayer:
    """The layer of a registered model as a plain-array face; `d_model` is 64 unless given.

    ValueError for an unknown name or option, or a value that cannot be honoured exactly.
    """
    from bench import registry
    from bench.options import build, parse_name

    plain, bracketed = parse_name(name)
    cls = registry.find("model", plain)
    return ArrayLayer(build(f"model {plain}", cls, {"d_model": 64} | bracketed | options))


def run(
    file: str | None = None,
    *,
    out: str = "results",
    run: str | None = None,
    jobs: int | None = None,
    shard: str | None = None,
    timeout: float = 3600.0,
    params: bool = True,
    resume: str | None = None,
    retry: str | list[str] = (),
    **options: Any,
) -> Any:
    """The same as `bench run` from Python: measures and returns the run's folder, for `read_results`.

    `options` are named as on the command line (suite, models, backends, device, dtypes, tasks, depths, seeds, preset,
    variants, plugin, data; `set` is a dict), as text or lists. ValueError says what is wrong before any work starts.
    """
    from pathlib import Path

    from bench import runner

    if resume is not None:
        prepared = runner.prepare_resume(resume, out=Path(out), retry=retry, jobs=jobs, shard=shard, timeout=timeout)
    else:
        given = runner.merge(file, options)
        prepared = runner.prepare(
            given, out=Path(out), name=run, jobs=jobs, shard=shard, timeout=timeout, params=params
        )
    runner.measure(prepared, ["bench.run"], lambda cell, status: None)
    return prepared.folder

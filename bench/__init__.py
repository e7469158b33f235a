"""A benchmarking harness for linear recurrent sequence models. Importing it imports no framework."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from bench import backends
    from bench.arrays import ArrayLayer
    from bench.contract import DiagonalLayer, DiagonalSystem, Diverged, Layer, Missing, Suite, Task, Unsupported, View
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
    "View",
    "backends",
    "layer",
    "read_results",
    "register",
    "run",
]

_CONTRACT = ("DiagonalLayer", "DiagonalSystem", "Diverged", "Layer", "Missing", "Suite", "Task", "Unsupported", "View")
_HOMES = {
    "ArrayLayer": "bench.arrays",
    "read_results": "bench.store",
    "register": "bench.registry",
    **dict.fromkeys(_CONTRACT, "bench.contract"),
}


def __getattr__(name: str) -> Any:
    """Each name is loaded at first use, so that `bench --help` waits for nothing."""
    if name == "backends":
        return importlib.import_module("bench.backends")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def layer(name: str, **options: Any) -> ArrayLayer:
    """The layer of a registered model as a plain-array face; `d_model` is 64 unless given.

    ValueError for an unknown name or option, or a value that cannot be honoured exactly.
    """
    from bench import registry
    from bench.arrays import ArrayLayer
    from bench.options import build, parse_name

    plain, bracketed = parse_name(name)
    cls = registry.find("model", plain)
    return ArrayLayer(build(f"model {plain}", cls, {"d_model": 64} | bracketed | options))


def run(
    file: str | Path | None = None,
    *,
    resume: str | None = None,
    retry: str | Iterable[str] | None = None,
    allow_changed_code: bool = False,
    **options: Any,
) -> Path:
    """The same as `bench run` from Python: measures and returns the run's folder, for `read_results`.

    `options` are named as on the command line, as texts or lists; `set` is a table. With `resume` only those that say
    how, not what: out, jobs, shard, timeout, plugin, data. ValueError says what is wrong before any work starts.
    """
    from bench import runner

    prepared = runner.prepare_either(file, options, resume, retry, allow_changed_code)
    prepared = runner.begin(prepared, ["bench.run"])
    runner.measure(prepared, lambda cell, status: None)
    return prepared.folder

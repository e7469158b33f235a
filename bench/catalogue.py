"""What there is: models, suites, tasks, backends and runs, and one model in detail."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import numpy as np

from bench import backends, environment, registry, store
from bench.contract import Layer, require
from bench.options import build, fields, parse_name
from bench.report.blocks import Block, Note, Table

LISTS = ("models", "suites", "tasks", "backends", "runs")


def listing(what: str, out: Path) -> list[Block]:
    """One of `LISTS` as a table; what cannot be used is there with the reason."""
    if what == "backends":
        rows = [[name, environment.installed(name) or "installed"] for name in backends.NAMES]
        return [Table("Backends", ["name", "state"], rows)]
    if what == "runs":
        rows = []
        for folder in store.runs(out) if out.is_dir() else []:
            content = store.load_json(folder / "run.json")
            done = len(list((folder / "cells").glob("*.parquet")))
            rows.append([folder.name, str(content.get("created", "-"))[:19], f"{done}/{len(content.get('cells', []))}"])
        return [Table(f"Runs in {out}", ["run", "created", "cells"], rows)]
    kind: Any = what.rstrip("s")
    rows = []
    for name, found in registry.plugins(kind).items():
        source = " and ".join(plugin.source for plugin in found)
        try:
            text = summary(registry.find(kind, name))
        except ValueError as error:
            text = f"cannot be used: {error}"
        rows.append([name, text, source])
    return [Table(what.capitalize(), ["name", "what it is", "registered by"], rows)]


def summary(cls: type) -> str:
    """The first line of the class's or else of its module's docstring."""
    module = inspect.getmodule(cls)
    text = (module.__doc__ if module and module.__doc__ else None) or inspect.getdoc(cls) or "-"
    return text.strip().splitlines()[0]


def model(name: str) -> list[Block]:
    """One model: docstring, options, parameters with shape and role, variants. ValueError for an unknown name."""
    plain, options = parse_name(name)
    cls = registry.find("model", plain)
    layer: Layer = build(f"model {plain}", cls, {"d_model": 64} | options)
    found: list[Block] = [
        Note(f"{name}: {inspect.getdoc(cls) or summary(cls)}"),
        Note(f"\nSource: {cls.source or '-'}"),
    ]
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    rows = [
        [option, _type(kind), "-" if defaults[option] is dataclasses.MISSING else str(defaults[option])]
        for option, kind in fields(cls).items()
        if option != "d_model"
    ]
    found.append(Table("Options", ["option", "values", "default"], rows))
    params, roles = layer.initial(np.random.default_rng(0)), layer.roles()
    odd = ", ".join(sorted(params.keys() ^ roles.keys()))
    require(not odd, f"model {name}: these have no role, or are no parameters: {odd}")
    rows = [[key, str(value.shape), roles[key], f"{value.size:,}"] for key, value in params.items()]
    carried = "a sequence" if layer.state_at(2) == layer.state_reals else "a sequence and time step"
    trained = sum(value.size for key, value in params.items() if roles[key] != "constant")
    found.append(
        Table(
            f"Parameters at d_model = {layer.d_model}",
            ["parameter", "shape", "role", "numbers"],
            rows,
            notes=[f"{trained:,} trained numbers; {layer.state_reals:,} real numbers of state {carried}"],
            numeric=["numbers"],
        )
    )
    if cls.variants:
        rows = [
            [f"{plain}[{','.join(f'{k}={v}' for k, v in chosen.items())}]", text]
            for text, chosen in cls.variants.items()
        ]
        found.append(Table("Variants", ["name", "what it is"], rows))
    return found


def _type(kind: Any) -> str:
    import typing

    if typing.get_origin(kind) is typing.Literal:
        return " | ".join(map(str, typing.get_args(kind)))
    return getattr(kind, "__name__", str(kind))

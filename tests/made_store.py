"""Stores that are made and not measured, and the command line that reads them."""

import hashlib
import json

from typer.testing import CliRunner

from bench import store
from bench.cli import app

NAME = "a_b&c%d#e[x=1]"
"""A model whose name has what some formats take for their own."""


def id_of(model, task, seed, depth=2):
    return hashlib.sha256(f"{model}/{task}/{depth}/{seed}".encode()).hexdigest()[:16]


def cell(model, seed, value=None, status="ok", task="digits", metric="accuracy", started=0, **columns):
    """(id, columns, rows) of a cell of the suite accuracy."""
    factors = {"recipe": "quick", "steps": 500}
    made = {
        "schema_version": 1, "suite": "accuracy", "suite_version": 1, "model": model, "options": "{}",
        "backend": "torch", "device": "cpu", "dtype": "float32", "task": task, "depth": 2, "d_model": 32,
        "seed": seed, "factors": json.dumps(factors), "compiled": False, "recipe": "quick", "status": status,
        "code": "c0de", "env_id": "env", "started_at": f"2026-01-0{1 + started}T00:00:00.000+00:00",
        "cell_id": id_of(model, task, seed, columns.get("depth", 2)),
    } | columns  # fmt: skip
    rows = [] if value is None else [{"metric": metric, "value": value, "split": "test", "step": 10}]
    return made, rows


def run_of(folder, cells, code=None, environment=None):
    """A run's folder with these cells, written as runs are; `code` and `environment` are what they were made with."""
    (folder / "cells").mkdir(parents=True)
    for columns, rows in cells:
        if columns["status"] != "interrupted":
            file = folder / "cells" / f"{columns['cell_id']}.parquet"
            store.write(file, store.table(columns | {"run_id": folder.name}, rows))
    plan = [
        {"id": columns["cell_id"], "columns": {key: value for key, value in columns.items() if key != "status"}}
        for columns, _ in cells
    ]
    (folder / "run.json").write_text(json.dumps({"created": folder.name, "cells": plan, "code": code or {}}))
    if environment:
        (folder / "environments").mkdir()
        (folder / "environments" / "env.json").write_text(json.dumps(environment))
    return folder


def seeds(model, values, **columns):
    """Cells of seeds 0, 1, .. with these values."""
    return [cell(model, seed, value, **columns) for seed, value in enumerate(values)]


def changed(cells, **columns):
    """The same cells of another run, whose ids differ because these columns do."""
    return [
        (made | columns | {"cell_id": hashlib.sha256((made["cell_id"] + str(columns)).encode()).hexdigest()[:16]}, rows)
        for made, rows in cells
    ]


def timed(model, times, seed=0, **columns):
    """A cell of the suite throughput: a list of times for each process, in seconds."""
    made, _ = cell(model, seed, suite="throughput", task=None, factors=json.dumps({"length": 64}), **columns)
    rows = [
        {"metric": "time", "value": value, "process": process, "sample": i}
        for process, samples in enumerate(times) for i, value in enumerate(samples)
    ]  # fmt: skip
    return made, rows


def invoke(*words):
    """The command line in this process: its exit status and what it printed."""
    return CliRunner().invoke(app, list(map(str, words)))

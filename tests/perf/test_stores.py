"""What large plans and stores take: time of whole commands as a user waits for them, and their memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench import plan, store
from bench.plan import Request

pytestmark = pytest.mark.perf

ROWS, CELLS = 1_000_000, 10_000
COMMAND = [sys.executable, "-m", "bench"]


@pytest.fixture(scope="module")
def million(tmp_path_factory) -> Path:
    """A run of a million rows: those of one real cell, repeated for other models, backends and seeds."""
    folder = tmp_path_factory.mktemp("stores")
    words = ["--suite", "stability", "--models", "rotrnn", "--depths", "2", "--seeds", "0", "--run", "one"]
    subprocess.run([*COMMAND, "run", *words, "--out", folder], check=True, capture_output=True)
    (measured,) = (folder / "one" / "cells").glob("*.parquet")
    rows = pq.read_table(measured)
    needed = -(-ROWS // (8 * len(rows)))
    request = Request.parse(
        suite="stability", models="rotrnn,lru,s4d,s5", backends="torch,jax", depths="2", seeds=f"0-{needed - 1}"
    )
    cells = plan.cells(request, "cpu", "quick")
    run = folder / "million"
    (run / "cells").mkdir(parents=True)
    for cell in cells:
        own = cell.columns() | {"run_id": run.name}
        for name, value in own.items():
            place, field = store.SCHEMA.get_field_index(name), store.SCHEMA.field(name)
            rows = rows.set_column(place, field, pa.array([value] * len(rows), field.type))
        store.write(store.file(run, cell.id), rows)
    content = [{"id": cell.id, "columns": cell.columns()} for cell in cells]
    (run / "run.json").write_text(json.dumps({"created": "2026", "cells": content}))
    assert len(rows) * len(cells) >= ROWS
    return run


@pytest.mark.parametrize("words", [["report"], ["table"], ["report", "--html", "page.html"]])
def test_a_million_rows(words, million, figure, benchmark, tmp_path):
    took, peaks = [], []

    def once():
        started = time.perf_counter()
        child = subprocess.Popen([*COMMAND, *words, million], cwd=tmp_path, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        took.append(time.perf_counter() - started)
        peaks.append(usage.ru_maxrss / 1024)
        assert os.waitstatus_to_exitcode(status) == 0

    benchmark.pedantic(once, rounds=3)
    line, plain = " ".join(["bench", *words[:2]]), words == ["report"]
    figure(line, "1e6 rows [s]", min(took), "<= 5" if plain else "")
    figure(line, "1e6 rows [MiB]", max(peaks), "<= 1024" if plain else "")


def test_ten_thousand_cells_are_planned(figure, benchmark):
    request = Request.parse(suite="stability", backends="torch,jax", depths="1,2,4,8,16", seeds="0-249")
    found = benchmark.pedantic(lambda: plan.cells(request, "cpu", "quick"), rounds=3, warmup_rounds=1)
    assert len({cell.id for cell in found}) == CELLS
    figure("plan", "10,000 cells [s]", benchmark.stats.stats.median, "<= 1")

"""What `bench selftest` judges and looks for; that it can fail."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pandas as pd
import pytest

from bench import selftest
from bench.report.blocks import Note, Table
from suites.memory.selftest import ALLOCATED
from suites.memory.selftest import judge as judge_memory
from suites.stability.selftest import judge as judge_norms


def test_a_process_that_is_left_is_found():
    process = subprocess.Popen(["sleep", "60"], env=os.environ | {selftest.MARK: "test-mark"})
    try:
        deadline = time.monotonic() + 10
        while process.pid not in list(selftest._marked("test-mark")) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert list(selftest._marked("test-mark")) == [process.pid]
    finally:
        process.kill()
        process.wait()
    assert selftest.left_behind("test-mark") == []


def test_a_check_that_fails_comes_first_and_is_counted():
    good = selftest.Check(what="a", planted="1", found="1", passed=True)
    bad = selftest.Check(what="b", planted="1", found="2", passed=False)
    floor = selftest.Check(what="c", planted="-", found="3", passed=None)
    table, note = selftest.table([("one", good), ("one", bad), ("two", floor)])
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows] == ["FAILED", "passed", "floor"]
    assert isinstance(note, Note)
    assert note.warning
    assert note.text == "1 of 2 checks passed"


def cell(model: str, metric: str, value: float, **columns) -> dict:
    return {
        "cell_id": model, "model": model, "metric": metric, "value": value, "status": "ok", "factors": "{}",
        "task": None, "device": "cpu", "dtype": "float32", "backend": "torch", "compiled": False, "options": "{}",
        "suite_version": 1, "d_model": 4, "depth": 1, "message": None, "step": 0, "t": None,
    } | columns  # fmt: skip


@pytest.mark.parametrize(("factor", "passes"), [(1.0, True), (1.09, True), (0.91, True), (1.11, False), (0.89, False)])
def test_memory_is_held_to_a_tenth(factor, passes):
    rows = [cell("fake[does=allocates]", name, factor * ALLOCATED) for name in ("peak_system", "peak_allocator")]
    checks = judge_memory(pd.DataFrame([*rows, cell("fake[does=nothing]", "peak_system", 4096.0)]))
    assert [check.passed for check in checks] == [passes, passes, None]


@pytest.mark.parametrize(("growth", "passes"), [(1.01, True), (1.0115, True), (1.013, False), (1.0, False)])
def test_growth_is_held_to_what_sampling_allows(growth, passes):
    energy = {t: sum(growth ** (2 * k) for k in range(t)) for t in (64, 128)}
    rows = [cell("growing", "white_noise_energy", value, t=t) for t, value in energy.items()]
    (check,) = judge_norms(pd.DataFrame(rows))
    assert check.passed == passes


@pytest.mark.skipif(sys.platform != "linux", reason="environments of other processes are read from /proc")
def test_only_marked_processes_are_looked_at():
    assert selftest.left_behind("nobody-has-this-mark") == []

"""What is shown: statistics with known answers, failures first, and no number that was not measured."""

from __future__ import annotations

import dataclasses
import io
import json
import re

import numpy as np
import pandas as pd
import pytest

import bench
from bench import store
from bench.plan import Request, cells
from bench.report import overview, terminal
from bench.report.blocks import Note, Table
from bench.report.cells import told_apart
from bench.report.statistics import sparkline, spread, wilson
from suites.stability.report import blocks


@pytest.mark.parametrize(
    ("failures", "trials", "low", "high"),
    [
        (0, 10, 0.0, 0.2775),  # Newcombe 1998, Statistics in Medicine 17, 857, and R's prop.test(correct = FALSE)
        (1, 3, 0.0615, 0.7923),
        (5, 10, 0.2366, 0.7634),
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (3, 3, 0.4385, 1.0),
    ],
)
def test_the_wilson_interval_has_its_published_values(failures, trials, low, high):
    assert wilson(failures, trials) == pytest.approx((low, high), abs=5e-5)


def test_the_wilson_interval_holds_the_rate_and_is_symmetric():
    for trials in range(1, 12):
        for failures in range(trials + 1):
            low, high = wilson(failures, trials)
            assert 0 <= low <= failures / trials <= high <= 1
            assert wilson(trials - failures, trials) == pytest.approx((1 - high, 1 - low))
            assert wilson(failures, trials, 0.5)[1] - wilson(failures, trials, 0.5)[0] < high - low


@pytest.mark.parametrize(("failures", "trials"), [(0, 0), (-1, 3), (4, 3)])
def test_a_rate_that_is_none_is_an_error(failures, trials):
    with pytest.raises(ValueError, match="failures in"):
        wilson(failures, trials)


def test_one_seed_has_no_spread():
    assert spread([0.7]) is None
    assert spread([]) is None
    assert spread([1.0, 3.0]) == pytest.approx(np.sqrt(2))
    assert spread([2.0, 2.0, 2.0]) == 0


def test_a_sparkline_has_a_bar_a_value_between_its_bounds():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 0, 7) == "▁▂▃▄▅▆▇█"
    assert sparkline([-5, 0, 9], 0, 1) == "▁▁█"
    assert sparkline([0.5, float("nan"), np.inf], 0, 1) == "▅··"
    assert sparkline([3, 3], 3, 3) == "▅▅"
    assert sparkline([], 0, 1) == ""


STEPS = (0, 10, 20)


def planned(models="lru,rotrnn", seeds="0-2", **given):
    request = Request.parse(suite="stability", models=models, seeds=seeds, depths="1", **given)
    return cells(request, "cpu", "quick")


def measured(cell, value):
    """The rows of a cell in which the norm of the one layer ends at `value`."""
    rows = [
        {"metric": "state_rms", "value": 1 + (value - 1) * i / 2, "step": s, "layer": 0} for i, s in enumerate(STEPS)
    ]
    for s in STEPS:
        rows += [{"metric": name, "value": 1.0, "step": s, "layer": 0} for name in ("norm_paper", "largest_modulus",
                                                                                   "gradient_norm")]  # fmt: skip
        rows += [{"metric": "loss", "value": 2.0, "step": s, "split": "probe"}]
    for s in (STEPS[0], STEPS[-1]):
        rows += [{"metric": f"white_noise_{name}", "value": 1.0, "step": s, "layer": 0, "t": 1}
                 for name in ("energy", "error", "expected")]  # fmt: skip
        rows += [{"metric": "state_rms", "value": 1.0, "step": s, "layer": 0, "t": 1}]
    rows += [{"metric": "drift", "value": np.log2(value), "layer": 0}]
    rows += [{"metric": "largest_drift", "value": np.log2(value), "layer": 0}]
    rows += [{"metric": "settling_step", "value": 10.0, "layer": 0}]
    columns = cell.columns() | {"status": "ok", "params": 10, "state_reals": 8, "threads": 1, "duration_s": 1.0}
    return store.table(columns, rows)


def failed(cell, status, message="why"):
    rows = [{"metric": "loss", "value": 2.0, "step": 0, "split": "train"}] if status == "diverged" else []
    return store.table(cell.columns() | {"status": status, "message": message}, rows)


def frame(*tables):

    return store.frame(tables)


def table(found, title) -> pd.DataFrame:
    (block,) = [block for block in found if isinstance(block, Table) and block.title.startswith(title)]
    return pd.DataFrame(block.rows, columns=block.columns)


def summary(*tables):
    return table(blocks(frame(*tables)), "Stability of the hidden state")


def test_seeds_that_diverged_do_not_vanish_from_the_mean():
    """0.9, NaN, NaN: the mean is of one seed of three, and says so."""
    lru = planned("lru")
    (row,) = summary(
        measured(lru[0], 0.9), failed(lru[1], "diverged"), failed(lru[2], "diverged")
    ).to_dict("records")  # fmt: skip
    assert row["ok"] == "1/3"
    assert row["drift [log2]"] == f"{np.log2(0.9):+.3f} ± -"
    assert row["sd over seeds"] == "-"
    assert row["diverged [95 %]"] == "2/3 [0.21, 0.94]"


@pytest.mark.parametrize("status", ["error", "crashed", "timeout", "oom", "missing", "interrupted"])
def test_a_seed_that_was_not_measured_is_planned_all_the_same(status):
    lru = planned("lru")
    (row,) = summary(measured(lru[0], 2.0), measured(lru[1], 4.0), failed(lru[2], status)).to_dict("records")
    assert row["ok"] == "2/3"
    assert row["diverged [95 %]"] == "0/2 [0.00, 0.66]"  # of those that ended: the third says nothing about it
    assert row["drift [log2]"] == f"+1.500 ± {np.sqrt(0.5):.3f}"
    assert row["sd over seeds"] == f"{np.sqrt(0.5):.3f}"


def test_a_model_without_any_measured_seed_has_a_line_of_dashes():
    rows = planned("lru,rotrnn", seeds="0")
    found = summary(measured(rows[0], 2.0), failed(rows[1], "error")).set_index("model")
    assert found.loc["rotrnn", "ok"] == "0/1"
    assert found.loc["rotrnn", "drift [log2]"] == "-"
    assert found.loc["lru", "drift [log2]"] == "+1.000 ± -"


def test_where_nothing_was_measured_the_report_is_failures_and_dashes():
    (cell,) = planned("lru", seeds="0")
    found = overview.report(frame(failed(cell, "error", "Traceback\nValueError: no")), [])
    assert found[0].title == "Not ok: 1 of 1 cells"
    assert table(found, "Stability of the hidden state")["ok"].tolist() == ["0/1"]


def test_failures_come_first_and_the_worst_of_them_first():
    lru = planned("lru", seeds="0-7")
    ended = ["diverged", "interrupted", "missing", "timeout", "oom", "crashed", "error"]
    tables = [measured(lru[0], 1.0)] + [failed(cell, s, f"one\nof {s}") for cell, s in zip(lru[1:], ended, strict=True)]
    first, *others = overview.report(frame(*tables), [])
    assert first.title == "Not ok: 7 of 8 cells"
    rows = pd.DataFrame(first.rows, columns=first.columns)
    assert rows["status"].tolist() == ["error", "crashed", "oom", "timeout", "missing", "interrupted", "diverged"]
    assert rows["reason"].tolist()[0] == "of error"
    assert rows["cell"].tolist()[0] == lru[7].id
    assert "Cells: 1 ok, 1 diverged" in others[-1].text


def test_of_many_failures_some_are_shown_and_the_others_counted():
    lru = planned("lru", seeds="0-29")
    first, *_ = overview.report(frame(*[failed(cell, "error") for cell in lru]), [])
    assert len(first.rows) == overview.FAILURES_SHOWN
    assert first.notes == ["and 10 more error"]


def test_harmless_cells_come_last_and_the_list_shows_what_tells_cells_apart():
    asked = {"length": [64, 256], "mode": ["forward", "decode"], "d_model": 8}
    planned = cells(Request.parse(suite="throughput", models="lru", set=asked), "cpu", "quick")
    ended = ["unconverged", "unsupported", "interrupted", "timeout"]
    (first,) = overview.failures(frame(*[failed(cell, s) for cell, s in zip(planned, ended, strict=True)]))
    assert first.columns == ["status", "suite", "model", "backend", "length", "mode", "reason", "cell"]
    assert [row[0] for row in first.rows] == ["timeout", "interrupted", "unsupported", "unconverged"]
    assert first.rows[0][4:6] == [str(planned[3].factors["length"]), planned[3].factors["mode"]]
    assert first.numeric == ["length"]


def test_what_tells_cells_apart_is_what_varies_within_their_suite():
    both = [
        cell.columns()
        for request in (
            Request.parse(suite="throughput", models="lru", backends="torch,jax", seeds="0", set={"length": [64, 256]}),
            Request.parse(suite="stability", models="lru", seeds="0-1", depths="2", tasks="digits"),
        )
        for cell in cells(request, "cpu", "quick")
    ]
    found = told_apart(both)
    assert {tuple(one) for one in found} == {("backend", "seed", "length", "mode")}  # jax alone is compiled always
    assert found[-1] == {"backend": "torch", "seed": "1", "length": "-", "mode": "-"}
    assert told_apart(both[:1]) == [{}]
    by_recipe = [both[0] | {"model": model, "factors": json.dumps({"rate": rate})}
                 for model, rate in (("lru", 1), ("s5", 2))]  # fmt: skip
    assert told_apart(by_recipe) == [{}, {}]  # the rate follows from the model
    swept = [*by_recipe, by_recipe[1] | {"factors": json.dumps({"rate": 3})}]
    assert told_apart(swept) == [{"rate": "1"}, {"rate": "2"}, {"rate": "3"}]


def test_cells_that_the_oracle_contradicts_are_named_with_what_tells_them_apart():
    planned = cells(Request.parse(suite="throughput", models="lru", set={"length": [64, 256], "mode": "train"}), "cpu",
                    "quick")  # fmt: skip

    def timed(cell, verified):
        return store.table(cell.columns() | {"status": "ok"}, [{"metric": "x", "value": 1.0, "verified": verified}])

    left, (note,) = overview.verified(frame(timed(planned[0], False), timed(planned[1], True)))
    assert set(left["cell_id"]) == {planned[1].id}
    assert note.text == (
        "1 cell is left out of the tables, because its layer was not shown to agree with the oracle: "
        "lru (torch, float32, length 64). `--unverified` shows it."
    )
    _, (note,) = overview.verified(frame(*[timed(cell, False) for cell in planned]))
    assert note.text.startswith("2 cells are left out of the tables, because their layers were not shown to agree")


def test_the_reason_of_a_failure_is_the_line_that_says_what_happened():
    assert overview.last_line('File "x.py", line 3\nValueError: no') == "ValueError: no"
    assert overview.last_line("the worker ended with signal SIGKILL:\nlast words") == (
        "the worker ended with signal SIGKILL:"
    )
    for nothing in (None, float("nan"), "", " \n"):
        assert overview.last_line(nothing) == "-"


def test_an_interrupted_cell_is_shown(tmp_path):
    lru = planned("lru", seeds="0,1")
    (tmp_path / "run" / "cells").mkdir(parents=True)
    store.write(tmp_path / "run" / "cells" / f"{lru[0].id}.parquet", measured(lru[0], 2.0))
    plan = {"cells": [{"id": cell.id, "columns": cell.columns()} for cell in lru]}
    (tmp_path / "run" / "run.json").write_text(json.dumps(plan))
    found = overview.report(store.read_results(tmp_path / "run"), [tmp_path / "run"])
    assert found[0].title == "Not ok: 1 of 2 cells"
    shown = dict(zip(found[0].columns, found[0].rows[0], strict=True))
    assert shown == {"status": "interrupted", "suite": "stability", "model": "lru", "backend": "torch", "seed": "1",
                     "reason": "no result file", "cell": lru[1].id}  # fmt: skip
    assert table(found, "Stability of the hidden state")["ok"].tolist() == ["1/2"]


def test_the_rows_of_a_suite_that_is_not_installed_are_counted_and_the_others_shown():
    (cell,) = planned("lru", seeds="0")
    other = store.table({"cell_id": "x", "suite": "elsewhere", "status": "ok", "model": "m"}, [])
    found = overview.report(frame(measured(cell, 1.0), other), [])
    (note,) = [block for block in found if isinstance(block, Note) and block.warning]
    assert note.text.startswith("suite elsewhere is not installed here, so its rows are not shown: unknown suite")
    assert len(table(found, "Stability of the hidden state")) == 1
    assert "Cells: 2 ok" in found[-1].text


def test_a_suite_whose_report_fails_does_not_hide_the_others(own_registry):
    @bench.register.suite("broken")
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Broken(bench.Suite):
        def measure(self, cell):
            raise NotImplementedError

        def report(self, results, view):
            raise KeyError("no such column")

    (cell,) = planned("lru", seeds="0")
    other = store.table({"cell_id": "x", "suite": "broken", "status": "ok", "model": "m"}, [])
    found = overview.report(frame(other, measured(cell, 1.0)), [])
    text = "suite broken failed to report on its rows, KeyError: 'no such column'"
    assert found[0] == Note(text, warning=True, fault=True)  # a fault makes the exit status 1
    assert len(table(found, "Stability of the hidden state")) == 1


def test_cells_with_other_numbers_of_threads_are_marked():
    lru = planned("lru", seeds="0,1")
    tables = [measured(cell, 1.0) for cell in lru]
    tables[1] = tables[1].set_column(
        tables[1].schema.get_field_index("threads"), "threads", [[4] * len(tables[1])]
    )  # fmt: skip
    notes = [block.text for block in overview.report(frame(*tables), []) if isinstance(block, Note)]
    assert any("1 or 4 threads a cell" in note for note in notes)
    assert "Cells ran with different numbers of threads: do not compare their times." in notes
    notes = [block.text for block in overview.report(frame(tables[0]), []) if isinstance(block, Note)]
    assert not any("different numbers of threads" in note for note in notes)


def test_what_it_was_measured_on_stands_under_the_report(tmp_path):
    (tmp_path / "environments").mkdir()
    content = {"cpu": "A CPU", "cores": 2, "memory_gib": 8.0, "gpus": ["NVIDIA H200"], "python": "3.11.7",
               "packages": {"torch": "2.13.0", "typer": "1"}, "commit": "0123456789abcdef", "dirty": True}  # fmt: skip
    (tmp_path / "environments" / "e.json").write_text(json.dumps(content))
    (cell,) = planned("lru", seeds="0")
    (note, _) = overview.measured_on(frame(measured(cell, 1.0)), [tmp_path])
    assert note.text.strip() == (
        "Measured on: A CPU, 2 cores, 8.0 GiB; NVIDIA H200; Python 3.11.7, torch 2.13.0; 0123456789 with changes"
    )


ODD = Table(
    title="A [bold]table[/bold] :x:",
    columns=["name", "value"],
    rows=[["lru[gamma=tied]", "1.25"], ["[red]", "2\n3"], ["äöü µ", "-"]],
    notes=["see [gamma=tied] and :warning:"],
    numeric=["value"],
)


def test_plain_text_is_aligned_and_markup_is_text():
    out = io.StringIO()
    terminal.show([ODD, Note("a note with [brackets] and :x:")], out)
    lines = out.getvalue().strip().splitlines()
    assert lines[0] == "A [bold]table[/bold] :x:"
    assert lines[2] == "lru[gamma=tied]   1.25"
    assert lines[3] == "[red]              2 3"
    assert "see [gamma=tied] and :warning:" in lines
    assert lines[-1] == "a note with [brackets] and :x:"
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize("width", [10, 20, 40, 200])
def test_on_a_terminal_nothing_is_lost_however_narrow_it_is(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = io.StringIO()
    shown = ["x" * 30, *(f"{i}.123456789" for i in range(6))]
    long = Table("T", ["name", *(f"column{i}" for i in range(6))], [shown])
    terminal.show([long, ODD], out)
    assert "\x1b[" in out.getvalue()
    text = "".join(re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).split())  # lines are broken where the window ends
    for word in (*shown, *long.columns[1:], "lru[gamma=tied]", ":warning:"):
        assert word in text
    assert "…" not in text


def test_json_holds_every_block():
    content = json.loads(terminal.as_json([ODD, Note("x", warning=True)]))
    assert content[0]["title"] == ODD.title
    assert content[0]["rows"] == ODD.rows
    assert content[1] == {"note": "x", "warning": True}

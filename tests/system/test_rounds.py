"""Cells that are measured in several processes, and cells that want one of their own."""

from __future__ import annotations

import itertools
import json

import pytest

import bench
from bench import plan, runner, store
from bench.engines import local


@pytest.fixture(scope="module")
def rounds(tmp_path_factory, plugins):
    """Runs a suite of the plugin; gives its folder, its results, and the log of what was done in which process."""

    def run(suite: str = "in-rounds", **environment: str):
        folder = tmp_path_factory.mktemp("rounds")
        asked = {"models": "first,second", "seeds": "0", "set": {"length": [1, 2]}, "plugin": plugins / "rounds.py"}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (environment | {"ROUNDS_LOG": str(folder / "log")}).items():
                patch.setenv(name, value)
            bench.run(suite=suite, device="cpu", out=folder, run="run", **asked)
        log = [line.split() for line in (folder / "log").read_text().splitlines()]
        return folder / "run", store.read_results(folder / "run"), log

    return run


@pytest.fixture(scope="module")
def plain(rounds):
    return rounds()


@pytest.fixture(scope="module")
def failing(rounds):
    """One cell fails in the first round, one in the last; another is too wide in the first."""
    return rounds(ROUNDS_FAIL="first 2 0, second 1 1", ROUNDS_WIDE="second 2 0")


def test_each_round_is_a_fresh_process_a_model_which_measures_all_its_lengths(plain):
    _, results, log = plain
    assert set(results["status"]) == {"ok"}
    pids = results.groupby(["process", "model"])["value"].agg(set)
    assert [len(found) for found in pids] == [1, 1, 1, 1]
    assert len(set.union(*pids)) == 4
    assert [line[0] for line in log] == ["0"] * 4 + ["1"] * 4
    assert results.groupby("cell_id").size().tolist() == [2] * 4
    facts = results["facts"].map(json.loads)
    assert all(found["suite"] == "traces" and len(found["pid"]) == 2 for found in facts)


def test_nothing_is_left_but_one_file_a_cell(plain):
    folder, _, _ = plain
    assert sorted(path.name for path in folder.iterdir()) == ["cells", "environments", "run.json"]
    assert len(list((folder / "cells").iterdir())) == 4


def test_a_round_that_fails_ends_its_cell_and_no_other(failing):
    _, results, log = failing
    statuses = results.drop_duplicates("cell_id").set_index(["model", "length"])["status"].to_dict()
    assert statuses == {
        ("first", 1): "ok", ("first", 2): "error", ("second", 1): "error", ("second", 2): "unconverged",
    }  # fmt: skip
    assert ["1", "first", "2"] not in [line[:3] for line in log]
    assert len([line for line in log if line[0] == "1"]) == 3
    failed = results[results["status"] == "error"]
    assert failed["message"].str.contains("as was asked").all()


def test_what_earlier_rounds_found_is_kept_where_a_later_one_fails(failing):
    _, results, _ = failing
    failed = results[(results["status"] == "error") & (results["model"] == "second")]
    assert sorted(failed["process"]) == [0, 1]


def test_one_round_that_is_too_wide_makes_its_cell_unconverged(failing):
    _, results, _ = failing
    wide = results[results["status"] == "unconverged"]
    assert set(wide["message"]) == {"too wide in this round"}
    assert sorted(wide["process"]) == [0, 1]


def test_cells_that_want_a_process_of_their_own_get_one(rounds):
    _, results, log = rounds("alone")
    assert len({line[3] for line in log}) == 4
    assert set(results["status"]) == {"ok"}
    assert results["process"].isna().all()


def test_rounds_that_were_interrupted_are_measured_anew(tmp_path, plugins, monkeypatch):
    monkeypatch.setenv("ROUNDS_LOG", str(tmp_path / "log"))
    asked = {"suite": "in-rounds", "models": "first", "device": "cpu", "seeds": "0", "out": tmp_path, "run": "run",
             "plugin": str(plugins / "rounds.py")}  # fmt: skip
    prepared = runner.begin(runner.prepare(*runner.merge(None, asked)), [])
    (cell,) = prepared.cells
    part = store.part(prepared.folder, cell.id, 0)
    part.parent.mkdir()
    store.write(part, store.table(cell.columns(), [{"metric": "old", "value": 1.0}]))
    runner.measure(prepared, lambda cell, status: None)
    results = store.read_results(prepared.folder)
    assert set(results["metric"]) == {"pid"}
    assert sorted(results["process"]) == [0, 1]


def test_the_order_of_models_differs_between_rounds_and_is_the_runs_own(plugins):
    request = plan.Request.parse(
        suite="throughput", models="rotrnn,lru,s4d,s5", backends="torch,jax", set={"rounds": 6, "length": [256, 1024]}
    )
    cells = plan.cells(request, "cpu", "quick")

    def order(run: str) -> list[list[str]]:
        found: dict[int, list[str]] = {}
        for work in local.order(cells, run):
            found.setdefault(work.round, []).append(work.group.split(" ", 1)[1])
        return [list(dict.fromkeys(groups)) for groups in found.values()]

    orders = order("run")
    assert len(orders) == 6
    assert all(sorted(groups) == sorted(orders[0]) and len(groups) == 8 for groups in orders)
    assert len({tuple(groups) for groups in orders}) > 1
    assert order("run") == orders
    assert order("other") != orders
    for work in local.order(cells, "run"):
        assert work.rounds == 6


def test_models_of_one_group_follow_one_another(plugins):
    request = plan.Request.parse(suite="throughput", models="rotrnn,lru", backends="torch,jax")
    groups = [work.group for work in local.order(plan.cells(request, "cpu", "quick"), "run")]
    changes = sum(a != b for a, b in itertools.pairwise(groups))
    assert changes == len(set(groups)) - 1


def test_the_facts_of_rounds_are_joined():
    def round_(process: int, status: str = "ok", message: str | None = None):
        cell = {"cell_id": "a", "status": status, "message": message, "started_at": f"t{process}", "duration_s": 2.0}
        facts = json.dumps({"same": [1], "other": process} | ({"late": 1} if process else {}))
        return store.table(cell | {"facts": facts}, [{"process": process, "metric": "m", "value": 1.0}])

    whole = store.joined([round_(0, "unconverged", "wide"), round_(1)]).to_pylist()
    assert [row["process"] for row in whole] == [0, 1]
    assert {row["status"] for row in whole} == {"unconverged"}
    assert {row["message"] for row in whole} == {"wide"}
    assert {row["duration_s"] for row in whole} == {4.0}
    assert {row["started_at"] for row in whole} == {"t0"}
    assert json.loads(whole[0]["facts"]) == {"same": [1], "other": [0, 1], "late": [None, 1]}

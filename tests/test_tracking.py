"""What `bench track` stores and compares, from results as asv writes them."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path

import pytest
from asv_project import CONFIG, Project, row, write_results

from bench import tracking
from bench.backends import NAMES
from bench.tracking import Figure, measuring


@pytest.fixture
def project(tmp_path) -> Project:
    return Project(tmp_path / "small")


def test_two_frameworks_in_one_process_are_refused(monkeypatch):
    from suites.tracking import EachLayer

    for backend, other in (NAMES, NAMES[::-1]):
        monkeypatch.setitem(sys.modules, other, sys)
        with pytest.raises(RuntimeError, match=f"{other} is in the process that is to measure {backend}"):
            EachLayer().setup("lru", backend)


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_a_benchmark_never_returns_what_asv_takes_for_skipped(value):
    from suites.tracking import finite

    with pytest.raises(ValueError, match="why it is not there"):
        finite(value, "why it is not there")
    assert finite(0.0) == 0.0


@pytest.mark.parametrize("what", ["nothing", "a file", "HEAD"])
def test_a_tree_that_changes_while_it_is_measured_is_marked(project, what, monkeypatch):
    head = project.commit()

    def asv(folder: Path, commit: str) -> int:
        assert commit == head
        write_results(folder / "results", commit, {"x": row([1.0], ["p"])})
        (folder / "results" / "m" / "machine.json").write_text("{}")
        (folder / "results" / "benchmarks.json").write_text('{"x": {"params": [["p"]], "unit": "s"}, "version": 2}')
        if what == "a file":
            project.write(seconds=3.0)
        elif what == "HEAD":
            project.commit(seconds=3.0)
        return 0

    monkeypatch.setattr(measuring, "_asv", asv)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    said: list[str] = []
    ran = tracking.run(tracking.Config.read(project.folder / "asv.conf.json"), said.append)
    assert ran.found.dirty == (what != "nothing")
    changed = {"nothing": [], "a file": ["figures/small.py"], "HEAD": ["HEAD"]}[what]
    kept = f"has changed while it was measured, so the results are kept as {head[:8]}-dirty"
    assert [text for text in said if "busy" not in text] == [f"{name} {kept}" for name in changed]
    (stored,) = tracking.stored(project.folder / "results" / "asv")
    assert (stored.commit, stored.dirty) == (head, what != "nothing")


def test_without_configuration_results_or_commit_one_line_says_so(bench_here, tmp_path):
    assert "there is no such file; run this in a checkout" in bench_here.refused("track")
    (tmp_path / "asv.conf.json").write_text("{")
    assert "no JSON" in bench_here.refused("track")
    (tmp_path / "asv.conf.json").write_text("{}")
    assert "it has no results_dir" in bench_here.refused("track")
    (tmp_path / "asv.conf.json").write_text(json.dumps(CONFIG))
    assert "make some with `make track`" in bench_here.refused("track")
    if importlib.util.find_spec("asv"):
        assert "is no git checkout with a commit" in bench_here.refused("track", "--run")
    (tmp_path / "results" / "asv" / "m").mkdir(parents=True)
    (tmp_path / "results" / "asv" / "m" / "0123abcd-x.json").write_text("[]")
    assert "these are no results of asv" in bench_here.refused("track")


def test_a_null_in_either_commit_is_a_failure(bench_here, tmp_path):
    (tmp_path / "asv.conf.json").write_text(json.dumps(CONFIG))
    results = tmp_path / "results" / "asv"
    good, hole, none = row([1.0, 2.0], ["a", "b"]), row([1.0, None], ["a", "b"]), row(None, ["a", "b"])
    commits = {letter: letter * 40 for letter in "abc"}
    for i, (letter, values) in enumerate(zip("abc", (good, hole, none), strict=True)):
        write_results(results, commits[letter], {"x": values}, date=i)
    for words, failed in ((["a" * 8, "b" * 8], 1), (["b" * 8, "a" * 8], 1), (["a" * 8, "c" * 8], 2)):
        blocks = json.loads(bench_here("track", *words, "--json", expect=1).stdout)
        assert [line[0] for line in blocks[0]["rows"]].count("FAILED") == failed
        assert f"0 worse, {failed} failed" in blocks[1]["note"]


def test_the_two_newest_commits_are_compared_machine_by_machine(tmp_path):
    (tmp_path / "asv.conf.json").write_text(json.dumps(CONFIG))
    config = tracking.Config.read(tmp_path / "asv.conf.json")
    results = tmp_path / "results" / "asv"
    for machine in ("m", "n"):
        write_results(results, "b" * 40, {"x": row([1.0], ["p"])}, machine, date=2)
        write_results(results, "a" * 40, {"x": row([1.0], ["p"])}, machine, date=1)
    write_results(results, "c" * 40, {"x": row([1.0], ["p"])}, "m", date=0)
    pairs = tracking.choose(config, None, None)
    assert [(one.commit[0], two.commit[0], two.machine) for one, two in pairs] == [("a", "b", "m"), ("a", "b", "n")]
    (pair,) = tracking.choose(config, "cccc", None)
    assert [one.machine for one in pair] == ["m", "m"]
    write_results(results, "d" * 40, {"x": row([1.0], ["p"])}, "other", date=9)
    with pytest.raises(ValueError, match="bbbbbbbb and dddddddd were measured on different machines"):
        tracking.choose(config, None, None)
    write_results(results, "bbbb0" + "b" * 35, {"x": row([1.0], ["p"])}, date=2)
    with pytest.raises(ValueError, match="bbbb means more than one: known are"):
        tracking.choose(config, "bbbb", None)


@pytest.mark.parametrize(
    ("unit", "before", "after", "mark"),
    [
        ("s", 1.0, 1.1, ""),
        ("s", 1.0, 1.16, "WORSE"),
        ("s", 1.16, 1.0, "better"),
        ("B", 100e6, 109e6, ""),
        ("B", 100e6, 111e6, "WORSE"),
        ("B", 10e6, 14e6, ""),  # what a process gains and loses by itself
        ("B", 10e6, 14.3e6, "WORSE"),
        ("of the largest", 1e-6, 1.9e-5, ""),  # 19 times as much, and far from what float32 is allowed
        ("of the largest", 1e-6, 2.2e-5, "WORSE"),
        ("log2", 0.1, -0.105, ""),  # by its size
        ("log2", 0.1, -0.12, "WORSE"),
        ("log2", -0.12, 0.1, "better"),
        ("", 0.0, 1e-9, "WORSE"),
        ("s", 1.0, math.nan, "skipped"),
        ("s", math.nan, 1.0, "skipped"),
        ("s", None, 1.0, "FAILED"),
        ("s", math.nan, None, "FAILED"),
    ],
)
def test_what_counts_as_worse(unit, before, after, mark):
    assert tracking.judge(Figure(before, "1"), Figure(after, "1"), unit) == mark


def test_times_are_worse_only_where_their_intervals_are_apart():
    before = Figure(1.0, "1", (0.9, 1.3))
    assert tracking.judge(before, Figure(1.4, "1", (1.29, 1.5)), "s") == ""
    assert tracking.judge(before, Figure(1.4, "1", (1.31, 1.5)), "s") == "WORSE"
    assert tracking.judge(before, Figure(1.1, "1", (1.31, 1.5)), "s") == ""  # apart, and not by enough


def test_what_is_not_the_same_figure_is_not_compared():
    assert tracking.judge(Figure(1.0, "1"), Figure(9.0, "2"), "s") == "measured differently"
    assert tracking.judge(None, Figure(9.0, "1"), "s") == "new"
    assert tracking.judge(Figure(1.0, "1"), None, "s") == "gone"

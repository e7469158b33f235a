"""asv's benchmarks, `bench track --run` as `make track` calls it, and the comparison of two commits."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import bench
from bench import environment, tracking
from bench.backends import NAMES
from bench.tracking import Figure, measuring

ROOT = Path(bench.__file__).resolve().parent.parent

needs_asv = pytest.mark.skipif(
    importlib.util.find_spec("asv") is None and "CI" not in os.environ,
    reason='asv is not installed: pip install "linrec-bench[track]"',
)

CONFIG = {
    "version": 1, "project": "small", "repo": ".", "branches": ["HEAD"], "environment_type": "existing",
    "benchmark_dir": "figures", "results_dir": "results/asv", "html_dir": ".asv/html", "env_dir": ".asv/env",
}  # fmt: skip

BENCHMARKS = """
def setup(backend):
    if backend == ABSENT:
        raise NotImplementedError(f"{backend} is not here")

def track_time(backend):
    return {"samples": [SECONDS + 0.001 * i for i in range(20)], "number": 1}

def track_memory(backend):
    if backend == FAILS:
        raise MemoryError("too little")
    return 100

track_time.unit, track_memory.unit = "s", "B"
params, param_names, version = [["torch", "jax"]], ["backend"], "1"
"""


def git(folder: Path, *words: str) -> str:
    """git with an author of its own and none of the user's settings."""
    own = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false", "-C", str(folder)]
    done = subprocess.run(["git", *own, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class Project:
    """A small repository with asv benchmarks, whose values its source says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "figures").mkdir(parents=True)
        (folder / "figures" / "__init__.py").touch()
        (folder / "asv.conf.json").write_text(json.dumps(CONFIG))
        (folder / ".gitignore").write_text("results/\n.asv/\n__pycache__/\n")
        git(folder, "init", "--quiet")

    def write(self, seconds: float = 1.0, absent: str = "", fails: str = "") -> None:
        text = f"SECONDS, ABSENT, FAILS = {seconds!r}, {absent!r}, {fails!r}\n"
        (self.folder / "figures" / "small.py").write_text(text + BENCHMARKS)

    def commit(self, **values) -> str:
        self.write(**values)
        git(self.folder, "add", ".")
        git(self.folder, "commit", "--quiet", "--message", f"{values}")
        return git(self.folder, "rev-parse", "HEAD")

    @property
    def results(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("results/asv/*/*.json") if path.name != "machine.json")


@pytest.fixture
def project(tmp_path) -> Project:
    return Project(tmp_path / "small")


@pytest.fixture
def home(tmp_path) -> str:
    """asv writes what it knows of the machine into the home folder."""
    (tmp_path / "home").mkdir()
    return str(tmp_path / "home")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """What is checked out here, as a shallow clone elsewhere."""
    origin, clone = tmp_path_factory.mktemp("origin"), tmp_path_factory.mktemp("shallow") / "clone"
    for name in ("bench", "models", "suites"):
        shutil.copytree(ROOT / name, origin / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "asv.conf.json", origin)
    git(origin, "init", "--quiet")
    for message in ("one", "two"):
        (origin / "README.md").write_text(message)
        git(origin, "add", ".")
        git(origin, "commit", "--quiet", "--message", message)
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", origin.as_uri(), clone], check=True)
    assert git(clone, "rev-list", "--count", "HEAD") == "1"
    return clone


def asv(python: str, *words: str | Path, home: str, checkout: Path, cwd: Path) -> str:
    """asv in an environment, measuring the packages of a checkout; what it printed."""
    done = subprocess.run(
        [python, "-m", "asv", "--config", str(checkout / "asv.conf.json"), *map(str, words)],
        cwd=cwd, env=os.environ | {"HOME": home, "ASV_PYTHONPATH": str(checkout)}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def figures_of(python: str, benchmarks: str, home: str, checkout: Path, cwd: Path) -> dict[tracking.Name, Figure]:
    """Chosen benchmarks of the project itself, run by asv in an environment, as they are stored for HEAD."""
    shutil.rmtree(checkout / "results", ignore_errors=True)
    asv(python, "machine", "--yes", home=home, checkout=checkout, cwd=cwd)
    head = git(checkout, "rev-parse", "HEAD")
    asv(
        python, "run", "--quick", "--python=same", f"--set-commit-hash={head}", "--launch-method=spawn",
        "--show-stderr", "--bench", benchmarks, home=home, checkout=checkout, cwd=cwd,
    )  # fmt: skip
    (found,) = tracking.stored(checkout / "results" / "asv")
    assert found.commit == head
    return dict(found.figures)


def python_of(make) -> str:
    return str(Path(make(Path.cwd()).command[0]).parent / "python")


@needs_asv
def test_either_framework_may_be_missing(environment_without, checkout, home, tmp_path, monkeypatch):
    """Its benchmarks are skipped, which is no failure where it is missing, and is one where it is not."""
    without_jax = python_of(environment_without("jax", "flax", "optax"))
    benchmarks = r"(track_forward|memory.*|track_drift)\(.lru"
    found = figures_of(without_jax, benchmarks, home, checkout, tmp_path)
    for name in ("speed.Layer.track_forward", "memory.Layer.track_train", "stability.Layer.track_drift"):
        assert found[name, ("lru", "torch")].measured
        value = found[name, ("lru", "jax")].value
        assert value is not None
        assert math.isnan(value)
    assert found["speed.Layer.track_forward", ("lru", "torch")].interval is not None
    # at least y, (8, 1024, 64) float32, and its cotangent
    assert found["memory.Layer.track_train", ("lru", "torch")].value > 2 * 8 * 1024 * 64 * 4
    (stored,) = tracking.stored(checkout / "results" / "asv")
    lru = {name: figure for name, figure in found.items() if name[1][0] == "lru" and figure.value is not None}
    kept = dataclasses.replace(stored, figures={n: f for n, f in lru.items() if n[0].startswith("memory")})
    assert tracking.holes(kept, set())[0] == [("memory.Layer.track_train", ("lru", "jax"))]
    monkeypatch.setattr(environment, "installed", lambda name: "no jax: pip install it" if name == "jax" else None)
    assert tracking.holes(kept, set()) == ([], {"jax": "no jax: pip install it"})


@needs_asv
def test_the_suite_is_found_from_elsewhere_and_without_torch(environment_without, checkout, home, tmp_path):
    without_torch = python_of(environment_without("torch", "triton"))
    assert "No problems found" in asv(without_torch, "check", home=home, checkout=checkout, cwd=tmp_path)
    found = figures_of(without_torch, r"accuracy.*\(.lru", home, checkout, tmp_path)
    assert 0 < found["accuracy.Layer.track_error", ("lru", "jax")].value < 2e-4  # the limit of float32
    assert math.isnan(found["accuracy.Layer.track_error", ("lru", "torch")].value)
    about = json.loads((checkout / "results" / "asv" / "benchmarks.json").read_text())
    del about["version"]
    assert set(tracking.units(checkout / "results" / "asv").values()) == set(tracking.RULES)
    for benchmark in about.values():
        assert benchmark["timeout"] >= 300  # asv's own are 60 seconds
        assert benchmark["params"] == [["'lru'", "'rotrnn'", "'s4d'", "'s5'"], ["'torch'", "'jax'"]]
        assert ("rounds" in benchmark) == (benchmark["unit"] == "s")
        assert benchmark["version"] == "1"  # else a hash of the source, so that a renamed variable ends the comparison


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


@needs_asv
def test_asv_stores_an_existing_environment_only_under_a_given_commit(project, home, tmp_path):
    head = project.commit()
    python = sys.executable
    asv(python, "machine", "--yes", home=home, checkout=project.folder, cwd=tmp_path)
    asv(python, "run", "--python=same", "--quick", home=home, checkout=project.folder, cwd=tmp_path)
    assert project.results == []
    words = ["run", "--python=same", "--quick", f"--set-commit-hash={head}"]
    asv(python, *words, home=home, checkout=project.folder, cwd=tmp_path)
    (stored,) = tracking.stored(project.folder / "results" / "asv")
    assert stored.commit == head
    assert stored.figures["small.track_memory", ("jax",)].value == 100


@needs_asv
def test_track_measures_head_and_compares_it(project, bench_in, home):
    """A slower commit is worse; one that was not measured has no results; a name that git knows is a commit."""
    run = bench_in(project.folder)
    first = project.commit(seconds=1.0)
    assert f"4 figures of {first[:8]} are in" in run("track", "--run", HOME=home).stdout
    assert run.refused("track").startswith(f"bench: only {first[:8]} has results in")
    second = project.commit(seconds=2.0)
    assert f"4 figures of {second[:8]} are in" in run("track", "--run", HOME=home).stdout
    assert [path.name[:8] for path in project.results] == sorted([first[:8], second[:8]])

    table, note = json.loads(run("track", "--json", expect=1).stdout)
    columns = dict(zip(table["columns"], zip(*table["rows"], strict=True), strict=True))
    assert columns[""] == ("WORSE", "WORSE", "", "")
    assert columns["benchmark"] == ("small.track_time",) * 2 + ("small.track_memory",) * 2
    assert columns["ratio"] == ("1.99", "1.99", "1.00", "1.00")  # of medians, 1.0095 and 2.0095
    assert note == {"note": "2 worse, 0 failed, of 4 figures", "warning": True}
    config = tracking.Config.read(project.folder / "asv.conf.json")
    for words in ((None, None), ("HEAD~1", "HEAD"), (first[:6], second), ("HEAD~1", None)):
        ((before, after),) = tracking.choose(config, *words)
        assert (before.commit, after.commit) == (first, second)
    assert json.loads(run("track", "HEAD", "HEAD~1", "--json").stdout)[0]["rows"][0][0] == "better"
    refused = run.refused("track", "0123abc")
    assert refused == f"bench: 0123abc has no results: known are {second[:8]}, {first[:8]}"
    with pytest.raises(ValueError, match="the same results"):
        tracking.choose(config, "HEAD", second)
    assert "--run measures what is checked out" in run.refused("track", "HEAD", "--run")


@needs_asv
def test_a_changed_tree_is_said_and_kept_beside_the_commit(project, bench_in, home):
    run = bench_in(project.folder)
    head = project.commit(seconds=1.0)
    clean = run("track", "--run", HOME=home)
    assert "working tree" not in clean.stderr
    project.write(seconds=1.2)
    found = run("track", "--run", HOME=home)
    assert f"bench: the working tree is not {head[:8]}: 1 changed, the first is figures/small.py" in found.stderr
    assert f"of {head[:8]}-dirty are in" in found.stdout
    marked = [json.loads(path.read_text())["params"].get("tree") for path in project.results]
    assert sorted(map(str, marked)) == ["None", "dirty"]
    assert f"{head[:8]} against {head[:8]}-dirty" in run("track", expect=1).stdout  # 1.2 times the time
    html = subprocess.run(
        [sys.executable, "-m", "asv", "publish"], cwd=project.folder, capture_output=True, text=True, check=False
    )
    assert html.returncode == 0, html.stdout + html.stderr
    drawn = {path.parent.name for path in (project.folder / ".asv" / "html" / "graphs").rglob("small.track_time.json")}
    assert {"tree-dirty", "tree-null"} <= drawn  # the commit's own line goes on without it


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


@needs_asv
def test_a_null_makes_the_run_fail_and_is_not_kept(project, bench_in, home):
    run = bench_in(project.folder)
    project.commit(fails="jax")
    found = run("track", "--run", "--json", HOME=home, expect=1)
    table, note = json.loads(found.stdout)
    assert table["rows"] == [["small.track_memory", "jax"]]
    assert note["note"].startswith("1 without a value, so nothing is kept of")
    assert "MemoryError: too little" in found.stderr
    assert project.results == []


@needs_asv
def test_what_is_skipped_fails_unless_its_framework_is_missing(project, bench_in, environment_without, home):
    project.commit(absent="jax")
    found = bench_in(project.folder)("track", "--run", HOME=home, expect=1)  # jax is here, so something else skipped
    assert "small.track_memory  jax" in found.stdout
    assert project.results == []
    without = environment_without("jax", "flax", "optax")(project.folder)
    printed = without("track", "--run", HOME=home).stdout
    assert 'jax is skipped: jax is not installed: pip install "linrec-bench[jax]"' in printed
    assert "2 figures of" in printed
    assert len(project.results) == 1


def test_without_asv_one_line_says_how_to_install_it(project, environment_without):
    project.commit()
    without = environment_without("asv")(project.folder)
    assert without.refused("track", "--run") == 'bench: asv is not installed: pip install "linrec-bench[track]"'


@needs_asv
def test_a_checkout_that_is_not_what_is_installed_is_refused(checkout, bench_in):
    assert "what is installed is not this checkout" in bench_in(checkout).refused("track", "--run")


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


COLUMNS = ["result", "params", "version", "started_at", "duration", "stats_ci_99_a", "stats_ci_99_b"]


def write_results(folder: Path, commit: str, rows: dict, machine: str = "m", date: int = 0, **params: str) -> None:
    """A file as asv writes it."""
    content = {"commit_hash": commit, "date": date, "params": {"machine": machine} | params, "env_name": "e",
               "result_columns": COLUMNS, "results": rows, "version": 2}  # fmt: skip
    (folder / machine).mkdir(parents=True, exist_ok=True)
    (folder / machine / f"{commit[:8]}-e{params.get('tree', '')}.json").write_text(json.dumps(content))


def row(values: list | None, names: list[str], version: str = "1") -> list:
    return [values, [[f"'{name}'" for name in names]], version, 1]


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

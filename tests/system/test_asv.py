"""asv's benchmarks, and `bench track --run` as `make track` calls it."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from asv_project import Project, git
from programs import needs

import bench
from bench import environment, tracking
from bench.tracking import Figure

ROOT = Path(bench.__file__).resolve().parent.parent


needs_asv = needs(modules=["asv"], install='pip install "linrec-bench[track]"')


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

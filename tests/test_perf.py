"""That speed is measured by itself and never in parallel. It is measured elsewhere."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[1]


def collect(*words: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-o",
        "addopts=",
        "-p",
        "no:cacheprovider",
        "tests/perf",
        "--collect-only",
    ]
    return subprocess.run([*command, "-q", *words], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize(
    ("words", "says"),
    [(["-n", "2"], "speed is not measured in parallel"), (["-p", "no:benchmark"], "pytest-benchmark is not installed")],
)
def test_what_would_measure_nothing_is_refused_loudly(words, says):
    done = collect(*words)
    assert done.returncode == 4
    assert says in done.stderr


def test_speed_is_no_part_of_the_tests():
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests/test_perf.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert "tests/perf/" not in done.stdout
    assert "tests/test_perf.py::" in done.stdout
    assert "--ignore=tests/perf" in (ROOT / "pyproject.toml").read_text()


def test_every_figure_of_speed_has_its_mark():
    assert collect("-m", "perf").stdout.count("::test_") == collect().stdout.count("::test_") > 0


def conftest():
    spec = importlib.util.spec_from_file_location("perf_conftest", ROOT / "tests" / "perf" / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def summary(module, folder: Path) -> list[str]:
    """The lines that end a measurement whose saved ones lie in a folder."""
    config = SimpleNamespace(rootpath=folder, stash=pytest.Stash())
    config.stash[module.FIGURES] = [("lru jax", "times faster", 4.0, ">= 4")]
    config.stash[module.BASELINE] = module._last_saved(config)
    lines: list[str] = []
    module.pytest_terminal_summary(SimpleNamespace(section=lines.append, line=lines.append), config)
    return lines


def test_without_a_baseline_for_this_system_and_python_that_is_said(tmp_path, monkeypatch):
    from pytest_benchmark import utils

    monkeypatch.setattr(sys, "path", list(sys.path))
    module = conftest()
    assert summary(module, tmp_path)[-1] == "no baseline: nothing was saved for this system and Python yet"
    saved = {"benchmarks": [{"extra_info": {"figures": [["lru jax", "times faster", 5.5, ">= 4"]]}}]}
    own, other = (tmp_path / ".benchmarks" / name for name in (utils.get_machine_id(), "Linux-CPython-2.7-64bit"))
    other.mkdir(parents=True)
    (other / "0001_x.json").write_text(json.dumps(saved))
    assert summary(module, tmp_path)[-1].startswith("no baseline")
    own.mkdir()
    (own / "0001_x.json").write_text(json.dumps(saved))
    *_, row, last = summary(module, tmp_path)
    assert row.endswith("before 5.5")
    assert last == f"before: {own / '0001_x.json'}"

"""That speed is measured by itself and never in parallel. It is measured elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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

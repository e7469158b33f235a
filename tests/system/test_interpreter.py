"""Values and gradients of the fused Triton kernels under Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "tests" / "gpu" / "test_kernels.py"


def test_values_and_gradients_under_the_interpreter():
    """In a process of its own: the interpreter is chosen before Triton is imported, and other tests must not get it."""
    dropped = ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER")
    environment = {k: v for k, v in os.environ.items() if k not in dropped}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", KERNELS],
        cwd=ROOT,
        env=environment | {"TRITON_INTERPRET": "1", "BENCH_TEST_DEVICE": "cpu", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout.splitlines()[-1], done.stdout

"""What is followed from commit to commit: each built-in model on each backend, one subject a file, run by asv.

Small shapes and tight budgets: a change is to be seen, and what a layer can do is the suites' to say. asv runs every
benchmark at every parameter in a fresh process, so torch and jax never meet; `setup` fails where they do.
"""

from __future__ import annotations

import math
import os
import sys

import numpy as np

import bench
from bench import backends, environment, registry
from bench.contract import Layer
from bench.measure.cost import Mode
from bench.measure.workload import Program, Workload
from bench.seeds import generator

D_MODEL, BATCH, LENGTH = 64, 4, 512
DTYPE, DEVICE = "float32", "cpu"

THREADS = 1
"""A call that waits for a second thread waits for whatever else runs there, and that differs from commit to commit."""


class EachLayer:
    """The parameters of every benchmark, and how one that cannot be measured here is skipped.

    A benchmark returns a finite number, or times as asv takes those of its own, and raises otherwise: a figure that is
    not there must be asv's null, a failure, and not its NaN, which says "skipped".
    """

    params = (registry.built_in("model"), list(backends.NAMES))
    param_names = ("model", "backend")
    timeout = 300
    version = "1"
    """Of what is measured: across versions nothing is compared. Not given, it would be a hash of the source."""

    def setup(self, model: str, backend: str) -> None:
        if reason := environment.installed(backend):
            raise NotImplementedError(reason)
        others = [name for name in backends.NAMES if name != backend and name in sys.modules]
        if others:
            raise RuntimeError(f"{', '.join(others)} is in the process that is to measure {backend}")
        os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PJRT_NPROC"), str(THREADS))
        os.environ["JAX_PLATFORMS"] = "cpu"
        backends.load(backend).set_process(DTYPE, THREADS)


def layer(model: str) -> Layer:
    return bench.layer(model, d_model=D_MODEL).layer


def program(model: str, backend: str, mode: Mode, batch: int = BATCH, length: int = LENGTH) -> Program:
    """One layer, ready to be repeated."""
    work = Workload(layer=layer(model), depth=1, part="layer", mode=mode, batch=batch, length=length)
    inputs = work.inputs(generator(0, "tracking", mode, batch, length))
    found = backends.load(backend).Program(work, work.weights(model, 0), inputs, DTYPE, DEVICE)
    found.build()
    return found


def finite(value: float | None, reason: str = "") -> float:
    """The value; ValueError with the reason where there is none."""
    if value is None or not math.isfinite(value):
        raise ValueError(reason or f"{value} is not finite")
    return float(np.float64(value))

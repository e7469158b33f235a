"""Layers that fail in every way that layers do, and a suite that does next to nothing, so that little else fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Literal

import numpy as np

import bench

Fault = Literal[
    "none", "raises", "exits", "exits_0", "exits_3", "leaves", "sleeps", "clings", "prints", "killed", "memory",
]  # fmt: skip


@bench.register.model("faulty")
@dataclass(frozen=True, kw_only=True)
class Faulty(bench.DiagonalLayer):
    """x_t = a x_{t-1} + B u_t, y_t = C x_t + D * u_t, that does as `fault` says once a framework runs it.

    `fuse` is a weight without influence, which only weight decay moves; below `burns_at` the output is NaN.
    """

    fault: Fault = "none"
    burns_at: float = -1.0

    def initial(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        h = self.d_model
        B, C = rng.standard_normal((4, h)) / np.sqrt(h), rng.standard_normal((h, 4)) / 2
        return {"a_log": np.log([0.1, 0.2, 0.4, 0.8]), "B": B, "C": C, "D": np.ones(h), "fuse": np.ones(1)}

    def roles(self):
        return {"a_log": "dynamics", "B": "input", "C": "output", "D": "skip", "fuse": "skip"}

    def system(self, params, ops) -> bench.DiagonalSystem:
        secret = os.environ.get("FAULTS_SECRET")
        if not isinstance(params["fuse"], np.ndarray):
            getattr(self, f"_{self.fault}")(secret)
        a = ops.exp(params["a_log"])
        real = [ops.complex(x, 0 * x) for x in (a, params["B"], params["C"])]
        burnt = 0 * ops.sqrt(params["fuse"] - self.burns_at)
        return bench.DiagonalSystem(*real, params["D"] + burnt)

    def _none(self, secret):
        pass

    def _raises(self, secret):
        big = np.arange(1_000_000)
        raise ValueError(f"no such thing as {len(big)} in {os.path.abspath('private/notes.txt')}")

    def _exits(self, secret):
        os._exit(9)

    def _exits_0(self, secret):
        os._exit(0)

    def _exits_3(self, secret):
        os._exit(3)

    def _leaves(self, secret):
        sys.exit("enough")

    def _sleeps(self, secret):
        time.sleep(float(os.environ.get("FAULTS_SLEEP", "600")))

    def _clings(self, secret):
        """Ignores a polite end, and has a child that does; the child's number is left where the test looks."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "600"])
        with open(os.environ["FAULTS_CHILD"], "w") as file:
            file.write(f"{os.getpid()} {child.pid}")
        time.sleep(600)

    def _prints(self, secret):
        for _ in range(10):
            sys.stdout.write("x" * 1_000_000)
            sys.stderr.write("y" * 1_000_000)

    def _killed(self, secret):
        os.kill(os.getpid(), signal.SIGKILL)

    def _memory(self, secret):
        np.ones(2**45)


@bench.register.suite("walk")
@dataclass(frozen=True, kw_only=True)
class Walk(bench.Suite):
    """The energy of the output of the layer alone in `steps` steps, each after `pause` seconds.

    Every weight loses one per cent a step.
    """

    d_model: int = 4
    steps: int = 5
    pause: float = 0.0

    def measure(self, cell):
        params, rng = cell.layer.initial(cell.generator("weights")), cell.generator("input")
        cell.describe(batch=2, length=5)
        cell.fact(cpus=len(os.sched_getaffinity(0)), **_threads(cell.cell.backend))
        for step in range(self.steps):
            time.sleep(self.pause)
            u = rng.standard_normal((2, 5, self.d_model))
            y = cell.backend.apply(cell.layer, params, u, dtype=cell.cell.dtype, device=cell.device)
            energy = (y.astype(np.float64) ** 2).mean()
            if not np.isfinite(energy):
                raise bench.Diverged(step, "energy")
            cell.record("energy", energy, "", step=step)
            params = {name: 0.99 * value for name, value in params.items()}

    def report(self, results, view):
        from bench.report.blocks import Table

        found = results[results["metric"] == "energy"]
        rows = [[row.model, str(row.seed), str(row.step), f"{row.value:.17g}"] for row in found.itertuples()]
        return [Table("Energies of the walk", ["model", "seed", "step", "energy"], rows, numeric=["energy"])]


def _threads(backend: str) -> dict[str, int]:
    if backend != "torch":
        return {}
    import torch

    return {"torch_threads": torch.get_num_threads()}

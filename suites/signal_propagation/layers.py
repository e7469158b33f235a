"""What a diagonal layer does to the energy of its inputs, forwards and backwards, beside the exact value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench import energy, seeds
from bench.backends import reference
from bench.contract import DiagonalLayer, DiagonalSystem, Params, Task
from bench.measurement import Measurement
from bench.network import Network
from bench.recipe import Recipe
from bench.training import Batch

LARGEST = {"float16": float(np.finfo(np.float16).max), "bfloat16": (2 - 2**-7) * 2.0**127}
"""The largest finite numbers of the narrow formats."""
AT_ONCE = 2**18
"""State entries of sequences that are run together; the backends hold some tens of time steps of them."""
SEEN = 1e-8
"""Of the largest: gradient energies below are rounding in float32, and no rate is fitted to them."""
PROBES = 8
"""Sequences, and random projections, that are sent through a deep network."""


def measure(cell: Measurement, layer: DiagonalLayer, blocks: Sequence[Params], length: int, noise: int) -> None:
    """Energies of the state under white, constant and impulse input, and of gradients, for each block's parameters."""
    white = cell.generator("white noise").standard_normal((noise, length, layer.d_model)).astype(np.float32)
    impulses = np.zeros((layer.d_model, length, layer.d_model), np.float32)
    impulses[:, 0] = np.eye(layer.d_model)
    for i, params in enumerate(blocks):
        found = _Block(cell, layer, params, i, length)
        found.white(white)
        found.exact("constant", np.ones((1, length, layer.d_model), np.float32), energy.constant_energy)
        found.exact("impulse", impulses, energy.impulse_energy)
        found.levels()
        found.memory()


class _Block:
    def __init__(self, cell: Measurement, layer: DiagonalLayer, params: Params, i: int, length: int) -> None:
        self.cell, self.layer, self.params, self.i = cell, layer, params, i
        self.system: DiagonalSystem = reference.system(layer, params)
        self.entries, self.length = self.system.Lambda.size, length
        self.times = energy.doubling_times(length)

    def record(self, metric: str, value: Any, unit: str = "an entry", t: int | None = None, **more: Any) -> None:
        self.cell.record(metric, value, unit, layer=self.i, t=t, **more)

    def energies(self, u: np.ndarray) -> np.ndarray:
        """|x_t|^2 at `times` as the backend finds it, (batch, times), per entry of the state."""
        size = max(1, AT_ONCE // self.entries)
        run, place = self.cell.backend.energies, {"dtype": self.cell.cell.dtype, "device": self.cell.device}
        pieces = [run(self.layer, self.params, u[first : first + size], **place) for first in range(0, len(u), size)]
        return np.concatenate(pieces)[:, [t - 1 for t in self.times], 0].astype(np.float64) / self.entries

    def white(self, noise: np.ndarray) -> None:
        found = self.energies(noise)
        expected = energy.white_noise_energy(self.system, self.times) / self.entries
        for k, t in enumerate(self.times):
            self.record("white_noise_energy", found[:, k].mean(), t=t)
            self.record("white_noise_error", found[:, k].std(ddof=1) / np.sqrt(len(found)), t=t)
            self.record("white_noise_expected", expected[k], t=t)

    def exact(self, name: str, inputs: np.ndarray, expected: Any) -> None:
        """Inputs without chance: what is measured and what is expected differ by rounding alone."""
        wanted = expected(self.system, self.times) / self.entries
        for t, found, value in zip(self.times, self.energies(inputs).sum(0), wanted, strict=True):
            self.record(f"{name}_energy", found, t=t)
            self.record(f"{name}_expected", value, t=t)

    def levels(self) -> None:
        """Where energies settle, how long an impulse lasts, and how far the largest entry is from overflow."""
        largest = np.abs(self.system.Lambda).max()
        stationary = energy.stationary_energy(self.system) / self.entries
        endless = None if np.isfinite(stationary) else f"it grows for ever: the largest |Lambda| is {largest:.6g}"
        self.record("largest_modulus", largest, "")
        self.record("stationary_energy", stationary, message=endless)
        self.record("half_life", energy.half_life(self.system), "steps")
        root = np.sqrt(energy.white_noise_entries(self.system, self.times).reshape(len(self.times), -1).max(1))
        for name, limit in LARGEST.items():
            self.record(f"{name}_headroom", np.log2(limit / root[-1]), "bits", t=self.length)
            step, reason = energy.time_to_exceed(self.system, limit**2)
            self.record(f"{name}_overflow", step, "step", message=reason)

    def memory(self) -> None:
        """E|dL/du_{T-k}|^2 for L = g . y_T with white g, over lags k, and the rate of an exponential through it.

        The mean over g is a sum over unit vectors, so nothing is left to chance.
        """
        g = np.zeros((self.layer.d_model, self.length, self.layer.d_model), np.float32)
        g[:, -1] = np.eye(self.layer.d_model)
        run, place = self.cell.backend.gradients, {"dtype": self.cell.cell.dtype, "device": self.cell.device}
        gradients = run(self.layer, self.params, np.zeros_like(g), g, **place)["u"]
        curve = np.square(gradients, dtype=np.float64).sum((0, 2))[::-1] / self.layer.d_model
        lags = [0, *(t for t in self.times if t < self.length)]
        expected = energy.memory_curve(self.system, lags) / self.layer.d_model
        for k, value in zip(lags, expected, strict=True):
            self.record("memory_energy", curve[k], "of a gradient", t=k)
            self.record("memory_expected", value, "of a gradient", t=k)
        seen = np.flatnonzero(curve[1:] > SEEN * curve[1:].max(initial=0)) + 1
        rate = float(np.polyfit(seen, np.log(curve[seen]), 1)[0]) if len(seen) > 1 else None
        self.record("memory_rate", rate, "nat a step", message=None if rate is not None else "fewer than two lags")


def measure_constant(cell: Measurement, layer: DiagonalLayer, params: Params, length: int, level: float) -> None:
    """Norms of the state where every feature is `level` at every step: of the whole, and the mean over heads."""
    u = np.full((1, length, layer.d_model), level, np.float32)
    place = {"dtype": cell.cell.dtype, "device": cell.device}
    found = cell.backend.energies(layer, params, u, coordinates="own", **place)[0].astype(np.float64)
    times = energy.doubling_times(length)
    expected = level * np.sqrt(energy.constant_energy(reference.system(layer, params), times))
    for t, value in zip(times, expected, strict=True):
        cell.record("constant_norm", np.sqrt(found[t - 1].sum()), "", t=t)
        cell.record("constant_norm_head", np.sqrt(found[t - 1]).mean(), "", t=t)
        cell.record("constant_norm_expected", value, "of the diagonal state", t=t)


def measure_draws(cell: Measurement, layer: DiagonalLayer, times: list[int], draws: int) -> None:
    """How far initialisations differ: standard deviation over mean of their exact energies under white input."""
    found = []
    for draw in range(draws):
        params = layer.initial(seeds.generator(cell.cell.seed, "draws", cell.cell.plain_model, draw))
        found.append(energy.white_noise_energy(reference.system(layer, params), times))
    for k, t in enumerate(times):
        values = np.array([curve[k] for curve in found])
        cell.record("draw_energy", values.mean() / np.prod(layer.state_shape), "an entry", t=t)
        cell.record("draw_spread", values.std(ddof=1) / values.mean(), "of the mean", t=t)


def measure_depth(cell: Measurement, network: Network, weights: Params, length: int) -> None:
    """Energies of white input after each block, and of the gradient of a random projection of the last position."""
    rng = cell.generator("deep network")
    x, g = (rng.standard_normal((PROBES, length, network.layer.d_model)).astype(np.float32) for _ in range(2))
    g[:, :-1] = 0
    signals, gradients = cell.backend.block_signals(
        network, weights, x, g, dtype=cell.cell.dtype, device=cell.device
    )  # fmt: skip
    for level in range(network.depth + 1):  # 0 is what enters the first block
        for t in energy.doubling_times(length):
            for name, squares in (("signal", signals[level][:, t - 1]), ("jacobian", gradients[level][:, -t])):
                value = squares.mean() / network.layer.d_model
                cell.record(f"{name}_energy", value, "a feature", layer=level, t=t)


def measure_task(cell: Measurement, task: Task, network: Network, weights: Params, examples: int) -> None:
    """Energies of each block's state on validation examples, over the positions that they have."""
    split = task.load(cell.cell.seed).validation
    rows = cell.generator("probe").permutation(len(split))[:examples]
    batch = Batch.of(split, rows)
    trainer = cell.backend.Trainer(network, weights, Recipe(steps=1, batch=1), cell.cell.dtype, cell.device)
    lengths = batch.lengths.reshape(-1)
    for i, energies in enumerate(trainer.state_energies(batch)):
        for t in energy.doubling_times(energies.shape[1]):
            inside = energies[lengths >= t, t - 1].sum(-1, dtype=np.float64)
            value = inside.mean() * 2 / network.layer.state_reals if len(inside) else None
            reason = None if value is not None else "no example is that long"
            cell.record("task_energy", value, "an entry", layer=i, t=t, message=reason)

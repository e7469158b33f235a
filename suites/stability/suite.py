"""Trains a network and watches the hidden states of its layers on one fixed probe batch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

from bench import energy
from bench.backends import reference
from bench.contract import DiagonalLayer, Diverged, Missing, Suite, Task, Unsupported, View, require
from bench.data import batches
from bench.measurement import Measurement
from bench.network import Network, Structure, layer_weights
from bench.recipe import Recipe
from bench.report.blocks import Block
from bench.report.figures import Figure
from bench.report.measures import Measure
from bench.training import Batch, Trainer, dropout_masks
from suites.stability import norms
from suites.stability.figures import figures
from suites.stability.report import blocks

if TYPE_CHECKING:
    from bench.selftest import Selftest


@dataclass(frozen=True, kw_only=True)
class Stability(Suite):
    """Norms of hidden states before and while a network trains; dropout off, positions before each example's end.

    `steps` training steps of `batch` examples; `evaluations` times, evenly spread and at the start, the states of
    `probe` validation examples are looked at, and before and after training those under `noise` sequences of white
    noise. `bare`: the layers alone, without norm, mix and residual (`bench.network.Structure`), as the preset `toy` has
    one. The rest is the recipe (`bench.recipe.Recipe`).
    """

    d_model: int = 64
    steps: int = 200
    evaluations: int = 10
    probe: int = 32
    noise: int = 32
    batch: int = 16
    rate: float = 3e-3
    recurrent_factor: float = 1 / 3
    weight_decay: float = 0.05
    warmup: float = 0.1
    dropout: float = 0.0
    clip: float = 1.0
    rate_end: float = 0.0
    bare: bool = False

    version: ClassVar[int] = 1
    measures = {
        "drift": Measure(metric="drift", better="nearer 0", title="Size of the drift of the norm", unit="log2"),
        "largest_drift": Measure(metric="largest_drift", better="nearer 0", unit="log2",
                                 title="Size of the largest drift of the norm"),
        "accuracy": Measure(metric="accuracy", where={"split": "probe"}, over="last", better="higher",
                            title="Accuracy on the probe", unit="%", scale=100),
        "loss": Measure(metric="loss", where={"split": "probe"}, over="last", better="lower",
                        title="Loss on the probe"),
    }  # fmt: skip
    presets = {
        "quick": {
            "tasks": ["listops"],
            "depths": [2, 4],
            "listops.max_length": [100],
            "listops.train": [2000],
            "listops.validation": [200],
            "listops.test": [200],
        },
        "default": {
            "tasks": ["listops"],
            "depths": [1, 2, 4, 8],
            "d_model": [128],
            "steps": [2000],
            "evaluations": [40],
            "batch": [32],
            "listops.train": [20000],
        },
        "toy": {
            "tasks": ["matching-ends"],
            "depths": [1],
            "bare": [True],
            "d_model": [128],
            "steps": [1000],
            "batch": [8],
            "rate": [1e-2],
            "recurrent_factor": [1.0],
            "weight_decay": [0.0],
            "warmup": [0.0],
            "clip": [1e9],
            "rate_end": [1e-2],
            "rotrnn.d_state": [256],
            "rotrnn.gamma_min": [1e-6],
            "rotrnn.gamma_max": [1 - 1e-4],
            "lru.d_state": [256],
            "lru.r_min": [1e-6],
            "lru.r_max": [1 - 1e-4],
            "s5.d_state": [256],
            "s5.blocks": [16],
            "s5.conj_sym": [False],
        },
    }

    def __post_init__(self) -> None:
        for name in ("d_model", "evaluations", "probe", "noise"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1, not {getattr(self, name)}")
        self._recipe()
        require(self.evaluations <= self.steps, f"evaluations = {self.evaluations} is more than steps = {self.steps}")

    def _recipe(self) -> Recipe:
        names = {field.name for field in dataclasses.fields(Recipe)} & {f.name for f in dataclasses.fields(self)}
        return Recipe(**{name: getattr(self, name) for name in names})

    @property
    def structure(self) -> Structure:
        return Structure(bare=self.bare)

    def measure(self, cell: Measurement) -> None:
        if cell.task is None:
            raise Missing("the suite stability trains on a task: name one with --tasks")
        data, recipe = cell.task.load(cell.cell.seed), self._recipe()
        network = Network.of(cell.layer, cell.cell.depth, cell.task, self.structure)
        weights, roles = network.initial(cell.cell.plain_model, cell.cell.seed), network.roles()
        rows = cell.generator("probe").permutation(len(data.validation))[: self.probe]
        watch = _Watch(cell, cell.task, network, Batch.of(data.validation, rows), self.noise)
        cell.describe(
            batch=min(self.batch, len(data.train)),
            length=cell.task.length,
            params=sum(w.size for name, w in weights.items() if roles[name] != "constant"),
        )
        cell.fact(data_sha256=data.checksum)

        trainer = cell.backend.Trainer(network, weights, recipe, cell.cell.dtype, cell.device)
        at = {round(k * self.steps / self.evaluations) for k in range(self.evaluations + 1)}
        watch.evaluate(trainer, 0, noise=True)
        order = batches(len(data.train), self.batch, cell.cell.seed, self.steps)
        for step, chosen in enumerate(order):
            masks = dropout_masks(recipe, network, cell.cell.seed, step, len(chosen))
            loss, gradient = trainer.step(Batch.of(data.train, chosen), recipe.rate_at(step), masks)
            for what, value in (("loss", loss), ("gradient", gradient)):
                if not np.isfinite(value):
                    raise Diverged(step, what)
            cell.record("loss", loss, "nat", step=step, split="train")
            if step + 1 in at:
                watch.evaluate(trainer, step + 1, noise=step + 1 == self.steps)
        watch.summarise()
        cell.save_params(trainer.weights())

    @classmethod
    def selftest(cls) -> Selftest:
        from suites.stability.selftest import SELFTEST

        return SELFTEST

    def report(self, results: pd.DataFrame, view: View) -> list[Block]:
        return blocks(results)

    def figures(self, results: pd.DataFrame, view: View) -> list[Figure]:
        return figures(results)


class _Watch:
    """Looks at a network through one fixed batch, and records what it sees."""

    def __init__(self, cell: Measurement, task: Task, network: Network, probe: Batch, noise: int) -> None:
        if not isinstance(cell.layer, DiagonalLayer):
            raise Unsupported(f"{cell.cell.model} is no diagonal layer, so the norm of its state is not known")
        self.cell, self.task, self.network, self.probe = cell, task, network, probe
        self.layer = cell.layer
        self.valid = norms.inside(probe.lengths, probe.inputs.shape[1])
        self.times = energy.doubling_times(probe.inputs.shape[1])
        rng = cell.generator("white noise")
        self.noise = rng.standard_normal((noise, self.times[-1], self.layer.d_model)).astype(np.float32)
        self.steps: list[int] = []
        self.rms: list[list[float]] = []
        for t in self.times:
            cell.record("probe_examples", int(self.valid[:, t - 1].sum()), "examples", t=t)

    def evaluate(self, trainer: Trainer, step: int, *, noise: bool) -> None:
        record = self.cell.record
        loss, gradients = trainer.loss_and_layer_gradients(self.probe)
        record("loss", loss, "nat", step=step, split="probe")
        right = self.task.metric(trainer.logits(self.probe), self.probe.targets)
        record("accuracy", right.mean(), "", step=step, split="probe")
        for i, gradient in enumerate(gradients):
            record("gradient_norm", gradient, "", step=step, layer=i)
        for i, found in enumerate(trainer.diagnostics()):
            for name, value in sorted(found.items()):
                record(name, value, "", step=step, layer=i)
        weights = trainer.weights()
        systems = [reference.system(self.layer, layer_weights(weights, i)) for i in range(self.network.depth)]
        for i, system in enumerate(systems):
            record("largest_modulus", np.abs(system.Lambda).max(), "", step=step, layer=i)

        levels = []
        for i, energies in enumerate(trainer.state_energies(self.probe)):
            if not np.isfinite(energies[self.valid]).all():
                raise Diverged(step, f"state in layer {i}")
            levels.append(self._record_norms(energies, step, i))
        self.steps.append(step)
        self.rms.append(levels)
        if noise:
            self._record_noise(trainer, systems, step)

    def _record_norms(self, energies: np.ndarray, step: int, layer: int) -> float:
        """Every norm of one layer; returns its rms per real number."""
        record, reals = self.cell.record, self.layer.state_reals
        whole = energies.sum(-1, dtype=np.float64)
        rms = norms.rms_per_real(whole[self.valid], reals)
        record("state_rms", rms, "per real number", step=step, layer=layer)
        record("norm_paper", norms.mean_norm(energies, self.valid), "", step=step, layer=layer)
        heads = range(energies.shape[-1] if energies.shape[-1] > 1 else 0)
        for t in self.times:
            at = self.valid[:, t - 1]
            where: dict[str, Any] = {"step": step, "layer": layer, "t": t}
            if not at.any():
                record("state_rms", None, "per real number", **where, message="no probe example is that long")
                continue
            squares = whole[at, t - 1]
            record("state_rms", norms.rms_per_real(squares, reals), "per real number", **where)
            for head in [None, *heads]:
                found = squares if head is None else energies[at, t - 1, head].astype(np.float64)
                record("norm_mean", np.sqrt(found).mean(), "", **where, head=head)
                record("norm_rms", np.sqrt(found.mean()), "", **where, head=head)
        return rms

    def _record_noise(self, trainer: Trainer, systems: list, step: int) -> None:
        """White noise fed to each layer directly: measured energy, its sampling error, and the exact expectation."""
        for i, energies in enumerate(trainer.white_noise_energies(self.noise)):
            found = energies[:, [t - 1 for t in self.times]].astype(np.float64)
            error = found.std(0, ddof=1) / np.sqrt(len(found)) if len(found) > 1 else [None] * len(self.times)
            expected = energy.white_noise_energy(systems[i], self.times)
            for k, t in enumerate(self.times):
                where: dict[str, Any] = {"step": step, "layer": i, "t": t}
                self.cell.record("white_noise_energy", found[:, k].mean(), "", **where)
                self.cell.record("white_noise_error", error[k], "", **where, message="one sequence has no spread"
                                 if error[k] is None else None)  # fmt: skip
                self.cell.record("white_noise_expected", expected[k], "", **where)

    def summarise(self) -> None:
        """Drift and settling of each layer."""
        steps, rms = np.array(self.steps), np.array(self.rms)
        for i in range(rms.shape[1]):
            moved = norms.drift(rms[:, i])
            self.cell.record("drift", moved[-1], "log2", layer=i)
            self.cell.record("largest_drift", norms.largest(moved), "log2", layer=i)
            settled = norms.settling_step(steps, rms[:, i])
            reason = "still moving at the last evaluation" if settled is None else None
            self.cell.record("settling_step", settled, "step", layer=i, message=reason)

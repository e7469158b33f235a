"""One training from its first step, or from where it was interrupted, to the test."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bench.contract import DiagonalLayer, Diverged, Split, Task
from bench.data import batches
from bench.measurement import Measurement
from bench.network import Network, Structure
from bench.prefetch import Prefetch
from bench.recipe import Recipe
from bench.training import Batch, dropout_masks, losses

EVERY_STEP = 20
"""The losses of so many first steps are kept, one by one; later about `KEPT` of all."""
KEPT = 200
AT_ONCE = 2**16
"""Positions whose logits are computed at once in evaluation."""
PROBED = 16
"""Validation examples whose states are looked at."""


class Run:
    """The training of one cell."""

    def __init__(
        self, cell: Measurement, task: Task, recipe: Callable[[int], Recipe], structure: Structure, evaluations: int,
        watched: int,
    ) -> None:  # fmt: skip
        self.cell, self.task, seed = cell, task, cell.cell.seed
        self.data = task.load(seed)
        self.recipe = recipe(len(self.data.train))
        self.network = Network.of(cell.layer, cell.cell.depth, task, structure)
        weights, roles = self.network.initial(cell.cell.plain_model, seed), self.network.roles()
        self.batch = min(self.recipe.batch, len(self.data.train))
        self.at = {max(1, round((k + 1) * self.recipe.steps / evaluations)) for k in range(evaluations)}
        rows = cell.generator("watched").permutation(len(self.data.train))[:watched]
        self.watched = Batch.of(self.data.train, np.sort(rows))
        self.probe = Batch.of(self.data.validation, np.arange(min(PROBED, len(self.data.validation))))
        cell.describe(
            batch=self.batch,
            length=task.length,
            params=sum(w.size for name, w in weights.items() if roles[name] != "constant"),
            state_reals=cell.layer.state_at(task.length),
        )
        cell.fact(
            data_sha256=self.data.checksum,
            floors=task.floors(self.data),
            published=task.published,
            task_options=dict(cell.cell.task_options),
        )
        self.trainer = cell.backend.Trainer(self.network, weights, self.recipe, cell.cell.dtype, cell.device)
        self.step, self.tokens, self.seconds, self.waited = 0, 0, 0.0, 0.0
        self.best: tuple[float, float, int] = (-1.0, 0.0, 0)
        """Accuracy, minus the loss and minus the step of the best validation."""
        self.chosen: dict[str, np.ndarray] = {}

    def go(self) -> None:
        self._go_on_from_checkpoint()
        clock, gradients = time.perf_counter() - self.seconds, []
        before = self.waited
        with Prefetch(self._inputs(self.step)) as inputs:
            for batch, masks in inputs:
                loss, gradient = self.trainer.step(batch, self.recipe.rate_at(self.step), masks)
                for what, value in (("loss", loss), ("gradient", gradient)):
                    if not np.isfinite(value):
                        raise Diverged(self.step, what)
                gradients.append(gradient)
                self.tokens += int(batch.lengths.sum())
                if self.step < EVERY_STEP or self.step % max(1, self.recipe.steps // KEPT) == 0:
                    self.cell.record("batch_loss", loss, "nat", step=self.step, split="train")
                self.step += 1
                if self.step in self.at:
                    self.seconds, self.waited = time.perf_counter() - clock, before + inputs.waited
                    self._evaluate(float(np.mean(gradients)))
                    gradients = []
        self._test()
        self.cell.save_params(self.chosen)
        self.cell.checkpoint.remove()

    def _inputs(self, first: int) -> Iterator[tuple[Batch, np.ndarray | None]]:
        seed, train = self.cell.cell.seed, self.data.train
        order = itertools.islice(batches(len(train), self.batch, seed, self.recipe.steps), first, None)
        for step, chosen in enumerate(order, first):
            yield Batch.of(train, chosen), dropout_masks(self.recipe, self.network, seed, step, len(chosen))

    def _evaluate(self, gradient: float) -> None:
        """Metrics of this step."""
        record = self.cell.record
        where: dict[str, Any] = {"step": self.step, "epoch": self._epoch(self.step)}
        for split, examples in (("train", self.watched), ("validation", self.data.validation)):
            accuracy, loss = self._score(examples)
            record("accuracy", accuracy, "", **where, split=split)
            record("loss", loss, self._unit, **where, split=split)
            if not np.isfinite(loss):
                raise Diverged(self.step, f"{split} loss")
        if (accuracy, -loss, -self.step) > self.best:
            self.best, self.chosen = (accuracy, -loss, -self.step), self.trainer.weights()
        record("gradient_norm", gradient, "", **where)
        record("seconds", self.seconds, "s", **where)
        record("tokens", self.tokens, "", **where)
        rate = self.recipe.rate_at(self.step - 1)
        for group, factor in (("fast", 1.0), ("slow", self.recipe.recurrent_factor)):
            record("rate", rate * factor, group, **where)
        self._record_states(where)
        if self.step < self.recipe.steps:
            about = {"step": self.step, "tokens": self.tokens, "seconds": self.seconds, "waited": self.waited,
                     "best": self.best, "rows": self.cell.rows}  # fmt: skip
            chosen = {f"chosen.{name}": value for name, value in self.chosen.items()}
            self.cell.checkpoint.save(self.trainer.state() | chosen, about)

    def _record_states(self, where: dict) -> None:
        layer = self.cell.layer
        if not isinstance(layer, DiagonalLayer) or layer.has_reverse:
            return
        lengths = self.probe.lengths.reshape(-1)
        inside = np.arange(self.probe.inputs.shape[-1 if self.network.tokens else -2])[None, :] < lengths[:, None]
        for i, energies in enumerate(self.trainer.state_energies(self.probe)):
            squares = energies.sum(-1, dtype=np.float64)[inside]
            self.cell.record(
                "state_rms", np.sqrt(squares.mean() / layer.state_reals), "per real number", **where, layer=i
            )

    def _test(self) -> None:
        self.trainer.restore({f"weights.{name}": value for name, value in self._rescaled().items()})
        step = -self.best[2]
        accuracy, loss = self._score(self.data.test)
        where: dict[str, Any] = {"step": step, "epoch": self._epoch(step), "split": "test"}
        self.cell.record("accuracy", accuracy, "", **where)
        self.cell.record("loss", loss, self._unit, **where)
        self.cell.record("selected_step", step, "step", split="validation")
        self.cell.record("waiting", self.waited / self.seconds if self.seconds else None, "of the time")

    def _rescaled(self) -> dict[str, np.ndarray]:
        """The chosen weights; step sizes, kept as logarithms, grow with the time steps of the test split."""
        move = np.float64(np.log(self.task.step_scale))
        steps = {name for name, role in self.network.roles().items() if role == "step"}
        if move and not steps:
            self.cell.fact(step_scale="the layer has no step size that could follow the test split's")
        return {
            name: (value + move).astype(value.dtype) if name in steps else value for name, value in self.chosen.items()
        }

    def _score(self, examples: Split | Batch) -> tuple[float, float]:
        """Accuracy and loss, means over examples. Batches are of one size: the last is filled up with its first row."""
        count = len(examples.targets)
        size = min(count, max(1, AT_ONCE // (self.task.length * self.network.sequences)))
        right, lost = [], []
        for first in range(0, count, size):
            rows = np.arange(first, first + size)
            rows = np.where(rows < count, rows, first)
            batch = Batch(examples.inputs[rows], examples.lengths[rows], examples.targets[rows])
            logits, real = self.trainer.logits(batch), min(size, count - first)
            right.append(self.task.metric(logits, batch.targets)[:real])
            lost.append(losses(self.network, logits, batch.targets)[:real])
        return float(np.concatenate(right).mean()), float(np.concatenate(lost).mean())

    def _epoch(self, step: int) -> int:
        return step // (len(self.data.train) // self.batch)  # the last few examples of an epoch fill no batch

    @property
    def _unit(self) -> str:
        return "squared" if self.network.output == "number" else "nat"

    def _go_on_from_checkpoint(self) -> None:
        found = self.cell.checkpoint.load()
        if found is None:
            return
        arrays, about = found
        self.chosen = {n.removeprefix("chosen."): v for n, v in arrays.items() if n.startswith("chosen.")}
        self.trainer.restore({n: v for n, v in arrays.items() if not n.startswith("chosen.")})
        self.step, self.tokens = about["step"], about["tokens"]
        self.seconds, self.waited = about["seconds"], about["waited"]
        self.best = tuple(about["best"])
        self.cell.rows[:] = about["rows"]

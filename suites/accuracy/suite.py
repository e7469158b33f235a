"""Trains a network by a recipe, chooses the step by its validation split, and tests that step once."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd

from bench.contract import Adaptation, Layer, Missing, Suite, View, require
from bench.measurement import Measurement
from bench.network import Mix, Network, Norm, Structure
from bench.recipe import Recipe
from bench.report.blocks import Block
from bench.report.figures import Figure
from bench.report.grid import Grid
from bench.report.measures import Measure
from bench.report.sheet import Published
from suites.accuracy import published
from suites.accuracy.figures import figures
from suites.accuracy.recipes import adaptation
from suites.accuracy.report import blocks
from suites.accuracy.training import Run


@dataclass(frozen=True, kw_only=True)
class Accuracy(Suite):
    """Accuracy and loss of each split over a training, per example.

    `recipe` is `default` (the values below), `quick` (minutes on a CPU), `paper` (as published, by model and task) or a
    TOML file of the user's; what is given beside it goes before it. The budget is `steps`, or `epochs` over the
    training split. `evaluations` times, evenly spread, the whole validation split and `watched` training examples are
    looked at; the step with the best validation accuracy (then the smaller loss, then the earlier) is tested, once.
    The rest is the optimiser (`bench.recipe.Recipe`) and the block (`bench.network.Structure`).
    """

    recipe: str = "default"
    steps: int = 2000
    epochs: int | None = None
    evaluations: int = 10
    watched: int = 500
    batch: int = 32
    rate: float = 3e-3
    recurrent_factor: float = 1 / 3
    weight_decay: float = 0.05
    warmup: float = 0.1
    dropout: float = 0.0
    clip: float = 1.0
    rate_start: float = 0.0
    rate_end: float = 0.0
    moved: str = ""
    norm: Norm = "layer"
    momentum: float = 0.95
    prenorm: bool = True
    mix: Mix = "full_glu"

    version: ClassVar[int] = 1
    measures = {
        "accuracy": Measure(metric="accuracy", where={"split": "test"}, better="higher", title="Test accuracy",
                            unit="%", scale=100),
        "loss": Measure(metric="loss", where={"split": "test"}, better="lower", title="Test loss"),
        "validation": Measure(metric="accuracy", where={"split": "validation"}, over="last", better="higher",
                              title="Validation accuracy at the last step", unit="%", scale=100),
        "seconds": Measure(metric="seconds", over="last", better="lower", title="Training time", unit="s", ratio=True),
    }  # fmt: skip
    alternatives = {"epochs": "steps", "steps": "epochs"}
    presets = {
        "quick": {
            "tasks": ["digits"],
            "recipe": ["quick"],
            "listops.min_length": [50],
            "listops.max_length": [150],
            "listops.train": [10_000],
            "listops.validation": [1000],
            "listops.test": [1000],
            "mqar.vocabulary_size": [64],
            "mqar.train": [20_000],
            "mqar.validation": [1000],
            "mqar.test": [1000],
        },
        "default": {"tasks": ["listops"], "depths": [4], "d_model": [128], "steps": [20_000], "evaluations": [40]},
        "paper": {"tasks": ["listops"], "depths": [6], "recipe": ["paper"], "evaluations": [40]},
    }

    def __post_init__(self) -> None:
        for name in ("d_model", "evaluations", "watched"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1, not {getattr(self, name)}")
        require(self.epochs is None or self.epochs >= 1, f"epochs must be at least 1, not {self.epochs}")
        self.training(1)
        Structure(**_fields(self, Structure))

    def adapt(self, model: str, task: str | None) -> Adaptation:
        return adaptation(type(self), self.recipe, model, task or "")

    def check(self, layer: Layer) -> None:
        network = Network(layer=layer, depth=1, inputs=1, tokens=True, classes=1, structure=self.structure)
        self.training(1).groups(network.roles())

    @property
    def structure(self) -> Structure:
        return Structure(**_fields(self, Structure))

    def training(self, examples: int) -> Recipe:
        """The optimiser's recipe for a training split of so many examples."""
        values = _fields(self, Recipe)
        if self.epochs is not None:
            values["steps"] = self.epochs * (examples // min(self.batch, examples))
        return Recipe(**values)

    def measure(self, cell: Measurement) -> None:
        if cell.task is None:
            raise Missing("the suite accuracy trains on a task: name one with --tasks")
        Run(cell, cell.task, self.training, self.structure, self.evaluations, self.watched).go()

    def report(self, results: pd.DataFrame, view: View) -> list[Block]:
        return blocks(results)

    def figures(self, results: pd.DataFrame, view: View) -> list[Figure]:
        return figures(results)

    def published(self, results: pd.DataFrame, grid: Grid, summaries: bool) -> Published:
        test = self.measures["accuracy"]
        require(grid.measure == test, f"--published: published figures are test accuracies, not {grid.measure.title}: "
                "leave out --metric")  # fmt: skip
        facts = dict(zip(results["cell_id"], results["facts"], strict=True))
        places: list[Sequence[str] | None] = []
        for column in grid.columns:
            ids = [cell for (_, c), entry in grid.entries.items() if c == column for cell in entry.cells.values()]
            known = (json.loads(facts[cell] or "{}").get("published") for cell in ids if isinstance(facts[cell], str))
            places.append(next((place for place in known if place), None))
        return published.rows(places, grid.row_heads, summaries)


def _fields(suite: Accuracy, cls: type) -> dict:
    """What the suite and another dataclass both have."""
    names = {field.name for field in dataclasses.fields(cls)} & {field.name for field in dataclasses.fields(suite)}
    return {name: getattr(suite, name) for name in names}

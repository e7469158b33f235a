"""What a suite sees of one cell while it measures it, and where its records go."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from bench import backends, seeds, store
from bench.checkpoint import Checkpoint
from bench.contract import Layer, Suite, Task
from bench.plan import Cell


class Measurement:
    """One cell: its layer, task and suite as objects, its backend's package, the device as the run found it."""

    def __init__(
        self,
        cell: Cell,
        device: str,
        threads: int,
        params_folder: Path | None = None,
        process: int | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self.cell = cell
        self.process = process
        self.checkpoint = checkpoint or Checkpoint(None, "")
        self.status: str = "ok"
        self.message: str | None = None
        self.layer: Layer = cell.layer
        self.task: Task | None = cell.task_object
        self.suite: Suite = cell.suite_object
        self.device = device
        self.threads = threads
        self.backend: ModuleType = backends.load(cell.backend)
        self.rows: list[dict[str, Any]] = []
        self.columns: dict[str, Any] = {
            "threads": threads,
            "kernel": self.backend.kernel_name(self.layer, device, cell.dtype),
            "state_reals": self.layer.state_reals,
        }
        self.facts: dict[str, Any] = {"match": dict(cell.match)} if cell.match else {}
        self._params_folder = params_folder

    def generator(self, *purpose: str | int) -> np.random.Generator:
        """Randomness of the cell's seed for a purpose: equal for every model, backend, dtype and device."""
        return seeds.generator(self.cell.seed, *purpose)

    def record(
        self,
        metric: str,
        value: Any,
        unit: str = "",
        *,
        step: int | None = None,
        epoch: int | None = None,
        layer: int | None = None,
        head: int | None = None,
        t: int | None = None,
        split: str | None = None,
        sample: int | None = None,
        verified: bool | None = None,
        message: str | None = None,
    ) -> None:
        """One value; any framework's scalar. What is not finite is stored as null, with the reason."""
        number = None if value is None else store.to_float(value)
        if number is None and message is None:
            message = "not measured" if value is None else f"{float(value)} is not finite"
        row = {"metric": metric, "unit": unit, "step": step, "epoch": epoch, "layer": layer, "head": head, "t": t,
               "split": split, "process": self.process, "sample": sample, "verified": verified,
               "message": message}  # fmt: skip
        self.rows.append({name: store.checked(name, content) for name, content in row.items()} | {"value": number})

    def unconverged(self, reason: str) -> None:
        """All was measured, but not as narrowly as was asked: the cell ends `unconverged`, with its rows."""
        self.status, self.message = "unconverged", reason

    def describe(self, **columns: Any) -> None:
        """Columns of the store that hold for the whole cell: batch, length, params, state_reals ..."""
        unknown = set(columns) - set(store.CELL_COLUMNS)
        if unknown:
            raise ValueError(f"no such column: {', '.join(sorted(unknown))}")
        self.columns |= {name: store.checked(name, value) for name, value in columns.items()}

    def fact(self, **facts: Any) -> None:
        """What belongs into every row and has no column: texts, numbers, and lists and tables of them."""
        for name, value in facts.items():
            try:
                self.facts[name] = json.loads(json.dumps(value, default=_plain, allow_nan=False))
            except (TypeError, ValueError) as error:
                raise ValueError(f"the fact {name} cannot be stored as JSON: {error}") from error

    def save_params(self, weights: dict[str, np.ndarray]) -> None:
        """Keeps trained parameters beside the results, unless the run leaves them out."""
        if self._params_folder is not None:
            self._params_folder.mkdir(exist_ok=True)
            part = self._params_folder / f".{self.cell.id}.part"
            save_file({name: np.ascontiguousarray(value) for name, value in weights.items()}, part)
            part.replace(self._params_folder / f"{self.cell.id}.safetensors")

    def cell_columns(self) -> dict[str, Any]:
        """What is repeated in every row."""
        return self.cell.columns() | self.columns | {"facts": json.dumps(self.facts, sort_keys=True)}


def _plain(value: Any) -> Any:
    """numpy's or a framework's scalars and arrays as Python's own."""
    if not hasattr(value, "tolist"):
        raise TypeError(f"{type(value).__name__} is no JSON")
    return value.tolist()

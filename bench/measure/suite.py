"""What suites have in common that measure one workload a cell: their factors, and how a cell becomes a program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bench.contract import Suite, require
from bench.measure.cost import Mode
from bench.measure.workload import Part, Program, Workload
from bench.measurement import Measurement


@dataclass(frozen=True, kw_only=True)
class WorkloadSuite(Suite):
    """Layers alone or networks around them, at one batch and length.

    `mode`: `forward`; `train`, forward, backward and a step of AdamW; `decode`, one recurrent step at the position
    `length`. `tokens` above 0 holds batch x length constant in the place of `batch`. `part`: `layer`, `depth` layers
    one after another, or `network`, as many blocks with norm and gate, encoder, pooling, decoder.
    """

    alternatives = {"batch": "tokens", "tokens": "batch"}
    takes_tasks: ClassVar[bool] = False

    d_model: int = 128
    mode: Mode = "train"
    batch: int = 8
    length: int = 1024
    tokens: int = 0
    part: Part = "layer"

    def __post_init__(self) -> None:
        for name in ("d_model", "batch", "length"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1, not {getattr(self, name)}")
        require(self.tokens >= 0, f"tokens must not be negative, but is {self.tokens}")
        require(
            self.tokens % self.length == 0,
            f"tokens = {self.tokens} is no multiple of length = {self.length}, so no batch holds it constant",
        )

    @property
    def rows(self) -> int:
        """The batch that is run."""
        return self.tokens // self.length if self.tokens else self.batch

    def workload(self, cell: Measurement) -> Workload:
        """The cell's workload; its sizes are described. Raises `Unsupported` where it has no meaning."""
        workload = Workload(
            layer=cell.layer, depth=cell.cell.depth, part=self.part, mode=self.mode, batch=self.rows, length=self.length
        )
        weights = workload.weights(cell.cell.plain_model, cell.cell.seed)
        params = sum(weights[name].size for name in workload.groups())
        state_reals = cell.layer.state_at(self.length)
        cell.describe(batch=self.rows, length=self.length, mode=self.mode, params=params, state_reals=state_reals)
        if self.mode == "decode":
            cell.describe(kernel="step")
        return workload

    def program(self, cell: Measurement, workload: Workload) -> Program:
        """The workload on the cell's backend, with inputs of the cell's seed; nothing is on the device yet."""
        weights = workload.weights(cell.cell.plain_model, cell.cell.seed)
        inputs = workload.inputs(cell.generator("workload", workload.mode, workload.batch, workload.length))
        return cell.backend.Program(workload, weights, inputs, cell.cell.dtype, cell.device, cell.cell.compiled)

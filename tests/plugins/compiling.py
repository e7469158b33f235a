"""Layers for torch.compile: one that it takes, one that it must refuse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import bench


@dataclass(frozen=True, kw_only=True)
class Scaled(bench.Layer):
    """y = scale * u."""

    def initial(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {"scale": np.full(self.d_model, 2.0)}

    def roles(self):
        return {"scale": "skip"}

    @property
    def state_reals(self) -> int:
        return 0

    def torch_module(self, params: Any) -> Any:
        import torch

        class Module(torch.nn.Module):
            def __init__(module) -> None:
                super().__init__()
                module.scale = torch.nn.Parameter(torch.tensor(params["scale"]))

            def forward(module, u, lengths=None):
                return self.times(module.scale, u)

        return Module()

    def times(self, scale, u):
        return scale * u


@bench.register.model("smooth")
@dataclass(frozen=True, kw_only=True)
class Smooth(Scaled):
    """Compiles."""


@bench.register.model("broken")
@dataclass(frozen=True, kw_only=True)
class Broken(Scaled):
    """Looks at a value on the way, which no whole graph can."""

    def times(self, scale, u):
        return scale * u if float(u.sum()) > 0 else u * scale

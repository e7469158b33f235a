"""What is timed, and whose memory is measured: the same work for every backend, described without a framework."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal, Protocol

import numpy as np

from bench.contract import DiagonalLayer, Layer, Unsupported
from bench.measure.cost import Mode
from bench.network import Network
from bench.recipe import Recipe

Part = Literal["layer", "network"]

RECIPE = Recipe(steps=1, batch=1, rate=1e-6)
"""So small a rate that parameters stay what they were while a step is repeated."""

CLASSES = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """`depth` layers one after another, or a whole network around as many blocks.

    `forward` maps u, (batch, length, d_model), to y, or in a network to logits. `train` is forward, backward and a
    step of AdamW; the gradient that is sent back through bare layers is given. `decode` is one recurrent step of the
    layers for u_t, (batch, d_model), at the position `length`.
    """

    layer: Layer
    depth: int
    part: Part
    mode: Mode
    batch: int
    length: int

    @property
    def network(self) -> Network:
        return Network(layer=self.layer, depth=self.depth, inputs=self.layer.d_model, tokens=False, classes=CLASSES)

    def weights(self, model: str, seed: int) -> dict[str, np.ndarray]:
        """The weights that take part, by their names in the network."""
        found = self.network.initial(model, seed)
        return {name: value for name, value in found.items() if self.part == "network" or ".layer." in name}

    def groups(self) -> dict[str, tuple[float, float]]:
        """Rate factor and weight decay of every weight that is trained."""
        found = RECIPE.groups(self.network.roles())
        return {name: value for name, value in found.items() if self.part == "network" or ".layer." in name}

    def inputs(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """u, and the cotangent of y (float32) or the targets of a network (int32)."""
        steps = 1 if self.mode == "decode" else self.length
        shape = (self.batch, steps, self.layer.d_model)
        found = {"u": rng.standard_normal(shape, dtype=np.float32)}
        if self.part == "network":
            found["lengths"] = np.full(self.batch, steps, np.int32)
            found["targets"] = rng.integers(0, CLASSES, self.batch).astype(np.int32)
        elif self.mode == "train":
            found["cotangent"] = rng.standard_normal(shape, dtype=np.float32)
        return found

    def require_step(self, framework: str) -> None:
        """Raises `Unsupported` with the reason where `decode` is asked for and there is no single step.

        `framework` is "torch" or "flax", as in the names of a layer's own methods.
        """
        if self.mode != "decode":
            return
        name = type(self.layer).__name__
        if self.part == "network":
            raise Unsupported("a network pools over time, so it has no single step: decode is of layers")
        if hasattr(self.layer, f"{framework}_decoder"):
            return
        if not isinstance(self.layer, DiagonalLayer):
            raise Unsupported(f"{name} is no diagonal layer and has no decoder, so it has no step")
        if self.layer.has_reverse:
            raise Unsupported("a bidirectional layer has no step")
        if hasattr(self.layer, f"{framework}_module"):
            raise Unsupported(f"{name} brings its own module, and that has no step")

    @property
    def tokens(self) -> int:
        """Time steps that one call takes, over the batch."""
        return self.batch * (1 if self.mode == "decode" else self.length)


class Program(Protocol):
    """A workload on a backend, ready to be repeated; also a `bench.measure.timing.Call`."""

    def __init__(
        self,
        workload: Workload,
        weights: Mapping[str, np.ndarray],
        inputs: Mapping[str, np.ndarray],
        dtype: str,
        device: str,
        compile: bool = False,
    ) -> None: ...

    def build(self) -> float | None:
        """Compiles before any data are on the device: seconds; None where nothing is compiled ahead of the first call.

        Raises `CompileFailed` with the compiler's words.
        """

    def place(self) -> None:
        """Puts weights, moments and inputs on the device."""

    def launch(self) -> None: ...

    def wait(self) -> None: ...

    def device_clock(self) -> Callable[[], float] | None: ...

    def compilations(self) -> int:
        """How often anything was compiled in this process so far."""

    def cache(self) -> str:
        """Whether what `build` compiled came from a cache on disk: hit, miss or off."""

    def predicted_bytes(self) -> tuple[int | None, str]:
        """What the compiler says that a call needs: temporaries, arguments and outputs less aliases; or the reason."""

    def allocator_peak(self) -> tuple[int | None, str]:
        """Bytes that the framework's allocator held at the worst moment of a call, arguments included; or the reason.

        Runs the call once.
        """

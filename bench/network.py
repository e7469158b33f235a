"""The network that is trained: its weights at the start and their roles, in numpy, the same for both frameworks.

Encoder (one dense map; token ids stand for one-hot vectors), `depth` residual blocks, decoder. A block is
x + mix(layer(norm(x))), or norm(x + mix(layer(x))). With g = GELU, s = the sigmoid, d = dropout, a = d(g(z)), W dense:

=========  =========================
mix        of z, what the layer gives
=========  =========================
full_glu   d(W_value a * s(W_gate a))
half_glu1  d(a * s(W_gate a))
half_glu2  d(z * s(W_gate a))
gelu       a
=========  =========================

What reaches the decoder is the mean over the true length; of a task that asks at positions, each of them; of a task on
pairs g(W_pair [p, q, p - q, p * q]) of both means. A dense map is x @ weight + bias.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np

from bench.contract import Array, Layer, Task, require
from bench.sampling import truncated_normal
from bench.seeds import generator

NORM_EPSILON = 1e-5
"""Added to the variance in a norm; the frameworks' own defaults differ."""

Norm = Literal["layer", "batch"]
Mix = Literal["full_glu", "half_glu1", "half_glu2", "gelu"]
Output = Literal["class", "class at each position", "number", "class of a pair"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Structure:
    """How a network's blocks are built around its layers.

    `norm`: "layer", over features, or "batch", over all positions of the batch that hold data; in evaluation then
    averages over training, of which each step keeps `momentum`. `prenorm`: before the layer, else after the residual.
    `bare`: none of this, nor an encoder; the layers themselves follow one another, on inputs of d_model features.
    """

    norm: Norm = "layer"
    momentum: float = 0.95
    prenorm: bool = True
    mix: Mix = "full_glu"
    bare: bool = False

    def __post_init__(self) -> None:
        for name, allowed in (("norm", get_args(Norm)), ("mix", get_args(Mix))):
            value = getattr(self, name)
            require(value in allowed, f"{name} must be one of {', '.join(allowed)}, not {value!r}")
        require(0 <= self.momentum < 1, f"momentum must be at least 0 and below 1, not {self.momentum}")

    @property
    def dense(self) -> list[str]:
        """The block's own dense maps."""
        if self.bare:
            return []
        return {"full_glu": ["value", "gate"], "gelu": []}.get(self.mix, ["gate"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
    """What is to be built. `inputs` counts token ids where `tokens`, else real features per time step."""

    layer: Layer
    depth: int
    inputs: int
    tokens: bool
    classes: int
    structure: Structure = Structure()
    output: Output = "class"

    def __post_init__(self) -> None:
        fits = not self.tokens and self.inputs == self.layer.d_model
        given = "tokens" if self.tokens else f"{self.inputs} features"
        require(fits or not self.structure.bare, f"bare layers of d_model = {self.layer.d_model} are given {given}")

    @classmethod
    def of(cls, layer: Layer, depth: int, task: Task, structure: Structure | None = None) -> Network:
        """The network of this depth for a task."""
        tokens = task.vocabulary is not None
        inputs = len(task.vocabulary) if task.vocabulary is not None else task.features
        kinds: dict[Output, bool] = {
            "class of a pair": task.pairs, "class at each position": task.per_position, "number": task.numeric,
        }  # fmt: skip
        asked = [kind for kind, holds in kinds.items() if holds]
        require(len(asked) <= 1, f"{type(task).__name__} asks for more than one kind of answer: {', '.join(asked)}")
        output: Output = asked[0] if asked else "class"
        return cls(
            layer=layer, depth=depth, inputs=inputs, tokens=tokens, classes=task.classes,
            structure=structure or Structure(), output=output,
        )  # fmt: skip

    @property
    def sequences(self) -> int:
        """How many sequences an example has."""
        return 2 if self.output == "class of a pair" else 1

    def initial(self, model: str, seed: int) -> dict[str, np.ndarray]:
        """All weights by name, float64. Each block draws from a generator of its own.

        Draws depend on the model's plain name, the seed and the sizes: variants of a model start from equal weights,
        and a deeper network starts with the weights of a shallower one.
        """
        h = self.layer.d_model
        rng = generator(seed, "weights", model, "ends")
        encoder = _dense("encoder", rng, self.inputs, h)
        weights = {} if self.structure.bare else encoder
        for i in range(self.depth):
            rng, block = generator(seed, "weights", model, i), f"blocks.{i}"
            if not self.structure.bare:
                weights |= {f"{block}.norm.scale": np.ones(h), f"{block}.norm.bias": np.zeros(h)}
            if self.structure.norm == "batch" and not self.structure.bare:
                weights |= {f"{block}.norm.mean": np.zeros(h), f"{block}.norm.variance": np.ones(h)}
            params = self.layer.initial(rng)
            for name in params.keys() ^ self.layer.roles().keys():
                which = "has no role" if name in params else "has a role, but no initial value"
                raise ValueError(f"parameter {name} of {type(self.layer).__name__} {which}")
            weights |= {f"{block}.layer.{name}": value for name, value in params.items()}
            maps = {name: _dense(f"{block}.{name}", rng, h, h) for name in ("value", "gate")}
            for name in self.structure.dense:
                weights |= maps[name]
        if self.output == "class of a pair":
            weights |= _dense("pair", generator(seed, "weights", model, "pair"), 4 * h, h)
        return weights | _dense("decoder", generator(seed, "weights", model, "decoder"), h, self.classes)

    def roles(self) -> dict[str, str]:
        """The role of every weight: the layers' own, and "weight", "bias" and "norm" for the rest of the network.

        Averages that a norm keeps are "constant": no optimiser moves them.
        """
        roles: dict[str, str] = {}
        dense = ["decoder", *(["pair"] if self.output == "class of a pair" else [])]
        dense += [] if self.structure.bare else ["encoder"]
        for i in range(self.depth):
            block = f"blocks.{i}"
            dense += [f"{block}.{name}" for name in self.structure.dense]
            if not self.structure.bare:
                roles |= {f"{block}.norm.scale": "norm", f"{block}.norm.bias": "norm"}
            if self.structure.norm == "batch" and not self.structure.bare:
                roles |= {f"{block}.norm.mean": "constant", f"{block}.norm.variance": "constant"}
            roles |= {f"{block}.layer.{name}": role for name, role in self.layer.roles().items()}
        for name in dense:
            roles |= {f"{name}.weight": "weight", f"{name}.bias": "bias"}
        return roles


def layer_weights(weights: Mapping[str, Array], block: int) -> dict[str, Array]:
    """The parameters of one block's layer, by the layer's own names."""
    prefix = f"blocks.{block}.layer."
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def _dense(name: str, rng: np.random.Generator, inputs: int, outputs: int) -> dict[str, np.ndarray]:
    return {
        f"{name}.weight": truncated_normal(rng, (inputs, outputs), 1 / inputs),
        f"{name}.bias": np.zeros(outputs),
    }

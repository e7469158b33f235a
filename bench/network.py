"""The network that is trained: its weights at the start and their roles, in numpy, the same for both frameworks.

Encoder (one dense map; token ids stand for one-hot vectors), `depth` pre-norm blocks x + GLU(GELU(layer(norm(x)))),
mean over the true length, decoder. A dense map is x @ weight + bias.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from bench.contract import Array, Layer, Task
from bench.sampling import truncated_normal
from bench.seeds import generator

NORM_EPSILON = 1e-5
"""Added to the variance in LayerNorm; the frameworks' own defaults differ."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
    """What is to be built. `inputs` counts token ids where `tokens`, else real features per time step."""

    layer: Layer
    depth: int
    inputs: int
    tokens: bool
    classes: int

    @classmethod
    def of(cls, layer: Layer, depth: int, task: Task) -> Network:
        """The network of this depth for a task."""
        tokens = task.vocabulary is not None
        inputs = len(task.vocabulary) if task.vocabulary is not None else task.features
        return cls(layer=layer, depth=depth, inputs=inputs, tokens=tokens, classes=task.classes)

    def initial(self, model: str, seed: int) -> dict[str, np.ndarray]:
        """All weights by name, float64. Each block draws from a generator of its own.

        Draws depend on the model's plain name, the seed and the sizes: variants of a model start from equal weights,
        and a deeper network starts with the weights of a shallower one.
        """
        h = self.layer.d_model
        rng = generator(seed, "weights", model, "ends")
        weights = _dense("encoder", rng, self.inputs, h)
        for i in range(self.depth):
            rng, block = generator(seed, "weights", model, i), f"blocks.{i}"
            weights |= {f"{block}.norm.scale": np.ones(h), f"{block}.norm.bias": np.zeros(h)}
            params = self.layer.initial(rng)
            for name in params.keys() ^ self.layer.roles().keys():
                which = "has no role" if name in params else "has a role, but no initial value"
                raise ValueError(f"parameter {name} of {type(self.layer).__name__} {which}")
            weights |= {f"{block}.layer.{name}": value for name, value in params.items()}
            weights |= _dense(f"{block}.value", rng, h, h) | _dense(f"{block}.gate", rng, h, h)
        return weights | _dense("decoder", generator(seed, "weights", model, "decoder"), h, self.classes)

    def roles(self) -> dict[str, str]:
        """The role of every weight: the layers' own, and "weight", "bias" and "norm" for the rest of the network."""
        roles: dict[str, str] = {}
        dense = ["encoder", "decoder"]
        for i in range(self.depth):
            block = f"blocks.{i}"
            dense += [f"{block}.value", f"{block}.gate"]
            roles |= {f"{block}.norm.scale": "norm", f"{block}.norm.bias": "norm"}
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

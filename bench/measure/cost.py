"""What a layer must do at least: floating-point operations, memory traffic, and memory held, from its system."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from bench.contract import DiagonalLayer, Layer

Mode = Literal["forward", "train", "decode"]

ITEMSIZE = {"float32": 4, "tf32": 4, "float64": 8, "bfloat16": 2}
"""Bytes of a number of u and y."""

WIDE = {"bfloat16": "float32", "tf32": "float32"}
"""What parameters, systems and states are held in where it is not the dtype of u and y."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of one call: `flops`, and `products`, those of them that are in the dtype of u and y, all others being in that of
    the states; `moved`, bytes that must cross the memory bus; `held`, bytes alive at the worst moment."""

    flops: float
    products: float
    moved: float
    held: float


def layer_cost(
    layer: Layer, mode: Mode, batch: int, length: int, params: int, itemsize: int, depth: int = 1
) -> Cost | None:
    """The cost of `depth` layers one after another; None if it is not known.

    A layer that is not diagonal says in `work(mode, batch, length)` what it computes and stores; all of that counts as
    products.

    A recurrence over n complex states costs, a token: 4 h n for B u, 8 n for the step, 4 h n for C x, 2 h for D u. S4D
    (one system a channel) by FFT of size 2 L: three transforms of 2.5 N log2 N a channel, 6 a frequency, and its kernel
    8 n L. A backward pass takes twice the forward's operations, AdamW 12 a parameter. In the dtype of u and y are the
    products with B and C of a whole sequence, and nothing else: not a step of decoding, not an FFT.

    What must move: u and y, parameters, and for training their gradients and moments, the cotangents, and the states
    once written and once read. What is held: all parameters with their gradients and moments; in a forward pass one
    layer's u, y and states; for training every layer's u and states, and one layer's cotangents of both.
    """
    flops: float
    products: float
    stored: float
    if isinstance(layer, DiagonalLayer):
        flops, products, stored = _diagonal(layer, mode, batch, length)
    elif hasattr(layer, "work"):
        flops, stored = layer.work(mode, batch, length)
        products = flops
    else:
        return None
    tokens = batch * (1 if mode == "decode" else length)
    wide = max(4, itemsize)  # parameters and states are float32 where u and y are narrower
    signal = tokens * layer.d_model * itemsize
    weights = params * wide
    states = stored * wide
    if mode == "decode":
        moved = weights + 2 * signal + 2 * states
        return Cost(depth * flops, depth * products, depth * moved, depth * (weights + 2 * states) + 2 * signal)
    if mode == "forward":
        held = depth * weights + 2 * signal + states
        return Cost(depth * flops, depth * products, depth * (weights + 2 * signal), held)
    return Cost(
        depth * (3 * flops + 12 * params),
        depth * 3 * products,
        depth * (7 * weights + 4 * signal + 2 * states),
        depth * (4 * weights + signal + states) + 3 * signal + states,
    )


def _diagonal(layer: DiagonalLayer, mode: Mode, batch: int, length: int) -> tuple[float, float, float]:
    """Operations of a forward pass or a step, those that are products in u's dtype, and numbers stored."""
    h, n = layer.d_model, layer.state_shape[-1]
    tokens, ways = batch * (1 if mode == "decode" else length), 2 if layer.has_reverse else 1
    states = float(tokens * layer.state_reals)
    if len(layer.state_shape) == 1:
        products = float(ways * tokens * (4 * h * n + 4 * h * n))
        flops = products + ways * tokens * 8 * n + 2 * h * tokens
        return flops, 0.0 if mode == "decode" else products, states
    if mode == "decode":
        return tokens * h * (14 * n + 2), 0.0, states
    size = 2 * length
    transforms = 2.5 * size * math.log2(size)
    flops = ways * h * ((2 * batch + 1) * transforms + batch * 3 * size + 8 * n * length) + 2 * h * tokens
    return flops, 0.0, h * size * (batch + 1) * ways  # spectra, in the place of states

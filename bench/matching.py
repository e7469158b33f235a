"""Sizes that make models comparable: d_state such that each has the first one's parameters, state or operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bench.contract import Layer, require
from bench.measure.cost import layer_cost

CRITERIA = ("params", "state", "flops")

LARGEST = 8192
"""The largest d_state that is looked at."""


def size(layer: Layer, by: str, length: int) -> float:
    """Trained numbers, real numbers carried from step to step, or operations of a forward pass, of one layer."""
    if by == "state":
        return layer.state_at(length)
    params = count(layer)
    if by == "params":
        return params
    cost = layer_cost(layer, "forward", 1, length, params, 4)
    require(cost is not None, f"--match flops: {type(layer).__name__} has no model of its operations")
    assert cost is not None
    return cost.flops


def count(layer: Layer) -> int:
    """The numbers of a layer that are trained."""
    roles = layer.roles()
    return sum(w.size for name, w in layer.initial(np.random.default_rng(0)).items() if roles[name] != "constant")


def match(
    cls: type[Layer], options: Mapping[str, Any], d_model: int, by: str, target: float, length: int
) -> tuple[dict[str, Any], float]:
    """The options with the d_state whose size is nearest to the target, and that size.

    Sizes grow with d_state; values that the layer refuses are left out.
    """
    sizes = [d for d in range(1, LARGEST + 1) if _allowed(cls, options, d_model, d)]
    require(bool(sizes), f"--match {by}: {cls.__name__} takes no d_state")

    def at(i: int) -> float:
        return size(_layer(cls, options, d_model, sizes[i]), by, length)

    low, high = 0, min(1, len(sizes) - 1)
    while at(high) < target and high < len(sizes) - 1:  # from below: large layers are slow to build
        low, high = high, min(2 * high, len(sizes) - 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if at(middle) <= target else (low, middle)
    best = min((low, high), key=lambda i: abs(at(i) - target))
    return dict(options) | {"d_state": sizes[best]}, at(best)


def _layer(cls: type[Layer], options: Mapping[str, Any], d_model: int, d_state: int) -> Layer:
    return cls(**dict(options) | {"d_model": d_model, "d_state": d_state})


def _allowed(cls: type[Layer], options: Mapping[str, Any], d_model: int, d_state: int) -> bool:
    try:
        _layer(cls, options, d_model, d_state)
    except (ValueError, TypeError):
        return False
    return True

"""What a layer must give, by loops in float64: outputs, and the slope of a loss along directions.

No automatic differentiation is in it. Of a diagonal layer `reference.adjoint` gives the gradients of the system; how
the system follows its parameters is found by differences of the layer's own `system` in numpy, along a few random
directions a parameter. Of a layer with a loop of its own the slopes are differences of that loop.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from bench.backends import reference
from bench.contract import DiagonalLayer, DiagonalSystem, Layer, Params
from bench.seeds import generator

DIRECTIONS = 3
"""Directions a parameter: one alone may happen to be at right angles to an error."""

STEP = 1e-5
"""Of differences of fourth order, in units of the parameter's own size. Rounding leaves 1e-16 / STEP; S4D's phases of
100 radians turn by STEP times some hundreds, whose fourth power is less."""

LOOP_DIRECTIONS = 2
"""Of a loop, of which each takes six runs."""

LOOP_STEP = 4e-5
"""Of differences of sixth order of a whole loop, as above. Rounding leaves 1e-16 / LOOP_STEP of y; with steps of 1e-4
and of fourth order S4's fastest phases leave 2e-5."""

CANCELLED = 0.03
"""A slope counts as no smaller than this share of the terms that add up to it: rounding grows with the terms."""


@dataclasses.dataclass(frozen=True)
class Tangents:
    """Of one parameter: directions, (count, *shape), and how each field of the system moves along each of them."""

    directions: np.ndarray
    fields: list[DiagonalSystem]


@dataclasses.dataclass(frozen=True)
class Expected:
    """Outputs and the gradient for u, (batch, length, d_model); for each parameter slopes and their scale, (count,)."""

    y: np.ndarray
    du: np.ndarray
    slopes: dict[str, tuple[np.ndarray, np.ndarray]]


class Oracle:
    """A layer at some parameters. What it expects depends on float64 loops and on the layer's `system` alone."""

    def __init__(self, layer: DiagonalLayer, params: Params) -> None:
        self.layer = layer
        self.params = {name: np.asarray(value, np.float64) for name, value in params.items()}
        self.trained = [name for name in self.params if layer.roles().get(name) != "constant"]

    @cached_property
    def system(self) -> DiagonalSystem:
        with one_thread():
            return reference.system(self.layer, self.params)

    @cached_property
    def tangents(self) -> dict[str, Tangents]:
        with one_thread():
            return {name: self._tangents(name) for name in self.trained}

    def expected(self, u: np.ndarray, cotangent: np.ndarray, lengths: np.ndarray | None = None) -> Expected:
        """From a zero state; the loss is sum(cotangent * y)."""
        with one_thread():
            y, gradient, du = reference.adjoint(self.system, u, cotangent, lengths)
        slopes = {}
        for name, tangents in self.tangents.items():
            terms = [_terms(gradient, moved) for moved in tangents.fields]
            slopes[name] = np.array([np.sum(t) for t in terms]), np.array([np.sum(np.abs(t)) for t in terms])
        return Expected(y, du, slopes)

    def gradient_errors(self, found: Mapping[str, np.ndarray], expected: Expected) -> dict[str, float]:
        """For u the largest error over the largest entry; for a parameter the error of its slopes over their size."""
        errors = {"u": output_error(found["u"], expected.du)}
        for name, (slopes, terms) in expected.slopes.items():
            directions = self.tangents[name].directions
            gradient = np.asarray(found[name], np.float64)
            along = np.array([np.sum(gradient * direction) for direction in directions])
            size = _size(slopes, terms)
            errors[name] = _rms(along - slopes) / size if size else float(np.max(np.abs(gradient)))
        return errors

    def rounding(
        self, dtype: str, u: np.ndarray, cotangent: np.ndarray, expected: Expected, lengths: np.ndarray | None = None
    ) -> dict[str, float]:
        """The errors of y, the gradient of u and slopes when only the map from parameters to the system is in `dtype`.

        Lambda, B and C in float32 are no longer those of the parameters: at |lambda| = 0.9999 that alone moves outputs
        of thousands of steps by more than a scan in float32 does, and no scan could undo it.
        """
        rounded = Oracle(self.layer, self.params)
        params = {name: value.astype(dtype) for name, value in self.params.items()}
        with one_thread():
            fields = self.layer.system(params, reference.ops)
        kinds = [np.complex128, np.complex128, np.complex128, np.float64, np.complex128]
        rounded.__dict__["system"] = DiagonalSystem(
            *[None if field is None else field.astype(kind) for field, kind in zip(fields, kinds, strict=True)]
        )
        rounded.__dict__["tangents"] = self.tangents
        other = rounded.expected(u, cotangent, lengths)
        errors = {"y": output_error(other.y, expected.y), "u": output_error(other.du, expected.du)}
        for name, (slopes, terms) in expected.slopes.items():
            size = _size(slopes, terms)
            errors[name] = _rms(other.slopes[name][0] - slopes) / size if size else 0.0
        return errors

    def _tangents(self, name: str) -> Tangents:
        value = self.params[name]
        size = _rms(value) or 1.0
        rng = generator(0, "directions", name)
        directions = size * rng.standard_normal((DIRECTIONS, *value.shape))
        held = _holding(self.layer, self.params)

        def at(step: float, direction: np.ndarray) -> DiagonalSystem:
            return self.layer.system(self.params | {name: value + step * direction}, held())

        def slope(direction: np.ndarray) -> DiagonalSystem:
            near, far = (
                [None if plus is None else plus - minus for plus, minus in zip(*pair, strict=True)]
                for pair in (
                    (at(STEP, direction), at(-STEP, direction)),
                    (at(2 * STEP, direction), at(-2 * STEP, direction)),
                )
            )
            return DiagonalSystem(
                *[None if a is None else (8 * a - b) / (12 * STEP) for a, b in zip(near, far, strict=True)]
            )

        return Tangents(directions, [slope(direction) for direction in directions])


class LoopOracle:
    """A layer that is not diagonal, by its own `loop`. Slopes, u's too, are differences of the loop's outputs."""

    def __init__(self, layer: Layer, params: Params) -> None:
        self.layer: Any = layer
        self.params = {name: np.asarray(value, np.float64) for name, value in params.items()}
        self.trained = [name for name in self.params if layer.roles().get(name) != "constant"]

    def output(self, u: np.ndarray) -> np.ndarray:
        with one_thread():
            return self.layer.loop(self.params, u)

    def gradient_errors(
        self, found: Mapping[str, np.ndarray], u: np.ndarray, cotangent: np.ndarray
    ) -> dict[str, float]:
        """The error of slopes over their size: no less than that of as many independent terms of random sign."""
        errors = {}
        for name in (*self.trained, "u"):
            value = u if name == "u" else self.params[name]
            rng = generator(0, "directions", name)
            directions = (_rms(value) or 1.0) * rng.standard_normal((LOOP_DIRECTIONS, *value.shape))
            moved = [cotangent * self._moved(name, u, direction) for direction in directions]
            slopes, terms = np.array([np.sum(m) for m in moved]), np.array([np.sum(m * m) for m in moved])
            gradient = np.asarray(found[name], np.float64)
            along = np.array([np.sum(gradient * direction) for direction in directions])
            size = max(_rms(slopes), float(np.sqrt(np.mean(terms))))
            errors[name] = _rms(along - slopes) / size if size else float(np.max(np.abs(gradient)))
        return errors

    def _moved(self, name: str, u: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """How y moves along a direction of u or of a parameter."""

        def at(step: float) -> np.ndarray:
            if name == "u":
                return self.layer.loop(self.params, u + step * direction)
            return self.layer.loop(self.params | {name: self.params[name] + step * direction}, u)

        with one_thread():
            one, two, three = (at(k * LOOP_STEP) - at(-k * LOOP_STEP) for k in (1, 2, 3))
            return (45 * one - 9 * two + three) / (60 * LOOP_STEP)


def has_loop(layer: Layer) -> bool:
    """Whether a layer that is not diagonal brings a loop that its modules can be checked against."""
    return not isinstance(layer, DiagonalLayer) and hasattr(layer, "loop")


def one_thread() -> contextlib.AbstractContextManager[object]:
    """Inside, numpy's products use one thread.

    They are small: threads gain little, and on a busy machine each product waits for them, up to 100 times longer.
    """
    return threadpool_limits(1, user_api="blas")


def output_error(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest error in units of the largest entry that is wanted; NaN where anything is."""
    largest = float(np.max(np.abs(wanted), initial=0)) or 1.0
    return float(np.max(np.abs(np.asarray(found, np.float64) - wanted), initial=0)) / largest


def _size(slopes: np.ndarray, terms: np.ndarray) -> float:
    return max(_rms(slopes), CANCELLED * _rms(terms))


def _terms(gradient: DiagonalSystem, moved: DiagonalSystem) -> np.ndarray:
    """What adds up to the slope: each entry's gradient times its movement."""
    pairs = zip(gradient, moved, strict=True)
    return np.concatenate([(g.conj() * m).real.ravel() for g, m in pairs if g is not None])


def _holding(layer: DiagonalLayer, params: Params) -> Callable[[], type[reference.ops]]:
    """Gives numpy's operations in which `stop_gradient` returns what it returned at `params`.

    A difference then leaves out what the layer takes out of its gradient.
    """
    kept: list[np.ndarray] = []

    class keeping(reference.ops):
        @staticmethod
        def stop_gradient(x: np.ndarray) -> np.ndarray:
            kept.append(x)
            return x

    layer.system(params, keeping)

    def held() -> type[reference.ops]:
        turn = iter(kept)

        class replaying(reference.ops):
            @staticmethod
            def stop_gradient(x: np.ndarray) -> np.ndarray:
                return next(turn)

        return replaying

    return held


def _rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(x))))

"""The checks that any layer goes through, each with the figure that was measured and its limit."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np

from bench import backends, registry
from bench.backends import reference
from bench.conformance.oracle import Expected, LoopOracle, Oracle, has_loop, output_error
from bench.contract import LAYER_ROLES, DiagonalLayer, Layer, Missing, Unsupported, require
from bench.network import Network
from bench.options import build, parse_name, unknown
from bench.recipe import Recipe
from bench.report.blocks import Table
from bench.seeds import generator
from bench.training import Batch

LENGTHS = (1, 2, 3, 5, 31, 32, 33, 64, 257, 1000, 4096)
"""One step, few, both sides of a chunk's end, many chunks."""

ROUNDING = {"float32": 1e-5, "float64": 1e-12}
"""Of the largest entry, for the same number computed in another order: FFTs of other inputs, batches of other sizes."""

LIMITS = {"float32": 2e-4, "float64": 1e-8}
"""Of the largest entry, against float64 loops over the same rounded parameters: 1e-8 leaves the parameter map its
conditioning, and 2e-4 is that in float32, where Lambda^t keeps 6e-8 times the memory of the slowest state. Where that
is passed, what the map to a system in float32 alone would do is added: see `Oracle.rounding`."""

PADDING_LIMIT = {"float32": 1e-5, "float64": 1e-12}
"""Of the largest logit: the sums over time of a longer array are the same numbers in another order."""

Status = Literal["passed", "failed", "not asked"]


@dataclasses.dataclass(frozen=True)
class Row:
    """One check of one backend. `where` tells where the figure was found, what is wrong, or why it was not asked."""

    check: str
    backend: str
    dtype: str
    status: Status
    measured: float | None
    limit: float | None
    where: str


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a check found; it is passed where `measured <= limit`, so never with NaN."""

    measured: float
    limit: float
    where: str = ""


class NotAsked(Exception):
    """A check that has no meaning here, with the reason."""


class Problem:
    """A layer at its initial parameters, inputs, and what is to be expected: the same for all backends."""

    def __init__(self, model: str, layer: Layer, dtype: str, device: str, lengths: Sequence[int]) -> None:
        self.model, self.layer, self.dtype, self.device, self.lengths = model, layer, dtype, device, lengths
        self.params = layer.initial(generator(0, "weights", model, 0))
        self._expected: dict[int, Expected] = {}
        self._rounding: dict[int, dict[str, float]] = {}
        self._looped: dict[int, np.ndarray] = {}

    @property
    def middle(self) -> int:
        """The length that checks of one length use: the longest up to 257."""
        return max((length for length in self.lengths if length <= 257), default=self.lengths[0])

    @cached_property
    def oracle(self) -> Oracle:
        return Oracle(self.diagonal(), reference.round_to(self.params, self.dtype))

    @cached_property
    def loop(self) -> LoopOracle | None:
        """The oracle of a layer that is not diagonal, but brings a loop."""
        return LoopOracle(self.layer, reference.round_to(self.params, self.dtype)) if has_loop(self.layer) else None

    def wanted(self, length: int) -> np.ndarray:
        """The output for the problem's input of this length."""
        if self.loop is None:
            return self.expected(length).y
        if length not in self._looped:
            self._looped[length] = self.loop.output(self.input(length))
        return self._looped[length]

    def diagonal(self) -> DiagonalLayer:
        if not isinstance(self.layer, DiagonalLayer):
            raise NotAsked(f"{type(self.layer).__name__} states no diagonal system to compare with")
        return self.layer

    def stateful(self) -> DiagonalLayer:
        if self.diagonal().has_reverse:
            raise NotAsked("a bidirectional layer has no state to step or to hand over")
        return self.diagonal()

    def draw(self, *shape: int, purpose: str) -> np.ndarray:
        """Standard normal numbers that the precision can hold."""
        drawn = generator(0, "conformance", purpose, *shape).standard_normal(shape)
        return reference.round_input(drawn, self.dtype)

    def input(self, length: int, batch: int = 2) -> np.ndarray:
        return self.draw(batch, length, self.layer.d_model, purpose="u")

    def cotangent(self, length: int) -> np.ndarray:
        return self.draw(2, length, self.layer.d_model, purpose="cotangent")

    def expected(self, length: int) -> Expected:
        if length not in self._expected:
            self._expected[length] = self.oracle.expected(self.input(length), self.cotangent(length))
        return self._expected[length]

    def allowed(self, length: int, name: str) -> float:
        """The limit for y, u or a parameter where 2e-4 is passed: and what float32 makes of the system alone."""
        if self.dtype == "float64" or self.loop is not None:
            return LIMITS[self.dtype]
        if length not in self._rounding:
            self._rounding[length] = self.oracle.rounding(
                self.dtype, self.input(length), self.cotangent(length), self.expected(length)
            )
        return LIMITS[self.dtype] + self._rounding[length][name]


class Subject:
    """The problem's layer on one backend."""

    def __init__(self, problem: Problem, name: str) -> None:
        self.problem, self.name, self.backend = problem, name, backends.load(name)
        self.layer, self.params, self.dtype = problem.layer, problem.params, problem.dtype
        self.how = {"dtype": problem.dtype, "device": problem.device}
        self._outputs: dict[int, np.ndarray] = {}
        self._gradients: dict[int, dict[str, np.ndarray]] = {}

    def apply(self, u: np.ndarray, lengths: Sequence[int] | None = None) -> np.ndarray:
        ends = None if lengths is None else np.array(lengths)
        return self.backend.apply(self.layer, self.params, u, lengths=ends, **self.how)

    def gradient(self, params: dict[str, np.ndarray], length: int) -> dict[str, np.ndarray]:
        problem = self.problem
        return self.backend.gradients(self.layer, params, problem.input(length), problem.cotangent(length), **self.how)

    def output(self, length: int) -> np.ndarray:
        """The output for the problem's input of this length."""
        if length not in self._outputs:
            self._outputs[length] = self.apply(self.problem.input(length))
        return self._outputs[length]

    def gradients(self, length: int) -> dict[str, np.ndarray]:
        """The gradients there."""
        if length not in self._gradients:
            self._gradients[length] = self.gradient(self.params, length)
        return self._gradients[length]

    @property
    def gradient_lengths(self) -> list[int]:
        """All lengths; in jax, which compiles each for a second or more, about half of them."""
        lengths = sorted(self.problem.lengths)
        if self.problem.loop is not None:  # whose slopes take it through dozens of loops
            return [length for length in lengths if length <= self.problem.middle]
        return lengths if self.name != "jax" else lengths[::-2][::-1] if len(lengths) > 5 else lengths

    def module_shapes(self) -> dict[str, tuple[int, ...]]:
        """The parameters of the module, which a network trains: name -> shape."""
        module = self.backend.layer_module(self.layer, self.params)
        if self.name == "torch":
            return {name: tuple(value.shape) for name, value in module.named_parameters()}
        nnx = importlib.import_module("flax.nnx")
        found = nnx.to_flat_state(nnx.state(module, nnx.Param))
        return {".".join(map(str, path)): tuple(value[...].shape) for path, value in found}


Check = Callable[[Subject], Outcome]
CHECKS: dict[str, Check] = {}
"""The checks of one backend by name, in the order in which they run."""


def _named(name: str) -> Callable[[Check], Check]:
    def add(function: Check) -> Check:
        CHECKS[name] = function
        return function

    return add


# What any layer must hold.


@_named("shape")
def _shape(subject: Subject) -> Outcome:
    faults = []
    for length in sorted({subject.problem.lengths[0], subject.problem.middle}):
        found, wanted = subject.output(length).shape, subject.problem.input(length).shape
        if found != wanted:
            faults.append(f"u {wanted} gives y {found}")
    return _count(faults)


@_named("dtype")
def _dtype(subject: Subject) -> Outcome:
    length = subject.problem.middle
    results = {"y": subject.output(length)}
    results |= {f"the gradient of {name}": value for name, value in subject.gradients(length).items()}
    return _count([f"{what} is {value.dtype}" for what, value in results.items() if value.dtype != subject.dtype])


@_named("determinism")
def _determinism(subject: Subject) -> Outcome:
    """Two fresh modules, and one that saw another input in between: it must keep nothing."""
    problem, length = subject.problem, subject.problem.middle
    u = problem.input(length)
    first = subject.gradients(length) | {"y": subject.output(length)}
    again = subject.gradient(subject.params, length) | {"y": subject.apply(u)}
    differences = {name: float(np.max(np.abs(again[name] - value))) for name, value in first.items()}
    other = problem.draw(*u.shape, purpose="another u")
    before, _, after = subject.backend.apply_in_turn(subject.layer, subject.params, [u, other, u], **subject.how)
    differences["y of one module, after another input"] = float(np.max(np.abs(after - before)))
    return _worst(differences, 0.0)


EACH_STEP = 33
"""Up to this length causality is asked at every t."""

DRAWN_STEPS = 16
"""Beyond, at so many t that are drawn, and at the first and the last."""


@_named("causality")
def _causality(subject: Subject) -> Outcome:
    """y before t must not see u from t on: at each t of a short length, at some of a longer one."""
    problem, longest = subject.problem, subject.problem.middle
    if isinstance(problem.layer, DiagonalLayer) and problem.layer.has_reverse:
        raise NotAsked("a bidirectional layer sees later inputs")
    if longest < 3:
        raise NotAsked("no length of 3 or more")
    short = min(longest, EACH_STEP)
    steps = {short: list(range(1, short))}
    if longest > short:
        drawn = generator(0, "conformance", "t").integers(2, longest - 1, DRAWN_STEPS)
        steps[longest] = sorted({1, *map(int, drawn), longest - 1})
    worst = Outcome(0.0, ROUNDING[subject.dtype])
    for length, places in steps.items():
        u, y = problem.input(length), subject.output(length)
        other = problem.draw(*u.shape, purpose="another u")
        for t in places:
            # in one example alone: what passes from one to another is a fault of batches
            moved = np.stack([np.concatenate([u[0, :t], other[0, t:]]), u[1]])
            error = _over_time(subject.apply(moved)[:1, :t], y[:1, :t])
            if not error.max() <= worst.measured:
                seen = not error.max() <= worst.limit
                what = f"y changes from t = {_first(error, worst.limit)} on" if seen else "rounding"
                where = f"{what} when u changes from t = {t} on, length {length}"
                worst = Outcome(float(error.max()), worst.limit, where)
    return worst


LARGE = (5, 40)
"""Batches that are compared, at a short length, with the same examples in pairs; pairs are compared with one alone."""


@_named("batch invariance")
def _batch(subject: Subject) -> Outcome:
    problem, length = subject.problem, subject.problem.middle
    u = problem.input(length)
    together = subject.output(length)
    errors = {f"example {i} alone": output_error(subject.apply(u[i : i + 1])[0], together[i]) for i in (0, 1)}
    other = problem.draw(*u.shape, purpose="another u")
    changed = subject.apply(np.stack([u[0], other[1]]))
    errors["example 0 beside another one"] = output_error(changed[0], together[0])
    swapped = subject.apply(u[::-1])
    errors["examples in another order"] = output_error(swapped[::-1], together)
    short = max((n for n in problem.lengths if n <= 5), default=min(5, length))
    u = problem.input(short, batch=LARGE[-1])
    pairs, *larger = (
        np.concatenate([subject.apply(u[i : i + size]) for i in range(0, len(u), size)]) for size in (2, *LARGE)
    )
    for size, y in zip(LARGE, larger, strict=True):
        errors[f"examples of a batch of {size} in pairs"] = output_error(y, pairs)
    return _worst(errors, ROUNDING[subject.dtype])


@_named("lengths")
def _lengths(subject: Subject) -> Outcome:
    problem, length = subject.problem, subject.problem.middle
    if length < 2:
        raise NotAsked("no length of 2 or more")
    u = problem.input(length)
    end = max((n for n in problem.lengths if n < length), default=length // 2)  # what jax has compiled before
    other = problem.draw(*u.shape, purpose="another u")
    changed = np.stack([u[0], np.concatenate([u[1, :end], other[1, end:]])])
    y, y_changed = subject.apply(u, [length, end]), subject.apply(changed, [length, end])
    twice = np.stack([u[1], u[1]])  # row 0, so that no other example stands before it
    padded, short = subject.apply(twice, [end, end]), subject.apply(twice[:, :end])
    errors = {
        f"another input from length {end} on": output_error(y_changed[1, :end], y[1, :end].astype(np.float64)),
        f"length {end} cut off": output_error(padded[0, :end], short[0].astype(np.float64)),
        "the other example": output_error(y_changed[0], y[0].astype(np.float64)),
    }
    return _worst(errors, ROUNDING[subject.dtype])


# Scan, steps, convolution and gradients against the float64 loop.


@_named("forward = oracle")
def _forward(subject: Subject) -> Outcome:
    found = [(n, subject.output(n), subject.problem.wanted(n)) for n in subject.problem.lengths]
    return _compared(found, subject.problem)


@_named("forward = convolution")
def _convolution(subject: Subject) -> Outcome:
    oracle = (subject.problem.diagonal(), subject.problem.oracle)[1]
    found = []
    for length in subject.problem.lengths:
        if length <= CONVOLVED:
            found.append((length, subject.output(length), convolved(oracle.system, subject.problem.input(length))))
    return _compared(found, subject.problem)


CONVOLVED = 1000
"""The longest that is convolved with an impulse response."""


@_named("steps = oracle")
def _steps(subject: Subject) -> Outcome:
    problem, steps = subject.problem, 40
    layer = problem.layer if problem.loop is not None else problem.stateful()
    u = problem.input(steps)

    def loop() -> tuple[np.ndarray, Any]:
        decode = subject.backend.decoder(layer, subject.params, **subject.how)
        outputs, state = [], None
        for t in range(steps):
            y, state = decode(u[:, t], state)
            outputs.append(y)
        return np.stack(outputs, 1), state

    (y, state), (again, _) = loop(), loop()
    if not np.array_equal(y, again):
        return Outcome(np.inf, LIMITS[subject.dtype], "two identical loops differ")
    if problem.loop is not None:
        return _compared([(steps, y, problem.wanted(steps))], problem)
    system = problem.oracle.system
    wanted = reference.scan(system, u, reference.zero_state(system, 2))
    outcome = _compared([(steps, y, reference.output(system, system.C, wanted) + system.D * u)], problem)
    error = _complex_error(state, wanted[:, -1])
    return outcome if error <= outcome.measured else Outcome(error, outcome.limit, "the last state")


@_named("state handed over")
def _handed_over(subject: Subject) -> Outcome:
    problem = subject.problem
    layer, system = problem.stateful(), problem.oracle.system
    errors = {}
    half = max(1, problem.middle // 2)
    for cut, more in ((4, 6), (half, half)):
        u = problem.input(cut + more)
        drawn = problem.draw(2, *system.Lambda.shape, 2, purpose="state")
        zero, random = reference.zero_state(system, 2), drawn[..., 0] + 1j * drawn[..., 1]
        for name, state in (("zero", None if cut == 4 else zero), ("random", random)):
            x = reference.scan(system, u, zero if state is None else state)
            y = reference.output(system, system.C, x) + system.D * u
            first, between = subject.backend.apply_from(layer, subject.params, u[:, :cut], state, **subject.how)
            rest, last = subject.backend.apply_from(layer, subject.params, u[:, cut:], between, **subject.how)
            what = f"{cut} + {more} steps from a {name} state"
            errors[what] = output_error(np.concatenate([first, rest], 1), y)
            errors[f"last state after {what}"] = _complex_error(last, x[:, -1])
    return _worst(errors, LIMITS[subject.dtype])


@_named("gradients = oracle")
def _gradients(subject: Subject) -> Outcome:
    problem, errors = subject.problem, dict[tuple[str, int], float]()
    for length in subject.gradient_lengths:
        if problem.loop is not None:
            given = problem.input(length), problem.cotangent(length)
            found = problem.loop.gradient_errors(subject.gradients(length), *given)
        else:
            found = problem.oracle.gradient_errors(subject.gradients(length), problem.expected(length))
        errors |= {(name, length): error for name, error in found.items()}
    limits = {(name, n): _limit(problem, n, name, error) for (name, n), error in errors.items()}
    worst = max(errors, key=lambda key: (np.isnan(errors[key]), errors[key] / limits[key]))
    wrong = dict.fromkeys(key[0] for key in errors if not errors[key] <= limits[key])
    told = f"; above the limit: {', '.join(wrong)}" if wrong else ""
    return Outcome(errors[worst], limits[worst], f"{worst[0]} at length {worst[1]}{told}")


@_named("gradients finite, none zero")
def _finite(subject: Subject) -> Outcome:
    found, roles = subject.gradients(subject.problem.middle), subject.layer.roles()
    faults = [f"{name} has none" for name in subject.params if name not in found]
    for name, gradient in found.items():
        if not np.isfinite(gradient).all():
            faults.append(f"{name} is not finite")
        elif roles.get(name) == "constant":
            faults += [f"{name} is constant, but has a gradient"] * bool(gradient.any())
        elif not gradient.any():
            faults.append(f"{name} is zero throughout")
    return _count(faults)


# Precision and extremes.


@_named("error against float64")
def _precision(subject: Subject) -> Outcome:
    return _error_against_float64(subject, subject.output(subject.problem.middle), LIMITS[subject.dtype])


def _error_against_float64(subject: Subject, y: np.ndarray, limit: float) -> Outcome:
    """Rounding of parameters and of u included."""
    problem, length = subject.problem, subject.problem.middle
    u = problem.input(length)
    if isinstance(problem.layer, DiagonalLayer):
        wanted, by = reference.apply(problem.layer, problem.params, u), "the float64 loop"
    elif problem.loop is not None:
        wanted, by = LoopOracle(problem.layer, problem.params).output(u), "the float64 loop"
    else:
        how = subject.how | {"dtype": "float64"}
        wanted, by = subject.backend.apply(problem.layer, problem.params, u, **how), "itself in float64"
    return Outcome(output_error(y, wanted), limit, f"length {length}, by {by}")


BFLOAT16_LIMIT = 2e-2
"""Of the largest entry: a number in bfloat16 is right to 2^-9 = 2e-3, and an output adds up roundings of u, y and,
where the layer holds them so, of its parameters."""


def _bfloat16(subject: Subject) -> Outcome:
    device = importlib.import_module(f"bench.backends.{subject.name}.device")
    if "bfloat16" not in device.DTYPES:
        raise NotAsked(f"the {subject.name} backend does not compute in bfloat16")
    how = subject.how | {"dtype": "bfloat16"}
    try:
        y = subject.backend.apply(subject.layer, subject.params, subject.problem.input(subject.problem.middle), **how)
    except Exception as error:
        if subject.backend.kernel_name(subject.layer, subject.problem.device) != "module":
            raise
        raise NotAsked(f"its own module takes no bfloat16: {' '.join(str(error).split())[:150]}") from error
    return _error_against_float64(subject, y, BFLOAT16_LIMIT)


@_named("extreme parameters")
def _extremes(subject: Subject) -> Outcome:
    """Outputs and gradients stay finite, one parameter at a time. Poles outside the unit disc are told, not judged."""
    problem, length = subject.problem, min(33, subject.problem.middle)
    roles, faults, refused, left = subject.layer.roles(), [], 0, []
    for name, value in problem.params.items():
        if roles.get(name) in ("dynamics", "step", "normaliser"):
            trials = {f"{name} = {v}": np.full(value.shape, float(v)) for v in (-30, -18, 5)} | {f"3 {name}": 3 * value}
        else:
            trials = {f"{factor:g} {name}": factor * value for factor in (1e-6, 1e6)}
        for what, extreme in trials.items():
            params = problem.params | {name: extreme}
            if isinstance(problem.layer, DiagonalLayer):
                radius = float(np.max(np.abs(reference.system(problem.layer, params).Lambda)))
                if radius > 1 + 1e-9:
                    left.append(f"{what} (|lambda| = {radius:.3g})")
                if not 2 * length * np.log(max(radius, 1)) < np.log(1e20):
                    continue  # x_t and its gradient would overflow in exact arithmetic too
            elif problem.loop is not None:
                largest = float(np.max(np.abs(LoopOracle(problem.layer, params).output(problem.input(length)))))
                if not largest < 1e10:
                    left.append(f"{what} (y reaches {largest:.0e})")
                    continue
            try:
                y = subject.backend.apply(problem.layer, params, problem.input(length), **subject.how)
                gradients = subject.gradient(params, length)
            except ValueError:
                refused += 1
                continue
            odd = ["y"] * (not np.isfinite(y).all())
            odd += [f"d {key}" for key, g in gradients.items() if not np.isfinite(g).all()]
            faults += [f"{what}: {', '.join(odd)} not finite"] * bool(odd)
    outside = "poles leave the unit disc" if problem.loop is None else "in exact arithmetic too y grows too large"
    told = [f"{outside} with {', '.join(left)}"] * bool(left) + [f"{refused} refused"] * bool(refused)
    return _count(faults, "; ".join(told))


# What a network needs.


@_named("parameters as declared")
def _parameters(subject: Subject) -> Outcome:
    found = subject.module_shapes()
    wanted = {name: np.shape(value) for name, value in subject.params.items()}
    faults = [
        f"{name} is {found.get(name, 'not there')}, initial is {wanted.get(name, 'without it')}"
        for name in sorted(found.keys() | wanted.keys())
        if found.get(name) != wanted.get(name)
    ]
    return _count(faults, f"{sum(int(np.prod(shape)) for shape in found.values()):,} numbers")


@_named("state as declared")
def _state(subject: Subject) -> Outcome:
    layer = subject.problem.stateful()
    u = subject.problem.input(4)
    _, state = subject.backend.apply_from(layer, subject.params, u, None, **subject.how)
    found = state[0].size * (2 if np.iscomplexobj(state) else 1)
    return Outcome(
        float(abs(found - layer.state_reals)), 0.0, f"{found} real numbers a sequence, {layer.state_reals} declared"
    )


@_named("padding in a network")
def _padding(subject: Subject) -> Outcome:
    problem = subject.problem
    network = Network(layer=problem.layer, depth=1, inputs=16, tokens=True, classes=10)
    try:
        weights = network.initial(problem.model, 0)
    except ValueError as error:
        raise NotAsked(f"no network can be built: {error}") from error
    trainer = subject.backend.Trainer(network, weights, Recipe(steps=1, batch=1), problem.dtype, problem.device)
    rng = generator(0, "conformance", "tokens")
    example, longer = rng.integers(0, 16, 20), rng.integers(0, 16, 200)

    def logits(*tokens: np.ndarray, padded: int, filler: int = 0) -> np.ndarray:
        inputs = np.full((len(tokens), padded), filler, np.int32)
        for row, one in zip(inputs, tokens, strict=True):
            row[: len(one)] = one
        lengths = np.array([len(one) for one in tokens], np.int32)
        return trainer.logits(Batch(inputs, lengths, np.zeros(len(tokens), np.int32)))[0].astype(np.float64)

    wanted = logits(example, padded=64)
    errors = {
        "padded to 256": output_error(logits(example, example, padded=256), wanted),
        "padded to 256 beside a longer one": output_error(logits(example, longer, padded=256), wanted),
        "padded with another token": output_error(logits(example, padded=64, filler=7), wanted),
    }
    return _worst(errors, PADDING_LIMIT[subject.dtype])


# What needs no backend, or both.


def _initial_values(layer: Layer) -> Outcome:
    faults = []
    once, again, other = (layer.initial(np.random.default_rng(seed)) for seed in (0, 0, 1))
    for name, value in once.items():
        if np.asarray(value).dtype != np.float64:
            faults.append(f"{name} is {np.asarray(value).dtype}, not float64")
        elif not np.isfinite(value).all():
            faults.append(f"{name} is not finite")
        elif not np.array_equal(value, again[name]):
            faults.append(f"{name} differs between two draws of seed 0")
    if all(np.array_equal(value, other[name]) for name, value in once.items()):
        faults.append("seeds 0 and 1 give the same")
    return _count(faults)


def _groups(layer: Layer) -> Outcome:
    params, roles = layer.initial(np.random.default_rng(0)), layer.roles()
    faults = [f"{name} has no role, so no optimiser moves it" for name in params if name not in roles]
    faults += [f"{name} has a role, but no initial value" for name in roles if name not in params]
    faults += [f"{name} has the unknown role {role!r}" for name, role in roles.items() if role not in LAYER_ROLES]
    if not faults:
        network = Network(layer=layer, depth=1, inputs=4, tokens=True, classes=2)
        groups = Recipe(steps=1, batch=1).groups(network.roles())
        constants = {f"blocks.0.layer.{name}" for name, role in roles.items() if role == "constant"}
        left = network.initial("check", 0).keys() - groups.keys() - constants
        faults += [f"{name} is in no group" for name in sorted(left)]
    return _count(faults)


def _agreement(one: Subject, two: Subject) -> Outcome:
    """Outputs of the largest entry; gradients of their own, or of a hundredth of the largest of all."""
    length = one.problem.middle
    errors = {"y": output_error(one.output(length), two.output(length).astype(np.float64))}
    wanted = two.gradients(length)
    floor = 1e-2 * max(float(np.max(np.abs(value))) for name, value in wanted.items() if name != "u")
    for name, value in wanted.items():
        largest = max(float(np.max(np.abs(value))), 0 if name == "u" else floor) or 1.0
        errors[f"d {name}"] = float(np.max(np.abs(one.gradients(length)[name].astype(np.float64) - value))) / largest
    return _worst(errors, 2 * LIMITS[one.dtype])


def check(
    model: str,
    *,
    backends: Iterable[str] | None = None,
    dtypes: Iterable[str] = ("float32", "bfloat16"),
    device: str = "auto",
    lengths: Sequence[int] = LENGTHS,
    begun: Callable[[str], None] = lambda what: None,
) -> list[Row]:
    """All checks of a registered model, failures first. `model` may carry options, `lru[gamma=tied]`; d_model is 8.

    Without `backends` those that are installed. In bfloat16 only the error against float64 is asked. `device` is auto,
    cpu, cuda or cuda:N. ValueError for an unknown name, option, backend, dtype or device; `Missing` where a backend
    that was named is not installed. `begun` is told of every check before it runs.
    """
    plain, options = parse_name(model)
    layer: Layer = build(f"model {plain}", registry.find("model", plain), {"d_model": 8} | options)
    asked = list(dict.fromkeys(dtypes))
    for dtype in asked:
        if dtype not in (*LIMITS, "bfloat16"):
            raise unknown("dtype", dtype, (*LIMITS, "bfloat16"))
    require(bool(asked), "dtypes is empty: name at least one")
    require(bool(lengths) and min(lengths) >= 1, f"lengths must be whole numbers from 1 on, not {tuple(lengths)}")
    names = _installed() if backends is None else list(dict.fromkeys(backends))
    require(bool(names), "no backend is installed")
    for name in names:
        if name not in _NAMES:
            raise unknown("backend", name, _NAMES)

    device = _device(device, names)

    rows = [
        _row("initial values", "", "", partial(_initial_values, layer)),
        _row("optimiser groups", "", "", partial(_groups, layer)),
    ]
    runnable = _completed(layer)
    for dtype in asked:
        precise = dtype if dtype in LIMITS else "float32"
        problem = Problem(plain, runnable, precise, device, tuple(lengths))
        subjects = []
        for name in names:
            subject = Subject(problem, name)
            try:
                subject.backend.layer_module(runnable, problem.params)
            except Missing as reason:
                rows.append(Row("all", name, dtype, "not asked", None, None, str(reason)))
                continue
            except Exception:  # each check says what it meets
                pass
            subjects.append(subject)
        for subject in subjects:
            checks = CHECKS if dtype in LIMITS else {"error against float64": _bfloat16}
            for check_name, function in checks.items():
                begun(f"{model}: {check_name}, {subject.name}, {dtype}")
                rows.append(_row(check_name, subject.name, dtype, partial(function, subject)))
        if dtype in LIMITS:
            rows.append(_row("torch = jax", ", ".join(names), dtype, partial(_both, subjects)))
    order: list[Status] = ["failed", "passed", "not asked"]
    return sorted(rows, key=lambda row: order.index(row.status))


def table(model: str, rows: Collection[Row]) -> Table:
    """The rows as a table for a reader."""
    counts = {status: sum(row.status == status for row in rows) for status in ("passed", "failed", "not asked")}
    return Table(
        f"{model}: " + ", ".join(f"{count} {status}" for status, count in counts.items()),
        ["check", "backend", "dtype", "result", "measured", "limit", "where"],
        [
            [
                row.check,
                row.backend or "-",
                row.dtype or "-",
                row.status,
                _figure(row.measured),
                _figure(row.limit),
                row.where,
            ]
            for row in rows
        ],
        notes=["Errors are shares of the largest entry, or of a gradient's slopes; counts are of faults, limit 0."],
        numeric=["measured", "limit"],
    )


_NAMES = backends.NAMES


def _installed() -> list[str]:
    found = []
    for name in _NAMES:
        try:
            backends.load(name)
        except Missing:
            continue
        found.append(name)
    return found


def _device(device: str, names: Sequence[str]) -> str:
    """The device; "auto" is a GPU where all backends can use one. ValueError where one cannot use what is asked."""
    kind, _, number = device.partition(":")
    allowed = device in ("auto", "cpu", "cuda") or (kind == "cuda" and number.isdecimal())
    require(allowed, f"device is {device!r}: allowed are auto, cpu, cuda, cuda:N")
    if device == "cpu":
        return device
    without = [name for name in names if not backends.load(name).describe()["cuda"]]
    if device == "auto":
        return "cpu" if without else "cuda"
    require(not without, f"device is {device!r}, but {' and '.join(without)} cannot use a GPU here")
    return device


def _completed(layer: Layer) -> Layer:
    """The layer with a role for every parameter: roles are a check of their own, and the others go on without them."""
    params, roles = layer.initial(np.random.default_rng(0)), layer.roles()
    if params.keys() == roles.keys() and all(role in LAYER_ROLES for role in roles.values()):
        return layer
    complete: dict[str, Any] = {name: roles[name] if roles.get(name) in LAYER_ROLES else "skip" for name in params}
    cls = type(layer)
    patched = type(cls.__name__, (cls,), {"roles": lambda self: complete, "__module__": cls.__module__})
    return patched(**{field.name: getattr(layer, field.name) for field in dataclasses.fields(layer) if field.init})


def _both(subjects: Sequence[Subject]) -> Outcome:
    if len(subjects) < 2:
        raise NotAsked("one backend alone")
    return _agreement(*subjects)


def _row(check: str, backend: str, dtype: str, ask: Callable[[], Outcome]) -> Row:
    try:
        with np.errstate(all="ignore"):
            outcome = ask()
    except (NotAsked, Unsupported, Missing) as reason:
        return Row(check, backend, dtype, "not asked", None, None, str(reason))
    except Exception as error:
        text = " ".join(str(error).split())
        return Row(check, backend, dtype, "failed", None, None, f"{type(error).__name__}: {text[:300]}")
    status: Status = "passed" if outcome.measured <= outcome.limit else "failed"
    return Row(check, backend, dtype, status, outcome.measured, outcome.limit, outcome.where)


def convolved(system: Any, u: np.ndarray) -> np.ndarray:
    """y by direct convolution of u with the impulse response Re(C Lambda^l B), whose powers come from `np.power`.

    Neither a loop over states nor an FFT is in it, so it also checks the oracle.
    """
    length = u.shape[1]
    powers = system.Lambda ** np.arange(length).reshape(-1, *[1] * system.Lambda.ndim)

    def read(C: np.ndarray, u: np.ndarray) -> np.ndarray:
        y = np.zeros_like(u)
        for lag in range(length):
            if system.Lambda.ndim == 1:
                y[:, lag:] += u[:, : length - lag] @ ((C * powers[lag]) @ system.B).real.T
            else:
                y[:, lag:] += u[:, : length - lag] * np.sum(C * powers[lag] * system.B, -1).real
        return y

    y = read(system.C, u) + system.D * u
    if system.C_reverse is not None:
        y = y + read(system.C_reverse, u[:, ::-1])[:, ::-1]
    return y


def _compared(found: list[tuple[int, np.ndarray, np.ndarray]], problem: Problem) -> Outcome:
    """The worst over (length, found, wanted), and the first length at which an error passes the limit, from which t.

    Compared is what comes before the output leaves the numbers that the dtype has: a recurrence may grow without bound.
    """
    if not found:
        raise NotAsked("no length is short enough")
    ends = {length: _fitting(wanted, problem.dtype) for length, _, wanted in found}
    left = min((end for length, end in ends.items() if end < length), default=None)
    told = "" if left is None else f"; up to t = {left}: from there on y is too large for {problem.dtype}"
    found = [(length, y[:, : ends[length]], wanted[:, : ends[length]]) for length, y, wanted in found]
    errors = {length: _over_time(y, wanted) for length, y, wanted in found}
    largest = {length: float(np.max(error)) for length, error in errors.items()}  # NaN if any is
    limits = {length: _limit(problem, length, "y", error) for length, error in largest.items()}
    length = max(largest, key=lambda key: (np.isnan(largest[key]), largest[key] / limits[key]))
    where = f"length {length}, t = {int(np.argmax(errors[length]))}"
    wrong = [length for length in largest if not largest[length] <= limits[length]]
    if wrong:
        first = min(wrong)
        where = f"first at length {first} from t = {_first(errors[first], limits[first])} on; largest at {where}"
    return Outcome(largest[length], limits[length], where + told)


ROOM = 1e-6
"""Of the largest number of a dtype: what an output stays below for states and products on the way to be numbers too."""


def _fitting(wanted: np.ndarray, dtype: str) -> int:
    """The first t at which an output (batch, length, features) is too large, or its length."""
    most = ROOM * float(np.finfo(np.float64 if dtype == "float64" else np.float32).max)  # bfloat16 has float32's range
    return max(1, int(np.argmin(np.append(np.all(np.abs(wanted) <= most, axis=(0, 2)), False))))


def _limit(problem: Problem, length: int, name: str, error: float) -> float:
    """As it stands where the error keeps it; the rounding of the system is computed only where it does not."""
    limit = LIMITS[problem.dtype]
    return limit if error <= limit or np.isnan(error) else problem.allowed(length, name)


def _over_time(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The largest error at each t, (length,), over the largest entry of all."""
    largest = float(np.max(np.abs(wanted), initial=0)) or 1.0
    return np.max(np.abs(np.asarray(found, np.float64) - wanted), (0, 2)) / largest


def _first(error: np.ndarray, limit: float) -> int:
    return int(np.argmax(~(error <= limit)))


def _complex_error(found: np.ndarray, wanted: np.ndarray) -> float:
    return max(output_error(found.real, wanted.real), output_error(found.imag, wanted.imag))


def _worst(errors: dict[str, float], limit: float) -> Outcome:
    """The largest, NaN before all others."""
    name = max(errors, key=lambda key: (np.isnan(errors[key]), errors[key]))
    return Outcome(errors[name], limit, name if errors[name] else "")


def _count(faults: list[str], otherwise: str = "") -> Outcome:
    shown = faults[:3] + [f"{len(faults) - 3} more"] * (len(faults) > 3)
    return Outcome(float(len(faults)), 0.0, "; ".join(shown) or otherwise)


def _figure(x: float | None) -> str:
    if x is None:
        return "-"
    return f"{x:.0f}" if np.isfinite(x) and x == round(x) and abs(x) < 1e6 else f"{x:.1e}"

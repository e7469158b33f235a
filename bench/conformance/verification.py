"""Whether one configuration that is about to be timed computes what its layer states. Kept in the cache by content."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import ModuleType

import numpy as np

from bench import backends, cache, registry
from bench.backends import reference
from bench.conformance.oracle import LoopOracle, Oracle, has_loop, output_error
from bench.contract import DiagonalLayer, Layer, Missing, Params, Unsupported
from bench.options import unknown
from bench.seeds import generator

LIMITS = {"float64": 1e-8, "float32": 2e-4, "tf32": 1e-2, "bfloat16": 3e-2}
"""Of the largest entry of y and du; of a parameter's slopes. float32 keeps 6e-8 times the memory of the slowest state,
thousands of steps. A product in tf32 is right to 2^-11 = 5e-4, a number in bfloat16 to 2^-9 = 2e-3, and a gradient
goes through several: some 15 times as much. Measured in bfloat16, length 1000: y 3e-3, gradients up to 1.1e-2.
Where that is passed, what the map to a system in float32 alone would do is added: see `Oracle.rounding`."""

LONGEST_LOOP = 1024
"""The length at which a layer with a loop of its own is verified where it is timed at a greater one: its slopes take it
through dozens of loops."""

SOURCES = 2
"""Different examples in a batch. The others repeat them, so that the oracle runs on two and every row is compared."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The largest errors of outputs and gradients, None where not measured; their limit; why it is not verified.

    `length` is what it was verified at where that is less than what was asked.
    """

    verified: bool
    output_error: float | None
    gradient_error: float | None
    limit: float
    reason: str = ""
    length: int | None = None


@dataclasses.dataclass(frozen=True)
class Configuration:
    """What is to be timed: one layer, one backend, one precision, one shape."""

    layer: Layer
    model: str
    backend: str
    dtype: str
    device: str
    batch: int
    length: int
    compile: bool

    def key(self) -> dict[str, object]:
        """All that the verdict depends on."""
        loaded = backends.load(self.backend)
        devices = loaded.describe()["devices"] if self.device.startswith("cuda") else []
        options = {field.name: getattr(self.layer, field.name) for field in dataclasses.fields(self.layer)}
        return {
            "version": 1, "code": registry.code_id(registry.code()), "layer": type(self.layer).__qualname__,
            "options": options, "model": self.model, "backend": self.backend, "dtype": self.dtype,
            "device": self.device, "devices": devices, "framework": loaded.describe()["version"],
            "kernel": loaded.kernel_name(self.layer, self.device, self.dtype), "batch": self.batch,
            "length": self.length, "compile": self.compile,
        }  # fmt: skip


def verify(
    layer: Layer,
    *,
    model: str,
    backend: str,
    dtype: str,
    device: str,
    batch: int,
    length: int,
    compile: bool = False,
) -> Verdict:
    """Whether the layer at its own initialisation (seed 0) agrees with the oracle there, in outputs and in gradients.

    `model` is the plain name. Everything runs at full batch and length. `compile` means torch.compile of the module,
    which is compared with the module itself too; jax compiles in any case. A layer with a loop of its own is verified
    at length `LONGEST_LOOP` at most. A second call finds the answer in the cache. What cannot be run is not verified,
    with the reason. ValueError: an unknown backend or dtype.
    """
    if dtype not in LIMITS:
        raise unknown("dtype", dtype, LIMITS)
    limit = LIMITS[dtype]
    if not isinstance(layer, DiagonalLayer) and not has_loop(layer):
        reason = f"{type(layer).__name__} states no diagonal system to compare with, and brings no loop"
        return Verdict(False, None, None, limit, reason)
    shorter = LONGEST_LOOP if has_loop(layer) and length > LONGEST_LOOP else None
    compiled = compile and backend == "torch"
    configuration = Configuration(layer, model, backend, dtype, device, batch, shorter or length, compiled)
    try:
        backends.load(backend)
        if registry.is_local("model", model):  # its code is in no file, so nothing would tell that it has changed
            found = _figures(configuration)
        else:
            found = cache.cached_arrays("verified", configuration.key(), lambda: _figures(configuration))
    except (Missing, Unsupported) as reason:
        return Verdict(False, None, None, limit, str(reason))
    except Exception as error:
        if isinstance(error, ValueError) and backend not in backends.REQUIREMENTS:
            raise
        text = " ".join(str(error).split())
        return Verdict(False, None, None, limit, f"{type(error).__name__}: {text[:300]}")
    names, errors, limits = found["names"].tolist(), found["errors"], found["limits"]
    wrong = [
        f"{name} {error:.1e}" for name, error, limit in zip(names, errors, limits, strict=True) if not error <= limit
    ]
    outputs = np.array([name.startswith("y") for name in names])
    return Verdict(
        not wrong,
        float(np.max(errors[outputs])),  # NaN if any is
        float(np.max(errors[~outputs])),
        float(np.max(limits)),
        f"above the limit of {limit:g}: {', '.join(wrong)}" if wrong else "",
        shorter,
    )


def _figures(c: Configuration) -> dict[str, np.ndarray]:
    """Names, those of outputs beginning with y; their errors; their limits."""
    held = {"tf32": "float32"}.get(c.dtype, c.dtype)
    params = reference.round_to(c.layer.initial(generator(0, "weights", c.model, 0)), held)
    rng = generator(0, "verify", c.batch, c.length, c.layer.d_model)
    count = min(SOURCES, c.batch)
    examples = reference.round_input(rng.standard_normal((count, c.length, c.layer.d_model)), held)
    source = np.concatenate([np.arange(count), rng.integers(0, count, c.batch - count)])
    u = examples.astype(reference.result_dtype(held))[source]
    cotangent = reference.round_input(rng.standard_normal(u.shape), held).astype(u.dtype)

    # gradients are linear in the cotangent, so those of equal examples add up
    added = np.stack([cotangent[source == i].sum(0, dtype=np.float64) for i in range(count)])
    oracle = _oracle(c.layer, params, examples, added)

    loaded = backends.load(c.backend)
    how = {"dtype": c.dtype, "device": c.device}
    y = loaded.apply(c.layer, params, u, **how)
    found = {"y": _rows_error(y, oracle.y, source)}
    gradients = loaded.gradients(c.layer, params, u, cotangent, **how)
    found |= _gradient_errors(oracle, gradients, source)
    if c.compile:
        eager = y
        y, gradients = _compiled(loaded, c, params, u, cotangent)
        found |= {"y, compiled": _rows_error(y, oracle.y, source), "y, compiled against not": output_error(y, eager)}
        errors = _gradient_errors(oracle, gradients, source)
        found |= {f"{name}, compiled": error for name, error in errors.items()}

    limits = dict.fromkeys(found, LIMITS[c.dtype])
    if c.dtype != "float64" and any(error > LIMITS[c.dtype] for error in found.values()):
        rounding = oracle.rounding()
        limits = {name: limits[name] + rounding[name.partition(",")[0].removeprefix("d ")] for name in found}
    return {
        "names": np.array(list(found)),
        "errors": np.array(list(found.values())),
        "limits": np.array(list(limits.values())),
    }


@dataclasses.dataclass(frozen=True)
class _Wanted:
    """What the oracle expects for some examples: y, and how far gradients and roundings are from that."""

    y: np.ndarray
    gradient_errors: Callable[[Mapping[str, np.ndarray]], dict[str, float]]
    rounding: Callable[[], dict[str, float]]


def _oracle(layer: Layer, params: Params, u: np.ndarray, cotangent: np.ndarray) -> _Wanted:
    if not isinstance(layer, DiagonalLayer):
        loop = LoopOracle(layer, params)
        nothing = dict.fromkeys((*loop.trained, "u", "y"), 0.0)
        return _Wanted(loop.output(u), lambda found: loop.gradient_errors(found, u, cotangent), lambda: nothing)
    oracle = Oracle(layer, params)
    wanted = oracle.expected(u, cotangent)
    return _Wanted(
        wanted.y,
        lambda found: oracle.gradient_errors(found, wanted),
        lambda: oracle.rounding("float32", u, cotangent, wanted),
    )


def _gradient_errors(oracle: _Wanted, gradients: dict[str, np.ndarray], source: np.ndarray) -> dict[str, float]:
    found = gradients | {"u": _added(gradients["u"], source, len(oracle.y))}
    return {f"d {name}": error for name, error in oracle.gradient_errors(found).items()}


def _rows_error(y: np.ndarray, wanted: np.ndarray, source: np.ndarray) -> float:
    return float(np.max([output_error(row, wanted[i]) for row, i in zip(y, source, strict=True)]))


def _added(du: np.ndarray, source: np.ndarray, count: int) -> np.ndarray:
    """The sum over equal examples, row by row: no copy of everything in float64."""
    total = np.zeros((count, *du.shape[1:]))
    for row, i in zip(du, source, strict=True):
        total[i] += np.asarray(row, np.float64)
    return total


def _compiled(
    loaded: ModuleType, c: Configuration, params: dict[str, np.ndarray], u: np.ndarray, cotangent: np.ndarray
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    import torch

    from bench.backends.torch.device import find, get, put

    place = find(c.device)
    module = loaded.layer_module(c.layer, params, c.dtype).to(place)
    inputs = put(u, place, c.dtype).requires_grad_()
    torch.compiler.reset()
    torch.compiler.set_stance("default")  # whatever was compiled before may have asked for no more
    y = torch.compile(module, fullgraph=True, dynamic=False)(inputs)
    y.backward(put(cotangent, place, c.dtype))
    leaves = [*module.named_parameters(), ("u", inputs)]
    return get(y), {name: get(x.grad if x.grad is not None else torch.zeros_like(x)) for name, x in leaves}

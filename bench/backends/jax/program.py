"""A workload in jax, ready to be timed or to have its memory measured. See `bench.measure.workload.Program`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from jax import Array

from bench.backends.jax.device import PARAMETER_DTYPES, computing, find, get, put
from bench.backends.jax.layer import layer_decoder, layer_module
from bench.backends.jax.network import Classifier
from bench.backends.jax.training import adam, adamw
from bench.contract import CompileFailed
from bench.measure.workload import RECIPE, Workload
from bench.network import layer_weights


class Program:
    """See `bench.measure.workload.Program`."""

    def __init__(
        self,
        workload: Workload,
        weights: Mapping[str, np.ndarray],
        inputs: Mapping[str, np.ndarray],
        dtype: str,
        device: str,
        compile: bool = False,
    ) -> None:
        workload.require_step("flax")
        self.workload, self.weights, self.inputs = workload, weights, inputs
        self.dtype, self.device = dtype, find(device)
        self.result: Any = None

    def build(self) -> float | None:
        if self.workload.mode == "decode":
            self.decoder = layer_decoder(self.workload.layer)
            self.built = [self._built(i) for i in range(self.workload.depth)]
        function, donated, make = self._function()
        with computing(self.dtype, self.device):
            shapes = jax.eval_shape(make)
            placed = jax.tree.map(
                lambda s: jax.ShapeDtypeStruct(
                    s.shape, s.dtype, sharding=jax.sharding.SingleDeviceSharding(self.device)
                ),
                shapes,
            )
            self.hits = _Compilations.hits
            started = time.perf_counter()
            try:
                self.executable = jax.jit(function, donate_argnums=donated).lower(*placed).compile()
            except Exception as error:
                raise CompileFailed(f"jax: {type(error).__name__}: {error}") from error
            return time.perf_counter() - started

    def place(self) -> None:
        _, self.kept, make = self._function()
        with computing(self.dtype, self.device):
            self.arguments = list(jax.device_put(make(), self.device))
            jax.block_until_ready(self.arguments)
        if self.workload.mode == "decode":
            for _ in range(self.workload.length - 1):
                self.launch()
            self.wait()

    def _function(self) -> tuple[Callable, tuple[int, ...], Callable[[], tuple]]:
        """What is compiled, which of its arguments it gives back anew as its first outputs, and what makes them."""
        workload, dtype = self.workload, self.dtype
        weights = {name: np.asarray(value, PARAMETER_DTYPES[dtype]) for name, value in self.weights.items()}

        def inputs() -> dict[str, Array]:
            return {name: put(value, self.device, dtype) for name, value in self.inputs.items()}

        def placed() -> dict[str, Array]:
            return {name: put(value, self.device) for name, value in weights.items()}

        if workload.mode == "forward":
            return lambda weights, x: (_run(workload, dtype, weights, x),), (), lambda: (placed(), inputs())
        if workload.mode == "train":

            def start() -> tuple:
                found, groups = placed(), workload.groups()
                trained = {name: value for name, value in found.items() if name in groups}
                constants = {name: value for name, value in found.items() if name not in groups}
                return trained, adam(RECIPE).init(trained), constants, inputs()

            return lambda *arguments: _train(workload, dtype, *arguments), (0, 1), start

        def begin() -> tuple:
            built = [jax.tree.map(lambda x: put(x, self.device), one) for one in self.built]
            states = [self.decoder.start(one, workload.batch, workload.length) for one in built]
            return states, built, inputs()["u"][:, 0]

        return partial(_decode, self.decoder.step), (0,), begin

    def _built(self, block: int) -> Any:
        """What a layer's decoder builds, as numpy arrays: once, however long is decoded."""
        with computing(self.dtype, self.device):
            params = {
                name: put(np.asarray(value, PARAMETER_DTYPES[self.dtype]), self.device)
                for name, value in layer_weights(self.weights, block).items()
            }
            return jax.tree.map(get, jax.jit(self.decoder.build)(params))

    def launch(self) -> None:
        found = self.executable(*self.arguments)
        self.arguments[: len(self.kept)] = found[: len(self.kept)]
        self.result = found

    def wait(self) -> None:
        jax.block_until_ready(self.result)

    def device_clock(self) -> None:
        return None

    def compilations(self) -> int:
        return _Compilations.count

    def cache(self) -> str:
        if not jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
            return "off"
        return "hit" if _Compilations.hits > self.hits else "miss"

    def predicted_bytes(self) -> tuple[int | None, str]:
        found = self.executable.memory_analysis()
        if found is None:
            return None, "XLA does not say what memory this device needs"
        held = found.temp_size_in_bytes + found.argument_size_in_bytes + found.output_size_in_bytes
        return held - found.alias_size_in_bytes, ""

    def allocator_peak(self) -> tuple[int | None, str]:
        found = self.device.memory_stats()
        if not found or "peak_bytes_in_use" not in found:
            return None, "jax has no allocator statistics on this device"
        self.launch()
        self.wait()
        # a mark of the whole process that nothing resets: so the cell has a process of its own
        return self.device.memory_stats()["peak_bytes_in_use"], ""


def _run(workload: Workload, dtype: str, weights: Mapping[str, Array], x: Mapping[str, Array]) -> Array:
    if workload.part == "network":
        return Classifier(workload.network, weights, dtype)(x["u"], x["lengths"])
    y = x["u"]
    for i in range(workload.depth):
        y = layer_module(workload.layer, layer_weights(weights, i), dtype)(y)
    return y


def _train(
    workload: Workload,
    dtype: str,
    trained: dict[str, Array],
    moments: optax.OptState,
    constants: dict[str, Array],
    x: Mapping[str, Array],
) -> tuple[dict[str, Array], optax.OptState, tuple[Array, Array | None]]:
    """Bare layers give y and u's gradient back too: XLA would leave out what nobody asks for, and torch does not."""

    def run(trained: dict[str, Array], u: Array) -> Array:
        y = _run(workload, dtype, trained | constants, {**x, "u": u})
        if workload.part == "network":
            return optax.softmax_cross_entropy_with_integer_labels(y, x["targets"]).mean()
        return y

    if workload.part == "network":
        y, gradient = jax.value_and_grad(run)(trained, x["u"])
        du = None
    else:
        y, pullback = jax.vjp(run, trained, x["u"])
        gradient, du = pullback(x["cotangent"])
    return *adamw(RECIPE, workload.groups(), trained, moments, gradient, RECIPE.rate), (y, du)


def _decode(step: Callable, states: list, built: list, u: Array) -> tuple[list, Array]:
    after = []
    for one, state in zip(built, states, strict=True):
        u, last = step(one, u, state)
        after.append(last)
    return after, u


class _Compilations:
    """How many programs XLA has compiled in this process, and how many came out of jax's cache on disk."""

    count = 0
    hits = 0

    @classmethod
    def took(cls, event: str, duration_secs: float, **_: Any) -> None:
        cls.count += event == "/jax/core/compile/backend_compile_duration"

    @classmethod
    def heard(cls, event: str, **_: Any) -> None:
        cls.hits += event == "/jax/compilation_cache/cache_hits"


jax.monitoring.register_event_duration_secs_listener(_Compilations.took)
jax.monitoring.register_event_listener(_Compilations.heard)

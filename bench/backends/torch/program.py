"""A workload in torch, ready to be timed or to have its memory measured. See `bench.measure.workload.Program`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from bench.backends.torch.device import PARAMETER_DTYPES, find, put
from bench.backends.torch.layer import layer_decoder, layer_module
from bench.backends.torch.network import Classifier
from bench.backends.torch.training import AdamW
from bench.contract import CompileFailed
from bench.measure.workload import RECIPE, Workload
from bench.network import layer_weights


class Stack(nn.Module):
    """Layers one after another."""

    def __init__(self, workload: Workload, weights: Mapping[str, np.ndarray], dtype: str) -> None:
        super().__init__()
        own = [layer_weights(weights, i) for i in range(workload.depth)]
        self.layers = nn.ModuleList(layer_module(workload.layer, params, dtype) for params in own)

    def forward(self, u: Tensor) -> Tensor:
        for layer in self.layers:
            u = layer(u)
        return u

    def named(self) -> dict[str, nn.Parameter]:
        """The parameters by their names in the network."""
        layers = enumerate(self.layers)
        return {f"blocks.{i}.layer.{name}": p for i, layer in layers for name, p in layer.named_parameters()}


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
        workload.require_step("torch")
        self.workload, self.weights, self.inputs = workload, weights, inputs
        self.dtype, self.device, self.compile = dtype, find(device), compile
        self.counter = _Counter()
        self.result: object = None

    def build(self) -> float | None:
        if not self.compile:
            return None
        torch.compiler.reset()  # what was compiled for other shapes does not count against this one's limit
        self._place()
        started = time.perf_counter()
        try:
            self._call()
            self.wait()
            first = time.perf_counter() - started
            torch.compiler.set_stance("fail_on_recompile")  # and never back to eager unnoticed
            self._call()
            self.wait()
        except Exception as error:
            raise CompileFailed(f"torch.compile: {type(error).__name__}: {error}") from error
        if not self.counter.graphs:
            raise CompileFailed("torch.compile compiled nothing of this program")
        return max(0.0, 2 * first - (time.perf_counter() - started))  # the first call less one that is compiled

    def place(self) -> None:
        if not self.compile:
            self._place()
        if self.workload.mode == "decode":
            for _ in range(self.workload.length - 1):
                self._call()

    def _place(self) -> None:
        torch.compiler.set_stance("default")
        placed = {name: put(value, self.device, self.dtype) for name, value in self.inputs.items()}
        self.u = placed["u"]
        if self.workload.mode == "decode":
            self._place_decoder()
            return
        module: nn.Module
        arguments: tuple[Tensor, ...]
        if self.workload.part == "network":
            module = Classifier(self.workload.network, dict(self.weights), self.dtype).to(self.device)
            self.named = dict(module.named_parameters())
            arguments = (self.u, placed["lengths"])
        else:
            module = Stack(self.workload, self.weights, self.dtype).to(self.device)
            self.named, arguments = module.named(), (self.u,)
        run = self._compiled(module)
        if self.workload.mode == "forward":
            self._call = lambda: self._forward(run, arguments)
            self.held = [*self.named.values(), *placed.values()]
            return
        self.optimizer = AdamW(RECIPE, self.workload.groups(), self.named)
        goal = placed["targets"].long() if self.workload.part == "network" else placed["cotangent"]
        if self.workload.part == "layer":
            self.u.requires_grad_()  # as in a network, where layers lie below
        self._call = lambda: self._train(run, arguments, goal)
        self.held = [*self.named.values(), *placed.values()]

    def _place_decoder(self) -> None:
        decoder = layer_decoder(self.workload.layer)
        own = [layer_weights(self.weights, i) for i in range(self.workload.depth)]
        kept = PARAMETER_DTYPES[self.dtype]
        tensors = [{name: put(value, self.device).to(kept) for name, value in params.items()} for params in own]
        with torch.no_grad():
            built = [decoder.build(params) for params in tensors]
            self.states = [decoder.start(one, self.workload.batch, self.workload.length) for one in built]
        self.u = self.u[:, 0]

        def step(u: Tensor, states: list) -> tuple[Tensor, list]:
            after = []
            for one, state in zip(built, states, strict=True):
                u, last = decoder.step(one, u, state)
                after.append(last)
            return u, after

        run = self._compiled(step)

        def call() -> None:
            with torch.no_grad():
                self.result, self.states = run(self.u, self.states)

        self._call = call
        self.held = list(_tensors((self.u, built, self.states)))

    def _compiled(self, run):
        return torch.compile(run, fullgraph=True, dynamic=False, backend=self.counter) if self.compile else run

    def _forward(self, run, arguments: tuple) -> None:
        with torch.no_grad():
            self.result = run(*arguments)

    def _train(self, run, arguments: tuple, goal: Tensor) -> None:
        self._forget_gradients()
        y = run(*arguments)
        if self.workload.part == "network":
            nn.functional.cross_entropy(y, goal).backward()
        else:
            y.backward(goal)
        self.optimizer.step(RECIPE.rate)

    def _forget_gradients(self) -> None:
        self.optimizer.forget_gradients()
        self.u.grad = None

    def launch(self) -> None:
        self._call()

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        if hasattr(self.workload.layer, "synchronize"):
            self.workload.layer.synchronize()

    def device_clock(self) -> Callable[[], float] | None:
        if self.device.type != "cuda":
            return None
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()

        def seconds() -> float:
            end.record()
            end.synchronize()
            return begin.elapsed_time(end) / 1000

        return seconds

    def compilations(self) -> int:
        return self.counter.graphs

    def cache(self) -> str:
        return "off"  # the engine switches it off, so that a compilation is one

    def predicted_bytes(self) -> tuple[int | None, str]:
        return None, "torch predicts no memory"

    def allocator_peak(self) -> tuple[int | None, str]:
        self.result = None
        if self.workload.mode == "train":
            self._forget_gradients()  # else the call would begin by freeing the last one's
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            before = torch.cuda.memory_allocated(self.device)
            self._call()
            self.wait()
            return torch.cuda.max_memory_allocated(self.device) - before + self._held(), ""
        return _profiled_peak(self._call) + self._held(), ""

    def _held(self) -> int:
        """Bytes of everything that is there between calls: weights, moments, inputs, states."""
        tensors = list(self.held)
        if self.workload.mode == "train":
            tensors += [*self.optimizer.first.values(), *self.optimizer.second.values()]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
        return sum(storages.values())


class _Counter:
    """torch.compile's own compiler, counted."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph, inputs, **options):
        self.graphs += 1
        return torch._inductor.compile(graph, inputs, **options)


def _profiled_peak(call) -> int:
    """Bytes that the allocator held at most during a call above what it held before, as the profiler is told."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        call()
    events = found.profiler.kineto_results.events() if found.profiler else []
    held = peak = 0
    for _, change in sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"):
        held += change
        peak = max(peak, held)
    return peak


def _tensors(x: object) -> Iterator[Tensor]:
    """All tensors in nested tuples, lists and mappings."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, Mapping):
        yield from _tensors(list(x.values()))
    elif isinstance(x, tuple | list):
        for part in x:
            yield from _tensors(part)

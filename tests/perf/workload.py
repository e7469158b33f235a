"""One forward and backward pass of a layer at the size that speed is promised for; a process of its own where asked.

python tests/perf/workload.py time BACKEND MODEL[,MODEL...]      prints {model: median seconds}
python tests/perf/workload.py memory ours|textbook               prints the bytes that S4D in torch adds at its peak
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import torch

import bench
from bench import backends
from bench.backends.jax import layer_function
from bench.backends.torch import layer_module

BATCH, LENGTH, D_MODEL = 8, 1024, 128
SIZES = {
    "lru": {"d_state": 128},
    "s5": {"d_state": 128},
    "rotrnn": {"d_state": 128, "heads": 32},
    "s4d": {"d_state": 64},
}


def draw(model, batch=BATCH, length=LENGTH):
    """The layer, its parameters, u and the gradient of y, in float32."""
    layer = bench.layer(model, d_model=D_MODEL, **SIZES[model])
    rng = np.random.default_rng(1)
    u, g = (rng.standard_normal((batch, length, D_MODEL)).astype(np.float32) for _ in range(2))
    return layer.layer, {name: value.astype(np.float32) for name, value in layer.init(0).items()}, u, g


def pass_in_jax(model, textbook=None, **shape):
    """A jitted function and what it takes; it gives y and the gradients of the parameters and u."""
    layer, params, u, g = draw(model, **shape)
    function = (textbook or layer_function)(layer)

    def run(params, u, g):
        y, pullback = jax.vjp(function, params, u)
        return y, pullback(g)

    return jax.jit(run), tuple(jax.tree.map(jnp.asarray, (params, u, g)))


def pass_in_torch(model, textbook=None, **shape):
    """A function of nothing that gives y and the gradients of the parameters and u."""
    layer, params, u, g = draw(model, **shape)
    module = layer_module(layer, params)
    leaves = dict(module.named_parameters())
    u, g = torch.tensor(u).requires_grad_(), torch.tensor(g)
    function = (lambda _, u: module(u)) if textbook is None else textbook(layer)

    def run():
        y = function(leaves, u)
        return y, torch.autograd.grad(y, [*leaves.values(), u], g)

    return run


def seconds(run, *arguments):
    start = time.perf_counter()
    jax.block_until_ready(run(*arguments))
    return time.perf_counter() - start


def _time(backend, model, calls=15):
    backends.load(backend).set_process("float32", len(os.sched_getaffinity(0)))  # as in a worker
    run, arguments = pass_in_jax(model) if backend == "jax" else (pass_in_torch(model), ())
    for _ in range(2):
        run(*arguments)
    return statistics.median(seconds(run, *arguments) for _ in range(calls))


def _memory(which):
    from textbook import convolution_in_torch

    formulation = {"ours": None, "textbook": convolution_in_torch}[which]
    pass_in_torch("s4d", formulation, batch=1, length=16)()  # threads, tables and code pages are no part of it
    run = pass_in_torch("s4d", formulation)
    before = _high_water()
    run()
    return _high_water() - before


def _high_water():
    """The largest resident size so far, bytes. Not `getrusage`'s, which a child process takes over from its parent."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    if sys.argv[1] == "memory":
        print(json.dumps(_memory(sys.argv[2])))
    else:
        print(json.dumps({model: _time(sys.argv[2], model) for model in sys.argv[3].split(",")}))

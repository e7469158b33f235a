"""How fast the layers are against the textbook formulation of the same system, forward and backward, on this CPU.

Ratios are medians over pairs of calls that alternate in one process, so that what else the machine does hits both.
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import workload
from textbook import convolution_in_torch, scan_in_jax

import bench
from bench.backends import reference

pytestmark = pytest.mark.perf

SCANS = ("lru", "s5", "rotrnn")
SPEED = {"lru": ">= 4", "s5": ">= 3", "rotrnn": ">= 3", "s4d": ">= 4"}
FIRST_CALL = {"lru": ">= 3", "s5": ">= 3", "rotrnn": ">= 2"}
EQUAL = 2e-4
"""Of the largest value: what the project asks of float32; measured is 1e-5."""


def assert_equal(ours, textbook):
    for pair in zip(jax.tree.leaves(ours), jax.tree.leaves(textbook), strict=True):
        one, other = (np.asarray(x.detach() if isinstance(x, torch.Tensor) else x) for x in pair)
        assert np.max(np.abs(one - other)) <= EQUAL * np.max(np.abs(other))


def interleaved(textbook, ours, rounds):
    """Median of the ratios of their times, and median milliseconds of each."""
    pairs = [(workload.seconds(*textbook), workload.seconds(*ours)) for _ in range(rounds)]
    milliseconds = (1e3 * statistics.median(times) for times in zip(*pairs, strict=True))
    return statistics.median(a / b for a, b in pairs), *milliseconds


@pytest.mark.parametrize("model", SCANS)
def test_scans_in_jax_against_the_associative_scan(model, figure, benchmark):
    runs = []
    for formulation in (scan_in_jax, None):
        jax.clear_caches()
        run, arguments = workload.pass_in_jax(model, formulation)
        first = workload.seconds(run, *arguments)
        memory = run.lower(*arguments).compile().memory_analysis().temp_size_in_bytes
        runs.append((run, arguments, first, memory))
    (slow, arguments, slow_first, slow_memory), (fast, _, fast_first, fast_memory) = runs
    assert_equal(fast(*arguments), slow(*arguments))
    ratio, slow_time, fast_time = interleaved((slow, *arguments), (fast, *arguments), 21)
    benchmark.pedantic(lambda: jax.block_until_ready(fast(*arguments)), rounds=5)
    line = f"{model} jax"
    figure(line, "textbook [ms]", slow_time)
    figure(line, "ours [ms]", fast_time)
    figure(line, "times faster", ratio, SPEED[model])
    figure(line, "first call [s]", fast_first)
    figure(line, "first call, times faster", slow_first / fast_first, FIRST_CALL[model])
    figure(line, "temporaries [MiB]", fast_memory / 2**20)
    figure(line, "temporaries, of the textbook's", fast_memory / slow_memory, "<= 0.6")


def test_the_convolution_in_torch_against_the_vandermonde_matrix(figure, benchmark):
    slow, fast = workload.pass_in_torch("s4d", convolution_in_torch), workload.pass_in_torch("s4d")
    assert_equal(fast(), slow())
    ratio, slow_time, fast_time = interleaved((slow,), (fast,), 15)
    benchmark.pedantic(fast, rounds=5)
    figure("s4d torch", "textbook [ms]", slow_time)
    figure("s4d torch", "ours [ms]", fast_time)
    figure("s4d torch", "times faster", ratio, SPEED["s4d"])
    slow_memory, fast_memory = (in_a_process("memory", which) for which in ("textbook", "ours"))
    figure("s4d torch", "peak memory [MiB]", fast_memory / 2**20)
    figure("s4d torch", "peak memory, of the textbook's", fast_memory / slow_memory, "<= 0.6")


def in_a_process(*words):
    """What `workload` prints in a fresh process."""
    command = [sys.executable, str(Path(workload.__file__)), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_torch_against_jax_in_alternating_processes(figure, benchmark):
    pairs = [[in_a_process("time", backend, ",".join(SCANS)) for backend in ("torch", "jax")] for _ in range(3)]
    run = workload.pass_in_torch("lru")
    benchmark.pedantic(run, rounds=5)
    for model in SCANS:
        figure(f"{model} torch", "ours [ms]", 1e3 * statistics.median(a[model] for a, _ in pairs))
        ratio = statistics.median(a[model] / b[model] for a, b in pairs)
        figure(f"{model} torch", "time, of jax's", ratio, "<= 1.5")


LENGTHS = (4096, 16384, 65536)


@pytest.mark.parametrize("backend", ["torch", "jax"])
@pytest.mark.parametrize(("model", "bar"), [("lru", "<= 1.15"), ("s4d", "<= 1.25")])
def test_time_grows_with_length_as_it_should(model, bar, backend, figure, benchmark):
    runs = {}
    for length in LENGTHS:
        if backend == "jax":
            run, arguments = workload.pass_in_jax(model, batch=1, length=length)
        else:
            run, arguments = workload.pass_in_torch(model, batch=1, length=length), ()
        run(*arguments)
        runs[length] = run, *arguments
    times = np.array([[workload.seconds(*run) for run in runs.values()] for _ in range(7)])
    benchmark.pedantic(lambda: jax.block_until_ready(runs[LENGTHS[0]][0](*runs[LENGTHS[0]][1:])), rounds=3)
    # slopes of rounds, each of which saw the same minute of this machine
    slopes = [np.polyfit(np.log(LENGTHS), np.log(row), 1)[0] for row in times]
    figure(f"{model} {backend}", "exponent of time over length", float(np.median(slopes)), bar)


@pytest.mark.parametrize("backend", ["torch", "jax"])
@pytest.mark.parametrize("model", workload.SIZES)
def test_a_decoded_token_costs_the_same_at_any_position(model, backend, figure, benchmark):
    """With device arrays throughout; the system is built once."""
    layer, params, u, _ = workload.draw(model, length=1)
    module = getattr(bench.backends, backend)
    array = jnp.asarray if backend == "jax" else torch.tensor
    built, u_t = module.system(layer, params), array(u[:, 0])
    zero = array(np.zeros((len(u), *layer.state_shape), np.float32))
    state, times = (zero, zero), []
    with torch.no_grad():
        module.decode_step(built, u_t, state)
        for _ in range(2000):
            times.append(workload.seconds(module.decode_step, built, u_t, state))
            _, state = module.decode_step(built, u_t, state)
        benchmark.pedantic(lambda: jax.block_until_ready(module.decode_step(built, u_t, state)), rounds=20)
    early, late = statistics.median(times[:500]), statistics.median(times[-500:])
    figure(f"{model} {backend}", "decoding a token [ms]", 1e3 * late)
    # the later against the earlier: a step that looked back would have 1500 more to look at
    figure(f"{model} {backend}", "decoding, late over early", late / early, "<= 1.5")


@pytest.mark.parametrize("model", SCANS)
def test_the_error_of_the_parameter_map_stands_beside_that_of_the_scan(model, figure, benchmark):
    """At length 16384: what float32 costs in computing Lambda, B and C, and what it costs in the scan over them."""
    layer, params, u, _ = workload.draw(model, batch=1, length=16384)
    exact = reference.system(layer, params)
    rounded = bench.backends.torch.system(layer, params)
    rounded = type(exact)(*(None if x is None else x.numpy().astype(np.result_type(x.numpy(), np.float64))
                            for x in rounded))  # fmt: skip

    def loop(system):
        x = reference.scan(system, u.astype(np.float64), reference.zero_state(system, 1))
        return reference.output(system, system.C, x) + system.D * u

    with_exact, with_rounded = loop(exact), loop(rounded)
    found = benchmark.pedantic(bench.backends.torch.apply, (layer, params, u), rounds=1)
    largest = np.max(np.abs(with_rounded))
    figure(f"{model} torch", "error of the scan", float(np.max(np.abs(found - with_rounded)) / largest), "<= 1e-4")
    figure(f"{model} torch", "error of the parameters", float(np.max(np.abs(with_exact - with_rounded)) / largest))

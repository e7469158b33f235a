"""What is compiled is compiled whole, computes the same, and is never quietly something else."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import bench
from bench import registry
from bench.contract import CompileFailed
from bench.engines import local
from bench.measure.workload import Workload

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True, scope="module")
def as_before():
    yield
    torch.compiler.set_stance("default")
    torch.compiler.reset()


def program(model: str, length: int, *, mode: str = "forward", d_model: int = 4, compile: bool = True, **options):
    from bench.backends.torch.program import Program

    layer = bench.layer(model, d_model=d_model, **options).layer
    workload = Workload(layer=layer, depth=1, part="layer", mode=mode, batch=2, length=length)
    inputs = workload.inputs(np.random.default_rng(length))
    return Program(workload, workload.weights(model, 0), inputs, "float32", "cpu", compile)


@pytest.fixture
def compiling(own_registry, plugins):
    registry.load_file(plugins / "compiling.py")


@pytest.mark.parametrize("model", ["lru", "s4d"])
def test_a_compiled_layer_equals_the_eager_one_and_the_oracle(model):
    """1e-5 of the largest entry between the two; the oracle's own limit is that of float32."""
    from bench.conformance import verification

    layer = bench.layer(model, d_model=4, d_state=8).layer
    found = verification._figures(verification.Configuration(layer, model, "torch", "float32", "cpu", 2, 100, True))
    errors = {str(name): float(error) for name, error in zip(found["names"], found["errors"], strict=True)}
    assert errors["y, compiled against not"] < 1e-5
    compiled = {name for name in errors if name.endswith(", compiled") and name.startswith("d ")}
    assert len(compiled) == len(layer.roles()) + 1
    assert all(errors[name] < 2e-4 for name in compiled)


@pytest.mark.parametrize("length", [1, 64])
def test_a_training_step_compiles_at_lengths_with_and_without_chunks(length):
    found = program("lru", length, mode="train")
    assert found.build() is not None
    found.place()
    found.launch()
    eager = program("lru", length, mode="train", compile=False)
    torch.compiler.set_stance("default")
    eager.place()
    for _ in range(3):  # building took two steps
        eager.launch()
    for name, value in eager.named.items():
        wanted = value.grad.numpy()
        np.testing.assert_allclose(found.named[name].grad.numpy(), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_lengths_one_after_another_are_each_compiled(compiling):
    """More than the eight after which torch.compile gives up on a function, and would run it eagerly."""
    for length in range(1, 13):
        found = program("smooth", length)
        assert found.build() is not None
        assert found.compilations() == 1, length
        found.place()
        found.launch()
        assert found.compilations() == 1, length
        np.testing.assert_array_equal(found.result.numpy(), 2 * found.inputs["u"])


def test_what_compiles_into_no_whole_graph_fails_and_does_not_run_eagerly(compiling):
    with pytest.raises(CompileFailed, match=r"torch\.compile"):
        program("broken", 5).build()


def test_a_program_that_would_be_compiled_anew_while_it_runs_is_an_error(compiling):
    found = program("smooth", 5)
    found.build()
    found.u = torch.ones(2, 6, 4)
    call = found._call
    with pytest.raises(RuntimeError, match="recompil"):
        torch.compile(lambda u: u * 2, backend="eager", dynamic=False)(torch.ones(3))
    assert call is found._call


def test_a_cell_that_cannot_be_compiled_says_so_and_the_others_go_on(plugins, tmp_path):
    folder = bench.run(
        suite="throughput", models="broken,smooth", device="cpu", preset="quick", compile=True, out=tmp_path, run="run",
        plugin=str(plugins / "compiling.py"),
        set={"length": 8, "batch": 2, "d_model": 4, "mode": "forward", "rounds": 1, "budget": 0.05},
    )  # fmt: skip
    results = bench.read_results(folder)
    cells = results.drop_duplicates("cell_id").set_index("model")
    assert cells.loc["broken", "status"] == "compile_failed"
    assert cells.loc["smooth", "status"] in ("ok", "unconverged")
    assert cells["compiled"].all()
    assert results.loc[results["metric"] == "compile_time", "value"].item() > 0
    assert (results.loc[results["metric"] == "compilations_while_timed", "value"] == 0).all()


CACHED = """
import json, sys
import numpy as np
import bench
from bench.backends import load
from bench.measure.workload import Workload
layer = bench.layer("lru", d_model=4, d_state=4).layer
workload = Workload(layer=layer, depth=1, part="layer", mode="forward", batch=1, length=8)
program = load("jax").Program(workload, workload.weights("lru", 0), workload.inputs(np.random.default_rng(0)),
                              "float32", "cpu")
program.build()
program.place()
program.launch()
program.wait()
print(json.dumps([program.cache(), np.asarray(program.result[0]).tolist()]))
"""


def test_jaxs_cache_on_disk_is_a_miss_then_a_hit_and_changes_nothing(tmp_path):
    def start(folder):
        own = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0"}
        cache = {"JAX_COMPILATION_CACHE_DIR": str(folder)} if folder else {}
        return subprocess.Popen(
            [sys.executable, "-c", CACHED], env=os.environ | own | cache, stdout=subprocess.PIPE, text=True
        )

    def result(process):
        out, _ = process.communicate(timeout=200)
        assert process.returncode == 0
        return json.loads(out)

    off, first, second = (result(start(folder)) for folder in (None, tmp_path, tmp_path))
    assert [found[0] for found in (off, first, second)] == ["off", "miss", "hit"]
    both = [start(tmp_path / "both") for _ in range(2)]
    together = [result(process) for process in both]
    assert all(found[1] == off[1] for found in (first, second, *together))


def test_a_worker_neither_grabs_all_of_a_gpu_nor_takes_compiled_code_from_elsewhere():
    found = local._environment("cuda", 1)
    assert found["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert found["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] == "1"

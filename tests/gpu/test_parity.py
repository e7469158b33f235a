"""Every model in both frameworks on the device against the oracle. Run by tests/gpu/run.sh, not by `make test`."""

import os

import numpy as np
import pytest

import bench
from bench import backends
from bench.network import Network
from bench.recipe import Recipe
from bench.training import Batch

DEVICE = os.environ.get("BENCH_TEST_DEVICE", "cuda")
MODELS = ["rotrnn", "lru", "s4d", "s5", "s5[bidirectional=true]", "s4d[A_init=legs]"]
LENGTHS = {"float64": [33, 1000], "float32": [1000]}
TOLERANCE = {"float64": 1e-9, "float32": 2e-4}  # of the largest entry: what the CPU tests ask for


def error(found, wanted, floor=0.0):
    return np.max(np.abs(found - wanted)) / max(np.max(np.abs(wanted)), floor)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("backend", backends.NAMES)
@pytest.mark.parametrize("model", MODELS)
def test_outputs_on_the_device_are_the_oracles(model, backend, dtype):
    layer = bench.layer(model, d_model=16)
    params = layer.init(0)
    for length in LENGTHS[dtype]:
        u = np.random.default_rng(length).standard_normal((2, length, 16))
        wanted = layer.apply(params, u, backend="reference", dtype=dtype)
        assert error(layer.apply(params, u, backend=backend, dtype=dtype, device=DEVICE), wanted) < TOLERANCE[dtype]


@pytest.mark.parametrize("backend", backends.NAMES)
@pytest.mark.parametrize("model", MODELS)
def test_gradients_on_the_device_are_those_of_a_cpu_in_float64(model, backend):
    layer = bench.layer(model, d_model=16)
    params = layer.init(0)
    rng = np.random.default_rng(1)
    u, cotangent = rng.standard_normal((2, 2, 200, 16))
    wanted = layer.gradients(params, u, cotangent, backend="torch", dtype="float64")
    largest = max(np.max(np.abs(g)) for g in wanted.values())
    for dtype, floor in (("float64", 1e-6), ("float32", 1e-2)):
        found = layer.gradients(params, u, cotangent, backend=backend, dtype=dtype, device=DEVICE)
        worst = {name: error(found[name], g, floor * largest) for name, g in wanted.items()}
        assert max(worst.values()) < TOLERANCE[dtype], worst


@pytest.mark.parametrize("model", MODELS)
def test_torch_and_jax_start_equal_and_train_alike_on_the_device(model):
    network = Network(layer=bench.layer(model, d_model=16).layer, depth=1, inputs=8, tokens=True, classes=4)
    recipe = Recipe(steps=10, batch=4)
    rng = np.random.default_rng(2)
    batch = Batch(
        rng.integers(0, 8, (4, 50)).astype(np.int32), np.array([50, 40, 7, 1], np.int32), rng.integers(0, 4, 4)
    )
    losses = {}
    for backend in backends.NAMES:
        trainer = backends.load(backend).Trainer(network, network.initial(model, 0), recipe, "float32", DEVICE)
        losses[backend] = [trainer.step(batch, recipe.rate_at(step), None)[0] for step in range(recipe.steps)]
    # float32 rounding, 6e-8 a number, grows with the steps as Adam divides small gradients by their own size
    np.testing.assert_allclose(losses["torch"], losses["jax"], rtol=1e-4)

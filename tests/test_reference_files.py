"""Layers against what the public implementations of their papers computed in float64 (tests/data)."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest

import bench
from bench.state_space import hippo_normal

DATA = Path(__file__).parent / "data"
LAYERS = (
    "lru_layer",
    "rotrnn_layer",
    "s4d_layer_lin",
    "s5_layer_bidirectional",
    "s5_layer_bilinear_full",
    "s5_layer_zoh_conj",
)
KERNELS = [f"s4d_kernel_{spectrum}_{method}" for spectrum in ("lin", "inv", "legs") for method in ("zoh", "bilinear")]

TOLERANCE = {"float64": 1e-9, "float32": 2e-4}
"""Set by the project: float64 leaves room for another order of the same operations, and float32 for 37 steps of
rounding (6e-8 each) in states and their gradients. What is measured is below 1e-12 and 1e-5."""
FLOOR = {"float64": 1e-6, "float32": 1e-2}
"""An array that is this much smaller than the largest of its kind in the layer is judged against that share of it, so
that small gradients count and those that cancel to zero do not."""


@pytest.fixture(autouse=True)
def quick_compilation(request):
    """Half the time for jax in float64. In float32, which users get by default, it compiles as users get it."""
    dtype = request.node.callspec.params.get("dtype")
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", dtype == "float64")
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@dataclasses.dataclass(frozen=True)
class Case:
    """One layer as the public code ran it."""

    layer: bench.ArrayLayer
    params: dict[str, np.ndarray]
    arrays: dict[str, np.ndarray]

    def gradients(self):
        return {name: self.arrays[f"grads/{name}"] for name in self.params} | {"u": self.arrays["grad_u"]}


def read(name):
    with np.load(DATA / f"{name}.npz") as arrays:
        return json.loads(str(arrays["config"])), {key: arrays[key] for key in arrays.files if key != "config"}


def case(name):
    config, arrays = read(name)
    options = {key: value for key, value in config.items() if key not in ("model", "batch", "length", "seed", "note")}
    params = {key.removeprefix("params/"): value for key, value in arrays.items() if key.startswith("params/")}
    return Case(bench.layer(config["model"], **options), params, arrays)


def error(found, wanted, dtype, largest=0.0):
    """The largest difference, relative to the array or to a share of the largest array of its kind."""
    assert found.shape == wanted.shape
    return np.max(np.abs(found - wanted)) / max(np.max(np.abs(wanted)), FLOOR[dtype] * largest)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("backend", ["reference", "torch", "jax"])
@pytest.mark.parametrize("name", LAYERS)
def test_outputs_are_those_of_the_public_code(name, backend, dtype):
    given = case(name)
    y = given.layer.apply(given.params, given.arrays["u"], backend=backend, dtype=dtype)
    assert y.dtype == dtype
    assert error(y, given.arrays["y"], dtype) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("backend", ["reference", "torch", "jax"])
@pytest.mark.parametrize("name", ["lru_layer", "rotrnn_layer"])  # the other files hold no states
def test_states_are_those_of_the_public_code(name, backend, dtype):
    given = case(name)
    wanted = given.arrays["states"]
    x = given.layer.states(given.params, given.arrays["u"], backend=backend, dtype=dtype)
    assert x.dtype == (np.result_type(dtype, np.complex64) if np.iscomplexobj(wanted) else dtype)
    assert error(x, wanted, dtype) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("backend", ["torch", "jax"])
@pytest.mark.parametrize("name", LAYERS)
def test_all_gradients_are_those_of_the_public_code(name, backend, dtype):
    given = case(name)
    arrays, wanted = given.arrays, given.gradients()
    found = given.layer.gradients(given.params, arrays["u"], arrays["cotangent"], backend=backend, dtype=dtype)
    assert set(found) == set(wanted)
    assert {gradient.dtype for gradient in found.values()} == {np.dtype(dtype)}
    largest = max(np.max(np.abs(gradient)) for gradient in wanted.values())
    errors = {key: error(found[key], wanted[key], dtype, largest) for key in wanted}
    assert max(errors.values()) < TOLERANCE[dtype], errors


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("backend", ["reference", "torch", "jax"])
@pytest.mark.parametrize("name", KERNELS)
def test_impulse_response_of_s4d_is_the_published_kernel(name, backend, dtype):
    config, arrays = read(name)
    A = arrays["A"]
    layer = bench.layer(
        "s4d",
        d_model=config["d_model"],
        d_state=config["d_state"],
        discretization=config["disc"],
        train_B=True,
    )
    params = {
        "log_dt": np.log(arrays["dt"]),
        "log_A_real": np.log(-A.real),
        "A_imag": A.imag,
        "B": np.stack([arrays["B"].real, arrays["B"].imag], -1),
        "C": np.stack([arrays["C"].real, arrays["C"].imag], -1),
        "D": np.zeros(config["d_model"]),
    }
    impulse = np.zeros((1, config["length"], config["d_model"]))
    impulse[:, 0] = 1
    y = layer.apply(params, impulse, backend=backend, dtype=dtype)
    assert error(y[0].T, arrays["kernel"], dtype) < TOLERANCE[dtype]


@pytest.mark.parametrize("n", [4, 16, 64])
def test_eigenvalues_of_hippo_normal_are_the_published_ones(n):
    _, arrays = read(f"hippo_n{n}_eigenvalues")
    found, wanted = hippo_normal(n)[0], arrays["eigenvalues"]
    assert np.all(found.real == -0.5)
    # two eigensolvers agree to n roundings of the largest eigenvalue
    assert np.max(np.abs(found - wanted)) < n * np.finfo(float).eps * np.max(np.abs(wanted))


@pytest.mark.parametrize("spectrum", ["inv", "legs"])
def test_s4d_starts_with_the_published_spectrum(spectrum):
    config, arrays = read(f"s4d_kernel_{spectrum}_zoh")
    layer = bench.layer("s4d", d_model=4, d_state=config["d_state"], A_init=spectrum)
    params = layer.init(seed=0)
    A = -np.exp(params["log_A_real"]) + 1j * params["A_imag"]
    B = params["B"][..., 0] + 1j * params["B"][..., 1] if spectrum == "legs" else np.ones_like(A)

    # the files hold the other half of each conjugate pair
    wanted_A, wanted_B = arrays["A"].conj(), arrays["B"].conj()
    order, wanted_order = np.argsort(A[0].imag), np.argsort(wanted_A[0].imag)
    A, B, wanted_A, wanted_B = A[:, order], B[:, order], wanted_A[:, wanted_order], wanted_B[:, wanted_order]
    sign = np.where(B.real * wanted_B.real < 0, -1, 1)  # of an eigenvector, which is free
    # the files' arrays come from an eigensolver in float32: a few of its roundings, 1.2e-7, of the largest entry
    assert np.max(np.abs(A - wanted_A)) < 1e-6 * np.max(np.abs(wanted_A))
    assert np.max(np.abs(B - sign * wanted_B)) < 1e-6 * np.max(np.abs(wanted_B))

"""The four layers: how they start, what they refuse, what holds whatever their parameters, and how they are related."""

import dataclasses
import itertools
import typing

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.linalg import block_diag, expm

import bench
from bench.backends import reference
from bench.backends.torch import layer_module
from bench.contract import LAYER_ROLES
from bench.energy import white_noise_energy
from bench.network import Network, layer_weights
from bench.recipe import Recipe
from bench.sampling import open_uniform, truncated_normal
from bench.state_space import hippo_input, hippo_normal
from bench.training import Batch

MODELS = ("lru", "rotrnn", "s4d", "s5")
SIZES = {
    "lru": {"d_state": 6},
    "rotrnn": {"d_state": 12, "heads": 3},
    "s4d": {"d_state": 8},
    "s5": {"d_state": 8, "blocks": 2},
}
EPS32 = float(np.finfo(np.float32).eps)


pytestmark = pytest.mark.usefixtures("quick_compilation")


def configurations():
    """Every model with its defaults, its variants, both directions, and every value of an option with few values."""
    for model in MODELS:
        cls = type(bench.layer(model).layer)
        yield model, {}
        yield model, {"bidirectional": True}
        for options in cls.variants.values():
            yield model, dict(options)
        for name, hint in typing.get_type_hints(cls).items():
            for value in typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ():
                yield model, {name: value}
    yield "rotrnn", {"heads": 64}
    yield "s5", {"conj_sym": False}
    yield "s5", {"clip_eigs": True}
    yield "s5", {"bidirectional": True, "C_init": "complex_normal"}
    yield "s4d", {"train_B": True}


CONFIGURATIONS = list(configurations())


def draw(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


# How they start.


def assert_uniform(sample, low, high):
    assert low < sample.min()
    assert sample.max() < high
    assert stats.kstest(sample.ravel(), stats.uniform(low, high - low).cdf).pvalue > 1e-3


def assert_variance(sample, variance):
    """Mean 0 and this variance within five standard errors of a Gaussian sample."""
    assert abs(sample.mean()) < 5 * np.sqrt(variance / sample.size)
    assert abs(np.mean(sample**2) / variance - 1) < 5 * np.sqrt(2 / sample.size)


EIGENVALUES = {  # of the LRU, by parameterisation
    "stable": lambda p: np.exp(-np.exp(p["nu_log"]) + 1j * np.exp(p["theta_log"])),
    "exponential": lambda p: np.exp(-p["nu"] + 1j * p["theta"]),
    "complex": lambda p: p["Lambda_re"] + 1j * p["Lambda_im"],
}


@pytest.mark.parametrize("parameterisation", EIGENVALUES)
def test_lru_starts_uniformly_on_the_ring(parameterisation):
    n, h = 4000, 16
    options = {"r_min": 0.4, "r_max": 0.9, "max_phase": 0.3, "parameterisation": parameterisation}
    params = bench.layer("lru", d_model=h, d_state=n, **options).init(0)
    Lambda = EIGENVALUES[parameterisation](params)
    modulus = np.abs(Lambda)
    assert_uniform(modulus**2, 0.4**2, 0.9**2)
    assert_uniform(np.angle(Lambda), 0, 0.3)
    np.testing.assert_allclose(np.exp(params["gamma_log"]), np.sqrt(1 - modulus**2), rtol=1e-12)
    for name in ("B_re", "B_im"):
        assert_variance(params[name], 1 / (2 * h))
    for name in ("C_re", "C_im"):
        assert_variance(params[name], 1 / n)
    assert_variance(bench.layer("lru", d_model=4000, d_state=1).init(0)["D"], 1)


def ladder():
    """The options of the LRU's rungs, defaults included, in order."""
    cls = type(bench.layer("lru").layer)
    rungs = {name: options for name, options in cls.variants.items() if name.startswith("ladder")}
    assert [name.split(":")[0] for name in rungs] == [f"ladder {k}" for k in range(1, 7)]
    return [dataclasses.asdict(cls(d_model=1, **options)) for options in rungs.values()]


@pytest.mark.parametrize(
    ("rung", "parameterisation", "r_min", "r_max", "max_phase", "normalised"),
    [
        (1, "complex", 0, 1, 2 * np.pi, False),
        (2, "exponential", 0, 1, 2 * np.pi, False),
        (3, "stable", 0, 1, 2 * np.pi, False),
        (4, "stable", 0.9, 0.999, 2 * np.pi, False),
        (5, "stable", 0.9, 0.999, 2 * np.pi, True),
        (6, "stable", 0.9, 0.999, np.pi / 10, True),
    ],
)
def test_each_rung_of_the_ladder_starts_as_the_paper_has_it(
    rung, parameterisation, r_min, r_max, max_phase, normalised
):
    """Uniform on the disc, or the ring: |Lambda|^2 and the phase are. Nothing else of the start differs."""
    options = ladder()[rung - 1] | {"d_state": 4000}
    params = bench.layer("lru", **options).init(0)
    Lambda = EIGENVALUES[parameterisation](params)
    assert_uniform(np.abs(Lambda) ** 2, r_min**2, r_max**2)
    assert_uniform(np.angle(Lambda) % (2 * np.pi), 0, max_phase)
    assert ("gamma_log" in params) == normalised
    if normalised:  # of 1 - |Lambda|^2, down to 2e-3, thirteen digits are left
        np.testing.assert_allclose(np.exp(2 * params["gamma_log"]), 1 - np.abs(Lambda) ** 2, rtol=1e-12)
    plain = bench.layer("lru", d_model=1, d_state=4000).init(0)
    for name in ("B_re", "B_im", "C_re", "C_im", "D"):
        np.testing.assert_array_equal(params[name], plain[name])


def test_a_rung_of_the_ladder_is_one_change():
    rungs = ladder()
    changes = [{name for name in one if one[name] != other[name]} for one, other in itertools.pairwise(rungs)]
    assert changes == [{"parameterisation"}, {"parameterisation"}, {"r_min", "r_max"}, {"gamma"}, {"max_phase"}]
    with_equal_draws = [bench.layer("lru", **options | {"d_state": 50}).init(3) for options in rungs[:3]]
    first, *others = (EIGENVALUES[o["parameterisation"]](p) for o, p in zip(rungs, with_equal_draws, strict=False))
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-14)


@pytest.mark.parametrize("model", [*MODELS, "dense-linear"])
def test_no_two_variants_are_the_same_layer(model):
    cls = type(bench.layer(model).layer)
    layers = [cls(d_model=4, **options) for options in ({}, *cls.variants.values())]
    assert len(set(layers)) == len(layers)


@pytest.mark.parametrize("scheme", ["clean", "main", "listing"])
def test_rotrnn_starts_as_its_scheme_says(scheme):
    heads, d, h = 2000, 4, 8
    n = heads * d
    options = {"gamma_min": 0.5, "gamma_max": 0.99, "max_phase": 0.3, "scheme": scheme, "bidirectional": True}
    params = bench.layer("rotrnn", d_model=h, d_state=n, heads=heads, **options).init(0)
    if scheme == "listing":
        assert_uniform(np.exp(-2 * np.exp(params["gamma_log"])), 0.5**2, 0.99**2)
    else:
        assert_uniform(params["gamma_log"], np.log(-np.log(0.99)), np.log(-np.log(0.5)))
    theta = np.exp(params["theta_log"]) if scheme == "main" else params["theta"]
    assert_uniform(theta, 0, 0.3)
    assert_variance(params["M"], 1 / (n + d) if scheme == "main" else 1)
    assert_variance(params["B"], 1 / h if scheme == "listing" else 1 / (h + n))
    for name in ("C", "C2"):
        assert_variance(params[name], 1 / n if scheme == "listing" else 1 / (h + n))
    assert_variance(bench.layer("rotrnn", d_model=4000, d_state=2, heads=1).init(0)["D"], 1)


@pytest.mark.parametrize("conj_sym", [True, False])
def test_s5_starts_with_blocks_of_hippo(conj_sym):
    n, h, blocks = 64, 300, 4
    params = bench.layer("s5", d_model=h, d_state=n, blocks=blocks, conj_sym=conj_sym).init(0)
    rates, vectors = hippo_normal(n // blocks)
    if conj_sym:
        rates, vectors = rates[: n // blocks // 2], vectors[:, : n // blocks // 2]
        assert np.all(rates.imag < 0)
    np.testing.assert_array_equal(params["Lambda_re"] + 1j * params["Lambda_im"], np.tile(rates, blocks))

    # B and C are random in real coordinates: with the conjugates, V B is real and C V^* has two independent parts
    V = block_diag(*[vectors] * blocks)
    B = params["B"][..., 0] + 1j * params["B"][..., 1]
    C = params["C"][..., 0] + 1j * params["C"][..., 1]
    real_B = 2 * (V @ B).real if conj_sym else V @ B
    assert np.max(np.abs(np.imag(real_B))) < 1e-13
    real_B = np.real(real_B)
    # fan-in is the number of states; a normal cut at two standard deviations, rescaled
    assert_variance(real_B, 1 / n)
    assert np.max(np.abs(real_B)) < 2 / stats.truncnorm(-2, 2).std() / np.sqrt(n) + 1e-13
    assert_variance(np.sqrt(n) * np.abs(C) * np.sign(draw(C.shape)), 2)  # E|C|^2 = 2 / n
    if not conj_sym:
        drawn = C @ V.conj().T
        assert_variance(drawn.real, 1 / n)
        assert_variance(drawn.imag, 1 / n)


@pytest.mark.parametrize(("C_init", "mean_square"), [("lecun_normal", 2 / (64 * 100)), ("complex_normal", 1)])
def test_s5_output_matrices_start_at_the_size_of_the_public_code(C_init, mean_square):
    C = bench.layer("s5", d_model=100, d_state=64, C_init=C_init).init(0)["C"]
    assert C.shape == (100, 32, 2)
    assert abs(np.sum(C**2, -1).mean() / mean_square - 1) < 5 / np.sqrt(C.shape[0] * C.shape[1])


@pytest.mark.parametrize("model", ["s4d", "s5"])
def test_step_sizes_start_log_uniform(model):
    options = {"s4d": {"d_model": 4000}, "s5": {"d_model": 1, "d_state": 8000, "blocks": 1000}}[model]
    params = bench.layer(model, dt_min=1e-4, dt_max=1e-2, **options).init(0)
    assert_uniform(params["log_dt" if model == "s4d" else "log_step"], np.log(1e-4), np.log(1e-2))


@pytest.mark.parametrize("A_init", ["lin", "legs"])
def test_channels_of_s4d_share_systems_in_turn(A_init):
    """With two systems for six channels, channel h has number h mod 2; what is trained is one array for those three."""
    shared = bench.layer("s4d", d_model=6, d_state=8, A_init=A_init, n_ssm=2)
    whole = bench.layer("s4d", d_model=6, d_state=8, A_init=A_init)
    params = shared.init(0)
    rng = np.random.default_rng(0)
    for name in ("log_A_real", "A_imag", *(["B"] if A_init == "legs" else [])):
        params[name] = params[name] + 0.1 * rng.random(params[name].shape)
        assert len(params[name]) == 2
    u = rng.standard_normal((2, 30, 6))
    unrolled = {name: value[np.arange(6) % 2] if len(value) == 2 else value for name, value in params.items()}
    for backend in ("reference", "torch", "jax"):
        y = shared.apply(params, u, backend=backend, dtype="float64")
        np.testing.assert_allclose(y, whole.apply(unrolled, u, backend=backend, dtype="float64"), rtol=0, atol=1e-13)


@pytest.mark.parametrize("A_init", ["lin", "real"])
def test_the_offset_half_of_s4d_reads_what_comes_after_by_a_second_kernel(A_init):
    """y_t = D u_t + sum_{j>=0} K_j u_{t-j} + sum_{j>=0} K'_j u_{t+1+j}, both kernels 2 Re(C B Lambda^j)."""
    layer = bench.layer("s4d", d_model=3, d_state=8, A_init=A_init, bidirectional=True, offset=True)
    plain = bench.layer("s4d", d_model=3, d_state=8, A_init=A_init)
    params, length = layer.init(0), 20
    u = np.random.default_rng(0).standard_normal((1, length, 3))
    impulse = np.zeros((1, length, 3))
    impulse[0, 0] = 1
    first, second = (
        plain.apply({"D": np.zeros(3), "C": params[C]} | {n: params[n] for n in ("log_dt", "log_A_real", "A_imag")},
                    impulse, backend="reference", dtype="float64")[0]
        for C in ("C", "C2")
    )  # fmt: skip
    wanted = params["D"] * u[0]
    for t in range(length):
        wanted[t] += sum(first[j] * u[0, t - j] for j in range(t + 1))
        wanted[t] += sum((second[j] * u[0, t + 1 + j] for j in range(length - 1 - t)), np.zeros(3))
    for backend in ("reference", "torch", "jax"):
        y = layer.apply(params, u, backend=backend, dtype="float64")[0]
        np.testing.assert_allclose(y, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())
    y = layer.apply(params, u, backend="torch")[0]
    np.testing.assert_allclose(y, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_s4d_starts_with_its_spectra():
    n, N = np.arange(32), 64
    wanted = {
        "lin": -0.5 + 1j * np.pi * n,
        "inv": -0.5 + 1j * (N / np.pi) * (N / (2 * n + 1) - 1),
        "real": -(n + 1),
        "legs": hippo_normal(N)[0][N // 2 :],
    }
    for spectrum, A in wanted.items():
        params = bench.layer("s4d", d_model=50, d_state=N, A_init=spectrum).init(0)
        assert np.all(params["A_imag"] >= 0)
        found = -np.exp(params["log_A_real"]) + 1j * params["A_imag"]
        np.testing.assert_allclose(found, np.tile(A, (50, 1)), rtol=1e-13)
        assert ("B" in params) == (spectrum == "legs")
        assert_variance(params["C"], 1 / 2)
    # printed values: the largest frequencies of N = 64
    assert abs(wanted["legs"].imag.max() - 1303.27) < 0.005
    assert abs(wanted["inv"].imag.max() - 1283.43) < 0.005
    assert_variance(bench.layer("s4d", d_model=4000, d_state=2).init(0)["D"], 1)


def test_hippo_normal_is_diagonalised():
    """HiPPO-LegS, entry by entry, plus p p^T; and the input vector in the eigenbasis."""
    n = 16
    A = np.array([
        [-np.sqrt((2 * i + 1) * (2 * j + 1)) if i > j else -(i + 1) if i == j else 0 for j in range(n)]
        for i in range(n)
    ])  # fmt: skip
    p = np.sqrt(np.arange(n) + 0.5)
    rates, V = hippo_normal(n)
    np.testing.assert_allclose(V @ np.diag(rates) @ V.conj().T, A + np.outer(p, p), rtol=0, atol=1e-12)
    np.testing.assert_allclose(V.conj().T @ V, np.eye(n), rtol=0, atol=1e-13)
    layer = bench.layer("s4d", d_model=1, d_state=n, A_init="legs")
    B = layer.init(0)["B"][0]
    full = V.conj().T @ hippo_input(n)
    np.testing.assert_allclose(B[:, 0], full[n // 2 :].real, rtol=0, atol=1e-12)
    np.testing.assert_allclose(B[:, 1], np.clip(full[n // 2 :].imag, -2, 2), rtol=0, atol=1e-12)


def test_draws_are_open_intervals_and_have_their_variance():
    class Extreme:
        """A generator that draws nothing but the ends."""

        def __init__(self, end):
            self.end = end

        def integers(self, low, high, shape):
            return np.full(shape, low if self.end == "low" else high - 1)

        def standard_normal(self, shape):
            return np.ones(shape)

    for low, high in ((0, 1), (0.25, 1.0), (0.9, 0.999), (-7, -2)):
        for end in ("low", "high"):
            assert low < open_uniform(Extreme(end), 1, low, high)[0] < high
    assert open_uniform(np.random.default_rng(0), 3, 0.5, 0.5).tolist() == [0.5] * 3
    for model, options in CONFIGURATIONS:
        for ends in ({}, {"r_min": 0.5, "r_max": 1}) if model == "lru" else ({},):
            for end in ("low", "high"):
                params = bench.layer(model, **options | ends).layer.initial(Extreme(end))
                assert all(np.isfinite(value).all() for value in params.values()), (model, options, ends)
    assert_variance(truncated_normal(np.random.default_rng(0), (200, 200), 0.1), 0.1)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("lru", {"d_state": 4096, "r_min": 0, "r_max": 1}),
        ("lru", {"d_state": 4096, "r_min": 0.9, "r_max": 0.9}),
        ("lru", {"d_state": 4096, "r_min": 0, "r_max": 1, "parameterisation": "exponential"}),
        ("lru", {"d_state": 4096, "r_min": 0, "r_max": 1, "parameterisation": "complex"}),
        ("rotrnn", {"d_state": 8192, "heads": 4096, "scheme": "main", "gamma_min": 1e-9, "gamma_max": 0.9999}),
        ("rotrnn", {"d_state": 8192, "heads": 4096, "scheme": "listing"}),
        ("s4d", {"d_model": 4096, "d_state": 4}),
        ("s5", {"d_state": 4096, "blocks": 512}),
    ],
)
def test_no_initial_parameter_is_infinite_in_any_precision(model, options):
    layer = bench.layer(model, **{"d_model": 1} | options)
    for seed in range(20):
        for name, value in layer.init(seed).items():
            for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
                assert torch.isfinite(torch.tensor(value).to(dtype)).all(), (name, dtype, seed)


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_the_whole_network_starts_with_its_layers_dynamics(backend):
    """No wrapper draws them again, and weights survive being read and put back."""
    wanted = {
        "lru": ({"r_min": 0.7, "r_max": 0.8}, lambda p: np.exp(-np.exp(p["nu_log"])), 0.7, 0.8),
        "rotrnn": ({"gamma_min": 0.7, "gamma_max": 0.8}, lambda p: np.exp(-np.exp(p["gamma_log"])), 0.7, 0.8),
        "s4d": ({"dt_min": 0.02, "dt_max": 0.03}, lambda p: np.exp(p["log_dt"]), 0.02, 0.03),
        "s5": ({"dt_min": 0.02, "dt_max": 0.03}, lambda p: np.exp(p["log_step"]), 0.02, 0.03),
    }
    for model, (options, read, low, high) in wanted.items():
        layer = bench.layer(model, d_model=8, **SIZES[model], **options).layer
        network = Network(layer=layer, depth=2, inputs=5, tokens=True, classes=3)
        weights = network.initial(model, seed=0)
        for _ in range(2):
            trainer = bench.backends.load(backend).Trainer(network, weights, Recipe(steps=1, batch=2), "float32", "cpu")
            weights = trainer.weights()
            for block in range(2):
                value = read(layer_weights(weights, block))
                assert low * (1 - EPS32 * 8) <= value.min()  # parameters are rounded to float32
                assert value.max() <= high * (1 + EPS32 * 8)


# What they refuse.

REFUSED = [
    ("lru", {"d_model": 0}, ["d_model", "0"]),
    ("lru", {"d_model": -3}, ["d_model", "-3"]),
    ("lru", {"d_model": 2.5}, ["d_model", "2.5"]),
    ("lru", {"d_state": 0}, ["d_state", "0"]),
    ("lru", {"r_min": 0.9, "r_max": 0.5}, ["r_min", "0.9", "r_max", "0.5"]),
    ("lru", {"r_min": 1, "r_max": 1}, ["r_min", "1"]),
    ("lru", {"r_min": 0, "r_max": 0}, ["r_max", "0"]),
    ("lru", {"r_max": 1.01}, ["r_max", "1.01"]),
    ("lru", {"r_min": -0.1}, ["r_min", "-0.1"]),
    ("lru", {"r_min": float("nan")}, ["r_min", "nan"]),
    ("lru", {"max_phase": 0}, ["max_phase", "0"]),
    ("lru", {"gamma": "gone"}, ["gamma", "gone", "trained"]),
    ("lru", {"parameterisation": "polar"}, ["parameterisation", "polar", "stable", "exponential", "complex"]),
    ("lru", {"parameterisation": "exponential", "gamma": "tied"}, ["gamma = tied", "= stable", "not exponential"]),
    ("lru", {"parameterisation": "complex", "gamma": "tied"}, ["gamma = tied", "= stable", "not complex"]),
    ("rotrnn", {"d_state": 64, "heads": 64}, ["heads", "64", "d_state"]),
    ("rotrnn", {"d_state": 66, "heads": 4}, ["heads", "4", "d_state", "66"]),
    ("rotrnn", {"d_state": 10, "heads": 4}, ["heads", "4", "d_state", "10"]),
    ("rotrnn", {"d_state": 8, "heads": 16}, ["heads", "16", "d_state", "8"]),
    ("rotrnn", {"d_state": 64, "heads": 0}, ["heads", "0", "d_state", "64"]),
    ("rotrnn", {"d_state": 6, "heads": 2}, ["heads", "2", "d_state", "6"]),
    ("rotrnn", {"d_state": 0, "heads": 1}, ["d_state", "0"]),
    ("rotrnn", {"gamma_max": 1.0}, ["gamma_max", "1.0"]),
    ("rotrnn", {"gamma_min": 0}, ["gamma_min", "0"]),
    ("rotrnn", {"gamma_min": 0.99, "gamma_max": 0.9}, ["gamma_min", "0.99", "gamma_max", "0.9"]),
    ("rotrnn", {"max_phase": -1}, ["max_phase", "-1"]),
    ("s5", {"d_state": 5, "blocks": 1}, ["conj_sym", "d_state", "5"]),
    ("s5", {"d_state": 64, "blocks": 3}, ["blocks", "3", "d_state", "64"]),
    ("s5", {"d_state": 66, "blocks": 4}, ["blocks", "4", "d_state", "66"]),
    ("s5", {"d_state": 6, "blocks": 2}, ["conj_sym", "blocks", "2", "d_state", "6"]),
    ("s5", {"blocks": 0}, ["blocks", "0"]),
    ("s5", {"dt_min": 0.1, "dt_max": 0.01}, ["dt_min", "0.1", "dt_max", "0.01"]),
    ("s5", {"dt_min": 0}, ["dt_min", "0"]),
    ("s5", {"C_init": "zeros"}, ["C_init", "zeros", "lecun_normal"]),
    ("s4d", {"d_state": 7}, ["d_state", "7"]),
    ("s4d", {"d_state": 0}, ["d_state", "0"]),
    ("s4d", {"dt_min": -1}, ["dt_min", "-1"]),
    ("s4d", {"offset": True}, ["offset", "bidirectional"]),
    ("s4d", {"n_ssm": 3}, ["n_ssm", "d_model", "3"]),
    ("s4d", {"n_ssm": 0}, ["n_ssm", "0"]),
    ("s4d", {"A_init": "legt"}, ["A_init", "legt", "legs"]),
    ("s4d", {"discretization": "euler"}, ["discretization", "euler", "zoh"]),
    ("s4d", {"heads": 4}, ["heads", "s4d"]),
]


@pytest.mark.parametrize(("model", "options", "words"), REFUSED, ids=lambda x: str(x) if isinstance(x, dict) else None)
def test_what_cannot_be_honoured_is_refused_with_the_option_and_the_numbers(model, options, words):
    with pytest.raises(ValueError) as refused:
        bench.layer(model, **options)
    for word in words:
        assert word in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("model", "options", "states"),
    [
        ("rotrnn", {"d_state": 64, "heads": 1}, 32),
        ("s5", {"d_state": 384, "blocks": 3}, 192),
        ("s5", {"d_state": 5, "blocks": 1, "conj_sym": False}, 5),
        ("lru", {"r_min": 0, "r_max": 1}, 64),
        ("lru", {"r_min": 0.5, "r_max": 0.5}, 64),
    ],
)
def test_what_can_be_honoured_is_honoured_exactly(model, options, states):
    layer = bench.layer(model, d_model=4, **options)
    params = layer.init(0)
    assert all(np.isfinite(value).all() for value in params.values())
    assert reference.system(layer.layer, params).Lambda.shape == (states,)
    if "r_max" in options:
        modulus = np.abs(reference.system(layer.layer, params).Lambda)
        assert options["r_min"] - 1e-15 <= modulus.min()
        assert modulus.max() < 1 if options["r_max"] == 1 else modulus.max() <= options["r_max"] + 1e-15


# What every layer must be.


@pytest.mark.parametrize(("model", "options"), CONFIGURATIONS)
def test_every_parameter_is_real_and_has_a_role(model, options):
    layer = bench.layer(model, **options)
    params, roles = layer.init(0), layer.layer.roles()
    assert set(params) == set(roles)
    assert set(roles.values()) <= set(LAYER_ROLES)
    assert {value.dtype for value in params.values()} == {np.dtype(np.float64)}
    assert {"dynamics", "output", "skip"} <= set(roles.values())


@pytest.mark.parametrize(("model", "options"), CONFIGURATIONS)
def test_every_trained_parameter_has_a_gradient(model, options):
    layer = bench.layer(model, **options)
    params, u = layer.init(0), draw((2, 9, 64))
    y = layer.apply(params, u)
    assert y.shape == u.shape
    gradients = layer.gradients(params, u, draw(u.shape, 1))
    for name, gradient in gradients.items():
        assert np.isfinite(gradient).all(), name
        if layer.layer.roles().get(name) == "constant":
            assert not gradient.any()
        elif name == "M" and options.get("heads") == 64:
            # rotations of a plane commute, so P cancels: the true gradient is 0, and what is left is rounding
            assert np.max(np.abs(gradient)) < 1e-4 * np.max(np.abs(gradients["B"]))
        else:
            assert gradient.any(), name


FLIPS = {
    "lru": {
        "d_model": 5,
        "d_state": 7,
        "parameterisation": "complex",
        "r_min": 0.5,
        "r_max": 0.9,
        "max_phase": 1.0,
        "gamma": "none",
        "bidirectional": True,
    },
    "rotrnn": {
        "d_model": 5,
        "d_state": 24,
        "heads": 2,
        "gamma_min": 0.5,
        "gamma_max": 0.99,
        "max_phase": 1.0,
        "scheme": "listing",
        "normaliser": "none",
        "bidirectional": True,
    },
    "s4d": {
        "d_model": 5,
        "d_state": 10,
        "A_init": "inv",
        "discretization": "bilinear",
        "dt_min": 1e-2,
        "dt_max": 0.5,
        "train_B": True,
        "bidirectional": True,
        "offset": True,
        "n_ssm": 2,
    },
    "s5": {
        "d_model": 5,
        "d_state": 16,
        "blocks": 1,
        "conj_sym": False,
        "discretization": "bilinear",
        "C_init": "complex_normal",
        "dt_min": 1e-2,
        "dt_max": 0.5,
        "clip_eigs": True,
        "bidirectional": True,
    },
}


def observed(model, options):
    """What can be seen of a layer: its parameters at the start, and what it makes of an input with them."""
    layer = bench.layer(model, **{"d_model": 4} | SIZES[model] | options)
    params = layer.init(0)
    if model == "s5":
        params["Lambda_re"][0] = 0.1  # where clip_eigs acts
    y = layer.apply(params, draw((1, 9, layer.layer.d_model)), backend="reference", dtype="float64")
    return layer.layer.state_reals, {name: value.shape for name, value in params.items()}, params, y


@pytest.mark.parametrize(("model", "option"), [(model, option) for model in MODELS for option in FLIPS[model]])
def test_no_option_is_accepted_and_ignored(model, option):
    assert set(FLIPS[model]) == {field.name for field in dataclasses.fields(bench.layer(model).layer)}
    base = {"bidirectional": True} if option == "offset" else {}  # of whose reversed half it is
    plain, flipped = observed(model, base), observed(model, base | {option: FLIPS[model][option]})
    if option in ("d_model", "d_state", "bidirectional", "train_B", "conj_sym"):
        assert plain[1] != flipped[1]
        size = [sum(np.prod(shape) for shape in shapes.values()) for _, shapes, *_ in (plain, flipped)]
        assert size[0] < size[1]
    if option in ("d_state", "bidirectional", "conj_sym"):
        assert plain[0] < flipped[0]
    if option == "train_B":  # the same map, with a parameter more
        np.testing.assert_array_equal(flipped[2]["B"], np.broadcast_to([1.0, 0.0], (4, 4, 2)))
    elif option == "parameterisation":  # the same map at the start, from other parameters
        assert flipped[1].keys() ^ plain[1].keys() == {"nu_log", "theta_log", "Lambda_re", "Lambda_im"}
        np.testing.assert_allclose(flipped[-1], plain[-1], rtol=0, atol=1e-13)
    elif option == "n_ssm":  # the same map at the start, from fewer parameters
        assert (plain[1]["A_imag"], flipped[1]["A_imag"]) == ((4, 4), (2, 4))
        np.testing.assert_array_equal(plain[-1], flipped[-1])
    else:
        assert plain[-1].shape != flipped[-1].shape or not np.allclose(plain[-1], flipped[-1])


def test_normalisers_follow_what_they_are_said_to_follow():
    """B of the system, after the dynamics have moved and after B has been doubled."""

    def input_of(model, params, **options):
        return np.abs(reference.system(bench.layer(model, d_model=4, **SIZES[model], **options).layer, params).B)

    wanted = {  # does it change as Lambda moves, and how does it scale with B
        ("lru", "gamma", "trained"): (False, 2),
        ("lru", "gamma", "tied"): (True, 2),
        ("lru", "gamma", "none"): (False, 2),
        ("rotrnn", "normaliser", "trained"): (True, 1),
        ("rotrnn", "normaliser", "frozen"): (False, 2),
        ("rotrnn", "normaliser", "none"): (False, 2),
    }
    for (model, option, value), (follows, scale) in wanted.items():
        options = {option: value}
        params = bench.layer(model, d_model=4, **SIZES[model], **options).init(0)
        before = input_of(model, params, **options)
        dynamics = "nu_log" if model == "lru" else "gamma_log"
        moved = input_of(model, params | {dynamics: params[dynamics] + 0.1}, **options)
        assert np.allclose(moved, before) != follows, (model, value)
        inputs = ("B_re", "B_im") if model == "lru" else ("B",)
        doubled = input_of(model, params | {name: 2 * params[name] for name in inputs}, **options)
        np.testing.assert_allclose(doubled, scale * before, rtol=1e-12)
    # normalised, frozen and tied ones start equal
    for model, option, values in (
        ("lru", "gamma", ("trained", "tied")),
        ("rotrnn", "normaliser", ("trained", "frozen")),
    ):
        first, second = (
            input_of(model, bench.layer(model, d_model=4, **SIZES[model], **{option: value}).init(0), **{option: value})
            for value in values
        )
        np.testing.assert_allclose(first, second, rtol=1e-12)


def test_default_layers_carry_the_same_state_but_s4d():
    found = {model: bench.layer(model).layer.state_reals for model in MODELS}
    assert found == {"lru": 128, "rotrnn": 128, "s5": 128, "s4d": 64 * 64}
    for model in MODELS:
        assert bench.layer(model, bidirectional=True).layer.state_reals == 2 * found[model]


def test_only_a_bidirectional_layer_has_no_state_to_step():
    layer = bench.layer("lru", d_model=4, d_state=3, bidirectional=True)
    params, u = layer.init(0), draw((1, 5, 4))
    for call in (
        lambda: layer.step(params, u[:, 0]),
        lambda: layer.states(params, u),
        lambda: layer.apply(params, u, return_state=True),
    ):
        with pytest.raises(bench.Unsupported, match="bidirectional"):
            call()


# Numbers at the edge of what they can hold.


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_gradients_stay_finite_when_gamma_rounds_to_one(backend):
    layer = bench.layer("rotrnn", d_model=3, d_state=4, heads=1)
    params, u = layer.init(0), draw((1, 9, 3))
    params["B"] = np.ones((1, 4, 3))
    for gamma_log in (-30.0, -18.0, -17.0, -1.0, 5.0):
        params["gamma_log"] = np.full((1, 1), gamma_log)
        found = layer.gradients(params, u, u, backend=backend)
        wanted = layer.gradients(params, u, u, backend="torch", dtype="float64")
        for name, gradient in found.items():
            assert np.isfinite(gradient).all(), (name, gamma_log)
            # those of M and theta cancel; at 5 gamma is 4e-65, which is 0 in float32
            if name not in ("M", "theta") and (name, gamma_log) != ("gamma_log", 5):
                error = np.max(np.abs(gradient - wanted[name])) / np.max(np.abs(wanted[name]))
                assert error < 1e-4, (name, gamma_log)  # nine steps of float32 rounding, and 1 - gamma^2 loses none


@pytest.mark.parametrize("backend", ["torch", "jax"])
@pytest.mark.parametrize("gamma", ["trained", "tied"])
def test_gradients_stay_finite_when_lambda_rounds_to_one(backend, gamma):
    layer = bench.layer("lru", d_model=3, d_state=2, gamma=gamma)
    params, u = layer.init(0), draw((1, 9, 3))
    for nu_log in (-30.0, -18.0, -17.0, 5.0):
        params["nu_log"] = np.full(2, nu_log)
        assert all(np.isfinite(value).all() for value in layer.gradients(params, u, u, backend=backend).values())


@pytest.mark.parametrize("backend", ["torch", "jax"])
@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_the_size_of_B_does_not_matter_to_rotrnn(backend, size):
    """Nor do its square and its inverse square overflow float32, which ends at 3e38."""
    layer = bench.layer("rotrnn", d_model=3, d_state=8, heads=2)
    params, u = layer.init(0), draw((1, 9, 3))
    scaled = params | {"B": size * params["B"]}
    y, wanted = layer.apply(scaled, u, backend=backend), layer.apply(params, u, backend=backend)
    np.testing.assert_allclose(y, wanted, rtol=0, atol=1e-5 * np.max(np.abs(wanted)))  # B is rounded anew
    found, wanted = (layer.gradients(p, u, u, backend=backend) for p in (scaled, params))
    wanted["B"] = wanted["B"] / size
    for name, gradient in found.items():
        assert np.isfinite(gradient).all()
        np.testing.assert_allclose(gradient, wanted[name], rtol=0, atol=1e-4 * np.max(np.abs(wanted[name])))


numbers = st.floats(-60, 60)
"""exp of it neither over- nor underflows float32, which ends at exp(88)."""


@settings(max_examples=100, deadline=None, derandomize=True)
@given(nu_log=numbers, theta_log=numbers, theta=st.floats(-1e6, 1e6))
def test_lru_and_rotrnn_are_stable_whatever_their_parameters(nu_log, theta_log, theta):
    lru = bench.layer("lru", d_model=1, d_state=1, gamma="none")
    rotrnn = bench.layer("rotrnn", d_model=1, d_state=2, heads=1)
    for layer, moved in (
        (lru, {"nu_log": np.array([nu_log]), "theta_log": np.array([theta_log])}),
        (rotrnn, {"gamma_log": np.array([[nu_log]]), "theta": np.array([[theta]])}),
    ):
        params = layer.init(0) | moved
        # a rounded cosine and sine, squared and added, may exceed 1 by their rounding
        assert np.abs(reference.system(layer.layer, params).Lambda) <= 1 + 4 * np.finfo(float).eps
        single = {name: value.astype(np.float32) for name, value in params.items()}
        assert bench.backends.torch.system(layer.layer, single).Lambda.abs().item() <= 1 + 4 * EPS32


@pytest.mark.parametrize("model", ["lru", "rotrnn"])
def test_large_gradient_steps_do_not_leave_the_unit_circle(model):
    layer = bench.layer(model, d_model=4, **SIZES[model])
    module = layer_module(layer.layer, layer.init(0))
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    rng = np.random.default_rng(0)
    for _ in range(20):
        u, target = (torch.tensor(rng.standard_normal((4, 50, 4)), dtype=torch.float32) for _ in range(2))
        optimizer.zero_grad()
        ((module(u) - target) ** 2).mean().backward()
        optimizer.step()
    system = bench.backends.torch.system(layer.layer, dict(module.named_parameters()))
    assert torch.all(system.Lambda.abs() <= 1 + 4 * EPS32)
    with torch.no_grad():
        assert torch.isfinite(module(torch.randn(1, 16384, 4, generator=torch.Generator().manual_seed(0)))).all()


# What the normalisers promise.


@pytest.mark.parametrize("modulus", [0.9, 0.99, 0.999])
def test_an_impulse_gives_every_lru_state_the_energy_of_its_input_weight(modulus):
    """exp(gamma_log) is sqrt(1 - |lambda|^2): its logarithm in its place would give energies of 3.6 to 4831 times."""
    h, length = 2, 20_000
    layer = bench.layer("lru", d_model=h, d_state=3, r_min=modulus, r_max=modulus)
    params, impulses = layer.init(0), np.zeros((h, length, h))
    impulses[np.arange(h), 0, np.arange(h)] = 1
    B = params["B_re"] + 1j * params["B_im"]
    energies = {
        backend: np.sum(np.abs(layer.states(params, impulses, backend=backend, dtype="float64")) ** 2, axis=1).T
        for backend in ("reference", "torch")
    }
    # 0.999^(2 L) = 4e-18 is cut off
    np.testing.assert_allclose(energies["reference"], np.abs(B) ** 2, rtol=1e-9)
    np.testing.assert_allclose(energies["torch"], energies["reference"], rtol=1e-9)


def rotation_of(params, head):
    """A, P and xi B of one head, from the equations."""
    M, B, theta = params["M"][head], params["B"][head], params["theta"][head]
    gamma = np.exp(-np.exp(params["gamma_log"][head, 0]))
    P = expm(M - M.T)
    turn = block_diag(*[[[np.cos(t), -np.sin(t)], [np.sin(t), np.cos(t)]] for t in theta])
    xi = np.sqrt((1 - gamma**2) / np.trace(B.T @ B))
    return gamma, P @ turn @ P.T, P, xi * B


def test_rotrnn_heads_have_the_energy_of_theory_under_white_noise():
    """E||x_t||^2 = 1 - gamma^{2t}: exactly by the recursion of the covariance, and in a sample."""
    layer = bench.layer("rotrnn", d_model=5, d_state=12, heads=3, gamma_min=0.8, gamma_max=0.99)
    params, length, examples = layer.init(0), 100, 2000
    x = layer.states(params, draw((examples, length, 5)), backend="torch")
    energies = (x.reshape(examples, length, 3, 4).astype(float) ** 2).sum(-1)
    assert layer.layer.groups.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    for head in range(3):
        gamma, A, _, B = rotation_of(params, head)
        theory = 1 - gamma ** (2 * np.arange(1, length + 1))
        covariance = np.zeros((4, 4))
        for t in range(length):
            covariance = gamma**2 * A @ covariance @ A.T + B @ B.T
            assert abs(np.trace(covariance) - theory[t]) < 1e-11  # scipy's P is orthogonal to 1e-14
        error = energies[:, :, head].std(0) / np.sqrt(examples)
        # five standard errors: one time in a million, and times are far from independent
        assert np.all(np.abs(energies[:, :, head].mean(0) - theory) < 5 * error)


@pytest.mark.parametrize("model", MODELS)
def test_the_expected_energy_is_that_of_the_covariance_recursion(model):
    layer = bench.layer(model, d_model=4, **SIZES[model])
    system = reference.system(layer.layer, layer.init(0))
    assert_energy_of(system)
    # on the unit circle, beyond it, and without memory
    moduli = np.resize([1.0, 1.01, 0.0, 1 - 1e-12, 0.5], system.Lambda.size).reshape(system.Lambda.shape)
    assert_energy_of(system._replace(Lambda=moduli.astype(complex)))


def assert_energy_of(system):
    times = [1, 2, 3, 10, 200]
    weights = np.abs(system.B) ** 2 if system.Lambda.ndim == 2 else np.sum(np.abs(system.B) ** 2, axis=1)
    energy, wanted = np.zeros(system.Lambda.shape), []
    for t in range(1, max(times) + 1):
        energy = np.abs(system.Lambda) ** 2 * energy + weights
        if t in times:
            wanted.append(energy.sum())
    # log |lambda| near 1 keeps 4 of 16 digits of 1e-12, which 200 steps multiply
    np.testing.assert_allclose(white_noise_energy(system, times), wanted, rtol=1e-10)


# The LRU's parameterisations.


def as_parameters(Lambda, parameterisation):
    if parameterisation == "complex":
        return {"Lambda_re": Lambda.real, "Lambda_im": Lambda.imag}
    nu, theta = -np.log(np.abs(Lambda)), np.angle(Lambda) % (2 * np.pi)
    if parameterisation == "exponential":
        return {"nu": nu, "theta": theta}
    return {"nu_log": np.log(nu), "theta_log": np.log(theta)}


def complex_lru(Lambda, seed=0):
    """B, C and D for these eigenvalues, gamma_log, u of length 40, and the y that a plain loop makes of it all."""
    n, rng = len(Lambda), np.random.default_rng(seed)
    shared = {name: rng.standard_normal((n, 3)) for name in ("B_re", "B_im")}
    shared |= {name: rng.standard_normal((3, n)) for name in ("C_re", "C_im")}
    shared |= {"D": rng.standard_normal(3), "gamma_log": rng.standard_normal(n)}
    u, x = rng.standard_normal((2, 40, 3)), np.zeros((2, n), complex)
    B = np.exp(shared["gamma_log"])[:, None] * (shared["B_re"] + 1j * shared["B_im"])
    y = np.empty_like(u)
    for t in range(40):
        x = x * Lambda + u[:, t] @ B.T
        y[:, t] = (x @ (shared["C_re"] + 1j * shared["C_im"]).T).real + shared["D"] * u[:, t]
    return shared, u, y


@pytest.mark.parametrize("backend", ["reference", "torch", "jax"])
@pytest.mark.parametrize("parameterisation", EIGENVALUES)
def test_equal_eigenvalues_make_equal_outputs_in_every_parameterisation(parameterisation, backend):
    Lambda = np.array([0.99 * np.exp(3j), 0.9 * np.exp(-0.2j), 0.5j, -0.7, 1e-3 * np.exp(1j)])
    shared, u, wanted = complex_lru(Lambda)
    layer = bench.layer("lru", d_model=3, d_state=5, parameterisation=parameterisation)
    y = layer.apply(shared | as_parameters(Lambda, parameterisation), u, backend=backend, dtype="float64")
    np.testing.assert_allclose(y, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())


@pytest.mark.parametrize("backend", ["torch", "jax"])
@pytest.mark.parametrize("parameterisation", ["exponential", "complex"])
def test_free_eigenvalues_may_leave_the_disc(parameterisation, backend):
    """Beyond the unit circle, on it and, where it can be written, at 0: outputs and gradients."""
    Lambda = np.array([1.05 * np.exp(2j), np.exp(-1j), 0 if parameterisation == "complex" else 0.5])
    shared, u, wanted = complex_lru(Lambda)
    layer = bench.layer("lru", d_model=3, d_state=3, parameterisation=parameterisation)
    params, cotangent = shared | as_parameters(Lambda, parameterisation), draw(u.shape, 1)
    y = layer.apply(params, u, backend=backend, dtype="float64")
    np.testing.assert_allclose(y, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())

    found = layer.gradients(params, u, cotangent, backend=backend, dtype="float64")
    _, fields, _ = reference.adjoint(reference.system(layer.layer, params), u, cotangent)
    slope = fields.Lambda  # with respect to the real part, + i times that to the imaginary part
    parts = {"Lambda_re": slope.real, "Lambda_im": slope.imag}
    if parameterisation == "exponential":  # dLambda = Lambda (-d nu + i d theta), and dy = Re(conj(slope) dLambda)
        turned = slope.conj() * Lambda
        parts = {"nu": -turned.real, "theta": -turned.imag}
    for name, part in parts.items():
        np.testing.assert_allclose(found[name], part, rtol=0, atol=1e-12 * np.abs(slope).max())


@pytest.mark.parametrize("parameterisation", EIGENVALUES)
def test_what_lambda_comes_from_is_dynamics(parameterisation):
    one, other = {
        "stable": ("nu_log", "theta_log"), "exponential": ("nu", "theta"), "complex": ("Lambda_re", "Lambda_im"),
    }[parameterisation]  # fmt: skip
    layer = bench.layer("lru", d_model=4, parameterisation=parameterisation).layer
    assert {name for name, role in layer.roles().items() if role == "dynamics"} == {one, other}
    roles = Network(layer=layer, depth=1, inputs=5, tokens=True, classes=2).roles()
    recipe = Recipe(steps=1, batch=1, recurrent_factor=0.5, weight_decay=0.1, moved=f"{one}:fast dynamics:slow-decayed")
    groups = recipe.groups(roles)
    assert [groups[f"blocks.0.layer.{name}"] for name in (one, other)] == [(1.0, 0.0), (0.5, 0.1)]


# RotRNN and the LRU.


def test_a_rotrnn_is_an_lru_with_moduli_tied_within_heads():
    rotrnn = bench.layer("rotrnn", d_model=5, d_state=12, heads=3, gamma_min=0.8, gamma_max=0.99)
    params, u = rotrnn.init(0), draw((2, 50, 5))
    B, C, Ps = [], [], []
    for head in range(3):
        _, _, P, scaled = rotation_of(params, head)
        turned = P.T @ scaled
        B.append(turned[0::2] + 1j * turned[1::2])
        read = params["C"][:, 4 * head : 4 * head + 4] @ P
        C.append(read[:, 0::2] - 1j * read[:, 1::2])
        Ps.append(P)
    B, C = np.concatenate(B), np.concatenate(C, axis=1)
    lru = bench.layer("lru", d_model=5, d_state=6)
    tied = {
        "nu_log": np.repeat(params["gamma_log"][:, 0], 2),
        "theta_log": np.log(params["theta"].ravel() % (2 * np.pi)),
        "gamma_log": np.zeros(6),
        "B_re": B.real,
        "B_im": B.imag,
        "C_re": C.real,
        "C_im": C.imag,
        "D": params["D"],
    }
    for backend in ("reference", "torch"):
        options = {"backend": backend, "dtype": "float64"}
        w = lru.states(tied, u, **options)
        np.testing.assert_allclose(rotrnn.apply(params, u, **options), lru.apply(tied, u, **options), atol=1e-12)
        np.testing.assert_allclose(rotrnn.states(params, u, coordinates="diagonal", **options), w, atol=1e-12)
        pairs = np.stack([w.real, w.imag], -1).reshape(2, 50, 3, 4)
        own = np.einsum("hij,bthj->bthi", np.stack(Ps), pairs).reshape(2, 50, 12)
        np.testing.assert_allclose(rotrnn.states(params, u, **options), own, atol=1e-12)


def test_an_lru_is_a_rotrnn_with_heads_of_size_two():
    lru = bench.layer("lru", d_model=5, d_state=6, r_min=0.5, r_max=0.99)
    params, u = lru.init(0), draw((2, 50, 5))
    rotrnn = bench.layer("rotrnn", d_model=5, d_state=12, heads=6)
    B = np.stack([params["B_re"], params["B_im"]], axis=1)
    gamma = np.exp(-np.exp(params["nu_log"]))
    xi = np.sqrt((1 - gamma**2) / np.sum(B**2, axis=(1, 2)))
    factor = np.exp(params["gamma_log"]) / xi  # the size of B has no effect in a RotRNN, so it moves into C
    same = {
        "theta": np.exp(params["theta_log"])[:, None],
        "gamma_log": params["nu_log"][:, None],
        "M": np.zeros((6, 2, 2)),
        "B": B,
        "C": np.stack([factor * params["C_re"], -factor * params["C_im"]], axis=2).reshape(5, 12),
        "D": params["D"],
    }
    for backend in ("reference", "torch"):
        options = {"backend": backend, "dtype": "float64"}
        np.testing.assert_allclose(rotrnn.apply(same, u, **options), lru.apply(params, u, **options), atol=1e-12)
        x = rotrnn.states(same, u, **options).reshape(2, 50, 6, 2)
        w = lru.states(params, u, **options)
        np.testing.assert_allclose(factor * (x[..., 0] + 1j * x[..., 1]), w, atol=1e-12)


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_heads_have_equal_norms_in_both_coordinates(backend):
    layer = bench.layer("rotrnn", d_model=5, d_state=12, heads=3)
    params, u = layer.init(0), draw((2, 20, 5))
    options = {"backend": backend, "dtype": "float64"}
    x = layer.states(params, u, **options).reshape(2, 20, 3, 4)
    w = layer.states(params, u, coordinates="diagonal", **options).reshape(2, 20, 3, 2)
    np.testing.assert_allclose(np.sum(x**2, -1), np.sum(np.abs(w) ** 2, -1), rtol=1e-12)


@pytest.mark.parametrize("backend", ["torch", "jax"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-13), ("float32", 1e-5)])
def test_rotations_are_rotations(backend, dtype, tolerance):
    """exp of a skew matrix of norm s is squared log2(s) times, each of which doubles the rounding: 2^3 * 4 of them."""
    layer = bench.layer("rotrnn", d_model=4, d_state=128, heads=32).layer
    network = Network(layer=layer, depth=1, inputs=3, tokens=True, classes=2)
    trainer = bench.backends.load(backend).Trainer(
        network, network.initial("rotrnn", 0), Recipe(steps=1, batch=1), dtype, "cpu"
    )
    (found,) = trainer.diagnostics()
    assert set(found) == {"orthogonality_error", "determinant_error"}
    assert 0 < found["orthogonality_error"] < tolerance
    assert found["determinant_error"] < tolerance
    # and what is no rotation is seen: M that breaks P
    weights = network.initial("rotrnn", 0)
    weights["blocks.0.layer.M"][0, 0, 1] = 1e6
    broken = bench.backends.load(backend).Trainer(network, weights, Recipe(steps=1, batch=1), "float32", "cpu")
    assert broken.diagnostics()[0]["orthogonality_error"] > 1e-3


# Padding.


@pytest.mark.parametrize(
    ("model", "backend", "bidirectional"),
    [(model, "torch", bidirectional) for model in MODELS for bidirectional in (False, True)]
    + [("lru", "jax", True), ("s4d", "jax", True)],
)
def test_padding_and_company_do_not_change_an_answer(model, backend, bidirectional):
    layer = bench.layer(model, d_model=8, **SIZES[model], bidirectional=bidirectional).layer
    network = Network(layer=layer, depth=2, inputs=18, tokens=True, classes=10)
    trainer = bench.backends.load(backend).Trainer(
        network, network.initial(model, 0), Recipe(steps=1, batch=1), "float32", "cpu"
    )
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 18, 20).astype(np.int32)

    def logits(*rows, to):
        inputs = np.stack([np.pad(row, (0, to - len(row))) for row in rows])
        lengths = np.array([len(row) for row in rows], np.int32)
        return trainer.logits(Batch(inputs, lengths, np.zeros(len(rows), np.int32)))[0]

    alone = logits(tokens, to=20)
    other = rng.integers(0, 18, 256).astype(np.int32)
    noise = rng.integers(0, 18, (1, 64)).astype(np.int32)
    noise[0, :20] = tokens
    ends = np.array([20], np.int32), np.zeros(1, np.int32)
    for padded in (
        logits(tokens, to=64),
        trainer.logits(Batch(noise, *ends))[0],  # whatever stands in the padding
        logits(tokens, other, to=256),
    ):
        np.testing.assert_allclose(padded, alone, rtol=0, atol=1e-5)  # float32 logits near 1, other FFT sizes
    assert np.max(np.abs(logits(tokens[:19], to=20) - alone)) > 1e-3  # what is no padding counts


@pytest.mark.parametrize("backend", ["reference", "torch", "jax"])
def test_what_lies_beyond_its_length_never_reaches_an_earlier_output(backend):
    layer = bench.layer("lru", d_model=3, d_state=4, bidirectional=True)
    params, u = layer.init(0), draw((2, 9, 3))
    lengths = np.array([9, 5])
    changed = u.copy()
    changed[1, 5:] = np.nan
    options = {"lengths": lengths, "backend": backend, "dtype": "float64"}
    y, other = layer.apply(params, u, **options), layer.apply(params, changed, **options)
    np.testing.assert_array_equal(y[0], other[0])
    np.testing.assert_array_equal(y[1, :5], other[1, :5])
    alone = layer.apply(params, u[1:, :5], backend="reference", dtype="float64")
    np.testing.assert_allclose(y[1:, :5], alone, rtol=0, atol=1e-13)

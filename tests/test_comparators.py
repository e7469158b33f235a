"""The layers that others are compared with: each against its equations, in both frameworks, and in the suites."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import bench
from bench import backends, conformance, matching, plan, registry
from bench.arrays import ArrayLayer
from bench.backends.reference import ops
from bench.conformance.oracle import LoopOracle, has_loop
from bench.contract import Unsupported
from bench.measure.cost import layer_cost
from bench.measure.workload import Workload
from bench.network import Network
from bench.recipe import GROUP_OF, Recipe
from bench.training import layer_with_state
from models.dense_linear import DenseLinear
from models.gru import GRU
from models.lru import LRU
from models.rnn import RNN
from models.s4 import S4, dense, kernel
from models.transformer import Transformer

DATA = Path(__file__).parent / "data"
SMALL = {
    "dense-linear": DenseLinear(d_model=3, d_state=5),
    "gru": GRU(d_model=3, d_state=5),
    "rnn": RNN(d_model=3, d_state=5),
    "s4": S4(d_model=3, d_state=6),
    "transformer": Transformer(d_model=3, d_state=8, heads=2),
}
EXACT = 1e-12
"""Of the largest entry: the same sums in another order, in float64."""

each_layer = pytest.mark.parametrize("layer", SMALL.values(), ids=SMALL)
each_backend = pytest.mark.parametrize("backend", ["torch", "jax"])

pytestmark = pytest.mark.usefixtures("quick_compilation")


def draw(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape)


def error(found, wanted):
    return np.max(np.abs(found - wanted)) / np.max(np.abs(wanted))


def stepwise(face, params, u, backend):
    """y by single steps."""
    decode, state, found = face.decoder(params, backend=backend, dtype="float64"), None, []
    for t in range(u.shape[1]):
        y, state = decode(u[:, t], state)
        found.append(y)
    return np.stack(found, 1)


# Equations: each layer's loop against another source.


def test_the_gru_is_torchs_own_with_an_output_matrix():
    layer = SMALL["gru"]
    params, u = layer.initial(np.random.default_rng(0)), draw(2, 9, 3)
    own = torch.nn.GRU(3, 5, batch_first=True, dtype=torch.float64)
    own.load_state_dict({name: torch.tensor(value) for name, value in params.items() if name != "C"})
    with torch.no_grad():
        h, _ = own(torch.tensor(u))
    assert error(layer.loop(params, u), h.numpy() @ params["C"].T) < EXACT


def test_the_rnn_is_torchs_own_with_an_output_matrix():
    layer = SMALL["rnn"]
    params, u = layer.initial(np.random.default_rng(0)) | {"b": draw(5)}, draw(2, 9, 3)
    own = torch.nn.RNN(3, 5, batch_first=True, dtype=torch.float64)
    names = {"weight_ih_l0": "B", "weight_hh_l0": "W", "bias_ih_l0": "b"}
    state = {theirs: torch.tensor(params[ours]) for theirs, ours in names.items()}
    own.load_state_dict(state | {"bias_hh_l0": torch.zeros(5, dtype=torch.float64)})
    with torch.no_grad():
        h, _ = own(torch.tensor(u))
    assert error(layer.loop(params, u), h.numpy() @ params["C"].T) < EXACT


def test_the_dense_recurrence_is_a_sum_over_powers_of_its_matrix():
    layer = SMALL["dense-linear"]
    p, u = layer.initial(np.random.default_rng(0)), draw(2, 9, 3)
    wanted = u * p["D"]
    for t in range(9):
        for s in range(t + 1):
            wanted[:, t] += u[:, s] @ (p["C"] @ np.linalg.matrix_power(p["W"], t - s) @ p["B"]).T
    assert error(layer.loop(p, u), wanted) < EXACT


def test_attention_is_a_weighted_mean_of_earlier_values_and_depends_on_distances():
    layer = SMALL["transformer"]
    p, u = layer.initial(np.random.default_rng(0)), draw(2, 9, 3)
    q, k, v = ((u @ p[name].T).reshape(2, 9, 2, 4) for name in ("W_q", "W_k", "W_v"))
    mixed = np.zeros((2, 9, 2, 4))
    for b, t, head in np.ndindex(2, 9, 2):
        scores = np.zeros(t + 1)
        for s, i in np.ndindex(t + 1, 2):
            angle = (t - s) / 10000.0 ** (i / 2)
            (x, y), (x_, y_) = q[b, t, head, [i, i + 2]], k[b, s, head, [i, i + 2]]
            scores[s] += (np.cos(angle) * (x * x_ + y * y_) - np.sin(angle) * (y * x_ - x * y_)) / 2
        weights = np.exp(scores) / np.exp(scores).sum()
        mixed[b, t, head] = weights @ v[b, : t + 1, head]
    assert error(layer.loop(p, u), mixed.reshape(2, 9, 8) @ p["W_o"].T) < EXACT


def test_the_blocks_of_the_attention_loop_change_nothing(monkeypatch):
    layer = SMALL["transformer"]
    p, u = layer.initial(np.random.default_rng(0)), draw(2, 9, 3)
    whole = layer.loop(p, u)
    monkeypatch.setattr("models.transformer.BLOCK", 4)
    assert error(layer.loop(p, u), whole) < EXACT


@pytest.fixture(scope="module")
def published():
    """Parameters and kernel as the public code of S4 gives them."""
    with np.load(DATA / "s4_kernel_legs.npz") as arrays:
        A, P, B, C = (arrays[name] for name in ("A", "P", "B", "C"))
        parts = {name: np.stack([z.real, z.imag], -1) for name, z in {"P": P[0], "B": B, "C": C}.items()}
        params = {"log_dt": np.log(arrays["dt"]), "log_A_real": np.log(-A.real), "A_imag": A.imag, "D": np.zeros(4)}
        return params | parts, arrays["kernel"]


@pytest.mark.parametrize("length", [64, 37, 2000])  # the last is computed at another power of two
def test_the_kernel_of_s4_is_the_public_codes(published, length):
    params, wanted = published
    found = kernel(params, length, ops, np)
    assert found.shape == (4, length)
    shared = min(length, 64)
    np.testing.assert_allclose(found[:, :shared], wanted[:, :shared], rtol=0, atol=1e-9)  # the project's tolerance


@each_backend
def test_s4_gives_the_public_kernel_as_its_answer_to_an_impulse(published, backend):
    params, wanted = published
    face = ArrayLayer(S4(d_model=4, d_state=16))
    u = np.zeros((1, 64, 4))
    u[:, 0] = 1
    found = [face.apply(params, u, backend=backend, dtype="float64")]
    if backend == "torch":  # steps in jax are compared with the loop below
        found.append(stepwise(face, params, u, backend))
    for y in found:
        np.testing.assert_allclose(y[0].T, wanted, rtol=0, atol=1e-9)  # the project's tolerance


def test_the_dense_matrices_of_s4_give_the_kernel_and_are_the_bilinear_ones(published):
    params, wanted = published
    A, B, C, _ = dense(params, ops, np)
    powers = np.stack([np.einsum("hn,hnm,hm->h", C, np.linalg.matrix_power(A, step), B) for step in range(64)], 1)
    np.testing.assert_allclose(powers, wanted, rtol=0, atol=1e-9)
    P, Lambda = params["P"] @ [1, 1j], -np.exp(params["log_A_real"]) + 1j * params["A_imag"]
    for channel, dt in enumerate(np.exp(params["log_dt"])):
        full = np.concatenate([P[channel], P[channel].conj()])
        rates = np.diag(np.concatenate([Lambda[channel], Lambda[channel].conj()])) - np.outer(full, full.conj())
        continuous = np.sort_complex(np.linalg.eigvals(rates))
        wanted_poles = np.sort_complex((1 + dt / 2 * continuous) / (1 - dt / 2 * continuous))
        assert error(np.sort_complex(np.linalg.eigvals(A[channel])), wanted_poles) < 1e-9  # HiPPO is far from normal


def test_s4_starts_as_hippo_legs():
    """Its poles are -1 .. -N, and its answer to an impulse is that of the matrix in its own coordinates."""
    N = 6
    layer = S4(d_model=1, d_state=N, dt_min=0.01, dt_max=0.01)
    params = layer.initial(np.random.default_rng(0))
    n = np.arange(N)
    root = np.sqrt(2 * n + 1)
    legs = -np.tril(np.outer(root, root), -1) - np.diag(n + 1.0)
    A, B, _, _ = dense(params, ops, np)
    poles = (1 - 0.005 * (n + 1)) / (1 + 0.005 * (n + 1))
    np.testing.assert_allclose(np.sort(np.linalg.eigvals(A[0]).real), np.sort(poles), rtol=0, atol=1e-9)
    own = np.linalg.solve(np.eye(N) - 0.005 * legs, np.column_stack([np.eye(N) + 0.005 * legs, 0.01 * root]))
    for step in range(4):  # lengths do not depend on the coordinates
        x, x_ = np.linalg.matrix_power(A[0], step) @ B[0], np.linalg.matrix_power(own[:, :N], step) @ own[:, N]
        np.testing.assert_allclose(2 * np.sum(x**2), np.sum(x_**2), rtol=1e-9)


# Modules and decoders against the loop.


@each_backend
@each_layer
def test_outputs_steps_and_gradients_are_those_of_the_loop(layer, backend):
    face = ArrayLayer(layer)
    params, u, cotangent = face.init(0), draw(2, 9, 3), draw(2, 9, 3)[::-1]
    wanted = layer.loop(params, u)
    assert error(face.apply(params, u, backend=backend, dtype="float64"), wanted) < EXACT
    assert error(stepwise(face, params, u, backend), wanted) < EXACT
    found = face.gradients(params, u, cotangent, backend=backend, dtype="float64")
    assert found.keys() == {*params, "u"}
    for name, gradient in found.items():
        assert gradient.any(), name
    errors = LoopOracle(layer, params).gradient_errors(found, u, cotangent)
    assert errors.keys() == found.keys()
    assert max(errors.values()) < 1e-8  # what `bench check` allows: differences of y keep 1e-9 where it hardly moves


@pytest.mark.parametrize("length", [1, 2, 3])
@each_layer
def test_short_sequences(layer, length):
    face = ArrayLayer(layer)
    params, u = face.init(0), draw(1, length, 3)
    assert error(face.apply(params, u, backend="torch", dtype="float64"), layer.loop(params, u)) < EXACT


@each_backend
@each_layer
def test_a_sequence_without_steps_is_refused(layer, backend):
    module = backends.load(backend).layer_module(layer, layer.initial(np.random.default_rng(0)))
    u = np.zeros((1, 0, 3), np.float32)
    with pytest.raises(ValueError, match="length must be at least 1, not 0"):
        module(torch.tensor(u) if backend == "torch" else u)


@each_layer
def test_float32_and_bfloat16_keep_their_digits_and_their_dtype(layer):
    face = ArrayLayer(layer)
    params, u = face.init(0), draw(2, 9, 3)
    wanted = layer.loop(params, u)
    assert error(face.apply(params, u, backend="torch"), wanted) < 2e-5  # ten roundings of 6e-8 and 6e-6 of S4's kernel
    module = backends.load("torch").layer_module(layer, params, "bfloat16")
    y = module(torch.tensor(u).bfloat16())
    assert y.dtype == torch.bfloat16
    assert {p.dtype for p in module.parameters()} == {torch.float32}
    assert error(y.detach().double().numpy(), wanted) < 3e-2  # 2^-9 = 2e-3, several times


@each_layer
def test_later_inputs_padding_and_other_examples_change_nothing(layer):
    face = ArrayLayer(layer)
    params, u = face.init(0), draw(2, 9, 3)
    y = face.apply(params, u, dtype="float64")
    moved = u.copy()
    moved[0, 5:] += 1
    found = face.apply(params, moved, dtype="float64", lengths=np.array([5, 9]))
    assert error(found[0, :5], y[0, :5]) < EXACT
    assert error(found[1], y[1]) < EXACT
    assert error(face.apply(params, u[:1, :5], dtype="float64")[0], y[0, :5]) < EXACT


@each_layer
def test_a_module_leaves_the_arrays_it_is_made_from_alone(layer):
    params = layer.initial(np.random.default_rng(0))
    module = backends.load("torch").layer_module(layer, params, "float64")
    assert {name: tuple(p.shape) for name, p in module.named_parameters()} == {k: v.shape for k, v in params.items()}
    with torch.no_grad():
        for p in module.parameters():
            p.add_(1)
    again = layer.initial(np.random.default_rng(0))
    assert all(np.array_equal(params[name], again[name]) for name in params)


def test_the_states_of_a_dense_recurrence_are_for_others_to_use_complex_ones_too():
    W, v = draw(4, 4) + 1j * draw(4, 4, 1)[..., 0], draw(2, 5, 4) + 1j
    wanted, h = [], np.zeros((2, 4), complex)
    for t in range(5):
        h = h @ W.T + v[:, t]
        wanted.append(h)
    found = backends.load("torch").dense_states(torch.tensor(W), torch.tensor(v))
    assert error(found.numpy(), np.stack(wanted, 1)) < EXACT
    found = backends.load("jax").dense_states(W.astype(np.complex64), v.astype(np.complex64))
    assert error(np.asarray(found), np.stack(wanted, 1)) < 1e-5  # complex64


# Options, initial values, roles.


def test_a_dense_matrix_starts_with_the_radius_that_is_asked():
    for radius in (0.99, 0.5):
        params = DenseLinear(d_model=3, d_state=20, radius=radius).initial(np.random.default_rng(0))
        assert np.abs(np.linalg.eigvals(params["W"])).max() == pytest.approx(radius)
    W = DenseLinear(d_model=3, d_state=400, radius=0).initial(np.random.default_rng(0))["W"]
    assert W.var() == pytest.approx(1 / 400, rel=0.02)  # of 160,000 numbers: 0.4 % is one deviation


@pytest.mark.parametrize(
    ("cls", "options", "text"),
    [
        (GRU, {"d_state": 0}, "d_state must be at least 1, not 0"),
        (RNN, {"d_state": 0}, "d_state must be at least 1, not 0"),
        (DenseLinear, {"d_state": 0}, "d_state must be at least 1, not 0"),
        (DenseLinear, {"radius": -1.0}, "radius must not be negative, but is -1.0"),
        (S4, {"d_state": 5}, "d_state must be even, for conjugate pairs, not 5"),
        (S4, {"dt_min": 0.2}, "not dt_min = 0.2, dt_max = 0.1"),
        (Transformer, {"heads": 3}, "not heads = 3, d_state = 128"),
        (Transformer, {"heads": 0}, "not heads = 0, d_state = 128"),
        (Transformer, {"d_state": 12, "heads": 4}, "not heads = 4, d_state = 12"),  # heads of 3, which has no pairs
        (Transformer, {"base": 1.0}, "base must be above 1, not 1.0"),
    ],
)
def test_what_cannot_be_honoured_is_refused(cls, options, text):
    with pytest.raises(ValueError, match=text):
        cls(d_model=4, **options)


@each_layer
def test_recurrent_parameters_train_at_the_small_rate_without_decay(layer):
    network = Network(layer=layer, depth=1, inputs=4, tokens=True, classes=2)
    recipe = Recipe(steps=1, batch=1)
    groups = recipe.groups(network.roles())
    assert groups.keys() == network.initial("any", 0).keys()
    outputs = {"C", "D", "W_q", "W_k", "W_v", "W_o"}
    for name, role in layer.roles().items():
        slow = GROUP_OF[role] == "slow"
        assert slow == (name not in outputs)
        wanted = (recipe.recurrent_factor, 0.0) if slow else (1.0, recipe.weight_decay)
        assert groups[f"blocks.0.layer.{name}"] == wanted


def test_recurrent_layers_carry_as_many_numbers_as_the_models_and_attention_more_with_every_step():
    for cls in (GRU, RNN, DenseLinear):
        assert cls(d_model=64).state_reals == LRU(d_model=64).state_reals == 128
        assert cls(d_model=64).state_at(1000) == 128
    assert S4(d_model=64).state_reals == 64 * 64
    assert Transformer(d_model=64).state_at(1000) == 1000 * Transformer(d_model=64).state_reals == 1000 * 2 * 128


def test_importing_them_imports_no_framework():
    names = "dense_linear, gru, rnn, s4, transformer"
    code = f"import sys; from models import {names}; print({{'torch', 'jax', 'flax'}} & sys.modules.keys())"
    root = Path(bench.__file__).resolve().parent.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# In the suites.


@pytest.mark.parametrize("mode", ["forward", "train", "decode"])
@each_layer
def test_each_has_a_program_for_every_mode(layer, mode):
    work = Workload(layer=layer, depth=2, part="layer", mode=mode, batch=2, length=5)
    program = backends.load("torch").Program(work, work.weights("any", 0), work.inputs(np.random.default_rng(0)),
                                             "float32", "cpu")  # fmt: skip
    program.build()
    program.place()
    program.launch()
    program.wait()


@each_backend
def test_decoding_in_a_program_stands_at_the_position_that_was_asked(backend):
    """Steps before it are made when the program is placed; what comes after it is written over the last."""
    layer = SMALL["transformer"]
    work = Workload(layer=layer, depth=1, part="layer", mode="decode", batch=2, length=5)
    inputs = work.inputs(np.random.default_rng(0))
    weights = work.weights("any", 0)
    program = backends.load(backend).Program(work, weights, inputs, "float32", "cpu")
    program.build()
    program.place()
    params = {name.removeprefix("blocks.0.layer."): value for name, value in weights.items()}
    wanted = layer.loop(params, np.repeat(inputs["u"], 5, 1).astype(np.float64))[:, -1]
    for _ in range(2):
        program.launch()
        program.wait()
        y = program.result if backend == "torch" else program.result[1]
        assert error(np.asarray(y), wanted) < 1e-5  # float32


@each_layer
@pytest.mark.parametrize("mode", ["forward", "train", "decode"])
def test_costs_are_known_and_grow_with_the_batch(layer, mode):
    one, two = (layer_cost(layer, mode, batch, 64, 1000, 4) for batch in (1, 2))
    assert 0 < one.flops < two.flops <= 2 * one.flops
    assert 0 < one.moved < two.moved <= 2 * one.moved


def test_attention_costs_with_the_square_of_the_length_and_a_gru_with_the_length():
    def flops(layer, length):
        return layer_cost(layer, "forward", 1, length, 0, 4).flops

    assert flops(SMALL["gru"], 2000) == 2 * flops(SMALL["gru"], 1000)
    assert 3.5 < flops(SMALL["transformer"], 20000) / flops(SMALL["transformer"], 10000) < 4


@pytest.mark.parametrize("name", SMALL)
def test_each_reaches_the_size_of_a_model(name):
    cls, target = type(SMALL[name]), matching.count(LRU(d_model=16))
    options, reached = matching.match(cls, {}, 16, "params", target, 100)
    assert matching.count(cls(**options, d_model=16)) == reached
    step = {"s4": 2 * 16 * 4, "transformer": 8 * 4 * 16}.get(name, 0.1 * target)  # what one step of d_state adds
    assert abs(reached - target) <= step


def test_timings_are_verified_against_the_loop_and_a_wrong_module_is_not(monkeypatch):
    layer = SMALL["rnn"]
    asked = {"model": "rnn", "backend": "torch", "dtype": "float32", "device": "cpu", "batch": 3, "length": 9}
    verdict = conformance.verify(layer, **asked)
    assert verdict.verified, verdict
    assert 0 < verdict.output_error < 1e-5
    assert 0 < verdict.gradient_error < 1e-5
    right = sys.modules["models.rnn"]._torch_outputs
    monkeypatch.setattr("models.rnn._torch_outputs", lambda p, u: right(p, 1.01 * u))
    assert "above the limit of 0.0002: y " in conformance.verify(layer, **asked | {"length": 10}).reason


def test_a_longer_sequence_is_verified_at_the_longest_loop(monkeypatch):
    monkeypatch.setattr("bench.conformance.verification.LONGEST_LOOP", 6)
    asked = {"model": "gru", "backend": "torch", "dtype": "float64", "device": "cpu", "batch": 1}
    assert conformance.verify(SMALL["gru"], **asked, length=50).length == 6
    assert conformance.verify(SMALL["gru"], **asked, length=6).length is None


def test_a_layer_that_is_diagonal_needs_no_loop():
    assert not has_loop(LRU(d_model=3))
    assert all(has_loop(layer) for layer in SMALL.values())


@each_layer
def test_the_norm_of_a_state_that_is_not_diagonal_is_not_known(layer):
    network = Network(layer=layer, depth=1, inputs=4, tokens=True, classes=2)
    with pytest.raises(Unsupported, match=f"{type(layer).__name__} is no diagonal layer"):
        layer_with_state(network)


def test_comparators_take_part_only_where_they_are_named(monkeypatch):
    assert all(layer.comparator for layer in SMALL.values())
    monkeypatch.setattr(LRU, "comparator", True)
    assert "lru" not in registry.built_in("model")
    assert {"rotrnn", "s4d", "s5"} <= set(registry.built_in("model"))
    request = plan.Request.parse(suite="throughput", backends="torch")
    assert "lru" not in {cell.model for cell in plan.cells(request, "cpu", "quick")}


@pytest.mark.parametrize("name", ["gru", "transformer"])
def test_the_conformance_suite_passes_them(name, own_registry):
    small = type(SMALL[name])
    options = {"d_state": 8, "heads": 2} if name == "transformer" else {"d_state": 5}
    fields = [(key, type(value), dataclasses.field(default=value)) for key, value in options.items()]
    cls = dataclasses.make_dataclass(small.__name__, fields, bases=(small,), frozen=True, kw_only=True)
    bench.register.model("small")(cls)
    rows = conformance.check("small", device="cpu", lengths=(1, 3, 9), dtypes=["float64"], backends=["torch"])
    assert {row.check for row in rows if row.status == "failed"} == set()
    assert {row.check for row in rows if row.status == "not asked"} == {
        "forward = convolution", "state handed over", "state as declared", "torch = jax",
    }  # fmt: skip

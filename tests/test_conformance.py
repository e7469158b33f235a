"""The conformance suite: its oracle, that right layers pass, and that each wrong one fails where it is wrong."""

import json
from dataclasses import dataclass

import jax
import numpy as np
import pytest
import torch

import bench
from bench import backends, conformance, registry
from bench.backends import reference
from bench.conformance import checks, oracle

SYSTEMS = ["lru", "rotrnn", "s4d", "s5[bidirectional=true]", "s4d[bidirectional=true]"]


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def torch_system_gradients(system, u, cotangent, lengths):
    """The same gradients by torch's automatic differentiation of a plain loop in complex128."""
    leaves = [torch.tensor(np.asarray(x), requires_grad=True) for x in system if x is not None]
    inputs = torch.tensor(u, requires_grad=True)
    Lambda, B, C, D, *rest = leaves

    def read(C, u):
        x, outputs = torch.zeros(len(u), *Lambda.shape, dtype=torch.complex128), []
        for t in range(u.shape[1]):
            v = u[:, t].to(B.dtype) @ B.T if Lambda.ndim == 1 else B * u[:, t, :, None]
            x = Lambda * x + v
            outputs.append((x @ C.T if Lambda.ndim == 1 else (C * x).sum(-1)).real)
        return torch.stack(outputs, 1)

    y = read(C, inputs) + D * inputs
    if rest:
        inside = torch.arange(u.shape[1])[None, :, None] < torch.tensor(lengths)[:, None, None]
        y = y + read(rest[0], (inputs * inside).flip(1)).flip(1)
    (y * torch.tensor(cotangent)).sum().backward()
    return y.detach().numpy(), [leaf.grad.numpy() for leaf in leaves], inputs.grad.numpy()


@pytest.mark.parametrize("length", [1, 2, 17])
@pytest.mark.parametrize("model", SYSTEMS)
def test_the_adjoint_loop_gives_the_gradients_of_automatic_differentiation(model, length):
    layer = bench.layer(model, d_model=3)
    system = reference.system(layer.layer, layer.init(0))
    u, cotangent = draw(2, 3, length, 3)
    lengths = np.array([length, max(1, length - 5), 1])
    y, fields, du = reference.adjoint(system, u, cotangent, lengths)
    wanted_y, wanted, wanted_du = torch_system_gradients(system, u, cotangent, lengths)
    # two float64 computations of sums over at most 17 steps: some 1e-14 of the largest entry
    for found, right in zip(
        [y, du, *[x for x in fields if x is not None]], [wanted_y, wanted_du, *wanted], strict=True
    ):
        np.testing.assert_allclose(found, right, atol=1e-12 * np.abs(right).max())


@pytest.mark.parametrize("model", SYSTEMS)
def test_the_adjoint_loop_gives_the_slope_of_the_loss(model):
    layer = bench.layer(model, d_model=3)
    system = reference.system(layer.layer, layer.init(0))
    u, cotangent = draw(2, 2, 40, 3)
    _, fields, du = reference.adjoint(system, u, cotangent)

    def loss(step):
        moved = system._replace(
            **{name: x + step * directions[name] for name, x in system._asdict().items() if name in directions}
        )
        return np.sum(cotangent * reference.adjoint(moved, u + step * moved_u, cotangent)[0])

    rng = np.random.default_rng(1)
    directions = {}
    for name, x in system._asdict().items():
        if x is not None:
            real = rng.standard_normal(x.shape)
            directions[name] = real + 1j * rng.standard_normal(x.shape) if np.iscomplexobj(x) else real
    moved_u = rng.standard_normal(u.shape)
    step = 1e-6
    slope = (loss(step) - loss(-step)) / (2 * step)
    along = [np.sum((getattr(fields, name).conj() * d).real) for name, d in directions.items()]
    # central differences: step^2 times third derivatives of 40 steps, and 1e-16 / step of rounding
    np.testing.assert_allclose(sum(along) + np.sum(du * moved_u), slope, rtol=1e-6)


# The checks themselves.


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Arrays are small here: threads of torch would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def quick_compilation():
    """Half the time for jax: what is tested is the checks. Compiled as users get them, layers are in other tests."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


LENGTHS = (2, 33)
"""Enough to see every fault here; jax compiles each anew."""


def by_status(rows):
    return {status: {row.check for row in rows if row.status == status} for status in ("passed", "failed", "not asked")}


@pytest.fixture(scope="module")
def wrong_layers(plugins):
    registry.load_file(plugins / "wrong.py")


def test_a_built_in_layer_passes_every_check_in_both_backends(quick_compilation):
    """The others: tests/system."""
    rows = conformance.check("lru", dtypes=["float32"], device="cpu", lengths=LENGTHS)
    assert [row for row in rows if row.status == "failed"] == []
    assert {row.backend for row in rows} == {"", "torch", "jax", "torch, jax"}
    assert {row.check for row in rows if row.status == "passed"} >= conformance.CHECKS.keys()
    for row in rows:
        assert row.status == "not asked" or row.measured <= row.limit


OUTPUTS = {"forward = oracle", "forward = convolution", "error against float64"}
WRONG = {
    "wrong-swapped": OUTPUTS | {"gradients = oracle"},
    "wrong-transposed": OUTPUTS | {"gradients = oracle"},
    "wrong-log-gamma": OUTPUTS | {"gradients = oracle"},
    "wrong-adjoint": {"gradients = oracle"},
    "wrong-anti-causal": OUTPUTS | {"gradients = oracle", "causality", "lengths", "padding in a network"},
    "wrong-padding": {"lengths", "padding in a network"},
    "wrong-shared-state": OUTPUTS | {"gradients = oracle", "batch invariance"},
    "wrong-group": {"optimiser groups"},
    "wrong-large-batches": {"batch invariance"},
    "wrong-one-position": OUTPUTS | {"gradients = oracle", "causality"},
    "wrong-kept-state": {"determinism", "padding in a network"},
}
WHERE = {
    "wrong-swapped": ("forward = oracle", "first at length 2 from t = 1 on"),  # one step combines nothing
    "wrong-transposed": ("forward = oracle", "first at length 2 from t = 0 on"),
    "wrong-log-gamma": ("forward = oracle", "first at length 2 from t = 0 on"),
    "wrong-adjoint": ("gradients = oracle", "above the limit: nu_log, theta_log"),  # all others are right
    "wrong-anti-causal": ("causality", "y changes from t = 7 on when u changes from t = 8 on"),  # where it is largest
    "wrong-padding": ("lengths", "another input from length 2 on"),
    "wrong-shared-state": ("batch invariance", "example"),
    "wrong-group": ("optimiser groups", "scale has no role"),
    "wrong-large-batches": ("batch invariance", "examples of a batch of 5 in pairs"),
    "wrong-one-position": ("causality", "y changes from t = 2 on when u changes from t = 3 on, length 33"),
    "wrong-kept-state": ("determinism", "y of one module, after another input"),
}


@pytest.mark.parametrize("model", WRONG)
def test_a_wrong_layer_fails_where_it_is_wrong_and_nowhere_else(model, wrong_layers):
    rows = conformance.check(model, backends=["torch"], dtypes=["float32"], device="cpu", lengths=LENGTHS)
    found = by_status(rows)
    assert found["failed"] == WRONG[model]
    assert found["not asked"] <= {
        "torch = jax",
        "causality",
        "steps = oracle",
        "state handed over",
        "state as declared",
    }
    assert [row.status for row in rows] == sorted(
        (row.status for row in rows), key=["failed", "passed", "not asked"].index
    )
    check, text = WHERE[model]
    (row,) = [row for row in rows if row.check == check]
    assert text in row.where
    assert not row.measured <= row.limit


def test_the_oracle_sees_one_wrong_entry_of_a_gradient():
    layer = bench.layer("s5[d_state=8,blocks=1]", d_model=4).layer
    params = layer.initial(np.random.default_rng(0))
    u, cotangent = draw(2, 2, 50, 4)
    judge = oracle.Oracle(layer, params)
    expected = judge.expected(u, cotangent)
    found = backends.load("torch").gradients(layer, params, u, cotangent, dtype="float64")
    assert max(judge.gradient_errors(found, expected).values()) < 1e-8  # two float64 computations
    for name in [*params, "u"]:
        wrong = found | {name: found[name].copy()}
        index = np.unravel_index(np.argmax(np.abs(wrong[name])), wrong[name].shape)
        wrong[name][index] *= 1.01
        errors = judge.gradient_errors(wrong, expected)
        assert max(errors, key=errors.get) == name
        assert errors[name] > 2e-4  # the limit in float32
        assert sum(error > 1e-8 for error in errors.values()) == 1
        wrong[name][index] = np.nan
        assert np.isnan(judge.gradient_errors(wrong, expected)[name])


def test_a_recurrence_that_grows_is_compared_as_far_as_the_dtype_reaches():
    rows = conformance.check("dense-rnn", backends=["torch"], dtypes=["float32"], device="cpu", lengths=(1, 33, 1000))
    (row,) = [row for row in rows if row.check == "forward = oracle"]
    assert row.status == "passed"
    assert "from there on y is too large for float32" in row.where
    grown = 2.0 ** np.arange(200).reshape(1, 200, 1)  # float32 ends at 2^128; compared is what is a million times less
    assert checks._fitting(grown, "float32") == 109
    assert checks._fitting(-grown, "bfloat16") == 109
    assert checks._fitting(grown, "float64") == 200
    assert checks._fitting(np.full((1, 3, 1), np.nan), "float32") == 1


def test_what_float32_makes_of_a_slow_system_is_no_fault_of_the_scan():
    """|lambda| up to 0.9999: Lambda in float32 moves outputs more than the loop does, however exact that is."""
    options = "lru[r_min=0.999,r_max=0.9999,d_state=8]"
    layer = bench.layer(options, d_model=4).layer
    params = reference.round_to(layer.initial(np.random.default_rng(0)), "float32")
    judge = oracle.Oracle(layer, params)
    u, cotangent = draw(2, 1, 4000, 4)
    expected = judge.expected(u, cotangent)
    rounding = judge.rounding("float32", u, cotangent, expected)
    assert rounding["C_re"] < rounding["theta_log"] < 1e-2  # some 4000 steps times 6e-8 times the phase
    assert rounding["theta_log"] > 1e-5
    assert max(judge.rounding("float64", u, cotangent, expected).values()) == 0
    asked = configuration(layer, batch=2, length=4000)
    verdict = conformance.verify(**asked)
    assert verdict.verified, verdict


def test_what_a_layer_takes_out_of_its_gradient_is_not_expected():
    """RotRNN takes the largest entry of B, which cancels, and a frozen normaliser out of its gradients."""
    layer = bench.layer("rotrnn[d_state=8,heads=2,normaliser=frozen]", d_model=4).layer
    params = layer.initial(np.random.default_rng(0))
    judge = oracle.Oracle(layer, params)
    u, cotangent = draw(2, 1, 9, 4)
    expected = judge.expected(u, cotangent)
    assert set(expected.slopes) == set(params) - {"xi"}
    found = backends.load("torch").gradients(layer, params, u, cotangent, dtype="float64")
    assert max(judge.gradient_errors(found, expected).values()) < 1e-8


@pytest.mark.parametrize("model", SYSTEMS)
def test_convolution_with_the_impulse_response_is_the_loop(model):
    layer = bench.layer(model, d_model=3)
    system = reference.system(layer.layer, layer.init(0))
    u = draw(2, 30, 3)
    wanted = layer.apply(layer.init(0), u, backend="reference", dtype="float64")
    found = conformance.convolved(system, u)
    np.testing.assert_allclose(found, wanted, atol=1e-12 * np.abs(wanted).max())  # powers of Lambda in float64


def test_a_layer_of_another_kind_is_checked_without_an_oracle(own_registry):
    @bench.register.model("gated")
    @dataclass(frozen=True, kw_only=True)
    class Gated(bench.Layer):
        """x_t = z x_{t-1} + (1 - z) tanh(W u_t), z = sigmoid(V u_t): no linear system with constant Lambda."""

        def initial(self, rng):
            return {name: rng.standard_normal((self.d_model, self.d_model)) for name in "VW"}

        def roles(self):
            return {"V": "dynamics", "W": "input"}

        @property
        def state_reals(self):
            return self.d_model

        def torch_module(self, params):
            module = torch.nn.Module()
            for name, value in params.items():
                module.register_parameter(name, torch.nn.Parameter(torch.tensor(value)))

            def forward(u, lengths=None):
                x, outputs = torch.zeros_like(u[:, 0]), []
                for t in range(u.shape[1]):
                    z = torch.sigmoid(u[:, t] @ module.V)
                    x = z * x + (1 - z) * torch.tanh(u[:, t] @ module.W)
                    outputs.append(x)
                return torch.stack(outputs, 1)

            module.forward = forward
            return module

    rows = conformance.check("gated", device="cpu", lengths=LENGTHS)
    found = by_status([row for row in rows if row.backend != "jax" and row.dtype != "bfloat16"])
    assert found["failed"] == set()
    assert found["not asked"] == {
        "forward = oracle", "forward = convolution", "gradients = oracle", "steps = oracle", "state handed over",
        "state as declared", "torch = jax",
    }  # fmt: skip
    other = [(row.check, row.status, row.where) for row in rows if row.backend == "jax"]
    assert other == [("all", "not asked", "Gated has no flax module")] * 2
    (low,) = [row for row in rows if row.backend == "torch" and row.dtype == "bfloat16"]
    assert low.status == "not asked"
    assert "takes no bfloat16" in low.where


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"model": "lru[d_stat=3]"}, "d_state"),
        ({"dtypes": ["float16"]}, "float32"),
        ({"dtypes": []}, "dtypes is empty"),
        ({"backends": ["numpy"]}, "torch"),
        ({"backends": []}, "backend"),
        ({"device": "tpu"}, "allowed are auto, cpu, cuda"),
        ({"lengths": (0, 3)}, "from 1 on"),
    ],
)
def test_what_cannot_be_checked_is_refused(options, text):
    with pytest.raises(ValueError, match=text):
        conformance.check(**{"model": "lru"} | options)


# The verdict on one configuration.


def configuration(layer, **changes):
    return {
        "layer": layer,
        "model": "lru",
        "backend": "torch",
        "dtype": "float32",
        "device": "cpu",
        "batch": 5,
        "length": 100,
    } | changes


@pytest.mark.parametrize("backend", backends.NAMES)
@pytest.mark.parametrize("model", ["lru", "s4d[bidirectional=true]"])
def test_a_right_configuration_is_verified_and_remembered(model, backend, monkeypatch):
    asked = configuration(bench.layer(model, d_model=6).layer, model=model.partition("[")[0], backend=backend)
    monkeypatch.setattr(registry, "code", lambda: {"layer.py": "as it is"})
    verdict = conformance.verify(**asked)
    assert verdict.verified, verdict
    assert 0 < verdict.output_error <= verdict.limit
    assert 0 < verdict.gradient_error <= verdict.limit
    monkeypatch.setattr("bench.conformance.verification._figures", None)  # a second measurement would fail
    assert conformance.verify(**asked) == verdict
    assert not conformance.verify(**asked | {"batch": 4}).verified
    monkeypatch.setattr(registry, "code", lambda: {"layer.py": "changed"})
    assert not conformance.verify(**asked).verified


@pytest.mark.parametrize(
    ("model", "outputs", "gradients"),
    [
        ("wrong-swapped", False, False),
        ("wrong-adjoint", True, False),
        ("wrong-shared-state", False, False),
        ("wrong-padding", True, True),  # no lengths are timed
    ],
)
def test_a_wrong_configuration_is_not_verified(model, outputs, gradients, wrong_layers):
    verdict = conformance.verify(**configuration(bench.layer(model, d_model=6).layer, model=model))
    assert (verdict.output_error <= verdict.limit) == outputs
    assert (verdict.gradient_error <= verdict.limit) == gradients
    assert verdict.verified == (outputs and gradients)
    assert bool(verdict.reason) != verdict.verified


def test_only_one_example_of_many_may_be_wrong(monkeypatch):
    """Every row of the batch is compared, not those alone that the oracle ran on."""
    torch_backend = backends.load("torch")
    right = torch_backend.apply

    def wrong(layer, params, u, **how):
        y = right(layer, params, u, **how)
        y[3] *= 1.01
        return y

    monkeypatch.setattr(torch_backend, "apply", wrong)
    asked = configuration(bench.layer("lru", d_model=6).layer, length=101)
    verdict = conformance.verify(**asked)
    assert not verdict.verified
    assert verdict.reason.startswith("above the limit of 0.0002: y ")


def test_a_layer_without_an_oracle_is_not_verified():
    class Plain(bench.Layer):
        def initial(self, rng):
            return {}

        def roles(self):
            return {}

        state_reals = 0

    verdict = conformance.verify(**configuration(Plain(d_model=6)))
    assert not verdict.verified
    assert verdict.output_error is None
    assert "Plain states no diagonal system" in verdict.reason


@pytest.mark.parametrize("change", [{"dtype": "float16"}, {"backend": "numpy"}])
def test_a_configuration_that_nobody_knows_is_an_error(change):
    with pytest.raises(ValueError, match="unknown"):
        conformance.verify(**configuration(bench.layer("lru", d_model=6).layer, **change))


# The command.


def test_the_command_names_what_is_wrong(bench_here, plugins):
    done = bench_here("check", "wrong-adjoint", "--plugin", plugins / "wrong.py", "--backends", "torch", expect=1)
    head, columns, first = done.stdout.strip().splitlines()[:3]
    assert head.startswith("wrong-adjoint: ")
    assert " 1 failed" in head
    assert columns.split() == ["check", "backend", "dtype", "result", "measured", "limit", "where"]
    assert first.startswith("gradients = oracle")
    assert "failed" in first


def test_the_command_passes_a_layer_of_ones_own(bench_here, plugins):
    done = bench_here("check", "mine", "--plugin", plugins / "mine.py", "--backends", "torch", "--json", expect=0)
    (table,) = json.loads(done.stdout)
    results = {row[0]: row[3] for row in table["rows"]}
    assert results["forward = oracle"] == "passed"
    assert set(results.values()) <= {"passed", "not asked"}


def test_an_unknown_model_is_refused_with_one_line(bench_here):
    assert "did you mean 'lru'?" in bench_here.refused("check", "lruu")

"""The plain-array face: what it takes, and what it refuses before anything is broadcast or cast."""

import numpy as np
import pytest

import bench

BACKENDS = ("reference", "torch", "jax")
LAYER = bench.layer("lru", d_model=6, d_state=8)
PARAMS = LAYER.init(0)
U = np.random.default_rng(0).standard_normal((2, 5, 6))


@pytest.mark.parametrize("backend", BACKENDS)
def test_whole_numbers_are_taken_as_real_ones(backend):
    ones = np.ones((2, 5, 6), int)
    wanted = LAYER.apply(PARAMS, ones.astype(float), backend=backend)
    assert np.array_equal(LAYER.apply(PARAMS, ones, backend=backend), wanted)
    y, _ = LAYER.step(PARAMS, ones[:, 0], backend=backend)
    np.testing.assert_allclose(y, wanted[:, 0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"u": U + 1j}, "u must be real numbers, not complex128"),
        ({"u": U[0]}, r"u must have shape \(batch, length, d_model\) with d_model = 6, not \(5, 6\)"),
        ({"u": U[:, :0]}, r"at least 1, but u has shape \(2, 0, 6\)"),
        ({"params": PARAMS | {"D": np.ones(1)}}, r"D must have shape \(6,\), not \(1,\)"),
        ({"params": PARAMS | {"nu_log": np.ones(1)}}, r"nu_log must have shape \(8,\), not \(1,\)"),
        ({"params": PARAMS | {"D": np.ones(6) * 1j}}, "D must be real"),
        ({"params": PARAMS | {"E": np.ones(1)}}, "params hold E, which the layer does not know"),
        ({"params": {"D": PARAMS["D"]}}, "params lack B_im, B_re, C_im, C_re, gamma_log, nu_log, theta_log"),
        ({"dtype": "float16"}, "dtype must be float32, float64 or bfloat16, not 'float16'"),
        ({"device": "tpu"}, "device must be cpu, cuda or cuda:N, not 'tpu'"),
        ({"lengths": np.array([3])}, r"lengths must have shape \(2,\), one an example, not \(1,\)"),
        ({"lengths": np.array([3, -1])}, r"lengths must be whole numbers from 1 to 5, not \[3, -1\]"),
        ({"lengths": np.array([3, 6])}, r"from 1 to 5, not \[3, 6\]"),
        ({"state": np.zeros((1, 8))}, r"state must have shape \(2, 8\), \(batch, \*Lambda.shape\), not \(1, 8\)"),
    ],
)
def test_what_does_not_fit_is_refused_and_named(backend, change, message):
    call = {"params": PARAMS, "u": U, "backend": backend} | change
    with pytest.raises(ValueError, match=message):
        LAYER.apply(call.pop("params"), call.pop("u"), **call)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_decoder_looks_at_every_step(backend):
    decode = LAYER.decoder(PARAMS, backend=backend)
    _, state = decode(U[:, 0])
    for u, wrong in ((U[:, 0, :5], state), (U[:1, 0], state), (U[:, 0], state[:, :7])):
        with pytest.raises(ValueError, match="must have shape"):
            decode(u, wrong)


@pytest.mark.parametrize("backend", BACKENDS)
def test_states_and_gradients_look_too(backend):
    with pytest.raises(ValueError, match="state must have shape"):
        LAYER.states(PARAMS, U, state=np.zeros((2, 7)), backend=backend)
    with pytest.raises(ValueError, match=r"cotangent has shape|must be torch or jax"):
        LAYER.gradients(PARAMS, U, U[:1], backend=backend)


def test_the_packages_of_the_backends_take_what_bench_layer_returns_and_the_dataclass():
    import jax
    import torch

    from bench.backends import jax as in_jax
    from bench.backends import torch as in_torch

    u = torch.tensor(U)
    with torch.no_grad():
        y = [in_torch.layer_module(layer, PARAMS, "float64")(u).numpy() for layer in (LAYER, LAYER.layer)]
    assert np.array_equal(*y)
    np.testing.assert_allclose(y[0], LAYER.apply(PARAMS, U, dtype="float64"), rtol=1e-12)  # the same program
    for package in (in_torch, in_jax):
        one, other = (package.system(layer, PARAMS) for layer in (LAYER, LAYER.layer))
        assert np.array_equal(np.asarray(one.B), np.asarray(other.B))
        assert package.kernel_name(LAYER) == package.kernel_name(LAYER.layer) != "module"
    # traced alone, as nothing that is compiled can differ
    programs = [str(jax.make_jaxpr(in_jax.layer_function(layer))(PARAMS, U)) for layer in (LAYER, LAYER.layer)]
    assert programs[0] == programs[1]
    assert set(PARAMS) <= set(vars(in_jax.layer_module(LAYER, PARAMS)))


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_what_is_no_layer_is_refused_with_its_name(backend):
    package = bench.backends.load(backend)
    with pytest.raises(ValueError, match=r"layer must be what bench\.layer returns, or a Layer, not 'lru'"):
        package.system("lru", PARAMS)
    with pytest.raises(ValueError, match="not 'lru'"):
        package.layer_module("lru", PARAMS)


@pytest.mark.parametrize("model", ["lru", "s4d"])
@pytest.mark.parametrize(("shape", "message"), [((0, 5), "batch must be at least 1, not 0"),
                                                ((2, 0), "length must be at least 1, not 0")])  # fmt: skip
def test_modules_and_functions_refuse_a_u_that_holds_nothing(model, shape, message):
    import jax
    import torch

    from bench.backends import jax as in_jax
    from bench.backends import torch as in_torch

    layer = bench.layer(model, d_model=6)
    params, u = layer.init(0), np.zeros((*shape, 6), np.float32)
    with pytest.raises(ValueError, match=message):
        in_torch.layer_module(layer, params)(torch.tensor(u))
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(in_jax.layer_function(layer), params, u)


def test_a_scan_of_no_sequences_gives_no_states():
    import torch

    from bench.backends.torch.scan import filtered

    n, (length, batch, d_model) = 4, (20, 0, 3)
    pairs = [tuple(torch.zeros(*shape) for _ in "ri") for shape in ((n,), (n, d_model), (d_model, n))]
    u = torch.zeros(length, batch, d_model, requires_grad=True)
    y = filtered(*pairs, torch.zeros(d_model), u)
    y.sum().backward()
    assert y.shape == u.grad.shape == u.shape

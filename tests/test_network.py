"""The network around the layers, against its equations in numpy: norms, mixes, what is read off at the end."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from scipy import special

import bench
from bench.contract import NOT_ASKED
from bench.network import Network, Structure, layer_weights
from bench.recipe import Recipe
from bench.training import Batch, dropout_masks, losses

pytestmark = pytest.mark.usefixtures("quick_compilation")

BACKENDS = ("torch", "jax")
D_MODEL, TOKENS, CLASSES, LENGTH, BATCH = 6, 7, 3, 12, 4
RECIPE = Recipe(steps=20, batch=BATCH, dropout=0.2, moved="norm:fast-decayed gamma_log:fast")
STRUCTURES = [
    Structure(norm=norm, prenorm=prenorm, mix=mix, momentum=0.9)
    for norm, prenorm, mix in itertools.product(
        ("layer", "batch"), (True, False), ("full_glu", "half_glu1", "half_glu2", "gelu")
    )
]
SOME = [STRUCTURES[3], STRUCTURES[9], STRUCTURES[14]]
"""Each norm, place and half of the mixes once: jax compiles each anew."""


def network_of(structure=None, output="class", depth=2, bidirectional=False):
    layer = bench.layer("lru", d_model=D_MODEL, d_state=4, bidirectional=bidirectional).layer
    return Network(
        layer=layer, depth=depth, inputs=TOKENS, tokens=True, classes=1 if output == "number" else CLASSES,
        structure=structure or Structure(), output=output,
    )  # fmt: skip


def batch_of(output="class", seed=0):
    rng = np.random.default_rng(seed)
    shape = (BATCH, 2) if output == "class of a pair" else (BATCH,)
    lengths = rng.integers(LENGTH // 2, LENGTH + 1, shape).astype(np.int32)
    inputs = rng.integers(0, TOKENS, (*shape, LENGTH)).astype(np.int32)
    targets = rng.integers(0, CLASSES, BATCH).astype(np.int32)
    if output == "class at each position":
        targets = rng.integers(0, CLASSES, (BATCH, LENGTH)).astype(np.int32)
        targets[rng.random(targets.shape) < 0.5] = NOT_ASKED
        targets[:, 0] = 1
    if output == "number":
        targets = rng.random(BATCH).astype(np.float32)
    return Batch(inputs, lengths, targets)


def weights_of(network, seed=0):
    """With norms that do something, and averages that are not those at the start."""
    rng = np.random.default_rng(seed + 1)
    weights = network.initial("lru", seed)
    for name in weights:
        if ".norm." in name or name.endswith(".bias"):
            weights[name] = weights[name] + 0.3 * rng.random(weights[name].shape)
    return weights


def trainer_of(backend, network, weights, dtype="float64", recipe=RECIPE):
    return bench.backends.load(backend).Trainer(network, weights, recipe, dtype, "cpu")


def gelu(x):
    return x * special.ndtr(x)


def dense(w, name, x):
    return x @ w[f"{name}.weight"] + w[f"{name}.bias"]


def normed(w, name, x, inside, structure, statistics):
    """`statistics`, where given, gets the mean and variance of the positions that are inside."""
    if structure.norm == "layer":
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    elif statistics is None:
        mean, variance = w[f"{name}.mean"], w[f"{name}.variance"]
    else:
        mean, variance = x[inside].mean(0), x[inside].var(0)
        statistics[f"{name}.mean"], statistics[f"{name}.variance"] = mean, variance
    return (x - mean) / np.sqrt(variance + 1e-5) * w[f"{name}.scale"] + w[f"{name}.bias"]


def forward(network, w, batch, statistics=None):
    """Logits by the equations, layers by the float64 loop, dropout off."""
    face, s = bench.layer("lru", d_model=D_MODEL, d_state=4), network.structure
    inputs, lengths = batch.inputs.reshape(-1, LENGTH), batch.lengths.reshape(-1)
    inside = np.arange(LENGTH) < lengths[:, None]
    x = w["encoder.weight"][inputs] + w["encoder.bias"]
    for i in range(network.depth):
        block = f"blocks.{i}"
        norm = lambda x: normed(w, f"{block}.norm", x, inside, s, statistics)  # noqa: B023, E731
        z = face.apply(layer_weights(w, i), norm(x) if s.prenorm else x, backend="reference", dtype="float64")
        a = gelu(z)
        if s.mix == "gelu":
            z = a
        else:
            kept = {"full_glu": lambda: dense(w, f"{block}.value", a), "half_glu1": lambda: a, "half_glu2": lambda: z}  # noqa: B023
            z = kept[s.mix]() * special.expit(dense(w, f"{block}.gate", a))
        x = x + z if s.prenorm else norm(x + z)
    if network.output == "class at each position":
        return dense(w, "decoder", x)
    pooled = np.stack([row[:end].mean(0) for row, end in zip(x, lengths, strict=True)])
    if network.output == "class of a pair":
        p, q = pooled[0::2], pooled[1::2]
        pooled = gelu(dense(w, "pair", np.concatenate([p, q, p - q, p * q], -1)))
    return dense(w, "decoder", pooled)


@pytest.mark.parametrize(
    ("backend", "structure"), [("torch", s) for s in STRUCTURES] + [("jax", s) for s in SOME], ids=str
)
def test_a_network_is_its_equations_and_has_the_weights_that_it_uses(backend, structure):
    network = network_of(structure)
    weights, batch = weights_of(network), batch_of()
    assert weights.keys() == network.roles().keys()
    found = trainer_of(backend, network, weights).logits(batch)
    np.testing.assert_allclose(found, forward(network, weights, batch), rtol=0, atol=1e-12)


OUTPUTS = ("class at each position", "class of a pair", "number")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("output", OUTPUTS)
def test_what_is_asked_is_answered_and_the_loss_is_its_mean(backend, output):
    network, batch = network_of(output=output, depth=1), batch_of(output)
    weights = weights_of(network)
    trainer = trainer_of(backend, network, weights, recipe=dataclasses.replace(RECIPE, dropout=0.0))
    logits = trainer.logits(batch)
    np.testing.assert_allclose(logits, forward(network, weights, batch), rtol=0, atol=1e-12)
    each = losses(network, logits, batch.targets)
    counts = (batch.targets != NOT_ASKED).sum(-1) if batch.targets.ndim == 2 else np.ones(BATCH)
    loss, _ = trainer.step(batch, 0.0, None)
    assert loss == pytest.approx((each * counts).sum() / counts.sum(), rel=1e-12)


def test_the_loss_of_an_example_is_the_cross_entropy_or_the_squared_difference():
    logits = np.log(np.array([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]]))
    np.testing.assert_allclose(losses(network_of(), logits, np.array([1, 2])), -np.log([0.5, 0.8]))
    asked = losses(network_of(output="class at each position"), logits[None], np.array([[NOT_ASKED, 0]]))
    np.testing.assert_allclose(asked, -np.log([0.1]))
    np.testing.assert_allclose(losses(network_of(output="number"), np.array([[0.5]]), np.array([0.2])), [0.09])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_batch_norm_sees_what_holds_data_alone_and_keeps_its_averages(backend):
    network = network_of(Structure(norm="batch", momentum=0.9), depth=1)
    weights, batch = weights_of(network), batch_of()
    trainer = trainer_of(backend, network, weights, recipe=dataclasses.replace(RECIPE, dropout=0.0))
    statistics: dict = {}
    each = losses(network, forward(network, weights, batch, statistics), batch.targets)
    loss, _ = trainer.step(batch, 0.0, None)
    assert loss == pytest.approx(each.mean(), rel=1e-12)
    kept = trainer.weights()
    for name, value in statistics.items():
        np.testing.assert_allclose(kept[name], 0.9 * weights[name] + 0.1 * value, rtol=1e-12, err_msg=name)
    # another content of what lies behind the ends changes nothing
    inside = np.arange(LENGTH) < batch.lengths[:, None]
    other = dataclasses.replace(batch, inputs=np.where(inside, batch.inputs, (batch.inputs + 1) % TOKENS))
    again = trainer_of(backend, network, weights, recipe=dataclasses.replace(RECIPE, dropout=0.0))
    assert again.step(other, 0.0, None)[0] == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(again.logits(other), trainer.logits(batch), rtol=1e-12)


def steps(backend, network, count, dtype="float32", trainer=None, first=0):
    trainer = trainer or trainer_of(backend, network, weights_of(network), dtype)
    found = [
        trainer.step(
            batch_of(network.output, step), RECIPE.rate_at(step), dropout_masks(RECIPE, network, 0, step, BATCH)
        )
        for step in range(first, count)
    ]
    return trainer, np.array(found)


def test_torch_and_jax_agree_over_twenty_steps_with_batch_norm_pairs_and_moved_groups():
    network = network_of(Structure(norm="batch", mix="half_glu2"), "class of a pair", bidirectional=True, depth=1)
    (one, ours), (other, theirs) = (steps(backend, network, 20) for backend in BACKENDS)
    np.testing.assert_allclose(ours, theirs, rtol=2e-5)  # a rounding of float32 a step, divided by its own size in Adam
    for name, value in one.weights().items():
        np.testing.assert_allclose(value, other.weights()[name], rtol=0, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_goes_on_from_its_state_bit_for_bit(backend):
    network = network_of(Structure(norm="batch"), depth=1)
    trainer, _ = steps(backend, network, 3)
    state = {name: value.copy() for name, value in trainer.state().items()}
    trainer, wanted = steps(backend, network, 6, trainer=trainer, first=3)
    other = trainer_of(backend, network, weights_of(network, seed=5), "float32")
    other.restore(state)
    other, found = steps(backend, network, 6, trainer=other, first=3)
    np.testing.assert_array_equal(found, wanted)
    for name, value in trainer.weights().items():
        np.testing.assert_array_equal(other.weights()[name], value, err_msg=name)


@pytest.mark.parametrize("backend", BACKENDS)
def test_in_bfloat16_activations_are_rounded_and_parameters_are_not(backend):
    network = network_of(Structure(norm="batch"), depth=1)
    trainer = trainer_of(backend, network, weights_of(network), "bfloat16")
    exact = forward(network, weights_of(network), batch_of())
    found = trainer.logits(batch_of())
    assert 0 < np.abs(found - exact).max() < 2.0**-5 * np.abs(exact).max()  # some roundings of 8 bits in a row
    _, first = steps(backend, network, 3, "bfloat16", trainer)
    assert np.isfinite(first).all()
    assert {value.dtype for value in trainer.weights().values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize("backend", BACKENDS)
def test_bare_layers_are_the_layers_and_a_decoder_of_their_mean(backend):
    layer = bench.layer("lru", d_model=D_MODEL, d_state=4)
    network = Network(
        layer=layer.layer, depth=2, inputs=D_MODEL, tokens=False, classes=CLASSES, structure=Structure(bare=True)
    )
    weights = network.initial("lru", 0)
    assert weights.keys() == network.roles().keys()
    assert {name.partition(".")[0] for name in weights} == {"blocks", "decoder"}
    assert all(".layer." in name for name in weights if name.startswith("blocks"))
    rng = np.random.default_rng(0)
    u, lengths = rng.standard_normal((BATCH, LENGTH, D_MODEL)), np.array([12, 7, 1, 9], np.int32)
    x = u
    for block in (0, 1):
        x = layer.apply(layer_weights(weights, block), x, backend="reference", dtype="float64")
    pooled = np.stack([x[i, :end].mean(0) for i, end in enumerate(lengths)])
    wanted = pooled @ weights["decoder.weight"] + weights["decoder.bias"]
    batch = Batch(u.astype(np.float32), lengths, np.zeros(BATCH, np.int32))
    trainer = trainer_of(backend, network, weights, "float64")
    np.testing.assert_allclose(trainer.logits(batch), wanted, atol=1e-6)  # inputs are float32
    loss, gradient = trainer.step(batch, 1e-3, None)
    assert loss == pytest.approx(losses(network, wanted, batch.targets).mean(), rel=1e-5)
    assert gradient > 0


def test_bare_layers_need_inputs_of_their_width():
    layer = bench.layer("lru", d_model=D_MODEL, d_state=4).layer
    bare = {"layer": layer, "depth": 1, "classes": 2, "structure": Structure(bare=True)}
    with pytest.raises(ValueError, match="bare layers of d_model = 6 are given 5 features"):
        Network(inputs=5, tokens=False, **bare)
    with pytest.raises(ValueError, match="bare layers of d_model = 6 are given tokens"):
        Network(inputs=6, tokens=True, **bare)


def test_wrong_structures_and_moves_are_refused_with_what_is_allowed():
    for wrong, says in (
        ({"norm": "group"}, "norm must be one of layer, batch"),
        ({"mix": "glu"}, "mix must be one of full_glu, half_glu1, half_glu2, gelu"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1, not 1.0"),
    ):
        with pytest.raises(ValueError, match=says):
            Structure(**wrong)
    for moved, says in (
        ("input", "'input' should read NAME:GROUP with one of slow, slow-decayed, fast, fast-decayed"),
        ("input:quick", "should read NAME:GROUP"),
        ("input:slow input:fast", "input is there twice"),
    ):
        with pytest.raises(ValueError, match=says):
            Recipe(steps=1, batch=1, moved=moved)
    with pytest.raises(ValueError, match=r"'gama_log' is neither a role nor a parameter: allowed are B_im, B_re"):
        dataclasses.replace(RECIPE, moved="gama_log:fast").groups(network_of().roles())


def test_a_recipe_moves_roles_and_a_name_goes_before_its_role():
    recipe = Recipe(steps=1, batch=1, recurrent_factor=0.25, weight_decay=0.1,
                    moved="dynamics:fast-decayed theta_log:slow output:slow-decayed norm:fast-decayed")  # fmt: skip
    found = recipe.groups(network_of(Structure(norm="batch"), depth=1).roles())
    own = {name.rpartition(".")[2]: group for name, group in found.items() if ".layer." in name}
    assert own == {"nu_log": (1.0, 0.1), "theta_log": (0.25, 0.0), "gamma_log": (0.25, 0.0), "B_re": (0.25, 0.0),
                   "B_im": (0.25, 0.0), "C_re": (0.25, 0.1), "C_im": (0.25, 0.1), "D": (1.0, 0.1)}  # fmt: skip
    assert found["blocks.0.norm.scale"] == (1.0, 0.1)
    assert found["decoder.bias"] == (1.0, 0.0)
    assert "blocks.0.norm.mean" not in found

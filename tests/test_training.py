"""Networks and their training: torch and jax start equal and stay equal, and a recipe does what it says."""

import dataclasses
import functools
import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from scipy import special

import bench
from bench.backends.jax import training as jax_training
from bench.contract import DiagonalLayer, DiagonalSystem, Layer
from bench.network import NORM_EPSILON, Network, layer_weights
from bench.recipe import Recipe
from bench.training import Batch, dropout_masks

MODELS = ("lru", "rotrnn", "s4d", "s5")
BACKENDS = ("torch", "jax")
SIZES = {
    "lru": {"d_state": 6},
    "rotrnn": {"d_state": 12, "heads": 3, "normaliser": "frozen"},  # with a constant among its parameters
    "s4d": {"d_state": 8, "A_init": "legs"},
    "s5": {"d_state": 8, "blocks": 2},
}
D_MODEL, TOKENS, CLASSES, LENGTH, STEPS = 8, 11, 4, 24, 20
RECIPE = Recipe(steps=STEPS, batch=6, dropout=0.1)


pytestmark = pytest.mark.usefixtures("quick_compilation")


def network_of(model, depth=1, **options):
    layer = bench.layer(model, d_model=D_MODEL, **SIZES[model] | options).layer
    return Network(layer=layer, depth=depth, inputs=TOKENS, tokens=True, classes=CLASSES)


def trainer_of(backend, network, weights, recipe=RECIPE, dtype="float32"):
    return bench.backends.load(backend).Trainer(network, weights, recipe, dtype, "cpu")


def batch_of(seed, size=RECIPE.batch, length=LENGTH):
    rng = np.random.default_rng(seed)
    inputs = rng.integers(0, TOKENS, (size, length)).astype(np.int32)
    lengths = rng.integers(length // 2, length + 1, size).astype(np.int32)
    return Batch(inputs, lengths, rng.integers(0, CLASSES, size).astype(np.int32))


@dataclasses.dataclass(frozen=True)
class Run:
    """A short training run: what each step gave, and the weights at the start, after one step and at the end."""

    losses: np.ndarray
    norms: np.ndarray
    start: dict[str, np.ndarray]
    first: dict[str, np.ndarray]
    end: dict[str, np.ndarray]


def train(model, backend, dtype, seed=0, recipe=RECIPE, depth=1):
    network = network_of(model, depth)
    trainer = trainer_of(backend, network, network.initial(model, seed), recipe, dtype)
    start, first, found = trainer.weights(), None, []
    for step in range(recipe.steps):
        masks = dropout_masks(recipe, network, seed, step, recipe.batch)
        found.append(trainer.step(batch_of(100 * seed + step), recipe.rate_at(step), masks))
        first = trainer.weights() if step == 0 else first
    losses, norms = np.array(found).T
    return Run(losses, norms, start, first, trainer.weights())


def depth_of(model, dtype):
    return 2 if (model, dtype) == ("rotrnn", "float32") else 1


@functools.cache
def trained(model, backend, dtype):
    return train(model, backend, dtype, depth=depth_of(model, dtype))


# Equal starts, equal ways.


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("model", MODELS)
def test_networks_of_one_seed_start_with_equal_weights(model, dtype):
    wanted = network_of(model, depth_of(model, dtype)).initial(model, 0)
    for backend in BACKENDS:
        found = trained(model, backend, dtype).start
        assert set(found) == set(wanted)
        for name, value in wanted.items():
            assert found[name].dtype == dtype
            np.testing.assert_array_equal(found[name], value.astype(dtype), err_msg=name)


TOLERANCE = {"float64": 1e-13, "float32": 1e-5}
"""Of losses near 1.4 and weights near 1. The frameworks do the same operations, but sum in other orders: each step adds
a few roundings, 1e-16 or 1e-7. Adam divides a gradient by its own size, so one that nearly cancels passes on more of
its rounding, and 20 steps add up. What is measured is below 2e-15 and 5e-7."""


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("model", MODELS)
def test_losses_of_torch_and_jax_agree_over_the_first_twenty_steps(model, dtype):
    one, other = (trained(model, backend, dtype) for backend in BACKENDS)
    assert len(one.losses) == STEPS
    np.testing.assert_allclose(one.losses[0], other.losses[0], rtol=0, atol=TOLERANCE[dtype] / 10)
    np.testing.assert_allclose(one.losses, other.losses, rtol=0, atol=TOLERANCE[dtype])
    np.testing.assert_allclose(one.norms, other.norms, rtol=TOLERANCE[dtype])
    for name, value in one.end.items():
        np.testing.assert_allclose(value, other.end[name], rtol=0, atol=TOLERANCE[dtype], err_msg=name)
    assert np.ptp(one.losses) > 0.1  # batches differ, so a loss that is not of its batch would show


@pytest.mark.parametrize("model", MODELS)
def test_first_updates_of_torch_and_jax_agree_in_sign(model):
    one, other = (trained(model, backend, "float64") for backend in BACKENDS)
    for name in one.start:
        updates = [run.first[name] - run.start[name] for run in (one, other)]
        np.testing.assert_array_equal(np.sign(updates[0]), np.sign(updates[1]), err_msg=name)


GROUPS = {
    "lru": {
        "slow": {"nu_log", "theta_log", "gamma_log", "B_re", "B_im"},
        "decayed": {"C_re", "C_im", "D"},
        "constant": set(),
    },
    "rotrnn": {"slow": {"theta", "gamma_log", "M", "B"}, "decayed": {"C", "D"}, "constant": {"xi"}},
    "s4d": {"slow": {"log_dt", "log_A_real", "A_imag", "B"}, "decayed": {"C", "D"}, "constant": set()},
    "s5": {"slow": {"Lambda_re", "Lambda_im", "log_step", "B"}, "decayed": {"C", "D"}, "constant": set()},
}


def expected_groups(model, recipe):
    """{parameter: (rate factor, weight decay)} of a network of depth 1, from the table above."""
    slow, decayed, plain = (recipe.recurrent_factor, 0.0), (1.0, recipe.weight_decay), (1.0, 0.0)
    groups = {f"blocks.0.layer.{name}": slow for name in GROUPS[model]["slow"]}
    groups |= {f"blocks.0.layer.{name}": decayed for name in GROUPS[model]["decayed"]}
    groups |= {f"blocks.0.norm.{name}": plain for name in ("scale", "bias")}
    for dense in ("encoder", "decoder", "blocks.0.value", "blocks.0.gate"):
        groups |= {f"{dense}.weight": decayed, f"{dense}.bias": plain}
    return groups


@pytest.mark.parametrize("model", MODELS)
def test_recurrent_parameters_are_in_the_slow_group_without_decay(model):
    network = network_of(model)
    found = RECIPE.groups(network.roles())
    assert found == expected_groups(model, RECIPE)
    constants = {f"blocks.0.layer.{name}" for name in GROUPS[model]["constant"]}
    assert set(network.initial(model, 0)) == set(found) | constants

    trainer = trainer_of("torch", network, network.initial(model, 0))
    trainer.step(batch_of(0), 0.01, None)
    names = {id(p): name for name, p in trainer.module.named_parameters()}
    in_torch = {names[id(p)]: (factor, decay) for factor, decay, own in trainer.optimizer.groups for p in own}
    assert in_torch == found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("model", MODELS)
def test_the_first_step_of_adamw_is_the_rate_of_each_group(model, backend):
    """w - rate * factor * (g / |g| + decay * w): so both numbers of a group can be read off."""
    run = trained(model, backend, "float64")
    rate = RECIPE.rate_at(0)
    for name, (factor, decay) in expected_groups(model, RECIPE).items():
        start = run.start[name]
        direction = (run.first[name] - start) / (-rate * factor) - decay * start
        moved = np.abs(direction[direction != 0])  # an encoder's row may stand for a token that is not in the batch
        assert len(moved), name
        # g / (|g| + 1e-8) is below 1 for the smallest gradients only
        assert np.max(moved) < 1 + 1e-9, name
        assert np.median(moved) > 0.999, name
    for name in GROUPS[model]["constant"]:
        full = f"blocks.0.layer.{name}"
        np.testing.assert_array_equal(run.end[full], run.start[full])


def test_a_parameter_without_a_known_role_is_an_error():
    with pytest.raises(ValueError, match=r"blocks\.0\.layer\.nu_log.*'dynamic'.*dynamics"):
        RECIPE.groups({"blocks.0.layer.nu_log": "dynamic"})


# The schedule.


def test_the_rate_warms_up_linearly_and_follows_half_a_cosine_to_zero():
    recipe = Recipe(steps=100, batch=1, rate=2.0, warmup=0.1)
    rates = np.array([recipe.rate_at(step) for step in range(100)])
    np.testing.assert_allclose(rates[:10], 2.0 * np.arange(1, 11) / 10, rtol=1e-15)
    np.testing.assert_allclose(rates[9:], 1 + np.cos(np.pi * np.arange(91) / 90), rtol=0, atol=1e-15)
    assert rates[-1] == 0
    assert np.all(np.diff(rates[9:]) < 0)
    assert np.argmax(rates) == 9


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 1000])
def test_the_rate_ends_at_zero_exactly_for_any_number_of_steps(steps):
    for warmup in (0, 0.1, 0.5):
        rates = [Recipe(steps=steps, batch=1, warmup=warmup).rate_at(step) for step in range(steps)]
        assert all(0 <= rate <= 3e-3 for rate in rates)
        if round(warmup * steps) < steps:
            assert rates[-1] == 0
    only_warm = [Recipe(steps=steps, batch=1, rate=1.0, warmup=1).rate_at(step) for step in range(steps)]
    np.testing.assert_allclose(only_warm, np.arange(1, steps + 1) / steps, rtol=1e-15)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("steps", 0),
        ("batch", 0),
        ("rate", -1e-3),
        ("warmup", 1.5),
        ("warmup", -0.1),
        ("dropout", 1.0),
        ("dropout", -0.1),
        ("clip", 0.0),
        ("rate", math.nan),
    ],
)
def test_a_recipe_without_meaning_is_refused(option, value):
    with pytest.raises(ValueError, match=option):
        Recipe(**{"steps": 1, "batch": 1} | {option: value})


# Clipping, and what is not finite.


def first_moments(trainer):
    if isinstance(trainer, bench.backends.torch.Trainer):
        return [trainer.optimizer.first[p].numpy() for p in trainer.trained]
    return [np.asarray(moment) for moment in trainer.moments.mu.values()]


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_scaled_down_to_the_clip_and_never_up(backend):
    """Seen in Adam's first moment, which is 1 - beta1 times the gradient after one step."""
    network = network_of("lru")
    weights, masks = network.initial("lru", 0), np.ones((1, 2, RECIPE.batch, D_MODEL), np.float32)
    norms = []
    for seed in (0, 6):
        trainer = trainer_of(backend, network, weights, dtype="float64")
        _, norm = trainer.step(batch_of(seed), 1e-3, masks)
        kept = np.sqrt(sum(np.sum(moment**2) for moment in first_moments(trainer))) / (1 - RECIPE.beta1)
        assert kept == pytest.approx(min(RECIPE.clip, norm), rel=1e-12)
        norms.append(norm)
    assert norms[0] < 0.9 * RECIPE.clip
    assert norms[1] > 1.1 * RECIPE.clip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Root(DiagonalLayer):
    """y = sqrt(a) u: finite at a = 0, where its gradient is not."""

    def initial(self, rng):
        return {"a": np.full(self.d_model, 4.0)}

    def roles(self):
        return {"a": "skip"}

    def system(self, params, ops):
        zero = 0 * params["a"]
        empty = ops.complex(zero, zero)
        return DiagonalSystem(empty[:1], empty[None], empty[:, None], ops.sqrt(params["a"]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_not_finite_is_reported_and_changes_nothing(backend):
    network = Network(layer=Root(d_model=4), depth=1, inputs=3, tokens=False, classes=2)
    weights, recipe = network.initial("root", 0), Recipe(steps=3, batch=2)
    rng = np.random.default_rng(0)
    lengths, targets = np.array([5, 4], np.int32), np.array([0, 1], np.int32)
    good = Batch(rng.standard_normal((2, 5, 3)).astype(np.float32), lengths, targets)
    bad = Batch(np.where(rng.random((2, 5, 3)) < 0.1, np.nan, good.inputs).astype(np.float32), lengths, targets)

    trainer = trainer_of(backend, network, weights, recipe)
    trainer.step(good, 0.01, None)
    before = trainer.weights()
    loss, norm = trainer.step(bad, 0.01, None)
    assert not math.isfinite(loss)
    assert not math.isfinite(norm)
    assert_equal(trainer.weights(), before)
    after = trainer.step(good, 0.01, None)

    undisturbed = trainer_of(backend, network, weights, recipe)
    undisturbed.step(good, 0.01, None)
    assert undisturbed.step(good, 0.01, None) == after  # the moments are untouched too
    assert_equal(undisturbed.weights(), trainer.weights())

    flat = weights | {"blocks.0.layer.a": np.array([4.0, 0.0, 4.0, 4.0])}
    trainer = trainer_of(backend, network, flat, recipe)
    before = trainer.weights()
    loss, norm = trainer.step(good, 0.01, None)
    assert math.isfinite(loss)
    assert not math.isfinite(norm)
    assert_equal(trainer.weights(), before)


def assert_equal(found, wanted):
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


# What a network computes.


def dense(weights, name, x):
    return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]


def logits_in_numpy(network, weights, batch, masks):
    """The network's formula, with the layer's own loop."""
    x = dense(weights, "encoder", np.eye(TOKENS)[batch.inputs])
    for i in range(network.depth):
        centred = x - x.mean(-1, keepdims=True)
        normed = centred / np.sqrt(centred.var(-1, keepdims=True) + NORM_EPSILON)
        normed = normed * weights[f"blocks.{i}.norm.scale"] + weights[f"blocks.{i}.norm.bias"]
        layer = bench.ArrayLayer(network.layer)
        y = layer.apply(layer_weights(weights, i), normed, lengths=batch.lengths, backend="reference", dtype="float64")
        a = y * 0.5 * (1 + special.erf(y / np.sqrt(2))) * masks[i, 0][:, None]
        x = (
            x
            + dense(weights, f"blocks.{i}.value", a)
            * special.expit(dense(weights, f"blocks.{i}.gate", a))
            * (masks[i, 1][:, None])
        )
    pooled = np.stack([row[:length].mean(0) for row, length in zip(x, batch.lengths, strict=True)])
    return dense(weights, "decoder", pooled)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dropped", ["nothing", "something", "everything"])
def test_the_loss_is_that_of_the_formula_in_numpy(backend, dropped):
    network = network_of("lru")
    weights, batch = network.initial("lru", 0), batch_of(3)
    rng = np.random.default_rng(1)
    for name in weights:  # norms and biases away from 1 and 0
        weights[name] = weights[name] + 0.1 * rng.standard_normal(weights[name].shape)
    masks = {
        "nothing": np.ones((1, 2, RECIPE.batch, D_MODEL), np.float32),
        "something": dropout_masks(RECIPE, network, 0, 0, RECIPE.batch),
        "everything": np.zeros((1, 2, RECIPE.batch, D_MODEL), np.float32),
    }[dropped]
    logits = logits_in_numpy(network, weights, batch, masks.astype(float))
    wanted = np.mean(special.logsumexp(logits, -1) - logits[np.arange(RECIPE.batch), batch.targets])
    trainer = trainer_of(backend, network, weights, dtype="float64")
    if dropped == "nothing":
        np.testing.assert_allclose(trainer.logits(batch), logits, rtol=0, atol=1e-13)
    assert trainer.step(batch, 0.0, masks)[0] == pytest.approx(wanted, rel=1e-13)


def test_dropout_masks_depend_on_seed_and_step_alone():
    network, other = network_of("lru", depth=2), network_of("s4d", depth=2)
    masks = dropout_masks(RECIPE, network, 0, 3, 1000)
    assert masks.shape == (2, 2, 1000, D_MODEL)
    assert masks.dtype == np.float32
    assert set(np.unique(masks).tolist()) == {0.0, float(np.float32(1 / 0.9))}
    # five standard errors of a share of 0.1
    assert abs(np.mean(masks == 0) - 0.1) < 5 * np.sqrt(0.1 * 0.9 / masks.size)
    np.testing.assert_array_equal(masks, dropout_masks(RECIPE, other, 0, 3, 1000))
    for seed, step in ((1, 3), (0, 4)):
        assert np.any(masks != dropout_masks(RECIPE, network, seed, step, 1000))
    assert dropout_masks(dataclasses.replace(RECIPE, dropout=0.0), network, 0, 0, 4) is None


def test_variants_and_depths_start_from_equal_weights():
    plain = network_of("lru").initial("lru", 0)
    tied = network_of("lru", gamma="tied").initial("lru", 0)
    assert_equal(tied, {name: plain[name] for name in tied})
    assert set(plain) - set(tied) == {"blocks.0.layer.gamma_log"}
    deeper = network_of("lru", depth=3).initial("lru", 0)
    assert_equal({name: deeper[name] for name in plain}, plain)
    assert np.any(deeper["blocks.1.layer.B_re"] != deeper["blocks.0.layer.B_re"])
    assert set(deeper) == set(network_of("lru", depth=3).roles())


# The same again, and again.


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_seed_gives_the_same_bits_whatever_came_before(backend):
    zero = trained("lru", backend, "float32")
    one = train("lru", backend, "float32", seed=1)
    again = train("lru", backend, "float32", seed=0)
    np.testing.assert_array_equal(again.losses, zero.losses)
    assert_equal(again.end, zero.end)
    for name in ("encoder.weight", "blocks.0.layer.B_re"):
        assert np.any(one.start[name] != zero.start[name])
    assert np.all(one.losses != zero.losses)


def test_neither_a_seed_nor_a_rate_compiles_anew():
    train("lru", "jax", "float32", seed=0)
    before = jax_training._step._cache_size()
    train("lru", "jax", "float32", seed=2)
    network = network_of("lru")
    trainer = trainer_of("jax", network, network.initial("lru", 5))
    for rate in (0.1, 0.2, np.float64(0.3), 0):
        trainer.step(batch_of(7), rate, dropout_masks(RECIPE, network, 0, 0, RECIPE.batch))
    assert jax_training._step._cache_size() == before


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_survive_a_round_trip_and_are_nobody_elses(backend):
    network = network_of("lru")
    given = network.initial("lru", 0)
    kept = {name: value.copy() for name, value in given.items()}
    masks = np.ones((1, 2, RECIPE.batch, D_MODEL), np.float32)
    trainer = trainer_of(backend, network, given, dtype="float64")
    trainer.step(batch_of(0), 0.01, masks)
    assert_equal(given, kept)  # training does not write into what it was given
    saved = trainer.weights()
    copies = {name: value.copy() for name, value in saved.items()}
    restored = trainer_of(backend, network, saved, dtype="float64")
    assert_equal(restored.weights(), copies)
    loss, _ = trainer.step(batch_of(1), 0.01, masks)
    assert restored.step(batch_of(1), 0.01, masks)[0] == loss
    assert_equal(saved, copies)  # nor into what it has handed out


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_batch_of_one_trains_and_is_evaluated(backend):
    network = network_of("lru")
    trainer = trainer_of(backend, network, network.initial("lru", 0))
    batch = batch_of(0, size=1)
    first, norm = trainer.step(batch, 0.01, dropout_masks(RECIPE, network, 0, 0, 1))
    second, _ = trainer.step(batch, 0.01, dropout_masks(RECIPE, network, 0, 1, 1))
    assert np.isfinite([first, norm, second]).all()
    assert trainer.logits(batch).shape == (1, CLASSES)
    assert np.isfinite(trainer.logits(batch)).all()


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-13), ("float32", 1e-6)])
def test_adamw_is_the_same_tensor_by_tensor_and_foreach(dtype, tolerance):
    """foreach is what torch chooses on a GPU."""
    found = []
    for foreach in (False, True):
        network = network_of("s5")
        trainer = trainer_of("torch", network, network.initial("s5", 0), dtype=dtype)
        trainer.optimizer.foreach = foreach
        for step in range(5):
            trainer.step(batch_of(step), 0.01, None)
        found.append(trainer.weights())
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, rtol=0, atol=tolerance, err_msg=name)


def test_steps_are_those_of_torchs_own_class():
    rng = np.random.default_rng(0)
    values = {name: rng.standard_normal(4) for name in ("slow", "decayed")}
    groups = {"slow": (RECIPE.recurrent_factor, 0.0), "decayed": (1.0, 0.05)}
    ours, theirs = ({name: torch.nn.Parameter(torch.tensor(v)) for name, v in values.items()} for _ in range(2))
    optimizer = bench.backends.torch.training.AdamW(RECIPE, groups, ours)
    classes = torch.optim.AdamW(
        [
            {"params": [theirs[name]], "weight_decay": decay, "lr": 0.01 * factor}
            for name, (factor, decay) in groups.items()
        ],
        betas=(RECIPE.beta1, RECIPE.beta2),
        eps=RECIPE.epsilon,
    )
    for _ in range(7):
        for name in groups:
            ours[name].grad = torch.tensor(rng.standard_normal(4))
            theirs[name].grad = ours[name].grad.clone()
        optimizer.step(0.01)
        classes.step()
    for name, start in values.items():
        assert torch.equal(ours[name], theirs[name])
        assert not torch.equal(ours[name], torch.tensor(start))


# What is measured on the way.


@pytest.mark.parametrize(
    ("model", "length", "backend"),
    [("rotrnn", 70, "torch"), ("rotrnn", 70, "jax"), ("s4d", 150, "torch"), ("s4d", 150, "jax"), ("s4d", 128, "torch")],
)
def test_state_energies_are_the_squared_norms_of_the_states(model, length, backend):
    """Pieces of 64 steps at a time: lengths that are and are not a multiple of them."""
    network = network_of(model)
    weights = network.initial(model, 0)
    trainer = trainer_of(backend, network, weights, dtype="float64")
    batch = batch_of(0, size=2, length=length)
    layer, params = bench.ArrayLayer(network.layer), layer_weights(weights, 0)

    x = dense(weights, "encoder", np.eye(TOKENS)[batch.inputs])
    centred = x - x.mean(-1, keepdims=True)
    inputs = centred / np.sqrt(centred.var(-1, keepdims=True) + NORM_EPSILON)
    states = np.abs(layer.states(params, inputs, backend="reference", dtype="float64")) ** 2
    wanted = states.reshape(2, length, 3 if model == "rotrnn" else 1, -1).sum(-1)
    (found,) = trainer.state_energies(batch)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12 * np.max(wanted))

    noise = np.random.default_rng(0).standard_normal((2, length, D_MODEL))
    states = layer.states(params, noise, coordinates="diagonal", backend="reference", dtype="float64")
    wanted = np.sum(np.abs(states.reshape(2, length, -1)) ** 2, -1)
    (found,) = trainer.white_noise_energies(noise)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12 * np.max(wanted))


def test_layer_gradients_are_norms_over_each_layers_trained_parameters():
    network = network_of("lru", depth=2)
    weights, batch = network.initial("lru", 0), batch_of(0)
    norms, losses = [], []
    for backend in BACKENDS:
        trainer = trainer_of(backend, network, weights, dtype="float64")
        before = trainer.weights()
        loss, found = trainer.loss_and_layer_gradients(batch)
        assert_equal(trainer.weights(), before)
        norms.append(found)
        losses.append(loss)
    np.testing.assert_allclose(norms[0], norms[1], rtol=1e-10)
    assert losses[0] == pytest.approx(losses[1], rel=1e-13)

    module = trainer_of("torch", network, weights, dtype="float64").module
    logits = module(torch.tensor(batch.inputs), torch.tensor(batch.lengths))
    torch.nn.functional.cross_entropy(logits, torch.tensor(batch.targets).long()).backward()
    for block, norm in zip(module.blocks, norms[0], strict=True):
        squares = [p.grad.square().sum() for p in block.layer.parameters()]
        assert norm == pytest.approx(math.sqrt(sum(squares)), rel=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bidirectional_layer_has_no_state_energy(backend):
    network = network_of("lru", bidirectional=True)
    trainer = trainer_of(backend, network, network.initial("lru", 0))
    for measure in (
        lambda: trainer.state_energies(batch_of(0)),
        lambda: trainer.white_noise_energies(np.zeros((1, 5, D_MODEL))),
    ):
        with pytest.raises(bench.Unsupported, match="bidirectional"):
            measure()


# Layers that are no diagonal systems, and parameters that nothing depends on.


class TorchScale(torch.nn.Module):
    def __init__(self, params):
        super().__init__()
        self.scale, self.idle = (torch.nn.Parameter(torch.tensor(params[name])) for name in ("scale", "idle"))

    def forward(self, u, lengths=None):
        return self.scale * u


class FlaxScale(nnx.Module):
    def __init__(self, params):
        self.scale, self.idle = (nnx.Param(jnp.asarray(params[name])) for name in ("scale", "idle"))

    def __call__(self, u, lengths=None):
        return self.scale[...] * u


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale(Layer):
    """y = scale * u, with a parameter more that nothing depends on."""

    def initial(self, rng):
        return {"scale": rng.standard_normal(self.d_model), "idle": rng.standard_normal(3)}

    def roles(self):
        return {"scale": "input", "idle": "output"}

    @property
    def state_reals(self):
        return 0

    def torch_module(self, params):
        return TorchScale(params)

    def flax_module(self, params):
        return FlaxScale(params)


def test_a_layer_of_any_kind_trains_alike_in_both_frameworks():
    network = Network(layer=Scale(d_model=D_MODEL), depth=1, inputs=TOKENS, tokens=True, classes=CLASSES)
    weights = network.initial("scale", 0)
    found = []
    for backend in BACKENDS:
        trainer = trainer_of(backend, network, weights)
        for step in range(3):
            trainer.step(batch_of(step), 0.01, None)
        found.append(trainer.weights())
        with pytest.raises(bench.Unsupported, match="Scale is no diagonal layer"):
            trainer.state_energies(batch_of(0))
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, rtol=0, atol=1e-6, err_msg=name)
    # without a gradient only weight decay is left
    idle = weights["blocks.0.layer.idle"] * (1 - 0.01 * RECIPE.weight_decay) ** 3
    np.testing.assert_allclose(found[0]["blocks.0.layer.idle"], idle, rtol=1e-6)


# Precision.


def test_float32_products_are_equally_exact_in_both_frameworks():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((1024, 1024)).astype(np.float32) for _ in range(2))
    wanted = a.astype(float) @ b.astype(float)
    with jax.default_matmul_precision("highest"):
        in_jax = np.asarray(jnp.asarray(a) @ jnp.asarray(b))
    in_torch = (torch.tensor(a) @ torch.tensor(b)).numpy()
    # sums of 1024 products of numbers near 1: sqrt(1024) * 6e-8 * 3 each; TF32 would be a thousand times worse
    errors = [np.sqrt(np.mean((found - wanted) ** 2)) / np.sqrt(np.mean(wanted**2)) for found in (in_torch, in_jax)]
    assert max(errors) < 1e-6
    assert max(errors) < 10 * min(errors)


@pytest.mark.parametrize(
    ("backend", "read"),
    [
        ("torch", "torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, torch.get_num_threads()"),
        ("jax", "jax.config.jax_default_matmul_precision, jax.config.jax_enable_x64"),
    ],
)
def test_tf32_is_used_only_where_the_dtype_is_called_so(backend, read):
    """In a process of its own, for these are its settings."""
    code = f"import {backend}; import bench.backends.{backend} as b\n" + "\n".join(
        f"b.set_process('{dtype}', 1); print({read})" for dtype in ("float32", "float64", "tf32")
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    wanted = {
        "torch": ["highest False 1", "highest False 1", "high True 1"],
        "jax": ["highest False", "highest True", "tensorfloat32 False"],
    }
    assert done.stdout.splitlines() == wanted[backend]


@pytest.mark.parametrize(
    ("change", "message"), [("B_re", "B_re of LRU has no role"), ("x", "x of LRU has a role, but")]
)
def test_a_parameter_and_a_role_without_the_other_are_an_error(monkeypatch, change, message):
    network = network_of("lru")
    roles = {name: role for name, role in network.layer.roles().items() if name != "B_re"}
    found = roles if change == "B_re" else network.layer.roles() | {"x": "skip"}
    monkeypatch.setattr(type(network.layer), "roles", lambda self: found)
    with pytest.raises(ValueError, match=message):
        network.initial("lru", 0)

"""Networks and their training: torch and jax start equal, train alike, and honour the recipe."""

import dataclasses
import math

import numpy as np
import pytest

import bench
from bench import backends
from bench.network import Network, layer_weights
from bench.recipe import Recipe
from bench.training import Batch, dropout_masks

MODELS = ["rotrnn", "lru", "s5", "s4d"]
SIZES = {"rotrnn": {"d_state": 16, "heads": 4}, "lru": {"d_state": 8}, "s5": {"d_state": 16, "blocks": 2},
         "s4d": {"d_state": 8}}  # fmt: skip
STEPS = 20
RECIPE = Recipe(steps=STEPS, batch=6, rate=1e-2, dropout=0.2, weight_decay=0.1)


def network(model, depth=2, **options):
    layer = bench.layer(model, d_model=12, **SIZES[model] | options).layer
    return Network(layer=layer, depth=depth, inputs=9, tokens=True, classes=5)


def batch(seed, examples=6, length=33):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, length + 1, examples).astype(np.int32)
    return Batch(rng.integers(0, 9, (examples, length)).astype(np.int32), lengths, rng.integers(0, 5, examples))


def trainer(backend, net, recipe=RECIPE, dtype="float32", model="m", seed=0):
    return backends.load(backend).Trainer(net, net.initial(model, seed), recipe, dtype, "cpu")


def train(found, recipe=RECIPE, steps=STEPS):
    net = found.network
    return [
        found.step(batch(step), recipe.rate_at(step), dropout_masks(recipe, net, 0, step, 6)) for step in range(steps)
    ]


@pytest.fixture(scope="module", params=MODELS)
def pair(request):
    """A torch and a jax trainer of one seed in float32, their weights at the start, and what each step returned."""
    net = network(request.param)
    trainers = {backend: trainer(backend, net) for backend in backends.NAMES}
    start = {backend: found.weights() for backend, found in trainers.items()}
    first = {backend: train(found, steps=1) for backend, found in trainers.items()}
    moved = {backend: found.weights() for backend, found in trainers.items()}
    rest = {}
    for backend, found in trainers.items():
        rest[backend] = [
            found.step(batch(step), RECIPE.rate_at(step), dropout_masks(RECIPE, net, 0, step, 6))
            for step in range(1, STEPS)
        ]
    return net, start, moved, {backend: first[backend] + rest[backend] for backend in trainers}


def test_networks_of_one_seed_have_equal_weights(pair):
    net, start, _, _ = pair
    wanted = net.initial("m", 0)
    assert set(start["torch"]) == set(start["jax"]) == set(wanted) == set(net.roles())
    for name, value in wanted.items():
        assert np.array_equal(start["torch"][name], value.astype(np.float32))
        assert np.array_equal(start["jax"][name], value.astype(np.float32))


def test_the_first_losses_and_gradients_agree_in_float32(pair):
    _, _, _, found = pair
    torch, jax = np.array(found["torch"]), np.array(found["jax"])
    # The first loss differs by rounding alone, 6e-8 a number: measured up to 1.1e-7. Adam then divides each gradient by
    # its own size, so that where one is nearly zero its rounding decides on a step: over 20 steps losses were measured
    # to differ by up to 2e-6 and norms of gradients by up to 7e-6.
    np.testing.assert_allclose(torch[0], jax[0], rtol=1e-6)
    np.testing.assert_allclose(torch, jax, rtol=5e-5)
    assert not np.allclose(torch[:, 0], torch[0, 0], rtol=1e-3)  # it does train


def test_the_first_losses_agree_in_float64():
    net = network("rotrnn", depth=1)
    found = [np.array(train(trainer(backend, net, dtype="float64"))) for backend in backends.NAMES]
    np.testing.assert_allclose(*found, rtol=1e-10)


def test_the_first_update_has_the_same_sign_everywhere(pair):
    """A conjugated gradient would move imaginary parts the other way."""
    net, start, moved, _ = pair
    updates = {b: {n: moved[b][n].astype(float) - start[b][n] for n in moved[b]} for b in backends.NAMES}
    for name, role in net.roles().items():
        torch, jax = updates["torch"][name], updates["jax"][name]
        clear = np.abs(torch) > 1e-3 * np.abs(torch).max() if role != "constant" else np.zeros(torch.shape, bool)
        assert role == "constant" or clear.any(), name
        assert np.array_equal(np.sign(torch[clear]), np.sign(jax[clear])), name


@pytest.mark.parametrize("backend", backends.NAMES)
def test_weight_decay_and_rates_follow_the_roles(backend):
    """With zero gradients Adam moves nothing, so what moves is decay alone: rate x factor x decay of the weight."""
    net = network("rotrnn", depth=1, normaliser="frozen")
    recipe = Recipe(steps=10, batch=6, rate=0.5, warmup=0, weight_decay=0.1)
    found = trainer(backend, net, recipe)
    before = found.weights()
    one = batch(0)
    found.step(one, 0.0, None)  # at rate 0 nothing moves
    assert all(np.array_equal(value, before[name]) for name, value in found.weights().items())
    found = trainer(backend, net, dataclasses.replace(recipe, epsilon=1e30))  # a step of Adam is then nothing
    found.step(one, 0.5, None)
    slow = ("dynamics", "step", "normaliser", "input")
    for name, value in found.weights().items():
        role = net.roles()[name]
        decayed = 0.0 if role in (*slow, "norm", "bias", "constant") else 0.5 * 0.1
        np.testing.assert_allclose(value, before[name] * (1 - decayed), rtol=1e-6, atol=1e-20, err_msg=name)


@pytest.mark.parametrize("backend", backends.NAMES)
def test_recurrent_parameters_move_at_the_small_rate(backend):
    """Adam's first step is rate x factor for every clear gradient, whatever its size."""
    net = network("lru", depth=1)
    recipe = Recipe(steps=10, batch=6, weight_decay=0.0, recurrent_factor=0.25, clip=1e9)
    found = trainer(backend, net, recipe)
    before = found.weights()
    found.step(batch(0), 1e-2, None)
    for name, role in net.roles().items():
        step = np.abs(found.weights()[name] - before[name]).max()
        wanted = 1e-2 * (0.25 if role in ("dynamics", "normaliser", "input") else 1)
        assert step == pytest.approx(wanted, rel=2e-3), name


@pytest.mark.parametrize("backend", backends.NAMES)
def test_a_constant_never_moves(backend):
    found = trainer(backend, network("rotrnn", depth=1, normaliser="frozen"))
    before = found.weights()["blocks.0.layer.xi"]
    train(found, steps=3)
    assert np.array_equal(found.weights()["blocks.0.layer.xi"], before)


@pytest.mark.parametrize("model", MODELS)
def test_every_recurrent_parameter_has_the_small_rate_and_no_decay(model):
    recipe = Recipe(steps=1, batch=1, recurrent_factor=0.3, weight_decay=0.07)
    net = network(model)
    groups = recipe.groups(net.roles())
    assert set(groups) == set(net.initial("m", 0))
    recurrent = {name for name, role in net.roles().items() if role in ("dynamics", "step", "normaliser", "input")}
    assert recurrent
    assert all(groups[name] == (0.3, 0.0) for name in recurrent)
    decayed = {name for name, group in groups.items() if group == (1.0, 0.07)}
    assert {"encoder.weight", "decoder.weight", "blocks.0.value.weight", "blocks.1.layer.D"} <= decayed
    assert all(groups[name] == (1.0, 0.0) for name in ("encoder.bias", "blocks.0.norm.scale"))


def test_a_parameter_without_a_known_role_is_an_error():
    with pytest.raises(ValueError, match=r"w has the role 'other': allowed are dynamics"):
        Recipe(steps=1, batch=1).groups({"w": "other"})


def test_the_rate_warms_up_linearly_and_the_cosine_ends_exactly_at_the_last_step():
    recipe = Recipe(steps=100, batch=1, rate=2.0, warmup=0.1)
    rates = [recipe.rate_at(step) for step in range(100)]
    np.testing.assert_allclose(rates[:10], 0.2 * np.arange(1, 11))
    assert rates[9] == max(rates) == 2.0
    np.testing.assert_allclose(rates[9:], 1 + np.cos(np.pi * np.arange(91) / 90), atol=1e-15)
    assert rates[54] == pytest.approx(1.0)  # half of the way
    assert rates[-1] == 0.0


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0.0), (1, 1.0), (7, 0.0), (7, 1.0), (2, 0.5)])
def test_short_schedules_are_finite_and_within_the_peak(steps, warmup):
    recipe = Recipe(steps=steps, batch=1, rate=1.0, warmup=warmup)
    rates = [recipe.rate_at(step) for step in range(steps)]
    assert all(0 <= rate <= 1 and math.isfinite(rate) for rate in rates)
    assert rates[-1] == (1.0 if warmup == 1 else 0.0)


@pytest.mark.parametrize("backend", backends.NAMES)
def test_gradients_are_clipped_to_the_global_norm(backend):
    """Adam hides a common factor, but its first moment does not: it is (1 - beta1) times the clipped gradient."""
    net = network("lru", depth=1)
    loose, tight = Recipe(steps=5, batch=6, clip=1e9), Recipe(steps=5, batch=6, clip=1e-3)
    found, clipped = trainer(backend, net, loose), trainer(backend, net, tight)
    (_, norm), (_, same) = found.step(batch(0), 1e-3, None), clipped.step(batch(0), 1e-3, None)
    assert norm == same > 0.1  # what is returned is the norm before clipping
    sizes = [
        np.sqrt(sum((np.asarray(m, float) ** 2).sum() for m in moments(backend, each))) / (1 - loose.beta1)
        for each in (found, clipped)
    ]
    np.testing.assert_allclose(sizes, [norm, 1e-3], rtol=1e-5)


def moments(backend, found):
    if backend == "torch":
        return [state["exp_avg"] for state in found.optimizer.state.values()]
    return list(found.moments.mu.values())


@pytest.mark.parametrize("backend", backends.NAMES)
def test_a_loss_that_is_not_finite_changes_nothing_and_is_returned(backend):
    net = network("lru", depth=1)
    weights = net.initial("m", 0)
    weights["decoder.bias"] = np.array([np.nan, 0, 0, 0, 0])
    found = backends.load(backend).Trainer(net, weights, RECIPE, "float32", "cpu")
    before = found.weights()
    loss, _ = found.step(batch(0), 1e-2, None)
    assert math.isnan(loss)
    assert all(np.array_equal(value, before[name], equal_nan=True) for name, value in found.weights().items())


@pytest.mark.parametrize("backend", backends.NAMES)
def test_a_batch_of_one_and_a_length_of_one_train(backend):
    found = trainer(backend, network("lru", depth=1))
    one = Batch(np.array([[3]], np.int32), np.array([1], np.int32), np.array([2]))
    assert all(map(math.isfinite, found.step(one, 1e-2, None)))
    assert np.isfinite(found.logits(one)).all()


@pytest.mark.parametrize("backend", backends.NAMES)
def test_training_twice_gives_the_same_bits(backend):
    net = network("s5", depth=1)
    first, second = (trainer(backend, net) for _ in range(2))
    assert train(first, steps=4) == train(second, steps=4)
    assert all(np.array_equal(value, second.weights()[name]) for name, value in first.weights().items())


def test_another_seed_and_another_model_start_from_other_weights():
    net = network("lru")
    zero, one, other = net.initial("m", 0), net.initial("m", 1), net.initial("n", 0)
    name = "blocks.0.layer.B_re"
    assert not np.array_equal(zero[name], one[name])
    assert not np.array_equal(zero[name], other[name])
    assert not np.array_equal(zero[name], zero["blocks.1.layer.B_re"])
    assert np.array_equal(zero[name], network("lru", depth=4).initial("m", 0)[name])


def test_dropout_keeps_its_share_and_depends_on_seed_and_step_alone():
    net = network("lru")
    masks = dropout_masks(Recipe(steps=1, batch=1, dropout=0.25), net, 3, 5, 400)
    assert masks.shape == (2, 2, 400, 12)
    assert set(np.unique(masks)) == {np.float32(0), np.float32(1 / 0.75)}
    kept = (masks > 0).mean()
    assert abs(kept - 0.75) < 4 * math.sqrt(0.75 * 0.25 / masks.size)
    again = dropout_masks(Recipe(steps=9, batch=1, dropout=0.25, rate=1), network("s5"), 3, 5, 400)
    assert np.array_equal(masks, again)
    assert not np.array_equal(masks, dropout_masks(Recipe(steps=1, batch=1, dropout=0.25), net, 3, 6, 400))
    assert dropout_masks(Recipe(steps=1, batch=1), net, 3, 5, 400) is None


@pytest.mark.parametrize("backend", backends.NAMES)
@pytest.mark.parametrize("model", MODELS)
def test_padding_batch_and_order_never_change_a_prediction(backend, model):
    """float32 rounding in sums over up to 256 positions: 1e-5 of logits of size 1."""
    found = trainer(backend, network(model, depth=1))
    alone = Batch(batch(1, 1, 20).inputs, np.array([20], np.int32), np.array([0]))
    wanted = found.logits(alone)
    rng = np.random.default_rng(5)
    for length in (64, 256):
        inputs = rng.integers(0, 9, (3, length)).astype(np.int32)
        inputs[1, :20] = alone.inputs[0]
        beside = Batch(inputs, np.array([length, 20, 1], np.int32), np.zeros(3, int))
        np.testing.assert_allclose(found.logits(beside)[1], wanted[0], atol=1e-5)


@pytest.mark.parametrize("backend", backends.NAMES)
def test_padding_does_not_reach_a_bidirectional_layers_prediction(backend):
    found = trainer(backend, network("s5", depth=1, bidirectional=True))
    alone = Batch(batch(1, 1, 20).inputs, np.array([20], np.int32), np.array([0]))
    padded = np.random.default_rng(6).integers(0, 9, (2, 64)).astype(np.int32)
    padded[0, :20] = alone.inputs[0]
    beside = Batch(padded, np.array([20, 64], np.int32), np.zeros(2, int))
    np.testing.assert_allclose(found.logits(beside)[0], found.logits(alone)[0], atol=1e-5)


@pytest.mark.parametrize("backend", backends.NAMES)
@pytest.mark.parametrize("model", ["rotrnn", "s4d"])
def test_state_energies_are_squared_norms_of_the_states(backend, model):
    net = network(model, depth=1)
    found = trainer(backend, net, dtype="float64")
    noise = np.random.default_rng(0).standard_normal((2, 150, 12))  # longer than a piece, and no multiple of it
    params = layer_weights(found.weights(), 0)
    layer = bench.ArrayLayer(net.layer)
    x = layer.states(params, noise, backend="reference", dtype="float64", coordinates="diagonal")
    (energy,) = found.white_noise_energies(noise)
    np.testing.assert_allclose(energy, (np.abs(x) ** 2).reshape(2, 150, -1).sum(-1), rtol=1e-9)
    heads = 4 if model == "rotrnn" else 1
    one = batch(3, 2, 150)
    (energies,) = found.state_energies(one)
    assert energies.shape == (2, 150, heads)


def test_jax_compiles_once_for_cells_that_differ_by_seed_or_rate():
    from bench.backends.jax import training

    net, other = network("lru", depth=1), Recipe(steps=STEPS, batch=6)
    for seed, rate in ((0, 1e-2), (1, 1e-3), (2, 0.0)):
        found = trainer("jax", net, other, seed=seed)
        found.step(batch(seed), rate, None)
        compiled = training._step._cache_size()
        for step in range(3):
            found.step(batch(step), rate / 2, None)
        assert training._step._cache_size() == compiled
        if seed == 0:
            after_first = compiled
    assert compiled == after_first


def test_many_parameters_at_once_or_one_by_one_is_the_same_step():
    import torch

    net = network("lru", depth=1)
    states = []
    for foreach in (True, False):
        found = trainer("torch", net)
        for group in found.optimizer.param_groups:
            group["foreach"] = foreach
        train(found, steps=3)
        states.append(found.weights())
    for name in states[0]:
        np.testing.assert_allclose(states[0][name], states[1][name], rtol=0, atol=1e-6, err_msg=name)
    assert torch.get_default_dtype() == torch.float32

"""Exact energies of diagonal systems, against loops over time."""

import numpy as np
import pytest
from torch import tensor

from bench import backends, energy
from bench.backends import reference
from bench.backends.torch.network import Classifier
from bench.contract import DiagonalSystem
from bench.network import Network
from models.lru import LRU
from models.rotrnn import RotRNN
from models.s4d import S4D
from models.s5 import S5

LAYERS = {
    "lru": LRU(d_model=3, d_state=5),
    "lru[gamma=none]": LRU(d_model=3, d_state=5, gamma="none"),
    "rotrnn": RotRNN(d_model=3, d_state=8, heads=2),
    "s4d": S4D(d_model=3, d_state=4),
    "s5": S5(d_model=3, d_state=8, blocks=2),
}
each_layer = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
TIMES = [1, 2, 7, 30]


def parts(layer):
    params = layer.initial(np.random.default_rng(1))
    return params, reference.system(layer, params)


def single(modulus, phase=0.0):
    """One entry, B = 2, C = 3 - i, D = 5."""
    Lambda = np.array([modulus * np.exp(1j * phase)])
    return DiagonalSystem(Lambda, np.array([[2.0 + 0j]]), np.array([[3.0 - 1j]]), np.array([5.0]))


@each_layer
def test_energies_under_white_noise_and_impulses_are_sums_over_a_loops_answers(layer):
    params, system = parts(layer)
    impulses = np.zeros((3, 30, 3))
    impulses[:, 0] = np.eye(3)
    answers = (np.abs(reference.states(layer, params, impulses, coordinates="diagonal")) ** 2).reshape(3, 30, -1)
    answers = answers.sum((0, 2))  # white input: squares of the answers to each feature at each earlier step add up
    at = np.array(TIMES) - 1
    np.testing.assert_allclose(energy.impulse_energy(system, TIMES), answers[at], rtol=1e-10)
    np.testing.assert_allclose(energy.white_noise_energy(system, TIMES), np.cumsum(answers)[at], rtol=1e-10)


@each_layer
def test_a_constant_input_is_what_the_loop_makes_of_ones(layer):
    params, system = parts(layer)
    states = reference.states(layer, params, np.ones((1, 30, 3)), coordinates="diagonal")
    wanted = (np.abs(states[0]) ** 2).reshape(30, -1).sum(-1)[np.array(TIMES) - 1]
    np.testing.assert_allclose(energy.constant_energy(system, TIMES), wanted, rtol=1e-10)


@each_layer
def test_the_memory_curve_is_the_norm_of_the_answer_to_impulses(layer):
    params, system = parts(layer)
    impulses = np.zeros((3, 30, 3))
    impulses[:, 0] = np.eye(3)
    answers = (reference.apply(layer, params, impulses) ** 2).sum((0, 2))
    np.testing.assert_allclose(energy.memory_curve(system, [0, 1, 5, 29]), answers[[0, 1, 5, 29]], rtol=1e-10)


def test_one_entry_has_the_textbook_values():
    system = single(0.5, 1.0)
    assert energy.stationary_energy(system) == pytest.approx(4 / (1 - 0.25))
    assert energy.half_life(system) == pytest.approx(0.5)  # 0.25^0.5
    assert energy.impulse_energy(system, [3])[0] == pytest.approx(4 * 0.25**2)
    assert energy.time_to_exceed(system, 4.9) == (2, None)  # 4, 5, 5.25, ..
    step, reason = energy.time_to_exceed(system, 5.34)
    assert step is None
    assert "5.33 after 2^40 steps" in reason


def test_what_never_fades_and_what_grows():
    kept, grows = single(1.0), single(1.1)
    assert energy.stationary_energy(kept) == energy.half_life(kept) == np.inf
    np.testing.assert_allclose(energy.white_noise_energy(kept, [1, 5]), [4, 20])
    assert energy.time_to_exceed(kept, 40.0) == (11, None)
    assert energy.stationary_energy(grows) == np.inf
    wanted = 4 * sum(1.21**k for k in range(50))
    assert energy.white_noise_energy(grows, [50])[0] == pytest.approx(wanted)
    step, _ = energy.time_to_exceed(grows, 65504.0**2)
    assert 4 * sum(1.21**k for k in range(step - 1)) <= 65504.0**2 < 4 * sum(1.21**k for k in range(step))


def test_an_entry_without_memory_holds_the_last_input_alone():
    forgets = single(0.0)
    for exact in (energy.white_noise_energy, energy.constant_energy):
        np.testing.assert_allclose(exact(forgets, [1, 2, 9]), 4)
    np.testing.assert_allclose(energy.impulse_energy(forgets, [1, 2, 9]), [4, 0, 0])
    np.testing.assert_allclose(energy.memory_curve(forgets, [0, 1]), [11**2, 0])  # Re((3 - i) 2) + 5


def test_doubling_times_end_with_the_length():
    assert energy.doubling_times(1) == [1]
    assert energy.doubling_times(8) == [1, 2, 4, 8]
    assert energy.doubling_times(100) == [1, 2, 4, 8, 16, 32, 64, 100]


@pytest.mark.parametrize("backend", ["torch", "jax"])
@each_layer
def test_backends_energies_are_those_of_the_loop(layer, backend):
    params, _ = parts(layer)
    u = np.random.default_rng(0).standard_normal((2, 70, 3))  # more than a piece of 64 steps
    wanted = (np.abs(reference.states(layer, params, u, coordinates="diagonal")) ** 2).reshape(2, 70, -1).sum(-1)
    face = backends.load(backend)
    np.testing.assert_allclose(face.energies(layer, params, u, dtype="float64")[..., 0], wanted, rtol=1e-10)
    own = np.abs(reference.states(layer, params, u)) ** 2
    own = own.reshape(2, 70, -1)
    heads = np.zeros(own.shape[-1], int) if layer.groups is None else layer.groups
    found = face.energies(layer, params, u, coordinates="own", dtype="float64")
    for head in range(heads.max() + 1):
        np.testing.assert_allclose(found[..., head], own[..., heads == head].sum(-1), rtol=1e-9)


def test_signals_between_blocks_and_their_gradients():
    """Against finite differences of the last block's output; both backends alike."""
    torch, jax = backends.load("torch"), backends.load("jax")
    network = Network(layer=LAYERS["lru"], depth=2, inputs=3, tokens=False, classes=2)
    weights, rng = network.initial("lru", 0), np.random.default_rng(0)
    x, g = rng.standard_normal((2, 2, 6, 3))
    signals, gradients = torch.block_signals(network, weights, x, g, dtype="float64")
    np.testing.assert_allclose(signals[0], (x**2).sum(-1), rtol=1e-12)
    np.testing.assert_allclose(gradients[2], (g**2).sum(-1), rtol=1e-12)
    in_jax = jax.block_signals(network, weights, x, g, dtype="float64")
    np.testing.assert_allclose(in_jax[0], signals, rtol=1e-9)
    np.testing.assert_allclose(in_jax[1], gradients, rtol=1e-9)

    def last(x):
        """The energy of what leaves, at each position: its own gradient is twice the signal."""
        return torch.block_signals(network, weights, x, g, dtype="float64")[0][2]

    # L = sum |z|^2 / 2 over what leaves, z, has the gradient z there: put z in as the cotangent
    module, z = Classifier(network, weights, "float64"), tensor(x)
    for block in module.stack:
        z = block(z, tensor([6, 6]), tensor(np.ones((2, 6), bool)))
    z = z.detach().numpy()
    np.testing.assert_allclose(last(x), (z**2).sum(-1), rtol=1e-12)
    gradient = torch.block_signals(network, weights, x, z, dtype="float64")[1]
    slopes = np.zeros(3)
    for feature in range(3):
        move = np.zeros_like(x)
        move[1, 2, feature] = 1e-5
        slopes[feature] = (last(x + move).sum() - last(x - move).sum()) / 4e-5
    assert gradient[0, 1, 2] == pytest.approx((slopes**2).sum(), rel=1e-6)

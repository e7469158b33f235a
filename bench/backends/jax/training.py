"""Training in jax: AdamW by role, clipping, and what is measured on the way."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from bench.backends.jax import ops
from bench.backends.jax.device import PARAMETER_DTYPES, computing, find, get, put
from bench.backends.jax.layer import state_energy
from bench.backends.jax.network import Classifier
from bench.contract import NOT_ASKED
from bench.network import Network, layer_weights
from bench.recipe import Recipe
from bench.training import Batch, layer_with_state

Weights = dict[str, Array]


class Trainer:
    """See `bench.training.Trainer`."""

    def __init__(
        self, network: Network, weights: Mapping[str, np.ndarray], recipe: Recipe, dtype: str, device: str
    ) -> None:
        self.network, self.recipe, self.dtype, self.device = network, recipe, dtype, find(device)
        groups = recipe.groups(network.roles())
        with computing(dtype, self.device):
            # on the device from the start: jit compiles anew for arrays that only later are
            own = PARAMETER_DTYPES[dtype]
            placed = {name: put(np.asarray(value, own), self.device) for name, value in weights.items()}
            self.trained: Weights = {name: placed[name] for name in groups}
            self.constants: Weights = {name: value for name, value in placed.items() if name not in groups}
            self.moments = jax.device_put(adam(recipe).init(self.trained), self.device)

    def step(self, batch: Batch, rate: float, masks: np.ndarray | None) -> tuple[float, float]:
        with computing(self.dtype, self.device):
            mask = None if masks is None else put(masks, self.device, self.dtype)
            self.trained, self.moments, averages, loss, norm = _step(
                self.network, self.recipe, self.dtype, self.trained, self.moments, self.constants,
                self._batch(batch), PARAMETER_DTYPES[self.dtype](rate), mask,
            )  # fmt: skip
            self.constants = self.constants | averages
            return float(loss), float(norm)

    def logits(self, batch: Batch) -> np.ndarray:
        with computing(self.dtype, self.device):
            return get(_logits(self.network, self.dtype, self._weights(), *self._batch(batch)[:2]))

    def loss_and_layer_gradients(self, batch: Batch) -> tuple[float, list[float]]:
        with computing(self.dtype, self.device):
            loss, norms = _layer_gradients(self.network, self.dtype, self.trained, self.constants, self._batch(batch))
            return float(loss), [float(norm) for norm in norms]

    def state_energies(self, batch: Batch) -> list[np.ndarray]:
        with computing(self.dtype, self.device):
            return [
                get(energy) for energy in _energies(self.network, self.dtype, self._weights(), *self._batch(batch)[:2])
            ]

    def white_noise_energies(self, noise: np.ndarray) -> list[np.ndarray]:
        with computing(self.dtype, self.device):
            u = put(noise, self.device, self.dtype)
            return [get(energy) for energy in _noise_energies(self.network, self._weights(), u)]

    def diagnostics(self) -> list[dict[str, float]]:
        with computing(self.dtype, self.device):
            return [
                {name: float(x) for name, x in found.items()} for found in _diagnostics(self.network, self._weights())
            ]

    def weights(self) -> dict[str, np.ndarray]:
        return {name: get(value) for name, value in self._weights().items()}

    def state(self) -> dict[str, np.ndarray]:
        found = {f"weights.{name}": value for name, value in self.weights().items()}
        for what, kept in (("first", self.moments.mu), ("second", self.moments.nu)):
            found |= {f"{what}.{name}": get(value) for name, value in kept.items()}
        return found | {"steps": get(self.moments.count)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        def placed(what: str, names: Mapping[str, Array]) -> Weights:
            return {name: put(np.asarray(state[f"{what}.{name}"]), self.device) for name in names}

        with computing(self.dtype, self.device):
            self.trained, self.constants = placed("weights", self.trained), placed("weights", self.constants)
            if "steps" in state:
                first, second = placed("first", self.trained), placed("second", self.trained)
                count = put(np.asarray(state["steps"]), self.device)
                self.moments = self.moments._replace(count=count, mu=first, nu=second)

    def _weights(self) -> Weights:
        return self.trained | self.constants

    def _batch(self, batch: Batch) -> tuple[Array, ...]:
        inputs = put(batch.inputs, self.device, self.dtype)
        return inputs, put(batch.lengths, self.device), put(batch.targets, self.device)


# Compiled once for each network, recipe and shape, and so shared by the cells of a worker that differ by their seed.


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=(3, 4))
def _step(
    network: Network,
    recipe: Recipe,
    dtype: str,
    trained: Weights,
    moments: optax.OptState,
    constants: Weights,
    batch: tuple[Array, ...],
    rate: Array,
    masks: Array | None,
) -> tuple[Weights, optax.OptState, Weights, Array, Array]:
    groups = recipe.groups(network.roles())
    differentiated = jax.value_and_grad(_loss, has_aux=True)
    (loss, averages), gradient = differentiated(trained, constants, network, dtype, batch, masks, True)
    norm = optax.tree.norm(gradient)
    scale = jnp.where(norm > recipe.clip, recipe.clip / norm, 1)
    clipped = {name: scale * g for name, g in gradient.items()}
    moved, advanced = adamw(recipe, groups, trained, moments, clipped, rate)
    good = jnp.isfinite(loss) & jnp.isfinite(norm)
    kept = jax.tree.map(lambda new, old: jnp.where(good, new, old), (moved, advanced), (trained, moments))
    return *kept, averages, loss, norm


@partial(jax.jit, static_argnums=(0, 1))
def _layer_gradients(
    network: Network, dtype: str, trained: Weights, constants: Weights, batch: tuple[Array, ...]
) -> tuple[Array, list[Array]]:
    (loss, _), gradient = jax.value_and_grad(_loss, has_aux=True)(trained, constants, network, dtype, batch, None)
    return loss, [optax.tree.norm(layer_weights(gradient, i)) for i in range(network.depth)]


@partial(jax.jit, static_argnums=(0, 1))
def _logits(network: Network, dtype: str, weights: Weights, inputs: Array, lengths: Array) -> Array:
    return Classifier(network, weights, dtype)(inputs, lengths)


@partial(jax.jit, static_argnums=(0, 1))
def _energies(network: Network, dtype: str, weights: Weights, inputs: Array, lengths: Array) -> list[Array]:
    layer, found = layer_with_state(network), Classifier(network, weights, dtype).layer_inputs(inputs, lengths)
    return [state_energy(layer, layer_weights(weights, i), found[i]) for i in range(network.depth)]


@partial(jax.jit, static_argnums=0)
def _noise_energies(network: Network, weights: Weights, noise: Array) -> list[Array]:
    layer, found = layer_with_state(network), [layer_weights(weights, i) for i in range(network.depth)]
    return [state_energy(layer, params, noise, "diagonal")[..., 0] for params in found]


@partial(jax.jit, static_argnums=0)
def _diagnostics(network: Network, weights: Weights) -> list[dict[str, Array]]:
    layer = layer_with_state(network)
    return [layer.diagnostics(layer_weights(weights, i), ops) for i in range(network.depth)]


def _loss(
    trained: Weights,
    constants: Weights,
    network: Network,
    dtype: str,
    batch: tuple[Array, ...],
    masks: Array | None,
    training: bool = False,
) -> tuple[Array, Weights]:
    """The loss, and what batch norms keep after it."""
    inputs, lengths, targets = batch
    model = Classifier(network, trained | constants, dtype)
    logits = model(inputs, lengths, masks, training)
    if network.output == "number":
        return jnp.square(logits[:, 0] - targets).mean(), model.averages()
    asked = targets != NOT_ASKED
    found = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(asked, targets, 0))
    return (found * asked).sum() / asked.sum(), model.averages()


def adamw(
    recipe: Recipe,
    groups: Mapping[str, tuple[float, float]],
    trained: Weights,
    moments: optax.OptState,
    gradient: Weights,
    rate: Array | float,
) -> tuple[Weights, optax.OptState]:
    """Weights and moments after one step of the recipe's optimiser at this rate."""
    updates, advanced = adam(recipe).update(gradient, moments)
    moved = {
        name: weight - rate * groups[name][0] * (updates[name] + groups[name][1] * weight)
        for name, weight in trained.items()
    }
    return moved, advanced


def adam(recipe: Recipe) -> optax.GradientTransformation:
    return optax.scale_by_adam(recipe.beta1, recipe.beta2, recipe.epsilon)

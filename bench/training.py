"""What both backends' training shares: batches, dropout masks, and the face that suites see. Imports no framework."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Protocol

import numpy as np
from scipy.special import logsumexp

from bench.contract import NOT_ASKED, DiagonalLayer, Split, Unsupported
from bench.network import Network
from bench.recipe import Recipe
from bench.seeds import generator


@dataclasses.dataclass(frozen=True)
class Batch:
    """Some examples of a split: inputs, lengths, targets as there."""

    inputs: np.ndarray
    lengths: np.ndarray
    targets: np.ndarray

    @classmethod
    def of(cls, split: Split, rows: np.ndarray) -> Batch:
        return cls(split.inputs[rows], split.lengths[rows], split.targets[rows])


class Trainer(Protocol):
    """A network in training. Everything that goes in and comes out is numpy or a float."""

    def __init__(
        self, network: Network, weights: Mapping[str, np.ndarray], recipe: Recipe, dtype: str, device: str
    ) -> None: ...

    def step(self, batch: Batch, rate: float, masks: np.ndarray | None) -> tuple[float, float]:
        """One step: the loss before it, the gradient's norm before clipping. If one is not finite nothing is moved."""

    def logits(self, batch: Batch) -> np.ndarray:
        """(batch, classes), dropout off; (batch, length, classes) where positions are asked."""

    def loss_and_layer_gradients(self, batch: Batch) -> tuple[float, list[float]]:
        """The loss, dropout off, and the norm of its gradient in each block's layer."""

    def state_energies(self, batch: Batch) -> list[np.ndarray]:
        """For each block: squared norm of its layer's state, (batch, length, heads), dropout off."""

    def white_noise_energies(self, noise: np.ndarray) -> list[np.ndarray]:
        """For each block: |x|^2 of its layer's diagonal state, (batch, length), when fed noise itself."""

    def diagnostics(self) -> list[dict[str, float]]:
        """For each block: what its layer finds worth watching."""

    def weights(self) -> dict[str, np.ndarray]:
        """All weights by name."""

    def state(self) -> dict[str, np.ndarray]:
        """All that training goes on from: weights, moments and the count of steps, by name."""

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Goes on from what `state` gave; from weights alone the moments stay as they are."""


def dropout_masks(recipe: Recipe, network: Network, seed: int, step: int, batch: int) -> np.ndarray | None:
    """(depth, 2, sequences, d_model) float32, 0 or 1 / (1 - dropout); None without dropout. Equal on every backend."""
    if recipe.dropout == 0:
        return None
    rng = generator(seed, "dropout", step)
    kept = rng.random((network.depth, 2, batch * network.sequences, network.layer.d_model)) >= recipe.dropout
    return (kept / (1 - recipe.dropout)).astype(np.float32)


def losses(network: Network, logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The loss of each example, (examples,) float64: what training averages, over its asked positions where it asks.

    Cross entropy in nats, or the squared difference from a number.
    """
    logits = logits.astype(np.float64)
    if network.output == "number":
        return (logits[:, 0] - targets) ** 2
    asked = targets != NOT_ASKED
    chosen = np.take_along_axis(logits, np.where(asked, targets, 0)[..., None], -1)[..., 0]
    found = np.where(asked, logsumexp(logits, axis=-1) - chosen, 0)
    return found.sum(-1) / asked.sum(-1) if network.output == "class at each position" else found


def layer_with_state(network: Network) -> DiagonalLayer:
    """The network's layer, where its state at a time step is known; else `Unsupported` with the reason."""
    layer = network.layer
    if not isinstance(layer, DiagonalLayer):
        raise Unsupported(f"{type(layer).__name__} is no diagonal layer, so its state is not known")
    if layer.has_reverse:
        raise Unsupported("a bidirectional layer has no single state at a time step")
    return layer

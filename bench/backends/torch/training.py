"""Training in torch: AdamW by role, clipping, and what is measured on the way."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from bench.backends.torch import ops
from bench.backends.torch.device import find, get, put
from bench.backends.torch.layer import state_energy
from bench.backends.torch.network import Classifier
from bench.contract import NOT_ASKED
from bench.network import Network
from bench.recipe import Recipe
from bench.training import Batch, layer_with_state


class Trainer:
    """See `bench.training.Trainer`."""

    def __init__(
        self, network: Network, weights: Mapping[str, np.ndarray], recipe: Recipe, dtype: str, device: str
    ) -> None:
        self.network, self.recipe, self.dtype, self.device = network, recipe, dtype, find(device)
        self.module = Classifier(network, dict(weights), dtype).to(self.device)
        self.groups = recipe.groups(network.roles())
        parameters = dict(self.module.named_parameters())
        self.optimizer = AdamW(recipe, self.groups, parameters)
        self.trained = [parameters[name] for name in self.groups]

    def step(self, batch: Batch, rate: float, masks: np.ndarray | None) -> tuple[float, float]:
        self.optimizer.forget_gradients()
        loss = self._loss(batch, masks, training=True)
        loss.backward()
        gradients = [gradient_of(p) for p in self.trained]
        norm = _norm(gradients)
        found = float(loss.detach()), float(norm)
        if all(map(math.isfinite, found)):
            if found[1] > self.recipe.clip:
                torch._foreach_mul_(gradients, self.recipe.clip / found[1])
            self.optimizer.step(rate)
        return found

    def logits(self, batch: Batch) -> np.ndarray:
        with torch.no_grad():
            return get(self.module(*self._inputs(batch)))

    def loss_and_layer_gradients(self, batch: Batch) -> tuple[float, list[float]]:
        self.optimizer.forget_gradients()
        loss = self._loss(batch, None)
        loss.backward()
        norms = [
            float(_norm([p.grad for p in layer.parameters() if p.grad is not None])) for layer in self.module.layers
        ]
        self.optimizer.forget_gradients()
        return float(loss.detach()), norms

    def state_energies(self, batch: Batch) -> list[np.ndarray]:
        layer = layer_with_state(self.network)
        with torch.no_grad():
            inputs = self.module.layer_inputs(*self._inputs(batch))
            return [
                get(state_energy(layer, dict(module.named_parameters()), u))
                for module, u in zip(self.module.layers, inputs, strict=True)
            ]

    def white_noise_energies(self, noise: np.ndarray) -> list[np.ndarray]:
        layer = layer_with_state(self.network)
        u = put(noise, self.device, self.dtype)
        with torch.no_grad():
            return [
                get(state_energy(layer, dict(module.named_parameters()), u, "diagonal")[..., 0])
                for module in self.module.layers
            ]

    def diagnostics(self) -> list[dict[str, float]]:
        layer = layer_with_state(self.network)
        with torch.no_grad():
            return [
                {name: float(x) for name, x in layer.diagnostics(dict(module.named_parameters()), ops).items()}
                for module in self.module.layers
            ]

    def weights(self) -> dict[str, np.ndarray]:
        return {name: get(p).copy() for name, p in self.module.named_parameters()}

    def state(self) -> dict[str, np.ndarray]:
        found = {f"weights.{name}": value for name, value in self.weights().items()}
        for name, p in self._trained():
            for what, kept in self._moments():
                found[f"{what}.{name}"] = get(kept[p]).copy()
        return found

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        with torch.no_grad():
            for name, p in self.module.named_parameters():
                p.copy_(torch.tensor(state[f"weights.{name}"]))
            for name, p in self._trained():
                for what, kept in self._moments():
                    if f"{what}.{name}" in state:
                        kept[p].copy_(torch.tensor(state[f"{what}.{name}"]))

    def _trained(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in self.module.named_parameters() if name in self.groups]

    def _moments(self) -> list[tuple[str, dict[Tensor, Tensor]]]:
        optimizer = self.optimizer
        return [("first", optimizer.first), ("second", optimizer.second), ("steps", optimizer.steps)]

    def _inputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return put(batch.inputs, self.device, self.dtype), put(batch.lengths, self.device)

    def _loss(self, batch: Batch, masks: np.ndarray | None, training: bool = False) -> Tensor:
        drop = None if masks is None else put(masks, self.device, self.dtype)
        logits = self.module(*self._inputs(batch), drop, training)
        targets = put(batch.targets, self.device)
        if self.network.output == "number":
            return (logits[:, 0] - targets).square().mean()
        flat = logits.reshape(-1, logits.shape[-1]), targets.long().flatten()
        return nn.functional.cross_entropy(*flat, ignore_index=NOT_ASKED)


class AdamW:
    """The optimiser of a recipe: torch's own function, group by group.

    Not torch's class, which imports torch.compile with all that belongs to it: two seconds in every process.
    """

    def __init__(
        self, recipe: Recipe, groups: Mapping[str, tuple[float, float]], parameters: Mapping[str, nn.Parameter]
    ) -> None:
        self.recipe = recipe
        self.foreach: bool | None = None
        """Tensor by tensor or all at once; None is as torch finds best on the device."""
        self.groups: list[tuple[float, float, list[Tensor]]] = [
            (factor, decay, [parameters[name] for name, own in groups.items() if own == (factor, decay)])
            for factor, decay in sorted(set(groups.values()))
        ]
        everything = [p for *_, own in self.groups for p in own]
        self.first = {p: torch.zeros_like(p) for p in everything}
        self.second = {p: torch.zeros_like(p) for p in everything}
        self.steps = {p: torch.zeros(()) for p in everything}

    def forget_gradients(self) -> None:
        for p in self.first:
            p.grad = None

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One step at the rate of the fastest group."""
        for factor, decay, own in self.groups:
            adamw(
                own,
                [gradient_of(p) for p in own],
                [self.first[p] for p in own],
                [self.second[p] for p in own],
                [],
                [self.steps[p] for p in own],
                foreach=self.foreach,
                amsgrad=False,
                maximize=False,
                lr=rate * factor,
                weight_decay=decay,
                beta1=self.recipe.beta1,
                beta2=self.recipe.beta2,
                eps=self.recipe.epsilon,
            )


def gradient_of(p: Tensor) -> Tensor:
    """What the backward pass has left; zero, as in jax, where the loss does not depend on it."""
    if p.grad is None:
        p.grad = torch.zeros_like(p)
    return p.grad


def _norm(gradients: list[Tensor]) -> Tensor:
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))

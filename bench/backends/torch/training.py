"""Training in torch: AdamW by role, clipping, and what is measured on the way."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from bench.backends.torch import ops
from bench.backends.torch.device import find, get, put
from bench.backends.torch.layer import state_energy
from bench.backends.torch.network import Classifier
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
        self.optimizer, self.factors = adamw(recipe, self.groups, parameters)
        self.trained = [parameters[name] for name in self.groups]

    def step(self, batch: Batch, rate: float, masks: np.ndarray | None) -> tuple[float, float]:
        self.optimizer.zero_grad()
        loss = self._loss(batch, masks)
        loss.backward()
        for p in self.trained:
            if p.grad is None:  # the loss does not depend on it: a gradient of zero, as in jax
                p.grad = torch.zeros_like(p)
        gradients = [p.grad for p in self.trained if p.grad is not None]
        norm = _norm(gradients)
        found = float(loss.detach()), float(norm)
        if all(map(math.isfinite, found)):
            if found[1] > self.recipe.clip:
                torch._foreach_mul_(gradients, self.recipe.clip / found[1])
            for group, factor in zip(self.optimizer.param_groups, self.factors, strict=True):
                group["lr"] = rate * factor
            self.optimizer.step()
        return found

    def logits(self, batch: Batch) -> np.ndarray:
        with torch.no_grad():
            return get(self.module(*self._inputs(batch)))

    def loss_and_layer_gradients(self, batch: Batch) -> tuple[float, list[float]]:
        self.optimizer.zero_grad()
        loss = self._loss(batch, None)
        loss.backward()
        norms = [
            float(_norm([p.grad for p in layer.parameters() if p.grad is not None])) for layer in self.module.layers
        ]
        self.optimizer.zero_grad()
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

    def _inputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return put(batch.inputs, self.device, self.dtype), put(batch.lengths, self.device)

    def _loss(self, batch: Batch, masks: np.ndarray | None) -> Tensor:
        logits = self.module(*self._inputs(batch), None if masks is None else put(masks, self.device, self.dtype))
        return nn.functional.cross_entropy(logits, put(batch.targets.astype(np.int64), self.device))


def adamw(
    recipe: Recipe, groups: Mapping[str, tuple[float, float]], parameters: Mapping[str, nn.Parameter]
) -> tuple[torch.optim.AdamW, list[float]]:
    """The optimiser of a recipe, its rates still 0, and the rate factor of each of its parameter groups."""
    settings = sorted(set(groups.values()))
    optimizer = torch.optim.AdamW(
        [
            {"params": [parameters[name] for name, own in groups.items() if own == (factor, decay)],
             "weight_decay": decay}
            for factor, decay in settings
        ],
        lr=0.0,
        betas=(recipe.beta1, recipe.beta2),
        eps=recipe.epsilon,
    )  # fmt: skip
    return optimizer, [factor for factor, _ in settings]


def _norm(gradients: list[Tensor]) -> Tensor:
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))

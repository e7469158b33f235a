"""The network in torch: built from numpy weights, with the same names."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from bench.backends.torch.device import DTYPES
from bench.backends.torch.layer import layer_module
from bench.network import NORM_EPSILON, Network, layer_weights


class Dense(nn.Module):
    """x @ weight + bias; with `tokens` x holds row numbers, which stand for one-hot vectors."""

    def __init__(self, weights: Mapping[str, np.ndarray], name: str, tokens: bool = False) -> None:
        super().__init__()
        self.weight = _parameter(weights[f"{name}.weight"])
        self.bias = _parameter(weights[f"{name}.bias"])
        self.tokens = tokens

    def forward(self, x: Tensor) -> Tensor:
        if self.tokens:
            return nn.functional.embedding(x, self.weight) + self.bias
        return torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight).reshape(*x.shape[:-1], -1)


class LayerNorm(nn.Module):
    """Zero mean and unit variance over features, then scale and bias."""

    def __init__(self, weights: Mapping[str, np.ndarray], name: str) -> None:
        super().__init__()
        self.scale = _parameter(weights[f"{name}.scale"])
        self.bias = _parameter(weights[f"{name}.bias"])

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, self.scale.shape, self.scale, self.bias, NORM_EPSILON)


class Block(nn.Module):
    """x + drop(value(a) * sigmoid(gate(a))), a = drop(gelu(layer(norm(x))))."""

    def __init__(self, network: Network, weights: dict[str, np.ndarray], i: int, dtype: str) -> None:
        super().__init__()
        self.norm = LayerNorm(weights, f"blocks.{i}.norm")
        self.layer = layer_module(network.layer, layer_weights(weights, i), dtype)
        self.value = Dense(weights, f"blocks.{i}.value")
        self.gate = Dense(weights, f"blocks.{i}.gate")

    def forward(self, x: Tensor, lengths: Tensor, masks: Tensor | None) -> Tensor:
        a = nn.functional.gelu(self.layer(self.norm(x), lengths))
        if masks is not None:
            a = a * masks[0][:, None]
        z = self.value(a) * torch.sigmoid(self.gate(a))
        return x + (z if masks is None else z * masks[1][:, None])


class Classifier(nn.Module):
    """The whole network: (inputs, lengths, dropout masks or None) -> logits, (batch, classes).

    `masks` are (depth, 2, batch, d_model), the same at all time steps, already divided by the share that is kept.
    """

    def __init__(self, network: Network, weights: dict[str, np.ndarray], dtype: str) -> None:
        super().__init__()
        self.encoder = Dense(weights, "encoder", tokens=network.tokens)
        self.stack = [Block(network, weights, i, dtype) for i in range(network.depth)]
        self.blocks = nn.ModuleList(self.stack)
        self.decoder = Dense(weights, "decoder")
        self.to(DTYPES[dtype])

    def forward(self, inputs: Tensor, lengths: Tensor, masks: Tensor | None = None) -> Tensor:
        x = self.encoder(inputs)
        for i, block in enumerate(self.stack):
            x = block(x, lengths, None if masks is None else masks[i])
        inside = torch.arange(x.shape[1], device=x.device)[None, :] < lengths[:, None]
        pooled = (x * inside[..., None]).sum(1) / lengths[:, None]
        return self.decoder(pooled)

    @property
    def layers(self) -> list[nn.Module]:
        """Each block's layer."""
        return [block.layer for block in self.stack]

    def layer_inputs(self, inputs: Tensor, lengths: Tensor) -> list[Tensor]:
        """What reaches each block's layer, (batch, length, d_model) each."""
        found = []
        x = self.encoder(inputs)
        for block in self.stack:
            found.append(block.norm(x))
            x = block(x, lengths, None)
        return found


def _parameter(value: np.ndarray) -> nn.Parameter:
    return nn.Parameter(torch.tensor(value))  # a copy: training must not change the array

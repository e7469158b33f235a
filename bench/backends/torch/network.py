"""The network in torch: built from numpy weights, with the same names."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from bench.backends.torch.device import DTYPES, PARAMETER_DTYPES, find, get, put
from bench.backends.torch.layer import layer_module
from bench.network import NORM_EPSILON, Network, Structure, layer_weights


class Dense(nn.Module):
    """x @ weight + bias in x's dtype; with `tokens` x holds row numbers, which stand for one-hot vectors."""

    def __init__(self, weights: Mapping[str, np.ndarray], name: str, tokens: bool = False) -> None:
        super().__init__()
        self.weight = _parameter(weights[f"{name}.weight"])
        self.bias = _parameter(weights[f"{name}.bias"])
        self.tokens = tokens

    def forward(self, x: Tensor) -> Tensor:
        if self.tokens:
            return nn.functional.embedding(x, self.weight) + self.bias
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        return torch.addmm(bias, x.reshape(-1, x.shape[-1]), weight).reshape(*x.shape[:-1], -1)


class LayerNorm(nn.Module):
    """Zero mean and unit variance over features, then scale and bias. Computed in the parameters' dtype."""

    def __init__(self, weights: Mapping[str, np.ndarray], name: str) -> None:
        super().__init__()
        self.scale = _parameter(weights[f"{name}.scale"])
        self.bias = _parameter(weights[f"{name}.bias"])

    def forward(self, x: Tensor, inside: Tensor, training: bool) -> Tensor:
        wide = x.to(self.scale.dtype)
        return nn.functional.layer_norm(wide, self.scale.shape, self.scale, self.bias, NORM_EPSILON).to(x.dtype)


class BatchNorm(nn.Module):
    """Zero mean and unit variance over the batch's positions that are `inside`, (batch, length), then scale and bias.

    The variance is that of the positions, not an estimate of one behind them. Not in training: the averages kept.
    """

    def __init__(self, weights: Mapping[str, np.ndarray], name: str, momentum: float) -> None:
        super().__init__()
        self.scale = _parameter(weights[f"{name}.scale"])
        self.bias = _parameter(weights[f"{name}.bias"])
        self.mean = _parameter(weights[f"{name}.mean"], trained=False)
        self.variance = _parameter(weights[f"{name}.variance"], trained=False)
        self.momentum = momentum

    def forward(self, x: Tensor, inside: Tensor, training: bool) -> Tensor:
        wide = x.to(self.scale.dtype)
        mean: Tensor = self.mean
        variance: Tensor = self.variance
        if training:
            share = (inside.to(wide.dtype) / inside.sum())[..., None]
            mean = (wide * share).sum((0, 1))
            variance = ((wide - mean).square() * share).sum((0, 1))
            with torch.no_grad():
                for kept, new in ((self.mean, mean), (self.variance, variance)):
                    kept.lerp_(new.detach(), 1 - self.momentum)
        factor = torch.rsqrt(variance + NORM_EPSILON) * self.scale
        return ((wide - mean) * factor + self.bias).to(x.dtype)


def _norm(structure: Structure, weights: Mapping[str, np.ndarray], name: str) -> LayerNorm | BatchNorm:
    return BatchNorm(weights, name, structure.momentum) if structure.norm == "batch" else LayerNorm(weights, name)


class Block(nn.Module):
    """A layer with its norm, mix and residual: see `bench.network`."""

    def __init__(self, network: Network, weights: dict[str, np.ndarray], i: int, dtype: str) -> None:
        super().__init__()
        self.structure = network.structure
        self.norm = None if network.structure.bare else _norm(network.structure, weights, f"blocks.{i}.norm")
        self.layer = layer_module(network.layer, layer_weights(weights, i), dtype)
        dense = network.structure.dense
        self.value = Dense(weights, f"blocks.{i}.value") if "value" in dense else None
        self.gate = Dense(weights, f"blocks.{i}.gate") if "gate" in dense else None

    def forward(
        self, x: Tensor, lengths: Tensor, inside: Tensor, masks: Tensor | None = None, training: bool = False
    ) -> Tensor:
        z = self.layer(self.before(x, inside, training), lengths)
        if self.norm is None:
            return z
        x = x + self.mix(z, masks)
        return x if self.structure.prenorm else self.norm(x, inside, training)

    def before(self, x: Tensor, inside: Tensor, training: bool = False) -> Tensor:
        """What reaches the layer."""
        return x if self.norm is None or not self.structure.prenorm else self.norm(x, inside, training)

    def mix(self, z: Tensor, masks: Tensor | None) -> Tensor:
        a = nn.functional.gelu(z)
        if masks is not None:
            a = a * masks[0][:, None]
        if self.gate is None:
            return a
        if self.value is not None:
            z = self.value(a)
        elif self.structure.mix == "half_glu1":
            z = a
        z = z * torch.sigmoid(self.gate(a))
        return z if masks is None else z * masks[1][:, None]


class Classifier(nn.Module):
    """The whole network: (inputs, lengths, dropout masks or None) -> logits, (batch, classes).

    (batch, length, classes) where positions are asked. `masks` are (depth, 2, sequences, d_model), the same at all
    time steps, already divided by the share that is kept. `training`: a batch norm takes what the batch gives and
    keeps its averages. With dtype "bfloat16" activations are bfloat16; parameters, norms, pooling and the decoder
    float32.
    """

    def __init__(self, network: Network, weights: dict[str, np.ndarray], dtype: str) -> None:
        super().__init__()
        self.network, self.dtype = network, DTYPES[dtype]
        if not network.structure.bare:
            self.encoder = Dense(weights, "encoder", tokens=network.tokens)
        self.stack = [Block(network, weights, i, dtype) for i in range(network.depth)]
        self.blocks = nn.ModuleList(self.stack)
        if network.output == "class of a pair":
            self.pair = Dense(weights, "pair")
        self.decoder = Dense(weights, "decoder")
        self.to(PARAMETER_DTYPES[dtype])

    def forward(self, inputs: Tensor, lengths: Tensor, masks: Tensor | None = None, training: bool = False) -> Tensor:
        inputs, lengths = self._sequences(inputs, lengths)
        inside = self._inside(inputs, lengths)
        x = self._encoded(inputs)
        for i, block in enumerate(self.stack):
            x = block(x, lengths, inside, None if masks is None else masks[i], training)
        x = x.to(self.decoder.weight.dtype)
        if self.network.output == "class at each position":
            return self.decoder(x)
        pooled = (x * inside[..., None]).sum(1) / lengths[:, None]
        if self.network.output == "class of a pair":
            p, q = pooled.unflatten(0, (-1, 2)).unbind(1)
            pooled = nn.functional.gelu(self.pair(torch.cat([p, q, p - q, p * q], -1)))
        return self.decoder(pooled)

    @property
    def layers(self) -> list[nn.Module]:
        """Each block's layer."""
        return [block.layer for block in self.stack]

    def layer_inputs(self, inputs: Tensor, lengths: Tensor) -> list[Tensor]:
        """What reaches each block's layer, (sequences, length, d_model) each."""
        inputs, lengths = self._sequences(inputs, lengths)
        inside = self._inside(inputs, lengths)
        found = []
        x = self._encoded(inputs)
        for block in self.stack:
            found.append(block.before(x, inside))
            x = block(x, lengths, inside)
        return found

    def _encoded(self, inputs: Tensor) -> Tensor:
        return (inputs if self.network.structure.bare else self.encoder(inputs)).to(self.dtype)

    def _sequences(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Both sequences of a pair one after the other."""
        return (inputs.flatten(0, 1), lengths.flatten()) if self.network.sequences == 2 else (inputs, lengths)

    @staticmethod
    def _inside(inputs: Tensor, lengths: Tensor) -> Tensor:
        return torch.arange(inputs.shape[1], device=inputs.device)[None, :] < lengths[:, None]


def block_signals(
    network: Network, weights: Mapping[str, np.ndarray], x: np.ndarray, cotangent: np.ndarray, *,
    dtype: str = "float32", device: str = "cpu",
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Squared norms, (depth + 1, batch, length), of what enters each block and leaves the last, and of gradients there.

    x, (batch, length, d_model), enters the first block; the gradients are those of sum(cotangent * what leaves).
    """
    place = find(device)
    module = Classifier(network, dict(weights), dtype).to(place)
    lengths = torch.full((len(x),), x.shape[1], device=place)
    found = [put(x, place, dtype).requires_grad_()]
    inside = module._inside(found[0], lengths)
    for block in module.stack:
        found.append(block(found[-1], lengths, inside))
    gradients = torch.autograd.grad(found[-1], found, put(cotangent, place, dtype))
    squares = [torch.stack([z.detach().double().square().sum(-1) for z in level]) for level in (found, gradients)]
    return get(squares[0]), get(squares[1])


def _parameter(value: np.ndarray, trained: bool = True) -> nn.Parameter:
    return nn.Parameter(torch.tensor(value), requires_grad=trained)  # a copy: training must not change the array

"""The network in flax (nnx): built from numpy weights, with the same names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from bench.backends.jax.device import DTYPES
from bench.backends.jax.layer import layer_module
from bench.network import NORM_EPSILON, Network, layer_weights


class Dense(nnx.Module):
    """x @ weight + bias; with `tokens` x holds row numbers, which stand for one-hot vectors."""

    def __init__(self, weights: Mapping[str, Any], name: str, dtype: str, tokens: bool = False) -> None:
        self.weight = _parameter(weights[f"{name}.weight"], dtype)
        self.bias = _parameter(weights[f"{name}.bias"], dtype)
        self.tokens = tokens

    def __call__(self, x: Array) -> Array:
        return (self.weight[...][x] if self.tokens else x @ self.weight[...]) + self.bias[...]


class LayerNorm(nnx.Module):
    """Zero mean and unit variance over features, then scale and bias."""

    def __init__(self, weights: Mapping[str, Any], name: str, dtype: str) -> None:
        self.scale = _parameter(weights[f"{name}.scale"], dtype)
        self.bias = _parameter(weights[f"{name}.bias"], dtype)

    def __call__(self, x: Array) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt(variance + NORM_EPSILON) * self.scale[...] + self.bias[...]


class Block(nnx.Module):
    """x + drop(value(a) * sigmoid(gate(a))), a = drop(gelu(layer(norm(x))))."""

    def __init__(self, network: Network, weights: Mapping[str, Any], i: int, dtype: str) -> None:
        self.norm = LayerNorm(weights, f"blocks.{i}.norm", dtype)
        self.layer = layer_module(network.layer, layer_weights(weights, i), dtype)
        self.value = Dense(weights, f"blocks.{i}.value", dtype)
        self.gate = Dense(weights, f"blocks.{i}.gate", dtype)

    def __call__(self, x: Array, lengths: Array, masks: Array | None) -> Array:
        a = jax.nn.gelu(self.layer(self.norm(x), lengths), approximate=False)
        if masks is not None:
            a = a * masks[0][:, None]
        z = self.value(a) * jax.nn.sigmoid(self.gate(a))
        return x + (z if masks is None else z * masks[1][:, None])


class Classifier(nnx.Module):
    """The whole network: (inputs, lengths, dropout masks or None) -> logits, (batch, classes).

    `masks` are (depth, 2, batch, d_model), the same at all time steps, already divided by the share that is kept.
    """

    def __init__(self, network: Network, weights: Mapping[str, Any], dtype: str) -> None:
        self.encoder = Dense(weights, "encoder", dtype, tokens=network.tokens)
        self.blocks = nnx.List([Block(network, weights, i, dtype) for i in range(network.depth)])
        self.decoder = Dense(weights, "decoder", dtype)

    def __call__(self, inputs: Array, lengths: Array, masks: Array | None = None) -> Array:
        x = self.encoder(inputs)
        for i, block in enumerate(self.blocks):
            x = block(x, lengths, None if masks is None else masks[i])
        inside = jnp.arange(x.shape[1])[None, :] < lengths[:, None]
        pooled = (x * inside[..., None]).sum(1) / lengths[:, None]
        return self.decoder(pooled)

    def layer_inputs(self, inputs: Array, lengths: Array) -> list[Array]:
        """What reaches each block's layer, (batch, length, d_model) each."""
        found = []
        x = self.encoder(inputs)
        for block in self.blocks:
            found.append(block.norm(x))
            x = block(x, lengths, None)
        return found


def _parameter(value: Any, dtype: str) -> nnx.Param:
    return nnx.Param(jnp.asarray(value, DTYPES[dtype]))

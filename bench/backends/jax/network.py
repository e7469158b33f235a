"""The network in flax (nnx): built from numpy weights, with the same names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from bench.backends.jax.device import DTYPES, PARAMETER_DTYPES, computing, find, get, put
from bench.backends.jax.layer import layer_module
from bench.network import NORM_EPSILON, Network, Structure, layer_weights


class Dense(nnx.Module):
    """x @ weight + bias in x's dtype; with `tokens` x holds row numbers, which stand for one-hot vectors."""

    def __init__(self, weights: Mapping[str, Any], name: str, dtype: str, tokens: bool = False) -> None:
        self.weight = _parameter(weights[f"{name}.weight"], dtype)
        self.bias = _parameter(weights[f"{name}.bias"], dtype)
        self.tokens = tokens

    def __call__(self, x: Array) -> Array:
        if self.tokens:
            return self.weight[...][x] + self.bias[...]
        return x @ self.weight[...].astype(x.dtype) + self.bias[...].astype(x.dtype)


class LayerNorm(nnx.Module):
    """Zero mean and unit variance over features, then scale and bias. Computed in the parameters' dtype."""

    def __init__(self, weights: Mapping[str, Any], name: str, dtype: str) -> None:
        self.scale = _parameter(weights[f"{name}.scale"], dtype)
        self.bias = _parameter(weights[f"{name}.bias"], dtype)

    def __call__(self, x: Array, inside: Array, training: bool) -> Array:
        wide = x.astype(self.scale[...].dtype)
        centred = wide - wide.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        return (centred * jax.lax.rsqrt(variance + NORM_EPSILON) * self.scale[...] + self.bias[...]).astype(x.dtype)


class BatchNorm(nnx.Module):
    """Zero mean and unit variance over the batch's positions that are `inside`, (batch, length), then scale and bias.

    The variance is that of the positions, not an estimate of one behind them. Not in training: the averages kept.
    """

    def __init__(self, weights: Mapping[str, Any], name: str, dtype: str, momentum: float) -> None:
        self.scale = _parameter(weights[f"{name}.scale"], dtype)
        self.bias = _parameter(weights[f"{name}.bias"], dtype)
        self.mean = _parameter(weights[f"{name}.mean"], dtype)
        self.variance = _parameter(weights[f"{name}.variance"], dtype)
        self.momentum = momentum

    def __call__(self, x: Array, inside: Array, training: bool) -> Array:
        wide = x.astype(self.scale[...].dtype)
        mean, variance = self.mean[...], self.variance[...]
        if training:
            share = (inside.astype(wide.dtype) / inside.sum())[..., None]
            mean = (wide * share).sum((0, 1))
            variance = (jnp.square(wide - mean) * share).sum((0, 1))
            for kept, new in ((self.mean, mean), (self.variance, variance)):
                before = kept[...]
                kept[...] = before + (1 - self.momentum) * (jax.lax.stop_gradient(new) - before)
        factor = jax.lax.rsqrt(variance + NORM_EPSILON) * self.scale[...]
        return ((wide - mean) * factor + self.bias[...]).astype(x.dtype)


def _norm(structure: Structure, weights: Mapping[str, Any], name: str, dtype: str) -> LayerNorm | BatchNorm:
    if structure.norm == "batch":
        return BatchNorm(weights, name, dtype, structure.momentum)
    return LayerNorm(weights, name, dtype)


class Block(nnx.Module):
    """A layer with its norm, mix and residual: see `bench.network`."""

    def __init__(self, network: Network, weights: Mapping[str, Any], i: int, dtype: str) -> None:
        self.structure = network.structure
        self.norm = None if network.structure.bare else _norm(network.structure, weights, f"blocks.{i}.norm", dtype)
        self.layer = layer_module(network.layer, layer_weights(weights, i), dtype)
        dense = network.structure.dense
        self.value = Dense(weights, f"blocks.{i}.value", dtype) if "value" in dense else None
        self.gate = Dense(weights, f"blocks.{i}.gate", dtype) if "gate" in dense else None

    def __call__(
        self, x: Array, lengths: Array, inside: Array, masks: Array | None = None, training: bool = False
    ) -> Array:
        z = self.layer(self.before(x, inside, training), lengths)
        if self.norm is None:
            return z
        x = x + self.mix(z, masks)
        return x if self.structure.prenorm else self.norm(x, inside, training)

    def before(self, x: Array, inside: Array, training: bool = False) -> Array:
        """What reaches the layer."""
        return x if self.norm is None or not self.structure.prenorm else self.norm(x, inside, training)

    def mix(self, z: Array, masks: Array | None) -> Array:
        a = jax.nn.gelu(z, approximate=False)
        if masks is not None:
            a = a * masks[0][:, None]
        if self.gate is None:
            return a
        if self.value is not None:
            z = self.value(a)
        elif self.structure.mix == "half_glu1":
            z = a
        z = z * jax.nn.sigmoid(self.gate(a))
        return z if masks is None else z * masks[1][:, None]


class Classifier(nnx.Module):
    """The whole network: (inputs, lengths, dropout masks or None) -> logits, (batch, classes).

    (batch, length, classes) where positions are asked. `masks` are (depth, 2, sequences, d_model), the same at all
    time steps, already divided by the share that is kept. `training`: a batch norm takes what the batch gives and
    keeps its averages. With dtype "bfloat16" activations are bfloat16; parameters, norms, pooling and the decoder
    float32.
    """

    def __init__(self, network: Network, weights: Mapping[str, Any], dtype: str) -> None:
        self.network, self.dtype = network, dtype
        if not network.structure.bare:
            self.encoder = Dense(weights, "encoder", dtype, tokens=network.tokens)
        self.blocks = nnx.List([Block(network, weights, i, dtype) for i in range(network.depth)])
        if network.output == "class of a pair":
            self.pair = Dense(weights, "pair", dtype)
        self.decoder = Dense(weights, "decoder", dtype)

    def __call__(self, inputs: Array, lengths: Array, masks: Array | None = None, training: bool = False) -> Array:
        inputs, lengths = self._sequences(inputs, lengths)
        inside = self._inside(inputs, lengths)
        x = self._encoded(inputs)
        for i, block in enumerate(self.blocks):
            x = block(x, lengths, inside, None if masks is None else masks[i], training)
        x = x.astype(PARAMETER_DTYPES[self.dtype])
        if self.network.output == "class at each position":
            return self.decoder(x)
        pooled = (x * inside[..., None]).sum(1) / lengths[:, None]
        if self.network.output == "class of a pair":
            p, q = pooled[0::2], pooled[1::2]
            pooled = jax.nn.gelu(self.pair(jnp.concatenate([p, q, p - q, p * q], -1)), approximate=False)
        return self.decoder(pooled)

    def averages(self) -> dict[str, Array]:
        """What the batch norms keep, by name."""
        found = {}
        for i, block in enumerate(self.blocks):
            if isinstance(block.norm, BatchNorm):
                found[f"blocks.{i}.norm.mean"] = block.norm.mean[...]
                found[f"blocks.{i}.norm.variance"] = block.norm.variance[...]
        return found

    def layer_inputs(self, inputs: Array, lengths: Array) -> list[Array]:
        """What reaches each block's layer, (sequences, length, d_model) each."""
        inputs, lengths = self._sequences(inputs, lengths)
        inside = self._inside(inputs, lengths)
        found = []
        x = self._encoded(inputs)
        for block in self.blocks:
            found.append(block.before(x, inside))
            x = block(x, lengths, inside)
        return found

    def _encoded(self, inputs: Array) -> Array:
        return (inputs if self.network.structure.bare else self.encoder(inputs)).astype(DTYPES[self.dtype])

    def _sequences(self, inputs: Array, lengths: Array) -> tuple[Array, Array]:
        """Both sequences of a pair one after the other."""
        if self.network.sequences == 1:
            return inputs, lengths
        return inputs.reshape(-1, *inputs.shape[2:]), lengths.reshape(-1)

    @staticmethod
    def _inside(inputs: Array, lengths: Array) -> Array:
        return jnp.arange(inputs.shape[1])[None, :] < lengths[:, None]


def block_signals(
    network: Network, weights: Mapping[str, np.ndarray], x: np.ndarray, cotangent: np.ndarray, *,
    dtype: str = "float32", device: str = "cpu",
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Squared norms, (depth + 1, batch, length), of what enters each block and leaves the last, and of gradients there.

    x, (batch, length, d_model), enters the first block; the gradients are those of sum(cotangent * what leaves).
    """
    place = find(device)
    with computing(dtype, place):
        placed = {name: put(np.asarray(value, PARAMETER_DTYPES[dtype]), place) for name, value in weights.items()}
        found, gradients = _block_signals(network, dtype, placed, put(x, place, dtype), put(cotangent, place, dtype))
        return _squares(found), _squares(gradients)


def _squares(levels: list[Array]) -> np.ndarray:
    return np.stack([np.sum(np.square(get(level), dtype=np.float64), -1) for level in levels])


@partial(jax.jit, static_argnums=(0, 1))
def _block_signals(
    network: Network, dtype: str, weights: Mapping[str, Array], x: Array, cotangent: Array
) -> tuple[list[Array], list[Array]]:
    module = Classifier(network, weights, dtype)
    lengths = jnp.full(len(x), x.shape[1])
    inside = module._inside(x, lengths)

    def product(moves: list[Array]) -> tuple[Array, list[Array]]:
        found = [x + moves[0]]
        for block, move in zip(module.blocks, moves[1:], strict=True):
            found.append(block(found[-1], lengths, inside) + move)
        return (found[-1] * cotangent).sum(), found

    gradients, found = jax.grad(product, has_aux=True)([jnp.zeros_like(x)] * (network.depth + 1))
    return found, gradients


def _parameter(value: Any, dtype: str) -> nnx.Param:
    return nnx.Param(jnp.asarray(value, PARAMETER_DTYPES[dtype]))

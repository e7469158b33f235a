"""Layers and networks in jax. Public and stable for others: `layer_function`, `system`, `FunctionModule`."""

from bench.backends.jax.dense import dense_states
from bench.backends.jax.device import describe, set_process, synchronize
from bench.backends.jax.layer import (
    FunctionModule,
    apply,
    apply_from,
    apply_in_turn,
    decode_step,
    decoder,
    energies,
    gradients,
    kernel_name,
    layer_function,
    layer_module,
    stateful_outputs,
    states,
    system,
)
from bench.backends.jax.limits import matrix_product, memory_copy
from bench.backends.jax.network import block_signals
from bench.backends.jax.program import Program
from bench.backends.jax.training import Trainer

__all__ = [
    "FunctionModule",
    "Program",
    "Trainer",
    "apply",
    "apply_from",
    "apply_in_turn",
    "block_signals",
    "decode_step",
    "decoder",
    "dense_states",
    "describe",
    "energies",
    "gradients",
    "kernel_name",
    "layer_function",
    "layer_module",
    "matrix_product",
    "memory_copy",
    "set_process",
    "stateful_outputs",
    "states",
    "synchronize",
    "system",
]

"""Layers and networks in torch. Public and stable for others: `layer_module`, `system`, `FunctionModule`."""

from bench.backends.torch.dense import dense_states
from bench.backends.torch.device import describe, set_process, synchronize
from bench.backends.torch.layer import (
    FunctionModule,
    apply,
    apply_from,
    apply_in_turn,
    decode_step,
    decoder,
    energies,
    gradients,
    kernel_name,
    layer_module,
    stateful_outputs,
    states,
    system,
)
from bench.backends.torch.limits import matrix_product, memory_copy
from bench.backends.torch.network import block_signals
from bench.backends.torch.program import Program
from bench.backends.torch.training import Trainer

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
    "layer_module",
    "matrix_product",
    "memory_copy",
    "set_process",
    "stateful_outputs",
    "states",
    "synchronize",
    "system",
]

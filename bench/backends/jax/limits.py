"""Calls that nothing but the machine limits: a large matrix product and a large copy."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from bench.backends.jax.device import DTYPES, computing, find


def matrix_product(dtype: str, device: str, n: int) -> tuple[_Call, float]:
    """A product of two square matrices of n rows, and its operations, 2 n^3."""
    with computing(dtype, find(device)):
        a = jnp.full((n, n), 0.5, DTYPES[dtype])
        return _Call(jax.jit(lambda x: x @ x), a), 2.0 * n**3


def memory_copy(device: str, size: int) -> tuple[_Call, float]:
    """A negation of `size` bytes in place, and the bytes that it moves: each is read and written."""
    count = size // 4
    with computing("float32", find(device)):
        a = jnp.ones(count, jnp.float32)
        return _Call(jax.jit(lambda x: -x, donate_argnums=0), a, in_place=True), 2.0 * 4 * count


class _Call:
    """See `bench.measure.timing.Call`. Work in place gets its own result: new memory would cost more than the work."""

    def __init__(self, function, argument: jax.Array, in_place: bool = False) -> None:
        self.function = function.lower(argument).compile()
        self.argument, self.in_place = argument, in_place
        self.result: jax.Array = argument

    def launch(self) -> None:
        self.result = self.function(self.argument)
        if self.in_place:
            self.argument = self.result

    def wait(self) -> None:
        jax.block_until_ready(self.result)

    def device_clock(self) -> None:
        return None

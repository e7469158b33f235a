"""Calls that nothing but the machine limits: a large matrix product and a large copy."""

from __future__ import annotations

import torch

from bench.backends.torch.device import DTYPES, find, synchronize


def matrix_product(dtype: str, device: str, n: int) -> tuple[_Call, float]:
    """A product of two square matrices of n rows, and its operations, 2 n^3."""
    place = find(device)
    a = torch.rand(n, n, device=place).to(DTYPES[dtype])
    out = torch.empty_like(a)
    return _Call(lambda: torch.mm(a, a, out=out), place), 2.0 * n**3


def memory_copy(device: str, size: int) -> tuple[_Call, float]:
    """A copy of `size` bytes, and the bytes that it moves: each is read and written."""
    place = find(device)
    count = size // 4
    a, out = torch.ones(count, device=place), torch.zeros(count, device=place)
    return _Call(lambda: out.copy_(a), place), 2.0 * 4 * count


class _Call:
    """See `bench.measure.timing.Call`."""

    def __init__(self, function, place: torch.device) -> None:
        self.function, self.place = function, place

    def launch(self) -> None:
        self.function()

    def wait(self) -> None:
        synchronize(self.place)

    def device_clock(self) -> None:
        return None

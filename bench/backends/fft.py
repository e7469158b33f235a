"""Sizes at which FFTs are fast."""

from __future__ import annotations

ODD = (1, 3, 5, 9, 15, 25, 27, 45, 75, 81, 125, 135)
"""Odd parts of sizes: products of 3 and 5, so that a size has no other prime factor than 2, 3 and 5."""


def size(length: int) -> int:
    """The least m 2^k, m in `ODD`, that holds the product of two sequences: 2 length - 1, so nothing wraps around.

    Plain arithmetic, which torch.compile can follow.
    """
    needed = 2 * length - 1
    return min([m << (-(-needed // m) - 1).bit_length() for m in ODD])

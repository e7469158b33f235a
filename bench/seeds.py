"""Where randomness comes from: one independent numpy generator for each purpose, and no global one."""

from __future__ import annotations

import hashlib

import numpy as np


def generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """The generator of a seed for a purpose: the same on every machine, in every order, whatever else is drawn."""
    digest = hashlib.sha256("/".join(map(str, purpose)).encode()).digest()
    return np.random.default_rng(np.random.SeedSequence([seed, int.from_bytes(digest[:16], "little")]))

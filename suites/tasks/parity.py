"""Parity: is the number of ones odd?"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from bench.contract import NOT_ASKED, Split, require
from suites.tasks.generated import Arrays, Generated, require_counts

END = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parity(Generated):
    """`bits` random zeros and ones and an end mark, at which class 1 stands for an odd number of ones.

    With `cumulative` every bit has a target too: the parity of all up to it.
    """

    source: ClassVar[str] = "Hahn 2020 (parity as a formal language)"
    per_position: ClassVar[bool] = True
    name: ClassVar[str] = "parity"

    bits: int = 40
    cumulative: bool = False

    def check(self) -> None:
        require_counts(self, "bits")
        require(isinstance(self.cumulative, bool), f"cumulative must be true or false, not {self.cumulative!r}")

    @property
    def length(self) -> int:
        return self.bits + 1

    @property
    def classes(self) -> int:
        return 2

    @property
    def vocabulary(self) -> tuple[str, ...]:
        return ("0", "1", "<end>")

    @property
    def different(self) -> float:
        return float(2 ** min(self.bits, 1000))

    def draw(self, rng: np.random.Generator, count: int) -> Arrays:
        return {"inputs": rng.integers(0, 2, (count, self.bits), np.uint8)}

    def split(self, arrays: Arrays) -> Split:
        bits = arrays["inputs"].astype(np.int32)
        inputs = np.pad(bits, ((0, 0), (0, 1)), constant_values=END)
        odd = np.cumsum(bits, axis=1, dtype=np.int32) % 2
        targets = np.pad(odd, ((0, 0), (0, 1)), mode="edge")
        if not self.cumulative:
            targets[:, :-1] = NOT_ASKED
        return Split(inputs=inputs, lengths=np.full(len(bits), self.length, np.int32), targets=targets)

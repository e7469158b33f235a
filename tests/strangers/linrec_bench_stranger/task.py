"""Is the number of ones odd?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench import Task
from bench.contract import Dataset, Split, require
from bench.data import dataset
from bench.seeds import generator


@dataclass(frozen=True, kw_only=True)
class Odd(Task):
    """Sequences of `bits` random zeros and ones; class 1 where the ones are odd in number."""

    bits: int = 12
    examples: int = 64

    def __post_init__(self) -> None:
        require(self.bits >= 1, f"bits must be at least 1, not {self.bits}")
        require(self.examples >= 1, f"examples must be at least 1, not {self.examples}")

    @property
    def length(self) -> int:
        return self.bits

    @property
    def classes(self) -> int:
        return 2

    @property
    def vocabulary(self) -> tuple[str, ...]:
        return ("0", "1")

    def load(self, seed: int) -> Dataset:
        splits = [self._split(seed, name) for name in ("train", "validation", "test")]
        return dataset(*splits, vocabulary_size=2, classes=2)

    def _split(self, seed: int, name: str) -> Split:
        inputs = generator(seed, "odd", name).integers(0, 2, (self.examples, self.bits), dtype=np.int32)
        lengths = np.full(self.examples, self.bits, np.int32)
        return Split(inputs=inputs, lengths=lengths, targets=(inputs.sum(1) % 2).astype(np.int32))

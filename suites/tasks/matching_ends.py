"""Matching ends: whether the first and the last step of a long sequence of noise are alike."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from bench.contract import Split
from suites.tasks.generated import Arrays, Generated, require_counts


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatchingEnds(Generated):
    """Sequences (length, width): the first and the last step are all ones or all zeros, each by a fair coin.

    All steps between are standard normal, rounded to half precision, as they are kept. Class 1: both ends are alike.
    """

    source: ClassVar[str] = "Biegun et al. 2024, arXiv 2407.07239, the authors' public code"
    name: ClassVar[str] = "matching-ends"

    length: int = 1000
    width: int = 128
    train: int = 1000
    validation: int = 64
    test: int = 64

    def check(self) -> None:
        require_counts(self, "length", least=3)
        require_counts(self, "width")

    @property
    def classes(self) -> int:
        return 2

    @property
    def features(self) -> int:
        return self.width

    @property
    def different(self) -> float:
        return float("inf")

    def draw(self, rng: np.random.Generator, count: int) -> Arrays:
        inputs = rng.standard_normal((count, self.length, self.width), np.float32).astype(np.float16)
        ends = rng.integers(0, 2, (count, 2))
        inputs[:, 0], inputs[:, -1] = ends[:, :1], ends[:, 1:]
        return {"inputs": inputs, "targets": (ends[:, 0] == ends[:, 1]).astype(np.int32)}

    def split(self, arrays: Arrays) -> Split:
        inputs = arrays["inputs"].astype(np.float32)
        lengths = np.full(len(inputs), self.length, np.int32)
        return Split(inputs=inputs, lengths=lengths, targets=arrays["targets"])

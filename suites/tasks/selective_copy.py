"""Selective copying: symbols lie anywhere among blanks, and are then asked for in order."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np

from bench.contract import Split, require
from suites.tasks.copying import BLANK, names, reproduced
from suites.tasks.generated import Arrays, Generated, require_counts


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectiveCopy(Generated):
    """`tokens` symbols at random places among blanks, then `tokens` marks, at which the symbols are the targets.

    Any set of places before the marks is equally likely, the very last one included. Of `vocabulary_size` tokens the
    first is the blank, the last the mark, and all others are symbols; targets are token ids.
    """

    source: ClassVar[str] = "Gu and Dao 2023 (Mamba); Poli et al. 2024 (MAD)"
    per_position: ClassVar[bool] = True
    name: ClassVar[str] = "selective-copy"

    length: int = 256
    tokens: int = 16
    vocabulary_size: int = 16
    train: int = 12_800
    validation: int = 1_280
    test: int = 1_280

    def check(self) -> None:
        require_counts(self, "length", "tokens")
        require_counts(self, "vocabulary_size", least=4)
        require(
            self.length >= 2 * self.tokens,
            f"length={self.length} is too short to show tokens={self.tokens} symbols and to ask for each",
        )

    @property
    def classes(self) -> int:
        return self.vocabulary_size

    @property
    def vocabulary(self) -> tuple[str, ...]:
        return names(self.vocabulary_size)

    @property
    def different(self) -> float:
        places = math.comb(self.length - self.tokens, self.tokens)
        return float(min(places * (self.vocabulary_size - 2) ** self.tokens, 10**300))

    def draw(self, rng: np.random.Generator, count: int) -> Arrays:
        inputs = np.full((count, self.length), BLANK, np.int32)
        inputs[:, -self.tokens :] = self.vocabulary_size - 1
        places = np.argsort(rng.random((count, self.length - self.tokens)), axis=1)[:, : self.tokens]
        symbols = rng.integers(1, self.vocabulary_size - 1, places.shape, dtype=np.int32)
        np.put_along_axis(inputs, places, symbols, axis=1)
        return {"inputs": inputs}

    def split(self, arrays: Arrays) -> Split:
        return reproduced(arrays["inputs"], self.tokens)

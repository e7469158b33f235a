"""Copying: symbols are shown, then nothing for a while, then they are asked for in order."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from bench.contract import NOT_ASKED, Split
from suites.tasks.generated import Arrays, Generated, require_counts

BLANK = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Copying(Generated):
    """`memorise` symbols, `noise` blanks, and `memorise` marks, at which the symbols are the targets, as token ids.

    Of `vocabulary_size` tokens the first is the blank, the last the mark, and all others are symbols.
    """

    source: ClassVar[str] = "Hochreiter and Schmidhuber 1997; Arjovsky et al. 2016"
    per_position: ClassVar[bool] = True
    name: ClassVar[str] = "copying"

    noise: int = 100
    memorise: int = 10
    vocabulary_size: int = 10

    def check(self) -> None:
        require_counts(self, "noise", least=0)
        require_counts(self, "memorise")
        require_counts(self, "vocabulary_size", least=4)

    @property
    def length(self) -> int:
        return self.noise + 2 * self.memorise

    @property
    def classes(self) -> int:
        return self.vocabulary_size

    @property
    def vocabulary(self) -> tuple[str, ...]:
        return names(self.vocabulary_size)

    @property
    def different(self) -> float:
        return float(min((self.vocabulary_size - 2) ** self.memorise, 10**300))

    def draw(self, rng: np.random.Generator, count: int) -> Arrays:
        inputs = np.full((count, self.length), BLANK, np.int32)
        inputs[:, : self.memorise] = rng.integers(1, self.vocabulary_size - 1, (count, self.memorise))
        inputs[:, -self.memorise :] = self.vocabulary_size - 1
        return {"inputs": inputs}

    def split(self, arrays: Arrays) -> Split:
        return reproduced(arrays["inputs"], self.memorise)


def names(vocabulary_size: int) -> tuple[str, ...]:
    """The blank, the symbols, and the mark where a symbol is asked for."""
    return ("<blank>", *(f"symbol {number}" for number in range(1, vocabulary_size - 1)), "<answer>")


def reproduced(inputs: np.ndarray, many: int) -> Split:
    """Examples that end with `many` marks, before which stand as many symbols, anywhere: their targets at the marks."""
    shown = inputs[:, :-many]
    targets = np.full(inputs.shape, NOT_ASKED, np.int32)
    targets[:, -many:] = shown[shown != BLANK].reshape(-1, many)
    return Split(inputs=inputs, lengths=np.full(len(inputs), inputs.shape[1], np.int32), targets=targets)

"""Multi-query associative recall: pairs of keys and values are shown, then each key is asked for its value."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

import numpy as np

from bench.contract import NOT_ASKED, Dataset, Split, require
from suites.tasks.generated import Arrays, Generated, require_counts

FILL = 0
SLOT_POWER = 0.01 - 1
"""The g-th slot after the pairs is drawn with a weight of g to this power, so that early ones are likelier."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MQAR(Generated):
    """`kv_pairs` keys, each followed by its value; then each key once more, where the target is its value's token id.

    Keys are 1 .. vocabulary_size/2 - 1, values vocabulary_size/2 .. vocabulary_size - 1, neither with repeats in one
    example. The places after the pairs make up slots of two; the keys stand at the first place of slots that are drawn
    without replacement, early ones more often, and any key may get any slot. So questions only stand at even places,
    counted from 0: a cue of position, which the original has too. All other places hold 0 or, with `filler="random"`,
    any other tokens: they may be keys, also those of the example, which are not asked there.
    """

    source: ClassVar[str] = "Arora et al. 2024 (Zoology)"
    per_position: ClassVar[bool] = True
    name: ClassVar[str] = "mqar"

    length: int = 64
    kv_pairs: int = 4
    vocabulary_size: int = 8192
    filler: Literal["zero", "random"] = "zero"
    train: int = 100_000
    validation: int = 3_000
    test: int = 3_000

    def check(self) -> None:
        require_counts(self, "length", "kv_pairs")
        require_counts(self, "vocabulary_size", least=4)
        require(self.filler in ("zero", "random"), f"filler must be zero or random, not {self.filler!r}")
        require(
            self._slots >= self.kv_pairs,
            f"length={self.length} is too short for kv_pairs={self.kv_pairs}: 4 places are needed for each pair",
        )
        require(
            self._half - 1 >= self.kv_pairs,
            f"vocabulary_size={self.vocabulary_size} has {self._half - 1} keys, fewer than kv_pairs={self.kv_pairs}",
        )

    @property
    def _half(self) -> int:
        return self.vocabulary_size // 2

    @property
    def _slots(self) -> int:
        return (self.length - 2 * self.kv_pairs) // 2

    @property
    def classes(self) -> int:
        return self.vocabulary_size

    @property
    def vocabulary(self) -> tuple[str, ...]:
        keys = (f"key {number}" for number in range(1, self._half))
        values = (f"value {number}" for number in range(self.vocabulary_size - self._half))
        return ("<fill>", *keys, *values)

    @property
    def different(self) -> float:
        values = self.vocabulary_size - self._half
        filled = self.length - 3 * self.kv_pairs if self.filler == "random" else 0
        choices = [math.perm(number, self.kv_pairs) for number in (self._half - 1, values, self._slots)]
        return _float(math.prod(choices) * (self.vocabulary_size - 1) ** filled)

    def draw(self, rng: np.random.Generator, count: int) -> Arrays:
        keys = _without_repeats(rng, count, np.arange(1, self._half), self.kv_pairs)
        values = _without_repeats(rng, count, np.arange(self._half, self.vocabulary_size), self.kv_pairs)
        # The first of a race of exponential clocks are a weighted draw without replacement.
        weights = np.arange(1, self._slots + 1) ** SLOT_POWER
        slots = np.argsort(rng.exponential(size=(count, self._slots)) / weights, axis=1)[:, : self.kv_pairs]
        asked_at = 2 * self.kv_pairs + 2 * rng.permuted(slots, axis=1)
        inputs = np.full((count, self.length), FILL, np.int32)
        if self.filler == "random":
            inputs[:] = rng.integers(1, self.vocabulary_size, inputs.shape)
        inputs[:, 0 : 2 * self.kv_pairs : 2], inputs[:, 1 : 2 * self.kv_pairs : 2] = keys, values
        np.put_along_axis(inputs, asked_at, keys, axis=1)
        targets = np.full((count, self.length), NOT_ASKED, np.int32)
        np.put_along_axis(targets, asked_at, values, axis=1)
        return {"inputs": inputs, "targets": targets}

    def split(self, arrays: Arrays) -> Split:
        lengths = np.full(len(arrays["inputs"]), self.length, np.int32)
        return Split(inputs=arrays["inputs"], lengths=lengths, targets=arrays["targets"])

    def floors(self, data: Dataset) -> dict[str, float]:
        """Majority: the most frequent value. First value: always the one that was shown first, right for one key."""
        seen, targets = data.train.targets, data.test.targets
        asked = targets != NOT_ASKED
        majority = np.bincount(seen[seen != NOT_ASKED]).argmax()
        guesses = {"majority": majority, "first value": data.test.inputs[:, 1, None]}
        return {
            name: float((((targets == guess) & asked).sum(-1) / asked.sum(-1)).mean())
            for name, guess in guesses.items()
        }


def _without_repeats(rng: np.random.Generator, count: int, pool: np.ndarray, many: int) -> np.ndarray:
    """(count, many) of `pool`, in each row all orders of all subsets equally likely: the start of a shuffle."""
    pools, row = np.tile(pool.astype(np.int32), (count, 1)), np.arange(count)
    for place in range(many):
        other = rng.integers(place, len(pool), count)
        pools[row, place], pools[row, other] = pools[row, other], pools[row, place]
    return pools[:, :many]


def _float(number: int) -> float:
    return float(min(number, 10**300))

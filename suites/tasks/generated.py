"""What exact generators share: options that count, examples that all differ, and a cache."""

from __future__ import annotations

import dataclasses
import hashlib
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from bench.cache import cached_arrays
from bench.contract import Dataset, Split, Task, require
from bench.data import dataset
from bench.seeds import generator
from suites.tasks.floors import by_position, cached, fitted, ridge

PARTS = ("test", "validation", "train")
"""The order in which splits are drawn: more of `train` leaves the others as they are."""

DRAWN_AT_ONCE = 1_000
BARREN = 1_000
"""After so many draws of `DRAWN_AT_ONCE` examples without a new one the search is given up."""

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generated(Task):
    """A task whose examples are drawn independently by a rule. No two inputs are equal, in one split or across splits.

    Data depend on the seed, the task and its options; splits are drawn one by one, test first, so that more training
    examples change neither validation nor test. `train`, `validation` and `test` count examples.
    """

    name: ClassVar[str]
    """In the cache, and for the generators."""
    version: ClassVar[int] = 1
    """Of the data: another number after any change to what is drawn, so that no old cache is used."""

    train: int = 10_000
    validation: int = 1_000
    test: int = 1_000

    def __post_init__(self) -> None:
        require_counts(self, *PARTS)
        self.check()
        wanted, available = sum(getattr(self, part) for part in PARTS), self.different
        require(
            wanted <= available,
            f"train + validation + test = {wanted}, but these options leave only {available:.0f} different examples",
        )

    @abstractmethod
    def check(self) -> None:
        """ValueError where options do not fit."""

    @property
    @abstractmethod
    def different(self) -> float:
        """How many different inputs the options allow."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, count: int) -> Arrays:
        """`count` independent examples: arrays (count, ...). Examples with equal "inputs" count as equal."""

    @abstractmethod
    def split(self, arrays: Arrays) -> Split:
        """Of what `draw` gave, the inputs, lengths and targets."""

    def locate(self) -> str:
        return "generated"

    def load(self, seed: int) -> Dataset:
        """The data of this seed. ValueError: a negative seed, or options that too few examples meet."""
        require_seed(seed)
        options = {name: _plain(value) for name, value in dataclasses.asdict(self).items()}
        arrays = cached_arrays(
            self.name, {"version": self.version, "seed": int(seed), **options}, lambda: self._drawn(int(seed), options)
        )
        splits = {
            part: self.split({key.partition("/")[2]: array for key, array in arrays.items() if key.startswith(part)})
            for part in PARTS
        }
        size = None if self.vocabulary is None else len(self.vocabulary)
        return dataset(
            splits["train"], splits["validation"], splits["test"], vocabulary_size=size, classes=self.classes
        )

    def floors(self, data: Dataset) -> dict[str, float]:
        """The majority, or for numbers the mean; "by position": the most frequent class there; "linear": of numbers."""
        found = super().floors(data)
        if self.per_position:
            return found | cached(data, {"by position": by_position})
        return found | (fitted(data, {"linear": ridge}) if self.numeric else fitted(data))

    def _drawn(self, seed: int, options: dict[str, object]) -> Arrays:
        purpose = [f"{name}={value}" for name, value in options.items() if name not in PARTS]
        taken: set[bytes] = set()
        arrays: Arrays = {}
        for part in PARTS:
            rng = generator(seed, self.name, *purpose, part)
            for key, array in distinct(self.draw, rng, getattr(self, part), taken).items():
                arrays[f"{part}/{key}"] = array
        return arrays


def distinct(
    draw: Callable[[np.random.Generator, int], Arrays], rng: np.random.Generator, count: int, taken: set[bytes]
) -> Arrays:
    """The first `count` examples drawn whose inputs are new; their hashes are added to those in `taken`.

    ValueError: new ones are too rare to be found.
    """
    pieces: list[Arrays] = []
    found = barren = 0
    while found < count:
        drawn = draw(rng, DRAWN_AT_ONCE)
        kept = []
        for row, example in enumerate(np.ascontiguousarray(drawn["inputs"])):
            digest = hashlib.blake2b(example, digest_size=16).digest()
            if found < count and digest not in taken:
                taken.add(digest)
                kept.append(row)
                found += 1
        pieces.append({name: array[kept] for name, array in drawn.items()})
        barren = 0 if kept else barren + 1
        require(barren < BARREN, f"different examples are too rare: the search ended after {found} of {count}")
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def is_integer(number: object) -> bool:
    """Whether this is a whole number; True and False are none."""
    return isinstance(number, int | np.integer) and not isinstance(number, bool)


def require_counts(task: Task, *names: str, least: int = 1) -> None:
    """ValueError unless these options of the task are integers of at least `least`."""
    for name in names:
        number = getattr(task, name)
        require(
            is_integer(number) and number >= least, f"{name} must be an integer of at least {least}, not {number!r}"
        )


def require_seed(seed: object) -> None:
    """ValueError unless this is an integer of at least 0."""
    require(is_integer(seed) and seed >= 0, f"seed must be an integer of at least 0, not {seed!r}")  # type: ignore[operator]


def _plain(value: object) -> object:
    return int(value) if isinstance(value, np.integer) else value

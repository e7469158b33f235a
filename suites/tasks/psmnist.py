"""psMNIST: handwritten digits, read pixel by pixel in an order that hides what lies side by side."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal, get_args

import numpy as np

from bench.contract import Dataset, Task
from bench.data import dataset
from suites.tasks import floors, mnist_files, preprocessing
from suites.tasks.mnist_files import CLASSES, PIXELS

Permutation = Literal["random", "bit-reversal"]

PERMUTATION_SEED = 42


@dataclasses.dataclass(frozen=True, kw_only=True)
class PSMNIST(Task):
    """MNIST with its pixels in one order for all: (784, 1), grey values in 0..1, 10 classes; splits as in `smnist`.

    `permutation="random"` is one draw that never changes. "bit-reversal": places 0 to 1023 by their ten binary digits
    read backwards, without those that lie beyond the image.
    """

    source: ClassVar[str] = "LeCun et al. 1998 (MNIST); Le et al. 2015 (permuted)"
    licence: ClassVar[str] = "the user's copy; its source names the terms"

    permutation: Permutation = "random"

    def __post_init__(self) -> None:
        preprocessing.choose("permutation", self.permutation, get_args(Permutation))

    @property
    def length(self) -> int:
        return PIXELS

    @property
    def classes(self) -> int:
        return CLASSES

    @property
    def features(self) -> int:
        return 1

    def locate(self) -> str:
        mnist_files.locate()
        return preprocessing.PLACE

    def load(self, seed: int) -> Dataset:
        """The images; `seed` changes nothing. Missing: no files. ValueError: two copies, or a malformed file."""
        if self.permutation == "random":
            order = np.random.default_rng(PERMUTATION_SEED).permutation(PIXELS)
        else:
            order = bit_reversal(PIXELS)
        return dataset(*mnist_files.read(order), vocabulary_size=None, classes=CLASSES)

    def floors(self, data: Dataset) -> dict[str, float]:
        return super().floors(data) | floors.fitted(data)


def bit_reversal(places: int) -> np.ndarray:
    """The numbers below `places`, (places,), in the order of their binary digits read backwards."""
    bits = (places - 1).bit_length()
    numbers = np.arange(1 << bits)
    reverse = sum(((numbers >> bit) & 1) << (bits - 1 - bit) for bit in range(bits))
    order = np.asarray(reverse)
    return order[order < places]

"""sMNIST: handwritten digits, read pixel by pixel."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from bench.contract import Dataset, Task
from bench.data import dataset
from suites.tasks import floors, mnist_files, preprocessing
from suites.tasks.mnist_files import CLASSES, PIXELS


@dataclasses.dataclass(frozen=True, kw_only=True)
class SMNIST(Task):
    """MNIST row after row: (784, 1), grey values in 0..1, 10 classes; a tenth of each class of train is validation.

    Read from the user's own train-images-idx3-ubyte (.gz) and the like, below the folder in BENCH_DATA.
    """

    source: ClassVar[str] = "LeCun et al. 1998 (MNIST); Le et al. 2015 (as sequences)"
    licence: ClassVar[str] = "the user's copy; its source names the terms"

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
        return dataset(*mnist_files.read(np.arange(PIXELS)), vocabulary_size=None, classes=CLASSES)

    def floors(self, data: Dataset) -> dict[str, float]:
        return super().floors(data) | floors.fitted(data)

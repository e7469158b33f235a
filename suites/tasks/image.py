"""Image: small photographs in grey, read pixel by pixel (Long Range Arena)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from bench.contract import Dataset, Task
from bench.data import dataset
from suites.tasks import cifar_files, floors, preprocessing
from suites.tasks.cifar_files import CLASSES, PIXELS
from suites.tasks.preprocessing import Preprocessing

MEAN, SD = 122.6, 61.0
"""Of grey values, 0 to 255, as published code has them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Image(Task):
    """CIFAR-10 in grey, row after row: (1024, 1), 10 classes; a tenth of each class of train is the validation split.

    Grey is (19595 R + 38470 G + 7471 B + 32768) >> 16. Read from the user's own cifar-10-batches-py, below the folder
    in BENCH_DATA. `preprocessing="paper"`: minus 122.6, over 61. "clean": mean and sd are those of the training split.
    """

    source: ClassVar[str] = "Krizhevsky 2009 (CIFAR-10); Tay et al. 2021 (Long Range Arena)"
    licence: ClassVar[str] = "the user's copy; its source names the terms"

    preprocessing: Preprocessing = "paper"

    def __post_init__(self) -> None:
        preprocessing.check(self.preprocessing)

    @property
    def published(self) -> tuple[str, str] | None:
        return ("LRA", "Image")

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
        cifar_files.locate()
        return preprocessing.PLACE

    def load(self, seed: int) -> Dataset:
        """The images; `seed` changes nothing. Missing: no files. ValueError: two copies, or a batch that is none."""
        parts, labels = cifar_files.read()
        images = [cifar_files.grey(pixels)[:, :, None] for pixels in parts]
        mean, sd = np.array([MEAN]), np.array([SD])
        if self.preprocessing == "clean":
            mean, sd = preprocessing.feature_moments(images[0], np.arange(len(images[0])))
        splits = preprocessing.image_splits(images, labels, mean, sd)
        return dataset(*splits, vocabulary_size=None, classes=CLASSES)

    def floors(self, data: Dataset) -> dict[str, float]:
        return super().floors(data) | floors.fitted(data)

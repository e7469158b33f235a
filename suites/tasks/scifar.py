"""sCIFAR: small photographs in colour, read pixel by pixel."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from bench.contract import Dataset, Task
from bench.data import dataset
from suites.tasks import cifar_files, floors, preprocessing
from suites.tasks.cifar_files import CLASSES, COLOURS, PIXELS
from suites.tasks.preprocessing import Preprocessing

MEANS, SDS = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)
"""Of red, green and blue, 0 to 1, as published code has them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SCIFAR(Task):
    """CIFAR-10 in colour, row after row: (1024, 3), 10 classes; splits and files are those of the task `image`.

    `preprocessing="paper"`: values 0 to 1, minus .4914, .4822, .4465, over .247, .243, .261. "clean": means and sds
    are those of the training split.
    """

    source: ClassVar[str] = "Krizhevsky 2009 (CIFAR-10)"
    licence: ClassVar[str] = "the user's copy; its source names the terms"

    preprocessing: Preprocessing = "paper"

    def __post_init__(self) -> None:
        preprocessing.check(self.preprocessing)

    @property
    def published(self) -> tuple[str, str] | None:
        return ("LRA", "sCIFAR (colour)")

    @property
    def length(self) -> int:
        return PIXELS

    @property
    def classes(self) -> int:
        return CLASSES

    @property
    def features(self) -> int:
        return COLOURS

    def locate(self) -> str:
        cifar_files.locate()
        return preprocessing.PLACE

    def load(self, seed: int) -> Dataset:
        """The images; `seed` changes nothing. Missing: no files. ValueError: two copies, or a batch that is none."""
        parts, labels = cifar_files.read()
        images = [pixels.swapaxes(1, 2) for pixels in parts]
        mean, sd = np.array(MEANS) * 255, np.array(SDS) * 255
        if self.preprocessing == "clean":
            mean, sd = preprocessing.feature_moments(images[0], np.arange(len(images[0])))
        splits = preprocessing.image_splits(images, labels, mean, sd)
        return dataset(*splits, vocabulary_size=None, classes=CLASSES)

    def floors(self, data: Dataset) -> dict[str, float]:
        """The majority and 1-NN; a linear model of all pixels in colour would take long."""
        return super().floors(data) | floors.fitted(data, {"1-NN": floors.nearest_neighbour})

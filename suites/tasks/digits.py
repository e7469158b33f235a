"""Handwritten digits, read pixel by pixel: small real data that need no download."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import ClassVar

import numpy as np

from bench.contract import Dataset, Missing, Split, Task, require
from bench.data import dataset
from suites.tasks import floors

IMAGES, PIXELS, CLASSES = 1797, 64, 10

SPLIT_SEED = 42
"""Fixes the split, which is the same for every seed of a run."""

TRAIN_UNTIL, VALIDATION_UNTIL = 0.70, 0.85


@dataclasses.dataclass(frozen=True, kw_only=True)
class Digits(Task):
    """1797 images of 8 x 8 pixels, row after row, as sequences (64, 1) of grey values in 0..1; 10 classes.

    The set is easy for models that are no sequence models: it shows that training works, and separates few layers.
    The split does not keep writers apart, as the package does not say who wrote what.
    """

    source: ClassVar[str] = "Alpaydin and Kaynak 1998 (UCI optical recognition of handwritten digits, its test part)"
    licence: ClassVar[str] = "package BSD-3-Clause; the data: as the UCI repository says, check before you publish them"

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
        _file()
        return "scikit-learn"

    def load(self, seed: int) -> Dataset:
        """The digits in their fixed split of about 70/15/15 % of each class; `seed` changes nothing.

        Missing: without scikit-learn, whose package holds the data.
        """
        pixels, labels = _table()
        parts = split(pixels, labels)
        splits = [
            Split(
                inputs=(pixels[rows] / 16).astype(np.float32)[:, :, None],
                lengths=np.full(len(rows), PIXELS, np.int32),
                targets=labels[rows],
            )
            for rows in (np.flatnonzero(parts == part) for part in range(3))
        ]
        return dataset(*splits, vocabulary_size=None, classes=CLASSES)

    def floors(self, data: Dataset) -> dict[str, float]:
        return super().floors(data) | floors.fitted(data)


def split(pixels: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The split of every image, (images,): 0 train, 1 validation, 2 test; stratified by class.

    Equal images (rows of `pixels`, (images, pixels)) go to one split, even under different labels.
    """
    _, first, image = np.unique(pixels, axis=0, return_index=True, return_inverse=True)
    rng = np.random.default_rng(SPLIT_SEED)
    part = np.zeros(len(first), np.int64)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels[first] == label))
        part[members[round(TRAIN_UNTIL * len(members)) :]] = 1
        part[members[round(VALIDATION_UNTIL * len(members)) :]] = 2
    return part[image.reshape(-1)]


def _file() -> Path:
    # The file is read where it lies, because importing scikit-learn takes seconds, which each worker would pay.
    package = importlib.util.find_spec("sklearn")
    places = package.submodule_search_locations if package else None
    file = next(
        (path for place in places or () if (path := Path(place, "datasets/data/digits.csv.gz")).is_file()), None
    )
    if file is None:
        raise Missing('the digits come with scikit-learn, which is not there: pip install "linrec-bench[data]"')
    return file


def _table() -> tuple[np.ndarray, np.ndarray]:
    file = _file()
    table = np.loadtxt(file, delimiter=",")
    require(table.shape == (IMAGES, PIXELS + 1), f"scikit-learn's {file.name} has an unknown shape: {table.shape}")
    return table[:, :-1], table[:, -1].astype(np.int32)

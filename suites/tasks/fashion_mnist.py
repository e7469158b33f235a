"""Fashion-MNIST: images of clothes, read pixel by pixel, from Debian's package."""

from __future__ import annotations

import dataclasses
import gzip
from pathlib import Path
from typing import ClassVar

import numpy as np

from bench.contract import Dataset, Missing, Split, Task, require
from bench.data import dataset, hold_out
from suites.tasks import floors, images, wheels

FOLDER = Path("/usr/share/datasets/fashion-mnist")
INSTALL = "apt-get install dataset-fashion-mnist"
SHA256 = {
    "train-images-idx3-ubyte.gz": "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
    "train-labels-idx1-ubyte.gz": "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
    "t10k-images-idx3-ubyte.gz": "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
    "t10k-labels-idx1-ubyte.gz": "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
}
"""Of the files as Debian packs them: the gzip streams differ from those of other sources."""
PIXELS, CLASSES = 784, 10
VALIDATION = 0.1
UNSIGNED_BYTES = 8
"""The code of this type in an idx file."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FashionMNIST(Task):
    """70,000 images of 28 x 28 pixels, row after row, as sequences (784, 1) of grey values in 0..1; 10 kinds.

    10,000 to test, as published; a tenth of each class of the 60,000 others to validate. Grey values have a known
    range, so they are divided by 255 and not standardised.
    """

    source: ClassVar[str] = "Xiao, Rasul and Vollgraf 2017 (Zalando)"
    licence: ClassVar[str] = "Expat (MIT), as Debian's package says of the data"

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
        absent = [name for name in SHA256 if not (FOLDER / name).is_file()]
        if absent:
            raise Missing(f"{', '.join(absent)}: not in {FOLDER}, where Debian's package has them: {INSTALL}")
        return str(FOLDER)

    def load(self, seed: int) -> Dataset:
        """The published split; `seed` changes nothing. Missing: without the package. ValueError: other files."""
        self.locate()
        train, test = _split("train"), _split("t10k")
        return dataset(*hold_out(train, VALIDATION), test, vocabulary_size=None, classes=CLASSES)

    def floors(self, data: Dataset) -> dict[str, float]:
        return super().floors(data) | floors.fitted(data)


def _split(part: str) -> Split:
    pixels = idx(f"{part}-images-idx3-ubyte.gz")
    return images.sequences(pixels.reshape(len(pixels), -1), idx(f"{part}-labels-idx1-ubyte.gz"))


def idx(name: str) -> np.ndarray:
    """The uint8 array of an idx file in `FOLDER`: 0, 0, the type, how many axes; their big-endian int32 sizes."""
    packed = (FOLDER / name).read_bytes()
    wheels.check(f"{name} in {FOLDER}", packed, SHA256[name], INSTALL)
    content = gzip.decompress(packed)
    axes = content[3]
    require(content[:3] == bytes([0, 0, UNSIGNED_BYTES]), f"{name}: no idx file of bytes")
    shape = np.frombuffer(content, ">i4", axes, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)

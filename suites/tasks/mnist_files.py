"""The user's copy of MNIST: four idx files, packed or not."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from bench.contract import Split, require
from bench.data import Layout, digests, user_folder
from suites.tasks import preprocessing

SIDE, CLASSES = 28, 10
PIXELS = SIDE * SIDE
IMAGES_MAGIC, LABELS_MAGIC = 0x00000803, 0x00000801
"""Bytes (8), in three axes and in one."""


def _spellings(stem: str, axes: int) -> tuple[str, ...]:
    return tuple(f"{stem}{mark}idx{axes}-ubyte{packed}" for mark in "-." for packed in ("", ".gz"))


FILES = {
    (part, axes): _spellings(f"{stem}-{'images' if axes == 3 else 'labels'}", axes)
    for part, stem in (("train", "train"), ("test", "t10k"))
    for axes in (3, 1)
}
"""(part, axes) -> the names that are in use; the first that is there is read."""
FOLDER = Layout("", tuple(FILES.values()))
NAMESAKES = (
    "FashionMNIST", "Fashion-MNIST", "KMNIST", "QMNIST", "fashion-mnist", "fashion_mnist", "dataset-fashion-mnist",
)  # fmt: skip
"""Folders of other data sets, whose files have the same names: they are not entered."""
SOURCE = (
    "Get train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte (.gz or "
    "unpacked; yann.lecun.com/exdb/mnist or one of its mirrors) and set BENCH_DATA to a folder above them"
)


def locate() -> Path:
    """The folder of the user's copy. Missing: there is none. ValueError: there are two."""
    return user_folder([FOLDER], SOURCE, skip=NAMESAKES)


def read(order: np.ndarray) -> list[Split]:
    """Train, validation and test with pixels in this `order`, (784,): inputs (images, 784, 1) in 0..1.

    The validation split, a tenth of each class of train, does not depend on the order; images of train that also stand
    in test are left out. Missing: no files. ValueError:
    two copies, or a file that is malformed.
    """
    folder = locate()
    pixels, labels = {}, {}
    for part in ("train", "test"):
        images, found = (_idx(_first(folder, FILES[part, axes]), axes) for axes in (3, 1))
        require(
            len(images) == len(found) >= 1,
            f"{FILES[part, 3][0]} holds {len(images)} images and {FILES[part, 1][0]} {len(found)} labels",
        )
        pixels[part], labels[part] = images.reshape(-1, PIXELS), found.astype(np.int32)
    keys = {part: digests(image.tobytes() for image in images) for part, images in pixels.items()}
    stays, held, tested = preprocessing.splits(keys["train"], labels["train"], keys["test"], labels["test"])
    return [
        Split(
            inputs=(pixels[part][rows][:, order] / np.float32(255))[:, :, None],
            lengths=np.full(len(rows), PIXELS, np.int32),
            targets=labels[part][rows],
        )
        for part, rows in (("train", stays), ("train", held), ("test", tested))
    ]


def _first(folder: Path, names: tuple[str, ...]) -> Path:
    return next(folder / name for name in names if (folder / name).exists())


def _idx(path: Path, axes: int) -> np.ndarray:
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path.name}: {error}") from error
    head = np.frombuffer(content[: 4 + 4 * axes], ">u4") if len(content) >= 4 + 4 * axes else np.zeros(1, ">u4")
    magic, shape = int(head[0]), tuple(int(size) for size in head[1:])
    require(
        magic == (IMAGES_MAGIC if axes == 3 else LABELS_MAGIC) and shape[1:] in ((), (SIDE, SIDE)),
        f"{path.name}: it does not begin as an idx file of {'images of 28 x 28' if axes == 3 else 'labels'}",
    )
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * axes)
    require(
        values.size == np.prod(shape),
        f"{path.name}: {values.size} bytes follow its head, which announces {np.prod(shape)}",
    )
    if axes == 1 and values.size and values.max() >= CLASSES:
        row = int(np.argmax(values >= CLASSES))
        raise ValueError(f"{path.name}, row {row}: the label must be 0 to {CLASSES - 1}, not {values[row]}")
    return values.reshape(shape)

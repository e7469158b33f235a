"""The user's copy of CIFAR-10: pickled batches, read without running what a pickle may ask for."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.contract import require
from bench.data import Layout, digests, user_folder
from suites.tasks import preprocessing

SIDE, COLOURS, CLASSES = 32, 3, 10
PIXELS = SIDE * SIDE
TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = ("test_batch",)
FOLDER = Layout("", (*TRAIN, *TEST))
SOURCE = (
    "Unpack the python version of CIFAR-10 (cifar-10-python.tar.gz, www.cs.toronto.edu/~kriz/cifar.html) and set "
    "BENCH_DATA to a folder above cifar-10-batches-py"
)


def locate() -> Path:
    """The folder of the user's copy. Missing: there is none. ValueError: there are two."""
    return user_folder([FOLDER], SOURCE)


def read() -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Pixels (images, 3, 1024) uint8, row after row, and classes (images,) int32 of train, validation and test.

    The validation split, a tenth of each class of train, is the same for all that reads this, grey or in colour.
    Images of train that also stand in test are left out.

    Missing: no files. ValueError: two copies, or a batch that is none.
    """
    folder = locate()
    pixels, labels = {}, {}
    for part, names in (("train", TRAIN), ("test", TEST)):
        read = [_batch(folder / name) for name in names]
        pixels[part] = np.concatenate([data for data, _ in read])
        labels[part] = np.concatenate([found for _, found in read])
    keys = {part: digests(image.tobytes() for image in images) for part, images in pixels.items()}
    stays, held, tested = preprocessing.splits(keys["train"], labels["train"], keys["test"], labels["test"])
    parts = ("train", stays), ("train", held), ("test", tested)
    return [pixels[part][rows] for part, rows in parts], [labels[part][rows] for part, rows in parts]


def grey(pixels: np.ndarray) -> np.ndarray:
    """(images, 3, 1024) uint8 -> (images, 1024) uint8: the luma of ITU-R 601 in 16-bit fixed point."""
    red, green, blue = (pixels[:, colour].astype(np.uint32) for colour in range(COLOURS))
    return ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16).astype(np.uint8)


def _batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        with path.open("rb") as file:
            found = _Arrays(file, encoding="bytes").load()
        data, labels = found[b"data"], found[b"labels"]
    except Exception as error:  # whatever a damaged or hostile pickle makes of itself
        raise ValueError(f"{path.name}: no batch of CIFAR-10: {type(error).__name__}: {error}") from error
    require(
        isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape[1:] == (COLOURS * PIXELS,),
        f"{path.name}: data must be an array (images, {COLOURS * PIXELS}) of uint8",
    )
    require(
        isinstance(labels, list) and len(labels) == len(data) >= 1,
        f"{path.name}: labels must be a list with one of each of {len(data)} images",
    )
    for row, label in enumerate(labels):
        require(
            isinstance(label, int) and 0 <= label < CLASSES,
            f"{path.name}, row {row}: the label must be 0 to {CLASSES - 1}, not {label!r}",
        )
    return data.reshape(-1, COLOURS, PIXELS), np.array(labels, np.int32)


_RECONSTRUCT = np.zeros(0).__reduce__()[0]
_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,  # type: ignore[dict-item]
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,  # type: ignore[dict-item]
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _Arrays(pickle.Unpickler):
    """Unpickles arrays of numbers in containers, and nothing else: a pickle can name any function to be called."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch needs")
        return _ALLOWED[module, name]

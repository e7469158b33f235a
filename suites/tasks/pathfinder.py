"""Pathfinder: do two discs lie on one dashed contour? Images read pixel by pixel."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import warnings
from typing import ClassVar, Literal

import numpy as np
from scipy.ndimage import uniform_filter

from bench.cache import cached_arrays
from bench.contract import Dataset, Split, Task, require
from bench.data import SPLIT_SEED, dataset
from bench.seeds import generator
from suites.tasks.floors import cached
from suites.tasks.generated import require_counts, require_seed
from suites.tasks.pathfinder_drawing import CONTOUR_PADDLES, STYLES, render, scenes

VERSION = 1
"""Of the generated images: another number after any change to them, so that no old cache is used."""

BLOCK = 250
"""Images that are generated and cached at once: what a killed process loses at most."""

FLOOR_IMAGES = 2_000
"""Training images that the floor is fitted on."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pathfinder(Task):
    """Images of `size` x `size` pixels, row after row, as sequences (size^2, 1) of grey values in -1..1; 2 classes.

    Two dashed contours and some shorter distractors; one disc marks the start of a contour, the other the end of the
    same one (class 1) or of the other (class 0). The label is a fair coin, and contours are laid out without regard
    to it. `difficulty` is the number of paddles of a contour: easy 6, medium 9, hard 14; the folders of the published
    archive are curv_baseline, curv_contour_length_9 and curv_contour_length_14. The task of the Long Range Arena is
    size 32, hard; its Path-X is size 128, hard.

    Images are drawn here after the published rules, not by the published program: distractors are as bright as
    targets, and discs never touch. `train`, `validation` and `test` count examples; the published sets have 200,000
    images each, and their inputs take 4 size^2 bytes an image in memory. Images come in blocks that are cached one by
    one: generation that was killed goes on where it was, and more of `train` changes no other split.

    With `origin="files"` the images are the user's own copy of the published ones, split 80/10/10 % by a seed that
    never changes, equal images together; the counts must then keep their defaults.
    """

    source: ClassVar[str] = "Linsley et al. 2018; Tay et al. 2021 (Long Range Arena)"

    size: Literal[32, 128, 256] = 32
    difficulty: Literal["easy", "medium", "hard"] = "hard"
    train: int = 20_000
    validation: int = 2_500
    test: int = 2_500
    origin: Literal["generated", "files"] = "generated"

    def __post_init__(self) -> None:
        require(self.size in STYLES, f"size must be {', '.join(map(str, STYLES))}, not {self.size!r}")
        require(
            self.difficulty in CONTOUR_PADDLES,
            f"difficulty must be {', '.join(CONTOUR_PADDLES)}, not {self.difficulty!r}",
        )
        require(self.origin in ("generated", "files"), f"origin must be generated or files, not {self.origin!r}")
        require_counts(self, "train", "validation", "test")
        for field in dataclasses.fields(self):
            number = getattr(self, field.name)
            require(
                self.origin == "generated"
                or field.name not in ("train", "validation", "test")
                or number == field.default,
                f"{field.name}={number} is an option of origin=generated: with origin=files the files decide",
            )

    @property
    def published(self) -> tuple[str, str] | None:
        if self.difficulty != "hard":
            return None
        return {32: ("LRA", "Pathfinder"), 128: ("LRA", "Path-X")}.get(self.size)

    @property
    def length(self) -> int:
        return self.size**2

    @property
    def classes(self) -> int:
        return 2

    @property
    def features(self) -> int:
        return 1

    def locate(self) -> str:
        return "generated" if self.origin == "generated" else ""

    def load(self, seed: int) -> Dataset:
        """The images of this seed, or those of the files, for which the seed is ignored.

        Missing: no files. ValueError: a negative seed, or whatever is wrong with the files.
        """
        if self.origin == "files":
            return dataset(*self._from_files(), vocabulary_size=None, classes=2)
        require_seed(seed)
        parts = {name: int(getattr(self, name)) for name in ("train", "validation", "test")}
        splits = [self._generated(seed, part, count) for part, count in parts.items()]
        return dataset(*splits, vocabulary_size=None, classes=2)

    def floors(self, data: Dataset) -> dict[str, float]:
        """Majority, and the distance between the discs."""
        return {**super().floors(data), **cached(data, {"disc distance": disc_distance})}

    def _generated(self, seed: int, part: str, count: int) -> Split:
        split = _empty(count, self.size)
        for block, start in enumerate(range(0, count, BLOCK)):
            wanted = min(BLOCK, count - start)
            arrays = self._block(int(seed), part, block, wanted)
            split.inputs[start : start + wanted] = _scaled(arrays["images"])
            split.targets[start : start + wanted] = arrays["labels"]
        return split

    def _block(self, seed: int, part: str, block: int, count: int) -> dict[str, np.ndarray]:
        purpose: tuple[str | int, ...] = (self.size, self.difficulty, part, block)

        def draw() -> dict[str, np.ndarray]:
            drawn = scenes(generator(seed, "pathfinder", *purpose), self.size, self.difficulty, count)
            return {
                "images": render(drawn, self.size),
                "labels": np.array([scene.label for scene in drawn], np.int32),
            }

        return cached_arrays(
            "pathfinder", {"version": VERSION, "seed": seed, "block": list(purpose), "count": count}, draw
        )

    def _from_files(self) -> list[Split]:
        from suites.tasks.pathfinder_files import read

        arrays = read(self.size, self.difficulty)
        if arrays["skipped"]:
            warnings.warn(f"pathfinder: {int(arrays['skipped'])} empty pictures are left out", stacklevel=2)
        splits = []
        for rows in _shares(arrays["images"]):
            split = _empty(len(rows), self.size)
            split.inputs[:] = _scaled(arrays["images"][rows])
            split.targets[:] = arrays["labels"][rows]
            splits.append(split)
        return splits


def disc_distance(data: Dataset) -> float:
    """The better side of a threshold on the distance between the discs, set on training images: its accuracy."""
    seen = _disc_distances(data.train.inputs[:FLOOR_IMAGES])
    labels = data.train.targets[: len(seen)]
    # No distance lies below the first threshold: it stands for always the same class.
    thresholds = [-1.0, *np.unique(seen)]
    shares = np.array([np.mean((seen > threshold) == labels) for threshold in thresholds])
    best = int(np.argmax(np.abs(shares - 0.5)))
    guesses = (_disc_distances(data.test.inputs) > thresholds[best]) == (shares[best] >= 0.5)
    return float(np.mean(guesses == data.test.targets))


def _disc_distances(inputs: np.ndarray) -> np.ndarray:
    """Pixels between the two places that are brightest over an area as large as the heart of a disc, (examples,)."""
    size = math.isqrt(inputs.shape[1])
    disc, found = STYLES[size].disc, []
    row, column = np.mgrid[:size, :size]
    for image in inputs:
        light = uniform_filter(image.reshape(size, size) + 1, int(1.5 * disc) | 1, mode="constant")
        first = np.unravel_index(light.argmax(), light.shape)
        away = np.hypot(row - first[0], column - first[1])
        light[away < 2 * disc] = 0
        found.append(away.flat[light.argmax()])
    return np.array(found)


def _empty(count: int, size: int) -> Split:
    return Split(
        inputs=np.empty((count, size**2, 1), np.float32),
        lengths=np.full(count, size**2, np.int32),
        targets=np.empty(count, np.int32),
    )


def _scaled(images: np.ndarray) -> np.ndarray:
    """(images, size, size) of 0..255 as (images, size^2, 1) of -1..1."""
    scaled = images.reshape(len(images), -1, 1).astype(np.float32)
    scaled /= 127.5
    scaled -= 1
    return scaled


def _shares(images: np.ndarray) -> list[np.ndarray]:
    """The rows of train, validation and test: 80, 10 and 10 % of the different images, at random."""
    hashes = np.array([hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in images], "V16")
    _, of = np.unique(hashes, return_inverse=True)
    different = int(of.max()) + 1
    require(different >= 10, f"{different} different images are too few to be split into 80, 10 and 10 %")
    place = np.random.default_rng(SPLIT_SEED).permutation(different)[of.reshape(-1)]
    first, second = round(0.8 * different), round(0.9 * different)
    return [np.flatnonzero(there) for there in (place < first, (place >= first) & (place < second), place >= second)]

"""MNIST-1D: ten short curves, moved, stretched and buried in noise; a synthetic control."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from bench.cache import cached_arrays
from bench.contract import Dataset, Split, Task
from bench.data import dataset, hold_out
from suites.tasks import floors

VERSION = 1
"""Of the data: another number after any change to what is generated."""

SEED = 42
"""Of the set that the package makes unless told otherwise. It is one set: seeds of a run do not change it."""
EXAMPLES, TEST, CLASSES = 5_000, 1_000, 10
VALIDATION = 0.1

LENGTH = 40
"""Steps that are kept of the `LONG` on which a curve is moved."""
SHORTEST_PAD, LONGEST_PAD = 36, 60
LARGEST_MOVE = 48
SCALE, SHEAR = 0.4, 0.75
CORRELATED_NOISE, WHITE_NOISE = 0.25, 0.02
NOISE_WIDTH = 2
"""The standard deviation, in steps, of the Gaussian that makes the first noise smooth."""

CURVES = np.array(
    [
        [5, 6, 6.5, 6.75, 7, 7, 7, 7, 6.75, 6.5, 6, 5],
        [5, 3, 3, 3.4, 3.8, 4.2, 4.6, 5, 5.4, 5.8, 5, 5],
        [5, 6, 6.5, 6.5, 6, 5.25, 4.75, 4, 3.5, 3.5, 4, 5],
        [5, 6, 6.5, 6.5, 6, 5, 5, 6, 6.5, 6.5, 6, 5],
        [5, 4.4, 3.8, 3.2, 2.6, 2.6, 5, 5, 5, 5, 5, 5],
        [5, 3, 3, 3, 3, 5, 6, 6.5, 6.5, 6, 4.5, 5],
        [5, 4, 3.5, 3.25, 3, 3, 3, 3, 3.25, 3.5, 4, 5],
        [5, 7, 7, 6.6, 6.2, 5.8, 5.4, 5, 4.6, 4.2, 5, 5],
        [5, 4, 3.5, 3.5, 4, 5, 5, 4, 3.5, 3.5, 4, 5],
        [5, 4, 3.5, 3.5, 4, 5, 5, 5, 5, 4.7, 4.3, 5],
    ]
)
"""One curve a digit, as published; the class is its row."""
LONG = CURVES.shape[1] + LONGEST_PAD


@dataclasses.dataclass(frozen=True, kw_only=True)
class MNIST1D(Task):
    """5000 sequences of 40 numbers, 10 classes: 4000 to train (a tenth of each class to validate) and 1000 to test.

    Each is one of ten curves: padded, stretched, scaled, moved around a circle, with smooth noise where the curve is
    not and white noise everywhere, tilted, and read at 40 places. Made here, number for number as the package mnist1d
    makes it, which is not needed. As there, one mean and one deviation of the whole set standardise all numbers.

    A linear model gets a third of the test split right, as a curve may lie anywhere. These are no real data.
    """

    source: ClassVar[str] = "Greydanus 2020, arXiv 2011.14439 (MNIST-1D; synthetic)"
    licence: ClassVar[str] = "made here; the package mnist1d, whose figures these are, is Apache-2.0"

    @property
    def length(self) -> int:
        return LENGTH

    @property
    def classes(self) -> int:
        return CLASSES

    @property
    def features(self) -> int:
        return 1

    def locate(self) -> str:
        return "generated"

    def load(self, seed: int) -> Dataset:
        """The one set; `seed` changes nothing."""
        arrays = cached_arrays("mnist1d", {"version": VERSION}, _generated)
        series, targets = arrays["x"].astype(np.float32)[:, :, None], arrays["y"].astype(np.int32)
        train, test = (
            Split(series[rows], np.full(len(targets[rows]), LENGTH, np.int32), targets[rows])
            for rows in (slice(EXAMPLES - TEST), slice(EXAMPLES - TEST, None))
        )
        return dataset(*hold_out(train, VALIDATION), test, vocabulary_size=None, classes=CLASSES)

    def floors(self, data: Dataset) -> dict[str, float]:
        return super().floors(data) | floors.fitted(data)


def _generated() -> dict[str, np.ndarray]:
    return dict(zip("xy", generate(EXAMPLES), strict=True))


def generate(examples: int) -> tuple[np.ndarray, np.ndarray]:
    """`examples` sequences (examples, 40) float64 and their classes, equally many of each, in random order."""
    # The legacy generator is what the package draws with; this one is no global state.
    random = np.random.RandomState(SEED)
    curves = CURVES - CURVES.mean(1, keepdims=True)
    curves /= curves.std(1, keepdims=True)
    curves = (curves - curves[:, :1]) / 6
    series = np.stack([distorted(curve, random) for curve in curves for _ in range(examples // CLASSES)])
    order = random.permutation(len(series))
    targets = np.repeat(np.arange(CLASSES), examples // CLASSES)[order]
    return (series[order] - series.mean()) / series.std(), targets


def distorted(curve: np.ndarray, random: np.random.RandomState) -> np.ndarray:
    """One example of a curve (12,): (40,). The order in which random numbers are drawn is part of the definition."""
    from scipy.ndimage import gaussian_filter1d  # here, as whoever finds the set in the cache need not wait for it

    pad = SHORTEST_PAD + int(random.rand() * (LONGEST_PAD - SHORTEST_PAD + 1))
    # The small number tells a curve that passes through 0 from the padding, which is exactly 0.
    x = _resampled(np.concatenate([curve + 1e-8, np.zeros(pad)]), LONG)
    x *= 1 + SCALE * (random.rand() - 0.5)
    x = np.roll(x, random.choice(LARGEST_MOVE))
    smooth = gaussian_filter1d(CORRELATED_NOISE * random.randn(LONG), NOISE_WIDTH)
    x = np.where(x != 0, x, smooth) + WHITE_NOISE * random.randn(LONG)
    x -= SHEAR * (random.rand() - 0.5) * np.linspace(-0.5, 0.5, LONG)
    return _resampled(x, LENGTH)


def _resampled(x: np.ndarray, length: int) -> np.ndarray:
    return np.interp(np.linspace(0, 1, length), np.linspace(0, 1, len(x)), x)

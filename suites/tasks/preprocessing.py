"""Splits that share no input, and scaling as published code does it (`paper`) or as one would (`clean`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import numpy as np

from bench.contract import Split, require
from bench.data import SPLIT_SEED, held_out

Preprocessing = Literal["paper", "clean"]

PLACE = "files below BENCH_DATA"
"""Where all that uses this is found."""

VALIDATION = 0.1
"""The share of the training examples that becomes the validation split where the source has none."""

CHUNK = 512
"""How many examples are looked at at a time, so that no second copy of a large set is made."""


def check(preprocessing: str) -> None:
    """ValueError unless it is one that there is."""
    choose("preprocessing", preprocessing, get_args(Preprocessing))


def choose(name: str, value: object, allowed: tuple[object, ...]) -> None:
    """ValueError, which names the option, unless its value is allowed."""
    require(value in allowed, f"{name} must be {' or '.join(map(str, allowed))}, not {value!r}")


def splits(
    train: np.ndarray, targets: np.ndarray, test: np.ndarray, test_targets: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of the three splits, shuffled, the validation split cut from train: two of train, and one of test.

    `train` and `test` are keys, (examples,), equal for equal inputs; the targets are (examples,) int32.
    Examples of train that also stand in test are left out.
    """
    held = held_out(train, targets, VALIDATION)
    kept = apart(train, test)
    order = shuffled(train, targets)
    return order[(kept & ~held)[order]], order[(kept & held)[order]], shuffled(test, test_targets)


def apart(keys: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Which examples are not among the `others`, (examples,) bool."""
    return ~np.isin(keys, others)


def shuffled(keys: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The rows in an order that depends on which keys and targets there are, and not on their order."""
    place = np.unique(keys, return_inverse=True)[1].reshape(-1)
    order = np.lexsort((targets, place))
    return order[np.random.default_rng(SPLIT_SEED).permutation(len(keys))]


def chunks(rows: np.ndarray) -> Iterator[np.ndarray]:
    """The rows, `CHUNK` at a time."""
    return (rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK))


def moments(values: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means of values and of their squares over the examples `rows`: values (examples, ...) -> twice (...) float64."""
    total = np.zeros(values.shape[1:])
    squares = np.zeros(values.shape[1:])
    for part in chunks(rows):
        chosen = values[part].astype(np.float64)
        total += chosen.sum(0)
        squares += np.square(chosen, out=chosen).sum(0)
    return total / len(rows), squares / len(rows)


def standardised(values: np.ndarray, rows: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """(values[rows] - mean) / sd as float32; mean and sd broadcast against one example. ValueError: sd is 0."""
    require(bool((np.asarray(sd) > 0).all()), "the training examples are constant, so they cannot be standardised")
    found = np.empty((len(rows), *values.shape[1:]), np.float32)
    for start, part in zip(range(0, len(rows), CHUNK), chunks(rows), strict=True):
        found[start : start + CHUNK] = (values[part] - mean) / sd
    return found


def feature_moments(values: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd of each feature over the examples `rows` and all steps: (examples, length, features) -> (features,).

    Both float64.
    """
    means, squares = moments(values, rows)
    mean = means.mean(0)
    return mean, np.sqrt(squares.mean(0) - mean**2)


def image_splits(images: list[np.ndarray], labels: list[np.ndarray], mean: np.ndarray, sd: np.ndarray) -> list[Split]:
    """Splits of images (images, pixels, colours), of which each has all its pixels, standardised by colour."""
    return [
        Split(
            inputs=standardised(pixels, np.arange(len(pixels)), mean, sd),
            lengths=np.full(len(pixels), pixels.shape[1], np.int32),
            targets=targets,
        )
        for pixels, targets in zip(images, labels, strict=True)
    ]

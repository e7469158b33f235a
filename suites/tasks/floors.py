"""Floors: what needs no sequence model, fitted on the training split and scored on the test split."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Mapping

import numpy as np

from bench.cache import cached_arrays
from bench.contract import NEAR_ENOUGH, NOT_ASKED, Dataset, Split, require
from bench.data import SPLIT_SEED

VERSION = 1
"""Of the floors: another number after any change to what is fitted."""

MOST_EXAMPLES = 10_000
"""So many training examples are fitted to, drawn by a seed that never changes: more would take minutes."""
MOST_ITERATIONS = 1_000

Floor = Callable[[Dataset], float]


def nearest_neighbour(data: Dataset) -> float:
    """1-NN: the class of the training example that is nearest by Euclidean distance between `columns`; its accuracy."""
    from sklearn.neighbors import KNeighborsClassifier

    (x, y), (x_test, y_test) = _fitted_and_tested(data)
    # By brute force: in hundreds of dimensions a tree is slower.
    return float(KNeighborsClassifier(1, algorithm="brute").fit(x, y).score(x_test, y_test))


def linear(data: Dataset) -> float:
    """Multinomial logistic regression on standardised `columns`, with scikit-learn's default penalty; its accuracy."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    (x, y), (x_test, y_test) = _fitted_and_tested(data)
    mean, sd = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64)
    scale = 1 / np.where(sd > 0, sd, 1)
    with warnings.catch_warnings():
        # A fit that would go on is a floor all the same.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = LogisticRegression(max_iter=MOST_ITERATIONS).fit((x - mean) * scale, y)
    return float(model.score((x_test - mean) * scale, y_test))


def by_position(data: Dataset) -> float:
    """At each position the class that is asked for there most often; the mean share of an example that is right."""
    seen, asked = data.train.targets, data.test.targets != NOT_ASKED
    classes = int(max(seen.max(), data.test.targets.max())) + 1
    counts = np.stack([np.count_nonzero(seen == label, axis=0) for label in range(classes)])
    right = (data.test.targets == counts.argmax(0)) & asked
    return float((right.sum(1) / asked.sum(1)).mean())


def ridge(data: Dataset) -> float:
    """Ridge regression of the number on `columns`, with scikit-learn's default penalty; how often it is near enough."""
    from sklearn.linear_model import Ridge

    rows = np.random.default_rng(SPLIT_SEED).permutation(len(data.train))[:MOST_EXAMPLES]
    x, x_test = columns(data.train, data.test)
    found = Ridge().fit(x[rows], data.train.targets[rows]).predict(x_test)
    return float((np.abs(found - data.test.targets) < NEAR_ENOUGH).mean())


TRIVIAL: Mapping[str, Floor] = {"1-NN": nearest_neighbour, "linear": linear}


def fitted(data: Dataset, which: Mapping[str, Floor] = TRIVIAL) -> dict[str, float]:
    """These floors of a task with one class a sequence; without scikit-learn, which fits them, none."""
    return cached(data, which) if importlib.util.find_spec("sklearn") else {}


def cached(data: Dataset, floors: Mapping[str, Floor]) -> dict[str, float]:
    """These floors, name -> accuracy; fitted once for a data set, then read from the cache."""
    key = {
        "version": VERSION,
        "data": data.checksum,
        "floors": {name: f"{floor.__module__}.{floor.__qualname__}" for name, floor in floors.items()},
    }
    found = cached_arrays("floors", key, lambda: {name: np.array(floor(data)) for name, floor in floors.items()})
    return {name: float(found[name]) for name in floors}


def columns(*splits: Split) -> list[np.ndarray]:
    """What a trivial model sees of each split: a matrix (examples, columns), the same columns in all.

    Numbers: all steps side by side; where lengths differ each example is first brought to the common length by linear
    interpolation between its first and last step, so that neither padding nor a shift of all numbers matters. Tokens:
    the share of each id up to the end; of a pair both, and the absolute difference.
    """
    if all(np.issubdtype(split.inputs.dtype, np.floating) for split in splits):
        whole = all((split.lengths == split.inputs.shape[1]).all() for split in splits)
        return [(split.inputs if whole else _stretched(split)).reshape(len(split), -1) for split in splits]
    ids = 1 + max(int(split.inputs.max()) for split in splits)
    return [_shares(split, ids) for split in splits]


def _fitted_and_tested(data: Dataset) -> list[tuple[np.ndarray, np.ndarray]]:
    for split in (data.train, data.test):
        require(
            split.targets.ndim == 1 and split.targets.dtype == np.int32,
            "these floors are for one class a sequence, not for numbers or targets at positions",
        )
    rows = np.random.default_rng(SPLIT_SEED).permutation(len(data.train))[:MOST_EXAMPLES]
    train = Split(data.train.inputs[rows], data.train.lengths[rows], data.train.targets[rows])
    x, x_test = columns(train, data.test)
    return [(x, train.targets), (x_test, data.test.targets)]


def _stretched(split: Split) -> np.ndarray:
    length = split.inputs.shape[1]
    places = np.linspace(0, 1, length)[None] * (split.lengths[:, None] - 1)
    before = np.floor(places).astype(np.int64)
    after = np.minimum(before + 1, split.lengths[:, None] - 1)
    share = (places - before)[..., None].astype(split.inputs.dtype)
    rows = np.arange(len(split))[:, None]
    return split.inputs[rows, before] * (1 - share) + split.inputs[rows, after] * share


def _shares(split: Split, ids: int) -> np.ndarray:
    sequences = split.inputs.reshape(-1, split.inputs.shape[-1])
    found = np.stack(
        [
            np.bincount(row[:end], minlength=ids) / np.float32(end)
            for row, end in zip(sequences, split.lengths.reshape(-1), strict=True)
        ]
    ).astype(np.float32)
    if split.inputs.ndim == 2:
        return found
    one, other = found[0::2], found[1::2]
    return np.concatenate([one, other, np.abs(one - other)], axis=1)

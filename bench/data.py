"""What every data set passes through: finding the user's files, checks, a checksum, and the order of examples."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import numpy as np

from bench.contract import Dataset, Missing, Split, require
from bench.seeds import generator

MOST_FOLDERS = 2_000
"""How many folders are searched below `BENCH_DATA`, so that a home folder given by mistake is answered at once."""


def user_files(names: Collection[str], source: str, skip: Collection[str] = ()) -> dict[str, Path]:
    """The user's copies of the files `names`, found at any depth below the folder in `BENCH_DATA`, as name -> path.

    Folders named in `skip` are not entered. `source` ends the message of Missing, which is raised when the folder or
    a file is not there: it says where the files come from. ValueError: two different files of one name.
    """
    wanted = ", ".join(names)
    value = os.environ.get("BENCH_DATA")
    if not value:
        raise Missing(f"{wanted}: looked for below the folder in BENCH_DATA, which is not set. {source}")
    root = Path(value).expanduser()
    if not root.is_dir():
        raise Missing(f"{wanted}: looked for below the folder in BENCH_DATA, but {value} is no folder. {source}")
    found: dict[str, dict[str, Path]] = {name: {} for name in names}
    entered: set[str] = set()
    for here, folders, files in os.walk(root, followlinks=True):
        real = os.path.realpath(here)
        if real in entered:
            folders.clear()
            continue
        entered.add(real)
        if len(entered) > MOST_FOLDERS:
            raise Missing(
                f"{wanted}: there are more than {MOST_FOLDERS} folders below BENCH_DATA={value}; "
                f"set it to a folder nearer to the files. {source}"
            )
        # Sorted, so that of two links to one file always the same is named.
        folders[:] = sorted(set(folders) - set(skip))
        for name in found.keys() & set(files):
            path = Path(here, name)
            if path.is_file():
                found[name].setdefault(os.path.realpath(path), path)
    if absent := [name for name in names if not found[name]]:
        raise Missing(f"{', '.join(absent)}: not found at any depth below BENCH_DATA={value}. {source}")
    for name, copies in found.items():
        listed = " and ".join(str(path.relative_to(root)) for path in copies.values())
        require(
            len(copies) == 1,
            f"{name} is there more than once below BENCH_DATA={value}: {listed}. "
            "Set BENCH_DATA to the folder that holds the one to use",
        )
    return {name: next(iter(copies.values())) for name, copies in found.items()}


def checksum(splits: Iterable[Split]) -> str:
    """The sha256, in hexadecimal, over every array of the splits, in order, with dtypes and shapes."""
    digest = hashlib.sha256()
    for split in splits:
        for name in ("inputs", "lengths", "targets"):
            array = np.ascontiguousarray(getattr(split, name))
            digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
            digest.update(array.reshape(-1).data)
    return digest.hexdigest()


def dataset(train: Split, validation: Split, test: Split, *, vocabulary_size: int | None, classes: int) -> Dataset:
    """A Dataset of three checked splits, with its checksum.

    Token ids, padding included, must lie in 0..vocabulary_size-1; with `vocabulary_size` None the inputs are finite
    real numbers. ValueError names the split, and the row (from 0) if one is at fault.
    """
    splits = {"train": train, "validation": validation, "test": test}
    for name, split in splits.items():
        _check(name, split, vocabulary_size, classes)
        shape, first = split.inputs.shape[1:], train.inputs.shape[1:]
        require(shape == first, f"{name}: examples have shape {shape}, but those of train {first}")
    return Dataset(train=train, validation=validation, test=test, checksum=checksum(splits.values()))


def _check(name: str, split: Split, vocabulary_size: int | None, classes: int) -> None:
    inputs, lengths, targets = split.inputs, split.lengths, split.targets
    tokens = vocabulary_size is not None
    dtype, axes = (np.int32, "(examples, length)") if tokens else (np.float32, "(examples, length, features)")
    require(
        inputs.dtype == dtype and inputs.ndim == (2 if tokens else 3) and 0 not in inputs.shape[1:],
        f"{name}: inputs must be {axes} {np.dtype(dtype)}, not {inputs.shape} {inputs.dtype}",
    )
    examples, length = inputs.shape[:2]
    require(examples >= 1, f"{name}: no examples")
    for what, array in (("lengths", lengths), ("targets", targets)):
        require(
            array.dtype == np.int32 and array.shape == (examples,),
            f"{name}: {what} must be ({examples},) int32, not {array.shape} {array.dtype}",
        )
    _within(name, "length", lengths, 1, length)
    _within(name, "target", targets, 0, classes - 1)
    if vocabulary_size is not None:
        _within(name, "token id", inputs, 0, vocabulary_size - 1)
    elif not np.isfinite(inputs).all():
        row = int(np.argmin(np.isfinite(inputs).all(axis=(1, 2))))
        raise ValueError(f"{name}, row {row}: an input is not finite")


def _within(name: str, what: str, array: np.ndarray, least: int, most: int) -> None:
    # Extremes first: comparing all of a large array takes as much memory again, and is only needed for the message.
    if array.min() < least or array.max() > most:
        at = np.argwhere((array < least) | (array > most))[0]
        raise ValueError(f"{name}, row {at[0]}: {what} {array[tuple(at)]} is not in {least}..{most}")


def batches(examples: int, batch: int, seed: int, steps: int) -> Iterator[np.ndarray]:
    """Indices into the training examples for `steps` steps: arrays (min(batch, examples),) int64.

    Epoch follows epoch, each a permutation that depends on (seed, epoch) alone. The smaller batch at the end of an
    epoch is dropped, as all batches must weigh the same; a batch larger than the data shrinks to one whole epoch.
    ValueError, at the call: a count below 1, or a negative seed or number of steps.
    """
    require(examples >= 1, f"examples must be at least 1, not {examples}")
    require(batch >= 1, f"batch must be at least 1, not {batch}")
    require(seed >= 0, f"seed must be at least 0, not {seed}")
    require(steps >= 0, f"steps must be at least 0, not {steps}")
    return itertools.islice(_epochs(examples, min(batch, examples), seed), steps)


def _epochs(examples: int, batch: int, seed: int) -> Iterator[np.ndarray]:
    for epoch in itertools.count():
        order = generator(seed, "order", epoch).permutation(examples)
        for start in range(0, examples - batch + 1, batch):
            yield order[start : start + batch]

"""What every data set passes through: finding the user's files, checks, a checksum, and the order of examples."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import numpy as np

from bench.contract import NOT_ASKED, Dataset, Missing, Split, require
from bench.seeds import generator

SPLIT_SEED = 42
"""Fixes splits that are cut here: the same for every seed of a run."""

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
    real numbers. Targets are one of the kinds that `Split` names; where positions are asked each example has one.
    ValueError names the split, and the row (from 0) if one is at fault.
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
    pairs = tokens and inputs.ndim == 3 and inputs.shape[1] == 2
    dtype, axes = (np.int32, "(examples, length)") if tokens else (np.float32, "(examples, length, features)")
    require(
        inputs.dtype == dtype and (pairs or inputs.ndim == (2 if tokens else 3)) and 0 not in inputs.shape[1:],
        f"{name}: inputs must be {axes} {np.dtype(dtype)}, not {inputs.shape} {inputs.dtype}",
    )
    examples, length = len(inputs), inputs.shape[2 if pairs else 1]
    require(examples >= 1, f"{name}: no examples")
    of_lengths = (examples, 2) if pairs else (examples,)
    require(
        lengths.dtype == np.int32 and lengths.shape == of_lengths,
        f"{name}: lengths must be {of_lengths} int32, not {lengths.shape} {lengths.dtype}",
    )
    _within(name, "length", lengths, 1, length)
    _check_targets(name, targets, examples, length, classes)
    if vocabulary_size is not None:
        _within(name, "token id", inputs, 0, vocabulary_size - 1)
    elif not np.isfinite(inputs).all():
        row = int(np.argmin(np.isfinite(inputs).all(axis=(1, 2))))
        raise ValueError(f"{name}, row {row}: an input is not finite")


def _check_targets(name: str, targets: np.ndarray, examples: int, length: int, classes: int) -> None:
    if targets.dtype == np.float32 and targets.shape == (examples,):
        require(bool(np.isfinite(targets).all()), f"{name}: a target is not finite")
        return
    require(
        targets.dtype == np.int32 and targets.shape in ((examples,), (examples, length)),
        f"{name}: targets must be ({examples},) int32, ({examples}, {length}) int32 or ({examples},) float32, "
        f"not {targets.shape} {targets.dtype}",
    )
    _within(name, "target", targets, 0 if targets.ndim == 1 else NOT_ASKED, classes - 1)
    if targets.ndim == 2:
        asked = (targets != NOT_ASKED).any(-1)
        require(bool(asked.all()), f"{name}, row {np.argmin(asked)}: no position has a target")


def content(split: Split) -> np.ndarray:
    """A hash of what each example shows up to its end, (examples,) of 16 bytes each: equal for equal inputs alone."""
    found = []
    for row, lengths in zip(split.inputs, np.atleast_2d(split.lengths.T).T, strict=True):
        digest = hashlib.blake2b(digest_size=16)
        for sequence, end in zip(row if len(lengths) > 1 else row[None], lengths, strict=True):
            digest.update(np.ascontiguousarray(sequence[:end]).tobytes() + b"|%d" % end)
        found.append(digest.digest())
    return np.array(found, "V16")


def hold_out(split: Split, share: float) -> tuple[Split, Split]:
    """What stays and what is held out: about `share` of each class, drawn by a seed that never changes.

    Equal inputs stay together, whatever their targets. ValueError where nothing would stay or be held out.
    """
    require(0 < share < 1, f"share must lie between 0 and 1, not {share}")
    _, first, of = np.unique(content(split), return_index=True, return_inverse=True)
    rng = np.random.default_rng(SPLIT_SEED)
    targets = split.targets[first]
    kinds = targets if targets.dtype == np.int32 and targets.ndim == 1 else np.zeros(len(first), np.int32)
    held = np.zeros(len(first), bool)
    for kind in np.unique(kinds):
        members = rng.permutation(np.flatnonzero(kinds == kind))
        held[members[: round(share * len(members))]] = True
    out = held[of.reshape(-1)]
    require(
        bool(out.any() and not out.all()), f"{len(split)} examples are too few to hold out {share:.0%} of each class"
    )
    return take(split, np.flatnonzero(~out)), take(split, np.flatnonzero(out))


def take(split: Split, rows: np.ndarray) -> Split:
    """These examples of a split, in this order."""
    return Split(inputs=split.inputs[rows], lengths=split.lengths[rows], targets=split.targets[rows])


def shared(one: Split, other: Split) -> int:
    """How many examples of `other` have the same input as one of `one`."""
    return int(np.isin(content(other), content(one)).sum())


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

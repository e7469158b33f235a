"""What every data set passes through: finding the user's files, checks, a checksum, and the order of examples."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from bench.contract import NOT_ASKED, Dataset, Missing, Split, require
from bench.seeds import generator

SPLIT_SEED = 42
"""Fixes splits that are cut here: the same for every seed of a run."""

MOST_FOLDERS = 2_000
"""How many folders are searched below `BENCH_DATA`, so that a home folder given by mistake is answered at once."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """A folder as its maker lays it out: the end of its path ("" for any), and what it holds.

    `holds`: names relative to it; of a tuple any one is enough.
    """

    name: str
    holds: tuple[str | tuple[str, ...], ...]

    def __str__(self) -> str:
        inside = ", ".join(" or ".join(_choices(entry)) for entry in self.holds)
        return f"{self.name or 'a folder'} with {inside}"

    def matches(self, path: Path) -> bool:
        parts = Path(self.name).parts
        return Path(os.path.abspath(path)).parts[-len(parts) :] == parts if parts else True

    def is_at(self, path: Path, entries: Collection[str]) -> bool:
        """Whether the folder `path`, whose direct `entries` are known, is one of these."""
        return self.matches(path) and all(
            any(name.split("/")[0] in entries and (path / name).exists() for name in _choices(entry))
            for entry in self.holds
        )


def _choices(entry: str | tuple[str, ...]) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else entry


def user_files(names: Collection[str], source: str, skip: Collection[str] = ()) -> dict[str, Path]:
    """The user's copies of the files `names`, found at any depth below the folder in `BENCH_DATA`, as name -> path.

    Folders named in `skip` are not entered. `source` ends the message of Missing, which is raised when the folder or
    a file is not there: it says where the files come from. ValueError: two different files of one name.
    """
    found: dict[str, dict[str, Path]] = {name: {} for name in names}
    for here, _, files in user_tree(", ".join(names), source, skip):
        for name in found.keys() & set(files):
            path = here / name
            if path.is_file():
                found[name].setdefault(os.path.realpath(path), path)
    if absent := [name for name in names if not found[name]]:
        raise Missing(f"{', '.join(absent)}: not found at any depth below {_named()}. {source}")
    return {name: _only(name, list(copies.values())) for name, copies in found.items()}


def user_folder(layouts: Sequence[Layout], source: str, skip: Collection[str] = ()) -> Path:
    """The one folder of the user's, `BENCH_DATA` itself or at any depth below it, that is laid out as one of `layouts`.

    `source` and `skip` as for `user_files`. Missing: there is none. ValueError: there are two.
    """
    wanted = ", or ".join(str(layout) for layout in layouts)
    found = [
        here
        for here, folders, files in user_tree(wanted, source, skip)
        if any(layout.is_at(here, {*folders, *files}) for layout in layouts)
    ]
    if not found:
        raise Missing(f"{wanted}: not found at any depth below {_named()}. {source}")
    return _only(wanted, found)


def user_tree(
    wanted: str, source: str, skip: Collection[str] = ()
) -> Iterator[tuple[Path, tuple[str, ...], tuple[str, ...]]]:
    """Every folder of the user's, itself and below `BENCH_DATA`, once: (folder, names of its folders, of its files).

    Folders named in `skip` are told but not entered. Missing, which says that `wanted` was looked for: `BENCH_DATA` is
    not set, no folder, or holds far too many.
    """
    value = os.environ.get("BENCH_DATA")
    if not value:
        raise Missing(f"{wanted}: looked for below the folder in BENCH_DATA, which is not set. {source}")
    root = Path(value).expanduser()
    if not root.is_dir():
        raise Missing(f"{wanted}: looked for below the folder in BENCH_DATA, but {value} is no folder. {source}")
    entered: set[str] = set()
    for here, folders, files in os.walk(root, followlinks=True):
        real = os.path.realpath(here)
        if real in entered:
            folders.clear()
            continue
        entered.add(real)
        if len(entered) > MOST_FOLDERS:
            raise Missing(
                f"{wanted}: there are more than {MOST_FOLDERS} folders below {_named()}; "
                f"set it to a folder nearer to the files. {source}"
            )
        yield Path(here), tuple(folders), tuple(files)
        # Sorted, so that of two links to one file always the same is named.
        folders[:] = sorted(set(folders) - set(skip))


def _named() -> str:
    return f"BENCH_DATA={os.environ['BENCH_DATA']}"


def _only(name: str, copies: list[Path]) -> Path:
    root = Path(os.environ["BENCH_DATA"]).expanduser()
    listed = " and ".join(str(path.relative_to(root)) for path in copies)
    require(
        len(copies) == 1,
        f"{name} is there more than once below {_named()}: {listed}. "
        "Set BENCH_DATA to the folder that holds the one to use",
    )
    return copies[0]


def fingerprint(paths: Iterable[Path], root: Path) -> str:
    """A sha256 over the names below `root`, sizes and times of change of files that are too large to be hashed."""
    digest = hashlib.sha256()
    for path in paths:
        found = path.stat()
        digest.update(f"{path.relative_to(root)}\n{found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


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
    out = held_out(content(split), split.targets, share)
    return take(split, np.flatnonzero(~out)), take(split, np.flatnonzero(out))


def held_out(keys: np.ndarray, targets: np.ndarray, share: float) -> np.ndarray:
    """Which examples `hold_out` holds out, (examples,) bool, where their inputs are known by `keys`, (examples,)."""
    require(0 < share < 1, f"share must lie between 0 and 1, not {share}")
    _, first, of = np.unique(keys, return_index=True, return_inverse=True)
    rng = np.random.default_rng(SPLIT_SEED)
    of_first = targets[first]
    kinds = of_first if targets.dtype == np.int32 and targets.ndim == 1 else np.zeros(len(first), np.int32)
    held = np.zeros(len(first), bool)
    for kind in np.unique(kinds):
        members = rng.permutation(np.flatnonzero(kinds == kind))
        held[members[: round(share * len(members))]] = True
    out = held[of.reshape(-1)]
    require(
        bool(out.any() and not out.all()), f"{len(keys)} examples are too few to hold out {share:.0%} of each class"
    )
    return out


def digests(rows: Iterable[bytes]) -> np.ndarray:
    """A hash of each row, (rows,) of 16 bytes each: keys for `held_out`."""
    return np.array([hashlib.blake2b(row, digest_size=16).digest() for row in rows], "V16")


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

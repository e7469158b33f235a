"""What `bench data` tells of data sets: whether they are there, what is in them, and where they were put."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from bench import cache, registry
from bench.contract import NOT_ASKED, Dataset, Missing, Split, Task
from bench.data import content, shared
from bench.options import build, parse_name
from bench.report.blocks import Block, Note, Table

MOST_CLASSES = 50
"""With more classes their shares are told by the largest and the smallest."""


def task(name: str) -> Task:
    """The task of a name such as `listops[max_length=150]`. ValueError: an unknown name or option."""
    plain, options = parse_name(name)
    built: Task = build(f"task {plain}", registry.find("task", plain), options)
    return built


def listing() -> list[Block]:
    """Every registered task with its default options, and whether its data are there; nothing is read or made."""
    rows = []
    for name in registry.plugins("task"):
        try:
            found = task(name)
        except ValueError as error:
            rows.append([name, "cannot be used", "-", "-", "-", str(error)])
            continue
        try:
            where = found.locate()
            state = "there" if where else "not known"
        except Missing as reason:
            state, where = "missing", str(reason)
        except ValueError as error:
            state, where = "cannot be used", str(error)
        step = str(found.features) if found.features else f"{len(found.vocabulary or ())} tokens"
        where = where or f"bench data check {name}"
        rows.append([name, state, f"{found.length:,}", step, str(found.classes), where])
    numeric = ["length", "channels", "classes"]
    return [Table("Data sets", ["task", "data", "length", "channels", "classes", "where"], rows, numeric=numeric)]


def check(name: str, seed: int) -> list[Block]:
    """The data of one task and seed: sizes, lengths, balance of labels, inputs in two splits, floors, checksum.

    Inputs that two splits share are a Note with `fault`. ValueError: as `task`, or what is wrong in the data. Missing.
    """
    found = task(name)
    where = found.locate()
    data = found.load(seed)
    splits = {"train": data.train, "validation": data.validation, "test": data.test}
    blocks: list[Block] = [
        Note(f"{name}, seed {seed}{f': {where}' if where else ''}"),
        Note(f"Source: {found.source or '-'}\nLicence: {found.licence or '-'}\nsha256: {data.checksum}"),
        _sizes(splits),
        *_labels(found, splits),
        _floors(found, data),
    ]
    for one, other in itertools.combinations(splits, 2):
        if count := shared(splits[one], splits[other]):
            examples = len(splits[other])
            text = f"{count} of {examples:,} examples of the {other} split have an input of the {one} split"
            blocks.append(Note(text, warning=True, fault=True))
    if not any(isinstance(block, Note) and block.fault for block in blocks):
        blocks.append(Note("\nNo input is in two splits."))
    return blocks


def make(name: str, seeds: Iterable[int]) -> list[Block]:
    """Loads the data of each seed, which puts into the cache what is kept there, and says where it is.

    ValueError and Missing as `check`.
    """
    found = task(name)
    rows = []
    for seed in seeds:
        begin = time.monotonic()
        with cache.watched() as paths:
            data = found.load(seed)
        seconds = time.monotonic() - begin
        kept = [str(path) for path in dict.fromkeys(paths) if path.is_file()]
        where = ", ".join(kept) or found.locate() or "not kept"
        examples = sum(len(split) for split in (data.train, data.validation, data.test))
        rows.append([str(seed), f"{examples:,}", _size(kept), f"{seconds:.1f}", data.checksum[:16], where])
    columns = ["seed", "examples", "kept", "time [s]", "sha256", "where"]
    return [Table(f"Data of {name}", columns, rows, numeric=columns[:4])]


def _sizes(splits: dict[str, Split]) -> Table:
    rows = []
    for name, split in splits.items():
        lengths = split.lengths.reshape(-1)
        megabytes = sum(array.nbytes for array in (split.inputs, split.lengths, split.targets)) / 2**20
        different = len(np.unique(content(split)))
        shown = [len(split), different, lengths.min(), int(np.median(lengths)), lengths.max()]
        rows.append([name, *(f"{number:,}" for number in shown), f"{megabytes:,.1f}"])
    columns = ["split", "examples", "different", "shortest", "median", "longest", "memory [MiB]"]
    return Table("Splits", columns, rows, numeric=columns[1:])


def _labels(found: Task, splits: dict[str, Split]) -> list[Block]:
    if found.numeric:
        columns = ["split", "smallest", "mean", "sd", "largest"]
        rows = []
        for name, split in splits.items():
            targets = split.targets.astype(np.float64)
            figures = targets.min(), targets.mean(), targets.std(), targets.max()
            rows.append([name, *(f"{figure:.4g}" for figure in figures)])
        return [Table("Targets", columns, rows, numeric=columns[1:])]
    counts = {
        name: np.bincount(split.targets[split.targets != NOT_ASKED], minlength=found.classes)
        for name, split in splits.items()
    }
    if found.classes > MOST_CLASSES:
        columns = ["split", "targets", "classes", "largest [%]", "smallest [%]"]
        rows = [
            [name, f"{count.sum():,}", f"{np.count_nonzero(count):,}"]
            + [f"{100 * share / count.sum():.3g}" for share in (count.max(), count[count > 0].min())]
            for name, count in counts.items()
        ]
        return [Table("Labels", columns, rows, numeric=columns[1:])]
    columns = ["class", *(f"{name} [%]" for name in splits)]
    rows = [
        [str(label), *(f"{100 * count[label] / count.sum():.1f}" for count in counts.values())]
        for label in range(found.classes)
    ]
    return [Table("Labels", columns, rows, numeric=columns)]


def _floors(found: Task, data: Dataset) -> Table:
    rows = [[name, f"{100 * share:.1f}"] for name, share in found.floors(data).items()]
    return Table("Floors: accuracy on the test split", ["model", "accuracy [%]"], rows, numeric=["accuracy [%]"])


def _size(kept: list[str]) -> str:
    return f"{sum(Path(path).stat().st_size for path in kept) / 2**20:,.1f} MiB" if kept else "-"

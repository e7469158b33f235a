"""Time series of the UEA and UCR archives: reads their .ts files, and makes padded, standardised splits of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import ClassVar

import numpy as np

from bench.contract import Dataset, Split, Task, require
from bench.data import content, dataset, hold_out, take
from suites.tasks import floors, wheels

VALIDATION = 0.1
"""The share of the published training split that is held out."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimeSeries(Task):
    """A set of the archives, in its published split into train and test, read out of an installed package.

    Examples are padded at the end with 0 to the longest. Each channel is standardised by the mean and the standard
    deviation of its steps in the training split, padding left out. What is validated on is cut from the published
    training split, a tenth of each class. A training example that is in the test split too is left out.
    """

    name: ClassVar[str]
    """As the archive spells it."""
    package: ClassVar[str] = "sktime"
    sha256: ClassVar[tuple[str, str]]
    """Of the files NAME_TRAIN.ts and NAME_TEST.ts."""
    longest: ClassVar[int]
    channels: ClassVar[int]
    labels: ClassVar[int]

    @property
    def length(self) -> int:
        return self.longest

    @property
    def classes(self) -> int:
        return self.labels

    @property
    def features(self) -> int:
        return self.channels

    def locate(self) -> str:
        return wheels.find(self.package, self._file("TRAIN"))[0]

    def load(self, seed: int) -> Dataset:
        """The published split; `seed` changes nothing. Missing: without the package. ValueError: another file."""
        train, test = (
            self._padded(wheels.read(self.package, self._file(part), digest), part)
            for part, digest in zip(("TRAIN", "TEST"), self.sha256, strict=True)
        )
        train = take(train, np.flatnonzero(~np.isin(content(train), content(test))))
        return dataset(*standardised(*hold_out(train, VALIDATION), test), vocabulary_size=None, classes=self.classes)

    def floors(self, data: Dataset) -> dict[str, float]:
        return super().floors(data) | floors.fitted(data)

    def _file(self, part: str) -> str:
        return f"datasets/data/{self.name}/{self.name}_{part}.ts"

    def _padded(self, file: bytes, part: str) -> Split:
        series, targets = read(file, PurePosixPath(self._file(part)).name)
        return padded(series, targets, self.length)


def read(file: bytes, name: str) -> tuple[list[np.ndarray], np.ndarray]:
    """The examples of a .ts file, each (steps, channels) float64, and their classes, (examples,) int32.

    A row holds the channels, divided by colons, each as numbers divided by commas, and last the label; classes are
    numbered in the order in which `@classLabel` lists them. ValueError, with file and row (from 1): no such row.
    """
    series: list[np.ndarray] = []
    targets: list[int] = []
    for number, row, labels in _rows(file.decode("utf-8", errors="replace"), name):
        *channels, label = (field.strip() for field in row.split(":"))
        at = f"{name}, row {number}"
        require(label in labels, f"{at}: the label is {label!r}: allowed are {', '.join(labels) or 'none'}")
        try:
            steps = [np.array(channel.split(","), np.float64) for channel in channels]
        except ValueError as error:
            raise ValueError(f"{at}: {error}") from None
        require(len({len(channel) for channel in steps}) == 1, f"{at}: the channels are not of one length")
        series.append(np.stack(steps, axis=1))
        require(
            series[-1].shape[1] == series[0].shape[1],
            f"{at}: {series[-1].shape[1]} channels, but the first row has {series[0].shape[1]}",
        )
        targets.append(labels.index(label))
    require(bool(series), f"{name}: no examples")
    return series, np.array(targets, np.int32)


def _rows(text: str, name: str) -> Iterator[tuple[int, str, list[str]]]:
    """The rows below `@data`, each with its number and the labels that the head allows."""
    labels: list[str] = []
    inside = False
    for number, line in enumerate(text.splitlines(), start=1):
        row = line.strip()
        if not row or row.startswith(("#", "%")):
            continue
        if inside:
            yield number, row, labels
        elif row.lower().startswith("@classlabel"):
            labels = row.split()[2:]
        elif row.lower() == "@data":
            inside = True
    require(inside, f"{name}: no line @data")


def padded(series: Sequence[np.ndarray], targets: np.ndarray, length: int) -> Split:
    """Examples (steps, channels) as one Split of (examples, length, channels) float64, zeros after each end."""
    lengths = np.array([len(steps) for steps in series], np.int32)
    require(lengths.max() <= length, f"an example has {lengths.max()} steps, more than {length}")
    inputs = np.zeros((len(series), length, series[0].shape[1]))
    for row, steps in zip(inputs, series, strict=True):
        row[: len(steps)] = steps
    return Split(inputs=inputs, lengths=lengths, targets=targets)


def standardised(train: Split, *others: Split) -> list[Split]:
    """All splits in float32, each channel by the mean and standard deviation of its real steps in `train`.

    Padding stays 0. A channel that never changes in `train` is only centred.
    """
    steps = train.inputs[real_steps(train)].astype(np.float64)
    mean, sd = steps.mean(0), steps.std(0)
    sd[sd == 0] = 1
    return [
        dataclasses.replace(
            split, inputs=np.where(real_steps(split)[..., None], (split.inputs - mean) / sd, 0).astype(np.float32)
        )
        for split in (train, *others)
    ]


def real_steps(split: Split) -> np.ndarray:
    """Which steps lie before the end of their example, (examples, length)."""
    return np.arange(split.inputs.shape[1]) < split.lengths[:, None]

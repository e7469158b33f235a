"""Text: whether a review of a film is for or against it, read letter by letter (Long Range Arena)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import ClassVar

import numpy as np

from bench.cache import cached_arrays
from bench.contract import Dataset, Split, Task, require
from bench.data import Layout, dataset, digests, fingerprint, user_folder
from suites.tasks import characters, floors, preprocessing

VERSION = 1
"""Of the data: another number after any change to what is read, so that no old cache is used."""

KINDS = ("neg", "pos")
"""The names of the classes, in their order."""
PARTS = ("train", "test")
FOLDERS = Layout("", tuple(f"{part}/{kind}" for part in PARTS for kind in KINDS))
TABLES = Layout("plain_text", tuple(f"{part}-00000-of-00001.parquet" for part in PARTS))
SOURCE = (
    "Unpack the Large Movie Review Dataset (aclImdb_v1.tar.gz, ai.stanford.edu/~amaas/data/sentiment), or get the "
    "parquet files of the data set stanfordnlp/imdb on huggingface.co, and set BENCH_DATA to a folder above them"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Text(Task):
    """Reviews as characters, cut to `max_length` - 1 of them and ended by `<eos>`; class 1 is praise.

    Read from the user's own copy, below the folder in BENCH_DATA: aclImdb/{train,test}/{pos,neg}/*.txt, or
    plain_text/{train,test}-00000-of-00001.parquet. Both give the same examples in the same order. train/unsup has no
    labels and is not read.

    The alphabet is made of the training split alone: characters that stand there `min_freq` times or more, the most
    frequent first, as many as `symbols` ids have room for beside `<pad>`, `<unk>` and `<eos>`; all others are `<unk>`.
    So the vocabulary has the same size whatever the data; 135 is the width of the published networks.

    A tenth of the training reviews, the same for every seed, is the validation split, which the source does not have.
    Training and validation reviews that also stand in test are left out.
    """

    source: ClassVar[str] = "Maas et al. 2011 (Large Movie Review Dataset); Tay et al. 2021 (Long Range Arena)"
    licence: ClassVar[str] = "the user's copy; its source names the terms"

    max_length: int = 4096
    symbols: int = 135
    min_freq: int = 15

    def __post_init__(self) -> None:
        characters.check(self.max_length, self.symbols, self.min_freq)

    @property
    def published(self) -> tuple[str, str] | None:
        return ("LRA", "Text") if self.max_length == 4096 else None

    @property
    def length(self) -> int:
        return self.max_length

    @property
    def classes(self) -> int:
        return len(KINDS)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        return characters.slots(self.symbols)

    def alphabet(self) -> str:
        """The characters behind the ids from 3 on. Missing and ValueError as for `load`."""
        return "".join(map(chr, self._arrays()["alphabet"].tolist()))

    def locate(self) -> str:
        user_folder([FOLDERS, TABLES], SOURCE)
        return preprocessing.PLACE

    def load(self, seed: int) -> Dataset:
        """The reviews; `seed` changes nothing.

        Missing: no files, or no pyarrow. ValueError: two copies, or a file that is malformed, with its row.
        """
        arrays = self._arrays()
        splits = [
            Split(
                inputs=characters.padded(arrays[f"{name}.tokens"], arrays[f"{name}.lengths"], self.max_length),
                lengths=arrays[f"{name}.lengths"],
                targets=arrays[f"{name}.targets"],
            )
            for name in ("train", "validation", "test")
        ]
        return dataset(*splits, vocabulary_size=self.symbols, classes=self.classes)

    def floors(self, data: Dataset) -> dict[str, float]:
        return super().floors(data) | floors.fitted(data)

    def _arrays(self) -> dict[str, np.ndarray]:
        folder = user_folder([FOLDERS, TABLES], SOURCE)
        as_tables = (folder / str(TABLES.holds[0])).exists()
        if as_tables:
            paths = [folder / str(name) for name in TABLES.holds]
        else:
            paths = sorted(path for place in FOLDERS.holds for path in (folder / str(place)).glob("*.txt"))
        read = _read_tables if as_tables else _read_folders
        options = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        key = {"version": VERSION, "files": fingerprint(paths, folder), **options}
        return cached_arrays("text", key, lambda: self._made(*read(folder)))

    def _made(self, train: list[tuple[str, int]], test: list[tuple[str, int]]) -> dict[str, np.ndarray]:
        most = self.max_length - 1
        texts = {"train": [text[:most] for text, _ in train], "test": [text[:most] for text, _ in test]}
        labels = {"train": [label for _, label in train], "test": [label for _, label in test]}
        targets = {part: np.array(found, np.int32) for part, found in labels.items()}
        keys = {part: digests(text.encode("utf-8", "surrogatepass") for text in found) for part, found in texts.items()}
        stays, held, tested = preprocessing.splits(keys["train"], targets["train"], keys["test"], targets["test"])
        letters = characters.alphabet((texts["train"][row] for row in stays), self.symbols, self.min_freq)
        arrays = {"alphabet": letters}
        for name, part, rows in (("train", "train", stays), ("validation", "train", held), ("test", "test", tested)):
            tokens, lengths = characters.encode([texts[part][row] for row in rows], letters)
            arrays |= {f"{name}.tokens": tokens, f"{name}.lengths": lengths, f"{name}.targets": targets[part][rows]}
        return arrays


def _read_folders(folder: Path) -> list[list[tuple[str, int]]]:
    """(text, label) of each review, of train and of test."""
    found = []
    for part in PARTS:
        reviews = []
        for label, kind in enumerate(KINDS):
            paths = sorted((folder / part / kind).glob("*.txt"))
            require(bool(paths), f"{part}/{kind}: no *.txt files")
            for path in paths:
                try:
                    reviews.append((path.read_bytes().decode("utf-8"), label))
                except UnicodeDecodeError as error:
                    raise ValueError(f"{part}/{kind}/{path.name}: {error}") from error
        found.append(reviews)
    return found


def _read_tables(folder: Path) -> list[list[tuple[str, int]]]:
    import pyarrow
    import pyarrow.parquet

    found = []
    for name in map(str, TABLES.holds):
        try:
            table = pyarrow.parquet.read_table(folder / name, columns=["text", "label"])
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            raise ValueError(f"{name}: {str(error).splitlines()[0]}") from error
        require(
            table.column_names == ["text", "label"],
            f"{name}: columns text and label are expected, and there are only {table.column_names}",
        )
        reviews = list(zip(table["text"].to_pylist(), table["label"].to_pylist(), strict=True))
        for row, (text, label) in enumerate(reviews):
            require(
                isinstance(text, str) and label in (0, 1),
                f"{name}, row {row}: a text with label 0 or 1 is expected, not {str(text)[:40]!r} with {label!r}",
            )
        require(bool(reviews), f"{name}: no examples")
        found.append(reviews)
    return found

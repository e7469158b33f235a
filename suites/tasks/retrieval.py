"""Retrieval: whether one of two papers cites the other, both read letter by letter (Long Range Arena)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np

from bench.cache import cached_arrays
from bench.contract import Dataset, Missing, Split, Task, require
from bench.data import dataset, digests, fingerprint, user_files, user_tree
from suites.tasks import characters, floors, preprocessing

VERSION = 1
"""Of the data: another number after any change to what is read, so that no old cache is used."""

FILES = {
    "train": "new_aan_pairs.train.tsv",
    "validation": "new_aan_pairs.eval.tsv",
    "test": "new_aan_pairs.test.tsv",
}
IDS_ONLY = ".only_ids.tsv"
FIELDS = 5
SKIP = ("imgs",)
"""Folders that are not searched: a million pictures of Pathfinder."""
SOURCE = (
    "Unpack the Long Range Arena's archive (lra_release.gz, github.com/google-research/long-range-arena), where they "
    "are in tsv_data, and set BENCH_DATA to its inner lra_release folder"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retrieval(Task):
    """Pairs of papers of the ACL Anthology Network as characters; class 1 is that one cites the other.

    Each text is cut to `max_length` - 1 characters and ended by `<eos>`. Read from the user's own copy, below the
    folder in BENCH_DATA: new_aan_pairs.{train,eval,test}.tsv, no header, five fields (label, two ids, two texts)
    divided by tabs. A quotation mark in a text is a character like any other.

    The alphabet is made of the training split alone: characters that stand there `min_freq` times or more, the most
    frequent first, as many as `symbols` ids have room for beside `<pad>`, `<unk>` and `<eos>`; all others are `<unk>`.

    Of pairs that stand in two splits the one in the later split (train, validation, test) is kept.
    """

    source: ClassVar[str] = "Radev et al. 2013 (ACL Anthology Network); Tay et al. 2021 (Long Range Arena)"
    licence: ClassVar[str] = "the user's copy; its source names the terms"
    pairs: ClassVar[bool] = True

    max_length: int = 4000
    symbols: int = 98
    min_freq: int = 1

    def __post_init__(self) -> None:
        characters.check(self.max_length, self.symbols, self.min_freq)

    @property
    def published(self) -> tuple[str, str] | None:
        return ("LRA", "Retrieval") if self.max_length == 4000 else None

    @property
    def length(self) -> int:
        return self.max_length

    @property
    def classes(self) -> int:
        return 2

    @property
    def vocabulary(self) -> tuple[str, ...]:
        return characters.slots(self.symbols)

    def alphabet(self) -> str:
        """The characters behind the ids from 3 on. Missing and ValueError as for `load`."""
        return "".join(map(chr, self._arrays()["alphabet"].tolist()))

    def locate(self) -> str:
        _paths()
        return preprocessing.PLACE

    def load(self, seed: int) -> Dataset:
        """The pairs; `seed` changes nothing.

        Missing: no files, or copies that hold ids alone. ValueError: two copies, or a malformed row, with its file.
        """
        arrays = self._arrays()
        splits = []
        for name in FILES:
            lengths = arrays[f"{name}.lengths"]
            inputs = characters.padded(arrays[f"{name}.tokens"], lengths, self.max_length)
            splits.append(
                Split(
                    inputs=inputs.reshape(-1, 2, self.max_length),
                    lengths=lengths.reshape(-1, 2),
                    targets=arrays[f"{name}.targets"],
                )
            )
        return dataset(*splits, vocabulary_size=self.symbols, classes=self.classes)

    def floors(self, data: Dataset) -> dict[str, float]:
        return super().floors(data) | floors.fitted(data)

    def _arrays(self) -> dict[str, np.ndarray]:
        paths = _paths()
        options = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        files = {name: fingerprint([path], path.parent) for name, path in paths.items()}
        return cached_arrays("retrieval", {"version": VERSION, **files, **options}, lambda: self._made(paths))

    def _made(self, paths: dict[str, Path]) -> dict[str, np.ndarray]:
        found: dict[str, tuple[list[str], np.ndarray]] = {}
        later = np.zeros(0, "V16")
        for name in reversed(FILES):
            texts: list[str] = []
            labels: list[int] = []
            for label, one, other in _rows(paths[FILES[name]]):
                texts += [one[: self.max_length - 1], other[: self.max_length - 1]]
                labels.append(label)
            require(bool(labels), f"{FILES[name]}: no examples")
            # No character that a text may hold divides them.
            keys = digests(
                f"{one}\t{other}".encode("utf-8", "surrogatepass")
                for one, other in zip(texts[::2], texts[1::2], strict=True)
            )
            rows = np.flatnonzero(preprocessing.apart(keys, later))
            require(len(rows) >= 1, f"{FILES[name]}: all of its pairs stand in a later split too")
            later = np.concatenate([later, keys])
            found[name] = [texts[2 * row + side] for row in rows for side in (0, 1)], np.array(labels, np.int32)[rows]
        letters = characters.alphabet(found["train"][0], self.symbols, self.min_freq)
        arrays = {"alphabet": letters}
        for name, (texts, targets) in found.items():
            tokens, lengths = characters.encode(texts, letters)
            arrays |= {f"{name}.tokens": tokens, f"{name}.lengths": lengths, f"{name}.targets": targets}
        return arrays


def _paths() -> dict[str, Path]:
    try:
        return user_files(FILES.values(), SOURCE, SKIP)
    except Missing as error:
        tree = user_tree(", ".join(FILES.values()), SOURCE, SKIP)
        ids = next((name for _, _, names in tree for name in names if name.endswith(IDS_ONLY)), "")
        if not ids:
            raise
        raise Missing(f"{ids} holds the ids of the papers alone, and their texts are needed. {error}") from error


def _rows(path: Path) -> Iterator[tuple[int, str, str]]:
    """(label, text, text) of each row, which are numbered from 1. Bytes that are no UTF-8 become U+FFFD."""
    # Only a line feed ends a row: a text may hold what else Python takes for the end of a line.
    with path.open(newline="\n", encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            row = line.removesuffix("\n").removesuffix("\r")
            if not row:
                continue
            fields = row.split("\t")
            require(
                len(fields) == FIELDS,
                f"{path.name}, row {number}: label, two ids and two texts are expected, not {len(fields)} fields"
                + (", so this is the copy that holds ids alone" if len(fields) == 3 else ""),
            )
            label = {"0": 0, "0.0": 0, "1": 1, "1.0": 1}.get(fields[0])
            if label is None:
                raise ValueError(f"{path.name}, row {number}: the label must be 0 or 1, not {fields[0]!r}")
            yield label, fields[3], fields[4]

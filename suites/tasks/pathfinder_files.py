"""The user's copy of Pathfinder: pictures of dashed paths, and what their metadata says of each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.cache import cached_arrays
from bench.contract import Missing, require
from bench.data import Layout, fingerprint, user_folder

VERSION = 1
"""Of the data: another number after any change to what is read, so that no old cache is used."""

DIFFICULTIES = {"easy": "curv_baseline", "medium": "curv_contour_length_9", "hard": "curv_contour_length_14"}
"""Difficulty -> its folder. They are no splits: each holds pictures of its own for all of them."""

FIELDS, LABEL = 11, 3
"""Fields of a row: folder, file, index, label, continuity, lengths of contour, distractors and paddles, thickness,
margin, number of contrasts."""
NPY_MAGIC = b"\x93NUMPY"
SOURCE = (
    "Unpack the Long Range Arena's archive (lra_release.gz, github.com/google-research/long-range-arena) and set "
    "BENCH_DATA to its inner lra_release folder"
)


def read(size: int, difficulty: str) -> dict[str, np.ndarray]:
    """Images (n, size, size) uint8, labels (n,) int32 and "skipped", () int64: how many pictures were empty files.

    Pictures come in the order of the metadata files' numbers, then of their rows. `difficulty`: easy, medium or
    hard. Missing: no files, or no Pillow, which reads the pictures. ValueError: two copies, or something malformed,
    with file and row. The first reading is kept in the cache.
    """
    require(difficulty in DIFFICULTIES, f"difficulty must be {', '.join(DIFFICULTIES)}, not {difficulty!r}")
    layout = Layout(f"pathfinder{size}/{DIFFICULTIES[difficulty]}", ("metadata", "imgs"))
    folder = user_folder([layout], SOURCE, skip=("imgs", "metadata"))
    key = {"version": VERSION, "files": fingerprint(_files(folder), folder), "size": size}
    return cached_arrays("pathfinder-files", key, lambda: _read(folder, size))


def _files(folder: Path) -> Iterator[Path]:
    for here, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(here, name) for name in sorted(names))


def _read(folder: Path, size: int) -> dict[str, np.ndarray]:
    try:
        from PIL import Image
    except ImportError as error:
        raise Missing(
            'the pictures are read by Pillow, which is not there: pip install "linrec-bench[data]"'
        ) from error

    images: list[np.ndarray] = []
    labels: list[int] = []
    skipped = 0
    for table in _tables(folder):
        for row, fields in enumerate(_rows(table), start=1):
            if not fields:  # an empty line
                continue
            at = f"metadata/{table.name}, row {row}"
            require(len(fields) == FIELDS, f"{at}: {FIELDS} fields are expected, not {len(fields)}")
            label = {"0": 0, "0.0": 0, "1": 1, "1.0": 1}.get(fields[LABEL])
            if label is None:
                raise ValueError(f"{at}: the label, field {LABEL} from 0, must be 0 or 1, not {fields[LABEL]!r}")
            picture = folder / fields[0] / fields[1]
            require(picture.is_file(), f"{at}: there is no picture {fields[0]}/{fields[1]}")
            if picture.stat().st_size == 0:
                skipped += 1
                continue
            try:
                with Image.open(picture) as opened:
                    pixels = np.asarray(opened.convert("L"))
            except (OSError, SyntaxError, ValueError) as error:  # Pillow calls a broken PNG a SyntaxError
                raise ValueError(f"{at}: {fields[0]}/{fields[1]} is no picture: {error}") from error
            require(
                pixels.shape == (size, size),
                f"{at}: {fields[0]}/{fields[1]} has {pixels.shape[1]} x {pixels.shape[0]} pixels, not {size} x {size}",
            )
            images.append(pixels)
            labels.append(label)
    require(bool(images), f"{folder.parent.name}/{folder.name}: no pictures")
    return {"images": np.stack(images), "labels": np.array(labels, np.int32), "skipped": np.array(skipped)}


def _tables(folder: Path) -> list[Path]:
    found = [path for path in (folder / "metadata").glob("*.npy") if not path.name.startswith(".")]
    require(bool(found), f"{folder.parent.name}/{folder.name}/metadata: no *.npy files")
    for path in found:
        require(path.stem.isdecimal(), f"metadata/{path.name}: the name must be a number")
    return sorted(found, key=lambda path: int(path.stem))


def _rows(path: Path) -> list[list[str]]:
    """The fields of every row of a metadata file, which is plain text or, whatever its name says, an array."""
    content = path.read_bytes()
    if not content.startswith(NPY_MAGIC):
        try:
            return [line.split() for line in content.decode("ascii").splitlines()]
        except UnicodeDecodeError as error:
            raise ValueError(f"metadata/{path.name}: neither text nor an array: {error}") from error
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"metadata/{path.name}: {error}") from error
    require(
        array.ndim == 2 and array.dtype.kind in "US",
        f"metadata/{path.name}: a table of strings is expected, not {array.dtype} {array.shape}",
    )
    return [
        [field.decode("ascii", "replace") if isinstance(field, bytes) else field for field in row]
        for row in array.tolist()
    ]

"""Writes tiny data sets in the layouts in which their makers give them, as the users' own copies."""

import gzip
import io
import os
import pickle
import struct
import wave
from pathlib import Path

import numpy as np

from suites.tasks.speech_commands import WORDS


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


# IMDb: one file a review, or one table a split, both sorted by class


def reviews(each, seed=0):
    """{(part, kind): texts}, `each` of them, no two equal."""
    rng = np.random.default_rng(seed)
    places = [(part, kind) for part in ("train", "test") for kind in ("neg", "pos")]
    return {
        place: ["".join(rng.choice(list("abcdefgh <>/."), 30)) + f" {number} {place}" for number in range(each)]
        for place in places
    }


def imdb_folders(root, texts):
    for (part, kind), found in texts.items():
        for number, text in enumerate(found):
            stars = 9 if kind == "pos" else 2
            put(root / part / kind / f"{number}_{stars}.txt", text.encode())
    put(root / "train" / "unsup" / "0_0.txt", b"nobody says what this is")
    put(root / "train" / "urls_pos.txt", b"http://example.org")


def imdb_tables(root, texts):
    import pyarrow
    import pyarrow.parquet

    for part in ("train", "test"):
        rows = [(text, label) for label, kind in enumerate(("neg", "pos")) for text in texts[part, kind]]
        table = pyarrow.table({"text": [text for text, _ in rows], "label": [label for _, label in rows]})
        root.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(table, root / f"{part}-00000-of-00001.parquet")


# AAN: tables without header and without quoting


def aan(root, rows, end="\n"):
    """`rows`: part (train, eval, test) -> rows of five fields."""
    for part, found in rows.items():
        put(root / f"new_aan_pairs.{part}.tsv", "".join("\t".join(row) + end for row in found).encode())


# CIFAR-10: pickles as Python 2 wrote them


class _Python2(pickle._Pickler):
    """Writes byte strings as Python 2 wrote its strings, and numpy's functions under the names of that time."""

    dispatch = dict(pickle._Pickler.dispatch)

    def save_bytes(self, text):
        self.write(b"U" + bytes([len(text)]) + text if len(text) < 256 else b"T" + struct.pack("<i", len(text)) + text)
        self.memoize(text)

    dispatch[bytes] = save_bytes

    def save_global(self, thing, name=None):
        if getattr(thing, "__name__", "") == "_reconstruct":
            self.write(b"cnumpy.core.multiarray\n_reconstruct\n")
        else:
            super().save_global(thing, name)

    dispatch[type(np.zeros(0).__reduce__()[0])] = save_global


def python2_pickle(content):
    file = io.BytesIO()
    _Python2(file, protocol=2).dump(content)
    return file.getvalue()


def cifar(root, each=10, seed=0):
    """Six batches of `each` images, classes in turn; returns {name: (pixels, labels)}."""
    rng = np.random.default_rng(seed)
    made = {}
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        pixels = rng.integers(0, 256, (each, 3072)).astype(np.uint8)
        labels = [number % 10 for number in range(each)]
        content = {b"batch_label": name.encode(), b"labels": labels, b"data": pixels, b"filenames": [b"x.png"] * each}
        put(root / name, python2_pickle(content))
        made[name] = pixels, labels
    put(root / "batches.meta", python2_pickle({b"label_names": [b"airplane"], b"num_vis": 3072}))
    return made


# MNIST: idx files


def idx(array):
    return struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def mnist(root, train=60, test=10, packed=False, seed=0):
    """Returns {part: (images, labels)}."""
    rng = np.random.default_rng(seed)
    made = {}
    for part, stem, count in (("train", "train", train), ("test", "t10k", test)):
        images = rng.integers(0, 256, (count, 28, 28)).astype(np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for name, array in ((f"{stem}-images-idx3-ubyte", images), (f"{stem}-labels-idx1-ubyte", labels)):
            content = idx(array)
            put(root / (name + ".gz" * packed), gzip.compress(content) if packed else content)
        made[part] = images, labels
    return made


# Pathfinder: pictures, and tables that say what they show


def png(pixels):
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def pathfinder(root, size=32, tables=(2, 10), each=3, binary=False, end="\n", seed=0):
    """Returns pictures and labels in the order of the tables' numbers."""
    rng = np.random.default_rng(seed)
    pictures, labels = [], []
    for table in sorted(tables):
        rows = []
        for number in range(each):
            pictures.append(rng.integers(0, 256, (size, size)).astype(np.uint8))
            labels.append(int(rng.integers(0, 2)))
            put(root / "imgs" / str(table) / f"sample_{number}.png", png(pictures[-1]))
            row = f"imgs/{table} sample_{number}.png {number} {labels[-1]} 1.0 14 5 2 0.5 1 1"
            rows.append(row.split())
        if binary:
            file = io.BytesIO()
            np.save(file, np.array(rows))
            content = file.getvalue()
        else:
            content = "".join(" ".join(row) + end for row in rows).encode()
        put(root / "metadata" / f"{table}.npy", content)
    return np.stack(pictures), np.array(labels)


# Speech Commands: one folder a word, and two lists


def wav(samples, rate=16_000, channels=1):
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(2)
        writer.setframerate(rate)
        writer.writeframes(np.asarray(samples, "<i2").tobytes())
    return file.getvalue()


def speech(root, each=3, words=WORDS, lengths=(16_000,), seed=0):
    """Of each word the first clip is for validation, the second for test; lengths in turn. Returns {clip: samples}."""
    rng = np.random.default_rng(seed)
    made = {}
    lists = {"validation_list.txt": [], "testing_list.txt": []}
    for word in words:
        for number in range(each):
            clip = f"{word}/{number:08x}_nohash_0.wav"
            made[clip] = rng.integers(-(2**15), 2**15, lengths[len(made) % len(lengths)]).astype(np.int16)
            put(root / clip, wav(made[clip]))
        for name, number in zip(lists, (0, 1), strict=True):
            lists[name].append(f"{word}/{number:08x}_nohash_0.wav")
    for name, clips in lists.items():
        put(root / name, os.linesep.join(clips).encode() + b"\n")
    put(root / "_background_noise_" / "pink_noise.wav", wav(np.zeros(100), rate=44_100))
    return made

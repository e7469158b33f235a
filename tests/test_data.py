"""What every data set passes through: the user's files, checks, checksum, order of examples."""

import dataclasses
import os
import time

import numpy as np
import pytest

from bench import data
from bench.contract import NOT_ASKED, Dataset, Missing, Split, Task
from bench.data import (
    Layout,
    batches,
    checksum,
    content,
    dataset,
    fingerprint,
    hold_out,
    shared,
    user_files,
    user_folder,
)


def token_split(examples=4, length=5, **changes):
    ids = np.arange(examples * length, dtype=np.int32).reshape(examples, length) % 7
    split = Split(
        inputs=ids, lengths=np.full(examples, length, np.int32), targets=np.arange(examples, dtype=np.int32) % 3
    )
    return dataclasses.replace(split, **changes)


def real_split(examples=4, length=5, features=2):
    rng = np.random.default_rng(examples)
    return Split(
        inputs=rng.standard_normal((examples, length, features)).astype(np.float32),
        lengths=np.full(examples, length, np.int32),
        targets=np.zeros(examples, np.int32),
    )


def with_entry(array, place, entry):
    changed = array.copy()
    changed[place] = entry
    return changed


def test_a_data_set_keeps_its_splits_and_carries_their_checksum():
    splits = token_split(4), token_split(2), token_split(3)
    made = dataset(*splits, vocabulary_size=7, classes=3)
    assert (made.train, made.validation, made.test) == splits
    assert made.checksum == checksum(splits)
    assert len(made.checksum) == 64


def test_the_checksum_sees_every_array_dtype_shape_and_the_order_of_splits():
    split = token_split()
    variants = [
        [split],
        [split, split],
        [dataclasses.replace(split, inputs=with_entry(split.inputs, (3, 4), 0))],
        [dataclasses.replace(split, lengths=with_entry(split.lengths, 3, 1))],
        [dataclasses.replace(split, targets=with_entry(split.targets, 3, 2))],
        [dataclasses.replace(split, inputs=split.inputs.reshape(2, 10))],
        [dataclasses.replace(split, inputs=split.inputs.view(np.float32))],
        [dataclasses.replace(split, inputs=split.inputs.view(">i4"))],
        [split, token_split(2)],
        [token_split(2), split],
    ]
    assert len({checksum(variant) for variant in variants}) == len(variants)


def test_the_checksum_does_not_see_how_an_array_lies_in_memory():
    split = token_split()
    transposed = dataclasses.replace(split, inputs=np.asfortranarray(split.inputs))
    strided = dataclasses.replace(split, targets=np.repeat(split.targets, 2)[::2])
    assert checksum([split]) == checksum([transposed]) == checksum([strided])


@pytest.mark.parametrize(
    ("field", "place", "entry", "said"),
    [
        ("inputs", (2, 3), 7, r"row 2: token id 7 is not in 0\.\.6"),
        ("inputs", (1, 0), -1, r"row 1: token id -1 is not in 0\.\.6"),
        ("lengths", 3, 0, r"row 3: length 0 is not in 1\.\.5"),
        ("lengths", 0, 6, r"row 0: length 6 is not in 1\.\.5"),
        ("targets", 2, 3, r"row 2: target 3 is not in 0\.\.2"),
        ("targets", 2, -1, r"row 2: target -1 is not in 0\.\.2"),
    ],
)
@pytest.mark.parametrize("at", ["train", "validation", "test"])
def test_what_is_out_of_range_is_an_error_that_names_split_and_row(at, field, place, entry, said):
    splits = {name: token_split() for name in ("train", "validation", "test")}
    broken = with_entry(getattr(splits[at], field), place, entry)
    splits[at] = dataclasses.replace(splits[at], **{field: broken})
    with pytest.raises(ValueError, match=f"^{at}, {said}$"):
        dataset(**splits, vocabulary_size=7, classes=3)


def test_ids_at_padded_places_are_checked_too_as_they_are_embedded_all_the_same():
    split = token_split(lengths=np.full(4, 2, np.int32))
    broken = dataclasses.replace(split, inputs=with_entry(split.inputs, (1, 4), 7))
    with pytest.raises(ValueError, match="train, row 1"):
        dataset(broken, split, split, vocabulary_size=7, classes=3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"inputs": np.zeros((4, 5))}, "float64"),
        ({"inputs": np.zeros((4, 5, 1), np.int32)}, r"\(examples, length\)"),
        ({"inputs": np.zeros((4, 0), np.int32)}, r"\(4, 0\)"),
        ({"lengths": np.ones(3, np.int32)}, r"lengths must be \(4,\)"),
        ({"targets": np.zeros(4, np.int64)}, "int64"),
    ],
)
def test_wrong_shapes_and_dtypes_are_errors(changes, said):
    with pytest.raises(ValueError, match=f"^validation: .*{said}"):
        dataset(token_split(), token_split(**changes), token_split(), vocabulary_size=7, classes=3)


def test_an_empty_split_is_an_error():
    with pytest.raises(ValueError, match="test: no examples"):
        dataset(token_split(), token_split(), token_split(0), vocabulary_size=7, classes=3)


def test_splits_of_different_lengths_are_an_error():
    with pytest.raises(ValueError, match=r"test: .*6.*train.*5"):
        dataset(token_split(), token_split(), token_split(length=6), vocabulary_size=7, classes=3)


def test_targets_may_be_numbers_or_stand_at_positions_and_inputs_may_be_pairs():
    positions = np.full((4, 5), NOT_ASKED, np.int32)
    positions[:, 3] = 2
    pairs = {"inputs": np.zeros((4, 2, 5), np.int32), "lengths": np.full((4, 2), 5, np.int32)}
    for changes in ({"targets": positions}, {"targets": np.full(4, 0.5, np.float32)}, pairs):
        split = token_split(**changes)
        assert dataset(split, split, split, vocabulary_size=7, classes=3).test is split
    for changes, said in (
        ({"targets": with_entry(positions, (1, 3), NOT_ASKED)}, "train, row 1: no position has a target"),
        ({"targets": with_entry(positions, (1, 3), 3)}, r"train, row 1: target 3 is not in -1\.\.2"),
        ({"targets": np.array([0, 1, 2, np.nan], np.float32)}, "train: a target is not finite"),
        (pairs | {"lengths": np.full(4, 5, np.int32)}, r"train: lengths must be \(4, 2\)"),
    ):
        with pytest.raises(ValueError, match=said):
            dataset(token_split(**changes), split, split, vocabulary_size=7, classes=3)


def test_what_stands_behind_the_end_is_no_content_and_the_end_is():
    split = token_split(2, inputs=np.array([[1, 2, 3], [1, 2, 4]], np.int32), lengths=np.array([2, 2], np.int32))
    assert len(np.unique(content(split))) == 1
    assert len(np.unique(content(dataclasses.replace(split, lengths=np.array([2, 3], np.int32))))) == 2
    pairs = np.array([[[1, 2, 3], [4, 5, 6]], [[4, 5, 6], [1, 2, 3]]], np.int32)
    assert len(np.unique(content(Split(pairs, np.full((2, 2), 3, np.int32), np.zeros(2, np.int32))))) == 2


def test_what_is_held_out_has_a_share_of_each_class_and_no_input_that_stays():
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 7, (300, 3)).astype(np.int32)  # 343 different ones, so that many are there twice
    split = Split(inputs, np.full(300, 3, np.int32), np.repeat(np.arange(3, dtype=np.int32), 100))
    stays, held = hold_out(split, 0.2)
    assert len(stays) + len(held) == 300
    assert shared(stays, held) == shared(held, stays) == 0
    assert shared(split, held) == len(held)
    assert all(10 <= (held.targets == label).sum() <= 32 for label in range(3))
    again = hold_out(split, 0.2)
    assert checksum([stays, held]) == checksum(again)
    with pytest.raises(ValueError, match="too few to hold out 1%"):
        hold_out(token_split(), 0.01)


@pytest.mark.parametrize("entry", [np.nan, np.inf])
def test_real_inputs_must_be_finite(entry):
    split = real_split()
    dataset(split, split, split, vocabulary_size=None, classes=1)
    broken = dataclasses.replace(split, inputs=with_entry(split.inputs, (2, 4, 1), entry))
    with pytest.raises(ValueError, match="validation, row 2: an input is not finite"):
        dataset(split, broken, split, vocabulary_size=None, classes=1)


@pytest.mark.parametrize(("examples", "batch"), [(33, 32), (10, 3), (12, 4), (5, 1), (1, 1)])
def test_each_epoch_shows_examples_once_and_drops_the_smaller_batch(examples, batch):
    per_epoch = examples // batch
    drawn = list(batches(examples, batch, seed=0, steps=3 * per_epoch))
    assert all(rows.shape == (batch,) for rows in drawn)
    for start in range(0, len(drawn), per_epoch):
        seen = np.concatenate(drawn[start : start + per_epoch])
        assert len(set(seen.tolist())) == len(seen) == per_epoch * batch
        assert set(seen.tolist()) <= set(range(examples))


def test_a_batch_larger_than_the_data_is_all_of_it():
    for rows in batches(5, 32, seed=0, steps=4):
        assert sorted(rows.tolist()) == [0, 1, 2, 3, 4]


def test_epochs_and_seeds_have_orders_of_their_own():
    epochs = {tuple(rows.tolist()) for seed in (0, 1) for rows in batches(20, 20, seed, steps=5)}
    assert len(epochs) == 10


def test_the_same_seed_gives_the_same_order_whatever_else_is_drawn():
    first = [rows.tolist() for rows in batches(10, 3, seed=0, steps=7)]
    one, other = batches(10, 3, seed=0, steps=7), batches(10, 3, seed=1, steps=7)
    interleaved = [rows.tolist() for rows, _ in zip(one, other, strict=True)]
    assert first == interleaved


def test_the_batch_size_does_not_change_the_order_of_an_epoch():
    for batch in (1, 3, 6):
        assert np.concatenate(list(batches(12, batch, seed=3, steps=12 // batch))).tolist() == [
            *next(batches(12, 12, seed=3, steps=1))
        ]


def test_there_are_as_many_batches_as_steps():
    assert len(list(batches(10, 4, seed=0, steps=0))) == 0
    assert len(list(batches(10, 4, seed=0, steps=101))) == 101


@pytest.mark.parametrize("wrong", [{"examples": 0}, {"batch": 0}, {"seed": -1}, {"steps": -1}])
def test_wrong_counts_are_refused_at_the_call(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"^{name} must be"):
        batches(**{"examples": 4, "batch": 2, "seed": 0, "steps": 1, **wrong})


@pytest.fixture
def root(tmp_path, monkeypatch):
    root = tmp_path / "data"
    root.mkdir()
    monkeypatch.setenv("BENCH_DATA", str(root))
    return root


def put(path, content="x"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def test_files_are_found_at_any_depth(root):
    first, second = put(root / "a.tsv"), put(root / "one" / "two" / "three" / "b.tsv")
    put(root / "one" / "c.tsv")
    assert user_files(["a.tsv", "b.tsv"], "") == {"a.tsv": first, "b.tsv": second}


def test_a_file_at_two_depths_is_refused_and_both_are_named(root):
    put(root / "outer" / "a.tsv")
    put(root / "outer" / "inner" / "a.tsv")
    with pytest.raises(ValueError, match=r"a\.tsv is there more than once") as error:
        user_files(["a.tsv"], "")
    assert os.path.join("outer", "a.tsv") in str(error.value)
    assert os.path.join("outer", "inner", "a.tsv") in str(error.value)


def test_links_to_one_file_are_one_file_and_links_in_a_circle_end(root):
    put(root / "here" / "a.tsv")
    (root / "here" / "circle").symlink_to(root)
    (root / "folder").symlink_to(root / "here")
    (root / "b.tsv").symlink_to(root / "here" / "a.tsv")
    (root / "elsewhere").mkdir()
    (root / "elsewhere" / "a.tsv").symlink_to(root / "here" / "a.tsv")
    assert os.path.samefile(user_files(["a.tsv"], "")["a.tsv"], root / "here" / "a.tsv")


def test_folders_that_are_linked_from_elsewhere_are_searched(root, tmp_path):
    put(tmp_path / "other_disk" / "a.tsv")
    (root / "linked").symlink_to(tmp_path / "other_disk")
    assert user_files(["a.tsv"], "") == {"a.tsv": root / "linked" / "a.tsv"}


def test_a_folder_and_a_broken_link_are_no_files(root):
    (root / "a.tsv").mkdir()
    (root / "b.tsv").symlink_to(root / "nowhere")
    with pytest.raises(Missing, match=r"^a\.tsv, b\.tsv: not found"):
        user_files(["a.tsv", "b.tsv"], "")


def test_skipped_folders_are_not_entered(root):
    put(root / "imgs" / "a.tsv")
    kept = put(root / "tables" / "a.tsv")
    assert user_files(["a.tsv"], "", skip=("imgs",)) == {"a.tsv": kept}


def test_only_what_is_absent_is_said_to_be_absent(root):
    put(root / "a.tsv")
    with pytest.raises(Missing, match=r"^b\.tsv: not found at any depth below BENCH_DATA=.*\. Ask its authors$"):
        user_files(["a.tsv", "b.tsv"], "Ask its authors")


@pytest.mark.parametrize("value", [None, "", "nowhere", "file"])
def test_a_useless_bench_data_is_answered_within_a_second(tmp_path, monkeypatch, value):
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "file")
    if value is None:
        monkeypatch.delenv("BENCH_DATA", raising=False)
    else:
        monkeypatch.setenv("BENCH_DATA", value)
    begin = time.monotonic()
    with pytest.raises(Missing, match=r"^a\.tsv: looked for .*BENCH_DATA.*Ask its authors$"):
        user_files(["a.tsv"], "Ask its authors")
    assert time.monotonic() - begin < 1


def test_the_search_gives_up_in_a_folder_that_is_far_too_large(root, monkeypatch):
    monkeypatch.setattr(data, "MOST_FOLDERS", 3)
    for name in "abcd":
        (root / name).mkdir()
    with pytest.raises(Missing, match="more than 3 folders below BENCH_DATA"):
        user_files(["a.tsv"], "")


TABLES = Layout("tables/small", ("a.tsv", ("b.tsv", "b.tsv.gz")))
FOLDERS = Layout("", ("train/one", "test/one"))


@pytest.mark.parametrize("place", ["tables/small", "deep/er/tables/small"])
@pytest.mark.parametrize("b", ["b.tsv", "b.tsv.gz"])
def test_a_folder_is_found_by_its_name_and_by_what_it_holds(root, place, b):
    put(root / place / "a.tsv")
    put(root / "small" / "a.tsv")
    put(root / "small" / b)
    with pytest.raises(Missing, match=r"^tables/small with a\.tsv, b\.tsv or b\.tsv\.gz: not found .* Ask$"):
        user_folder([TABLES], "Ask")
    put(root / place / b)
    assert user_folder([TABLES], "") == root / place


def test_bench_data_itself_may_be_the_folder(root, monkeypatch):
    for name in ("a.tsv", "b.tsv"):
        put(root / "tables" / "small" / name)
    monkeypatch.chdir(root / "tables" / "small")
    monkeypatch.setenv("BENCH_DATA", ".")
    assert os.path.samefile(user_folder([TABLES], ""), root / "tables" / "small")


def test_one_of_several_layouts_is_enough_and_two_folders_are_refused(root):
    put(root / "mine" / "train" / "one" / "x")
    put(root / "mine" / "test" / "one" / "x")
    (root / "circle").symlink_to(root)
    assert os.path.samefile(user_folder([TABLES, FOLDERS], ""), root / "mine")
    for name in ("a.tsv", "b.tsv"):
        put(root / "tables" / "small" / name)
    with pytest.raises(ValueError, match=r"is there more than once .*BENCH_DATA") as error:
        user_folder([TABLES, FOLDERS], "")
    assert os.path.join("tables", "small") in str(error.value)
    assert "mine" in str(error.value)
    assert user_folder([TABLES, FOLDERS], "", skip=("mine", "circle")) == root / "tables" / "small"


def test_a_fingerprint_sees_names_sizes_and_times_below_its_root(root):
    def made(place, name="a", text="x", time=1):
        path = put(root / place / name, text)
        os.utime(path, (time, time))
        return fingerprint([path], root / place)

    first = made("one")
    assert made("two") == first
    assert len({first, made("three", name="b"), made("four", text="xy"), made("five", time=2)}) == 4


class Asked(Task):
    """A task of which only the kind of answer matters."""

    length, classes, features = 3, 3, 1

    def load(self, seed):
        raise NotImplementedError


class AtPositions(Asked):
    per_position = True


class Numbers(Asked):
    numeric, classes = True, 1


def test_scores_are_right_or_wrong_the_share_of_what_is_asked_or_near_enough():
    logits = np.array([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]])
    assert Asked().metric(logits, np.array([1, 2])).tolist() == [1, 0]
    asked = np.array([[1, NOT_ASKED, 0], [NOT_ASKED, 0, NOT_ASKED]])
    at = np.stack([logits[[0, 1, 0]], logits[[0, 1, 0]]])
    assert AtPositions().metric(at, asked).tolist() == [0.5, 1]
    assert Numbers().metric(np.array([[0.50], [0.50]]), np.array([0.53, 0.55])).tolist() == [1, 0]


def test_the_floor_is_the_training_splits_most_frequent_answer():
    def data(train, test):
        split = lambda targets: Split(np.zeros((len(targets), 3, 1), np.float32), np.full(len(targets), 3), targets)  # noqa: E731
        return Dataset(split(train), split(train), split(test), "")

    train, test = np.array([2, 2, 1], np.int32), np.array([2, 1, 1, 0], np.int32)
    assert Asked().floors(data(train, test)) == {"majority": 0.25}
    train, test = np.array([[NOT_ASKED, 1, 1]]), np.array([[1, NOT_ASKED, 0], [NOT_ASKED, 1, NOT_ASKED]])
    assert AtPositions().floors(data(train, test)) == {"majority": 0.75}
    numbers = np.array([0.9, 1.1], np.float32), np.array([1.0, 1.03, 1.2, 0.0], np.float32)
    assert Numbers().floors(data(*numbers)) == {"mean": 0.5}

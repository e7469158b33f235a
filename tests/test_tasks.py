"""The data sets: what their generators draw, what their files may hold, and that seeds mean what they say."""

import collections
import dataclasses
import itertools
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bench.contract import Missing
from bench.data import checksum
from suites.tasks import listops
from suites.tasks.digits import Digits, split
from suites.tasks.listops import VOCABULARY, ListOps, distinct_trees, draw, generate, text, tokens, value
from suites.tasks.retrieval import Retrieval
from suites.tasks.text import Text

SMALL = {"max_length": 60, "train": 60, "validation": 20, "test": 20}


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BENCH_DATA", raising=False)


def splits_of(data):
    return {"train": data.train, "validation": data.validation, "test": data.test}


def symbols(row, length):
    return [VOCABULARY[number] for number in row[:length]]


def evaluate(words):
    """The value of a tree's parenthesised text (a deque of words, consumed), by its grammar rather than by a stack."""
    functions = {
        "[MIN": min,
        "[MAX": max,
        "[MED": lambda values: int(statistics.median(values)),
        "[SM": lambda values: sum(values) % 10,
    }
    word = words.popleft()
    if word != "(":
        return (functions[word], []) if word in functions else int(word)
    function, arguments = evaluate(words)
    if words[0] == "]":
        result = function(arguments)
        words.popleft()
    else:
        result = function, [*arguments, evaluate(words)]
    assert words.popleft() == ")"
    return result


def nesting(tree):
    depths = itertools.accumulate(1 if token.startswith("[") else -1 if token == "X" else 0 for token in tree)
    return max(depths)


# ListOps: texts, tokens and values


def test_parentheses_are_no_tokens():
    assert tokens("( ( ( ( [MED 4 ) 8 ) 0 ) ] )") == ["[MED", "4", "8", "0", "X"]


@pytest.mark.parametrize(
    ("source", "result"),
    [
        ("[MED 4 7 ]", 5),  # 5.5 rounded down
        ("[MED 9 0 4 ]", 4),
        ("[MED 1 9 8 2 ]", 5),
        ("[SM 9 8 7 ]", 4),
        ("[SM 5 5 ]", 0),
        ("[MIN 9 [MAX 3 8 ] ]", 8),
        ("[MAX 4 3 [MIN 2 3 ] 1 0 ]", 4),
        ("( ( ( [MAX 4 ) 3 ) ] )", 4),
        ("7", 7),
    ],
)
def test_values_follow_the_rules_of_the_operators(source, result):
    assert value(tokens(source)) == result


@pytest.mark.parametrize(
    ("source", "written"),
    [
        ("7", "7"),
        ("[MAX 4 3 ]", "( ( ( [MAX 4 ) 3 ) ] )"),
        ("[MIN 9 [MAX 3 8 ] ]", "( ( ( [MIN 9 ) ( ( ( [MAX 3 ) 8 ) ] ) ) ] )"),
    ],
)
def test_text_is_nested_to_the_left(source, written):
    assert text(tokens(source)) == written


@pytest.mark.parametrize(
    "source", ["", "4 7", "[MAX 4 7", "4 ]", "[MAX ]", "[MAX 4 ] ]", "[MAX 4 ] 3", "[FIRST 4 3 ]", "foo", "[SM 10 2 ]"]
)
def test_what_is_no_tree_has_neither_value_nor_text(source):
    with pytest.raises(ValueError, match=r"tree|bracket|unknown token"):
        value(tokens(source))
    with pytest.raises(ValueError, match=r"tree|bracket|unknown token"):
        text(tokens(source))


# ListOps: the law of the trees


@pytest.fixture(scope="module")
def sample():
    """Trees of the default bounds, as token lists, with their labels."""
    trees = generate(1000, 500, 2000, np.random.default_rng(3))
    return [[VOCABULARY[number] for number in ids] for ids in trees], np.array(list(trees.values()))


def length_law(size):
    """P(length = k) of one draw for k < size, exactly: the generating function of the recursive definition."""
    digit = np.zeros(size)
    digit[1] = 1
    law = digit
    for _ in range(9):
        power, arguments = law, np.zeros(size)
        for _ in range(2, 11):
            power = np.convolve(power, law)[:size]
            arguments += power / 9
        law = 0.75 * digit
        law[2:] += 0.25 * arguments[:-2]
    return law


def test_trees_come_back_from_their_text(sample):
    for tree in sample[0][:100]:
        words = text(tree).split()
        assert len(words) == 3 * len(tree) - 2
        assert tokens(" ".join(words)) == tree


def test_labels_agree_with_an_independent_evaluator(sample):
    for tree, label in list(zip(*sample, strict=True))[:100]:
        assert evaluate(collections.deque(text(tree).split())) == label == value(tree)


def test_trees_keep_within_the_bounds_of_length_arity_and_depth(sample):
    for tree in sample[0]:
        assert 500 < len(tree) < 2000
        # Trees of this length that stop short of the deepest operation hardly occur: none in 8,000.
        assert nesting(tree) == 9
        counts, opened = [], [0]
        for token in tree:
            if token.startswith("["):
                opened.append(0)
                continue
            if token == "X":
                counts.append(opened.pop())
            opened[-1] += 1
        assert min(counts) >= 2
        assert max(counts) <= 10


def test_lengths_follow_their_exact_law(sample):
    lengths = np.array([len(tree) for tree in sample[0]])
    law = length_law(2000)[501:]
    law /= law.sum()
    for length in (539, 717, 982, 1335, 1819):
        expected = law[: length - 500].sum()
        # 4 standard errors of a fraction of `sample`.
        assert np.mean(lengths <= length) == pytest.approx(
            expected, abs=4 * np.sqrt(expected * (1 - expected) / len(lengths))
        )


def test_labels_are_as_unbalanced_as_measured_before(sample):
    shares = np.bincount(sample[1], minlength=10) / len(sample[1])
    # Measured on 6,000 trees; 4 standard errors of the difference to that sample.
    error = 4 * np.sqrt(1 / len(sample[1]) + 1 / 6000)
    assert shares[0] == pytest.approx(0.170, abs=error * np.sqrt(0.170 * 0.830))
    assert shares[9] == pytest.approx(0.174, abs=error * np.sqrt(0.174 * 0.826))
    assert shares[1:9].min() > 0.073 - error * np.sqrt(0.073 * 0.927)
    assert shares[1:9].max() < 0.091 + error * np.sqrt(0.091 * 0.909)


@pytest.mark.parametrize(("max_length", "draws"), [(2000, 5000), (100, 20_000)])
def test_trees_are_rejected_as_often_as_the_law_of_lengths_says(max_length, draws):
    rng = np.random.default_rng(4)
    numbers = itertools.chain.from_iterable(rng.random(10_000).tolist() for _ in itertools.count())
    trees = [draw(numbers, max_length) for _ in range(draws)]
    law = length_law(max_length)
    for happened, expected in (
        ([tree is None for tree in trees], 1 - law.sum()),
        ([tree is not None and len(tree) > max_length // 4 for tree in trees], law[max_length // 4 + 1 :].sum()),
        ([tree is not None and len(tree) == 1 for tree in trees], 0.75),
    ):
        # 4 standard errors of a fraction of the draws.
        assert np.mean(happened) == pytest.approx(expected, abs=4 * np.sqrt(expected * (1 - expected) / draws))


def test_symbols_are_equally_likely_where_they_are_drawn_equally(sample):
    counts = {symbol: sum(tree.count(symbol) for tree in sample[0]) for symbol in VOCABULARY[3:]}
    for equal in ([str(digit) for digit in range(10)], ["[MIN", "[MAX", "[MED", "[SM"]):
        total = sum(counts[symbol] for symbol in equal)
        for symbol in equal:
            share = 1 / len(equal)
            # 5 standard errors, as 14 shares are looked at: the symbols are drawn independently.
            assert counts[symbol] / total == pytest.approx(share, abs=5 * np.sqrt(share * (1 - share) / total))


def test_a_tree_uses_its_random_numbers_in_the_original_order():
    numbers = [
        *(0.25, 0.0),  # an operator, as 0.25 counts as one; 2 arguments
        *(0.9, 0.35),  # first argument: the digit 3
        *(0.1, 0.15),  # second argument: an operator with 3 arguments
        *(0.3, 0.99, 0.3, 0.0, 0.3, 0.5),  # the digits 9, 0, 5
        0.5,  # the inner operator: the third, MED
        0.99,  # the outer operator: the fourth, SM
        0.7,  # not used
    ]
    left = iter(numbers)
    tree = draw(left, max_length=100)
    assert [VOCABULARY[number] for number in tree] == ["[SM", "3", "[MED", "9", "0", "5", "X", "X"]
    assert list(left) == [0.7]


def test_operations_stop_at_depth_nine():
    # Always an operator where one may be: 2 arguments each, so a full binary tree of 9 levels of operations.
    tree = [VOCABULARY[number] for number in draw(itertools.repeat(0.0), max_length=10_000)]
    assert nesting(tree) == 9
    assert tree.count("[MIN") == 2**9 - 1
    assert tree.count("0") == 2**9


def test_small_trees_are_counted_exactly():
    assert distinct_trees(0, 2) == 10
    assert distinct_trees(3, 5) == 4 * 10**2
    # Seven tokens: five digits, or one digit beside an operation on two, in either order.
    assert distinct_trees(6, 8) == 4 * 10**5 + 4 * 2 * 10 * 4 * 10**2
    assert distinct_trees(500, 2000) == float("inf")


def test_all_trees_there_are_can_be_asked_for():
    task = ListOps(max_length=5, min_length=0, train=300, validation=55, test=55)
    data = task.load(0)
    rows = np.concatenate([part.inputs for part in splits_of(data).values()])
    assert len(np.unique(rows, axis=0)) == 10 + 4 * 10**2
    # Single digits are drawn early, so only the shuffle brings some of the ten (fixed by the seed) into a later split.
    assert 2 in np.concatenate([data.validation.lengths, data.test.lengths])


@pytest.mark.parametrize("options", [{"max_length": 4}, {"max_length": 5, "train": 1000}])
def test_more_trees_than_there_are_is_an_error_at_once(options):
    with pytest.raises(ValueError, match=r"different trees.*min_length=1.*max_length=[45]"):
        ListOps(**options)


def test_bounds_that_trees_hardly_meet_end_in_an_error(monkeypatch):
    monkeypatch.setattr(listops, "PATIENCE", 10_000)
    with pytest.raises(ValueError, match=r"min_length=1997 and max_length=1999 .* of 100$"):
        generate(100, 1997, 1999, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"ended after 10 of 11$"):
        generate(11, 0, 2, np.random.default_rng(0))


# ListOps: the data set


def test_examples_end_with_eos_and_are_padded_to_the_length():
    task = ListOps(**SMALL)
    assert (task.length, task.classes, task.features) == (60, 10, 0)
    assert task.vocabulary[:3] == ("<pad>", "<unk>", "<eos>")
    assert len(set(task.vocabulary)) == 18
    data = task.load(0)
    assert [len(part) for part in splits_of(data).values()] == [60, 20, 20]
    for part in splits_of(data).values():
        assert part.inputs.shape[1] == 60
        for row, length, target in zip(part.inputs, part.lengths, part.targets, strict=True):
            assert 15 < length - 1 < 60
            *tree, last = symbols(row, length)
            assert last == "<eos>"
            assert value(tree) == target
            assert not row[length:].any()


@pytest.mark.parametrize("seed", [0, 1])
def test_no_tree_is_in_two_splits_or_twice_in_one(seed):
    parts = splits_of(ListOps(**SMALL).load(seed))
    rows = [row.tobytes() for part in parts.values() for row in part.inputs]
    assert len(set(rows)) == len(rows) == 100


def test_splits_are_drawn_alike():
    data = ListOps(max_length=40, train=1000, validation=500, test=500).load(0)
    means = [part.lengths.mean() for part in splits_of(data).values()]
    # 4 standard errors of the difference of two means, both samples being 500 or more.
    error = 4 * data.train.lengths.std() * np.sqrt(1 / 500 + 1 / 500)
    assert np.ptp(means) < error


def test_the_same_seed_is_bit_equal_and_seeds_0_and_1_differ(monkeypatch, tmp_path):
    task = ListOps(**SMALL)
    first = {seed: task.load(seed) for seed in (0, 1)}
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "other"))
    again = {seed: task.load(seed) for seed in (1, 0)}
    for seed in (0, 1):
        assert first[seed].checksum == again[seed].checksum == checksum(splits_of(again[seed]).values())
    assert first[0].checksum != first[1].checksum
    trees = [{row.tobytes() for row in first[seed].train.inputs} for seed in (0, 1)]
    assert not trees[0] & trees[1]


def test_data_are_the_same_in_every_process_however_strings_are_hashed(tmp_path):
    program = f"from suites.tasks.listops import ListOps; print(ListOps(**{SMALL}).load(0).checksum)"
    root = str(Path(listops.__file__).parents[2])
    sums = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={
                **os.environ,
                "PYTHONPATH": root,
                "PYTHONHASHSEED": hash_seed,
                "BENCH_CACHE": str(tmp_path / hash_seed),
            },
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    ]
    assert sums == [ListOps(**SMALL).load(0).checksum] * 2


def test_no_global_random_state_is_read_or_changed():
    random.seed(0)
    np.random.seed(0)
    states = random.getstate(), np.random.get_state()[1].tolist()
    first = ListOps(**SMALL).load(5).checksum
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states
    random.seed(1)
    np.random.seed(1)
    assert ListOps(**SMALL).load(5).checksum == first


def test_data_are_generated_once_and_every_option_counts(monkeypatch):
    task = ListOps(**SMALL)
    first = task.load(0)
    variants = [
        {"max_length": 61, "min_length": 15},
        {"min_length": 20},
        {"train": 59},
        {"validation": 21},
        {"test": 19},
    ]
    sums = {first.checksum} | {dataclasses.replace(task, **change).load(0).checksum for change in variants}
    assert len(sums) == 1 + len(variants)

    def never(*_):
        raise AssertionError("generated again")

    monkeypatch.setattr(listops, "generate", never)
    assert task.load(0).checksum == first.checksum
    # A quarter is only another way to say 15.
    assert dataclasses.replace(task, min_length=15).load(0).checksum == first.checksum


@pytest.mark.parametrize("seed", [-1, None, 0.5, True])
def test_a_seed_is_a_number_from_0(seed):
    with pytest.raises(ValueError, match="seed must be an integer of at least 0"):
        ListOps(**SMALL).load(seed)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_length": 0}, "max_length must be .* at least 1, not 0"),
        ({"max_length": 200.5}, "max_length must be an integer .*200.5"),
        ({"max_length": "200"}, "max_length must be an integer .*'200'"),
        ({"train": 0}, "train must be .* not 0"),
        ({"validation": -1}, "validation must be .* not -1"),
        ({"test": True}, "test must be an integer .* not True"),
        ({"min_length": -1}, "min_length must be .* not -1"),
        ({"min_length": 1999}, "min_length=1999 and max_length=2000"),
        ({"max_length": 100, "min_length": 300}, "min_length=300 and max_length=100"),
        ({"origin": "web"}, "origin must be generated or files, not 'web'"),
        ({"origin": "files", "train": 100}, "train=100 .*origin=files"),
        ({"origin": "files", "max_length": 200}, "max_length=200 .*origin=files"),
    ],
)
def test_an_option_that_cannot_be_honoured_is_an_error_that_names_it(options, said):
    with pytest.raises(ValueError, match=said):
        ListOps(**options)


# ListOps: the user's own files

ROWS = {
    "basic_train.tsv": ["( ( ( [MAX 4 ) 3 ) ] )\t4", "7\t7", "( ( ( ( [MED 4 ) 8 ) 0 ) ] )\t4"],
    "basic_val.tsv": ["( ( ( [MIN 9 ) ( ( ( [MAX 3 ) 8 ) ] ) ) ] )\t8"],
    "basic_test.tsv": ["( ( ( ( [SM 9 ) 8 ) 7 ) ] )\t4", '"( ( ( [SM 1 ) 2 ) ] )"\t3'],
}


def write(folder, rows=ROWS, end="\r\n"):
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in rows.items():
        (folder / name).write_bytes("".join(line + end for line in ["Source\tTarget", *lines]).encode())


@pytest.fixture
def root(tmp_path, monkeypatch):
    root = tmp_path / "data"
    root.mkdir()
    monkeypatch.setenv("BENCH_DATA", str(root))
    return root


@pytest.mark.parametrize("end", ["\r\n", "\n"])
def test_files_are_read_at_any_depth(root, end):
    write(root / "lra_release" / "lra_release" / "listops-1000", end=end)
    task = ListOps(origin="files")
    assert task.length == 2048
    data = task.load(0)
    read = {
        name: [
            (symbols(row, length), int(target))
            for row, length, target in zip(part.inputs, part.lengths, part.targets, strict=True)
        ]
        for name, part in splits_of(data).items()
    }
    assert read == {
        "train": [
            (["[MAX", "4", "3", "X", "<eos>"], 4),
            (["7", "<eos>"], 7),
            (["[MED", "4", "8", "0", "X", "<eos>"], 4),
        ],
        "validation": [(["[MIN", "9", "[MAX", "3", "8", "X", "X", "<eos>"], 8)],
        "test": [(["[SM", "9", "8", "7", "X", "<eos>"], 4), (["[SM", "1", "2", "X", "<eos>"], 3)],
    }
    assert data.train.inputs.shape == (3, 2048)


def test_files_are_the_same_for_every_seed_and_read_anew_when_they_change(root):
    write(root)
    task = ListOps(origin="files")
    first = task.load(0).checksum
    assert task.load(1).checksum == first
    write(root, {**ROWS, "basic_val.tsv": ["5\t5"]})
    assert task.load(0).checksum != first


def test_generated_trees_come_back_from_files(root):
    data = ListOps(**SMALL).load(0)
    rows = {
        name: [
            f"{text(symbols(row, length - 1))}\t{target}"
            for row, length, target in zip(part.inputs, part.lengths, part.targets, strict=True)
        ]
        for name, part in zip(ROWS, splits_of(data).values(), strict=True)
    }
    write(root, rows)
    for part, read in zip(splits_of(data).values(), splits_of(ListOps(origin="files").load(0)).values(), strict=True):
        assert np.array_equal(read.inputs[:, :60], part.inputs)
        assert not read.inputs[:, 60:].any()
        assert np.array_equal(read.lengths, part.lengths)
        assert np.array_equal(read.targets, part.targets)


@pytest.mark.parametrize(("digits", "length"), [(2044, 2047), (2045, 2048), (2046, 2048), (3000, 2048)])
def test_rows_are_cut_to_2047_tokens_and_eos(root, digits, length):
    write(root, {**ROWS, "basic_test.tsv": ["[MAX " + "1 " * digits + "]\t1"]})
    part = ListOps(origin="files").load(0).test
    assert part.lengths.tolist() == [length]
    row = symbols(part.inputs[0], length)
    whole = ["[MAX", *["1"] * digits, "X"]
    assert row == [*whole[:2047], "<eos>"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[FIRST 4 3 ]\t4", r"unknown token '\[FIRST'"),
        ("[MAX 4 foo ]\t4", "unknown token 'foo'"),
        ("[MAX 4 <pad> ]\t4", "unknown token '<pad>'"),
        ("[MAX 4 é ]\t4", "unknown token"),
        ("[MAX " + "1 " * 3000 + "foo ]\t1", "unknown token 'foo'"),
        ("[MAX 4 3 ]\t10", "label must be 0 to 9, not '10'"),
        ("[MAX 4 3 ]\t-1", "label must be 0 to 9, not '-1'"),
        ("[MAX 4 3 ]\t", "label must be 0 to 9, not ''"),
        ("[MAX 4 3 ]\t\u0663", "label must be 0 to 9"),
        ("[MAX 4 3 ]", "two fields are expected, not 1"),
        ("[MAX 4 3 ]\t4\t4", "two fields are expected, not 3"),
        ("( )\t4", "no tokens"),
        ("( ( ( [MAX 4 ) 3 ) ] )\t9", "the label is 9, and the tree's value 4"),
        ("4 3 X ]\t9", "unknown token 'X'|a bracket closes no operation"),
        ("1" * 200_000 + "\t4", "field larger than field limit"),
    ],
)
def test_what_no_tree_has_is_an_error_with_file_and_row(root, line, said):
    write(root, {**ROWS, "basic_val.tsv": ["7\t7", line, "8\t8"]})
    # The header is row 1.
    with pytest.raises(ValueError, match=rf"^basic_val\.tsv, row 3: .*{said}"):
        ListOps(origin="files").load(0)


def test_trees_that_stand_in_two_files_count_in_the_later_split_alone(root):
    val, test = ROWS["basic_val.tsv"], ROWS["basic_test.tsv"]
    write(root, {"basic_train.tsv": [*ROWS["basic_train.tsv"], *val, *test], "basic_val.tsv": [*val, test[0]],
                 "basic_test.tsv": test})  # fmt: skip
    leaky = splits_of(ListOps(origin="files").load(0))
    write(root)
    for name, part in splits_of(ListOps(origin="files").load(0)).items():
        np.testing.assert_array_equal(leaky[name].inputs, part.inputs)
    write(root, {**ROWS, "basic_train.tsv": val})
    with pytest.raises(ValueError, match=r"basic_train\.tsv: no examples that no later split has"):
        ListOps(origin="files").load(0)


def test_published_figures_are_of_the_published_lengths():
    assert ListOps(train=100).published == ListOps(origin="files").published == ("LRA", "ListOps")
    assert ListOps(max_length=100).published is None
    assert ListOps(min_length=50).published is None
    assert (Text().published, Text(max_length=100).published) == (("LRA", "Text"), None)
    assert (Retrieval().published, Retrieval(max_length=100).published) == (("LRA", "Retrieval"), None)


def test_a_file_without_header_or_rows_is_an_error(root):
    write(root)
    (root / "basic_val.tsv").write_text("7\t7\n")
    with pytest.raises(ValueError, match=r"basic_val\.tsv, row 1: the header must be"):
        ListOps(origin="files").load(0)
    for content in ("", "Source\tTarget\r\n"):
        (root / "basic_val.tsv").write_text(content)
        with pytest.raises(ValueError, match=r"basic_val\.tsv: no examples"):
            ListOps(origin="files").load(0)


def test_the_same_file_at_two_depths_is_refused_and_both_are_named(root):
    write(root / "listops-1000")
    write(root / "lra_release" / "listops-1000")
    with pytest.raises(ValueError, match="more than once") as error:
        ListOps(origin="files").load(0)
    for folder in ("listops-1000", "lra_release/listops-1000"):
        assert f"{folder}/basic_train.tsv" in str(error.value)


def test_pictures_of_another_task_do_not_slow_the_search(root):
    write(root / "imgs")
    with pytest.raises(Missing):
        ListOps(origin="files").load(0)


@pytest.mark.parametrize("value", [None, "empty", "nowhere"])
def test_missing_files_are_answered_within_a_second_with_the_way_to_get_them(tmp_path, monkeypatch, value):
    if value:
        (tmp_path / "empty").mkdir()
        monkeypatch.setenv("BENCH_DATA", str(tmp_path / value))
    begin = time.monotonic()
    with pytest.raises(Missing) as error:
        ListOps(origin="files").load(0)
    assert time.monotonic() - begin < 1
    for said in (*ROWS, "BENCH_DATA", "lra_release.gz", "origin=generated"):
        assert said in str(error.value)


def test_one_missing_file_is_named_alone(root):
    write(root)
    (root / "basic_val.tsv").unlink()
    with pytest.raises(Missing, match=r"^basic_val\.tsv: not found"):
        ListOps(origin="files").load(0)


# Digits


def test_digits_are_those_of_scikit_learn():
    datasets = pytest.importorskip("sklearn.datasets")
    images, labels = datasets.load_digits(return_X_y=True)
    data = Digits().load(0)
    expected = {(image.tobytes(), label) for image, label in zip((images / 16).astype(np.float32), labels, strict=True)}
    read = [
        (image.tobytes(), target)
        for part in splits_of(data).values()
        for image, target in zip(part.inputs, part.targets, strict=True)
    ]
    assert len(read) == len(images) == 1797
    assert set(read) == expected


def test_digits_are_sequences_of_64_pixels_in_0_to_1():
    task = Digits()
    assert (task.length, task.features, task.classes, task.vocabulary) == (64, 1, 10, None)
    for part in splits_of(task.load(0)).values():
        assert part.inputs.dtype == np.float32
        assert part.inputs.shape == (len(part), 64, 1)
        assert (part.inputs.min(), part.inputs.max()) == (0, 1)
        assert (part.lengths == 64).all()


def test_splits_of_digits_are_disjoint_stratified_and_fixed():
    data = Digits().load(0)
    images = [{image.tobytes() for image in part.inputs} for part in splits_of(data).values()]
    assert len(set.union(*images)) == sum(len(part) for part in images)
    counts = np.array([np.bincount(part.targets, minlength=10) for part in splits_of(data).values()])
    # Two cuts, each rounded to a whole image, move a share by one image at most.
    assert np.abs(counts - np.outer([0.70, 0.15, 0.15], counts.sum(axis=0))).max() <= 1
    assert Digits().load(1).checksum == data.checksum


def test_equal_images_stay_in_one_split_even_under_two_labels():
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 17, (200, 64)), rng.integers(0, 10, 200)
    parts = split(np.concatenate([images, images]), np.concatenate([labels, (labels + 1) % 10]))
    assert np.array_equal(parts[:200], parts[200:])
    assert set(parts.tolist()) == {0, 1, 2}


def test_without_scikit_learn_digits_are_missing_with_the_way_to_get_them(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(Missing, match=r'pip install "linrec-bench\[data\]"'):
        Digits().load(0)


def test_loading_digits_does_not_import_scikit_learn():
    program = "import sys; from suites.tasks.digits import Digits; Digits().load(0); print('sklearn' in sys.modules)"
    root = str(Path(listops.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"

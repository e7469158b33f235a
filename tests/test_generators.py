"""The exact generators: each rule against a solver of its own, and what all of them promise about their data."""

import dataclasses
import importlib
import itertools
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.contract import NOT_ASKED, Task
from bench.data import checksum, shared
from suites.tasks import generated
from suites.tasks.adding import Adding
from suites.tasks.copying import Copying
from suites.tasks.matching_ends import MatchingEnds
from suites.tasks.mqar import MQAR
from suites.tasks.parity import Parity
from suites.tasks.selective_copy import SelectiveCopy

COUNTS = {"train": 40, "validation": 10, "test": 15}
TASKS = {
    "mqar": MQAR(length=16, kv_pairs=3, vocabulary_size=20, **COUNTS),
    "mqar-random": MQAR(length=16, kv_pairs=3, vocabulary_size=20, filler="random", **COUNTS),
    "selective-copy": SelectiveCopy(length=20, tokens=4, vocabulary_size=7, **COUNTS),
    "copying": Copying(noise=5, memorise=4, vocabulary_size=6, **COUNTS),
    "adding": Adding(length=9, **COUNTS),
    "matching-ends": MatchingEnds(length=6, width=3, **COUNTS),
    "parity": Parity(bits=8, **COUNTS),
    "parity-cumulative": Parity(bits=8, cumulative=True, **COUNTS),
}


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))


@pytest.fixture(params=TASKS)
def task(request):
    return TASKS[request.param]


def splits_of(data):
    return {"train": data.train, "validation": data.validation, "test": data.test}


def examples(task, seed=0):
    """All inputs and targets, as lists of Python numbers."""
    for split in splits_of(task.load(seed)).values():
        yield from zip(split.inputs.tolist(), split.targets.tolist(), strict=True)


def answers(targets):
    return [target for target in targets if target != NOT_ASKED]


# MQAR


def recall(inputs, kv_pairs):
    """The values that are asked for, place -> value, by a dict; every key once more."""
    shown = inputs[: 2 * kv_pairs]
    book = dict(zip(shown[::2], shown[1::2], strict=True))
    assert len(book) == len(set(book.values())) == kv_pairs
    return book


@pytest.mark.parametrize("filler", ["zero", "random"])
def test_a_dict_answers_mqar(filler):
    task = TASKS["mqar" if filler == "zero" else "mqar-random"]
    for inputs, targets in examples(task):
        book = recall(inputs, task.kv_pairs)
        assert all(1 <= key < 10 <= value < 20 for key, value in book.items())
        places = [place for place, target in enumerate(targets) if target != NOT_ASKED]
        assert [book[inputs[place]] for place in places] == answers(targets)
        assert {inputs[place] for place in places} == set(book)
        assert all(place >= 6 and place % 2 == 0 for place in places)
        others = [inputs[place] for place in range(6, 16) if place not in places]
        assert not any(others) if filler == "zero" else all(1 <= other < 20 for other in others)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_mqar_keeps_its_rule_at_all_sizes(data):
    kv_pairs = data.draw(st.integers(1, 5))
    length = data.draw(st.integers(4 * kv_pairs, 4 * kv_pairs + 9))
    size = data.draw(st.integers(2 * kv_pairs + 3, 2 * kv_pairs + 9))
    task = MQAR(length=length, kv_pairs=kv_pairs, vocabulary_size=size, train=1, validation=1, test=1)
    drawn = task.draw(np.random.default_rng(length), 20)
    assert len(task.vocabulary) == size
    for inputs, targets in zip(drawn["inputs"].tolist(), drawn["targets"].tolist(), strict=True):
        book = recall(inputs, kv_pairs)
        asked = {inputs[place]: target for place, target in enumerate(targets) if target != NOT_ASKED}
        assert asked == book
        assert set(inputs[2 * kv_pairs :]) <= {0, *book}


def test_questions_of_mqar_come_early_by_the_power_law():
    task = MQAR(length=22, kv_pairs=1, vocabulary_size=64, **COUNTS)
    targets = task.draw(np.random.default_rng(0), 4000)["targets"]
    slots = (np.argmax(targets != NOT_ASKED, axis=1) - 2) // 2
    law = np.arange(1, 11) ** -0.99
    law /= law.sum()
    # 5 standard errors, as ten shares are looked at.
    assert np.all(np.abs(np.bincount(slots, minlength=10) / 4000 - law) < 5 * np.sqrt(law * (1 - law) / 4000))


def test_any_key_of_mqar_may_be_asked_first():
    drawn = MQAR(length=32, kv_pairs=2, vocabulary_size=64).draw(np.random.default_rng(0), 2000)
    first = np.argmax(drawn["targets"] != NOT_ASKED, axis=1)
    asked = drawn["inputs"][np.arange(2000), first]
    # 4 standard errors of a fair coin.
    assert np.mean(asked == drawn["inputs"][:, 0]) == pytest.approx(0.5, abs=4 * np.sqrt(0.25 / 2000))


def test_random_filler_may_be_a_key_that_is_not_asked():
    drawn = TASKS["mqar-random"].draw(np.random.default_rng(0), 200)
    behind, keys = drawn["inputs"][:, 6:], drawn["inputs"][:, :6:2]
    again = (behind[:, :, None] == keys[:, None]).any(-1) & (drawn["targets"][:, 6:] == NOT_ASKED)
    assert again.any()


@pytest.mark.parametrize("kv_pairs", [1, 3, 4])
def test_a_value_that_was_shown_is_right_for_one_of_the_pairs(kv_pairs):
    task = MQAR(length=32, kv_pairs=kv_pairs, vocabulary_size=64, **COUNTS)
    floors = task.floors(task.load(0))
    assert floors["first value"] == pytest.approx(1 / kv_pairs, rel=1e-12)


def test_both_floors_of_mqar_are_what_its_metric_gives():
    task = TASKS["mqar"]
    data = task.load(0)
    guess = np.bincount(np.concatenate([answers(row) for row in data.train.targets.tolist()])).argmax()
    for name, guesses in {"majority": np.full((15, 1), guess), "first value": data.test.inputs[:, 1:2]}.items():
        logits = np.eye(task.classes)[np.broadcast_to(guesses, (15, task.length))]
        assert task.floors(data)[name] == pytest.approx(task.metric(logits, data.test.targets).mean(), rel=1e-12)


# Copying and selective copying


def test_the_symbols_of_copying_are_asked_for_in_order():
    task = TASKS["copying"]
    assert task.vocabulary == ("<blank>", "symbol 1", "symbol 2", "symbol 3", "symbol 4", "<answer>")
    for inputs, targets in examples(task):
        assert len(inputs) == task.length == 13
        assert inputs[4:] == [0] * 5 + [5] * 4
        assert all(1 <= symbol <= 4 for symbol in inputs[:4])
        assert targets == [NOT_ASKED] * 9 + inputs[:4]


def test_the_symbols_of_selective_copying_are_asked_for_in_order():
    for inputs, targets in examples(TASKS["selective-copy"]):
        assert inputs[-4:] == [6] * 4
        assert all(0 <= token <= 5 for token in inputs[:-4])
        assert targets == [NOT_ASKED] * 16 + [token for token in inputs[:-4] if token]


def test_every_place_before_the_marks_is_equally_likely():
    task = SelectiveCopy(length=24, tokens=4, vocabulary_size=5)
    shares = (task.draw(np.random.default_rng(0), 4000)["inputs"][:, :-4] != 0).mean(0)
    # 5 standard errors, as 20 shares are looked at; the last place is one of them.
    assert np.all(np.abs(shares - 0.2) < 5 * np.sqrt(0.2 * 0.8 / 4000))


# Adding


@pytest.mark.parametrize("length", [2, 9])
def test_the_target_of_adding_is_the_sum_of_the_marked_numbers(length):
    task = dataclasses.replace(TASKS["adding"], length=length)
    assert (task.numeric, task.features, task.vocabulary) == (True, 2, None)
    for inputs, target in examples(task):
        numbers, marks = zip(*inputs, strict=True)
        assert all(0 <= number < 1 for number in numbers)
        assert sorted(marks) == [0] * (length - 2) + [1, 1]
        assert sum(marks[: length // 2]) == 1
        assert target == pytest.approx(sum(number for number, mark in inputs if mark), abs=1.2e-7)  # float32 near 2


# Matching ends


def test_ends_are_ones_or_zeros_and_match_in_half_of_the_examples():
    task = MatchingEnds(length=5, width=3, train=2000, validation=10, test=10)
    train = task.load(0).train
    assert train.inputs.dtype == np.float32
    ends = train.inputs[:, [0, -1]]
    assert set(np.unique(ends)) == {0.0, 1.0}
    assert (ends == ends[..., :1]).all()
    np.testing.assert_array_equal(train.targets, ends[:, 0, 0] == ends[:, 1, 0])
    between = train.inputs[:, 1:-1]
    np.testing.assert_array_equal(between, between.astype(np.float16))
    for share in (ends[:, 0, 0].mean(), ends[:, 1, 0].mean(), train.targets.mean()):
        assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(2000)
    assert abs(between.mean()) < 4 / np.sqrt(between.size)
    assert abs(between.var() - 1) < 4 * np.sqrt(2 / between.size)


def test_the_mean_is_as_near_as_the_triangular_law_says():
    task = Adding(length=4, train=2000, validation=1, test=2000)
    data = task.load(0)
    share = 2 * 0.04 - 0.04**2
    # 4 standard errors of a share of the test split; the mean of 2,000 is off by 0.01, which moves it by 0.0001.
    assert task.floors(data)["mean"] == pytest.approx(share, abs=4 * np.sqrt(share / 2000))
    # The square error has a standard deviation below 0.2.
    assert np.mean((data.test.targets - 1.0) ** 2) == pytest.approx(1 / 6, abs=4 * 0.2 / np.sqrt(2000))


# Parity


def test_parity_is_asked_for_at_the_end_mark():
    for inputs, targets in examples(TASKS["parity"]):
        *bits, end = inputs
        assert (end, len(bits), set(bits) <= {0, 1}) == (2, 8, True)
        assert targets == [NOT_ASKED] * 8 + [sum(bits) % 2]


def test_cumulative_parity_is_asked_for_everywhere():
    for inputs, targets in examples(TASKS["parity-cumulative"]):
        running = list(itertools.accumulate(inputs[:-1], lambda odd, bit: odd ^ bit))
        assert targets == [*running, running[-1]]


# All of them


def test_splits_have_their_counts_and_share_nothing(task):
    parts = splits_of(task.load(0))
    assert {name: len(part) for name, part in parts.items()} == COUNTS
    for one, other in itertools.combinations(parts.values(), 2):
        assert shared(one, other) == 0
    rows = [row.tobytes() for part in parts.values() for row in part.inputs]
    assert len(set(rows)) == len(rows)


def test_the_same_seed_is_bit_equal_and_seeds_0_and_1_differ(task, monkeypatch, tmp_path):
    first = {seed: task.load(seed) for seed in (0, 1)}
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "other"))
    again = {seed: task.load(seed) for seed in (1, 0)}
    for seed in (0, 1):
        assert first[seed].checksum == again[seed].checksum == checksum(splits_of(again[seed]).values())
    assert first[0].checksum != first[1].checksum


def test_data_are_drawn_once(task, monkeypatch):
    first = task.load(0).checksum

    def never(*_):
        raise AssertionError("drawn again")

    monkeypatch.setattr(type(task), "draw", never)
    assert task.load(0).checksum == first


def test_more_training_examples_change_nothing_else(task):
    small, large = task.load(0), dataclasses.replace(task, train=60).load(0)
    assert checksum([small.validation, small.test]) == checksum([large.validation, large.test])
    np.testing.assert_array_equal(small.train.inputs, large.train.inputs[:40])


def test_every_option_counts():
    changes = {
        "mqar": [{"length": 17}, {"kv_pairs": 2}, {"vocabulary_size": 22}, {"filler": "random"}],
        "selective-copy": [{"length": 21}, {"tokens": 3}, {"vocabulary_size": 8}],
        "copying": [{"noise": 4}, {"memorise": 5}, {"vocabulary_size": 7}],
        "adding": [{"length": 8}],
        "matching-ends": [{"length": 7}, {"width": 4}],
        "parity": [{"bits": 9}, {"cumulative": True}],
    }
    for name, variants in changes.items():
        found = [TASKS[name], *(dataclasses.replace(TASKS[name], **change) for change in variants)]
        assert len({one.load(0).checksum for one in found}) == len(found)


@pytest.mark.parametrize(
    ("make", "number"),
    [
        (lambda **counts: Parity(bits=4, **counts), 2**4),
        (lambda **counts: Copying(noise=1, memorise=2, vocabulary_size=5, **counts), 3**2),
        (lambda **counts: SelectiveCopy(length=6, tokens=2, vocabulary_size=4, **counts), 6 * 2**2),
        (lambda **counts: MQAR(length=8, kv_pairs=1, vocabulary_size=6, **counts), 2 * 3 * 3),
        (lambda **counts: MQAR(length=4, kv_pairs=1, vocabulary_size=6, filler="random", **counts), 2 * 3 * 5),
    ],
)
def test_all_examples_there_are_can_be_asked_for_and_no_more(make, number):
    data = make(train=number - 4, validation=2, test=2).load(0)
    rows = np.concatenate([part.inputs for part in splits_of(data).values()])
    assert len(np.unique(rows, axis=0)) == number
    with pytest.raises(ValueError, match=f"= {number + 1}, but these options leave only {number} different examples$"):
        make(train=number - 3, validation=2, test=2)


def test_the_search_for_new_examples_ends(monkeypatch):
    monkeypatch.setattr(generated, "BARREN", 3)
    with pytest.raises(ValueError, match=r"too rare: the search ended after 1 of 2$"):
        generated.distinct(lambda _, count: {"inputs": np.zeros((count, 3))}, np.random.default_rng(0), 2, set())


@pytest.mark.parametrize("seed", [-1, None, 0.5, True])
def test_a_seed_is_a_number_from_0(task, seed):
    with pytest.raises(ValueError, match="seed must be an integer of at least 0"):
        task.load(seed)


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (MatchingEnds, {"length": 2}, "length must be an integer of at least 3, not 2"),
        (MatchingEnds, {"width": 0}, "width must be an integer of at least 1, not 0"),
        (MQAR, {"length": 15, "kv_pairs": 4}, "length=15 is too short for kv_pairs=4"),
        (MQAR, {"vocabulary_size": 9}, "vocabulary_size=9 has 3 keys, fewer than kv_pairs=4"),
        (MQAR, {"vocabulary_size": 3}, "vocabulary_size must be .* at least 4, not 3"),
        (MQAR, {"kv_pairs": 0}, "kv_pairs must be .* not 0"),
        (MQAR, {"filler": "ones"}, "filler must be zero or random, not 'ones'"),
        (SelectiveCopy, {"length": 31}, "length=31 is too short to show tokens=16"),
        (SelectiveCopy, {"tokens": 0}, "tokens must be .* not 0"),
        (SelectiveCopy, {"vocabulary_size": 3}, "vocabulary_size must be .* not 3"),
        (Copying, {"noise": -1}, "noise must be an integer of at least 0, not -1"),
        (Copying, {"memorise": 2.5}, "memorise must be an integer .* not 2.5"),
        (Copying, {"vocabulary_size": 3}, "vocabulary_size must be .* not 3"),
        (Adding, {"length": 1}, "length must be an integer of at least 2, not 1"),
        (Parity, {"bits": 0}, "bits must be .* not 0"),
        (Parity, {"cumulative": "often"}, "cumulative must be true or false, not 'often'"),
        (Parity, {"train": 0}, "train must be an integer of at least 1, not 0"),
        (Adding, {"test": True}, "test must be an integer .* not True"),
    ],
)
def test_options_that_have_no_meaning_are_refused(kind, options, said):
    with pytest.raises(ValueError, match=said):
        kind(**options)


def test_entry_points_name_tasks_that_can_be_built():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    points = project["project"]["entry-points"]["linrec_bench.tasks"]
    for name in ("adding", "copying", "mqar", "parity", "pathfinder", "selective-copy"):
        module, _, attribute = points[name].partition(":")
        task = getattr(importlib.import_module(module), attribute)()
        assert isinstance(task, Task)
        assert task.length > 1
        assert task.source

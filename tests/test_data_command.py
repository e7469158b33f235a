"""`bench data list|check|make`: what it says of data sets that are there, absent, damaged or badly cut."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import bench
from bench import cache
from bench.cli import app
from bench.contract import NOT_ASKED, Missing, Split, Task
from bench.data import dataset

SMALL = "listops[max_length=30,train=40,validation=10,test=10]"


def split(first, count, targets=None):
    """`count` sequences of two tokens, all different, from token `first` on, of lengths 1 and 2 in turn."""
    inputs = np.stack([np.arange(first, first + count), np.zeros(count)], 1).astype(np.int32)
    lengths = np.arange(count, dtype=np.int32) % 2 + 1
    return Split(inputs, lengths, (np.arange(count) % 2).astype(np.int32) if targets is None else targets)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tiny(Task):
    """Eight, four and four sequences."""

    source = "Nobody 2026"
    licence = "none"
    overlap: int = 0

    length = property(lambda self: 2)
    classes = property(lambda self: 2)
    vocabulary = property(lambda self: tuple("abcdefghijklmnopqrstuvwxyz"))

    def load(self, seed):
        kept = cache.cached_arrays("tiny", {"version": 1, "seed": seed}, lambda: {"seed": np.array(seed)})
        test = split(14 - self.overlap + int(kept["seed"]), 4)
        return dataset(split(0, 8), split(8, 4), test, vocabulary_size=26, classes=2)


class Absent(Tiny):
    """One whose data are not there."""

    def locate(self):
        raise Missing("absent.bin comes with nothing: pip install nothing")

    def load(self, seed):
        return self.locate()


class Unread(Tiny):
    """One that says where it is, and may not be read for a list."""

    def locate(self):
        return "a package"

    def load(self, seed):
        raise AssertionError("read")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Odd(Tiny):
    """One with targets at positions, of many classes."""

    per_position = True
    classes = property(lambda self: 60)

    def load(self, seed):
        targets = np.array([[NOT_ASKED, 59], [NOT_ASKED, 3]], np.int32)
        return dataset(*(split(n, 2, targets) for n in (0, 2, 4)), vocabulary_size=26, classes=60)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Number(Tiny):
    """One that asks for a number."""

    numeric = True
    classes = property(lambda self: 1)

    def load(self, seed):
        targets = np.array([0.5, 1.5], np.float32)
        return dataset(*(split(n, 2, targets) for n in (0, 2, 4)), vocabulary_size=26, classes=1)


@pytest.fixture
def command(tmp_path, monkeypatch, own_registry):
    """The command line in this process, in an empty folder, with the tasks above and an empty cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BENCH_DATA", raising=False)
    for cls in (Tiny, Absent, Unread, Odd, Number):
        bench.register.task(cls.__name__)(cls)
    return lambda *words: CliRunner().invoke(app, ["data", *map(str, words)])


@pytest.fixture
def tables(command):
    """The tables of a command's JSON, as title -> rows by their first cell."""

    def ask(*words, status=0):
        done = command(*words, "--json")
        assert done.exit_code == status, done.output
        blocks = json.loads(done.stdout)
        return {
            block["title"]: {row[0]: dict(zip(block["columns"], row, strict=True)) for row in block["rows"]}
            for block in blocks
            if "title" in block
        }

    return ask


def test_a_list_says_what_is_there_and_reads_and_makes_nothing(tables, tmp_path):
    (rows,) = tables("list").values()
    assert {"digits", "listops", "tiny", "absent", "unread"} <= rows.keys()
    said = {name: (rows[name]["data"], rows[name]["where"]) for name in rows}
    assert said["unread"] == ("there", "a package")
    assert said["absent"] == ("missing", "absent.bin comes with nothing: pip install nothing")
    assert said["tiny"] == ("not known", "bench data check tiny")
    assert said["digits"] == ("there", "scikit-learn")
    assert said["listops"] == ("there", "generated")
    assert rows["listops"]["length"] == "2,000"
    assert (rows["tiny"]["channels"], rows["digits"]["channels"]) == ("26 tokens", "1")
    assert list(tmp_path.iterdir()) == []


def test_a_task_that_cannot_be_used_is_listed_with_the_reason(tables, own_registry):
    other = type("Other", (Tiny,), {})
    bench.register.task("tiny")(other)
    row = tables("list")["Data sets"]["tiny"]
    assert row["data"] == "cannot be used"
    assert "registered twice" in row["where"]


def test_a_check_gives_sizes_lengths_labels_floors_and_checksum(command, tables):
    found = tables("check", "tiny")
    assert found["Splits"]["train"] | {"memory [MiB]": ""} == {
        "split": "train", "examples": "8", "different": "8", "shortest": "1", "median": "1", "longest": "2",
        "memory [MiB]": "",
    }  # fmt: skip
    assert found["Labels"]["1"] == {"class": "1", "train [%]": "50.0", "validation [%]": "50.0", "test [%]": "50.0"}
    assert found["Floors: accuracy on the test split"]["majority"]["accuracy [%]"] == "50.0"
    text = command("check", "tiny").stdout
    for shown in ("Nobody 2026", "none", Tiny().load(0).checksum, "No input is in two splits."):
        assert shown in text
    assert Tiny().load(1).checksum in command("check", "tiny", "--seed", 1).stdout


def test_inputs_in_two_splits_are_said_and_the_exit_status_is_1(command):
    done = command("check", "tiny[overlap=4]")
    assert done.exit_code == 1
    assert "2 of 4 examples of the test split have an input of the validation split" in done.stdout
    assert "No input is in two splits" not in done.stdout


def test_labels_of_many_classes_at_positions_and_numbers_are_summed_up(tables):
    row = tables("check", "odd")["Labels"]["train"]
    assert row == {"split": "train", "targets": "2", "classes": "2", "largest [%]": "50", "smallest [%]": "50"}
    row = tables("check", "number")["Targets"]["test"]
    assert row == {"split": "test", "smallest": "0.5", "mean": "1", "sd": "0.5", "largest": "1.5"}


def test_make_puts_the_data_of_each_seed_where_it_says(tables, tmp_path):
    (rows,) = tables("make", SMALL, "--seeds", "0-1,4").values()
    assert list(rows) == ["0", "1", "4"]
    for row in rows.values():
        assert Path(row["where"]).is_file()
        assert Path(row["where"]).parent == tmp_path / "cache"
        assert row["examples"] == "60"
    assert len({row["where"] for row in rows.values()}) == len({row["sha256"] for row in rows.values()}) == 3
    again = tables("make", SMALL)[f"Data of {SMALL}"]["0"]
    assert (again["where"], again["sha256"]) == (rows["0"]["where"], rows["0"]["sha256"])


def test_make_of_data_that_are_given_says_where_they_are(tables, tmp_path):
    row = tables("make", "digits")["Data of digits"]["0"]
    assert (row["where"], row["kept"]) == ("scikit-learn", "-")
    assert list(tmp_path.iterdir()) == []


def test_make_without_a_cache_folder_says_that_nothing_is_kept(tables, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "file" / "cache"))
    assert tables("make", "tiny")["Data of tiny"]["0"]["where"] == "not kept"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["check", "digts"], "unknown task 'digts': did you mean 'digits'? allowed are "),
        (["make", "listop"], "unknown task 'listop': did you mean 'listops'? allowed are "),
        (["check", "listops[max_lenth=9]"], "task listops has no option 'max_lenth': did you mean 'max_length'?"),
        (["check", "listops[max_length=0]"], "task listops: max_length must be an integer of at least 1, not 0"),
        (["check", "listops[max_length=9"], "lacks its closing bracket"),
        (["make", "tiny", "--seeds", "x"], "'x' is no whole number and no range like 0-4"),
        (["make", "tiny", "--seeds", ","], "--seeds is empty"),
        (["check", "absent"], "absent.bin comes with nothing: pip install nothing"),
        (["make", "absent"], "absent.bin comes with nothing: pip install nothing"),
        (["check", "listops[origin=files]"], "BENCH_DATA, which is not set"),
        (["check", "tiny", "--data", "nowhere"], "--data nowhere: there is no such folder"),
        (["list", "--plugin", "nowhere.py"], "there is no such file"),
    ],
)
def test_what_is_wrong_or_absent_is_one_line_and_exit_2(command, tmp_path, words, says):
    done = command(*words)
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("bench: ")
    assert says in line
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_data_is_given_for_one_command_alone(command, tables, tmp_path):
    (tmp_path / "mine").mkdir()
    for name in ("basic_train.tsv", "basic_val.tsv", "basic_test.tsv"):
        rows = {"basic_train.tsv": "7\t7\n8\t8\n", "basic_val.tsv": "6\t6\n", "basic_test.tsv": "7\t7\n"}
        (tmp_path / "mine" / name).write_text("Source\tTarget\n" + rows[name])
    done = command("check", "listops[origin=files]", "--data", "mine")
    assert done.exit_code == 0, done.output
    assert re.search(r"train +1 +1 ", done.stdout)  # 7 stands in two files, and counts in the later one
    assert "files below BENCH_DATA" in done.stdout
    assert "BENCH_DATA" not in os.environ


def test_watching_the_cache_ends_with_its_block(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path))
    with cache.watched() as outer:
        Tiny().load(0)
        with cache.watched() as inner:
            Tiny().load(1)
    Tiny().load(2)
    assert len(outer) == 2
    assert inner == outer[1:]
    assert all(path.is_file() for path in outer)

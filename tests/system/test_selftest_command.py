"""`bench selftest`: its lower bounds, statuses and clean-up."""

from __future__ import annotations

import json

import pytest


@pytest.fixture(scope="module")
def found(bench_in, tmp_path_factory):
    folder = tmp_path_factory.mktemp("selftest")
    done = bench_in(folder)("selftest", "--json", expect=None)
    return done, json.loads(done.stdout), folder


def test_every_fake_is_recovered(found):
    done, blocks, _ = found
    rows = blocks[0]["rows"]
    assert [row for row in rows if row[0] == "FAILED"] == []
    assert done.returncode == 0
    assert [row[1] for row in rows if row[0] == "passed"].count("throughput") == 6
    assert {row[1] for row in rows} == {"memory", "stability", "throughput", "processes"}


def test_the_floor_of_time_difference_and_memory_is_printed(found):
    _, blocks, _ = found
    floors = [row for row in blocks[0]["rows"] if row[0] == "floor"]
    assert [row[2].split(":")[0] for row in floors] == ["smallest memory", "smallest time", "smallest difference"]
    assert all(row[4] != "-" for row in floors)


def test_a_selftest_leaves_nothing_behind(found):
    _, _, folder = found
    assert list(folder.iterdir()) == []

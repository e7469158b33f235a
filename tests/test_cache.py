"""The cache of arrays: made once, read whole, and never in the way."""

import multiprocessing
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from bench.cache import cached_arrays, folder

KEY = {"version": 1, "seed": 0}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Maker:
    """Makes the arrays given, and counts how often."""

    def __init__(self, **arrays):
        self.arrays, self.calls = arrays, 0

    def __call__(self):
        self.calls += 1
        return dict(self.arrays)


def never():
    raise AssertionError("made again")


def same(left, right):
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and np.array_equal(left[name], right[name]) for name in left
    )


def test_arrays_come_back_as_they_were_made():
    made = {
        "tokens": np.arange(6, dtype=np.uint8).reshape(2, 3),
        "empty": np.empty((0, 4), np.float32),
        "text": np.array(["a", "bc"]),
        "big_endian": np.array([1.5, -2.0], ">f8"),
        "number": np.array(3),
    }
    assert same(cached_arrays("x", KEY, lambda: made), made)
    assert same(cached_arrays("x", KEY, never), made)


def test_name_and_every_entry_of_the_key_tell_arrays_apart():
    requests = [("x", KEY), ("y", KEY), ("x", {**KEY, "version": 2}), ("x", {**KEY, "seed": 1}), ("x", {"version": 1})]
    for value, (name, key) in enumerate(requests):
        cached_arrays(name, key, Maker(a=np.array([value])))
    for value, (name, key) in enumerate(requests):
        assert cached_arrays(name, key, never)["a"].tolist() == [value]


def test_the_order_of_the_key_does_not_matter():
    cached_arrays("x", {"version": 1, "seed": 0}, Maker(a=np.zeros(1)))
    cached_arrays("x", {"seed": 0, "version": 1}, never)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".x"])
def test_a_name_that_leaves_the_folder_is_refused(name):
    with pytest.raises(ValueError, match="name"):
        cached_arrays(name, KEY, Maker(a=np.zeros(1)))


def test_a_key_without_a_version_is_refused():
    with pytest.raises(ValueError, match="version"):
        cached_arrays("x", {"seed": 0}, Maker(a=np.zeros(1)))


def test_python_objects_are_refused_as_loading_them_would_run_code():
    with pytest.raises(ValueError, match="'a'"):
        cached_arrays("x", KEY, Maker(a=np.array([object()])))


def test_what_make_raises_comes_through_and_leaves_no_file(cache):
    def fails():
        raise OSError("no data")

    with pytest.raises(OSError, match="no data"):
        cached_arrays("x", KEY, fails)
    assert not list(cache.glob("*.arrays"))
    assert cached_arrays("x", KEY, Maker(a=np.ones(2)))["a"].tolist() == [1, 1]


def test_a_truncated_file_is_made_anew(cache):
    made = {"a": np.arange(1000), "b": np.ones((3, 4))}
    cached_arrays("x", KEY, lambda: made)
    (file,) = cache.glob("*.arrays")
    whole = file.read_bytes()
    for size in (0, 4, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:size])
        make = Maker(**made)
        assert same(cached_arrays("x", KEY, make), made)
        assert make.calls == 1, f"{size} bytes were taken for a whole file"
        assert same(cached_arrays("x", KEY, never), made)


def test_no_flipped_byte_ever_gives_other_arrays(cache):
    made = {"a": np.arange(5), "b": np.ones((3, 4), np.float32)}
    cached_arrays("x", KEY, lambda: made)
    (file,) = cache.glob("*.arrays")
    whole = file.read_bytes()
    for place in range(0, len(whole), 2):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        file.write_bytes(damaged)
        assert same(cached_arrays("x", KEY, lambda: made), made), f"byte {place}"


@pytest.mark.parametrize("content", [b"short", bytes(1000)])
def test_a_foreign_file_of_that_name_is_replaced(cache, content):
    cached_arrays("x", KEY, Maker(a=np.ones(2)))
    (file,) = cache.glob("*.arrays")
    file.write_bytes(content)
    assert cached_arrays("x", KEY, Maker(a=np.ones(2)))["a"].tolist() == [1, 1]
    cached_arrays("x", KEY, never)


def test_what_a_killed_writer_left_is_no_cache_and_is_cleared(cache):
    cached_arrays("x", KEY, Maker(a=np.ones(2)))
    (file,) = cache.glob("*.arrays")
    half = file.read_bytes()[:100]
    file.unlink()
    file.with_suffix(".tmp").write_bytes(half)
    make = Maker(a=np.ones(2))
    cached_arrays("x", KEY, make)
    assert make.calls == 1
    assert sorted(path.suffix for path in cache.iterdir()) == [".arrays", ".lock"]


def test_a_folder_that_cannot_be_made_means_no_cache(tmp_path, monkeypatch):
    # A file in the way stops every user, also root, whom permissions do not stop.
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "file" / "cache"))
    make = Maker(a=np.ones(2))
    for _ in range(2):
        assert cached_arrays("x", KEY, make)["a"].tolist() == [1, 1]
    assert make.calls == 2


def test_a_disk_that_fills_up_costs_the_cache_and_not_the_arrays(cache, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    make = Maker(a=np.ones(2))
    assert cached_arrays("x", KEY, make)["a"].tolist() == [1, 1]
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


def test_a_cache_that_is_read_only_is_still_read(cache, monkeypatch):
    cached_arrays("x", KEY, Maker(a=np.ones(2)))
    opened = Path.open

    def read_only(path, mode="r", *rest):  # permission bits would not stop root
        if mode != "rb":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, mode, *rest)

    monkeypatch.setattr(Path, "open", read_only)
    assert cached_arrays("x", KEY, never)["a"].tolist() == [1, 1]
    assert cached_arrays("y", KEY, Maker(a=np.zeros(1)))["a"].tolist() == [0]


def test_different_arrays_do_not_wait_for_one_another():
    started, finish = threading.Event(), threading.Event()

    def slow():
        started.set()
        assert finish.wait(10)
        return {"a": np.zeros(1)}

    other = threading.Thread(target=cached_arrays, args=("x", KEY, slow))
    other.start()
    try:
        assert started.wait(10)
        begin = time.monotonic()
        cached_arrays("y", KEY, Maker(a=np.zeros(1)))
        assert time.monotonic() - begin < 5
    finally:
        finish.set()
        other.join()


def make_slowly(cache: str, log: str, barrier, results) -> None:
    os.environ["BENCH_CACHE"] = cache

    def make():
        with Path(log).open("a") as file:
            file.write(f"{os.getpid()}\n")
        # Longer than it takes the other process from the barrier to the lock.
        time.sleep(0.5)
        return {"a": np.full(3, os.getpid())}

    barrier.wait(30)
    results.put(cached_arrays("x", KEY, make)["a"].tolist())


def test_two_processes_make_the_same_arrays_once(cache, tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    log = tmp_path / "log"
    workers = [context.Process(target=make_slowly, args=(str(cache), str(log), barrier, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    first, second = results.get(timeout=60), results.get(timeout=60)
    for worker in workers:
        worker.join(30)
    makers = log.read_text().split()
    assert len(makers) == 1
    assert first == second == [int(makers[0])] * 3


def test_the_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("BENCH_CACHE", "/somewhere")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folder() == Path("/somewhere")
    monkeypatch.setenv("BENCH_CACHE", "")
    assert folder() == Path("/xdg/linrec-bench")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert folder() == tmp_path / ".cache" / "linrec-bench"
    monkeypatch.delenv("BENCH_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert folder() == tmp_path / ".cache" / "linrec-bench"

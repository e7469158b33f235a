"""Arrays that are costly to make and cheap to keep: made once, then read from the user's cache folder."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from bench.contract import require


def folder() -> Path:
    """The cache folder, there or not: `BENCH_CACHE`, else `linrec-bench` in the XDG cache. RuntimeError: no home."""
    if chosen := os.environ.get("BENCH_CACHE"):
        return Path(chosen).expanduser()
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification has relative paths ignored.
    return (Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache") / "linrec-bench"


_watchers: list[list[Path]] = []


@contextlib.contextmanager
def watched() -> Iterator[list[Path]]:
    """A list that fills with the files that `cached_arrays` reads, or would write, inside."""
    paths: list[Path] = []
    _watchers.append(paths)
    try:
        yield paths
    finally:
        _watchers.remove(paths)


def cached_arrays(
    name: str, key: Mapping[str, object], make: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """The arrays that `make` gives, from the cache if they were made before under the same `name` and `key`.

    `key` holds, as JSON, all that the arrays depend on, and under "version" a number that changes with the code of
    `make`. Processes that want the same arrays at once wait for the first to make them. A damaged file is made anew;
    a folder that cannot be written means no cache, never an error. ValueError: a key without version, a name that is
    no plain file name, or an array of objects. Whatever `make` raises comes through.
    """
    require("version" in key, f"the cache key of {name!r} needs a 'version': {dict(key)}")
    require(bool(name) and name.replace("-", "").replace("_", "").isalnum(), f"not a plain name for a cache: {name!r}")
    canonical = json.dumps(key, sort_keys=True, separators=(",", ":"), allow_nan=False)
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    try:
        path = folder() / f"{name}-{digest[:32]}.arrays"
    except RuntimeError:
        return _made(make)
    for paths in _watchers:
        paths.append(path)
    # Files appear whole or not at all, so reading needs no lock, and a read-only cache is still of use.
    if (arrays := _read(path)) is not None:
        return arrays
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_lock(path.with_suffix(".lock")))
        except OSError:
            return _made(make)
        if (arrays := _read(path)) is None:
            arrays = _made(make)
            # A disk that is full or read-only costs time at the next call, and nothing now.
            with contextlib.suppress(OSError):
                _write(path, arrays)
        return arrays


def _made(make: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    arrays = {name: np.asarray(array) for name, array in make().items()}
    for name, array in arrays.items():
        require(not array.dtype.hasobject, f"array {name!r} holds Python objects, which are not cached")
    return arrays


def _read(path: Path) -> dict[str, np.ndarray] | None:
    try:
        with path.open("rb") as file:
            digest, content = file.read(32), file.read()
    except OSError:
        return None
    if hashlib.sha256(content).digest() != digest:
        return None
    with np.load(io.BytesIO(content), allow_pickle=False) as loaded:
        return {name: loaded[name] for name in loaded.files}


def _write(path: Path, arrays: dict[str, np.ndarray]) -> None:
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    # One name is enough, as the lock admits one writer; what a killed process left there is overwritten.
    unfinished = path.with_suffix(".tmp")
    try:
        with unfinished.open("wb") as file:
            # The sums inside an npz leave out its table of contents: one wrong byte there can hide an array.
            file.write(hashlib.sha256(content.getbuffer()).digest())
            file.write(content.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    # The file stays: removing it would let a newcomer lock another file of the same name.
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

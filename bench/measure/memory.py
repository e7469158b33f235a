"""The operating system's high-water mark of this process."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

STATUS = Path("/proc/self/status")

RESOLVED = 8 * 2**20
"""Bytes below which the system's figure is mostly what a first call brings with it: threads, code, small tables."""


class Unmeasurable(Exception):
    """Raised where this system does not tell; the text says what is missing."""


def peak(work: Callable[[], None]) -> int:
    """Bytes by which this process's resident memory rose at most while `work` ran, above what it held before.

    Freed memory is given back first, so that what was used before does not hide what is used now. On Linux the
    kernel's own mark is reset and read, to a page; where that is refused, a thread looks every 2 ms. Raises
    `Unmeasurable` where neither is to be had.
    """
    release()
    before = _resident("VmRSS")
    if _reset():
        work()
        return max(0, _resident("VmHWM") - before)
    found = [before]
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            found.append(_resident("VmRSS"))
            time.sleep(0.002)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        work()
        found.append(_resident("VmRSS"))
    finally:
        done.set()
        thread.join()
    return max(0, max(found) - before)


def release() -> None:
    """Gives freed memory back to the system, as far as the C library can."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def granularity() -> int:
    """The smallest difference that `peak` can see: a page."""
    return os.sysconf("SC_PAGE_SIZE")


def _resident(name: str) -> int:
    try:
        for line in STATUS.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    except OSError as error:
        raise Unmeasurable(f"this system has no {STATUS}") from error
    raise Unmeasurable(f"{STATUS} has no {name}")


def _reset() -> bool:
    """Sets the mark to what is resident now; whether the kernel took it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return _resident("VmHWM") - _resident("VmRSS") < 2**20

"""How a worker's C library gives memory back to the operating system."""

from __future__ import annotations

import contextlib
import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_freed_memory() -> None:
    """Lets glibc keep up to 1 GiB that is free; elsewhere nothing changes.

    By default it returns what is free above some megabytes, and each training step gets the same pages again, zeroed by
    the kernel: a fifth of the time of a layer's forward and backward pass. What is largest at any time stays the same.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, 32 * 2**20)  # the largest that glibc takes; above, pages are always new
        mallopt(M_TRIM_THRESHOLD, 2**30)

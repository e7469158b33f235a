"""Items made ahead of their use, in a thread: the next batch is ready while a step runs."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Prefetch(Generic[Item]):
    """The items of an iterator in their order, up to `ahead` of them made before they are asked for.

    `waited` is how long, in seconds, the items were waited for. What the iterator raises comes through. Used with
    `with`, so that the thread ends with the loop.
    """

    def __init__(self, items: Iterator[Item], ahead: int = 2) -> None:
        self.waited = 0.0
        self._items = items
        self._queue: queue.Queue = queue.Queue(ahead)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._make, daemon=True)

    def __enter__(self) -> Prefetch[Item]:
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._stopped.set()
        self._thread.join()

    def __iter__(self) -> Iterator[Item]:
        while True:
            start = time.perf_counter()
            what, item = self._queue.get()
            self.waited += time.perf_counter() - start
            if what == "end":
                return
            if what == "error":
                raise item
            yield item

    def _make(self) -> None:
        try:
            for item in self._items:
                if not self._put(("item", item)):
                    return
            self._put(("end", None))
        except Exception as error:
            self._put(("error", error))

    def _put(self, item: tuple) -> bool:
        while not self._stopped.is_set():
            try:
                self._queue.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

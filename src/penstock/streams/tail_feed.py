"""`TailFeed`: capture's changes as fragments in a bounded queue, read by a thread of its own.

So that the lane reads the next changes while it sends some, and looks after its loads while nothing comes.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from penstock.capture.tail_items import Transactions
from penstock.capture.tail_reader import TailReader
from penstock.capture.transactions import MessageConverter, TransactionFragment
from penstock.core.position import Lsn

_FRAGMENTS_MAX = 4  # of some 4 MiB each
_LOOK_EVERY_S = 0.2
_END_WITHIN_S = 5.0


class TailFeed:
    """Entered once; an error of the tail comes out of `next`, behind what was read before it."""

    def __init__(self, reader: TailReader, after: Lsn) -> None:
        self._items: Iterator[Transactions] = reader.follow(after)
        self._converter = MessageConverter()
        self._queue: queue.Queue[TransactionFragment | BaseException] = queue.Queue(_FRAGMENTS_MAX)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, name="stream-tail", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(_END_WITHIN_S)  # a sign of life comes every second

    def next(self, within_s: float) -> TransactionFragment | None:
        """The next fragment; None if none comes in time."""
        try:
            found = self._queue.get(timeout=within_s) if within_s > 0 else self._queue.get_nowait()
        except queue.Empty:
            return None
        if isinstance(found, BaseException):
            raise found
        return found

    def _read(self) -> None:
        try:
            for item in self._items:
                for fragment in self._converter.fragments(item):
                    if not self._put(fragment):
                        return
        except BaseException as error:
            self._put(error)
        finally:
            with contextlib.suppress(ValueError):  # it runs no more
                self._items.close()  # type: ignore[attr-defined]  # a generator

    def _put(self, item: TransactionFragment | BaseException) -> bool:
        while not self._ended.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(item, timeout=_LOOK_EVERY_S)
                return True
        return False

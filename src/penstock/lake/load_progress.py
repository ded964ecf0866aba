"""How far a load is, as the source itself counts it.

What is being read is asked of the source now and then (`TableReading.watching`), which needs no channel from
the tasks. A read that has ended is no longer told of, so the last figures of each are kept and summed up.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence

from penstock.core.report import ProgressListener
from penstock.core.stream import StreamId
from penstock.sources.base import RunningRead, TableReading

_INTERVAL_S = 0.5


class LoadProgress:
    """Tells a listener about each stream's rows while a load runs; a context manager."""

    def __init__(self, reading: TableReading, listener: ProgressListener, phase: str = "load") -> None:
        self._reading = reading
        self._listener = listener
        self._phase = phase
        self._committed: dict[StreamId, int] = {}
        #: rows and bytes of each read, as last seen
        self._reads: dict[StreamId, dict[str, tuple[int, int]]] = {}
        self._names: dict[str, StreamId] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="penstock-progress", daemon=True)

    def __enter__(self) -> LoadProgress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def reader(self, stream: StreamId) -> str:
        """What a chunk's connection of this stream is called at the source (Postgres keeps 63 bytes)."""
        name = f"penstock load {hashlib.sha256(str(stream).encode()).hexdigest()[:16]}"
        self._names[name] = stream
        return name

    def committed(self, stream: StreamId, rows: int) -> None:
        self._committed[stream] = rows
        self._tell(stream)

    def _watch(self) -> None:
        try:
            with self._reading.watching() as running:
                while not self._stopped.wait(_INTERVAL_S):
                    self._report(running())
        except Exception:
            return

    def _report(self, running: Sequence[RunningRead]) -> None:
        seen: set[StreamId] = set()
        for reader, read, rows, size in running:
            if (stream := self._names.get(reader)) is not None:
                self._reads.setdefault(stream, {})[read] = (rows, size)
                seen.add(stream)
        for stream in seen:
            self._tell(stream)

    def _tell(self, stream: StreamId) -> None:
        """A read may be over before it was ever seen: what is committed is the least that was read."""
        reads = list(self._reads.get(stream, {}).values())
        rows = max(sum(rows for rows, _ in reads), self._committed.get(stream, 0))
        self._listener.progressed(str(stream), self._phase, rows, sum(size for _, size in reads))

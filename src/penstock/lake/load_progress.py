"""How far a load is, as the source itself counts it.

Every chunk is read by a COPY, and Postgres shows each running COPY in `pg_stat_progress_copy`. So live
figures cost one small query, on one machine as on a cluster, and need no channel from the tasks. A COPY
that has ended is no longer shown there, so the last figures of each are kept and summed up.
"""

from __future__ import annotations

import hashlib
import threading

import psycopg

from penstock.core.report import ProgressListener
from penstock.core.stream import StreamId
from penstock.sources.postgres.connection import Connection, connect

_INTERVAL_S = 0.5
_QUERY = """
    SELECT activity.application_name, format('%s %s', pid, activity.query_start),
        progress.tuples_processed, progress.bytes_processed
    FROM pg_stat_progress_copy AS progress JOIN pg_stat_activity AS activity USING (pid)
    WHERE activity.application_name LIKE 'penstock load %'
"""


class LoadProgress:
    """Tells a listener about each stream's rows while a load runs; a context manager."""

    def __init__(self, url: str, listener: ProgressListener) -> None:
        self._url = url
        self._listener = listener
        self._committed: dict[StreamId, int] = {}
        #: rows and bytes of each COPY, as last seen
        self._copies: dict[StreamId, dict[str, tuple[int, int]]] = {}
        self._names: dict[str, StreamId] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="penstock-progress", daemon=True)

    def __enter__(self) -> LoadProgress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def application_name(self, stream: StreamId) -> str:
        """What a chunk's connection of this stream is called at the source (63 bytes are kept there)."""
        name = f"penstock load {hashlib.sha256(str(stream).encode()).hexdigest()[:16]}"
        self._names[name] = stream
        return name

    def committed(self, stream: StreamId, rows: int) -> None:
        self._committed[stream] = rows
        self._tell(stream)

    def _watch(self) -> None:
        try:
            with connect(self._url, application_name="penstock progress") as connection:
                while not self._stopped.wait(_INTERVAL_S):
                    self._report(connection)
        except (psycopg.Error, Exception):
            return

    def _report(self, connection: Connection) -> None:
        seen: set[StreamId] = set()
        for name, copy, rows, size in connection.execute(_QUERY).fetchall():
            if (stream := self._names.get(name)) is not None:
                self._copies.setdefault(stream, {})[copy] = (rows, size)
                seen.add(stream)
        for stream in seen:
            self._tell(stream)

    def _tell(self, stream: StreamId) -> None:
        """A COPY may be over before it was ever seen: what is committed is the least that was read."""
        copies = list(self._copies.get(stream, {}).values())
        rows = max(sum(rows for rows, _ in copies), self._committed.get(stream, 0))
        self._listener.progressed(str(stream), "load", rows, sum(size for _, size in copies))

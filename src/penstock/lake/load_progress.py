"""How far a load is, as the source itself counts it.

Every chunk is read by a COPY, and Postgres shows each running COPY in `pg_stat_progress_copy`. So live
figures cost one small query, on one machine as on a cluster, and need no channel from the tasks.
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
    SELECT activity.application_name, sum(progress.tuples_processed)::bigint,
        sum(progress.bytes_processed)::bigint
    FROM pg_stat_progress_copy AS progress JOIN pg_stat_activity AS activity USING (pid)
    WHERE activity.application_name LIKE 'penstock load %' GROUP BY 1
"""


class LoadProgress:
    """Tells a listener about each stream's rows while a load runs; a context manager."""

    def __init__(self, url: str, listener: ProgressListener) -> None:
        self._url = url
        self._listener = listener
        self._committed: dict[StreamId, int] = {}
        self._bytes: dict[StreamId, int] = {}
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
        self._listener.progressed(str(stream), "load", rows, self._bytes.get(stream, 0))

    def _watch(self) -> None:
        try:
            with connect(self._url, application_name="penstock progress") as connection:
                while not self._stopped.wait(_INTERVAL_S):
                    self._report(connection)
        except (psycopg.Error, Exception):
            return

    def _report(self, connection: Connection) -> None:
        for name, rows, size in connection.execute(_QUERY).fetchall():
            stream = self._names.get(name)
            if stream is not None:
                self._bytes[stream] = max(self._bytes.get(stream, 0), size)
                self._listener.progressed(str(stream), "load", self._committed.get(stream, 0) + rows, size)

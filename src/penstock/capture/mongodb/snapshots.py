"""States of the data that lanes load under: cluster times, which nobody has to keep.

The server shows its data as of any time of the last minutes, to every connection that asks for it
(`sources.mongodb.table_reading`). So a snapshot is the time of a write of ours: it shows what is committed by
then, that write included, and the log brings every transaction of a later time.

A server that is of no replica set has no such times. What is loaded there without changes to follow is read
as it is, under no name.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.capture.spec import ExportedSnapshot
from penstock.core.position import Lsn
from penstock.sources.mongodb.chunk_reading import snapshot_text
from penstock.sources.mongodb.connection import Client
from penstock.sources.mongodb.control import cluster_time, position_now


class ClusterTimes:
    """`mark` gives the time of a write that it makes; `client` is asked for where nothing is written."""

    def __init__(self, mark: Callable[[], Lsn], client: Callable[[], Client]) -> None:
        self._mark = mark
        self._client = client

    def take(self, lane: str) -> ExportedSnapshot:
        return _snapshot(self._mark())

    def take_plain(self, lane: str) -> ExportedSnapshot:
        client = self._client()
        time = cluster_time(client)
        return ExportedSnapshot("", position_now(client), 0) if time is None else _snapshot(time)

    def release(self, lane: str) -> None:
        """Nothing is held."""

    def release_main(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""


def _snapshot(time: Lsn) -> ExportedSnapshot:
    return ExportedSnapshot(snapshot_text(int(time)), Lsn(time + 1), 0)

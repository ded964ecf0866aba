"""Postgres' log from where the change log ends: a `LogReading`, as the set-up found it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.capture.postgres.decoder import PgoutputDecoder
from penstock.capture.postgres.emitted import EmittedMessages
from penstock.capture.postgres.relations import Relations
from penstock.capture.postgres.rows import TransactionIds
from penstock.capture.postgres.snapshots import connect_patiently
from penstock.capture.postgres.stream import PostgresStream
from penstock.capture.source_spec import PostgresSpec
from penstock.capture.spec import Started
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.log.manifest import Manifest
from penstock.sources.postgres.replication import ReplicationStream
from penstock.sources.postgres.slots import CAPTURE_APPLICATION
from penstock.sources.postgres.streamed import SPOOL_DIRECTORY, StreamedTransactions, sweep_spool

_SENDER_HEARTBEATS, _SENDER_TIMEOUT_MIN_S = 5, 5.0


@dataclass(frozen=True, slots=True)
class PostgresLog:
    """`heartbeat_s`: of an always-on capture; None for a sync."""

    started: Started
    newest: Manifest | None
    read_from: Lsn
    source: PostgresSpec
    streams: tuple[StreamId, ...]
    log_directory: Path
    heartbeat_s: float | None
    next_xid: int
    sender_timeout_s: float  # of the server; 0 if it has none

    def decoder(self) -> PgoutputDecoder:
        spool = self.log_directory / SPOOL_DIRECTORY
        sweep_spool(spool)
        return PgoutputDecoder(
            Relations(self.streams, lambda: connect_patiently(self.source.url, "penstock-catalog")),
            TransactionIds(self.next_xid),
            StreamedTransactions(spool / f"{int(self.started.epoch):016x}"),
            EmittedMessages(self.source.messages),
        )

    def stream(self) -> PostgresStream:
        source, timeout_s = self.source, self.sender_timeout_s
        settings: dict[str, str] = {}
        if self.heartbeat_s is not None:
            # Of a process that was stopped the server keeps no slot busy for long (correctness 17).
            timeout_s = max(_SENDER_HEARTBEATS * self.heartbeat_s, _SENDER_TIMEOUT_MIN_S)
            settings["wal_sender_timeout"] = str(int(timeout_s * 1000))
        connection = connect_patiently(source.url, CAPTURE_APPLICATION, replication=True, settings=settings)
        replication = ReplicationStream(
            connection, source.slot, source.publication, self.read_from, emitted=bool(source.messages)
        )
        return PostgresStream(replication, timeout_s)

"""From a spec to a source that can be read: each step in its order, each with its own error.

identify the system → server version and settings → advisory lock on the slot's name → publication →
slot → where to go on. The log decides where: its newest manifest, else the slot's own position
(correctness 2). A slot that is ahead of the log has forgotten what was never stored: that is a gap,
and an error. A capture of ours that still reads from the slot although we hold the lock is one that was
stopped or cut off: its session at the server is ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock import failpoints
from penstock.capture.leadership import patience_s
from penstock.capture.postgres.log import PostgresLog
from penstock.capture.postgres.snapshots import SnapshotKeeper, connect_patiently
from penstock.capture.source import Wanted
from penstock.capture.source_spec import PostgresSpec
from penstock.capture.spec import CaptureSpec, Started
from penstock.core.errors import AnotherSourceError, PositionGoneError, SourceError
from penstock.core.position import Lsn
from penstock.log.manifest import Manifest, newest_manifest
from penstock.sources.postgres.connection import Connection, query_errors
from penstock.sources.postgres.publication import PublicationManager
from penstock.sources.postgres.slots import (
    CAPTURE_APPLICATION,
    SlotInfo,
    create_slot,
    end_stale_reader,
    read_slot,
    require_usable,
)
from penstock.sources.postgres.timelines import switch_point

SERVER_VERSION_MIN = 140000
_RESYNC = (
    "Run `penstock resync --diff --yes` to go on under a new slot and write only the rows that differ, or "
    "`penstock resync --yes` to load the tables again under it."
)


def set_up(
    source: PostgresSpec,
    spec: CaptureSpec,
    wanted: Wanted,
    connection: Connection,
    take_lead: Callable[[], Lsn],
    snapshots: SnapshotKeeper,
) -> PostgresLog:
    """Bring the source to where it can be read. `connection` is an ordinary session, in autocommit.

    `take_lead` returns when the lock is held, with the term's epoch.
    """
    replication = connect_patiently(source.url, CAPTURE_APPLICATION, replication=True)
    try:
        system_id, timeline = _identify(replication)
        settings = _read_settings(connection)
        epoch = take_lead()
        newest = newest_manifest(spec.log_directory)
        if newest is not None:
            _require_same_source(newest, system_id, timeline, replication)
        begun = newest is not None or any(position is not None for position in wanted.lanes.values())
        slot = _usable_slot(source.slot, connection, begun=begun)
        manager = PublicationManager(connection, source.publication, source.publication_mode, source.slot)
        published = manager.ensure(wanted.streams, wanted.full_identity)
        if slot is None:
            created = create_slot(replication, source.slot, failover=source.failover)
            failpoints.reach("capture.slot_created")
            snapshots.keep_main(replication, created.snapshot_name, created.consistent_point)
            position = created.consistent_point
        else:
            replication.close()
            assert slot.confirmed_flush is not None, "a logical slot has a confirmed position"
            position = slot.confirmed_flush
            _require_no_gap(source.slot, wanted.lanes, newest, position)
        started = Started(
            system_id=system_id,
            timeline=timeline,
            server_version=connection.info.server_version,
            slot_created=slot is None,
            slot_position=position,
            log_end=newest.end if newest else None,
            epoch=epoch,
            published=published,
        )
    except BaseException:
        replication.close()
        raise
    return PostgresLog(
        started=started,
        newest=newest,
        read_from=newest.end if newest else position,
        source=source,
        streams=wanted.streams,
        log_directory=spec.log_directory,
        heartbeat_s=None if spec.service is None else spec.heartbeat_s,
        next_xid=settings.next_xid,
        sender_timeout_s=settings.sender_timeout_s,
    )


@dataclass(frozen=True, slots=True)
class _Settings:
    next_xid: int
    sender_timeout_s: float


def _identify(replication: Connection) -> tuple[str, int]:
    with query_errors("identifying the system"):
        row = replication.execute("IDENTIFY_SYSTEM").fetchone()
    assert row is not None
    return str(row[0]), int(row[1])


def _read_settings(connection: Connection) -> _Settings:
    if connection.info.server_version < SERVER_VERSION_MIN:
        raise SourceError(
            f"The server is Postgres {connection.info.server_version // 10000}; Penstock needs 14 or later.",
            remedy="Upgrade the server.",
        )
    with query_errors("reading the server's settings"):
        row = connection.execute(
            "SELECT current_setting('wal_level'), "
            "(SELECT setting::bigint FROM pg_settings WHERE name = 'wal_sender_timeout'), "
            "pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
        ).fetchone()
    assert row is not None
    wal_level, timeout_ms, next_xid = row
    if wal_level != "logical":
        raise SourceError(
            f"The server's log holds too little for logical replication (wal_level is {wal_level}).",
            remedy="Run ALTER SYSTEM SET wal_level = 'logical' and restart the server.",
        )
    return _Settings(next_xid, timeout_ms / 1000)


def _usable_slot(name: str, connection: Connection, *, begun: bool) -> SlotInfo | None:
    """The slot, or None if it may be created: nothing of ours was ever read from it."""
    deadline = time.monotonic() + patience_s()
    while (slot := read_slot(connection, name)) is not None and slot.active:
        end_stale_reader(connection, name)
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    if slot is None and not begun:
        return None
    return require_usable(slot, name, connection.info.dbname)


def _require_no_gap(
    slot: str, lanes: Mapping[str, Lsn | None], newest: Manifest | None, confirmed: Lsn
) -> None:
    held = newest.end if newest is not None else None
    if held is None:
        # Without a log the slot's position is where we begin, unless a lane says it needs more.
        positions = [position for position in lanes.values() if position is not None]
        held = min(positions) if positions else None
    if held is not None and confirmed > held:
        raise PositionGoneError(
            f"The slot {slot} is at {confirmed}, beyond {held} where the change log ends: "
            "changes in between were never stored and Postgres no longer keeps them.",
            remedy=_RESYNC,
        )


def _require_same_source(newest: Manifest, system_id: str, timeline: int, replication: Connection) -> None:
    if newest.system_id != system_id:
        raise AnotherSourceError(
            "The change log was read from another database server: "
            f"its system identifier is {newest.system_id}, this server's is {system_id}.",
            remedy=f"Check the source's url, or use another state directory. {_RESYNC}",
        )
    if newest.timeline == timeline:
        return
    # After a failover positions repeat: what we hold must lie before the switch (correctness 6).
    switch = switch_point(replication, newest.timeline, timeline)
    if switch is None or newest.end > switch:
        raise AnotherSourceError(
            f"The server has moved from timeline {newest.timeline} to {timeline} since the change log was "
            f"written, and the log's end {newest.end} is not part of the new one.",
            remedy=_RESYNC,
        )

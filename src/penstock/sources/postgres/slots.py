"""Replication slots: what the server says about one, creating one, dropping one.

`create_slot` returns the consistent point and the snapshot exported with it. The snapshot lives until
the *same* connection runs its next command, so whoever needs it keeps that connection idle.
Slots are created without `two_phase`: a prepared transaction then arrives whole at COMMIT PREPARED.
With `failover` (from version 17 on) the server keeps copies of the slot at its standbys, for the case that
one of them is promoted.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import dataclass

import psycopg
from psycopg import sql

from penstock.core.errors import ConfigError, PositionGoneError, SourceBusyError, SourceError
from penstock.core.position import Lsn
from penstock.sources.postgres.connection import Connection, query_error, query_errors

PLUGIN = "pgoutput"
CAPTURE_APPLICATION = "penstock-capture"
RELEASE_S = 10.0
_LOOK_EVERY_S = 0.1
_FAILOVER_SINCE = 170000
_NAME = re.compile(r"\A[a-z0-9_]{1,63}\Z")

_RESYNC = (
    "Run `penstock resync --diff --yes` to go on under a new slot and write only the rows that differ, or "
    "`penstock resync --yes` to load the tables again under it."
)


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """A row of pg_replication_slots. `retained_bytes`: log the server keeps for this slot."""

    name: str
    plugin: str | None
    database: str | None
    temporary: bool
    active: bool
    active_pid: int | None
    restart_lsn: Lsn | None
    confirmed_flush: Lsn | None
    wal_status: str | None  # reserved, extended, unreserved, lost
    safe_wal_size: int | None
    two_phase: bool
    retained_bytes: int | None
    invalidation_reason: str | None = None
    failover: bool = False

    @property
    def lost(self) -> bool:
        return self.wal_status == "lost" or self.invalidation_reason is not None


@dataclass(frozen=True, slots=True)
class CreatedSlot:
    name: str
    consistent_point: Lsn
    snapshot_name: str


_READ = """
SELECT s.slot_name, s.plugin, s.database, s.temporary, s.active, s.active_pid,
       s.restart_lsn::text, s.confirmed_flush_lsn::text, s.wal_status, s.safe_wal_size, s.two_phase,
       pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn()
                            ELSE pg_current_wal_insert_lsn() END, s.restart_lsn)::bigint,
       to_jsonb(s) ->> 'invalidation_reason', to_jsonb(s) ->> 'failover'  -- from version 17 on
FROM pg_replication_slots AS s
WHERE s.slot_name = %s
"""


def require_name(name: str) -> str:
    """A slot's name as Postgres accepts it; no other name ever reaches a replication command."""
    if not _NAME.match(name):
        raise ConfigError(
            f"{name!r} cannot be the name of a replication slot.",
            remedy="Use lower-case letters, digits and underscores, 63 characters at most.",
        )
    return name


def read_slot(connection: Connection, name: str) -> SlotInfo | None:
    with query_errors("reading pg_replication_slots"):
        row = connection.execute(_READ, (name,)).fetchone()
    if row is None:
        return None
    return SlotInfo(
        name=row[0],
        plugin=row[1],
        database=row[2],
        temporary=row[3],
        active=row[4],
        active_pid=row[5],
        restart_lsn=_position(row[6]),
        confirmed_flush=_position(row[7]),
        wal_status=row[8],
        safe_wal_size=row[9],
        two_phase=row[10],
        retained_bytes=row[11],
        invalidation_reason=row[12],
        failover=row[13] == "true",
    )


def _position(text: str | None) -> Lsn | None:
    return None if text is None else Lsn.parse(text)


def require_usable(slot: SlotInfo | None, name: str, database: str) -> SlotInfo:
    """The slot, if we can go on reading from it; else an error that says why not and what to do."""
    if slot is None:
        raise PositionGoneError(
            f"The replication slot {name} does not exist any more; changes made since are not kept.",
            remedy=_RESYNC,
        )
    if slot.plugin != PLUGIN or slot.database != database:
        kind = f"for {slot.plugin} in database {slot.database}" if slot.plugin else "a physical one"
        raise SourceError(
            f"The replication slot {name} is {kind}; Penstock needs one for {PLUGIN} in {database}.",
            remedy="Set another slot name in penstock.yaml (source: slot), or another "
            "ELECTRIC_REPLICATION_STREAM_ID for `penstock shapes serve`.",
        )
    if slot.lost:
        raise PositionGoneError(
            f"The replication slot {name} is lost: the server removed log it still needed"
            f"{f' ({slot.invalidation_reason})' if slot.invalidation_reason else ''}.",
            remedy=f"{_RESYNC} To prevent it, raise max_slot_wal_keep_size or sync more often.",
        )
    if slot.two_phase:  # the server then sends rows at PREPARE, whatever is asked of it at the start
        raise ConfigError(
            f"The replication slot {name} was made with two_phase; Penstock reads transactions that have "
            "committed.",
            remedy="Set another slot name in penstock.yaml (source: slot), or drop this one. "
            f"If tables were loaded under it: {_RESYNC[0].lower()}{_RESYNC[1:]}",
        )
    if slot.active:
        raise in_use_error(name, slot.active_pid)
    return slot


def in_use_error(name: str, pid: int | None) -> SourceBusyError:
    return SourceBusyError(
        f"The replication slot {name} is in use by process {pid} of the server.",
        remedy="Stop the other Penstock that uses it, or give this pipeline a slot of its own. "
        f"If nothing of yours runs any more: SELECT pg_terminate_backend({pid}).",
    )


# A capture that reads from the slot without holding the lock was stopped, or cut off, or is about to end.
_END_STALE = """
SELECT pg_terminate_backend(a.pid)
FROM pg_replication_slots AS s JOIN pg_stat_activity AS a ON a.pid = s.active_pid
WHERE s.slot_name = %s AND a.application_name = %s
"""


def end_stale_reader(connection: Connection, name: str) -> None:
    """For who holds the lock: end the server's process for a capture of ours that reads from the slot."""
    what = f"ending the former reader of slot {name}"
    with query_errors(what), suppress(psycopg.errors.InsufficientPrivilege):
        connection.execute(_END_STALE, (name, CAPTURE_APPLICATION))


def create_slot(
    replication_connection: Connection, name: str, *, temporary: bool = False, failover: bool = False
) -> CreatedSlot:
    """Create a logical slot and export its snapshot. Waits for transactions that are running now."""
    require_name(name)
    version = replication_connection.info.server_version
    if failover and version < _FAILOVER_SINCE:
        raise ConfigError(
            f"The server is Postgres {version // 10000}; slots that outlive a failover need 17 or later.",
            remedy="Set `source.failover: false`, or upgrade the server.",
        )
    options = "SNAPSHOT 'export', FAILOVER true" if failover else "SNAPSHOT 'export'"
    command = sql.SQL("CREATE_REPLICATION_SLOT {}{} LOGICAL {} {}").format(
        sql.Identifier(name),
        sql.SQL(" TEMPORARY" if temporary else ""),
        sql.Identifier(PLUGIN),
        sql.SQL(f"({options})" if version >= 150000 else "EXPORT_SNAPSHOT"),
    )
    try:
        row = replication_connection.execute(command).fetchone()
    except psycopg.Error as error:
        raise _creation_error(error, name) from error
    assert row is not None, "CREATE_REPLICATION_SLOT always answers with one row"
    return CreatedSlot(row[0], Lsn.parse(row[1]), row[2])


def _creation_error(error: psycopg.Error, name: str) -> SourceError:
    if error.sqlstate == "53400":
        return SourceError(
            f"The replication slot {name} could not be created: all of the server's slots are in use.",
            remedy="Raise max_replication_slots at the server (needs a restart), "
            "or drop a slot nobody reads: SELECT slot_name, active FROM pg_replication_slots.",
        )
    if error.sqlstate == "42710":
        return SourceBusyError(
            f"The replication slot {name} exists already.",
            remedy="Run `penstock check`; another pipeline may use the same slot name.",
        )
    if error.sqlstate == "55000":
        return SourceError(
            "The server's log holds too little for logical replication (wal_level is not logical).",
            remedy="Run ALTER SYSTEM SET wal_level = 'logical' and restart the server.",
        )
    if error.sqlstate == "42501":
        return SourceError(
            f"The replication slot {name} could not be created: the role may not replicate.",
            remedy="As a superuser run: ALTER ROLE <role> REPLICATION.",
        )
    return query_error(error, f"creating the replication slot {name}")


def drop_slot(connection: Connection, name: str) -> bool:
    """Drop the slot; False if there is none. Only ever done on a person's command, or for our own.

    A reader that has just ended holds it until the server has noticed, which is waited for.
    """
    require_name(name)
    deadline = time.monotonic() + RELEASE_S
    while True:
        try:
            connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
        except psycopg.errors.UndefinedObject:
            return False
        except psycopg.errors.ObjectInUse as error:
            if time.monotonic() > deadline:
                slot = read_slot(connection, name)
                raise in_use_error(name, slot.active_pid if slot else None) from error
            time.sleep(_LOOK_EVERY_S)
        except psycopg.Error as error:
            raise query_error(error, f"dropping the replication slot {name}") from error
        else:
            return True

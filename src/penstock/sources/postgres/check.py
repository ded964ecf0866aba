"""Whether the source allows what the pipeline asks for, before anything is changed.

Every prerequisite has its own finding with its own remedy. Steps that do not depend on each other are
asked separately, so that one failure does not hide the next; only a server that cannot be reached ends
the check early. Nothing is created or altered here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.core.errors import PenstockError
from penstock.sources.finding import Finding, StreamNeed, findings_of
from penstock.sources.postgres.catalog import discover
from penstock.sources.postgres.check_replica import check_replica
from penstock.sources.postgres.check_streams import check_streams
from penstock.sources.postgres.connection import (
    POOLER_REMEDY,
    Connection,
    connect,
    query_errors,
    safe_url,
)
from penstock.sources.postgres.publication import (
    OPERATIONS,
    PublicationMode,
    create_statement,
    quoted,
    read_publication,
)
from penstock.sources.postgres.slots import PLUGIN, SlotInfo, read_slot, require_name

__all__ = ["Finding", "StreamNeed", "check"]

SERVER_VERSION_MIN = 140000
_SLOTS_NEEDED = 2  # ours, and a temporary one while tables are added or loaded again
_SENDERS_NEEDED = 2


@dataclass(frozen=True, slots=True)
class _Asked:
    connection: Connection
    url: str
    slot: str
    publication: str
    mode: PublicationMode
    needs: Sequence[StreamNeed]


def check(
    url: str,
    slot: str,
    publication: str,
    streams: Sequence[StreamNeed],
    *,
    publication_mode: PublicationMode = "auto",
    replica_url: str | None = None,
) -> list[Finding]:
    """All findings, in the order in which a person would mend them."""
    try:
        connection = connect(url, application_name="penstock check")
    except PenstockError as error:
        return [Finding.of_error("connection", error)]
    with connection:
        asked = _Asked(connection, url, slot, publication, publication_mode, streams)
        steps: list[tuple[str, Callable[[_Asked], Iterator[Finding]]]] = [
            ("connection", _check_connection),
            ("server version", _check_version),
        ]
        if any(need.reads_log for need in streams):
            steps += [
                ("primary server", _check_primary),
                ("wal_level", _check_wal_level),
                ("replication privilege", _check_replication),
                ("messages of ours", _check_messages),
                ("replication slots", _check_free_slots),
                ("replication senders", _check_free_senders),
                ("log retention", _check_retention),
                ("slot", _check_slot),
                ("publication", _check_publication),
            ]
        steps.append(("streams", _check_streams))
        return findings_of(steps, asked) + (
            check_replica(url, replica_url) if replica_url is not None else []
        )


def _value(asked: _Asked, query: str, doing: str) -> Any:
    with query_errors(doing):
        row = asked.connection.execute(query.encode()).fetchone()
    return row[0] if row is not None else None


def _check_connection(asked: _Asked) -> Iterator[Finding]:
    """A pooler makes up the process id it announces; Postgres announces its own."""
    serving = _value(asked, "SELECT pg_backend_pid()", "asking for the process id")
    if serving == asked.connection.info.backend_pid:
        yield Finding("connection", "ok", f"Connected to {safe_url(asked.url)}.")
    else:
        message = f"A connection pooler (such as PgBouncer) answers at {safe_url(asked.url)}."
        yield Finding("connection", "error", message, POOLER_REMEDY)


def _check_version(asked: _Asked) -> Iterator[Finding]:
    version = asked.connection.info.server_version
    shown = f"Postgres {version // 10000}.{version % 10000}"
    if version >= SERVER_VERSION_MIN:
        yield Finding("server version", "ok", f"{shown}.")
    else:
        yield Finding("server version", "error", f"{shown} is too old.", "Upgrade the server to 14 or later.")


def _check_primary(asked: _Asked) -> Iterator[Finding]:
    if _value(asked, "SELECT pg_is_in_recovery()", "asking whether the server is a standby"):
        yield Finding(
            "primary server",
            "error",
            "The server is a standby; publications and slots are made at the primary.",
            "Put the primary's host into the source's url "
            "(with several hosts: target_session_attrs=read-write).",
        )


def _check_wal_level(asked: _Asked) -> Iterator[Finding]:
    level = _value(asked, "SELECT current_setting('wal_level')", "reading wal_level")
    if level == "logical":
        yield Finding("wal_level", "ok", "wal_level is logical.")
        return
    yield Finding(
        "wal_level",
        "error",
        f"wal_level is {level}: the server's log does not hold row changes.",
        "As a superuser run: ALTER SYSTEM SET wal_level = 'logical'; then restart the server "
        "(on a managed service, set its logical replication parameter).",
    )


def _check_replication(asked: _Asked) -> Iterator[Finding]:
    """By opening such a connection, which meets every cause: privilege, pg_hba.conf, senders, pooler."""
    with connect(asked.url, application_name="penstock check", replication=True) as replication:
        with query_errors("identifying the system"):
            replication.execute("IDENTIFY_SYSTEM")
        role = replication.info.user
    yield Finding("replication privilege", "ok", f"The role {role} may replicate.")


def _check_messages(asked: _Asked) -> Iterator[Finding]:
    """A term's epoch is the position of a message that its leader emits."""
    query = """
        SELECT oid::regprocedure::text FROM pg_proc
        WHERE proname = 'pg_logical_emit_message' AND pronamespace = 'pg_catalog'::regnamespace
          AND proargtypes[2] = 'text'::regtype AND NOT has_function_privilege(oid, 'EXECUTE')
    """
    refused = _value(asked, query, "looking for the right to emit messages")
    role = asked.connection.info.user
    if refused is None:
        yield Finding("messages of ours", "ok", f"The role {role} may emit messages into the server's log.")
        return
    yield Finding(
        "messages of ours",
        "error",
        f"The role {role} may not emit messages into the server's log: leaders could not be told apart.",
        f"As a superuser run: GRANT EXECUTE ON FUNCTION {refused} TO {quoted(role)};",
    )


def _check_free_slots(asked: _Asked) -> Iterator[Finding]:
    most = _value(asked, "SELECT current_setting('max_replication_slots')::int", "counting slots")
    used = _value(asked, "SELECT count(*) FROM pg_replication_slots", "counting slots")
    own = read_slot(asked.connection, asked.slot) is not None
    missing = _SLOTS_NEEDED - own - (most - used)
    shown = f"{used} of {most} replication slots are in use"
    remedy = (
        "Raise max_replication_slots at the server (needs a restart), or drop a slot that nobody reads: "
        "SELECT slot_name, active FROM pg_replication_slots."
    )
    if missing <= 0:
        yield Finding("replication slots", "ok", f"{shown}.")
    elif not own and most - used < 1:
        yield Finding("replication slots", "error", f"{shown}; Penstock needs one.", remedy)
    else:
        message = f"{shown}; one more is needed for a moment when tables are added or loaded again."
        yield Finding("replication slots", "warning", message, remedy)


def _check_free_senders(asked: _Asked) -> Iterator[Finding]:
    most = _value(asked, "SELECT current_setting('max_wal_senders')::int", "counting senders")
    used = _value(
        asked,
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender' "
        "AND application_name <> 'penstock check'",
        "counting senders",
    )
    shown = f"{used} of {most} replication connections are in use"
    remedy = "Raise max_wal_senders at the server (needs a restart), or stop a consumer that is not needed."
    if most - used >= _SENDERS_NEEDED:
        yield Finding("replication senders", "ok", f"{shown}.")
    elif most - used > 0:
        message = f"{shown}; a second one is needed while tables are added or loaded again."
        yield Finding("replication senders", "warning", message, remedy)
    else:
        yield Finding("replication senders", "error", f"{shown}; Penstock needs one.", remedy)


def _check_retention(asked: _Asked) -> Iterator[Finding]:
    limit = _value(
        asked, "SELECT current_setting('max_slot_wal_keep_size')", "reading max_slot_wal_keep_size"
    )
    if limit == "-1":
        message = (
            "The server keeps log for a slot without limit (max_slot_wal_keep_size = -1): "
            "a pipeline that stops for long fills the server's disk."
        )
    else:
        message = (
            f"The server keeps {limit} of log for a slot (max_slot_wal_keep_size): "
            "a pipeline that falls further behind must load again."
        )
    yield Finding("log retention", "ok", message)


def _check_slot(asked: _Asked) -> Iterator[Finding]:
    require_name(asked.slot)
    slot = read_slot(asked.connection, asked.slot)
    if slot is None:
        yield Finding("slot", "ok", f"The slot {asked.slot} does not exist yet; the first sync creates it.")
        return
    yield from _check_existing_slot(slot, asked.connection.info.dbname)


def _check_existing_slot(slot: SlotInfo, database: str) -> Iterator[Finding]:
    other = "Set another slot name in penstock.yaml (source: slot)."
    if slot.plugin != PLUGIN:
        message = f"The slot {slot.name} is for {slot.plugin or 'physical replication'}, not {PLUGIN}."
        yield Finding("slot", "error", message, other)
    elif slot.database != database:
        message = f"The slot {slot.name} belongs to the database {slot.database}, not {database}."
        yield Finding("slot", "error", message, other)
    elif slot.lost:
        message = f"The slot {slot.name} is lost: the server removed log that it still needed."
        remedy = "Run `penstock resync --diff --yes` (or `resync --yes`, which loads all) to get a new slot."
        yield Finding("slot", "error", message, remedy)
    elif slot.active:
        message = f"The slot {slot.name} is in use by process {slot.active_pid} of the server."
        yield Finding(
            "slot", "warning", message, "If that is not this pipeline, give it a slot name of its own."
        )
    else:
        kept = f"{(slot.retained_bytes or 0) / 2**20:,.1f} MiB of log kept for it"
        yield Finding("slot", "ok", f"The slot {slot.name} is at {slot.confirmed_flush}, {kept}.")
    if slot.wal_status == "unreserved":
        message = f"The slot {slot.name} is about to be lost: the server may remove its log at any time."
        yield Finding("slot", "warning", message, "Run `penstock sync` now, or raise max_slot_wal_keep_size.")
    if slot.two_phase:
        message = f"The slot {slot.name} was made with two_phase: it sends transactions before they commit."
        yield Finding("slot", "error", message, "Let Penstock make a slot of its own, without two_phase.")


def _check_publication(asked: _Asked) -> Iterator[Finding]:
    name = asked.publication
    publication = read_publication(asked.connection, name)
    if publication is None:
        yield _missing_publication(asked)
        return
    problems = []
    missing = sorted(OPERATIONS - publication.operations)
    if missing:
        problems.append(
            Finding(
                "publication operations",
                "error",
                f"The publication {name} leaves out {', '.join(missing)}.",
                f"Run: ALTER PUBLICATION {quoted(name)} SET (publish = 'insert, update, delete, truncate').",
            )
        )
    if publication.via_root:
        problems.append(
            Finding(
                "publication partitions",
                "error",
                f"The publication {name} publishes partitions as their root: "
                "a TRUNCATE of one partition would be missing.",
                f"Run: ALTER PUBLICATION {quoted(name)} SET (publish_via_partition_root = false).",
            )
        )
    yield from problems
    if not problems:
        scope = " It is FOR ALL TABLES: every table sends its changes." if publication.all_tables else ""
        yield Finding("publication", "ok", f"The publication {name} publishes all operations.{scope}")


def _missing_publication(asked: _Asked) -> Finding:
    name = asked.publication
    if read_slot(asked.connection, asked.slot) is not None:
        return Finding(
            "publication",
            "error",
            f"The publication {name} is missing, but the slot {asked.slot} exists: "
            "changes made in between would be skipped.",
            "Run `penstock resync --yes`: it drops the slot and loads the tables again under a new one.",
        )
    if asked.mode == "manual":
        message = f"The publication {name} does not exist, and publications are managed by hand."
        return Finding("publication", "error", message, f"Run: {_create_statement(asked)}.")
    may_create = _value(
        asked, "SELECT has_database_privilege(current_database(), 'CREATE')", "asking for a privilege"
    )
    if not may_create:
        message = f"The publication {name} does not exist, and the role may not create it."
        remedy = (
            f"As the database's owner run: GRANT CREATE ON DATABASE {quoted(asked.connection.info.dbname)} "
            f"TO {quoted(asked.connection.info.user)}; or: {_create_statement(asked)}."
        )
        return Finding("publication", "error", message, remedy)
    return Finding(
        "publication", "ok", f"The publication {name} does not exist yet; the first sync creates it."
    )


def _create_statement(asked: _Asked) -> str:
    return create_statement(asked.publication, asked.connection.info.server_version)


def _check_streams(asked: _Asked) -> Iterator[Finding]:
    tables = discover(asked.connection, [need.stream for need in asked.needs])
    publication = read_publication(asked.connection, asked.publication)
    role = asked.connection.info.user
    yield from check_streams(asked.needs, tables, asked.publication, publication, mode=asked.mode, role=role)

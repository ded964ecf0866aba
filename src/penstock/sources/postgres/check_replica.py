"""Whether tables can be read at the replica: a standby of the source, with the rights, and left in peace."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.errors import PenstockError
from penstock.sources.finding import Finding
from penstock.sources.postgres.connection import Connection, connect, query_errors, safe_url
from penstock.sources.postgres.publication import quoted
from penstock.sources.postgres.replica import Replica

_FUNCTIONS = ("pg_wal_replay_pause()", "pg_wal_replay_resume()", "pg_get_wal_replay_pause_state()")


def check_replica(url: str, replica_url: str) -> list[Finding]:
    """Findings about the server that tables are read at. Nothing is paused here."""
    try:
        Replica(url, replica_url, 0).require_standby()
        with connect(replica_url, application_name="penstock check") as connection:
            fine = Finding("replica", "ok", f"{safe_url(replica_url)} is a standby of the source.")
            return [fine, *_check_rights(connection), *_check_conflicts(connection)]
    except PenstockError as error:
        return [Finding.of_error("replica", error)]


def _check_rights(connection: Connection) -> Iterator[Finding]:
    missing = [name for name in _FUNCTIONS if not _may_execute(connection, name)]
    role, database = connection.info.user, connection.info.dbname
    if missing:
        yield Finding(
            "replica rights",
            "error",
            f"The role {role} may not pause replay for the moment in which a snapshot is taken.",
            f"As a superuser run at the primary, in the database {database}: "
            f"GRANT EXECUTE ON FUNCTION {', '.join(missing)} TO {quoted(role)}.",
        )
        return
    if _value(connection, "SELECT pg_get_wal_replay_pause_state()") != "not paused":
        yield Finding(
            "replica replay",
            "warning",
            "Replay is paused at the replica: loads wait until it goes on.",
            "If nobody needs the pause, run there: SELECT pg_wal_replay_resume().",
        )


def _check_conflicts(connection: Connection) -> Iterator[Finding]:
    feedback = _value(connection, "SELECT current_setting('hot_standby_feedback')") == "on"
    delay = str(_value(connection, "SELECT current_setting('max_standby_streaming_delay')"))
    if feedback:
        yield Finding("replica conflicts", "ok", "The replica tells the source which rows it still reads.")
    elif delay == "-1":
        yield Finding("replica conflicts", "ok", "Replay waits for whoever reads at the replica.")
    else:
        yield Finding(
            "replica conflicts",
            "warning",
            f"The replica cancels reads that replay has waited {delay} for, and a load with them.",
            "At the replica set hot_standby_feedback = on, or raise max_standby_streaming_delay to the "
            "length of a load.",
        )


def _may_execute(connection: Connection, function: str) -> bool:
    return bool(_value(connection, "SELECT has_function_privilege(%s, 'EXECUTE')", function))


def _value(connection: Connection, query: str, *parameters: str) -> object:
    with query_errors("asking the replica"):
        row = connection.execute(query.encode(), parameters or None).fetchone()
    return row[0] if row is not None else None

"""Whether a MySQL or MariaDB server allows what the pipeline asks for, before anything is changed.

Every prerequisite has its own finding with its own remedy. Steps that do not depend on each other are asked
separately, so that one failure does not hide the next; only a server that cannot be reached ends the check
early. Nothing is created or altered here. Rights are found out by using them where that changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pymysql
import pymysql.cursors

from penstock.core.errors import PenstockError
from penstock.sources.finding import Finding, Level, StreamNeed, findings_of
from penstock.sources.mysql.binlog.packets import report_host
from penstock.sources.mysql.catalog import MysqlTable, discover
from penstock.sources.mysql.check_streams import PERSIST, LogFacts, check_streams
from penstock.sources.mysql.connection import (
    Connection,
    code_of,
    connect,
    is_mariadb,
    query_errors,
    rows,
    safe_url,
    server_version,
)

_MYSQL_MIN, _MARIADB_MIN = (8, 0, 1), (10, 5, 0)
_CASCADES_LOGGED_SINCE = (9, 6, 0)
_RETENTION_S_MIN = 24 * 3600
_UNKNOWN_VARIABLE = 1193


@dataclass(frozen=True, slots=True)
class _Asked:
    connection: Connection
    url: str
    server_id: int | None
    pipeline: str
    needs: Sequence[StreamNeed]
    mariadb: bool
    version: tuple[int, int, int]

    def variable(self, *names: str) -> str | None:
        """The first that the server has, as text; None: it has none of them."""
        for name in names:
            try:
                with self.connection.cursor() as cursor:
                    cursor.execute(f"SELECT @@global.{name}")
                    [[value]] = cursor.fetchall()
            except pymysql.err.MySQLError as error:
                if code_of(error) != _UNKNOWN_VARIABLE:
                    with query_errors(f"reading {name}"):
                        raise
                continue
            return "" if value is None else str(value)
        return None

    def tried(self, *statements: str) -> list[dict[str, Any]] | None:
        """The answer to the first statement that the server takes; None: it takes none of them."""
        for statement in statements:
            try:
                with self.connection.cursor(pymysql.cursors.DictCursor) as cursor:
                    cursor.execute(statement)
                    return list(cursor.fetchall())
            except pymysql.err.MySQLError:
                continue
        return None


def check(
    url: str, needs: Sequence[StreamNeed], *, server_id: int | None = None, pipeline: str = ""
) -> list[Finding]:
    """All findings, in the order in which a person would mend them. `server_id`: what the pipeline of this
    name has."""
    try:
        connection = connect(url, program_name="penstock check")
    except PenstockError as error:
        return [Finding.of_error("connection", error)]
    with connection:
        asked = _Asked(
            connection, url, server_id, pipeline, needs, is_mariadb(connection), server_version(connection)
        )
        steps: list[tuple[str, Callable[[_Asked], Iterator[Finding]]]] = [
            ("connection", _check_connection),
            ("server version", _check_version),
        ]
        if any(need.reads_log for need in needs):
            steps += [
                ("log_bin", _check_log_bin),
                ("binlog_format", _check_format),
                ("binlog_row_image", _check_row_image),
                ("binlog_row_metadata", _check_row_metadata),
                ("binlog_row_value_options", _check_partial_json),
                ("log of a replica", _check_replica),
                ("log retention", _check_retention),
                ("replication client privilege", _check_client_privilege),
                ("replication privilege", _check_replication_privilege),
                ("server id", _check_server_id),
                ("global transaction ids", _check_gtid),
                ("prepared transactions", _check_prepared),
            ]
        steps.append(("streams", _check_streams))
        return findings_of(steps, asked)


def _check_connection(asked: _Asked) -> Iterator[Finding]:
    yield Finding("connection", "ok", f"Connected to {safe_url(asked.url)}.")


def _check_version(asked: _Asked) -> Iterator[Finding]:
    least = _MARIADB_MIN if asked.mariadb else _MYSQL_MIN
    name = "MariaDB" if asked.mariadb else "MySQL"
    shown = f"{name} {'.'.join(map(str, asked.version))}"
    if asked.version >= least:
        yield Finding("server version", "ok", f"{shown}.")
    else:
        needed = ".".join(map(str, least[:2]))
        yield Finding(
            "server version",
            "error",
            f"{shown} is too old: its log does not say which numbers are unsigned, nor character sets.",
            f"Upgrade the server to {name} {needed} or later.",
        )


def _check_log_bin(asked: _Asked) -> Iterator[Finding]:
    if asked.variable("log_bin") == "1":
        yield Finding("log_bin", "ok", "The binary log is on.")
        return
    yield Finding(
        "log_bin",
        "error",
        "The binary log is off (log_bin): the server keeps no changes.",
        "Start the server with log_bin and a server_id (Amazon RDS and Aurora: turn on automated backups, or "
        "set binlog_format in the parameter group).",
    )


def _setting(name: str, found: str, wanted: str, why: str, level: Level = "error") -> Finding:
    if found.upper() == wanted:
        return Finding(name, "ok", f"{name} is {found}.")
    remedy = f"Set {name} = {wanted} by {PERSIST}, and let sessions begin anew: old ones keep their setting."
    return Finding(name, level, f"{name} is {found}: {why}.", remedy)


def _check_format(asked: _Asked) -> Iterator[Finding]:
    found = asked.variable("binlog_format")
    if found is not None:  # a server without the variable logs rows only
        yield _setting("binlog_format", found, "ROW", "the log has statements, not the rows they changed")


def _check_row_image(asked: _Asked) -> Iterator[Finding]:
    found = asked.variable("binlog_row_image") or "FULL"
    if found.upper() == "FULL_NODUP":  # MariaDB's: what an update did not change is there once
        yield Finding("binlog_row_image", "ok", f"binlog_row_image is {found}.")
        return
    why = (
        "columns that an update leaves as they are may be missing in the log, and are taken from the table; "
        "append tables list them in `_unchanged`; after an insert that leaves columns to their defaults, or "
        "an update without what `where` reads, the table is loaded again, and its stream stands still in "
        "stream lanes"
    )
    yield _setting("binlog_row_image", found, "FULL", why, "warning")


def _check_row_metadata(asked: _Asked) -> Iterator[Finding]:
    found = asked.variable("binlog_row_metadata") or "not there"
    why = "the log has neither the names of columns nor the values of enumerations"
    yield _setting("binlog_row_metadata", found, "FULL", why)


def _check_partial_json(asked: _Asked) -> Iterator[Finding]:
    found = asked.variable("binlog_row_value_options") or ""
    if "PARTIAL_JSON" in found.upper():
        yield Finding(
            "binlog_row_value_options",
            "error",
            "binlog_row_value_options is PARTIAL_JSON: the log has parts of changed JSON values only.",
            f"Set binlog_row_value_options = '' by {PERSIST}.",
        )


def _check_replica(asked: _Asked) -> Iterator[Finding]:
    """A server that follows another one logs only what is written to it, unless told otherwise."""
    following = asked.tried("SHOW REPLICA STATUS", "SHOW SLAVE STATUS")
    logged = asked.variable("log_replica_updates", "log_slave_updates")
    if following and logged == "0":
        yield Finding(
            "log of a replica",
            "error",
            "The server is a replica, and does not log what it replicates (log_replica_updates is off).",
            "Turn log_replica_updates on (needs a restart), or read from the server it follows.",
        )


def _check_retention(asked: _Asked) -> Iterator[Finding]:
    managed = asked.tried("SELECT value FROM mysql.rds_configuration WHERE name = 'binlog retention hours'")
    if managed:
        hours = managed[0]["value"]
        seconds = float(hours) * 3600 if hours is not None else 0.0
        remedy = "CALL mysql.rds_set_configuration('binlog retention hours', 168)."
        if seconds == 0:
            message = "The managed service removes binary logs as soon as it can (binlog retention hours)."
            yield Finding("log retention", "error", message, f"Run: {remedy}")
            return
    else:
        seconds = _expiry_s(asked)
        remedy = "Set binlog_expire_logs_seconds to a week (604800) at the server."
        if seconds == 0:
            yield Finding("log retention", "ok", "Binary logs are kept until somebody purges them.")
            return
    shown = f"{seconds / 3600:,.1f} hours"
    message = f"Binary logs are kept for {shown}: a pipeline that stops for longer must load again."
    if seconds < _RETENTION_S_MIN:
        yield Finding("log retention", "warning", message, remedy)
    else:
        yield Finding("log retention", "ok", message)


def _expiry_s(asked: _Asked) -> float:
    seconds = float(asked.variable("binlog_expire_logs_seconds") or 0)
    return seconds or 86400 * float(asked.variable("expire_logs_days") or 0)


def _check_client_privilege(asked: _Asked) -> Iterator[Finding]:
    status = asked.tried("SHOW BINARY LOG STATUS", "SHOW BINLOG STATUS", "SHOW MASTER STATUS")
    if status is None:
        right = "BINLOG MONITOR" if asked.mariadb else "REPLICATION CLIENT"
        message = "The user may not ask for the position of the binary log."
        remedy = f"Run: GRANT {right} ON *.* TO {_user(asked)}."
        yield Finding("replication client privilege", "error", message, remedy)
        return
    yield Finding("replication client privilege", "ok", "The user may ask for the log's position.")
    for row in status:
        left_out = str(row.get("Binlog_Do_DB") or row.get("Binlog_Ignore_DB") or "")
        if left_out:
            yield Finding(
                "databases in the log",
                "warning",
                "The server logs some databases only (binlog_do_db or binlog_ignore_db).",
                "Make sure that all databases of the pipeline are logged, or remove the option.",
            )


def _check_replication_privilege(asked: _Asked) -> Iterator[Finding]:
    """MySQL lists replicas to whoever may be one; at MariaDB grants are read."""
    if asked.mariadb:
        grants = _grants(asked)
        allowed = re.search(r"\bREPLICATION SLAVE\b(?! ADMIN)|REPLICATION REPLICA\b(?! ADMIN)", grants)
        may = bool(allowed) or "ALL PRIVILEGES ON *.*" in grants
    else:
        may = asked.tried("SHOW REPLICAS", "SHOW SLAVE HOSTS") is not None
    if may:
        yield Finding("replication privilege", "ok", "The user may read the binary log.")
        return
    yield Finding(
        "replication privilege",
        "error",
        "The user may not read the binary log.",
        f"Run: GRANT REPLICATION SLAVE ON *.* TO {_user(asked)}.",
    )


def _check_server_id(asked: _Asked) -> Iterator[Finding]:
    own = int(asked.variable("server_id") or 0)
    if own == 0:
        message = "The server has no id (server_id = 0), so it sends its log to nobody."
        yield Finding("server id", "error", message, "Set server_id to a number of its own at the server.")
    if asked.server_id is None:
        return
    others = [
        int(row["Server_Id" if "Server_Id" in row else "Server_id"])
        for row in asked.tried("SHOW REPLICAS", "SHOW SLAVE HOSTS") or []
        if str(row.get("Host", "")) != report_host(asked.pipeline)  # it may be at work
    ]
    if asked.server_id in (own, *others):
        who = "server itself" if asked.server_id == own else "replica of this server"
        yield Finding(
            "server id",
            "error",
            f"The pipeline's server id {asked.server_id} is that of a {who}: one would cut the other off.",
            "Set source.server_id to a number that no server and no other pipeline has.",
        )
    elif own:
        yield Finding("server id", "ok", f"The pipeline's server id {asked.server_id} is its own.")


def _check_gtid(asked: _Asked) -> Iterator[Finding]:
    if asked.mariadb:
        yield Finding("global transaction ids", "ok", "MariaDB gives every transaction a global id.")
        return
    mode = asked.variable("gtid_mode") or "OFF"
    if mode.upper() == "ON":
        yield Finding("global transaction ids", "ok", "gtid_mode is ON.")
        return
    yield Finding(
        "global transaction ids",
        "error",
        f"gtid_mode is {mode}: nobody can tell when what is logged can be seen in the tables, nor find the "
        "place in the log of another server after a failover.",
        "Turn on enforce_gtid_consistency, then gtid_mode step by step: OFF_PERMISSIVE, ON_PERMISSIVE, ON.",
    )


def _check_prepared(asked: _Asked) -> Iterator[Finding]:
    prepared = asked.tried("XA RECOVER") or []
    if prepared:
        yield Finding(
            "prepared transactions",
            "warning",
            f"{len(prepared)} transactions are prepared (XA) and neither committed nor rolled back: those "
            "whose rows were logged before the pipeline begins would be missing.",
            "End them before the first sync: XA RECOVER lists them, XA COMMIT or XA ROLLBACK ends them.",
        )


def _check_streams(asked: _Asked) -> Iterator[Finding]:
    tables = discover(asked.connection, [need.stream for need in asked.needs])
    yield from check_streams(asked.needs, tables, _facts(asked, tables))


def read_facts(connection: Connection, tables: Sequence[MysqlTable]) -> LogFacts:
    """What the server says of these tables beside its catalog."""
    mariadb, version = is_mariadb(connection), server_version(connection)
    return _facts(_Asked(connection, "", None, "", (), mariadb, version), tables)


def _facts(asked: _Asked, tables: Sequence[MysqlTable]) -> LogFacts:
    by_engine = asked.variable("innodb_native_foreign_keys") == "1"  # as before 9.6, and unlogged as before
    logged = not asked.mariadb and asked.version >= _CASCADES_LOGGED_SINCE and not by_engine
    readable = frozenset(table.stream for table in tables if _may_read(asked, str(table.stream)))
    return LogFacts(
        logs_cascades=logged,
        readable=readable,
        may_lock=_may_lock(asked),
        user=_user(asked),
        row_image=asked.variable("binlog_row_image") or "FULL",
    )


def _may_read(asked: _Asked, stream: str) -> bool:
    database, _, table = stream.partition(".")
    name = f"`{database.replace('`', '``')}`.`{table.replace('`', '``')}`"
    return asked.tried(f"SELECT 1 FROM {name} LIMIT 0") is not None


def _may_lock(asked: _Asked) -> bool:
    """MariaDB needs no lock for it."""
    return asked.mariadb or any(right in _grants(asked) for right in ("LOCK TABLES", "ALL PRIVILEGES"))


def _grants(asked: _Asked) -> str:
    return "\n".join(str(next(iter(row.values()))) for row in asked.tried("SHOW GRANTS") or []).upper()


def _user(asked: _Asked) -> str:
    [(user,)] = rows(asked.connection, "SELECT CURRENT_USER()", doing="asking for the user")
    name, _, host = str(user).rpartition("@")
    return f"'{name}'@'{host}'"

"""Connections to Postgres whose text output is the same everywhere, and errors people can act on.

Capture and load must print a value with the same characters, so every connection fixes the settings
that shape text (`SESSION_SETTINGS`). They travel in the *start-up packet* (`options=-c …`), not as
SET statements: they hold before the first query, they are what RESET returns to, and a pooler that cannot
honour them refuses the connection instead of handing a later query to a server connection without them.
Through PgBouncer this fails on purpose, with an error that says so: Penstock needs a connection to Postgres
itself. Where a pooler is configured to ignore start-up options, `connect` notices by the values the server
reports back, which costs no round trip.
"""

from __future__ import annotations

import re
import socket
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias
from urllib.parse import quote

import psycopg
from psycopg import conninfo
from psycopg.pq import TransactionStatus

from penstock.core.errors import ConfigError, SnapshotLostError, SourceError

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

SESSION_SETTINGS: Mapping[str, str] = {
    "DateStyle": "ISO, DMY",
    "IntervalStyle": "iso_8601",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "TimeZone": "UTC",
    "lc_monetary": "C",
}

CONNECT_TIMEOUT_S = 30
_LAST_ANSWER_S = 0.2
_COMES_BACK_S = 2.0
_opened: weakref.WeakSet[Connection] = weakref.WeakSet()
_opening = threading.Lock()
# Settings that Postgres reports at connect without being asked.
_REPORTED = ("DateStyle", "IntervalStyle", "TimeZone")

POOLER_REMEDY = (
    "Give Penstock a URL that reaches Postgres itself, usually port 5432: logical replication, "
    "exported snapshots and session settings do not pass through a connection pooler."
)


def connect(
    url: str,
    *,
    application_name: str = "penstock",
    replication: bool = False,
    autocommit: bool = True,
    settings: Mapping[str, str] | None = None,
) -> Connection:
    """Connect with `SESSION_SETTINGS` and `settings`, or raise `SourceError` with what to do."""
    parameters = connection_parameters(
        url, application_name=application_name, replication=replication, settings=settings
    )
    try:
        connection: Connection = psycopg.connect(**parameters, autocommit=autocommit, prepare_threshold=None)
    except psycopg.Error as error:
        raise connection_error(error, url, replication=replication) from error
    reported = {name: connection.info.parameter_status(name) for name in _REPORTED}
    if any(value is not None and value != SESSION_SETTINGS[name] for name, value in reported.items()):
        connection.close()
        raise SourceError(
            f"The server at {safe_url(url)} did not take the session settings given at connect: "
            "a connection pooler stands in between.",
            remedy=POOLER_REMEDY,
        )
    with _opening:
        _opened.add(connection)
    return connection


def cancel_queries() -> None:
    """Cancel what other threads of this process have the source do; they get an error."""
    with _opening:
        connections = list(_opened)
    for connection in connections:
        if connection.info.transaction_status == TransactionStatus.ACTIVE:
            with suppress(psycopg.Error):
                connection.cancel_safe(timeout=CONNECT_TIMEOUT_S)


def end_session(connection: Connection) -> None:
    """Close a session in which another thread may wait for the server, however long.

    `close` would free what libpq reads in that thread, and break the process. So whoever is inside has a
    moment for its answer; then the socket is shut down under it, and it comes back with an error. One that
    does not even then keeps the session, which is freed when nobody has it any more.
    """
    if not connection.lock.acquire(timeout=_LAST_ANSWER_S):
        _shut_socket_down(connection)
        if not connection.lock.acquire(timeout=_COMES_BACK_S):
            return
    try:
        connection.close()
    finally:
        connection.lock.release()


def _shut_socket_down(connection: Connection) -> None:
    """Both ways, and without closing it: the number stays the session's own."""
    with suppress(psycopg.Error, OSError):  # it has ended, or ends at this moment
        number = connection.fileno()
        with socket.socket(fileno=socket.dup(number)) as same:
            if connection.fileno() == number:  # else libpq closed it meanwhile, and it may be anything by now
                same.shutdown(socket.SHUT_RDWR)


def connection_parameters(
    url: str,
    *,
    application_name: str = "penstock",
    replication: bool = False,
    settings: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The URL's own parameters (sslmode, hosts, …) with ours added; its `options` come first."""
    given = parse_url(url)
    options = startup_options({**SESSION_SETTINGS, **(settings or {})})
    defaults = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "tcp_user_timeout": 60_000,  # what is sent to a host that is gone would else be tried for long
    }
    own: dict[str, Any] = {
        "application_name": application_name,
        "client_encoding": "UTF8",
        "options": f"{given.get('options', '')} {options}".strip(),
    }
    if replication:
        own["replication"] = "database"
    return {**defaults, **given, **own}


def load_connection_settings(server_version: int) -> dict[str, str]:
    """What a connection that reads whole tables sets besides (correctness 12).

    `row_security=off` turns a silent filter into an error; no timeout may end a long read.
    """
    settings = {
        "row_security": "off",
        "statement_timeout": "0",
        "lock_timeout": "0",
        "idle_in_transaction_session_timeout": "0",
        "idle_session_timeout": "0",
    }
    if server_version >= 170000:
        settings["transaction_timeout"] = "0"
    return settings


def startup_options(settings: Mapping[str, str]) -> str:
    return " ".join(f"-c {name}={_escape_option(value)}" for name, value in settings.items())


def _escape_option(value: str) -> str:
    return re.sub(r"([\\\s])", r"\\\1", value)


def parse_url(url: str) -> dict[str, Any]:
    try:
        return dict(conninfo.conninfo_to_dict(url))
    except psycopg.Error:
        # The driver's message quotes the URL, password and all: it is not chained.
        raise ConfigError(
            "The source's url is not a Postgres connection URL.",
            remedy="Write it as postgresql://user:password@host:5432/database; "
            "special characters in the password must be percent-encoded.",
        ) from None


def safe_url(url: str) -> str:
    """The URL for people's eyes: the password is masked, parameters are left out."""
    given = parse_url(url)
    login = quote(str(given.get("user", "")), safe="")
    if given.get("password"):
        login += ":***"
    hosts = str(given.get("host") or given.get("hostaddr") or "localhost").split(",")
    ports = str(given.get("port") or "").split(",")
    if len(ports) < len(hosts):
        ports = ports[:1] * len(hosts)
    places = ",".join(
        f"{quote(host, safe='')}:{port}" if port else quote(host, safe="")
        for host, port in zip(hosts, ports, strict=False)
    )
    database = quote(str(given.get("dbname", "")), safe="")
    return f"postgresql://{login + '@' if login else ''}{places}/{database}"


def redact(text: str, url: str) -> str:
    """`text` without the secrets of `url`, in whatever spelling."""
    given = parse_url(url)
    for name in ("password", "sslpassword"):
        secret = str(given.get(name) or "")
        for spelling in {secret, quote(secret, safe="")} - {""}:
            text = text.replace(spelling, "***")
    return text


@contextmanager
def query_errors(doing: str, *, stream: str | None = None) -> Iterator[None]:
    """Turn what the driver raises while `doing` something into a `SourceError`.

    The driver's text is chained, not shown: it may quote row values.
    """
    try:
        yield
    except psycopg.Error as error:
        raise query_error(error, doing, stream=stream) from error


def query_error(error: psycopg.Error, doing: str, *, stream: str | None = None) -> SourceError:
    state = error.sqlstate or ""
    if state == "42501":
        message, remedy = f"Permission is missing for {doing}.", "Run `penstock check` to see which right."
    elif state == "40001":  # reads that only read meet no other kind of this than replay's
        return snapshot_lost(doing, stream)
    elif state == "55P03":
        message = f"A lock could not be had in time while {doing}."
        remedy = "Run the same command again when no long transaction uses the table."
    elif isinstance(error, psycopg.OperationalError):
        message = f"The connection to Postgres was lost while {doing}."
        remedy = "Run the same command again once the server answers; it goes on where it stopped."
    else:
        message, remedy = f"Postgres reported an error while {doing}.", "Run `penstock check`."
    return SourceError(
        message, remedy=remedy, stream=stream, detail=f"{type(error).__name__} ({state})" if state else ""
    )


def snapshot_lost(doing: str, stream: str | None = None) -> SnapshotLostError:
    return SnapshotLostError(
        f"The snapshot was lost while {doing}: its session was ended, or stood in the way of replay at a "
        "replica.",
        remedy="Run the same command again; the load goes on where that is exact. If it happens again at a "
        "replica, set hot_standby_feedback = on there, or raise max_standby_streaming_delay.",
        stream=stream,
    )


#: in the server's or libpq's message → what happened, what to do. The first that matches counts.
_CONNECTION_ERRORS: tuple[tuple[str, str, str], ...] = (
    (
        r"unsupported startup parameter|bouncer|no such database: .*replication",
        "A connection pooler answers there instead of Postgres.",
        POOLER_REMEDY,
    ),
    (
        r"password authentication failed|no password supplied|SASL|authentication failed",
        "The user name or the password is wrong.",
        "Check user and password in the source's url; a password written as ${PGPASSWORD} "
        "is taken from that variable.",
    ),
    (
        r'database ".*" does not exist',
        "There is no such database.",
        "Check the last part of the source's url; `psql -l` lists the databases.",
    ),
    (r'role ".*" does not exist', "There is no such role.", "Check the user in the source's url."),
    (
        r"no pg_hba\.conf entry|pg_hba\.conf rejects",
        "The server does not let this user in from this host (pg_hba.conf).",
        "Add a line to the server's pg_hba.conf for this user and host; for replication connections a line "
        "for the database itself is the one that counts. Or try another sslmode.",
    ),
    (
        r"max_wal_senders",
        "All replication connections of the server are in use.",
        "Raise max_wal_senders at the server, or stop a replica or consumer that is not needed.",
    ),
    (
        r"too many clients|remaining connection slots|too many connections",
        "The server has no connection left.",
        "Raise max_connections (or the role's or database's limit), or close connections that are not used.",
    ),
    (
        r"permission denied to start WAL sender|must be superuser or replication role",
        "The role may not replicate.",
        "As a superuser run: ALTER ROLE <role> REPLICATION "
        "(on a managed service, grant its replication role).",
    ),
    (
        r"permission denied for database",
        "The role may not connect to this database.",
        "As its owner run: GRANT CONNECT ON DATABASE <database> TO <role>.",
    ),
    (
        r"starting up|shutting down|not yet accepting|recovery mode|not accepting connections",
        "The server is starting up or shutting down.",
        "Try again in a moment.",
    ),
    (
        r"could not translate host name|Name or service not known|name resolution|nodename nor servname",
        "The host name is not known.",
        "Check the host in the source's url.",
    ),
    (
        r"\bSSL\b|certificate|\bTLS\b",
        "No secure connection could be agreed on (TLS).",
        "Set sslmode (and sslrootcert) in the source's url to what the server offers, "
        "for instance ?sslmode=require.",
    ),
    (
        r"Connection refused|No such file or directory|No route to host|Network is unreachable|"
        r"timeout expired|timed out|Connection reset|closed the connection unexpectedly",
        "The server cannot be reached.",
        "Check host and port in the source's url, that the server is running and listens on that address, "
        "and that no firewall stands in between.",
    ),
)


def connection_error(error: psycopg.Error, url: str, *, replication: bool = False) -> SourceError:
    """What went wrong at connect. A connection message holds no row values, so it is shown, redacted."""
    text = str(error)
    what = "Could not open a replication connection to" if replication else "Could not connect to"
    where = f"{what} {safe_url(url)}."
    detail = redact(text.strip().splitlines()[0] if text.strip() else "", url)
    for pattern, message, remedy in _CONNECTION_ERRORS:
        if re.search(pattern, text):
            return SourceError(f"{where} {message}", remedy=remedy, detail=detail)
    return SourceError(where, remedy="Try the same URL with psql.", detail=detail)

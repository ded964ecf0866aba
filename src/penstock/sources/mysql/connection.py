"""Connections to MySQL and MariaDB that all behave alike, and errors people can act on.

What shapes values and comparisons is fixed on every connection: the time zone is UTC, texts are utf8mb4,
no SQL mode is on (so that zero dates can be read and compared, and CHAR is sent without padding), a
statement may take as long as it takes, and the server waits for a slow reader. Files of ours are never
sent (LOCAL INFILE).

TLS by `?ssl_mode=`, as MySQL's own clients name it: `preferred` (the default: if the server has it),
`required`, `verify_ca`, `verify_identity`, `disabled`; with `ssl_ca`, `ssl_cert` and `ssl_key`. A mode
that asks for TLS is checked after the login too: no driver may fall back without a word.
"""

from __future__ import annotations

import re
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from weakref import WeakKeyDictionary

import pymysql
from pymysql.constants import CR, ER

from penstock.core.errors import ConfigError, PenstockError, SourceError, TableChangedError

Connection: TypeAlias = "pymysql.Connection[Any]"
Row: TypeAlias = tuple[Any, ...]

CONNECT_TIMEOUT_S = 30
_READ_TIMEOUT_S = 3600  # of one answer's silence: a server that sorts or waits for a lock says nothing
_PORT = 3306
_SSL_MODES = ("disabled", "preferred", "required", "verify_ca", "verify_identity")
_OPTIONS = ("ssl_mode", "ssl_ca", "ssl_cert", "ssl_key", "connect_timeout")
_SETTINGS: Mapping[str, str] = {
    "time_zone": "'+00:00'",
    "sql_mode": "''",
    "sql_auto_is_null": "0",
    "sql_select_limit": "18446744073709551615",
    "lock_wait_timeout": "600",
    "net_write_timeout": "86400",  # `sync` reads the log on when its loads are done
    "net_read_timeout": "600",
    "wait_timeout": "86400",
}
#: No limit to how long a statement runs; statistics of tables as they are now, not of yesterday.
_MYSQL_SETTINGS: Mapping[str, str] = {"max_execution_time": "0", "information_schema_stats_expiry": "0"}
_MARIADB_SETTINGS: Mapping[str, str] = {"max_statement_time": "0"}
_UNKNOWN_VARIABLE = 1193

_opening = threading.Lock()
_opened: WeakKeyDictionary[Connection, str] = WeakKeyDictionary()  # with their URLs


@dataclass(frozen=True, slots=True)
class Address:
    """What a URL says. Its password is never printed."""

    user: str
    password: str = field(repr=False)
    host: str
    port: int
    database: str
    ssl_mode: str
    ssl_files: Mapping[str, str]
    connect_timeout_s: int


def parse_url(url: str) -> Address:
    """`mysql://user:password@host:3306/database?ssl_mode=required`; `mariadb://` means the same."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORT
        options = {name.replace("-", "_").lower(): value for name, value in parse_qsl(parts.query)}
        timeout_s = int(options.get("connect_timeout", CONNECT_TIMEOUT_S))
    except ValueError:
        raise _not_a_url() from None  # the message would quote the URL, password and all
    if parts.scheme not in ("mysql", "mariadb") or not parts.hostname:
        raise _not_a_url()
    mode = options.get("ssl_mode", "preferred").replace("-", "_").lower()
    unknown = sorted(set(options) - set(_OPTIONS))
    if mode not in _SSL_MODES or unknown:
        what = f"the option {unknown[0]}" if unknown else "another ssl_mode than there is"
        raise ConfigError(
            f"The source's url has {what}.",
            remedy=f"Options are {', '.join(_OPTIONS)}; ssl_mode is one of {', '.join(_SSL_MODES)}.",
        )
    files = {name: value for name, value in options.items() if name in ("ssl_ca", "ssl_cert", "ssl_key")}
    return Address(
        unquote(parts.username or ""),
        unquote(parts.password or ""),
        parts.hostname,
        port,
        unquote(parts.path.lstrip("/")),
        mode,
        files,
        timeout_s,
    )


def safe_url(url: str) -> str:
    """The URL for people's eyes: the password is masked, options are left out."""
    address = parse_url(url)
    login = quote(address.user, safe="") + (":***" if address.password else "")
    host = f"[{address.host}]" if ":" in address.host else address.host
    place = f"{host}:{address.port}/{quote(address.database, safe='')}"
    return f"mysql://{login + '@' if login else ''}{place}"


def connect(
    url: str, *, program_name: str = "penstock", answers_within_s: float = _READ_TIMEOUT_S
) -> Connection:
    """Logged in and set up; each statement is a transaction of its own unless one is begun.

    `answers_within_s`: a server that says nothing for longer has ended the session.
    """
    address = parse_url(url)
    try:
        connection: Connection = pymysql.connect(
            host=address.host,
            port=address.port,
            user=address.user,
            password=address.password,
            database=address.database or None,
            charset="utf8mb4",
            autocommit=True,
            local_infile=False,
            connect_timeout=address.connect_timeout_s,
            read_timeout=answers_within_s,
            program_name=program_name,
            **_tls(address),
        )
    except (pymysql.err.MySQLError, OSError, RuntimeError) as error:
        raise connection_error(error, url) from error
    try:
        _require_tls(connection, address, url)
        _set_up(connection)
    except BaseException:
        connection.close()
        raise
    with _opening:
        _opened[connection] = url
    return connection


def cancel_queries() -> None:
    """Cancel what other threads of this process have the source do; they get an error."""
    with _opening:
        connections = [(connection, url) for connection, url in _opened.items() if connection.open]
    for connection, url in connections:
        cancel(connection, url)


def cancel(connection: Connection, url: str) -> None:
    """Have what it does end with an error, from another thread. A server that is away has ended it."""
    with suppress(PenstockError), closing(connect(url, program_name="penstock cancel")) as other:
        rows(other, f"KILL QUERY {cast('Any', connection).thread_id()}", doing="ending a query")


def is_mariadb(connection: Connection) -> bool:
    return "mariadb" in _announced(connection).lower()


def server_version(connection: Connection) -> tuple[int, int, int]:
    """MariaDB may announce itself as 5.5.5-10.11.2-MariaDB, for replicas that know no other."""
    shown = _announced(connection).removeprefix("5.5.5-")
    numbers = [int(number) for number in re.findall(r"\d+", shown)[:3]]
    major, minor, patch = (*numbers, 0, 0, 0)[:3]
    return major, minor, patch


def _announced(connection: Any) -> str:
    return str(connection.get_server_info())


def rows(
    connection: Connection, query: str, parameters: Sequence[Any] | None = None, *, doing: str
) -> list[Row]:
    """The answer to a small query."""
    with query_errors(doing), connection.cursor() as cursor:
        cursor.execute(query, parameters)
        return list(cursor.fetchall())


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@contextmanager
def query_errors(doing: str, *, stream: str | None = None) -> Iterator[None]:
    """Turn what the driver raises while `doing` something into a `SourceError`.

    The server's text is chained, not shown: it may quote row values.
    """
    try:
        yield
    except (pymysql.err.MySQLError, OSError) as error:
        raise query_error(code_of(error), doing, stream=stream) from error


def code_of(error: BaseException) -> int:
    code = error.args[0] if error.args else 0
    return code if isinstance(code, int) and isinstance(error, pymysql.err.MySQLError) else 0


_LOST = (0, CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST, 1053, 1159, 1161, 1927, 4031)
_ENDED = (1317, 3024, 1969)
_DENIED = (ER.TABLEACCESS_DENIED_ERROR, ER.COLUMNACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR, 1227, 1370)
_GONE = (ER.NO_SUCH_TABLE, ER.BAD_FIELD_ERROR, ER.BAD_DB_ERROR, 1412)


def has_ended(error: BaseException) -> bool:
    """Whether it says that the session, or what it was doing, was ended: by the network or by somebody."""
    cause = error.__cause__
    if not isinstance(error, SourceError) or not isinstance(cause, pymysql.err.MySQLError | OSError):
        return False
    return code_of(cause) in (*_LOST, *_ENDED)


def query_error(code: int, doing: str, *, stream: str | None = None) -> SourceError:
    if code in _DENIED:
        message, remedy = f"Permission is missing for {doing}.", "Run `penstock check` to see which right."
    elif code == ER.LOCK_WAIT_TIMEOUT:
        message = f"A lock could not be had in time while {doing}."
        remedy = "Run the same command again when no long transaction uses the table."
    elif code in _GONE:
        return TableChangedError(
            f"The table or one of its columns was changed while {doing}.",
            remedy="Run the same command again.",
            stream=stream,
        )
    elif code in _ENDED:
        message = f"The server ended the statement while {doing}."
        remedy = "Run the same command again; if it goes on, something at the server kills long statements."
    elif code in _LOST:
        message = f"The connection to the server was lost while {doing}."
        remedy = "Run the same command again once the server answers; it goes on where it stopped."
    else:
        message, remedy = f"The server reported an error while {doing}.", "Run `penstock check`."
    return SourceError(message, remedy=remedy, stream=stream, detail=f"Error code {code}." if code else "")


#: code of server or driver → what happened, what to do
_CONNECTION_CODES: Mapping[int, tuple[str, str]] = {
    ER.ACCESS_DENIED_ERROR: (
        "The user name or the password is wrong, or the user may not come from this host.",
        "Check user and password in the source's url; special characters must be percent-encoded. "
        "Users are known by name and host: see `SELECT user, host FROM mysql.user`.",
    ),
    ER.DBACCESS_DENIED_ERROR: (
        "The user may not use this database.",
        "Grant it: GRANT SELECT ON <database>.* TO <user>.",
    ),
    ER.BAD_DB_ERROR: (
        "There is no such database.",
        "Check the last part of the source's url; SHOW DATABASES lists them.",
    ),
    ER.CON_COUNT_ERROR: (
        "The server has no connection left.",
        "Raise max_connections, or close connections that are not used.",
    ),
    1203: ("The user has no connection left.", "Raise max_user_connections for this user."),
    1226: ("The user has no connection left.", "Raise max_user_connections for this user."),
    1129: ("The server blocks this host after failed connections.", "Run FLUSH HOSTS at the server."),
    1130: ("The server lets nobody in from this host.", "Create the user for this host (user@host)."),
    1053: ("The server is shutting down.", "Try again in a moment."),
    3159: ("The server wants TLS.", "Set ?ssl_mode=required in the source's url."),
    1862: ("The user's password has expired.", "Set a new one: ALTER USER … IDENTIFIED BY …."),
    3118: ("The user's account is locked.", "Unlock it: ALTER USER … ACCOUNT UNLOCK."),
    CR.CR_SSL_CONNECTION_ERROR: (
        "No secure connection could be agreed on (TLS).",
        "Set ssl_mode and ssl_ca in the source's url to what the server offers.",
    ),
}
_UNREACHABLE = (
    "The server cannot be reached.",
    "Check host and port in the source's url, that the server is running and listens on that address, "
    "and that no firewall stands in between.",
)


def connection_error(error: BaseException, url: str) -> SourceError:
    """What went wrong at connect. The driver's words are chained only: they name users and hosts."""
    where = f"Could not connect to {safe_url(url)}."
    code = code_of(error)
    cause = error.__cause__ or error.__context__
    if isinstance(error, ssl.SSLError) or isinstance(cause, ssl.SSLError) or "SSL" in str(error):
        code = CR.CR_SSL_CONNECTION_ERROR
    if isinstance(error, RuntimeError):  # the driver lacks a package that a way to log in needs
        return SourceError(
            f"{where} The way this user logs in needs TLS or the package cryptography.",
            remedy="Set ?ssl_mode=required in the source's url, or install penstock[mysql].",
        )
    message, remedy = _CONNECTION_CODES.get(code, _UNREACHABLE)
    return SourceError(f"{where} {message}", remedy=remedy, detail=f"Error code {code}." if code else "")


def _not_a_url() -> ConfigError:
    return ConfigError(
        "The source's url is not a MySQL connection URL.",
        remedy="Write it as mysql://user:password@host:3306/database; "
        "special characters in the password must be percent-encoded.",
    )


def _tls(address: Address) -> dict[str, Any]:
    if address.ssl_mode == "disabled":
        return {"ssl_disabled": True}
    if address.ssl_mode == "preferred" and not address.ssl_files:
        return {}
    verified = address.ssl_mode.startswith("verify")
    given = {name.removeprefix("ssl_"): value for name, value in address.ssl_files.items()}
    return {
        "ssl": {
            **given,
            "check_hostname": address.ssl_mode == "verify_identity",
            "verify_mode": "required" if verified else "none",
        }
    }


def _require_tls(connection: Connection, address: Address, url: str) -> None:
    wanted = address.ssl_mode in ("required", "verify_ca", "verify_identity")
    if wanted and not isinstance(getattr(connection, "_sock", None), ssl.SSLSocket):
        message, remedy = _CONNECTION_CODES[CR.CR_SSL_CONNECTION_ERROR]
        raise SourceError(f"Could not connect to {safe_url(url)}. {message}", remedy=remedy)


def _set_up(connection: Connection) -> None:
    special = _MARIADB_SETTINGS if is_mariadb(connection) else _MYSQL_SETTINGS
    with query_errors("setting up the session"), connection.cursor() as cursor:
        settings = ", ".join(f"SESSION {name} = {value}" for name, value in _SETTINGS.items())
        cursor.execute(f"SET {settings}")
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        for name, value in special.items():
            with _unknown_is_fine():
                cursor.execute(f"SET SESSION {name} = {value}")


@contextmanager
def _unknown_is_fine() -> Iterator[None]:
    """For variables that not every version has."""
    try:
        yield
    except pymysql.err.MySQLError as error:
        if code_of(error) != _UNKNOWN_VARIABLE:
            raise

"""Connections to MongoDB that read what a majority has, and errors people can act on.

Whatever the URL says of read concern and read preference, we read what a majority of the members holds, at
the primary: what a change stream never tells must not be in a load, and all commands of a cursor go to one
member. Its other options, TLS and timeouts among them, count. Secrets are in the URL only; no message has
them.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from bson.codec_options import DatetimeConversion
from pymongo import MongoClient
from pymongo.errors import (
    AutoReconnect,
    ConfigurationError,
    ConnectionFailure,
    InvalidURI,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)

from penstock.core.errors import ConfigError, SnapshotLostError, SourceError

Client: TypeAlias = MongoClient[dict[str, Any]]

CONNECT_TIMEOUT_MS = 30_000
_opened: weakref.WeakSet[Client] = weakref.WeakSet()
_opening = threading.Lock()
_URL = re.compile(r"(mongodb(?:\+srv)?)://(?:([^@/]*)@)?([^/?@]+)(?:/([^?]*))?(?:\?.*)?", re.DOTALL)
_UNAUTHORIZED, _NAMESPACE_NOT_FOUND, _PLAN_KILLED = 13, 26, 175
_AUTHENTICATION_FAILED = frozenset({18, 8000, 11})
#: The server no longer has the state that was asked for, or not yet.
_SNAPSHOT_GONE = frozenset({239, 246})


def connect(url: str, *, application_name: str = "penstock") -> Client:
    """A client that has reached the server once, or a `SourceError` with what to do. Close it when done."""
    shown = safe_url(url)
    try:
        client: Client = MongoClient(url, **_options(url, application_name))
    except (InvalidURI, ConfigurationError, ValueError, TypeError) as error:
        # The driver's message may quote the URL, password and all: it is not chained.
        if "DNS" in str(error) or "resolution" in str(error):
            raise SourceError(
                f"The servers of {shown} could not be found by DNS.",
                remedy="Check the host in the source's url; mongodb+srv needs its SRV record.",
            ) from None
        raise _no_url() from None
    try:
        client.admin.command("ping")
    except PyMongoError as error:
        client.close()
        raise connection_error(error, url) from error
    with _opening:
        _opened.add(client)
    return client


def cancel_queries() -> None:
    """Have what other threads of this process ask for end with an error: at their next command.

    A command that runs is answered first. Those that read are short, a batch each.
    """
    with _opening:
        clients = list(_opened)
        _opened.clear()
    for client in clients:
        client.close()


def _options(url: str, application_name: str) -> dict[str, Any]:
    """What is ours, and of what the URL may say otherwise, what it does not say."""
    defaults = {"serverSelectionTimeoutMS": CONNECT_TIMEOUT_MS, "connectTimeoutMS": CONNECT_TIMEOUT_MS}
    given = url.partition("?")[2].lower()
    return {
        **{name: value for name, value in defaults.items() if f"{name.lower()}=" not in given},
        "appname": application_name,
        "readConcernLevel": "majority",
        "readPreference": "primary",
        "datetime_conversion": DatetimeConversion.DATETIME_AUTO,
    }


def database_of(url: str) -> str:
    """The database that the URL names; empty: none."""
    found = _URL.fullmatch(url)
    return (found[4] or "") if found else ""


def safe_url(url: str) -> str:
    """The URL for people's eyes: the password is masked, options are left out."""
    found = _URL.fullmatch(url)
    if found is None:
        raise _no_url()
    scheme, login, hosts, database = found.groups()
    user, colon, _ = (login or "").partition(":")
    shown = f"{user}{':***' if colon else ''}@" if login else ""
    return f"{scheme}://{shown}{hosts}/{database or ''}"


def _no_url() -> ConfigError:
    return ConfigError(
        "The source's url is not a MongoDB connection URL.",
        remedy="Write it as mongodb://user:password@host:27017/database or mongodb+srv://…; "
        "special characters in the password must be percent-encoded.",
    )


#: in the driver's message → what happened, what to do. The first that matches counts.
_CONNECTION_ERRORS: tuple[tuple[str, str, str], ...] = (
    (
        r"Name or service not known|name resolution|nodename nor servname|getaddrinfo",
        "The host name is not known.",
        "Check the host in the source's url.",
    ),
    (
        r"SSL|TLS|certificate",
        "No secure connection could be agreed on (TLS).",
        "Set tls=true (and tlsCAFile) in the source's url to what the server offers, or leave it out if the "
        "server has none.",
    ),
    (
        r"replica set|No replica set members|replicaSet",
        "The servers there are not of the replica set that the url names, or it has no primary.",
        "Check replicaSet in the source's url (`rs.status()` shows its name), and that there is a primary.",
    ),
    (
        r"Connection refused|No route to host|Network is unreachable|timed out|timeout|reset|closed",
        "The server cannot be reached.",
        "Check host and port in the source's url, that the server is running and listens on that address, "
        "that it speaks TLS exactly if the url says so, and that no firewall stands in between.",
    ),
)


def connection_error(error: PyMongoError, url: str) -> SourceError:
    where = f"Could not connect to {safe_url(url)}."
    if isinstance(error, OperationFailure) and error.code in _AUTHENTICATION_FAILED:
        return SourceError(
            f"{where} The user name or the password is wrong.",
            remedy="Check user, password and authSource in the source's url: users are mostly made in the "
            "database admin, which authSource=admin says.",
        )
    if isinstance(error, ServerSelectionTimeoutError | ConnectionFailure):
        for pattern, message, remedy in _CONNECTION_ERRORS:
            if re.search(pattern, str(error)):
                return SourceError(f"{where} {message}", remedy=remedy)
    return SourceError(where, remedy="Try the same URL with mongosh.", detail=_kind(error))


@contextmanager
def query_errors(doing: str, *, stream: str | None = None) -> Iterator[None]:
    """Turn what the driver raises while `doing` something into a `SourceError`.

    The driver's text is chained, not shown: it may quote values.
    """
    try:
        yield
    except PyMongoError as error:
        raise query_error(error, doing, stream=stream) from error


def query_error(error: PyMongoError, doing: str, *, stream: str | None = None) -> SourceError:
    code = error.code if isinstance(error, OperationFailure) else None
    if code in _SNAPSHOT_GONE:
        return SnapshotLostError(
            f"The server no longer has the state of its data that was asked for while {doing}.",
            remedy="Run the same command again. If it happens again, raise "
            "minSnapshotHistoryWindowInSeconds at the server, or have smaller chunks.",
            stream=stream,
        )
    if code == _UNAUTHORIZED:
        message, remedy = f"Permission is missing for {doing}.", "Run `penstock check` to see which right."
    elif code in (_NAMESPACE_NOT_FOUND, _PLAN_KILLED):
        message = f"The collection was dropped or renamed while {doing}."
        remedy = "Run the same command again; `penstock discover` lists the collections."
    elif isinstance(error, AutoReconnect | ConnectionFailure):
        message = f"The connection to MongoDB was lost while {doing}."
        remedy = "Run the same command again once the server answers; it goes on where it stopped."
    else:
        message, remedy = f"MongoDB reported an error while {doing}.", "Run `penstock check`."
    return SourceError(message, remedy=remedy, stream=stream, detail=_kind(error))


def _kind(error: PyMongoError) -> str:
    code = error.code if isinstance(error, OperationFailure) else None
    return f"{type(error).__name__} ({code})" if code else type(error).__name__

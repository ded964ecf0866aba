"""Whether the source allows what the pipeline asks for, before anything is changed.

Every prerequisite has its own finding with its own remedy. Steps that do not depend on each other are asked
separately, so that one failure does not hide the next; only a server that cannot be reached ends the check
early. Nothing is created or altered, and no right is needed beyond those that a pipeline needs: what else the
server keeps to itself is said to be unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pymongo.errors import OperationFailure

from penstock.core.errors import PenstockError
from penstock.sources.finding import Finding, StreamNeed, findings_of
from penstock.sources.mongodb import control
from penstock.sources.mongodb.catalog import discover
from penstock.sources.mongodb.check_streams import Server, check_streams, grant
from penstock.sources.mongodb.connection import Client, connect, query_errors, safe_url
from penstock.sources.mongodb.remembered import RememberedFields
from penstock.sources.mongodb.rights import Rights, read_rights
from penstock.sources.mongodb.types import Layout

SERVER_VERSION_MIN = (5, 0)  # from which on a load can be read as of a time, on any connection
OPLOG_HOURS_MIN = 24
_FULL_SHARE = 0.9  # of its size, from which on the oplog drops what is old


@dataclass(frozen=True, slots=True)
class Oplog:
    """Seconds since 1970 of its first and last entry; its size, and that at which it drops entries."""

    first_s: int
    last_s: int
    bytes: int
    bytes_max: int

    @property
    def hours(self) -> float:
        return (self.last_s - self.first_s) / 3600

    @property
    def drops_entries(self) -> bool:
        return self.bytes >= _FULL_SHARE * self.bytes_max


@dataclass(frozen=True, slots=True)
class _Asked:
    client: Client
    url: str
    database: str
    layout: Layout
    remembered: RememberedFields | None
    needs: Sequence[StreamNeed]
    rights: Rights
    hello: Mapping[str, Any]

    @property
    def is_sharded(self) -> bool:
        return self.hello.get("msg") == "isdbgrid"

    @property
    def has_oplog(self) -> bool:
        return "setName" in self.hello

    @property
    def version(self) -> tuple[int, ...]:
        with query_errors("asking for the server's version"):
            return tuple(self.client.admin.command("buildInfo")["versionArray"][:3])


def check(
    url: str,
    streams: Sequence[StreamNeed],
    *,
    database: str = "",
    layout: Layout = "document",
    remembered: RememberedFields | None = None,
) -> list[Finding]:
    """All findings, in the order in which a person would mend them."""
    try:
        client = connect(url, application_name="penstock check")
    except PenstockError as error:
        return [Finding.of_error("connection", error)]
    with client:
        try:
            with query_errors("asking what the server is"):
                hello = client.admin.command("hello")
            asked = _Asked(client, url, database, layout, remembered, streams, read_rights(client), hello)
        except PenstockError as error:
            return [Finding.of_error("connection", error)]
        connected = Finding("connection", "ok", f"Connected to {safe_url(url)}.")
        return [connected, *findings_of(_steps(asked), asked)]


_Step = Callable[[_Asked], Iterator[Finding]]


def _steps(asked: _Asked) -> list[tuple[str, _Step]]:
    steps: list[tuple[str, _Step]] = [("server version", _check_version), ("control", _check_control)]
    if any(need.reads_log for need in asked.needs):
        steps += [
            ("replica set", _check_replica_set),
            ("feature compatibility version", _check_compatibility),
            ("oplog", _check_oplog),
        ]
    return [*steps, ("streams", _check_streams)]


def _check_version(asked: _Asked) -> Iterator[Finding]:
    shown = f"MongoDB {'.'.join(map(str, asked.version))}"
    if asked.version >= SERVER_VERSION_MIN:
        yield Finding("server version", "ok", f"{shown}.")
    else:
        least = ".".join(map(str, SERVER_VERSION_MIN))
        yield Finding(
            "server version", "error", f"{shown} is too old.", f"Upgrade the server to {least} or later."
        )


def _check_replica_set(asked: _Asked) -> Iterator[Finding]:
    if asked.is_sharded:
        yield Finding(
            "replica set",
            "warning",
            "A sharded cluster: by what MongoDB promises, changes come from all shards, in order. Penstock's "
            "tests have not been run with one.",
            "Compare the tables with the cluster before you rely on them: `penstock verify`.",
        )
    elif asked.has_oplog:
        yield Finding("replica set", "ok", f"The server is of the replica set {asked.hello['setName']}.")
    else:
        yield Finding(
            "replica set",
            "error",
            "The server is not of a replica set: it keeps no oplog, so changes cannot be followed.",
            "Start it with --replSet (a set of one member will do) and run rs.initiate() once; "
            "or set `mode: full_refresh` for the streams.",
        )


def _check_compatibility(asked: _Asked) -> Iterator[Finding]:
    """Images need a feature compatibility version of 6.0; a server may run with an older one."""
    name = "feature compatibility version"
    try:
        answer = asked.client.admin.command("getParameter", featureCompatibilityVersion=1)
    except OperationFailure:
        yield Finding(
            name,
            "ok",
            "This user may not see the feature compatibility version; nothing but pre- and post-images "
            "depends on it.",
        )
        return
    found = str(answer["featureCompatibilityVersion"]["version"])
    if found == ".".join(map(str, asked.version[:2])):
        yield Finding(name, "ok", f"The feature compatibility version is {found}.")
    else:
        yield Finding(
            name,
            "warning",
            f"The feature compatibility version is {found}, lower than the server's version: what is new in "
            "that cannot be used.",
            "After an upgrade that is done run setFeatureCompatibilityVersion at the server.",
        )


def _check_oplog(asked: _Asked) -> Iterator[Finding]:
    if asked.is_sharded:
        yield Finding(
            "oplog",
            "ok",
            "Each shard has its own; see at the shards that it keeps enough (rs.printReplicationInfo()).",
        )
    elif asked.has_oplog:
        try:
            yield judge_oplog(read_oplog(asked.client))
        except OperationFailure:
            yield Finding(
                "oplog",
                "warning",
                "This user may not read the oplog's first and last entry: how long the server keeps changes "
                "is not known.",
                'As an administrator grant {role: "read", db: "local"}, or look with '
                "rs.printReplicationInfo().",
            )


def read_oplog(client: Client) -> Oplog:
    """Raises what the driver does: not every user may."""
    entries = client["local"]["oplog.rs"]
    ends = (entries.find({}, {"ts": 1}).sort("$natural", order).limit(1) for order in (1, -1))
    first, last = (next(iter(end))["ts"].time for end in ends)
    stats = client["local"].command("collStats", "oplog.rs")
    return Oplog(first, last, int(stats["size"]), int(stats["maxSize"]))


def judge_oplog(oplog: Oplog) -> Finding:
    """A young oplog is short and grows: only one that drops entries says how long a pipeline may stop."""
    shown = f"The oplog reaches back {oplog.hours:,.1f} hours"
    if not oplog.drops_entries:
        return Finding("oplog", "ok", f"{shown}, and has not dropped an entry yet.")
    if oplog.hours >= OPLOG_HOURS_MIN:
        return Finding("oplog", "ok", f"{shown}: a pipeline that stops for longer must load again.")
    return Finding(
        "oplog",
        "warning",
        f"{shown} only: a pipeline that stops for longer must load again.",
        f"Let it keep more: db.adminCommand({{replSetResizeOplog: 1, minRetentionHours: {OPLOG_HOURS_MIN}}}) "
        "on each member, or a larger `size` (in megabytes).",
    )


def _check_control(asked: _Asked) -> Iterator[Finding]:
    """No write is tried: what the user may do is said by its rights."""
    rights, name = asked.rights, f"{control.DATABASE}.{control.COLLECTION}"
    lacking = [
        action for action in control.ACTIONS if not rights.may(action, control.DATABASE, control.COLLECTION)
    ]
    if lacking:
        yield Finding(
            "control",
            "error",
            f"Penstock keeps a small collection at the source, {name}, and the user {rights.user} may not "
            f"use it ({', '.join(lacking)}).",
            grant(rights, control.DATABASE, "readWrite"),
        )
    else:
        yield Finding("control", "ok", f"Penstock can keep its collection {name}.")


def _may_list(asked: _Asked, database: str) -> bool:
    return asked.rights.may("listCollections", database)


def _check_streams(asked: _Asked) -> Iterator[Finding]:
    streams = [need.stream for need in asked.needs]
    patterns = [each for each in streams if "*" in each.namespace or _may_list(asked, each.namespace)]
    tables = discover(
        asked.client,
        patterns,
        database=asked.database,
        layout=asked.layout,
        remembered=asked.remembered,
    )
    yield from check_streams(asked.needs, tables, Server(asked.version, asked.rights, asked.database))

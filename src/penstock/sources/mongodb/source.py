"""MongoDB as a source: collections and their changes behind the interface that all sources share.

A position is a cluster time of 64 bits (`core.resume_token`). Where a pipeline reads one `database`, its
streams are of that one; without, of the whole cluster. Elections fork nothing: what a majority holds is never
taken back, and nothing else is read. So there is one timeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from time import monotonic

from penstock.core.errors import PositionGoneError, SourceError
from penstock.core.position import Lsn
from penstock.core.resume_token import ResumeToken
from penstock.core.stream import StreamId
from penstock.sources.base import Identity, LogHold, TableEnd
from penstock.sources.finding import Finding, StreamNeed
from penstock.sources.mongodb.catalog import CollectionInfo, discover
from penstock.sources.mongodb.change_stream import Place, StreamOptions, stream_of, time_of
from penstock.sources.mongodb.check import check
from penstock.sources.mongodb.check_streams import Server, check_streams
from penstock.sources.mongodb.connection import Client, cancel_queries, connect, query_errors
from penstock.sources.mongodb.control import COLLECTION, DATABASE, Control, position_now
from penstock.sources.mongodb.remembered import RememberedFields
from penstock.sources.mongodb.rights import Scope, read_rights
from penstock.sources.mongodb.table_end import position_behind
from penstock.sources.mongodb.table_reading import MongoReading
from penstock.sources.mongodb.types import Layout
from penstock.sources.tables import SourceLeaf, SourceTable

TIMELINE = 1
_VERSION_PARTS = 100
_AT_ONCE_MS, _WAIT_MS = 1, 200
_PASSED_WITHIN_S = 60.0
_NO_DOCUMENTS = {"$project": {"fullDocument": 0}}
_SNAPSHOT_AGE_S = 120.0


@dataclass(frozen=True, slots=True)
class MongoCatalog:
    tables: Sequence[CollectionInfo]
    server: Server

    def check(self, needs: Sequence[StreamNeed]) -> list[Finding]:
        return check_streams(needs, self.tables, self.server)


@dataclass(frozen=True, slots=True, repr=False)
class MongoSource:
    """`name` tells pipelines of one cluster apart; `database` empty: all that the user may see.

    `remembered`: in the layout `fields`, what decides which columns there are.
    """

    url: str
    name: str
    database: str = ""
    layout: Layout = "document"
    remembered: RememberedFields | None = None
    application_name: str = "penstock"

    @property
    def snapshot_age_max_s(self) -> float | None:
        """The server forgets its states after five minutes: loads leave them before."""
        return _SNAPSHOT_AGE_S

    @property
    def log_may_be_ahead(self) -> bool:
        """Of an update there is the document as it is when the event is read."""
        return True

    def catalog(
        self, patterns: Sequence[StreamId] | None = None, *, at_replica: bool = False
    ) -> MongoCatalog:
        with self._connect() as client:
            tables = self._discover(client, patterns)
            named = {name for name in patterns or () if not name.is_pattern}
            if not named <= {table.stream for table in tables}:
                known = {table.stream for table in tables}
                tables += [table for table in self._discover(client) if table.stream not in known]
            return MongoCatalog(tables, Server(read_version(client), read_rights(client), self.database))

    def tables(self, patterns: Sequence[StreamId] | None = None) -> Sequence[CollectionInfo]:
        with self._connect() as client:
            return self._discover(client, patterns)

    def check(self, needs: Sequence[StreamNeed]) -> list[Finding]:
        return check(self.url, needs, database=self.database, layout=self.layout, remembered=self.remembered)

    def check_kept(self, position: Lsn) -> Finding | None:
        try:
            with self._connect() as client:
                require_kept(client, self.database, position)
        except PositionGoneError as error:
            return Finding.of_error("state", error)
        return None

    def is_captured(self, table: SourceTable) -> bool:
        """A stream brings the changes of all collections that have some."""
        return table.can_be_captured

    def lacking(self, tables: Sequence[SourceTable]) -> Sequence[SourceError]:
        """Documents come whole."""
        return ()

    def identity(self) -> Identity:
        with self._connect() as client:
            version = version_number(read_version(client))
            return Identity(Control(client).cluster_id(), TIMELINE, version, position_now(client))

    def switch_point(self, before: int, now: int) -> Lsn | None:
        return None

    def hold(self) -> LogHold | None:
        with self._connect() as client:
            held = Control(client).held_from(self.name)
        return None if held is None else LogHold(self.name, held, None)

    def drop_hold(self) -> bool:
        with self._connect() as client:
            return Control(client).drop(self.name)

    def teardown(self) -> list[str]:
        return [f"{self.name} in {DATABASE}.{COLLECTION}"] if self.drop_hold() else []

    def positions_behind(self, ends: Sequence[TableEnd]) -> list[Lsn]:
        for end in ends:
            if not end.table.can_be_captured:
                raise SourceError(
                    f"There is no change stream of a {end.table.kind}.",
                    remedy="Set `mode: full_refresh` for it, or leave it out.",
                    stream=str(end.table.stream),
                )
        with self._connect() as client:
            return [position_behind(client, end.table.stream, ResumeToken(end.place.text)) for end in ends]

    def attached_leaves(self, leaves: Sequence[SourceLeaf]) -> list[SourceLeaf]:
        """A collection has no parts that could come from elsewhere."""
        return []

    def reading(self, version: int | None = None) -> MongoReading:
        return MongoReading(self.url, self.database, self.layout, self.remembered)

    def cancel_queries(self) -> None:
        cancel_queries()

    def _connect(self) -> Client:
        return connect(self.url, application_name=self.application_name)

    def _discover(self, client: Client, patterns: Sequence[StreamId] | None = None) -> list[CollectionInfo]:
        return discover(
            client, patterns, database=self.database, layout=self.layout, remembered=self.remembered
        )


def require_kept(client: Client, database: str, position: Lsn) -> None:
    """That the server has everything from there on, of all shards; else `PositionGoneError`.

    It says so itself, when it looks for the first event: of any collection, so that this is no long search.
    There is one oplog for all collections: where the user may follow some of them only, any of those will do.
    """
    scope = _followable(client, database)[0]
    options = StreamOptions(batch_rows=1)
    with closing(stream_of(client, scope, options, Place(at=int(position)))) as log:
        log.read(_AT_ONCE_MS)


def has_change_at(client: Client, database: str, time: Lsn) -> bool:
    """Whether the server has a change of that cluster time, which no two of its transactions have; of one
    that is older than the oplog, True.

    What is read begins there, of any collection: so it comes first, or something later shows that it is not
    there, an event or the token of a batch without any. Where the user may follow single collections only,
    the change may be of any of those.
    """
    return any(_has_change_at(client, scope, time) for scope in _followable(client, database))


def _has_change_at(client: Client, scope: Scope, time: Lsn) -> bool:
    options = StreamOptions(batch_rows=1, pipeline=(_NO_DOCUMENTS,))
    deadline = monotonic() + _PASSED_WITHIN_S
    with closing(stream_of(client, scope, options, Place(at=int(time)))) as log:
        try:
            while monotonic() < deadline:
                batch = log.read(_WAIT_MS)
                if batch.rows:
                    return int(batch.parts[0].times[0]) == int(time)
                if batch.place.token is not None and time_of(batch.place.token) > time:
                    return False
        except PositionGoneError:
            return True
    raise SourceError(
        "The change stream does not come past the last change that was read before.",
        remedy="Run the same command again; look whether all members answer.",
    )


def _followable(client: Client, database: str) -> tuple[Scope, ...]:
    """One that may follow nothing is told so by the server."""
    return read_rights(client).followable(database) or (Scope(database),)


def read_version(client: Client) -> tuple[int, int, int]:
    with query_errors("asking for the server's version"):
        major, minor, patch = client.admin.command("buildInfo")["versionArray"][:3]
    return major, minor, patch


def version_number(version: tuple[int, int, int]) -> int:
    """6.0.5 as 60005."""
    major, minor, patch = version
    return (major * _VERSION_PARTS + minor) * _VERSION_PARTS + patch

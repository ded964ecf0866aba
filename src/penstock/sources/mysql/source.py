"""MySQL and MariaDB as a source: tables and binary log behind the interface that all sources share.

The server keeps its log for as long as it likes, and for nobody in particular: there is nothing to make at
the source, to hold, to acknowledge or to drop.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from penstock.core.binlog_place import BinlogPlace
from penstock.core.errors import PositionGoneError, SourceError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.sources.base import Identity, LogHold, TableEnd
from penstock.sources.finding import Finding, StreamNeed
from penstock.sources.mysql.catalog import MysqlTable, discover
from penstock.sources.mysql.check import check, read_facts
from penstock.sources.mysql.check_streams import LogFacts, check_streams
from penstock.sources.mysql.connection import cancel_queries, connect, parse_url, server_version
from penstock.sources.mysql.server import LogFiles, clock, read_files, server_uuid
from penstock.sources.mysql.table_reading import MysqlReading
from penstock.sources.tables import SourceLeaf, SourceTable, found_or_all


@dataclass(frozen=True, slots=True)
class MysqlCatalog:
    tables: Sequence[MysqlTable]
    facts: LogFacts

    def check(self, needs: Sequence[StreamNeed]) -> list[Finding]:
        return check_streams(needs, self.tables, self.facts)


@dataclass(frozen=True, slots=True, repr=False)
class MysqlSource:
    """`server_id`: under which the log is read; no server and no other pipeline may have it."""

    url: str
    name: str
    server_id: int
    application_name: str = "penstock"

    @property
    def snapshot_age_max_s(self) -> float | None:
        return None

    @property
    def database(self) -> str:
        return parse_url(self.url).database

    @property
    def log_may_be_ahead(self) -> bool:
        return False

    def catalog(
        self, patterns: Sequence[StreamId] | None = None, *, at_replica: bool = False
    ) -> MysqlCatalog:
        with closing(connect(self.url, program_name=self.application_name)) as connection:
            tables = found_or_all(partial(discover, connection), patterns)
            return MysqlCatalog(tables, read_facts(connection, tables))

    def tables(self, patterns: Sequence[StreamId] | None = None) -> Sequence[MysqlTable]:
        with closing(connect(self.url, program_name=self.application_name)) as connection:
            return discover(connection, patterns)

    def check(self, needs: Sequence[StreamNeed]) -> list[Finding]:
        return check(self.url, needs, server_id=self.server_id, pipeline=self.name)

    def check_kept(self, position: Lsn) -> Finding | None:
        """Nothing is kept for a pipeline. Whether the log still has a place is decided by its GTID set, where
        the log is opened: a number alone means another place on another server."""
        return None

    def is_captured(self, table: SourceTable) -> bool:
        """The log has all tables."""
        return True

    def lacking(self, tables: Sequence[SourceTable]) -> Sequence[SourceError]:
        """The log has all columns."""
        return ()

    def identity(self) -> Identity:
        with closing(connect(self.url)) as connection:
            major, minor, patch = server_version(connection)
            version = 10_000 * major + 100 * minor + patch
            return Identity(server_uuid(connection), 1, version, clock(connection))

    def switch_point(self, before: int, now: int) -> Lsn | None:
        return None

    def hold(self) -> LogHold | None:
        return None

    def drop_hold(self) -> bool:
        return False

    def teardown(self) -> list[str]:
        return []

    def positions_behind(self, ends: Sequence[TableEnd]) -> list[Lsn]:
        """Places of another tool are those of the server it read from, which must be this one. Whether one is
        between two transactions is seen when the log is read up to it."""
        with closing(connect(self.url)) as connection:
            files = read_files(connection)
        sizes = dict(files.sizes)
        for end in ends:
            place = BinlogPlace.parse(end.place.text)
            if place.pos > sizes.get(place.name, -1):
                raise _not_there(end.table.stream, place, files)
        return [end.position for end in ends]

    def attached_leaves(self, leaves: Sequence[SourceLeaf]) -> list[SourceLeaf]:
        """A table is one leaf, whatever its partitions."""
        return []

    def reading(self, version: int | None = None) -> MysqlReading:
        return MysqlReading(self.url)

    def cancel_queries(self) -> None:
        cancel_queries()


def _not_there(stream: StreamId, place: BinlogPlace, files: LogFiles) -> PositionGoneError:
    return PositionGoneError(
        f"The binary log does not have {place}: the server has it from {files.sizes[0][0]} to {files.last}.",
        stream=str(stream),
        remedy="Connect to the server that was read until now; if that has purged it, set `mode: cdc` to "
        "load the table anew.",
    )

"""Postgres as a source: slot, publication and tables behind the interface that all sources share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

from penstock.core.errors import SourceError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.sources.base import Identity, LogHold, TableEnd
from penstock.sources.finding import Finding, StreamNeed
from penstock.sources.postgres.catalog import TableInfo, discover
from penstock.sources.postgres.check import check
from penstock.sources.postgres.check_streams import check_streams
from penstock.sources.postgres.connection import cancel_queries, connect, query_errors
from penstock.sources.postgres.handover import require_published, require_slot
from penstock.sources.postgres.publication import (
    PublicationInfo,
    PublicationManager,
    PublicationMode,
    read_publication,
)
from penstock.sources.postgres.slots import drop_slot, read_slot
from penstock.sources.postgres.table_reading import PostgresReading
from penstock.sources.postgres.timelines import WRITTEN_TIMELINE, epoch_at, switch_point_at
from penstock.sources.tables import SourceLeaf, SourceTable, found_or_all

_ATTACHED = """
    SELECT DISTINCT inherits.inhrelid::bigint
    FROM pg_inherits AS inherits JOIN pg_attribute AS attribute ON attribute.attrelid = inherits.inhrelid
    WHERE inherits.inhrelid = ANY(%s::bigint[]::oid[]) AND CASE
        WHEN attribute.attnum = -1 THEN attribute.xmin::text <> inherits.xmin::text  -- never written again
        WHEN attribute.attnum > 0
            THEN attribute.xmin::text = inherits.xmin::text AND attribute.cmin::text = inherits.cmin::text
        ELSE false END
"""
_IDENTITY = f"""
    SELECT system_identifier::text,
        CASE WHEN pg_is_in_recovery() THEN timeline_id ELSE {WRITTEN_TIMELINE} END,
        CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END::text
    FROM pg_control_system(), pg_control_checkpoint()
"""


@dataclass(frozen=True, slots=True)
class PostgresCatalog:
    """`role`: who asked."""

    tables: Sequence[TableInfo]
    publication_name: str
    publication: PublicationInfo | None
    mode: PublicationMode
    role: str

    def check(self, needs: Sequence[StreamNeed]) -> list[Finding]:
        return check_streams(
            needs, self.tables, self.publication_name, self.publication, mode=self.mode, role=self.role
        )


@dataclass(frozen=True, slots=True, repr=False)
class PostgresSource:
    url: str
    replica_url: str | None
    slot: str
    publication: str
    publication_mode: PublicationMode
    application_name: str = "penstock"

    @property
    def name(self) -> str:
        return self.slot

    @property
    def snapshot_age_max_s(self) -> float | None:
        return None

    @property
    def database(self) -> str:
        return urlsplit(self.url).path.lstrip("/")

    @property
    def log_may_be_ahead(self) -> bool:
        return False

    def catalog(
        self, patterns: Sequence[StreamId] | None = None, *, at_replica: bool = False
    ) -> PostgresCatalog:
        url = self.replica_url if at_replica and self.replica_url is not None else self.url
        with connect(url, application_name=self.application_name) as connection:
            tables = found_or_all(partial(discover, connection), patterns)
            publication = read_publication(connection, self.publication)
            return PostgresCatalog(
                tables, self.publication, publication, self.publication_mode, connection.info.user
            )

    def tables(self, patterns: Sequence[StreamId] | None = None) -> Sequence[TableInfo]:
        with connect(self.url, application_name=self.application_name) as connection:
            return discover(connection, patterns)

    def check(self, needs: Sequence[StreamNeed]) -> list[Finding]:
        return check(
            self.url,
            self.slot,
            self.publication,
            needs,
            publication_mode=self.publication_mode,
            replica_url=self.replica_url,
        )

    def check_kept(self, position: Lsn) -> Finding | None:
        if self.hold() is not None:
            return None
        return Finding(
            "state",
            "error",
            f"The state goes on from {position}, but the slot {self.slot} is gone.",
            "Run `penstock resync --diff --yes` to go on under a new slot and write only the rows that "
            "differ, or `penstock resync --yes` to load the tables again.",
        )

    def is_captured(self, table: SourceTable) -> bool:
        return self.publication in table.publications

    def lacking(self, tables: Sequence[SourceTable]) -> Sequence[SourceError]:
        generated = [table for table in tables if _has_generated(table)]
        if not generated:
            return []
        with connect(self.url) as connection:
            manager = PublicationManager(connection, self.publication, self.publication_mode, self.slot)
            return manager.lacking([table.stream for table in generated])

    def identity(self) -> Identity:
        with connect(self.url) as connection:
            with query_errors("reading pg_control_system"):
                row = connection.execute(_IDENTITY.encode()).fetchone()
            assert row is not None
            system_id, timeline, position = row
            began = epoch_at(timeline, Lsn.parse(position))
            return Identity(system_id, timeline, connection.info.server_version, began)

    def switch_point(self, before: int, now: int) -> Lsn | None:
        return switch_point_at(self.url, before, now)

    def hold(self) -> LogHold | None:
        with connect(self.url) as connection:
            slot = read_slot(connection, self.slot)
        return (
            None if slot is None else LogHold(slot.name, slot.confirmed_flush, slot.retained_bytes, slot.lost)
        )

    def drop_hold(self) -> bool:
        with connect(self.url) as connection:
            return drop_slot(connection, self.slot)

    def teardown(self) -> list[str]:
        dropped = []
        with connect(self.url) as connection:
            if drop_slot(connection, self.slot):
                dropped.append(f"slot {self.slot}")
            if PublicationManager(connection, self.publication).drop():
                dropped.append(f"publication {self.publication}")
        return dropped

    def positions_behind(self, ends: Sequence[TableEnd]) -> list[Lsn]:
        positions = [end.position for end in ends]
        with connect(self.url) as connection:
            require_slot(connection, self.slot, min(positions))
            for end in ends:
                require_published(connection, self.publication, end.table)
        return positions

    def attached_leaves(self, leaves: Sequence[SourceLeaf]) -> list[SourceLeaf]:
        """Created and attached are told apart by the catalog itself.

        CREATE TABLE … PARTITION OF writes the table's columns and its place in the tree in one transaction;
        ATTACH comes in a later one, or, in the same one, writes the columns again by the same command that
        writes the place in the tree.
        """
        if not leaves:
            return []
        with connect(self.url) as connection, query_errors("reading the partitions"):
            rows = connection.execute(_ATTACHED, ([leaf.oid for leaf in leaves],)).fetchall()
        oids = {oid for (oid,) in rows}
        return [leaf for leaf in leaves if leaf.oid in oids]

    def reading(self, version: int | None = None) -> PostgresReading:
        return PostgresReading(self.replica_url or self.url, version)

    def cancel_queries(self) -> None:
        cancel_queries()


def _has_generated(table: SourceTable) -> bool:
    return any(column.generated for column in (*table.schema.columns, *table.schema.hidden))

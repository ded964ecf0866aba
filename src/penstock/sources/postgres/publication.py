"""The publication: which tables' changes the slot shows. Changed here and nowhere else (correctness 37).

Rules that hold whatever is asked:

- A table is added in a transaction of its own: lock with a short `lock_timeout` (a statement that waits
  for a lock makes the application wait behind it), REPLICA IDENTITY FULL on every leaf if asked for
  (it is not inherited), then ADD TABLE. Snapshots are taken after that commit, by others.
- A table whose rows the log could not name is never added: its UPDATE and DELETE would fail in the
  application (correctness 30). So would they, from Postgres 18 on, if old rows had a generated column that
  is not published, by whichever publication: ours publishes stored ones (`publish_generated_columns`) before
  a table is added or its identity is changed, and a table with virtual ones, which cannot be, or with stored
  ones that another publication leaves out, never gets REPLICA IDENTITY FULL.
- No row filter, no column list, no FOR ALL TABLES; nothing is removed.
- A missing publication is created only while there is no slot. A slot older than its publication would
  fail, or skip what was written in between, so that is an error (correctness 9).
- `manual` mode changes nothing at the source; it says which statements a person has to run.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import psycopg
from psycopg import sql

from penstock.core.errors import SourceError
from penstock.core.stream import StreamId
from penstock.sources.postgres.catalog import TableInfo, discover
from penstock.sources.postgres.connection import Connection, query_error, query_errors
from penstock.sources.postgres.slots import read_slot

PublicationMode = Literal["auto", "manual"]

OPERATIONS = frozenset({"insert", "update", "delete", "truncate"})
GENERATED_FROM = 180000  # the server's version that can publish stored generated columns
LOCK_TIMEOUT_MS = 2000
LOCK_ATTEMPTS = 5
LOCK_PAUSE_S = 0.5

_READ = """
SELECT p.puballtables, p.pubviaroot, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate,
       pg_has_role(p.pubowner, 'USAGE'), pg_get_userbyid(p.pubowner),
       coalesce(to_jsonb(p) ->> 'pubgencols', 'n') = 's'
FROM pg_publication AS p WHERE p.pubname = %s
"""
# `pubgencols` exists from version 18 on.
# prqual and prattrs exist from version 15 on. A filter on a root holds for its leaves too.
_FILTERED = """
SELECT r.prrelid::bigint, to_jsonb(r) ->> 'prqual' IS NOT NULL, to_jsonb(r) ->> 'prattrs' IS NOT NULL
FROM pg_publication_rel AS r JOIN pg_publication AS p ON p.oid = r.prpubid
WHERE p.pubname = %s
  AND (to_jsonb(r) ->> 'prqual' IS NOT NULL OR to_jsonb(r) ->> 'prattrs' IS NOT NULL)
"""
# Every publication that a table is in must have what identifies its rows.
_LEAVES_OUT_GENERATED = """
SELECT p.pubname FROM pg_publication AS p
WHERE p.pubname = ANY(%s) AND (p.pubupdate OR p.pubdelete) AND to_jsonb(p) ->> 'pubgencols' = 'n'
ORDER BY p.pubname LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class PublicationInfo:
    name: str
    all_tables: bool
    via_root: bool
    operations: frozenset[str]
    owned: bool
    owner: str
    row_filters: frozenset[int]  # relation oids
    column_lists: frozenset[int]
    publishes_generated: bool  # stored ones

    def filter_of(self, table: TableInfo) -> str | None:
        """What keeps part of this table out of the log, if anything does."""
        oids = {table.oid, *(leaf.oid for leaf in table.leaves)}
        if oids & self.row_filters:
            return "a row filter"
        return "a column list" if oids & self.column_lists else None


def read_publication(connection: Connection, name: str) -> PublicationInfo | None:
    with query_errors("reading pg_publication"):
        row = connection.execute(_READ, (name,)).fetchone()
        if row is None:
            return None
        filtered = connection.execute(_FILTERED, (name,)).fetchall()
    operations = ("insert", "update", "delete", "truncate")
    return PublicationInfo(
        name=name,
        all_tables=row[0],
        via_root=row[1],
        operations=frozenset(op for op, published in zip(operations, row[2:6], strict=True) if published),
        owned=row[6],
        owner=row[7],
        row_filters=frozenset(oid for oid, has_filter, _ in filtered if has_filter),
        column_lists=frozenset(oid for oid, _, has_list in filtered if has_list),
        publishes_generated=row[8],
    )


class PublicationManager:
    """Brings the publication `name` to where it holds the wanted streams.

    `connection` is in autocommit. `slot` is the slot that reads through it.
    """

    def __init__(
        self, connection: Connection, name: str, mode: PublicationMode = "auto", slot: str | None = None
    ) -> None:
        self._connection = connection
        self._name = name
        self._mode = mode
        self._slot = slot

    def ensure(
        self, streams: Sequence[StreamId], full_identity: Collection[StreamId] = ()
    ) -> tuple[StreamId, ...]:
        """Publish `streams` and nothing less; returns those that were added by this call.

        Every condition is looked at before the first change, so a refusal changes nothing. What a publication
        that we may not change leaves out of tables that are in it is for `lacking` to say.
        """
        publication = self._found()
        if publication is None:
            self._refuse_if_slot_exists()
            if self._mode == "manual":
                raise self._manual_error("does not exist", self._create_statement())
        tables = self._tables(streams)
        for table in tables:
            self._require_publishable(table, publication, table.stream in full_identity)
        generated = [table for table in tables if table.publishes_generated]
        work = [table for table in tables if self._lacks(table, table.stream in full_identity)]
        if self._mode == "manual":
            assert publication is not None
            if work:
                raise self._manual_work_error(work, full_identity)
            return ()
        if publication is None:
            publication = self._created()
        if not publication.publishes_generated and self._has_generated and (generated or publication.owned):
            self._publish_generated([table for table in generated if table in work])
        for table in work:
            self._publish(table, full=table.stream in full_identity)
        return tuple(table.stream for table in work if self._name not in table.publications)

    def lacking(self, streams: Sequence[StreamId]) -> list[SourceError]:
        """Of these tables, those whose changes come without generated columns, each with the way out."""
        publication = read_publication(self._connection, self._name)
        if not streams or publication is None or publication.publishes_generated:
            return []
        return [
            self._unpublished_error(table)
            for table in discover(self._connection, streams)
            if table.publishes_generated and self._name in table.publications
        ]

    def refused(self, streams: Sequence[StreamId]) -> list[SourceError]:
        """What `ensure` would leave `lacking`: it sets what a publication of ours leaves out."""
        publication = read_publication(self._connection, self._name)
        if self._mode != "manual" and publication is not None and publication.owned:
            return []
        return self.lacking(streams)

    def drop(self) -> bool:
        """Drop the publication; False if there is none. Only on a person's command."""
        if read_publication(self._connection, self._name) is None:
            return False
        with query_errors(f"dropping the publication {self._name}"):
            self._connection.execute(
                sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(self._name))
            )
        return True

    # -- conditions ---------------------------------------------------------------------------

    def _refuse_if_slot_exists(self) -> None:
        if self._slot is not None and read_slot(self._connection, self._slot) is not None:
            raise SourceError(
                f"The publication {self._name} is missing, but the replication slot {self._slot} exists: "
                "changes made since the publication was dropped would be skipped.",
                remedy="Run `penstock resync --yes`: it drops the slot and loads again under a new one.",
            )

    def _found(self) -> PublicationInfo | None:
        publication = read_publication(self._connection, self._name)
        if publication is not None:
            self._require_whole(publication)
        return publication

    def _require_whole(self, publication: PublicationInfo) -> None:
        missing = sorted(OPERATIONS - publication.operations)
        if missing:
            raise SourceError(
                f"The publication {self._name} leaves out {', '.join(missing)}.",
                remedy=f"Run: ALTER PUBLICATION {quoted(self._name)} "
                "SET (publish = 'insert, update, delete, truncate').",
            )
        if publication.via_root:
            raise SourceError(
                f"The publication {self._name} publishes partitions as their root, "
                "which hides a TRUNCATE of one partition.",
                remedy=f"Run: ALTER PUBLICATION {quoted(self._name)} "
                "SET (publish_via_partition_root = false).",
            )

    def _tables(self, streams: Sequence[StreamId]) -> list[TableInfo]:
        found = {table.stream: table for table in discover(self._connection, streams)} if streams else {}
        for stream in streams:
            if stream not in found:
                raise SourceError(
                    "There is no such table at the source.",
                    stream=str(stream),
                    remedy="Correct the name in penstock.yaml; `penstock discover` lists the tables.",
                )
        return [found[stream] for stream in dict.fromkeys(streams)]

    def _require_publishable(self, table: TableInfo, publication: PublicationInfo | None, full: bool) -> None:
        foreign_leaf = any(leaf.kind != "table" for leaf in table.leaves)
        if not table.can_be_captured or foreign_leaf:
            kind = "unlogged" if table.unlogged else "temporary" if table.temporary else "foreign"
            kind = kind if table.kind in ("table", "partitioned") else table.kind
            raise SourceError(
                f"Postgres keeps no log of a {kind} table, so its changes cannot be followed.",
                stream=str(table.stream),
                remedy="Set `mode: full_refresh` for it, or leave it out.",
            )
        if not table.has_identity and not full and self._name not in table.publications:
            raise SourceError(
                "The table has no replica identity; published like this, UPDATE and DELETE "
                "would fail in the application.",
                stream=str(table.stream),
                remedy="Add a primary key (not deferrable), or set `replica_identity: full` for this stream.",
            )
        has_full = full or any(leaf.replica_identity == "f" for leaf in table.leaves)
        if has_full and self._lacks(table, full):
            self._require_publishable_whole(table)
        filtered = publication.filter_of(table) if publication else None
        if filtered is not None:
            raise SourceError(
                f"The publication {self._name} has {filtered} for this table.",
                stream=str(table.stream),
                remedy=f"Run: ALTER PUBLICATION {quoted(self._name)} DROP TABLE {quoted(table.stream)}; "
                "Penstock then adds it whole.",
            )

    def _require_publishable_whole(self, table: TableInfo) -> None:
        """That UPDATE and DELETE go on in the application when old rows are logged with every column."""
        if table.virtual_columns:
            raise SourceError(
                f"The table has virtual generated columns ({', '.join(table.virtual_columns)}), which "
                "Postgres cannot publish; published with REPLICA IDENTITY FULL, UPDATE and DELETE would "
                "fail in the application.",
                stream=str(table.stream),
                remedy="Make them STORED, or leave the table its primary key as replica identity.",
            )
        others = set[str]().union(*(leaf.publications for leaf in table.leaves)) - {self._name}
        if not table.publishes_generated or not others:
            return
        with query_errors("reading pg_publication"):
            row = self._connection.execute(_LEAVES_OUT_GENERATED, (list(others),)).fetchone()
        if row is not None:
            raise SourceError(
                f"The table has stored generated columns, which the publication {row[0]} leaves out: with "
                "REPLICA IDENTITY FULL, UPDATE and DELETE would fail in the application.",
                stream=str(table.stream),
                remedy=f"As its owner run: {publish_generated_statement(row[0])}; or leave the table its "
                "primary key as replica identity.",
            )

    def _lacks(self, table: TableInfo, full: bool) -> bool:
        identity = full and any(leaf.replica_identity != "f" for leaf in table.leaves)
        return identity or self._name not in table.publications

    # -- changes ------------------------------------------------------------------------------

    def _created(self) -> PublicationInfo:
        try:
            self._connection.execute(self._create_statement().encode())
        except psycopg.errors.DuplicateObject:
            pass  # someone was faster; what it lacks is added next
        except psycopg.errors.InsufficientPrivilege as error:
            raise SourceError(
                f"The role may not create the publication {self._name}.",
                remedy=f"As the database's owner run: {self._create_statement()}; "
                "or GRANT CREATE ON DATABASE to the role.",
            ) from error
        except psycopg.Error as error:
            raise query_error(error, f"creating the publication {self._name}") from error
        publication = self._found()
        if publication is None:
            raise SourceError(
                f"The publication {self._name} was dropped as soon as it was there.",
                remedy="Run the same command again.",
            )
        return publication

    def _create_statement(self) -> str:
        return create_statement(self._name, self._connection.info.server_version)

    @property
    def _has_generated(self) -> bool:
        """Whether the server can publish them: for a table to come, too."""
        return self._connection.info.server_version >= GENERATED_FROM

    def _publish_generated(self, tables: Sequence[TableInfo]) -> None:
        """Generated columns are in the log from now on; they were not until now.

        `tables`: those that are to be changed, which would have the application's statements fail.
        """
        try:
            self._connection.execute(publish_generated_statement(self._name).encode())
        except psycopg.errors.InsufficientPrivilege as error:
            if tables:
                raise self._unpublished_error(tables[0]) from error
        except psycopg.Error as error:
            raise query_error(error, f"changing the publication {self._name}") from error

    def _publish(self, table: TableInfo, *, full: bool) -> None:
        for attempt in range(1, LOCK_ATTEMPTS + 1):
            try:
                with self._change_errors(table):
                    self._publish_once(table, full=full)
                return
            except psycopg.errors.LockNotAvailable as error:
                if attempt == LOCK_ATTEMPTS:
                    raise SourceError(
                        f"The table could not be locked within {LOCK_TIMEOUT_MS} ms, {attempt} times.",
                        stream=str(table.stream),
                        remedy="Run the same command again when no long transaction uses the table "
                        "(SELECT * FROM pg_stat_activity shows them).",
                    ) from error
                time.sleep(LOCK_PAUSE_S)

    def _publish_once(self, table: TableInfo, *, full: bool) -> None:
        root = identifier(table.stream)
        with self._connection.transaction():
            self._connection.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}".encode())
            # Keeps partitions from being attached until we are done; readers and writers go on.
            self._connection.execute(
                sql.SQL("LOCK TABLE ONLY {} IN SHARE UPDATE EXCLUSIVE MODE").format(root)
            )
            current = self._tables([table.stream])[0]
            for leaf in current.leaves if full else ():
                if leaf.replica_identity != "f":
                    self._connection.execute(
                        sql.SQL("ALTER TABLE ONLY {} REPLICA IDENTITY FULL").format(identifier(leaf.stream))
                    )
            if self._name not in current.publications:
                self._connection.execute(
                    sql.SQL("ALTER PUBLICATION {} ADD TABLE ONLY {}").format(sql.Identifier(self._name), root)
                )

    @contextmanager
    def _change_errors(self, table: TableInfo) -> Iterator[None]:
        try:
            yield
        except psycopg.errors.LockNotAvailable:
            raise
        except psycopg.errors.InsufficientPrivilege as error:
            owners = ", ".join(sorted({leaf.owner for leaf in table.leaves}))
            raise SourceError(
                f"The role may not add the table to the publication {self._name}: that needs the table's "
                "and the publication's owner.",
                stream=str(table.stream),
                remedy=f"Run as {owners}: ALTER PUBLICATION {quoted(self._name)} "
                f"ADD TABLE {quoted(table.stream)}; or grant that role to Penstock's.",
            ) from error
        except psycopg.Error as error:
            raise query_error(error, "changing the publication", stream=str(table.stream)) from error

    def _unpublished_error(self, table: TableInfo) -> SourceError:
        return SourceError(
            f"The publication {self._name} leaves out generated columns, and the table has stored ones.",
            stream=str(table.stream),
            remedy=f"As the publication's owner run: {publish_generated_statement(self._name)}.",
        )

    # -- manual mode --------------------------------------------------------------------------

    def _manual_error(self, what: str, statements: str, stream: str | None = None) -> SourceError:
        return SourceError(
            f"The publication {self._name} {what}, and publications are managed by hand "
            "(publication_mode: manual).",
            remedy=f"Run: {statements}",
            stream=stream,
        )

    def _manual_work_error(self, work: Sequence[TableInfo], full: Collection[StreamId]) -> SourceError:
        statements = []
        for table in work:
            if table.stream in full:
                statements += [
                    f"ALTER TABLE ONLY {quoted(leaf.stream)} REPLICA IDENTITY FULL;"
                    for leaf in table.leaves
                    if leaf.replica_identity != "f"
                ]
            if self._name not in table.publications:
                statements.append(
                    f"ALTER PUBLICATION {quoted(self._name)} ADD TABLE ONLY {quoted(table.stream)};"
                )
        names = ", ".join(str(table.stream) for table in work)
        only = str(work[0].stream) if len(work) == 1 else None
        return self._manual_error(f"is not ready for {names}", " ".join(statements), only)


def create_statement(name: str, server_version: int) -> str:
    generated = ", publish_generated_columns = stored" if server_version >= GENERATED_FROM else ""
    return (
        f"CREATE PUBLICATION {quoted(name)} WITH (publish = 'insert, update, delete, truncate', "
        f"publish_via_partition_root = false{generated})"
    )


def publish_generated_statement(name: str) -> str:
    return f"ALTER PUBLICATION {quoted(name)} SET (publish_generated_columns = stored)"


def identifier(stream: StreamId) -> sql.Identifier:
    return sql.Identifier(stream.namespace, stream.name)


def quoted(name: str | StreamId) -> str:
    """A name as one types it in SQL."""
    parts = (name,) if isinstance(name, str) else (name.namespace, name.name)
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)

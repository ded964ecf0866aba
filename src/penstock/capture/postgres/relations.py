"""Which table, in which version, a row in the stream belongs to.

A Relation message says how the rows after it look, but neither the attribute numbers, by which a
rename is told from drop + add, nor the root of a partition, nor the value that older rows read for an
added column (correctness 29, 36). Those come from the catalog, which may have moved on since. Where its
columns are not exactly those of the message, in their order, a name may stand for another column by now:
then every attribute number is 0, for "not sure". Generated columns may be missing in a message, where they
are not published: the version says which, so that nobody takes them for dropped ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.capture.log_reading import CapturedTable
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.sources.postgres.catalog import RelationSchema, relation_schema
from penstock.sources.postgres.connection import Connection, query_errors
from penstock.sources.postgres.pgoutput import RelationColumn, RelationMessage

# Walks pg_inherits itself: pg_partition_tree would wait for locks on the partitions.
_LEAVES = """
WITH RECURSIVE up AS (
    SELECT %(oid)s::oid AS oid
    UNION ALL
    SELECT i.inhparent FROM up JOIN pg_inherits AS i ON i.inhrelid = up.oid
), root AS (
    SELECT oid FROM up WHERE NOT EXISTS (SELECT FROM pg_inherits AS i WHERE i.inhrelid = up.oid)
), tree AS (
    SELECT oid FROM root
    UNION ALL
    SELECT i.inhrelid FROM tree JOIN pg_inherits AS i ON i.inhparent = tree.oid
)
SELECT c.oid::bigint FROM tree JOIN pg_class AS c ON c.oid = tree.oid WHERE c.relkind <> 'p'
"""
# The base of a domain, so that readers see the type the text is of.
_TYPE = """
WITH RECURSIVE base AS (
    SELECT oid, typname, typtype, typbasetype, typtypmod, typstorage, %(modifier)s::int AS modifier
    FROM pg_type WHERE oid = %(oid)s
    UNION ALL
    SELECT t.oid, t.typname, t.typtype, t.typbasetype, t.typtypmod, t.typstorage,
           CASE WHEN base.modifier = -1 THEN base.typtypmod ELSE base.modifier END
    FROM base JOIN pg_type AS t ON t.oid = base.typbasetype WHERE base.typtype = 'd'
)
SELECT oid::bigint, typname, format_type(oid, modifier), typstorage <> 'p', modifier
FROM base WHERE typtype <> 'd'
"""


class Relations:
    """The tables seen on one replication connection, by relation oid."""

    def __init__(self, streams: Sequence[StreamId], connect: Callable[[], Connection]) -> None:
        self._streams = frozenset(stream for stream in streams if not stream.is_pattern)
        self._patterns = [stream for stream in streams if stream.is_pattern]
        self._connect = connect
        self._connection: Connection | None = None
        self._tables: dict[int, CapturedTable | None] = {}
        self._additions = 0
        self._left_out: dict[int, tuple[int, RelationMessage]] = {}  # with the additions that were known

    def add(self, streams: Sequence[StreamId]) -> None:
        """Keep the rows of these too, from the next batch on. May be called from any thread.

        A table that was published before, and left out, was described by the server, which need not do so
        again: such ones are looked at again when their next rows come.
        """
        self._streams |= frozenset(stream for stream in streams if not stream.is_pattern)
        self._patterns += [stream for stream in streams if stream.is_pattern]
        self._additions += 1

    def knows(self, oid: int) -> bool:
        return oid in self._tables

    def table(self, oid: int) -> CapturedTable | None:
        """The table as last described; None if its rows are not ours to keep."""
        found = self._tables[oid]
        if found is None and (left := self._left_out.get(oid)) is not None and left[0] != self._additions:
            found = self._tables[oid] = self.describe(left[1])
        return found

    def describe(self, message: RelationMessage) -> CapturedTable | None:
        """The table a message describes. Does not remember it: see `remember`.

        Asks the catalog each time: a column dropped and added again looks the same in the message.
        """
        additions = self._additions
        catalog = relation_schema(self._catalog(), message.oid)
        leaf = StreamId(message.namespace, message.name)
        root = catalog.root if catalog is not None else self._last_known_root(message.oid) or leaf
        # A partition may be wanted by its own name; a pattern means tables, not their partitions.
        if not self._is_wanted(root) and leaf not in self._streams:
            self._left_out[message.oid] = (additions, message)
            return None
        is_present = catalog is not None and _shows(catalog, message)
        columns = tuple(self._column(each, catalog if is_present else None) for each in message.columns)
        flagged = tuple(column.name for column in message.columns if column.part_of_key)
        in_catalog = catalog.schema if catalog is not None else None
        if message.replica_identity == "f":  # every column is flagged then
            names = {column.name for column in message.columns}
            key = in_catalog.key if in_catalog is not None and names.issuperset(in_catalog.key) else ()
        else:
            key = _in_order(flagged, in_catalog)
        schema = TableSchema(
            stream=root,
            columns=columns,
            key=key,
            replica_identity=message.replica_identity,
            deferrable_key=in_catalog.deferrable_key if in_catalog is not None else False,
            relation_oid=in_catalog.relation_oid if in_catalog is not None else message.oid,
            storage=in_catalog.storage if in_catalog is not None and is_present else "",
            unpublished=() if in_catalog is None else _unpublished(in_catalog, message),
        )
        return CapturedTable(schema, leaf)

    def remember(self, oid: int, table: CapturedTable | None) -> None:
        self._tables[oid] = table

    def leaves_of_root(self, oid: int) -> frozenset[int]:
        """The oids of all leaves of the table that `oid` is a leaf of (itself, if not partitioned)."""
        with query_errors("reading the catalog"):
            rows = self._catalog().execute(_LEAVES, {"oid": oid}).fetchall()
        return frozenset(row[0] for row in rows) or frozenset({oid})

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _catalog(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = self._connect()
        return self._connection

    def _is_wanted(self, stream: StreamId) -> bool:
        return stream in self._streams or any(pattern.matches(stream) for pattern in self._patterns)

    def _last_known_root(self, oid: int) -> StreamId | None:
        table = self._tables.get(oid)
        return table.schema.stream if table is not None else None

    def _column(self, column: RelationColumn, catalog: RelationSchema | None) -> SourceColumn:
        if catalog is not None:
            declared = catalog.declared_types.get(column.name)
            if declared == (column.type_oid, column.type_modifier) and column.name in catalog.schema.names:
                return catalog.schema.column(column.name)
        with query_errors("reading the catalog"):
            row = (
                self._catalog()
                .execute(_TYPE, {"oid": column.type_oid, "modifier": column.type_modifier})
                .fetchone()
            )
        if row is None:  # the type itself is gone: the text is all there is
            name = f"type {column.type_oid}"
            declared = (column.type_oid, column.type_modifier)
            return SourceColumn(column.name, *declared, name, name, toastable=True)
        oid, type_name, type_text, toastable, modifier = row
        return SourceColumn(column.name, oid, modifier, type_name, type_text, toastable=toastable)


def _shows(catalog: RelationSchema, message: RelationMessage) -> bool:
    """Whether the catalog's columns are those of the message, in its order."""
    of_message = [(each.name, each.type_oid, each.type_modifier) for each in message.columns]
    columns = catalog.schema.columns
    return any(
        of_message == [(each.name, *catalog.declared_types[each.name]) for each in shown]
        for shown in (columns, [each for each in columns if not each.generated])
    )


def _unpublished(catalog: TableSchema, message: RelationMessage) -> tuple[SourceColumn, ...]:
    """Generated columns that the catalog has and the rows do not."""
    names = {column.name for column in message.columns}
    return tuple(column for column in catalog.columns if column.generated and column.name not in names)


def _in_order(flagged: tuple[str, ...], catalog: TableSchema | None) -> tuple[str, ...]:
    """The key's columns in the key's own order where the catalog has the same ones."""
    if catalog is not None and set(catalog.key) == set(flagged):
        return catalog.key
    return flagged

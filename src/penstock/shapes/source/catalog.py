"""`TableCard`: what a shape needs to know of its table, and a cache of such cards.

A card is a value, read in one snapshot: a reconciler compares the card a shape was made with and the present
one. Cards are written with the definitions of shapes: a restart needs no answer from Postgres to serve what
it has.

`columns` has every column in the table's order, generated ones too; what a shape may select is `selectable`:
the log carries no virtual generated columns, and stored ones from Postgres 18 on (correctness 29). `key` is
the primary key in the order of its index, deferrable or not: shapes' tables have REPLICA IDENTITY FULL.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from psycopg.rows import dict_row

from penstock.core.errors import PenstockError
from penstock.core.schema import SourceColumn
from penstock.core.stream import StreamId
from penstock.shapes.shape import SnapshotProblem
from penstock.sources.postgres import catalog_queries
from penstock.sources.postgres.catalog import source_column
from penstock.sources.postgres.connection import Connection, query_errors

CARDS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class CardColumn:
    """`source` is the column as conditions and the log know it: below any domains."""

    source: SourceColumn
    type_name: str  # as declared, of an array its elements'
    dimensions: int  # 0: not an array
    modifier: int  # as declared; -1: none
    generated: bool = False  # and not in the log
    virtual: bool = False
    expression: str = ""  # of a generated column that is in the log: another one gave every row another value
    has_default: bool = False
    deterministic: bool = True  # its collation; others get 400 (correctness 46)
    labels: tuple[str, ...] = ()  # of an enum, in their order

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def not_null(self) -> bool:
        return not self.source.nullable

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source.to_json(),
            "type_name": self.type_name,
            "dimensions": self.dimensions,
            "modifier": self.modifier,
            "generated": self.generated,
            "virtual": self.virtual,
            "expression": self.expression,
            "has_default": self.has_default,
            "deterministic": self.deterministic,
            "labels": list(self.labels),
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> CardColumn:
        source = SourceColumn.from_json(fields["source"])
        return cls(**{**fields, "source": source, "labels": tuple(fields["labels"])})


@dataclass(frozen=True, slots=True)
class TableCard:
    """`partitions`: one text per leaf of a partitioned table, another after a DETACH and ATTACH.
    `is_partition`: of another table."""

    stream: StreamId
    oid: int
    kind: str  # as pg_class has it: r, p, and v, m, f, which have no shapes
    columns: tuple[CardColumn, ...]
    key: tuple[str, ...]
    partitions: tuple[str, ...] = ()
    unlogged: bool = False
    is_partition: bool = False

    @property
    def is_branch(self) -> bool:
        """Between a root and its leaves. The log names those two alone: nobody could say what is its own."""
        return self.is_partition and self.kind == "p"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def selectable(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if not column.generated)

    @property
    def sources(self) -> tuple[SourceColumn, ...]:
        """The columns a condition may name."""
        return tuple(column.source for column in self.columns if not column.generated)

    def column(self, name: str) -> CardColumn:
        return next(column for column in self.columns if column.name == name)

    def to_json(self) -> dict[str, Any]:
        return {
            "stream": [self.stream.namespace, self.stream.name],
            "oid": self.oid,
            "kind": self.kind,
            "columns": [column.to_json() for column in self.columns],
            "key": list(self.key),
            "partitions": list(self.partitions),
            "unlogged": self.unlogged,
            "is_partition": self.is_partition,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> TableCard:
        return cls(
            stream=StreamId(*fields["stream"]),
            oid=fields["oid"],
            kind=fields["kind"],
            columns=tuple(CardColumn.from_json(column) for column in fields["columns"]),
            key=tuple(fields["key"]),
            partitions=tuple(fields["partitions"]),
            unlogged=fields["unlogged"],
            is_partition=fields.get("is_partition", False),  # cards were written without it
        )


_RELATIONS = """
SELECT c.oid::bigint AS oid, n.nspname AS namespace, c.relname AS name, c.relkind::text AS kind,
       c.relpersistence = 'u' AS unlogged, c.relispartition AS is_partition
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm') AND c.relpersistence <> 't' AND c.oid >= 16384
  AND (c.oid = ANY(%(oids)s::bigint[]::oid[])
       OR (n.nspname, c.relname) IN (SELECT * FROM unnest(%(namespaces)s::name[], %(names)s::name[])))
ORDER BY c.oid
"""

#: What `catalog_queries.COLUMNS` does not say: the types as they were declared, and more.
_DECLARED = """
SELECT a.attrelid::bigint AS relation, a.attnum AS attribute_number,
       coalesce(e.typname, t.typname) AS type_name, a.atttypmod AS modifier,
       CASE WHEN e.oid IS NULL THEN 0 ELSE greatest(a.attndims, 1) END AS dimensions,
       a.atthasdef AS has_default,
       CASE WHEN a.attgenerated <> '' THEN pg_get_expr(d.adbin, d.adrelid) ELSE '' END AS expression,
       coalesce(c.collisdeterministic, true) AS deterministic
FROM pg_attribute AS a
JOIN pg_type AS t ON t.oid = a.atttypid
LEFT JOIN pg_type AS e ON e.typarray = t.oid AND e.oid = t.typelem
LEFT JOIN pg_collation AS c ON c.oid = a.attcollation
LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = ANY(%(oids)s::bigint[]::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
"""

#: The leaves of partitioned tables, each with the path of attachments that leads to it. Through
#: pg_inherits, since pg_partition_tree waits for locks on every partition.
_PARTITIONS = """
WITH RECURSIVE tree AS (
    SELECT c.oid AS root, c.oid, c.relkind, '' AS path
    FROM pg_class AS c WHERE c.oid = ANY(%(oids)s::bigint[]::oid[]) AND c.relkind = 'p'
    UNION ALL
    SELECT tree.root, c.oid, c.relkind, format('%%s/%%s:%%s', tree.path, c.oid, i.xmin)
    FROM tree
    JOIN pg_inherits AS i ON i.inhparent = tree.oid AND tree.relkind = 'p' AND NOT i.inhdetachpending
    JOIN pg_class AS c ON c.oid = i.inhrelid
)
SELECT t.root::bigint AS relation, t.path FROM tree AS t WHERE t.relkind <> 'p' ORDER BY t.root, t.path
"""

_LABELS = """
SELECT e.enumtypid::bigint AS type, array_agg(e.enumlabel::text ORDER BY e.enumsortorder) AS labels
FROM pg_enum AS e WHERE e.enumtypid = ANY(%(oids)s::bigint[]::oid[]) GROUP BY e.enumtypid
"""


def read_cards(
    connection: Connection, *, streams: Sequence[StreamId] = (), oids: Sequence[int] = ()
) -> list[TableCard]:
    """The present cards of these tables, by name or by oid; one that is not there is left out.

    Tables of the system and of sessions are never there. The connection must be outside a transaction.
    """
    with query_errors("reading the catalog"), connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        with connection.cursor(row_factory=dict_row) as cursor:

            def rows(query: str, **parameters: Any) -> list[dict[str, Any]]:
                return cursor.execute(query.encode(), parameters).fetchall()

            relations = rows(
                _RELATIONS,
                oids=list(oids),
                namespaces=[stream.namespace for stream in streams],
                names=[stream.name for stream in streams],
            )
            found = [row["oid"] for row in relations]
            columns, declared, keys, partitions = (
                _by_relation(rows(query, oids=found))
                for query in (catalog_queries.COLUMNS, _DECLARED, catalog_queries.KEYS, _PARTITIONS)
            )
            types = sorted({column["type_oid"] for table in columns.values() for column in table})
            labels = {row["type"]: tuple(row["labels"]) for row in rows(_LABELS, oids=types)}
    return [
        TableCard(
            stream=StreamId(row["namespace"], row["name"]),
            oid=row["oid"],
            kind=row["kind"],
            columns=_columns(columns[row["oid"]], declared[row["oid"]], labels),
            key=next((tuple(key["columns"]) for key in keys[row["oid"]] if key["is_primary"]), ()),
            partitions=tuple(leaf["path"] for leaf in partitions[row["oid"]]),
            unlogged=row["unlogged"],
            is_partition=row["is_partition"],
        )
        for row in relations
    ]


def _by_relation(rows: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    groups: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["relation"]].append(row)
    return groups


def _columns(
    rows: list[dict[str, Any]], declared: list[dict[str, Any]], labels: Mapping[int, tuple[str, ...]]
) -> tuple[CardColumn, ...]:
    of_number = {row["attribute_number"]: row for row in declared}
    return tuple(
        CardColumn(
            # Whatever else of the catalog's entry changes, statistics for instance, is no other column.
            source=replace(source_column(row), version=""),
            generated=row["left_out"],
            virtual=row["virtual"],
            expression="" if row["left_out"] else of_number[row["attribute_number"]]["expression"],
            labels=labels.get(row["type_oid"], ()),
            **{
                name: of_number[row["attribute_number"]][name]
                for name in ("type_name", "modifier", "dimensions", "has_default", "deterministic")
            },
        )
        for row in rows
    )


class Catalog:
    """Cards by name, read when first asked for. Any thread; `forget` by whoever learns of a change.

    While the source cannot be asked, a forgotten card is as good as there is: what its shapes hold is still
    served, and no new one is made by it, since a snapshot compares the table itself.

    `version` changes with every card that is replaced or forgotten: what was derived from cards holds while
    it stays.
    """

    def __init__(self, connections: Callable[[], AbstractContextManager[Connection]]) -> None:
        self.version = 0
        self._connections = connections
        self._cards: dict[StreamId, TableCard] = {}
        self._forgotten: dict[StreamId, TableCard] = {}
        self._lock = threading.Lock()

    def known(self, stream: StreamId) -> TableCard | None:
        """The card if it was read before: never blocks."""
        return self._cards.get(stream)

    def card(self, stream: StreamId) -> TableCard | None:
        """The card, read if need be; None: there is no such relation."""
        card = self._cards.get(stream)
        if card is not None:
            return card
        version = self.version
        try:
            with self._connections() as connection:
                found = read_cards(connection, streams=[stream])
        except (PenstockError, SnapshotProblem):
            forgotten = self._forgotten.get(stream)
            if forgotten is None:
                raise
            return forgotten
        with self._lock:
            self._forgotten.pop(stream, None)
            if found and version == self.version:  # else it may be older than what made it change
                while len(self._cards) >= CARDS_MAX:
                    self._cards.pop(next(iter(self._cards)))
                self._cards[stream] = found[0]
        return found[0] if found else None

    def put(self, card: TableCard) -> None:
        """A newer card of a table, as the reconciler has read it."""
        with self._lock:
            if self._cards.get(card.stream) != card:
                self._cards[card.stream] = card
                self.version += 1

    def forget(self, stream: StreamId) -> None:
        with self._lock:
            card = self._cards.pop(stream, None)
            if card is not None:
                while len(self._forgotten) >= CARDS_MAX:
                    self._forgotten.pop(next(iter(self._forgotten)))
                self._forgotten[stream] = card
            self.version += 1

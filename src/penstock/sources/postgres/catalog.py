"""What there is at the source: tables, partitions, columns, keys, replica identity, sizes.

`discover` asks a handful of questions for any number of tables, so 200 tables take about as long as
one.

`TableSchema.columns` leaves out generated columns that the log cannot carry (correctness 29): virtual ones,
which are nowhere but in a query's answer, and before Postgres 18 the stored ones too. From 18 on stored ones
are columns like others, since the publication has them published (`publication.py`).
`TableSchema.key` is the replica identity: the columns by which the log names the row of an update or
delete. A *deferrable* primary key is not accepted by Postgres as a default identity; such a table has
a key only under REPLICA IDENTITY FULL.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from psycopg.rows import dict_row

from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.sources.postgres import catalog_queries
from penstock.sources.postgres.connection import Connection, query_errors
from penstock.sources.tables import SourceLeaf, SourceTable

RelationKind = Literal["table", "partitioned", "foreign", "view", "materialized view"]

_KINDS: Mapping[str, RelationKind] = {
    "r": "table",
    "p": "partitioned",
    "f": "foreign",
    "v": "view",
    "m": "materialized view",
}
LOCK_TIMEOUT_MS = 10_000
_PAGE_BYTES_USABLE = 8168
_ROW_OVERHEAD_BYTES = 28
_VARIABLE_WIDTH_BYTES = 32  # what the planner assumes of a column it knows nothing about

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf(SourceLeaf):
    kind: RelationKind
    pages: int
    replica_identity: str
    has_identity: bool  # the log can name the row of an update or delete
    unlogged: bool
    may_select: bool
    row_security_active: bool  # for the role that asked
    owned: bool
    owner: str
    publications: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo(SourceTable):
    kind: RelationKind
    leaves: tuple[Leaf, ...]
    deferrable_key: bool  # of the primary key
    replica_identity: str  # d, f, i, n as pg_class has it
    row_security: bool
    row_security_forced: bool
    unlogged: bool
    temporary: bool
    is_partition: bool
    generated_columns: tuple[str, ...]  # those that are left out
    virtual_columns: tuple[str, ...] = ()  # of these, the virtual ones
    publications: frozenset[str] = frozenset()  # those that hold every leaf
    indexed: frozenset[str] = frozenset()  # columns whose ranges are found without reading the whole table

    @property
    def has_identity(self) -> bool:
        """Whether every row of every leaf can be named in the log. An empty tree asks its root."""
        if self.leaves:
            return all(leaf.has_identity for leaf in self.leaves)
        return self.replica_identity == "f" or bool(self.schema.key)

    @property
    def publishes_generated(self) -> bool:
        """Whether the publication must have stored generated columns published for this table."""
        return any(column.generated for column in self.schema.columns)

    @property
    def can_be_captured(self) -> bool:
        """Whether Postgres logs this table's changes at all."""
        return self.kind in ("table", "partitioned") and not self.unlogged and not self.temporary


class RelationSchema(NamedTuple):
    """A relation seen in the log: `schema.stream` is the root, its columns and key are the leaf's own.

    Relation oid, attribute numbers and storage are the root's: partitions may number their columns
    otherwise, and a table is compared with itself whichever of its partitions a change came from.

    `declared_types` has (type oid, modifier) per column as a Relation message shows them, where a
    domain has its own oid; `schema` has the base types.
    """

    root: StreamId
    leaf: StreamId
    schema: TableSchema
    declared_types: dict[str, tuple[int, int]]


class _Key(NamedTuple):
    columns: tuple[str, ...]
    deferrable: bool


class _Keys(NamedTuple):
    primary: _Key | None
    identity_index: _Key | None

    def identity(self, replica_identity: str) -> _Key | None:
        """The columns the log identifies a row by."""
        if replica_identity == "i":
            return self.identity_index
        if replica_identity == "d":
            return self.primary if self.primary and not self.primary.deferrable else None
        return self.primary if replica_identity == "f" else None

    def names_rows(self, replica_identity: str) -> bool:
        return replica_identity == "f" or self.identity(replica_identity) is not None


def discover(connection: Connection, patterns: Sequence[StreamId] | None = None) -> list[TableInfo]:
    """Tables that match a pattern (`None`: all tables of all user schemas), ordered by name.

    A wildcard matches tables, partitioned tables and foreign tables. Views, and a partition apart from
    its root, are found only when they are named exactly. A schema with a dot in its name is passed over:
    no stream id can say it. Measuring a table waits for DDL on it, `LOCK_TIMEOUT_MS` at most.
    """
    with query_errors("reading the catalog"), _bounded_waits(connection):
        wanted = [row for row in _relations(connection, patterns) if _is_wanted(row, patterns)]
        oids = [row["oid"] for row in wanted]
        leaves = _rows(connection, catalog_queries.LEAVES, oids=oids)
        columns = _grouped(_rows(connection, catalog_queries.COLUMNS, oids=oids), "relation")
        keys = _keys(connection, oids + [leaf["oid"] for leaf in leaves])
        indexed = _grouped(_rows(connection, catalog_queries.INDEXED, oids=oids), "relation")
        members: dict[int, set[str]] = defaultdict(set)
        for row in _rows(connection, catalog_queries.MEMBERS):
            members[row["relation"]].add(row["publication"])
    leaves_of = _grouped(leaves, "root")
    return [
        replace(
            _table(row, leaves_of.get(row["oid"], []), columns.get(row["oid"], []), keys, members),
            indexed=frozenset(each["name"] for each in indexed.get(row["oid"], [])),
        )
        for row in wanted
    ]


def relation_schema(connection: Connection, oid: int) -> RelationSchema | None:
    """The present schema of a relation seen in the log; None if it has been dropped since."""
    with query_errors("reading the catalog"):
        found = _rows(connection, catalog_queries.ROOT_OF, oid=oid)
        if not found:
            return None
        row = found[0]
        described = _grouped(_rows(connection, catalog_queries.COLUMNS, oids=[oid, row["root"]]), "relation")
        keys = _keys(connection, [oid])[oid]
        storage = _storage(_rows(connection, catalog_queries.STORAGE, oid=row["root"]))
    root = StreamId(row["root_namespace"], row["root_name"])
    of_root = {column["name"]: column for column in described[row["root"]]}
    columns = [
        {**column, **{name: of_root[column["name"]][name] for name in ("attribute_number", "version")}}
        for column in described[oid]
        if column["name"] in of_root
    ]
    return RelationSchema(
        root=root,
        leaf=StreamId(row["namespace"], row["name"]),
        schema=_schema(root, row["root"], row["replica_identity"], columns, keys, storage),
        declared_types={c["name"]: (c["declared_oid"], c["declared_modifier"]) for c in columns},
    )


@contextmanager
def _bounded_waits(connection: Connection) -> Iterator[None]:
    """Give up on a lock after a while, unless whoever opened the transaction has set another limit."""
    with connection.transaction():
        limited = connection.execute(
            "SELECT set_config('lock_timeout', %s, true) WHERE current_setting('lock_timeout') = '0'",
            (str(LOCK_TIMEOUT_MS),),
        ).fetchone()
        yield
        if limited is not None:  # inside a transaction of the caller's, it would outlive this block
            connection.execute("SET LOCAL lock_timeout = 0")


def _rows(connection: Connection, query: str, **parameters: Any) -> list[Row]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query.encode(), parameters or None).fetchall()


def _grouped(rows: Iterable[Row], by: str) -> dict[int, list[Row]]:
    groups: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row[by]].append(row)
    return groups


def _relations(connection: Connection, patterns: Sequence[StreamId] | None) -> list[Row]:
    exact = [] if patterns is None else [p.namespace for p in patterns if "*" not in p.namespace]
    everywhere = patterns is None or any("*" in pattern.namespace for pattern in patterns)
    return _rows(
        connection, catalog_queries.RELATIONS, namespaces=sorted(set(exact)), all_user_namespaces=everywhere
    )


def _is_wanted(row: Row, patterns: Sequence[StreamId] | None) -> bool:
    stream = StreamId(row["namespace"], row["name"])
    if "." in stream.namespace:
        return False
    ordinary = row["kind"] in ("r", "p", "f") and row["persistence"] != "t" and not row["is_partition"]
    if patterns is None:
        return ordinary
    return any(pattern == stream or (ordinary and pattern.matches(stream)) for pattern in patterns)


def _keys(connection: Connection, oids: Sequence[int]) -> dict[int, _Keys]:
    primary: dict[int, _Key] = {}
    identity: dict[int, _Key] = {}
    for row in _rows(connection, catalog_queries.KEYS, oids=list(oids)):
        key = _Key(tuple(row["columns"]), row["deferrable"])
        if row["is_primary"]:
            primary[row["relation"]] = key
        if row["is_identity"]:
            identity[row["relation"]] = key
    return {oid: _Keys(primary.get(oid), identity.get(oid)) for oid in oids}


def _table(
    row: Row,
    leaf_rows: Sequence[Row],
    columns: Sequence[Row],
    keys: Mapping[int, _Keys],
    members: Mapping[int, set[str]],
) -> TableInfo:
    stream = StreamId(row["namespace"], row["name"])
    of_root = frozenset(members.get(row["oid"], ()))
    leaves = tuple(
        _leaf(leaf, columns, keys[leaf["oid"]], of_root | frozenset(members.get(leaf["oid"], ())))
        for leaf in leaf_rows
    )
    own_keys = keys[row["oid"]]
    # The log shows a partitioned table's changes under its leaves, so theirs is the identity that counts.
    identity = (
        "f" if leaves and all(leaf.replica_identity == "f" for leaf in leaves) else row["replica_identity"]
    )
    in_all_leaves = frozenset.intersection(*(leaf.publications for leaf in leaves)) if leaves else of_root
    return TableInfo(
        stream=stream,
        oid=row["oid"],
        kind=_KINDS[row["kind"]],
        schema=_schema(stream, row["oid"], identity, columns, own_keys, _storage(leaf_rows)),
        leaves=leaves,
        primary_key=own_keys.primary.columns if own_keys.primary else (),
        deferrable_key=own_keys.primary is not None and own_keys.primary.deferrable,
        replica_identity=identity,
        row_security=row["row_security"],
        row_security_forced=row["row_security_forced"],
        unlogged=row["persistence"] == "u" or any(leaf.unlogged for leaf in leaves),
        temporary=row["persistence"] == "t",
        is_partition=row["is_partition"],
        generated_columns=tuple(column["name"] for column in columns if column["left_out"]),
        virtual_columns=tuple(column["name"] for column in columns if column["virtual"]),
        publications=in_all_leaves,
    )


def _leaf(row: Row, columns: Sequence[Row], keys: _Keys, publications: frozenset[str]) -> Leaf:
    return Leaf(
        stream=StreamId(row["namespace"], row["name"]),
        oid=row["oid"],
        kind=_KINDS[row["kind"]],
        filenode=row["filenode"],
        pages=row["pages"],
        bytes=row["bytes"],
        estimated_rows=_estimate_rows(row, columns),
        replica_identity=row["replica_identity"],
        has_identity=keys.names_rows(row["replica_identity"]),
        unlogged=row["persistence"] == "u",
        may_select=row["may_select"],
        row_security_active=row["row_security_active"],
        owned=row["owned"],
        owner=row["owner"],
        publications=publications,
        attached=row["attached"],
    )


def _estimate_rows(row: Row, columns: Sequence[Row]) -> int:
    """As the planner does: measured pages times rows per page, by statistics or else by width."""
    if row["estimated_rows"] >= 0 and row["estimated_pages"] > 0:
        rows_per_page = row["estimated_rows"] / row["estimated_pages"]
    else:
        width = sum(c["length"] if c["length"] > 0 else _VARIABLE_WIDTH_BYTES for c in columns)
        rows_per_page = _PAGE_BYTES_USABLE / (_ROW_OVERHEAD_BYTES + width)
    return int(row["pages"] * rows_per_page)


def _storage(leaves: Iterable[Row]) -> str:
    """A short name for the files that hold the rows."""
    files = sorted((leaf["oid"], leaf["filenode"]) for leaf in leaves)
    return hashlib.sha256(repr(files).encode()).hexdigest()[:16]


def _schema(
    stream: StreamId,
    oid: int,
    replica_identity: str,
    columns: Sequence[Row],
    keys: _Keys,
    storage: str,
) -> TableSchema:
    key = keys.identity(replica_identity)
    return TableSchema(
        stream=stream,
        columns=tuple(source_column(column) for column in columns if not column["left_out"]),
        key=key.columns if key else (),
        replica_identity=replica_identity,
        deferrable_key=key is not None and key.deferrable,
        relation_oid=oid,
        storage=storage,
    )


def source_column(row: Row) -> SourceColumn:
    return SourceColumn(
        name=row["name"],
        type_oid=row["type_oid"],
        type_modifier=row["type_modifier"],
        type_name=row["type_name"],
        type_text=row["type_text"],
        attribute_number=row["attribute_number"],
        nullable=row["nullable"],
        toastable=row["toastable"],
        missing_value=row["missing_value"],
        version=row["version"],
        element=row["element"],
        generated=row["stored"],
    )

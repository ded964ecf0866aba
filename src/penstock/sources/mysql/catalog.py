"""What there is at the source: tables, columns, keys, engines, sizes, foreign keys that act.

`discover` asks five questions for any number of tables. A stream's namespace is its database.

`TableSchema.columns` leaves out generated columns, as for every source (correctness 29), but for those of
the key: MariaDB leaves them out of updates, so the log cannot be relied on for them. Invisible columns are
columns. MariaDB's versioned tables keep rows that are not there any more, which queries do not show: until
when a row was there is in a column at its end (`row_end`), which is of the server's keys and none of ours.
`TableSchema.key` is the primary key, else the unique index of columns that are never null which
has the fewest columns: texts that a collation holds for equal count as different here, so a key of the
server is one of ours.

MySQL has no numbers for tables and columns that everybody may read, so `oid` and `attribute_number` are
made of names: a table that was dropped and made anew, or a column that was renamed, is told by the log's
statements.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.sources.mysql import catalog_queries as queries
from penstock.sources.mysql.catalog_queries import Row
from penstock.sources.mysql.connection import Connection, is_mariadb, rows
from penstock.sources.mysql.types import BYTES, FAMILY, TEXTS, decimal_modifier
from penstock.sources.tables import SourceLeaf, SourceTable

TableKind = Literal["table", "partitioned", "versioned", "view", "sequence"]
KeyKind = Literal["integer", "number", "text", "bytes", "time", "uuid"]

SYSTEM_DATABASES = ("information_schema", "mysql", "performance_schema", "sys")
TRANSACTIONAL_ENGINES = frozenset({"innodb", "rocksdb", "ndbcluster", "ndb", "tokudb"})
_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")
_INTEGER: KeyKind = "integer"
_KEY_KINDS: Mapping[str, KeyKind] = {
    **{f"{name}{sign}": _INTEGER for name in _INTEGERS for sign in ("", " unsigned")},
    "decimal": "number",
    "year": "integer",
    "char": "text",
    "varchar": "text",
    "binary": "bytes",
    "varbinary": "bytes",
    "date": "time",
    "datetime": "time",
    "timestamp": "time",
    "uuid": "uuid",
}
_NUMBERS = (*_INTEGERS, "decimal", "float", "double", "year")
#: What gh-ost, pt-online-schema-change and others name the tables they work with.
_WORKING_TABLE = re.compile(r"_.+_(gho|ghc|del|new|old)|_vt_(hld|prg|evc|drp|vrp)_.+", re.DOTALL)
_NAMED_MAX = 100
_FIRST_MEMBER = re.compile(r"enum\('((?:[^']|'')*)'")


@dataclass(frozen=True, slots=True)
class KeyPart:
    """A column of the key by whose ranges the table can be read, in the server's own order."""

    name: str
    kind: KeyKind
    charset: str = ""
    collation: str = ""


@dataclass(frozen=True, slots=True)
class Cascade:
    """A foreign key of this table by which the server changes its rows when those of `parent` are."""

    name: str
    parent: StreamId
    on_update: str
    on_delete: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlTable(SourceTable):
    kind: TableKind
    engine: str
    range_key: tuple[KeyPart, ...]  # the leading columns of the key that ranges can be made of; may be none
    generated_columns: tuple[str, ...]
    invisible_columns: tuple[str, ...]
    compressed_columns: tuple[str, ...]  # MariaDB's, which the log has in a form of its own
    charsets: frozenset[str]
    cascades: tuple[Cascade, ...] = ()
    period: tuple[
        str, ...
    ] = ()  # of a versioned table: the columns in which the log has since and until when

    @property
    def is_transactional(self) -> bool:
        return self.engine.lower() in TRANSACTIONAL_ENGINES

    @property
    def can_be_captured(self) -> bool:
        """What a wildcard brings in: not a table that an online schema change works with."""
        return self.kind in ("table", "partitioned", "versioned") and not is_working_table(self.stream.name)


def is_working_table(name: str) -> bool:
    """Whether a tool that alters tables online made it, and will drop or rename it."""
    return _WORKING_TABLE.fullmatch(name) is not None


def discover(connection: Connection, patterns: Sequence[StreamId] | None = None) -> list[MysqlTable]:
    """Tables that match a pattern, ordered by name; None: all of the URL's database, or of all databases.

    A wildcard matches tables. Views and sequences are found only when they are named exactly. A database with
    a dot in its name is passed over: no stream id can say it.
    """
    named = _named(patterns)
    found = [row for row in _tables(connection, patterns, named) if _is_wanted(row, patterns)]
    databases = sorted({row["database"] for row in found})
    if not databases:
        return []
    columns = _grouped(queries.columns(connection, databases, named))
    indexes = _grouped(queries.indexes(connection, databases, named))
    cascades = _grouped(queries.cascades(connection, databases, named))
    mariadb = is_mariadb(connection)
    return [
        _table(row, columns.get(name, []), indexes.get(name, []), cascades.get(name, []), mariadb=mariadb)
        for row in found
        for name in [(row["database"], row["table"])]
    ]


def _named(patterns: Sequence[StreamId] | None) -> list[str]:
    """A few tables are asked for by name: a database may have many more."""
    if patterns is None or len(patterns) > _NAMED_MAX or any(pattern.is_pattern for pattern in patterns):
        return []
    return sorted({pattern.name for pattern in patterns})


def _tables(connection: Connection, patterns: Sequence[StreamId] | None, named: Sequence[str]) -> list[Row]:
    if patterns is None:
        [(current,)] = rows(connection, "SELECT DATABASE()", doing="asking for the database")
        databases = [current] if current else None
    elif any("*" in pattern.namespace for pattern in patterns):
        databases = None
    else:
        databases = sorted({pattern.namespace for pattern in patterns})
    found = queries.tables(connection, databases, named)
    return [row for row in found if row["database"].lower() not in SYSTEM_DATABASES]


def _is_wanted(row: Row, patterns: Sequence[StreamId] | None) -> bool:
    stream = StreamId(row["database"], row["table"])
    if "." in stream.namespace:
        return False
    ordinary = row["type"] in ("BASE TABLE", "SYSTEM VERSIONED")
    if patterns is None:
        return ordinary
    return any(pattern == stream or (ordinary and pattern.matches(stream)) for pattern in patterns)


def _grouped(found: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in found:
        groups[row["database"], row["table"]].append(row)
    return groups


def _table(
    row: Row, columns: Sequence[Row], indexes: Sequence[Row], cascades: Sequence[Row], *, mariadb: bool
) -> MysqlTable:
    stream = StreamId(row["database"], row["table"])
    kind = _kind(row)
    described = {column["name"]: column for column in columns}
    period = _period(columns) if kind == "versioned" else ()
    key = [part for part in _key(indexes) if part["column"] not in period]
    primary = tuple(part["column"] for part in key) if key and key[0]["index"] == "PRIMARY" else ()
    generated = tuple(column["name"] for column in columns if column["is_generated"])
    named = {part["column"] for part in key}
    oid = zlib.crc32(str(stream).encode()) & 0x7FFFFFFF | 1
    schema = TableSchema(
        stream=stream,
        columns=tuple(
            source_column(column, mariadb=mariadb)
            for column in columns
            if not column["is_generated"] or column["name"] in named
        ),
        key=tuple(part["column"] for part in key),
        replica_identity="f",
        relation_oid=oid,
    )
    leaf = SourceLeaf(
        stream=stream, oid=oid, filenode=0, bytes=row["bytes"] or 0, estimated_rows=row["rows"] or 0
    )
    return MysqlTable(
        stream=stream,
        oid=oid,
        kind=kind,
        schema=schema,
        leaves=(leaf,),
        primary_key=primary,
        engine=row["engine"] or "",
        range_key=_range_key(key, described, mariadb=mariadb),
        generated_columns=generated,
        invisible_columns=tuple(c["name"] for c in columns if "INVISIBLE" in c["extra"].upper()),
        compressed_columns=tuple(c["name"] for c in columns if "COMPRESSED" in c["type_text"].upper()),
        charsets=frozenset(column["charset"] for column in columns if column["charset"]),
        cascades=tuple(
            Cascade(
                each["name"],
                StreamId(each["parent_database"], each["parent"]),
                each["update"],
                each["delete"],
            )
            for each in cascades
        ),
        period=period,
    )


def _period(columns: Sequence[Row]) -> tuple[str, ...]:
    """A table that does not name them has them by these names, which only its log tells."""
    named = {column["generation"].upper(): column["name"] for column in columns}
    return (named.get("ROW START", "row_start"), named.get("ROW END", "row_end"))


def _kind(row: Row) -> TableKind:
    kinds: dict[str, TableKind] = {"SYSTEM VERSIONED": "versioned", "SEQUENCE": "sequence"}
    if row["type"] == "BASE TABLE":
        return "partitioned" if "partitioned" in (row["options"] or "").lower() else "table"
    return kinds.get(row["type"], "view")


def _key(indexes: Sequence[Row]) -> list[Row]:
    """The parts of the index that a row is known by, in order; none: there is no such index."""
    parts: dict[str, list[Row]] = defaultdict(list)
    for part in indexes:
        parts[part["index"]].append(part)
    if "PRIMARY" in parts:
        return parts["PRIMARY"]
    usable = [
        (len(index), name)
        for name, index in parts.items()
        if all(part["column"] is not None and not part["nullable"] for part in index)
    ]
    return parts[min(usable)[1]] if usable else []


def _range_key(key: Sequence[Row], columns: Mapping[str, Row], *, mariadb: bool) -> tuple[KeyPart, ...]:
    found: list[KeyPart] = []
    for part in key:
        column = columns[part["column"]]
        kind = _KEY_KINDS.get(type_name(column, mariadb=mariadb))
        # An index of a value's beginning, or one that goes down, does not have the order that is asked for.
        if kind is None or part["prefix"] is not None or part["direction"] == "D":
            break
        found.append(KeyPart(column["name"], kind, column["charset"] or "", column["collation"] or ""))
    return tuple(found)


def type_name(row: Row, *, mariadb: bool) -> str:
    name = str(row["type"]).lower()
    if name in _INTEGERS:
        return f"{name} unsigned" if "unsigned" in row["type_text"].lower() else name
    if mariadb and name == "vector":
        return "varbinary"  # what MariaDB's log has of it
    return name


def source_column(row: Row, *, mariadb: bool) -> SourceColumn:
    return SourceColumn(
        name=row["name"],
        type_oid=0,
        type_modifier=_modifier(row),
        type_name=type_name(row, mariadb=mariadb),
        type_text=row["type_text"],
        attribute_number=zlib.crc32(row["name"].encode()) & 0x7FFFFFFF | 1,
        nullable=row["nullable"],
        missing_value=_missing_value(row, mariadb=mariadb),
        version=_version(row),
        family=FAMILY,
    )


def _version(row: Row) -> str:
    told = sorted((name, value) for name, value in row.items() if name != "generation")
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def _modifier(row: Row) -> int:
    name = str(row["type"]).lower()
    if name == "decimal":
        return decimal_modifier(int(row["precision"]), int(row["scale"]))
    if name == "bit":
        return int(row["precision"])
    if name in ("datetime", "timestamp", "time"):
        return int(row["time_digits"] or 0)
    return int(row["length"]) if name in (*TEXTS, *BYTES) and row["length"] is not None else -1


def _missing_value(row: Row, *, mariadb: bool) -> str | None:
    """What rows older than the column read as, where a constant says it: as text of the log."""
    name = str(row["type"]).lower()
    default = row["default"]
    if default is None or (mariadb and default == "NULL"):
        return None if row["nullable"] else _implicit_default(row, name)
    if "DEFAULT_GENERATED" in row["extra"].upper() or name not in (*_NUMBERS, *TEXTS, "enum", "set"):
        return None
    if not mariadb:
        return str(default)
    if re.fullmatch(r"-?[0-9.]+(e-?[0-9]+)?", default):
        return str(default)
    quoted = re.fullmatch(r"'((?:[^'\\]|'')*)'", default, re.DOTALL)
    return quoted[1].replace("''", "'") if quoted else None


def _implicit_default(row: Row, name: str) -> str | None:
    if name == "decimal":
        return f"{0:.{int(row['scale'])}f}"  # with the digits that the log has: as text they stay
    if name in _NUMBERS:
        return "0"
    if name == "enum" and (member := _FIRST_MEMBER.match(row["type_text"])):
        return member[1].replace("''", "'")
    return "" if name in (*TEXTS, "set", *BYTES) else None

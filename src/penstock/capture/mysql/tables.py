"""Which table, in which version, a row of the log belongs to.

A table map says how the rows after it look: names, types, members of enumerations. The catalog says more (the
key in its order, defaults, which columns are generated) and may have moved on. Where its columns are those of
the map, by name and by what their types look like in the log, the table is the catalog's; else it is made of
the map alone, and a column that looks the same in both is the catalog's still.

Columns have no numbers here that would tell a rename from a drop and an addition: what the catalog's names
make of it is not known of rows that were written under others (`attribute_number` 0, "not sure").

Generated columns are left out, as they are of the catalog's schema, and those that say since and until when a
row of a versioned table was there.

A table that is kept may be one whose rows the log does not tell in a way that can be read: it does not name
its columns, or has them in a form of its own. That is the table's alone (`UnreadTable`).
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from penstock.capture.log_reading import CapturedTable
from penstock.capture.mysql.alter_clauses import ColumnChanges
from penstock.capture.mysql.alterations import alteration
from penstock.core.alteration import Alteration
from penstock.core.errors import SourceError
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.sources.mysql.binlog import table_map as codes
from penstock.sources.mysql.binlog.charsets import BINARY, read_collations, to_utf8
from penstock.sources.mysql.binlog.packet_kernels import Ints
from penstock.sources.mysql.binlog.rows import RowLayout
from penstock.sources.mysql.binlog.table_map import Column, TableMap
from penstock.sources.mysql.catalog import MysqlTable, discover
from penstock.sources.mysql.connection import Connection, quoted, rows
from penstock.sources.mysql.statement_reach import reach_beyond
from penstock.sources.mysql.types import FAMILY, GEOMETRIES, decimal_modifier

_INTEGERS = {
    codes.TINY: "tinyint",
    codes.SHORT: "smallint",
    codes.INT24: "mediumint",
    codes.LONG: "int",
    codes.LONGLONG: "bigint",
}
_PLAIN = {
    codes.FLOAT: "float",
    codes.DOUBLE: "double",
    codes.YEAR: "year",
    codes.DATE: "date",
    codes.NEWDATE: "date",
    codes.JSON: "json",
    codes.GEOMETRY: "geometry",
    codes.VECTOR: "vector",
    codes.TIME: "time",
    codes.DATETIME: "datetime",
    codes.TIMESTAMP: "timestamp",
}
_TIMES = {codes.TIME2: "time", codes.DATETIME2: "datetime", codes.TIMESTAMP2: "timestamp"}
_WAIT_FOR_LOCK = "SET SESSION lock_wait_timeout = 5"  # seconds
_SIZES = {1: "tiny", 2: "", 3: "medium", 4: "long"}  # bytes of a blob's length


@dataclass(frozen=True, slots=True)
class MappedTable:
    """A table that is kept, and which of the map's columns it has: `columns` are their numbers in its order,
    `numbers` the way back (-1: left out)."""

    table: CapturedTable
    layout: RowLayout
    columns: tuple[int, ...]
    numbers: Ints
    row_end: int | None = None  # the map's column that says until when a row was there


@dataclass(frozen=True, slots=True)
class UnreadTable:
    """A table that is kept and whose rows cannot be read."""

    stream: StreamId
    why: SourceError


class MappedTables:
    """Tables of one log, by the number that their map has there.

    Of tables that are kept it stays known what the catalog said of each map, whatever its number.
    """

    def __init__(
        self, streams: Sequence[StreamId], connect: Callable[[], Connection], *, folds_names: bool = False
    ) -> None:
        self._streams = frozenset(streams)
        self._folds_names = folds_names
        self._connect = connect
        self._collations: Mapping[int, str] | None = None
        self._found: dict[int, MappedTable | UnreadTable | None] = {}
        self._names: dict[int, StreamId] = {}
        self._by_map: dict[TableMap, MappedTable | UnreadTable] = {}
        self._kept: set[StreamId] = set()
        self._beyond: dict[tuple[StreamId, frozenset[StreamId]], str | None] = {}
        self._numbering = threading.Lock()

    def add(self, streams: Sequence[StreamId]) -> None:
        """Keep these too. May be called from any thread: what is asked for next is looked up anew."""
        with self._numbering:
            self._streams |= frozenset(streams)
            self._found = {number: found for number, found in list(self._found.items()) if found is not None}

    def renumber(self) -> None:
        """Maps have other numbers from now on."""
        with self._numbering:
            self._found, self._names = {}, {}

    def wants(self, stream: StreamId) -> bool:
        return stream in self._streams or any(
            pattern.matches(stream) for pattern in self._streams if pattern.is_pattern
        )

    def meant(self, named: StreamId) -> StreamId:
        """What a statement names. A server that takes letters of either case for the same has the statement
        as it was written, and maps of tables as its catalog has them."""
        if not self._folds_names:
            return named
        known = (*(each for each in self._streams if not each.is_pattern), *self._logged())
        folded = StreamId(named.namespace.lower(), named.name.lower())
        return next((each for each in known if str(each).lower() == str(folded)), folded)

    def table(self, number: int, described: TableMap) -> MappedTable | UnreadTable | None:
        """None: its rows are not ours to keep."""
        found = self._found
        if number not in found:
            stream = StreamId(described.schema, described.name)
            self._names[number] = stream
            found[number] = self._known(stream, described) if self.wants(stream) else None
        return found[number]

    def _known(self, stream: StreamId, described: TableMap) -> MappedTable | UnreadTable:
        self._kept.add(stream)
        if described not in self._by_map:
            self._by_map[described] = self._mapped(stream, described)
        return self._by_map[described]

    def forget(self, changed: Sequence[StreamId]) -> None:
        """The catalog may say other things of these now."""
        self.look_anew()
        for number, stream in self._names.items():
            if any(each.matches(stream) for each in changed):
                self._found.pop(number, None)
        for described in list(self._by_map):
            if any(each.matches(StreamId(described.schema, described.name)) for each in changed):
                del self._by_map[described]

    def among(self, changed: Sequence[StreamId]) -> list[StreamId]:
        """Those that are kept. Of a pattern, by name: streams that are patterns themselves are seen by what
        was logged of them."""
        known = {*(each for each in self._streams if not each.is_pattern), *self._logged()}
        kept = {stream for stream in known for each in changed if each.matches(stream)}
        return sorted(stream for stream in {*kept, *_plain(changed)} if self.wants(stream))

    def _logged(self) -> set[StreamId]:
        """What maps came of; of tables that are kept, ever since reading began."""
        return {*self._names.values(), *self._kept}

    def current(self, stream: StreamId) -> CapturedTable | None:
        """As the catalog has it; None if it is gone."""
        with closing(self._connect()) as connection:
            found = discover(connection, [stream])
        return CapturedTable(_unnumbered(found[0].schema), stream) if found else None

    def alteration(self, stream: StreamId, changes: ColumnChanges) -> Alteration | None:
        """What a statement made of the table, if the catalog bears it out. The log may have the statement a
        moment before the catalog does, but not before the table's lock is given back: that is waited for."""
        with closing(self._connect()) as connection:
            try:
                name = f"{quoted(stream.namespace)}.{quoted(stream.name)}"
                for query in (_WAIT_FOR_LOCK, f"SELECT 1 FROM {name} LIMIT 0"):
                    rows(connection, query, doing="waiting for a table that is altered")
            except SourceError:
                return None
            found = discover(connection, [stream])
        return alteration(changes, found[0]) if found else None

    def reach_beyond(self, stream: StreamId, read: frozenset[StreamId]) -> str | None:
        """Why a statement that changes its rows, and reads these, may have changed those of others too; None:
        it did not. Asked once until `look_anew`."""
        asked = (stream, read)
        if asked not in self._beyond:
            with closing(self._connect()) as connection:
                self._beyond[asked] = reach_beyond(connection, stream, read)
        return self._beyond[asked]

    def look_anew(self) -> None:
        """More of the log has come, before which views, triggers and privileges may have changed."""
        self._beyond = {}

    def _mapped(self, stream: StreamId, described: TableMap) -> MappedTable | UnreadTable:
        with closing(self._connect()) as connection:
            if self._collations is None:
                self._collations = read_collations(connection)
            found = discover(connection, [stream])
        try:
            _require_names(described)
            layout = RowLayout.of(described, self._collations)
        except SourceError as error:
            return UnreadTable(stream, error)
        return mapped_table(stream, layout, self._collations, found[0] if found else None)


def _require_names(described: TableMap) -> None:
    if any(column.name is None for column in described.columns):
        raise SourceError(
            "The binary log does not name the columns of a table (binlog_row_metadata).",
            stream=described.stream,
            remedy="Set binlog_row_metadata = FULL at the server, and run `penstock resync --yes`: what was "
            "logged before stays without names.",
        )


def mapped_table(
    stream: StreamId, layout: RowLayout, collations: Mapping[int, str], catalog: MysqlTable | None
) -> MappedTable:
    """Without I/O."""
    described = layout.table
    period = catalog.period if catalog is not None else ()
    generated = (*catalog.generated_columns, *period) if catalog is not None else ()
    key = catalog.schema.key if catalog is not None else ()
    numbers = tuple(
        number
        for number, column in enumerate(described.columns)
        if column.name in key or column.name not in generated
    )
    known = {column.name: column for column in catalog.schema.columns} if catalog is not None else {}
    columns = tuple(_column(described.columns[number], collations, known) for number in numbers)
    names = tuple(column.name for column in columns)
    in_map = described.key or ()
    schema = TableSchema(
        stream=stream,
        columns=columns,
        key=key if key and set(key) <= set(names) else _named(described, in_map, names),
        replica_identity="f",
        relation_oid=zlib.crc32(str(stream).encode()) & 0x7FFFFFFF | 1,
    )
    back = np.full(len(described.columns), -1, np.int64)
    back[list(numbers)] = np.arange(len(numbers))
    ends = [number for number, column in enumerate(described.columns) if column.name in period[1:]]
    return MappedTable(CapturedTable(schema, stream), layout, numbers, back, ends[0] if ends else None)


def _plain(streams: Sequence[StreamId]) -> list[StreamId]:
    return [stream for stream in streams if not stream.is_pattern]


def _named(described: TableMap, key: Sequence[int], names: Sequence[str]) -> tuple[str, ...]:
    found = tuple(described.columns[number].name or "" for number in key)
    return found if set(found) <= set(names) else ()


def _unnumbered(schema: TableSchema) -> TableSchema:
    return replace(schema, columns=tuple(replace(each, attribute_number=0) for each in schema.columns))


def _column(column: Column, collations: Mapping[int, str], known: Mapping[str, SourceColumn]) -> SourceColumn:
    made = column_of_map(column, collations)
    catalog = known.get(made.name)
    if catalog is not None and _looks_like(catalog, made):
        return replace(catalog, attribute_number=0)
    return made


def _looks_like(catalog: SourceColumn, made: SourceColumn) -> bool:
    """Whether a column of the catalog is logged as this one. Geometries are all one to the log."""
    same = catalog.type_name == made.type_name
    if made.type_name == "geometry":
        return catalog.type_name in GEOMETRIES
    if made.type_name in ("enum", "set"):
        return same and _members(catalog.type_text) == _members(made.type_text)
    exact = ("decimal", "bit", "time", "datetime", "timestamp")
    return same and (made.type_name not in exact or catalog.type_modifier == made.type_modifier)


def _members(type_text: str) -> str:
    return type_text.partition("(")[2]


def column_of_map(column: Column, collations: Mapping[int, str]) -> SourceColumn:
    """A column as its table map describes it. Lengths of texts are left out: they limit, and change none."""
    name, modifier, text = _type(column, collations)
    return SourceColumn(
        name=column.name or "",
        type_oid=0,
        type_modifier=modifier,
        type_name=name,
        type_text=text,
        nullable=column.nullable,
        family=FAMILY,
    )


def _type(column: Column, collations: Mapping[int, str]) -> tuple[str, int, str]:
    """Name, modifier, and how people write it."""
    code, length = column.type, column.length
    if code in _INTEGERS:
        name = f"{_INTEGERS[code]} unsigned" if column.unsigned else _INTEGERS[code]
        return name, -1, name
    if code == codes.NEWDECIMAL:
        return "decimal", decimal_modifier(length, column.scale), f"decimal({length},{column.scale})"
    if code == codes.BIT:
        return "bit", length, f"bit({length})"
    if code in _TIMES:
        name = _TIMES[code]
        return name, length, f"{name}({length})" if length else name
    if code in (codes.ENUM, codes.SET):
        name = "enum" if code == codes.ENUM else "set"
        charset = collations.get(column.collation or 0, "utf8mb4")
        members = [to_utf8(value, charset).decode() for value in column.values or ()]
        listed = ",".join("'" + member.replace("'", "''") + "'" for member in members)
        return name, -1, f"{name}({listed})"
    if code in _PLAIN:
        modifier = 0 if _PLAIN[code] in _TIMES.values() else -1
        return _PLAIN[code], modifier, _PLAIN[code]
    binary = collations.get(column.collation or 0) == BINARY
    if code == codes.STRING:
        name = "binary" if binary else "char"
    elif code in (codes.VARCHAR, codes.VAR_STRING):
        name = "varbinary" if binary else "varchar"
    else:
        name = _SIZES.get(length, "") + ("blob" if binary else "text")
    return name, -1, name

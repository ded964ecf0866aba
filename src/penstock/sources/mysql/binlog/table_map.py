"""A table as its server describes it before its rows: types, and with full metadata names and more.

`binlog_row_metadata=FULL` brings names, values of enumerations, the key. With MINIMAL, the default, signs
and character sets are there, and the rest is None: the caller has the catalog. Without any of it (MySQL 5.7)
numbers would be guessed to be signed, so a table whose map lacks what its types need is refused when decoded.
Of a table with a type that is not known, nothing is but its name: how long its rows are, nobody could tell.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

TINY, SHORT, LONG, FLOAT, DOUBLE, NULL, TIMESTAMP, LONGLONG, INT24 = 1, 2, 3, 4, 5, 6, 7, 8, 9
DATE, TIME, DATETIME, YEAR, NEWDATE, VARCHAR, BIT = 10, 11, 12, 13, 14, 15, 16
TIMESTAMP2, DATETIME2, TIME2, TYPED_ARRAY = 17, 18, 19, 20
BLOB_COMPRESSED, VARCHAR_COMPRESSED = 140, 141  # MariaDB's compressed columns
VECTOR, JSON, NEWDECIMAL, ENUM, SET = 242, 245, 246, 247, 248
TINY_BLOB, MEDIUM_BLOB, LONG_BLOB, BLOB, VAR_STRING, STRING, GEOMETRY = 249, 250, 251, 252, 253, 254, 255

_BLOBS: Final = (TINY_BLOB, MEDIUM_BLOB, LONG_BLOB, BLOB)
# Those whose sign is told. A year has one, which is always the same, and takes a bit nonetheless.
_NUMBERS: Final = (TINY, SHORT, INT24, LONG, LONGLONG, NEWDECIMAL, FLOAT, DOUBLE, YEAR)
# Those whose character set is told; MariaDB tells it of geometries too.
_TEXTS: Final = (STRING, VAR_STRING, VARCHAR, *_BLOBS, VECTOR, VARCHAR_COMPRESSED, BLOB_COMPRESSED)
_META_OF_ONE_BYTE: Final = (
    FLOAT, DOUBLE, *_BLOBS, JSON, GEOMETRY, VECTOR, TIMESTAMP2, DATETIME2, TIME2, BLOB_COMPRESSED,
)  # fmt: skip
_META_OF_TWO_BYTES: Final = (VARCHAR, VAR_STRING, VARCHAR_COMPRESSED, BIT, NEWDECIMAL, STRING, ENUM, SET)
_FIXED_WIDTH: Final = {
    TINY: 1, SHORT: 2, INT24: 3, LONG: 4, LONGLONG: 8, FLOAT: 4, DOUBLE: 8, NULL: 0, YEAR: 1,
    DATE: 3, NEWDATE: 3, TIME: 3, DATETIME: 8, TIMESTAMP: 4,
}  # fmt: skip
_KNOWN: Final = frozenset({*_META_OF_ONE_BYTE, *_META_OF_TWO_BYTES, *_FIXED_WIDTH})
_FRACTIONAL_WIDTH: Final = {TIMESTAMP2: 4, DATETIME2: 5, TIME2: 3}
#: bytes that so many decimal digits take, less than nine of them
DIGIT_BYTES: Final = (0, 1, 1, 2, 2, 3, 3, 4, 4)

# Numbers of fields behind the description proper.
_SIGNEDNESS, _DEFAULT_CHARSET, _COLUMN_CHARSET, _NAMES, _SET_VALUES, _ENUM_VALUES = range(1, 7)
_KEY, _KEY_WITH_PREFIX, _ENUM_DEFAULT_CHARSET, _ENUM_CHARSET, _VISIBILITY = 8, 9, 10, 11, 12


@dataclass(frozen=True, slots=True)
class Column:
    """`length` is what the type needs: digits, bytes, fractional digits. `width`: see `event_kernels`."""

    type: int
    length: int
    scale: int
    width: int
    nullable: bool
    name: str | None = None
    unsigned: bool | None = None
    collation: int | None = None
    values: tuple[bytes, ...] | None = None
    visible: bool = True


@dataclass(frozen=True, slots=True)
class TableMap:
    schema: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[int, ...] | None = field(default=None)
    unknown_type: int | None = None

    @property
    def stream(self) -> str:
        return f"{self.schema}.{self.name}"


class _Reader:
    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    @property
    def done(self) -> bool:
        return self.at >= len(self.data)

    def take(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self) -> int:
        first = self.take(1)[0]
        return first if first < 251 else int.from_bytes(self.take({252: 2, 253: 3, 254: 8}[first]), "little")

    def text(self) -> bytes:
        return self.take(self.number())


def parse_table_map(body: bytes, mariadb: bool = False) -> TableMap:
    """The body of an event without the table's id."""
    reader = _Reader(body, 2)
    schema = reader.take(reader.take(1)[0] + 1)[:-1].decode()
    name = reader.take(reader.take(1)[0] + 1)[:-1].decode()
    types = reader.take(reader.number())
    unknown = next((code for code in types if code not in _KNOWN), None)
    if unknown is not None:
        return TableMap(schema, name, (), unknown_type=unknown)
    meta = _Reader(reader.text())
    nullable = reader.take((len(types) + 7) // 8)
    columns = [
        _column(code, meta, bool(nullable[index >> 3] >> (index & 7) & 1)) for index, code in enumerate(types)
    ]
    key = None
    while not reader.done:
        kind, content = reader.take(1)[0], _Reader(reader.text())
        if kind in (_KEY, _KEY_WITH_PREFIX):
            key = _key(content, with_prefix=kind == _KEY_WITH_PREFIX)
        else:
            _describe(columns, kind, content, mariadb)
    return TableMap(schema, name, tuple(columns), key)


def _column(code: int, meta: _Reader, nullable: bool) -> Column:
    length = scale = 0
    if code in _META_OF_ONE_BYTE:
        length = meta.take(1)[0]
    elif code in (BIT, NEWDECIMAL):
        length, scale = meta.take(2)
        if code == BIT:
            length += 8 * scale
    elif code in (STRING, ENUM, SET):
        code, length = _real_type(*meta.take(2))
    elif code in _META_OF_TWO_BYTES:
        length = int.from_bytes(meta.take(2), "little")
    return Column(code, length, scale, _width(code, length, scale), nullable)


def _real_type(first: int, second: int) -> tuple[int, int]:
    """CHAR, ENUM and SET share a type; lengths above 255 have two bits hidden in the other byte."""
    if first & 0x30 != 0x30:
        return first | 0x30, second | ((first & 0x30) ^ 0x30) << 4
    return first, second


def _width(code: int, length: int, scale: int) -> int:
    if code in _FIXED_WIDTH:
        return _FIXED_WIDTH[code]
    if code in _FRACTIONAL_WIDTH:
        return _FRACTIONAL_WIDTH[code] + (length + 1) // 2
    if code == NEWDECIMAL:
        return decimal_width(length, scale)
    if code == BIT:
        return (length + 7) // 8
    if code in (ENUM, SET):
        return length
    if code in (STRING, VARCHAR, VAR_STRING, VARCHAR_COMPRESSED):
        return -2 if length > 255 else -1
    return -length


def decimal_width(precision: int, scale: int) -> int:
    whole = precision - scale
    return 4 * (whole // 9 + scale // 9) + DIGIT_BYTES[whole % 9] + DIGIT_BYTES[scale % 9]


def _key(content: _Reader, with_prefix: bool) -> tuple[int, ...]:
    columns = []
    while not content.done:
        columns.append(content.number())
        if with_prefix:
            content.number()
    return tuple(columns)


def _describe(columns: list[Column], kind: int, content: _Reader, mariadb: bool) -> None:
    """One field of what follows the description proper, put into the columns it is about."""
    if kind == _SIGNEDNESS:
        places = [index for index, column in enumerate(columns) if column.type in _NUMBERS]
        for number, index in enumerate(places):
            columns[index] = replace(columns[index], unsigned=_bit(content.data, number))
    elif kind in (_DEFAULT_CHARSET, _ENUM_DEFAULT_CHARSET):
        places = _of_characters(columns, kind == _ENUM_DEFAULT_CHARSET, mariadb)
        collations = [content.number()] * len(places)
        while not content.done:
            number = content.number()
            collations[number] = content.number()
        _set_collations(columns, places, collations)
    elif kind in (_COLUMN_CHARSET, _ENUM_CHARSET):
        places = _of_characters(columns, kind == _ENUM_CHARSET, mariadb)
        _set_collations(columns, places, [content.number() for _ in places])
    elif kind == _NAMES:
        for index, column in enumerate(columns):
            columns[index] = replace(column, name=content.text().decode())
    elif kind in (_SET_VALUES, _ENUM_VALUES):
        for index, column in enumerate(columns):
            if column.type == (SET if kind == _SET_VALUES else ENUM):
                values = tuple(content.text() for _ in range(content.number()))
                columns[index] = replace(column, values=values)
    elif kind == _VISIBILITY:
        for index, column in enumerate(columns):
            columns[index] = replace(column, visible=_bit(content.data, index))


def _bit(bits: bytes, number: int) -> bool:
    """The first is the highest of its byte."""
    return bool(bits[number >> 3] >> (7 - (number & 7)) & 1)


def _of_characters(columns: list[Column], enumerated: bool, mariadb: bool) -> list[int]:
    types = (ENUM, SET) if enumerated else (*_TEXTS, *((GEOMETRY,) if mariadb else ()))
    return [index for index, column in enumerate(columns) if column.type in types]


def _set_collations(columns: list[Column], places: list[int], collations: list[int]) -> None:
    for index, collation in zip(places, collations, strict=True):
        columns[index] = replace(columns[index], collation=collation)

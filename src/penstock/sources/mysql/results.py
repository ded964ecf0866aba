"""The rows of a query as columns of text, exactly as the change log has the same values, block by block.

Promise: a value has one text, whichever way it comes. It holds because values are asked for as the server
stores them (`selected`), in the column's own character set, and are written by the compiled writers of the
binary log's decoder; numbers, dates and times the server prints as those writers do; floating-point numbers
are read back to the bit and printed by the same function; and because tests compare both ways for every type.

Rows are found in the bytes of the socket, which from the query on is read here and not by the driver. A block
is what came, up to `block_bytes` and so many rows; it is handed out when it is full or the result has ended.

No Python object is made per row or value, but for the multi-byte character sets of East Asia.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import SourceError
from penstock.core.schema import SourceColumn
from penstock.sources.mysql import result_kernels as kernels
from penstock.sources.mysql.binlog import packets
from penstock.sources.mysql.binlog import table_map as types
from penstock.sources.mysql.binlog import value_kernels as values
from penstock.sources.mysql.binlog.charsets import BINARY, charset_of, conversion, read_collations
from penstock.sources.mysql.binlog.columns import VECTOR, Rendering, render
from penstock.sources.mysql.binlog.packet_kernels import Bytes, Ints, Lengths, whole_packets
from penstock.sources.mysql.connection import Connection, query_error, query_errors, quoted

BLOCK_BYTES = 8 << 20
_ROOM_MIN = 64 << 10
_CELLS_MAX = 2_000_000
_ROWS_MIN, _ROWS_MAX = 256, 65_536
_QUERY = b"\x03"
_ERROR, _LOCAL_FILE, _OK = 0xFF, 0xFB, 0x00
_ZEROFILL = 64  # a flag of a result's column
_FLOATS: Final = {"float": pa.float32(), "double": pa.float64()}


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """How a column of a result becomes text."""

    rendering: Rendering
    floating: pa.DataType | None = None
    zero_filled: bool = False
    unchecked: bool = False  # bytes that are to be text, and may be none


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Rows of a result, a column of text each."""

    rows: int
    columns: list[pa.StringArray]


def selected(column: SourceColumn) -> str:
    """SQL for a column in the form that `read_texts` takes it in.

    A FLOAT is printed with six digits only, and with (M,D) neither it nor a DOUBLE has all of them; what is
    computed from it is a double and has.
    """
    name = quoted(column.name)
    if column.type_name in _FLOATS:
        return f"{name} * 1.0e0"
    return name


def read_texts(
    connection: Connection,
    query: str,
    columns: Sequence[SourceColumn],
    *,
    stream: str,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[TextBlock]:
    """Rows of `query`, which selects `columns` by `selected`; the connection is of use again at its end."""
    with query_errors("reading the table", stream=stream):
        collations = read_collations(connection)
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION character_set_results = NULL")
        yield from _Result(connection, query, columns, collations, stream, block_bytes).blocks()
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION character_set_results = utf8mb4")


class _Result:
    def __init__(
        self,
        connection: Any,  # more of it is used than its stubs tell
        query: str,
        columns: Sequence[SourceColumn],
        collations: Mapping[int, str],
        stream: str,
        block_bytes: int,
    ) -> None:
        self._socket = connection._sock
        self._timeout_s = connection._read_timeout
        self._stream = stream
        self._block_bytes = block_bytes
        self._buffer = np.empty(block_bytes + _ROOM_MIN, np.uint8)
        self._used = self._at = 0
        connection._current_timeout = self._timeout_s
        self._socket.settimeout(self._timeout_s)
        self._socket.sendall(packets.command(_QUERY + query.encode()))
        self._columns = self._described(columns, collations)

    def blocks(self) -> Iterator[TextBlock]:
        count = len(self._columns)
        rows_max = min(_ROWS_MAX, max(_ROWS_MIN, _CELLS_MAX // count))
        row, reason = 0, kernels.MORE
        offsets, lengths = np.empty((count, rows_max), np.int64), np.empty((count, rows_max), np.int32)
        while reason != kernels.END:
            row, at, reason = kernels.locate_rows(self._buffer, self._at, self._used, row, offsets, lengths)
            self._at = int(at)
            self._refuse(reason)
            full = reason == kernels.FULL or (reason == kernels.MORE and self._at >= self._block_bytes)
            if row and (full or reason == kernels.END):
                yield self._rendered(int(row), offsets, lengths)
                self._move_rest()
                row = 0
            if reason == kernels.MORE:
                self._receive()

    def _refuse(self, reason: int) -> None:
        if reason == kernels.ERROR:
            raise self._error(self._message_at(self._at))
        if reason == kernels.MALFORMED:
            raise self._unexpected()

    def _rendered(self, rows: int, offsets: Ints, lengths: Lengths) -> TextBlock:
        texts = [
            _text(self._buffer, offsets[index, :rows], lengths[index, :rows], column, self._stream)
            for index, column in enumerate(self._columns)
        ]
        return TextBlock(rows, texts)

    def _described(
        self, columns: Sequence[SourceColumn], collations: Mapping[int, str]
    ) -> list[ResultColumn]:
        """What the server says of the result before its rows."""
        first = self._next_message()
        if first[0] == _ERROR:
            raise self._error(first)
        if first[0] in (_OK, _LOCAL_FILE) or _Fields(first).number() != len(columns):
            raise self._unexpected()
        described = [
            _result_column(self._next_message(), column, collations, self._stream) for column in columns
        ]
        self._next_message()  # the end of the descriptions
        return described

    def _next_message(self) -> bytes:
        while True:
            after = whole_packets(self._buffer, self._at, self._used)
            if after >= 0:
                message = self._message_at(self._at)
                self._at = int(after)
                return message
            self._receive()

    def _message_at(self, at: int) -> bytes:
        """Of one packet, as all are but rows."""
        length = int.from_bytes(self._buffer[at : at + 3].tobytes(), "little")
        if length == 0:
            raise self._unexpected()
        return self._buffer[at + 4 : at + 4 + length].tobytes()

    def _receive(self) -> None:
        if len(self._buffer) - self._used < _ROOM_MIN:  # a row may be larger than a block
            larger = np.empty(2 * len(self._buffer), np.uint8)
            larger[: self._used] = self._buffer[: self._used]
            self._buffer = larger
        count = self._socket.recv_into(self._buffer.data[self._used :])
        if count == 0:
            raise query_error(0, "reading the table", stream=self._stream)
        self._used += count

    def _move_rest(self) -> None:
        """The next block begins with what came behind this one."""
        rest = self._used - self._at
        kept = self._buffer
        if len(kept) > 2 * self._block_bytes + _ROOM_MIN:  # it grew for one large row
            kept = np.empty(max(self._block_bytes, rest) + _ROOM_MIN, np.uint8)
        kept[:rest] = self._buffer[self._at : self._used]
        self._buffer, self._used, self._at = kept, rest, 0

    def _error(self, packet: bytes) -> SourceError:
        return query_error(int.from_bytes(packet[1:3], "little"), "reading the table", stream=self._stream)

    def _unexpected(self) -> SourceError:
        return SourceError(
            "The server sent rows in another form than the table's columns have.",
            stream=self._stream,
            remedy="Run the same command again. If that does not help, something between the server and "
            "Penstock changes the data: connect to the server itself.",
        )


class _Fields:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self) -> int:
        first = self.take(1)[0]
        return first if first < 251 else int.from_bytes(self.take({252: 2, 253: 3, 254: 8}[first]), "little")


def _result_column(
    description: bytes, column: SourceColumn, collations: Mapping[int, str], stream: str
) -> ResultColumn:
    fields = _Fields(description)
    for _ in range(6):  # catalog, schema, table twice, name twice
        fields.take(fields.number())
    fields.number()
    collation = int.from_bytes(fields.take(2), "little")
    fields.take(4)
    code, flags = fields.take(1)[0], int.from_bytes(fields.take(2), "little")
    zero_filled = bool(flags & _ZEROFILL) and code != types.YEAR  # whose four digits the log has too
    if column.type_name in _FLOATS:
        return ResultColumn(Rendering(values.UTF8), _FLOATS[column.type_name])
    if code == types.BIT:
        return ResultColumn(Rendering(values.BITS, length=column.type_modifier))
    if code == types.GEOMETRY:
        return ResultColumn(Rendering(values.GEOMETRY))
    if code == types.VECTOR:
        return ResultColumn(Rendering(VECTOR))
    if code in (types.STRING, types.VAR_STRING, types.VARCHAR, types.ENUM, types.SET, *_BLOBS):
        charset = charset_of(collation, collations, stream)
        if charset == BINARY:  # members of an enumeration are text, as in the log
            are_members = column.type_name in ("enum", "set")
            return ResultColumn(Rendering(values.UTF8 if are_members else values.HEX), unchecked=are_members)
        kind, codes = conversion(charset, stream)
        return ResultColumn(Rendering(kind, codes=codes))
    return ResultColumn(Rendering(values.UTF8), zero_filled=zero_filled)


_BLOBS: Final = (types.TINY_BLOB, types.MEDIUM_BLOB, types.LONG_BLOB, types.BLOB)


def _text(
    buffer: Bytes, offsets: Ints, lengths: Lengths, column: ResultColumn, stream: str
) -> pa.StringArray:
    if column.zero_filled:
        kernels.skip_zeros(buffer, offsets, lengths)
    text = render(buffer, offsets, lengths, column.rendering, stream)
    if column.unchecked:
        return _checked(text)
    if column.floating is None:
        return text
    # A float is exact as the double that came, so it is the same number that the log has.
    return pc.cast(pc.cast(text, pa.float64()).cast(column.floating, safe=False), pa.string())


def _checked(text: pa.StringArray) -> pa.StringArray:
    """Bytes that are no UTF-8 are replaced as those of members are in the log (`charsets.to_utf8`)."""
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        found = text.cast(pa.binary(), safe=False).to_pylist()
        whole = [None if value is None else value.decode(errors="replace") for value in found]
        return pa.array(whole, pa.string())
    return text

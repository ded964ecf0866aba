"""Rows of any number of columns, wherever they lie, against a model: what is written is what is read."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import SourceError
from penstock.sources.mysql.binlog import event_kernels as kernels
from penstock.sources.mysql.binlog.events import Carry, Tables, scan, strides
from penstock.sources.mysql.binlog.packets import EventBatch
from penstock.sources.mysql.binlog.rows import RowLayout, decode_rows
from penstock.sources.mysql.binlog.table_map import LONG, LONGLONG, VARCHAR

pytestmark = pytest.mark.unit
UTF8 = 255
#: a column: its type, the length in its description
BIGINT, INT, SHORT_TEXT, LONG_TEXT = (LONGLONG, 0), (LONG, 0), (VARCHAR, 200), (VARCHAR, 2_000)
Value = int | str | None
Row = Sequence[Value]
TABLES = st.lists(st.sampled_from([BIGINT, INT, SHORT_TEXT, LONG_TEXT]), min_size=1, max_size=80)


def event(kind: int, body: bytes) -> bytes:
    return struct.pack("<IBIIIH", 1, kind, 7, 19 + len(body), 0, 0) + body


def sized(data: bytes) -> bytes:
    return (bytes([len(data)]) if len(data) < 251 else b"\xfc" + struct.pack("<H", len(data))) + data


def bits(flags: Sequence[bool]) -> bytes:
    number = sum(flag << index for index, flag in enumerate(flags))
    return number.to_bytes((len(flags) + 7) // 8, "little")


def table_map(columns: Sequence[tuple[int, int]]) -> bytes:
    types = bytes(code for code, _ in columns)
    lengths = b"".join(struct.pack("<H", length) for code, length in columns if code == VARCHAR)
    numbers = sum(code != VARCHAR for code, _ in columns)
    described = b"\1" + sized(bytes((numbers + 7) // 8)) if numbers else b""  # all of them are signed
    described += b"\2" + sized(bytes([0xFC, UTF8, 0]))
    body = struct.pack("<IHH", 5, 0, 1) + b"\1s\0\1t\0"
    count = sized(types)
    return event(kernels.TABLE_MAP, body + count + sized(lengths) + bits([True] * len(columns)) + described)


def image(columns: Sequence[tuple[int, int]], row: Row) -> bytes:
    # The server sets the bits behind the last column.
    nulls = [value is None for value in row] + [True] * (-len(row) % 8)
    data = bits(nulls)
    for (code, length), value in zip(columns, row, strict=True):
        if isinstance(value, int):
            data += value.to_bytes(8 if code == LONGLONG else 4, "little", signed=True)
        elif value is not None:
            text = value.encode()
            data += len(text).to_bytes(2 if length > 255 else 1, "little") + text
    return data


def rows_event(kind: int, columns: Sequence[tuple[int, int]], images: Sequence[bytes]) -> bytes:
    present = bits([True] * len(columns)) * (2 if kind == kernels.UPDATE_2 else 1)
    body = struct.pack("<IHHH", 5, 0, 1, 2) + bytes([len(columns)]) + present
    return event(kind, body + b"".join(images))


@st.composite
def tables_and_rows(draw: st.DrawFn) -> tuple[list[tuple[int, int]], list[Row]]:
    columns = draw(TABLES)
    has_nulls = draw(st.booleans())
    values: list[st.SearchStrategy[Value]] = []
    for code, length in columns:
        value: st.SearchStrategy[Value]
        if code == VARCHAR:
            value = st.text(max_size=90 if length > 255 else 40)
        else:
            value = st.integers(-(2**31), 2**31 - 1)
        values.append(st.none() | value if has_nulls else value)
    return columns, draw(st.lists(st.tuples(*values), min_size=1, max_size=4))


def decoded(events: list[bytes]) -> tuple[list[list[str | None]], list[list[str | None]]]:
    """New rows and old ones, as the decoder has them; the last event ends where the buffer does."""
    tables = Tables()
    batch = EventBatch.join(events)
    assert len(batch.buffer) == batch.ends[-1]
    found = scan(batch, 0, len(batch), Carry(), tables)
    layout = RowLayout.of(tables.maps[0], {UTF8: "utf8mb4"})
    images = decode_rows(batch, found.kind, found.row_at, found.present_at, layout)
    for part in (*images.columns, *images.old):
        part.validate(full=True)
    assert images.absent is None
    new, old = (
        [list(row) for row in zip(*(part.to_pylist() for part in parts), strict=True)]
        for parts in (images.columns, images.old)
    )
    return new, old


def shown(rows: Sequence[Row]) -> list[list[str | None]]:
    return [[None if value is None else str(value) for value in row] for row in rows]


@given(tables_and_rows())
def test_inserted_rows_are_what_was_inserted(drawn: tuple[list[tuple[int, int]], list[Row]]) -> None:
    columns, rows = drawn
    images = [image(columns, row) for row in rows]
    new, old = decoded([table_map(columns), rows_event(kernels.WRITE_2, columns, images)])
    assert new == shown(rows)
    assert old == []


@given(tables_and_rows())
def test_updated_rows_are_what_they_were_and_what_they_became(
    drawn: tuple[list[tuple[int, int]], list[Row]],
) -> None:
    columns, rows = drawn
    before = rows[::-1]
    images = [image(columns, old) + image(columns, new) for old, new in zip(before, rows, strict=True)]
    new, old = decoded([table_map(columns), rows_event(kernels.UPDATE_2, columns, images)])
    assert new == shown(rows)
    assert old == shown(before)


@given(tables_and_rows(), st.integers(1, 40))
def test_rows_that_are_cut_off_are_refused(
    drawn: tuple[list[tuple[int, int]], list[Row]], missing: int
) -> None:
    columns, rows = drawn
    images = [image(columns, row) for row in rows]
    whole = rows_event(kernels.WRITE_2, columns, [images[0]])
    begin = len(whole) - len(images[0])
    cut = whole[: max(begin + 1, len(whole) - missing)]
    if len(cut) < len(whole):
        with pytest.raises(SourceError, match="do not fit"):
            decoded([table_map(columns), cut])


@given(st.lists(st.sampled_from([1, 3, 4, 8, -1, -2, -4])))
def test_strides_are_the_widths_in_their_order(widths: list[int]) -> None:
    *steps, (fixed, last) = strides(widths)
    assert last == 0
    assert sum(before for before, _ in steps) + fixed == sum(width for width in widths if width > 0)
    assert [size for _, size in steps] == [-width for width in widths if width < 0]

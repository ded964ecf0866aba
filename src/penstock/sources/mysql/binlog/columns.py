"""Values of one column, wherever in a buffer they are, to an Arrow column of text.

How long texts may become is known before they are written: from the type, or from the values' lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import SourceError
from penstock.sources.mysql.binlog import column_kernels as kernels
from penstock.sources.mysql.binlog import json_kernels, row_kernels
from penstock.sources.mysql.binlog import value_kernels as values
from penstock.sources.mysql.binlog.packet_kernels import Bytes, Ints, Lengths, Places
from penstock.sources.mysql.binlog.packets import MEMORY
from penstock.word_kernels import SLACK

FLOAT, DOUBLE, JSON, VECTOR = 100, 101, 102, 103  # kinds beside those of `value_kernels`
NO_BYTES: Final = np.zeros(0, np.uint8)
NO_NUMBERS: Final = np.zeros(0, np.int64)
Texts = tuple[Lengths, int, Bytes]

_OFFSET_MAX = 2**31 - 1
_ROWS_AT_A_TIME = 8_192
_AT_ONCE: Final = (FLOAT, JSON, VECTOR)  # those for which Arrow does a part
_INTEGER_BYTES: Final = (1, 4, 6, 8, 11, 13, 15, 18, 20)  # by width: digits and a sign
_LONGEST = 32  # of doubles, dates and times
_SRID_BYTES = 16
#: Bytes of text that a byte becomes at most.
_EXPANSIONS: Final = {
    values.UTF8: 1, values.HEX: 2, values.GEOMETRY: 2, values.SINGLE_BYTE: 3,
    values.MULTI_BYTE: 3, values.EUC_JP: 3, values.GB18030: 3,
    values.UTF16_BIG: 2, values.UTF16_LITTLE: 2, values.UTF32: 2,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rendering:
    """How a column's values become text: `kind` is of `value_kernels`, or one of the four beside them."""

    kind: int
    width: int = -1
    length: int = 0
    scale: int = 0
    texts: Bytes = field(default_factory=lambda: NO_BYTES)
    ends: Ints = field(default_factory=lambda: NO_NUMBERS)
    codes: Ints = field(default_factory=lambda: NO_NUMBERS)


def render(buffer: Bytes, places: Places, lengths: Lengths, column: Rendering, stream: str) -> pa.StringArray:
    """Values of one column, which are at these places; a place below zero is null.

    `lengths` is empty if the column's width is that of all its values.
    """
    return render_all(buffer, [(places, lengths, column)], stream)[0]


def render_all(
    buffer: Bytes, located: Sequence[tuple[Places, Lengths, Rendering]], stream: str
) -> list[pa.StringArray]:
    """Columns of the same rows. Some thousand rows at a time, column by column, while caches hold them."""
    filled = [_Filled(buffer, *each) if each[2].kind not in _AT_ONCE else None for each in located]
    rows = len(located[0][0]) if located else 0
    for first in range(0, max(rows, 1), _ROWS_AT_A_TIME):
        for texts in filled:
            if texts is not None:
                texts.fill(first, min(first + _ROWS_AT_A_TIME, rows))
    return [
        _rendered_at_once(buffer, *each, stream)
        if texts is None
        else _string_array(*texts.texts, each[0], stream)
        for texts, each in zip(filled, located, strict=True)
    ]


def _rendered_at_once(
    buffer: Bytes, places: Places, lengths: Lengths, column: Rendering, stream: str
) -> pa.StringArray:
    if column.kind == FLOAT:
        return _floats(buffer, places)
    if column.kind == JSON:
        return _string_array(*_json(buffer, places, lengths, stream), places, stream)
    return _string_array(*_vectors(buffer, places, lengths), places, stream)


class _Filled:
    """Offsets and texts of a column side by side, in memory that was used before, as a rule."""

    def __init__(self, buffer: Bytes, places: Places, lengths: Lengths, column: Rendering) -> None:
        offset_bytes = 4 * (len(places) + 1)
        size = offset_bytes + room(column, places, lengths) + SLACK
        memory = MEMORY.take(size + size // 8)  # the next batch may have a little more
        self._buffer, self._places, self._lengths, self._column = buffer, places, lengths, column
        self._offsets, self._out = memory[:offset_bytes].view(np.int32), memory[offset_bytes:]
        self._offsets[0] = 0
        self._used = 0

    def fill(self, first: int, last: int) -> None:
        self._used = int(
            _fill(
                self._buffer,
                self._places[first:last],
                self._lengths[first:last],
                self._column,
                self._offsets[first : last + 1],
                self._out,
                self._used,
            )
        )

    @property
    def texts(self) -> Texts:
        return self._offsets, self._used, self._out


def room(column: Rendering, places: Places, lengths: Lengths) -> int:
    """Bytes that the texts of a column take at most."""
    kind, rows = column.kind, len(places)
    if kind in _EXPANSIONS:
        least = column.length if kind == values.HEX else 0
        extra = _SRID_BYTES * rows if kind == values.GEOMETRY else 0
        return int(kernels.count_bytes(places, lengths, least)) * _EXPANSIONS[kind] + extra
    if kind in (values.SIGNED, values.UNSIGNED):
        return rows * _INTEGER_BYTES[column.width]
    if kind == values.DECIMAL:
        return rows * (column.length + 4)
    if kind == values.BITS:
        return rows * column.length
    if kind in (values.ENUM, values.SET):
        members = np.diff(column.ends, prepend=0)
        return rows * int((members + 1).sum() if kind == values.SET else members.max(initial=0))
    return rows * _LONGEST


def _fill(
    buffer: Bytes,
    places: Places,
    lengths: Lengths,
    column: Rendering,
    offsets: Lengths,
    out: Bytes,
    start: int,
) -> Any:
    kind, length, scale = column.kind, column.length, column.scale
    if kind == values.UTF8:
        return kernels.copy_texts(buffer, places, lengths, offsets, out, start)
    if kind in (values.SIGNED, values.UNSIGNED):
        return kernels.render_integers(
            buffer, places, column.width, kind == values.SIGNED, offsets, out, start
        )
    if kind == DOUBLE:
        return kernels.render_doubles(buffer, places, offsets, out, start)
    if kind == values.DECIMAL and 0 < length - scale <= kernels.WHOLE_MAX and scale <= kernels.SCALE_MAX:
        return kernels.render_decimals(buffer, places, length, scale, offsets, out, start)
    if kind == values.DATE:
        return kernels.render_dates(buffer, places, offsets, out, start)
    if kind == values.DATETIME2:
        return kernels.render_datetimes(buffer, places, length, offsets, out, start)
    if kind == values.TIMESTAMP2:
        return kernels.render_timestamps(buffer, places, length, offsets, out, start)
    return kernels.render_others(
        kind, buffer, places, lengths, column.width, length, scale,
        column.texts, column.ends, column.codes, offsets, out, start,
    )  # fmt: skip


def _string_array(offsets: Lengths, size: int, data: Bytes, places: Places, stream: str) -> pa.StringArray:
    """Arrow text over buffers of ours, without a copy."""
    if size > _OFFSET_MAX:
        raise SourceError(
            "Values of one column that came together are larger than 2 GiB as text.",
            stream=stream,
            remedy="Leave the column out of the stream.",
        )
    nulls, bits = _validity(places)
    texts = pa.py_buffer(data[:size])
    return pa.StringArray.from_buffers(len(places), pa.py_buffer(offsets), texts, bits, nulls)


def _validity(places: Places) -> tuple[int, Any]:
    nulls = kernels.count_nulls(places)
    return nulls, pa.py_buffer(kernels.valid_bits(places)) if nulls else None


def _floats(buffer: Bytes, places: Places) -> pa.StringArray:
    numbers = np.empty(len(places), np.float32)
    row_kernels.gather_floats(buffer, places, numbers.view(np.uint8), 4)
    nulls, bits = _validity(places)
    arrow = pa.Array.from_buffers(pa.float32(), len(places), [bits, pa.py_buffer(numbers)], nulls)
    return pc.cast(arrow, pa.string())


def _json(buffer: Bytes, places: Places, lengths: Lengths, stream: str) -> Texts:
    found = json_kernels.render_json(buffer, places, lengths, NO_BYTES, NO_NUMBERS, False)
    if found[3] and len(doubles := found[2]):
        _, ends, data = pc.cast(pa.array(doubles), pa.string()).buffers()
        shown_at = np.frombuffer(ends, np.int32)[: len(doubles) + 1].astype(np.int64)
        ends, data = json_kernels.lay_out_doubles(shown_at, _bytes(data))
        found = json_kernels.render_json(buffer, places, lengths, data, ends, True)
    text_offsets, texts, _, sound = found
    if not sound:
        raise SourceError(
            "The binary log has a JSON value that cannot be read.",
            stream=stream,
            remedy="Report it with the server's version; leave the column out of the stream meanwhile.",
        )
    return text_offsets.astype(np.int32), len(texts), texts


def _vectors(buffer: Bytes, places: Places, lengths: Lengths) -> Texts:
    """`[1,0.5]`: each number the shortest text that reads back as the same one."""
    floats, ends = row_kernels.gather_vectors(buffer, places, lengths)
    shown = pc.cast(pa.array(floats.view(np.float32)), pa.string())
    _, text_ends, data = shown.buffers()
    text_offsets, texts = row_kernels.join_vectors(
        ends, places, np.frombuffer(text_ends, np.int32)[: len(shown) + 1].copy(), _bytes(data)
    )
    return text_offsets.astype(np.int32), len(texts), texts


def _bytes(buffer: pa.Buffer | None) -> Bytes:
    """A copy, which may be written to: compiled code is the same for all arrays then."""
    return NO_BYTES if buffer is None else np.frombuffer(buffer, np.uint8).copy()

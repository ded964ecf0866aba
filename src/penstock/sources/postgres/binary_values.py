"""Values as Postgres sends them in binary → Arrow, one column at a time.

Each decoder gives bit by bit what the type's parser makes of the text that Postgres prints (see `types`),
and marks as bad what the Arrow type cannot hold: NaN and infinity of a numeric, infinite dates and
timestamps, timestamps beyond 64-bit microseconds since 1970. Bytes that no value of the type has raise
`CopyFormatError`, without the bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.sources.postgres import copy_binary_kernels as kernels
from penstock.sources.postgres.copy_binary import BinaryFields, CopyFormatError
from penstock.values.text_casts import CastResult

Decoder = Callable[[BinaryFields, pa.DataType], CastResult]

# Postgres counts from 2000-01-01, Arrow from 1970-01-01. Postgres' calendar begins at 4714-11-24 BC.
_EPOCH_DAYS = 10_957
_FIRST_DAY = -2_451_545
_DAY_US = 86_400_000_000
_JSONB_VERSION = 1


def booleans(fields: BinaryFields, arrow: pa.DataType) -> CastResult:
    bits = np.zeros(_bitmap_bytes(fields), np.uint8)
    _require(kernels.decode_booleans(fields.raw, fields.positions, bits))
    return _array(fields, arrow, [bits])


def integers(fields: BinaryFields, arrow: pa.DataType) -> CastResult:
    out = np.empty(fields.positions.size, f"i{arrow.bit_width // 8}")
    _require(kernels.decode_integers(fields.raw, fields.positions, out))
    return _array(fields, arrow, [out])


def floats(fields: BinaryFields, arrow: pa.DataType) -> CastResult:
    width = arrow.bit_width // 8
    infinity, nan = (np.array([value], f"f{width}").view(f"i{width}")[0] for value in (np.inf, np.nan))
    out = np.empty(fields.positions.size, f"i{width}")
    _require(kernels.decode_floats(fields.raw, fields.positions, int(infinity), int(nan), out))
    return _array(fields, arrow, [out])


def dates(fields: BinaryFields, arrow: pa.DataType) -> CastResult:
    last = np.iinfo(np.int32).max - _EPOCH_DAYS
    return _calendar(fields, arrow, _EPOCH_DAYS, _FIRST_DAY, last, np.int32)


def timestamps(fields: BinaryFields, arrow: pa.DataType) -> CastResult:
    shift = _EPOCH_DAYS * _DAY_US
    last = np.iinfo(np.int64).max - shift
    return _calendar(fields, arrow, shift, _FIRST_DAY * _DAY_US, last, np.int64)


def _calendar(
    fields: BinaryFields, arrow: pa.DataType, shift: int, first: int, last: int, dtype: type[np.signedinteger]
) -> CastResult:
    out = np.empty(fields.positions.size, dtype)
    bad = np.zeros(fields.positions.size, np.bool_)
    failures = _require(
        kernels.decode_calendar(fields.raw, fields.positions, shift, first, int(last), out, bad)
    )
    return _array(fields, arrow, [out], bad if failures else None)


def decimals(fields: BinaryFields, arrow: pa.DataType) -> CastResult:
    assert isinstance(arrow, pa.Decimal128Type)
    out = np.empty(2 * fields.positions.size, np.uint64)
    bad = np.zeros(fields.positions.size, np.bool_)
    failures = _require(
        kernels.decode_decimals(fields.raw, fields.positions, arrow.precision, arrow.scale, out, bad)
    )
    return _array(fields, arrow, [out], bad if failures else None)


def byte_strings(fields: BinaryFields, arrow: pa.DataType) -> CastResult:
    """Text and bytea are sent as they are, without an end."""
    return _of_any_length(fields, arrow, -1)


def jsonb(fields: BinaryFields, arrow: pa.DataType) -> CastResult:
    return _of_any_length(fields, arrow, _JSONB_VERSION)


def _of_any_length(fields: BinaryFields, arrow: pa.DataType, version: int) -> CastResult:
    offsets = np.empty(fields.positions.size + 1, np.int32)
    _require(kernels.measure_bytes(fields.raw, fields.positions, version, offsets))
    out = np.empty(offsets[-1], np.uint8)
    kernels.copy_bytes(fields.raw, fields.positions, version, offsets, out)
    return _array(fields, arrow, [offsets, out])


def uuids(fields: BinaryFields, arrow: pa.DataType) -> CastResult:
    offsets = np.empty(fields.positions.size + 1, np.int32)
    out = np.empty(36 * fields.positions.size, np.uint8)
    _require(kernels.print_uuids(fields.raw, fields.positions, offsets, out))
    return _array(fields, arrow, [offsets, out[: offsets[-1]]])


def text(fields: BinaryFields) -> pa.StringArray:
    """A column that was selected as text."""
    return byte_strings(fields, pa.string()).values


def _require(outcome: int) -> int:
    if outcome == kernels.INVALID:
        raise CopyFormatError("A value has another length or form than its column's type.")
    return outcome


def _bitmap_bytes(fields: BinaryFields) -> int:
    return (fields.positions.size + 7) // 8


def _array(
    fields: BinaryFields,
    arrow: pa.DataType,
    buffers: list[np.ndarray[Any, Any]],
    bad: kernels.Flags | None = None,
) -> CastResult:
    rows = fields.positions.size
    bits = np.zeros(_bitmap_bytes(fields), np.uint8)
    nulls = kernels.find_nulls(fields.positions, bits)
    validity = pa.py_buffer(bits) if nulls else None
    data = [pa.py_buffer(buffer) for buffer in buffers]
    if bad is None:
        return CastResult(pa.Array.from_buffers(arrow, rows, [validity, *data], null_count=nulls))
    marked = pa.array(bad)
    there = pa.Array.from_buffers(pa.bool_(), rows, [None, pa.py_buffer(bits)])
    valid = pc.and_not(there, marked).buffers()[1]
    return CastResult(pa.Array.from_buffers(arrow, rows, [valid, *data]), marked)


def warm_up() -> None:
    """Have compiled what makes text: the first rows of every shape are read as that."""
    text(BinaryFields(np.zeros(8, np.uint8), np.full(1, -1, np.int32)))

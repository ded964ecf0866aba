"""What a Postgres value becomes in Arrow, by one table of rules, the same on both ways in.

A value comes as text (from the change log, or selected as text) or natively through ADBC (loads); a rule
gives the same Arrow value for both, bit by bit. A type is loaded natively only where tests against a real
server show that ADBC carries it exactly; every other type, known or not, stays the text that Postgres'
own output function prints under our session settings, which is exact by definition.

What a column's Arrow type cannot hold is *bad*: null in `values` and marked in `bad`, for the caller to
make a dead letter of. That is: NaN in a numeric(p,s); infinite dates and timestamps; timestamps after
294247-01-10, beyond 64-bit microseconds since 1970. BC and the years after 9999 are held exactly. NaN in a
float is held, with one bit pattern for all NaNs.

Cost: the 11 columns of the benchmark (3 integers, decimal, 3 texts, date, timestamptz, float, bool) take
about 0.2 CPU-seconds per million rows from text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.schema import SourceColumn
from penstock.sources.postgres import parse, parse_time

DECIMAL_DIGITS_MAX = 38
TIMESTAMP = pa.timestamp("us")
TIMESTAMPTZ = pa.timestamp("us", "UTC")

# Postgres' calendar begins at 4714-11-24 BC. ADBC adds 30 years to a value without looking: infinity and
# the years after 294246 wrap around to values before that day, where no true value can be.
_FIRST_DAY = -2_440_588
_FIRST_MICROSECOND = _FIRST_DAY * 86_400_000_000


@dataclass(frozen=True, slots=True)
class CastResult:
    """`bad` marks what the type cannot hold (null in `values`); None: nothing is bad."""

    values: pa.Array
    bad: pa.BooleanArray | None = None


Cast = Callable[[pa.Array, pa.DataType], CastResult]


@dataclass(frozen=True, slots=True)
class Rule:
    """`from_native` None: ADBC does not carry the type exactly, so loads select it as text."""

    arrow: Callable[[SourceColumn], pa.DataType]
    from_text: Cast
    from_native: Cast | None


def arrow_type(column: SourceColumn) -> pa.DataType:
    return _rule(column).arrow(column)


def load_expression(column: SourceColumn) -> Literal["native", "text"]:
    """How a load selects the column: as it is, or by `text_expression`."""
    return "text" if _rule(column).from_native is None else "native"


def text_expression(quoted_name: str, column: SourceColumn) -> str:
    """SQL for the text that Postgres' output function prints: what logical replication sends.

    A cast to text is not that: it strips the blanks of char(n), adds `/32` to inet, says `true` for `t`,
    and may be redefined by a user's own cast. IS NULL is true for a row value of nulls; counting is not.
    A numeric, which is common, goes by its own output function: a quarter of the cost at the server.
    """
    if column.type_name == "numeric":
        return f"pg_catalog.textin(pg_catalog.numeric_out({quoted_name}))"
    printed = f"pg_catalog.format('%s', {quoted_name})"
    return f"CASE WHEN pg_catalog.num_nonnulls({quoted_name}) = 0 THEN NULL ELSE {printed} END"


def cast_text(array: pa.Array, column: SourceColumn) -> CastResult:
    """Text as Postgres prints it → the column's Arrow type."""
    rule = _rule(column)
    arrow = rule.arrow(column)
    if not len(array):
        return CastResult(pa.array([], arrow))
    return rule.from_text(_as_strings(array), arrow)


def from_adbc(array: pa.Array, column: SourceColumn) -> CastResult:
    """A column fetched by its `load_expression` through ADBC → what `cast_text` gives for its text."""
    rule = _rule(column)
    if rule.from_native is None:
        return cast_text(array, column)
    arrow = rule.arrow(column)
    if not len(array):
        return CastResult(pa.array([], arrow))
    return rule.from_native(array.storage if isinstance(array, pa.ExtensionArray) else array, arrow)


def _decimal_or_text(column: SourceColumn) -> pa.DataType:
    """numeric(p,s) as a decimal where Arrow has one; without a declared scale no decimal type is exact."""
    if column.type_modifier < 4:
        return pa.string()
    modifier = column.type_modifier - 4
    precision = modifier >> 16 & 0xFFFF
    scale = (modifier & 0x7FF ^ 0x400) - 0x400  # eleven bits, signed since Postgres 15
    if precision > DECIMAL_DIGITS_MAX or not 0 <= scale <= precision:
        return pa.string()
    return pa.decimal128(precision, scale)


def _as_strings(array: pa.Array) -> pa.StringArray:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    return array if pa.types.is_string(array.type) else array.cast(pa.string())


_Arguments = tuple[parse.Offsets, parse.Bytes, parse.Bytes, int]


def _buffers(array: pa.Array) -> _Arguments:
    """The buffers of a string array, as the compiled parsers take them."""
    validity, offsets, data = array.buffers()
    first = array.offset
    return (
        _view(offsets, np.int32)[first : first + len(array) + 1],
        _view(data, np.uint8),
        _view(validity if array.null_count else None, np.uint8),
        first,
    )


def _view(buffer: pa.Buffer | None, dtype: type[np.generic]) -> np.ndarray[tuple[int], np.dtype[Any]]:
    values = np.frombuffer(buffer, dtype) if buffer is not None and buffer.size else np.empty(0, dtype)
    # Compiled functions are specialised by this flag, and Arrow sets it by where a buffer came from.
    values.flags.writeable = False
    return values


def _result(
    source: pa.Array, arrow: pa.DataType, bad: parse.Flags | None, buffers: Sequence[np.ndarray[Any, Any]]
) -> CastResult:
    """An array over `buffers`, null where `source` is null or bad."""
    marked = None if bad is None else pa.array(bad)
    validity = None
    if source.null_count or marked is not None:
        valid = source.is_valid()
        valid = valid if marked is None else pc.and_not(valid, marked)
        assert valid.offset == 0
        validity = valid.buffers()[1]
    data = [pa.py_buffer(np.ascontiguousarray(buffer)) for buffer in buffers]
    return CastResult(pa.Array.from_buffers(arrow, len(source), [validity, *data]), marked)


def _text(array: pa.Array, arrow: pa.DataType) -> CastResult:
    return CastResult(array)


def _boolean(array: pa.Array, arrow: pa.DataType) -> CastResult:
    out, bad = np.zeros(len(array), np.bool_), np.zeros(len(array), np.bool_)
    failures = parse.parse_booleans(*_buffers(array), out, bad)
    return _result(array, arrow, bad if failures else None, [np.packbits(out, bitorder="little")])


def _integer(array: pa.Array, arrow: pa.DataType) -> CastResult:
    out, bad = np.zeros(len(array), np.int64), np.zeros(len(array), np.bool_)
    dtype = np.dtype(arrow.to_pandas_dtype())
    limits = np.iinfo(dtype)
    failures = parse.parse_integers(*_buffers(array), int(limits.min), int(limits.max), out, bad)
    return _result(array, arrow, bad if failures else None, [out.astype(dtype, copy=False)])


def _float(array: pa.Array, arrow: pa.DataType) -> CastResult:
    try:
        # Arrow's parser rounds correctly and knows NaN and Infinity; it stops at what is not a number.
        return CastResult(_one_nan(array.cast(arrow)))
    except pa.ArrowInvalid:
        bad = np.array([not _is_number(text, arrow) for text in array.to_pylist()], np.bool_)
        kept = pc.if_else(pa.array(bad), pa.scalar(None, pa.string()), array)
        return CastResult(_one_nan(kept.cast(arrow)), pa.array(bad))


def _is_number(text: str | None, arrow: pa.DataType) -> bool:
    try:
        pa.scalar(text, pa.string()).cast(arrow)
    except pa.ArrowInvalid:
        return False
    return True


def _one_nan(array: pa.Array) -> pa.Array:
    """All NaNs with the same bits: Postgres keeps those of the processor (inf - inf has the sign set)."""
    values = array.to_numpy(zero_copy_only=False)
    nan = np.isnan(values)
    if not nan.any():
        return array
    return _result(array, array.type, None, [np.where(nan, values.dtype.type(np.nan), values)]).values


def _decimal(array: pa.Array, arrow: pa.DataType) -> CastResult:
    if not isinstance(arrow, pa.Decimal128Type):
        return CastResult(array)
    out, bad = np.zeros(2 * len(array), np.uint64), np.zeros(len(array), np.bool_)
    failures = parse.parse_decimals(*_buffers(array), arrow.precision, arrow.scale, out, bad)
    return _result(array, arrow, bad if failures else None, [out])


def _date(array: pa.Array, arrow: pa.DataType) -> CastResult:
    out, bad = np.zeros(len(array), np.int32), np.zeros(len(array), np.bool_)
    failures = parse_time.parse_dates(*_buffers(array), out, bad)
    return _result(array, arrow, bad if failures else None, [out])


def _timestamp(array: pa.Array, arrow: pa.DataType) -> CastResult:
    out, bad = np.zeros(len(array), np.int64), np.zeros(len(array), np.bool_)
    failures = parse_time.parse_timestamps(*_buffers(array), out, bad)
    return _result(array, arrow, bad if failures else None, [out])


def _bytes(array: pa.Array, arrow: pa.DataType) -> CastResult:
    arguments = _buffers(array)
    offsets = np.zeros(len(array) + 1, np.int32)
    out = np.empty(arguments[1].size // 2 + 1, np.uint8)
    bad = np.zeros(len(array), np.bool_)
    failures = parse.parse_hex(*arguments, offsets, out, bad)
    return _result(array, arrow, bad if failures else None, [offsets, out[: offsets[-1]]])


def _native(array: pa.Array, arrow: pa.DataType) -> CastResult:
    return CastResult(array if array.type == arrow else array.cast(arrow))


def _native_float(array: pa.Array, arrow: pa.DataType) -> CastResult:
    return CastResult(_one_nan(array))


def _native_calendar(array: pa.Array, arrow: pa.DataType) -> CastResult:
    days = pa.types.is_date32(arrow)
    values = array.view(pa.int32() if days else pa.int64())
    wrapped = pc.fill_null(pc.less(values, _FIRST_DAY if days else _FIRST_MICROSECOND), False)
    array = array if array.type == arrow else array.cast(arrow)
    if not pc.any(wrapped).as_py():
        return CastResult(array)
    return CastResult(pc.if_else(wrapped, pa.scalar(None, arrow), array), wrapped)


def _native_uuid(array: pa.Array, arrow: pa.DataType) -> CastResult:
    first, count = array.offset, len(array)
    raw = _view(array.buffers()[1], np.uint8)[16 * first : 16 * (first + count)]
    lengths = np.full(count, 36, np.int32)
    lengths[array.is_null().to_numpy(zero_copy_only=False)] = 0
    out = np.empty(36 * count, np.uint8)
    parse.print_uuids(raw, out)
    printed = out if not array.null_count else out[np.repeat(lengths > 0, 36)]
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
    return _result(array, arrow, None, [offsets, printed])


def _always(arrow: pa.DataType) -> Callable[[SourceColumn], pa.DataType]:
    return lambda column: arrow


_TEXT = Rule(_always(pa.string()), _text, _native)
#: By the name of the base type in pg_type; of a domain, its base type's. What is not here is text.
RULES: dict[str, Rule] = {
    "bool": Rule(_always(pa.bool_()), _boolean, _native),
    "int2": Rule(_always(pa.int16()), _integer, _native),
    "int4": Rule(_always(pa.int32()), _integer, _native),
    "int8": Rule(_always(pa.int64()), _integer, _native),
    "float4": Rule(_always(pa.float32()), _float, _native_float),
    "float8": Rule(_always(pa.float64()), _float, _native_float),
    # ADBC carries it exactly, but prints the digits at twice the cost of the server's own text.
    "numeric": Rule(_decimal_or_text, _decimal, None),
    "date": Rule(_always(pa.date32()), _date, _native_calendar),
    "timestamp": Rule(_always(TIMESTAMP), _timestamp, _native_calendar),
    "timestamptz": Rule(_always(TIMESTAMPTZ), _timestamp, _native_calendar),
    "bytea": Rule(_always(pa.binary()), _bytes, _native),
    "uuid": Rule(_always(pa.string()), _text, _native_uuid),
    "text": _TEXT,
    "varchar": _TEXT,
    "bpchar": _TEXT,
    "name": _TEXT,
    "json": _TEXT,
    "jsonb": _TEXT,
}
#: Exact only as text: arrays, enums, ranges, inet, money, time, interval, xml, "char", geometry, unknown.
_PRINTED = Rule(_always(pa.string()), _text, None)


def _rule(column: SourceColumn) -> Rule:
    return RULES.get(column.type_name, _PRINTED)

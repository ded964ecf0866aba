"""Casts of the log's text to Arrow arrays, a column at a time, over the compiled parsers of `parse`.

A cast never raises and never guesses: what the Arrow type cannot hold is null in `values` and marked in
`bad`, for the caller to make a dead letter of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.values import parse, parse_array, parse_time


@dataclass(frozen=True, slots=True)
class CastResult:
    """`bad` marks what the type cannot hold (null in `values`); None: nothing is bad."""

    values: pa.Array
    bad: pa.BooleanArray | None = None


Cast = Callable[[pa.Array, pa.DataType], CastResult]


_Arguments = tuple[parse.Offsets, parse.Bytes, parse.Bytes, int]


def string_buffers(array: pa.Array) -> _Arguments:
    """The buffers of a string array, as the compiled parsers take them."""
    validity, offsets, data = array.buffers()
    first = array.offset
    return (
        view(offsets, np.int32)[first : first + len(array) + 1],
        view(data, np.uint8),
        view(validity if array.null_count else None, np.uint8),
        first,
    )


def view(buffer: pa.Buffer | None, dtype: type[np.generic]) -> np.ndarray[tuple[int], np.dtype[Any]]:
    values = np.frombuffer(buffer, dtype) if buffer is not None and buffer.size else np.empty(0, dtype)
    # Compiled functions are specialised by this flag, and Arrow sets it by where a buffer came from.
    values.flags.writeable = False
    return values


def array_over(
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


def as_text(array: pa.Array, arrow: pa.DataType) -> CastResult:
    return CastResult(array)


def booleans(array: pa.Array, arrow: pa.DataType) -> CastResult:
    out, bad = np.zeros(len(array), np.bool_), np.zeros(len(array), np.bool_)
    failures = parse.parse_booleans(*string_buffers(array), out, bad)
    return array_over(array, arrow, bad if failures else None, [np.packbits(out, bitorder="little")])


def integers(array: pa.Array, arrow: pa.DataType) -> CastResult:
    out, bad = np.zeros(len(array), np.int64), np.zeros(len(array), np.bool_)
    dtype = np.dtype(arrow.to_pandas_dtype())
    limits = np.iinfo(dtype)
    failures = parse.parse_integers(*string_buffers(array), int(limits.min), int(limits.max), out, bad)
    return array_over(array, arrow, bad if failures else None, [out.astype(dtype, copy=False)])


def floats(array: pa.Array, arrow: pa.DataType) -> CastResult:
    try:
        # Arrow's parser rounds correctly and knows NaN and Infinity; it stops at what is not a number.
        return CastResult(one_nan(array.cast(arrow)))
    except pa.ArrowInvalid:
        bad = np.array([not _is_number(text, arrow) for text in array.to_pylist()], np.bool_)
        # Not a null scalar: beside a slice of texts Arrow would take bytes from elsewhere (GH-49410).
        kept = pc.if_else(pa.array(bad), pa.nulls(len(array), pa.string()), array)
        return CastResult(one_nan(kept.cast(arrow)), pa.array(bad))


def _is_number(text: str | None, arrow: pa.DataType) -> bool:
    try:
        pa.scalar(text, pa.string()).cast(arrow)
    except pa.ArrowInvalid:
        return False
    return True


def one_nan(array: pa.Array) -> pa.Array:
    """All NaNs with the same bits: Postgres keeps those of the processor (inf - inf has the sign set)."""
    values = array.to_numpy(zero_copy_only=False)
    nan = np.isnan(values)
    if not nan.any():
        return array
    return array_over(array, array.type, None, [np.where(nan, values.dtype.type(np.nan), values)]).values


def decimals(array: pa.Array, arrow: pa.DataType) -> CastResult:
    if not isinstance(arrow, pa.Decimal128Type):
        return CastResult(array)
    out, bad = np.zeros(2 * len(array), np.uint64), np.zeros(len(array), np.bool_)
    failures = parse.parse_decimals(*string_buffers(array), arrow.precision, arrow.scale, out, bad)
    return array_over(array, arrow, bad if failures else None, [out])


def dates(array: pa.Array, arrow: pa.DataType) -> CastResult:
    out, bad = np.zeros(len(array), np.int32), np.zeros(len(array), np.bool_)
    failures = parse_time.parse_dates(*string_buffers(array), out, bad)
    return array_over(array, arrow, bad if failures else None, [out])


def timestamps(array: pa.Array, arrow: pa.DataType) -> CastResult:
    out, bad = np.zeros(len(array), np.int64), np.zeros(len(array), np.bool_)
    failures = parse_time.parse_timestamps(*string_buffers(array), out, bad)
    return array_over(array, arrow, bad if failures else None, [out])


def byte_strings(array: pa.Array, arrow: pa.DataType) -> CastResult:
    """Of Postgres' hexadecimal form, `\\x00ff`."""
    return _bytes_of_hex(array, arrow, prefix=2)


def bare_hex(array: pa.Array, arrow: pa.DataType) -> CastResult:
    """Of hexadecimal digits and nothing else."""
    return _bytes_of_hex(array, arrow, prefix=0)


def _bytes_of_hex(array: pa.Array, arrow: pa.DataType, *, prefix: int) -> CastResult:
    arguments = string_buffers(array)
    offsets = np.zeros(len(array) + 1, np.int32)
    out = np.empty(arguments[1].size // 2 + 1, np.uint8)
    bad = np.zeros(len(array), np.bool_)
    failures = parse.parse_hex(*arguments, prefix, offsets, out, bad)
    return array_over(array, arrow, bad if failures else None, [offsets, out[: offsets[-1]]])


def times(array: pa.Array, arrow: pa.DataType) -> CastResult:
    out, bad = np.zeros(len(array), np.int64), np.zeros(len(array), np.bool_)
    failures = parse_time.parse_times(*string_buffers(array), out, bad)
    return array_over(array, arrow, bad if failures else None, [out])


def lists(element: Cast) -> Cast:
    """A cast of arrays by that of their elements; an array with an element that does not fit is bad."""

    def cast(array: pa.Array, arrow: pa.DataType) -> CastResult:
        assert isinstance(arrow, pa.ListType)
        parsed = parse_array.parse_arrays(*string_buffers(array))
        starts, offsets, data, is_null, bad = parsed
        validity = pa.py_buffer(np.packbits(~is_null, bitorder="little")) if is_null.any() else None
        texts = pa.Array.from_buffers(
            pa.string(), len(is_null), [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
        )
        held = element(texts, arrow.value_type) if len(texts) else CastResult(pa.array([], arrow.value_type))
        if held.bad is not None:
            unfit = np.concatenate([[0], np.cumsum(held.bad.to_numpy(zero_copy_only=False))])
            bad |= unfit[starts[1:]] > unfit[starts[:-1]]
        invalid = array.is_null().to_numpy(zero_copy_only=False) | bad
        mask = pa.array(invalid) if invalid.any() else None
        values = pa.ListArray.from_arrays(pa.array(starts), held.values, type=arrow, mask=mask)
        return CastResult(values, pa.array(bad) if bad.any() else None)

    return cast


def warm_up() -> None:
    """Have the parsers compiled that stream lanes and loads share."""
    examples = {
        "t": (booleans, pa.bool_()),
        "1": (integers, pa.int64()),
        "1.5": (decimals, pa.decimal128(12, 2)),
        "2026-01-31": (dates, pa.date32()),
        "2026-01-31 12:00:00+00": (timestamps, pa.timestamp("us", "UTC")),
        "12:00:00": (times, pa.time64("us")),
        "\\x00": (byte_strings, pa.binary()),
    }
    for text, (cast, arrow) in examples.items():
        cast(pa.array([text]), arrow)

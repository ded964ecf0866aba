"""Common texts of days, times and intervals, as Debezium's types have them, a column at a time.

Numbers are the text of a number; other values stand in quotes, ready for JSON.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.streams.encoding import time_kernels
from penstock.streams.encoding.cells import cells_of, is_valid, packed
from penstock.streams.encoding.layout import Converted, Flags
from penstock.streams.events import Int64s
from penstock.values import parse_time, text_casts

_INFINITE_US = {"infinity": 9223372036825200000, "-infinity": -9223372036832400000}
_INFINITE_DAYS = {"infinity": 2147483647, "-infinity": -2147483648}
_DURATION = (
    r"^(?P<sign>-?)(?P<hours>[0-9]+):(?P<minutes>[0-9]{2}):(?P<seconds>[0-9]{2})"
    r"(?:\.(?P<digits>[0-9]{1,6}))?$"
)
_MIDNIGHT_US = 86_400_000_000

_Read: TypeAlias = tuple[Int64s, Flags]  # numbers, and which could not be read


def day_numbers(column: pa.StringArray) -> Converted:
    """Days since 1970."""
    out, bad = _days(column)
    return _numbers(out, bad, column)


def _days(column: pa.StringArray) -> _Read:
    out, bad = np.zeros(len(column), np.int32), np.zeros(len(column), np.bool_)
    failures = parse_time.parse_dates(*text_casts.string_buffers(column), out, bad)
    found = out.astype(np.int64)
    return _with_words(column, found, bad, _INFINITE_DAYS) if failures else (found, bad)


def _micros(column: pa.StringArray) -> _Read:
    out, bad = np.zeros(len(column), np.int64), np.zeros(len(column), np.bool_)
    failures = parse_time.parse_timestamps(*text_casts.string_buffers(column), out, bad)
    return _with_words(column, out, bad, _INFINITE_US) if failures else (out, bad)


def _with_words(column: pa.StringArray, out: Int64s, bad: Flags, words: dict[str, int]) -> _Read:
    """Values that are words, such as `infinity`, and what is bad beside them."""
    for word, number in words.items():
        is_word = pc.fill_null(pc.equal(column, word), False).to_numpy(zero_copy_only=False)
        out[is_word] = number
        bad &= ~is_word
    return out, bad


def _numbers(out: Int64s, bad: Flags, column: pa.StringArray) -> Converted:
    texts = pa.array(out, mask=~is_valid(column) | bad).cast(pa.string())
    return Converted(texts, bad if bad.any() else None)


def _clock_micros(column: pa.StringArray) -> _Read:
    out, bad = np.zeros(len(column), np.int64), np.zeros(len(column), np.bool_)
    failures = parse_time.parse_times(*text_casts.string_buffers(column), out, bad)
    return _with_words(column, out, bad, {"24:00:00": _MIDNIGHT_US}) if failures else (out, bad)


def clock_numbers(column: pa.StringArray, unit: int) -> Converted:
    out, bad = _clock_micros(column)
    return _numbers(out // unit, bad, column)


def duration_numbers(column: pa.StringArray) -> Converted:
    """Microseconds of a time that may be negative, or longer than a day."""
    found = pc.extract_regex(column, _DURATION)
    bad = is_valid(column) & ~is_valid(found)
    hours, minutes, seconds = (
        pc.cast(pc.struct_field(found, name), pa.int64()) for name in ("hours", "minutes", "seconds")
    )
    digits = pc.utf8_rpad(pc.struct_field(found, "digits"), 6, "0")
    fraction = pc.cast(pc.if_else(found.is_valid(), digits, pa.scalar(None, pa.string())), pa.int64())
    whole = pc.add(pc.multiply(pc.add(pc.multiply(hours, 60), minutes), 60), seconds)
    micros = pc.add(pc.multiply(whole, 1_000_000), fraction)
    is_negative = pc.equal(pc.struct_field(found, "sign"), "-")
    values = pc.if_else(is_negative, pc.negate(micros), micros)
    return Converted(values.cast(pa.string()), bad if bad.any() else None)


def instant_numbers(column: pa.StringArray, unit: int) -> Converted:
    out, bad = _micros(column)
    return _numbers(out // unit, bad, column)


def _quoted(written: tuple[Any, ...], column: pa.StringArray, bad: Flags) -> Converted:
    """Texts in quotes; a word, such as `infinity`, stays one."""
    ends, data = written
    values = packed(ends, data, is_valid(column) & ~bad, pa.string())
    for word in ("infinity", "-infinity"):
        is_word = pc.fill_null(pc.equal(column, word), False)
        if pc.any(is_word).as_py():
            values = pc.replace_with_mask(values, is_word, pa.scalar(f'"{word}"'))
            bad = bad & ~is_word.to_numpy(zero_copy_only=False)
    return Converted(values, bad if bad.any() else None)


def zoned_timestamps(column: pa.StringArray, digits: int) -> Converted:
    out, bad = _micros(column)
    return _quoted(time_kernels.instant_column(out, is_valid(column) & ~bad, digits), column, bad)


def iso_dates(column: pa.StringArray) -> Converted:
    out, bad = _days(column)
    return _quoted(time_kernels.day_column(out.astype(np.int32), is_valid(column) & ~bad), column, bad)


def iso_times(column: pa.StringArray) -> Converted:
    out, bad = _clock_micros(column)
    return _quoted(time_kernels.clock_column(out, is_valid(column) & ~bad), column, bad)


def zoned_times(column: pa.StringArray) -> Converted:
    ends, data = time_kernels.zoned_time_column(cells_of([column]), len(column))
    return Converted(packed(ends, data, is_valid(column), pa.string()))


def intervals(column: pa.StringArray, as_text: bool) -> Converted:
    ends, data, bad = time_kernels.interval_column(cells_of([column]), len(column), as_text)
    return Converted(packed(ends, data, is_valid(column), pa.string()), bad if bad.any() else None)

"""Typed values as Postgres prints them, for rows that are no longer there as text.

Only dead letters of rows that could not be completed need it. It is the inverse of the casts for what a key
is made of (integers, text, decimals, days, instants, truth values, bytes), so that such a letter can be
settled by its key; floats and lists are printed as Python has them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa


def print_values(column: pa.ChunkedArray) -> pa.Array:
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = values.type
    if pa.types.is_timestamp(kind):
        suffix = "+00" if kind.tz is not None else ""
        return _printed(values.view(pa.int64()), lambda value: _print_instant(value, suffix))
    if pa.types.is_date32(kind):
        return _printed(values.view(pa.int32()), _print_day)
    if pa.types.is_boolean(kind):
        return _printed(values, lambda value: "t" if value else "f")
    if pa.types.is_binary(kind):
        return _printed(values, lambda value: f"\\x{value.hex()}")
    if pa.types.is_list(kind) or pa.types.is_floating(kind):
        return _printed(values, str)
    if pa.types.is_time64(kind):
        return _printed(values, lambda value: value.isoformat())
    return values.cast(pa.string())


def _printed(values: pa.Array, printer: Any) -> pa.Array:
    return pa.array([None if value is None else printer(value) for value in values.to_pylist()], pa.string())


def _print_day(days: int) -> str:
    return _with_era(str(np.datetime64(days, "D")))


def _print_instant(microseconds: int, zone: str) -> str:
    day, _, clock = str(np.datetime64(microseconds, "us")).partition("T")
    whole, _, fraction = clock.partition(".")
    digits = fraction.rstrip("0")
    return _with_era(day, f" {whole}{'.' if digits else ''}{digits}{zone}")


def _with_era(day: str, clock: str = "") -> str:
    """numpy counts a year 0; Postgres says 1 BC."""
    year, month, of_month = day.rsplit("-", 2)
    if int(year) > 0:
        return f"{int(year):04d}-{month}-{of_month}{clock}"
    return f"{1 - int(year):04d}-{month}-{of_month}{clock} BC"

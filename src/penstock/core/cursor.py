"""Cursor values: how far an incremental stream has been read, by column name.

A value keeps its type exactly: an integer of any size, a `Decimal` with the digits the source printed, or
text (times as RFC 3339 with microseconds, dates, strings, uuids). A column without a value has none to show
yet: everything is still to be read by it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

CursorValue = int | Decimal | str
Cursors = Mapping[str, CursorValue]

#: Fields of a stream's state that are no cursors: a cursor column of such a name could not be told apart.
RESERVED_NAMES = frozenset({"chunks", "cdc_from", "next_cdc_pos", "_data", "next_data", "penstock"})

_NUMBER = re.compile(r"\A-?\d+(\.\d+)?\Z")
_TIME = re.compile(r"\A(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d(?:\.\d+)?)(?:\+00)?\Z")


def number_value(text: str) -> CursorValue:
    """A number as printed: an integer, a decimal with all its digits, or the words for what is neither."""
    match = _NUMBER.match(text)
    if match is None:
        return text
    return Decimal(text) if match[1] else int(text)


def time_value(text: str) -> str:
    """A time as printed in UTC, in RFC 3339 where that has a form for it (not for BC, nor for infinity)."""
    match = _TIME.match(text)
    return f"{match[1]}T{match[2]}Z" if match else text


def cursors_to_json(cursors: Cursors) -> dict[str, Any]:
    """A form that any JSON reader keeps: a number with a fraction is an object with its digits."""
    return {
        name: {"decimal": str(value)} if isinstance(value, Decimal) else value
        for name, value in cursors.items()
    }


def cursors_from_json(fields: Mapping[str, Any]) -> dict[str, CursorValue]:
    return {
        name: Decimal(value["decimal"]) if isinstance(value, dict) else value
        for name, value in fields.items()
    }

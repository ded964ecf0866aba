"""Literals: what people write, as the text that Postgres would print for the value.

Only spellings with one meaning in every session are taken. Postgres reads many more dates (`1/2/2024`,
`yesterday`) by its settings or its clock; those are refused with what to write instead.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone

import pyarrow as pa

from penstock.core.where.arrays import print_array, read_array
from penstock.core.where.intervals import print_interval, read_interval
from penstock.core.where.json_values import print_json
from penstock.core.where.json_values import read as read_json
from penstock.core.where.kinds import ArrayOf, EnumOf, Kind, ValueKind

#: What Postgres skips before and after a value.
WHITESPACE = " \t\n\r\f\v"
_BOOLEANS = {
    **dict.fromkeys(("t", "tr", "tru", "true", "y", "ye", "yes", "on", "1"), "t"),
    **dict.fromkeys(("f", "fa", "fal", "fals", "false", "n", "no", "of", "off", "0"), "f"),
}
_INTEGER = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_NUMERIC = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d{1,4})?", re.ASCII | re.IGNORECASE)
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_CLOCK = r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?"
_TIME = re.compile(_CLOCK, re.ASCII)
_TIMESTAMP = re.compile(
    rf"(\d{{4}}-\d\d-\d\d)(?:[ T]{_CLOCK})?(?: ?(Z|[+-]\d\d(?::?\d\d)?))?", re.ASCII | re.IGNORECASE
)
_HEX = re.compile(r"\\x(?:[0-9a-f]{2})*", re.ASCII | re.IGNORECASE)
_INTEGER_LIMIT = 2**63
_NAME_BYTES_MAX = 63
_ELEMENT_LIMITS = {"int2": 2**15, "int4": 2**31}
_INFINITIES = {"infinity": "infinity", "+infinity": "infinity", "-infinity": "-infinity"}
_FLOATS = {"nan": "NaN", "inf": "Infinity", "+inf": "Infinity", "-inf": "-Infinity"} | {
    spelled: printed.title() for spelled, printed in _INFINITIES.items()
}


class LiteralError(ValueError):
    """Not a value of the kind, or not in a spelling that is taken; the message says which one is."""


def printed(text: str, kind: ValueKind) -> str:
    """The text that Postgres prints for the literal `text` read as `kind`."""
    if isinstance(kind, EnumOf):
        return _label(text, kind)
    if isinstance(kind, ArrayOf):
        return _array(text, kind)
    if kind is Kind.NAME:
        return _name(text)
    return text if kind is Kind.TEXT else _READERS[kind](text.strip(WHITESPACE))


def _name(text: str) -> str:
    """Cut to its length as Postgres does, without a word, and not within a character."""
    return text.encode()[:_NAME_BYTES_MAX].decode(errors="ignore")


def _label(text: str, kind: EnumOf) -> str:
    if text not in kind.labels:
        raise LiteralError(f"not one of the labels of {kind.value}")
    return text


def _array(text: str, kind: ArrayOf) -> str:
    limit = _ELEMENT_LIMITS.get(kind.element_type, _INTEGER_LIMIT)

    def element(each: str) -> str:
        found = printed(each, kind.element)
        if kind.element is Kind.INTEGER and not -limit <= int(found) < limit:
            raise LiteralError(f"out of the range of {kind.element_type}")
        return found

    try:
        return print_array(read_array(text, element), str)
    except LiteralError as error:
        raise LiteralError(f"an element is {error}") from None
    except ValueError:
        raise LiteralError("not an array: write {…,…}") from None


def _interval(text: str) -> str:
    try:
        return print_interval(read_interval(text))
    except ValueError:
        raise LiteralError("not an interval: write whole units, as in 1 day 02:03:04") from None


def _json(text: str) -> str:
    try:
        return print_json(read_json(text))
    except ValueError:
        raise LiteralError("not JSON") from None


def _boolean(text: str) -> str:
    if text.lower() not in _BOOLEANS:
        raise LiteralError("not a boolean: write true or false")
    return _BOOLEANS[text.lower()]


def _integer(text: str) -> str:
    if not _INTEGER.fullmatch(text) or not -_INTEGER_LIMIT <= int(text) < _INTEGER_LIMIT:
        raise LiteralError("not a whole number of at most 64 bits")
    return str(int(text))


def _numeric(text: str) -> str:
    if text.lower() in _FLOATS:
        return _FLOATS[text.lower()]
    if not _NUMERIC.fullmatch(text):
        raise LiteralError("not a number")
    return _without_exponent(text.lower().lstrip("+"))


def _without_exponent(text: str) -> str:
    mantissa, _, exponent = text.partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    shift = int(exponent or 0)
    digits, point = whole + fraction, len(whole) + shift
    if point < 0:
        digits, point = "0" * -point + digits, 0
    digits = digits.ljust(point, "0")
    whole, fraction = digits[:point].lstrip("0") or "0", digits[point:]
    return f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"


def _double(text: str) -> str:
    return _printed_float(_nearest(text, pa.float64(), "double precision"))


def _real(text: str) -> str:
    return _printed_float(_nearest(text, pa.float32(), "real"))


def _nearest(text: str, kind: pa.DataType, name: str) -> float:
    if text.lower() in _FLOATS:
        return float(_FLOATS[text.lower()])
    if not _NUMERIC.fullmatch(text):
        raise LiteralError("not a number")
    # Arrow rounds once, from the digits, also to a real; by way of a double it would be twice.
    value: float = pa.scalar(text.lstrip("+")).cast(kind).as_py()
    if math.isinf(value):
        raise LiteralError(f"out of the range of {name}")
    if value == 0 and text.lower().partition("e")[0].strip("+-0."):
        raise LiteralError(f"too small for {name}")
    return value


def _printed_float(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value)


def _date(text: str) -> str:
    if text.lower() in _INFINITIES:
        return _INFINITIES[text.lower()]
    parts = _DATE.fullmatch(text)
    try:
        if parts is not None:
            return date(int(parts[1]), int(parts[2]), int(parts[3])).isoformat()
    except ValueError:
        raise LiteralError("there is no such day") from None
    raise LiteralError("not a date: write YYYY-MM-DD")


def _time(text: str) -> str:
    parts = _TIME.fullmatch(text)
    if parts is None:
        raise LiteralError("not a time of day: write HH:MM:SS")
    hour, minute, second = (int(part or 0) for part in parts.group(1, 2, 3))
    if hour > 23 or minute > 59 or second > 59:
        raise LiteralError("there is no such time of day")
    fraction = (parts[4] or "").rstrip("0")
    return f"{hour:02}:{minute:02}:{second:02}" + (f".{fraction}" if fraction else "")


def _timestamp(text: str) -> str:
    moment, zone = read_moment(text)
    if isinstance(moment, str):
        return moment
    if zone is not None:
        # Postgres would drop the zone in silence.
        raise LiteralError("a timestamp without time zone takes no zone: leave it out")
    return printed_moment(moment)


def _timestamptz(text: str) -> str:
    moment, zone = read_moment(text)
    if isinstance(moment, str):
        return moment
    try:
        in_utc = moment.replace(tzinfo=zone or UTC).astimezone(UTC)
    except OverflowError:
        raise LiteralError("the year is not between 1 and 9999 in UTC") from None
    return printed_moment(in_utc.replace(tzinfo=None)) + "+00"


def read_moment(text: str) -> tuple[datetime | str, timezone | None]:
    """What is written, and its time zone; an infinity is what Postgres prints for it."""
    if text.lower() in _INFINITIES:
        return _INFINITIES[text.lower()], None
    parts = _TIMESTAMP.fullmatch(text)
    if parts is None or (parts[6] and not parts[2]):
        raise LiteralError("not a timestamp: write YYYY-MM-DD HH:MM:SS")
    day, clock = _date(parts[1]), "00:00:00"
    if parts[2]:
        clock = _time(text[parts.start(2) : max(parts.end(3), parts.end(4), parts.end(5), parts.end(2))])
    return datetime.fromisoformat(f"{day} {_six_digits(clock)}"), _zone(parts[6])


def _six_digits(clock: str) -> str:
    whole, _, fraction = clock.partition(".")
    return f"{whole}.{fraction.ljust(6, '0')}" if fraction else whole


def _zone(text: str | None) -> timezone | None:
    if text is None:
        return None
    if text in "Zz":
        return UTC
    digits = text[1:].replace(":", "").ljust(4, "0")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours > 15 or minutes > 59:
        raise LiteralError("there is no such time zone")
    offset = timedelta(hours=hours, minutes=minutes)
    return timezone(-offset if text[0] == "-" else offset)


def printed_moment(moment: datetime) -> str:
    fraction = f"{moment.microsecond:06}".rstrip("0")
    printed = moment.replace(microsecond=0).isoformat(" ")
    return f"{printed}.{fraction}" if fraction else printed


def _uuid(text: str) -> str:
    try:
        if re.fullmatch(r"[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}", text):
            return str(uuid.UUID(text))
    except ValueError:
        pass
    raise LiteralError("not a uuid: write 8-4-4-4-12 hexadecimal digits")


def _bytea(text: str) -> str:
    if not _HEX.fullmatch(text):
        raise LiteralError(r"not a bytea: write \x and two hexadecimal digits per byte")
    return text.lower()


_READERS: dict[Kind, Callable[[str], str]] = {
    Kind.BOOLEAN: _boolean,
    Kind.INTEGER: _integer,
    Kind.NUMERIC: _numeric,
    Kind.REAL: _real,
    Kind.DOUBLE: _double,
    Kind.DATE: _date,
    Kind.TIME: _time,
    Kind.TIMESTAMP: _timestamp,
    Kind.TIMESTAMPTZ: _timestamptz,
    Kind.UUID: _uuid,
    Kind.BYTEA: _bytea,
    Kind.INTERVAL: _interval,
    Kind.JSON: _json,
}

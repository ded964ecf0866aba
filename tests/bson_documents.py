"""Random BSON for property tests, and what Penstock must make of a document, in plain Python.

The model takes what the driver's own decoder returns: it shares no code with the compiled one.
"""

from __future__ import annotations

import json
import math
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

from bson import DBRef, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp, json_util
from bson.binary import Binary
from bson.code import Code
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from hypothesis import strategies as st

CANONICAL = json_util.JSONOptions(
    json_mode=json_util.JSONMode.CANONICAL,
    datetime_representation=json_util.DatetimeRepresentation.NUMBERLONG,
)
#: Dates of any year, and no binary taken for something else.
EXACT: CodecOptions[dict[str, Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
INT64 = (-(2**63), 2**63 - 1)

#: Ids of every type that there is, no two of them equal.
EVERY_ID: list[Any] = [
    MinKey(), None, math.nan, -math.inf, math.inf, 0, -1, 2.5, Int64(2**60), Decimal128("1E+100"),
    Decimal128("0.1"), 0.1, Decimal128("-1E-6176"), 2**31 - 1, Int64(-(2**63)), 5e-324,
    "", "a", "B", "b", "é", "a\0b", {}, {"x": 1}, {"x": {"y": [1, {"z": None}]}}, {"x": math.nan}, {"y": "1"},
    DBRef("other", 1), b"", b"ab", Binary(b"ab", 5), Binary(uuid.UUID(int=7).bytes, 4), Binary(b"ab", 128),
    ObjectId("6afa9d21865c9b3a98642006"), ObjectId("000000000000000000000000"), False, True,
    datetime(2020, 1, 1, tzinfo=UTC), datetime(1900, 1, 1, tzinfo=UTC), Timestamp(5, 6), Code("x"),
    Code("x", {"a": 1}), MaxKey(),
]  # fmt: skip

texts = st.text(st.characters(codec="utf-8"), max_size=30)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12).filter(
    lambda name: not name.startswith("$")
)


def _is_canonical(decimal: Decimal128) -> bool:
    """Whether it has at most 34 digits; with more it stands for 0, which the driver does not know."""
    bits = int.from_bytes(decimal.bid, "little")
    special = (bits >> 122) & 31 >= 30
    return special or ((bits >> 125) & 3 < 3 and bits & (2**113 - 1) < 10**34)


decimals = st.one_of(
    st.binary(min_size=16, max_size=16).map(Decimal128.from_bid).filter(_is_canonical),
    st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**9), max_value=10**9).map(
        Decimal128
    ),
    st.sampled_from(["NaN", "-Infinity", "Infinity", "0", "-0", "0E-7", "1.00", "1E+3", "9E+6111"]).map(
        Decimal128
    ),
)
numbers = st.one_of(
    st.integers(-(2**31), 2**31 - 1),
    st.integers(*INT64).map(Int64),
    st.integers(*INT64).map(float),
    st.floats(),
    decimals,
)
scalars = st.one_of(
    numbers,
    texts,
    st.booleans(),
    st.none(),
    st.binary(min_size=12, max_size=12).map(ObjectId),
    st.integers(*INT64).map(DatetimeMS),
    st.builds(Binary, st.binary(max_size=20), st.sampled_from([0, 1, 2, 5, 6, 128])),
    st.builds(Binary, st.binary(min_size=16, max_size=16), st.sampled_from([3, 4])),
    st.builds(
        Regex[str],
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8),
        st.sampled_from([0, 2, 8, 2 | 8 | 16]),
    ),
    st.builds(Timestamp, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    st.builds(Code, texts),
    st.builds(Code, texts, st.dictionaries(names, texts, max_size=2)),
    st.just(MinKey()),
    st.just(MaxKey()),
    st.builds(DBRef, names, st.integers(0, 9)),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=4)),
    max_leaves=8,
)
documents = st.dictionaries(names, values, max_size=8)


def json_of(value: Any) -> str:
    """Canonical Extended JSON by the driver, in the form that has no choices left."""
    return json_util.dumps(_tidy(value), json_options=CANONICAL, separators=(",", ":"), ensure_ascii=False)


def _tidy(value: Any) -> Any:
    if isinstance(value, Decimal128) and value.to_decimal().is_nan():
        return Decimal128("NaN")  # of which there are many, and Extended JSON knows one
    if isinstance(value, Code):
        return Code(str(value), _tidy(value.scope)) if value.scope is not None else value
    if isinstance(value, dict):
        return {name: _tidy(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_tidy(inner) for inner in value]
    return value


def number_of(value: Any) -> Fraction | str:
    """A number by its value alone, as MongoDB compares it."""
    if isinstance(value, Decimal128):
        value = value.to_decimal()
    if isinstance(value, Decimal):  # `math` would take a large one for infinite
        is_nan, is_infinite = value.is_nan(), value.is_infinite()
    else:
        is_nan, is_infinite = math.isnan(value), math.isinf(value)
    if is_nan:
        return "nan"
    return ("-inf" if value < 0 else "inf") if is_infinite else Fraction(value)


def column_of(found: list[Any]) -> tuple[str, list[Any]]:
    """The form of a column that has these values, None where there is none, and what it holds."""
    there = [value for value in found if value is not None]
    kinds = {_kind(value) for value in there}
    if not kinds:
        return "null", found
    for form, allowed in _FORMS.items():
        if kinds <= allowed and (form != "decimal" or _fits(there)):
            return form, [None if value is None else _held(form, value) for value in found]
    return "json", [None if value is None else json.loads(json_of(value)) for value in found]


_FORMS = {
    "int32": {"int32"},
    "int64": {"int32", "int64", "wide"},
    "double": {"int32", "int64", "double"},
    "decimal": {"int32", "int64", "wide", "decimal"},
    **{name: {name} for name in ("boolean", "date", "string", "objectId", "uuid", "binary")},
}


def _kind(value: Any) -> str:  # noqa: PLR0912 - a case per type
    match value:
        case bool():
            return "boolean"
        case Int64():
            return "int64" if abs(value) <= 2**53 else "wide"
        case int():
            return "int32"
        case float():
            return "double"
        case DatetimeMS():
            return "date"
        case Code():
            return "other"
        case str():
            return "string"
        case ObjectId():
            return "objectId"
        case Decimal128():
            decimal = value.to_decimal()
            return (
                "decimal"
                if decimal.is_finite() and not (decimal.is_zero() and decimal.is_signed())
                else "odd"
            )
        case Binary(subtype=4) if len(value) == 16:
            return "uuid"
        case Binary():
            return "other"
        case bytes():
            return "binary"
        case _:
            return "other"


def _fits(found: list[Any]) -> bool:
    whole, scale = 0, 0
    for value in found:
        if isinstance(value, Decimal128):
            decimal = value.to_decimal()
            _, digits, power = decimal.as_tuple()
            assert isinstance(power, int)
            text = "".join(map(str, digits)).lstrip("0")
            stripped = text.rstrip("0")
            power += len(text) - len(stripped)
            if stripped:
                whole, scale = max(whole, len(stripped) + power), max(scale, -power)
        else:
            whole = max(whole, {"int32": 10, "int64": 16, "wide": 19}[_kind(value)])
    return whole + scale <= 38


def _held(form: str, value: Any) -> Any:
    match form:
        case "date":
            return int(value)
        case "objectId":
            return str(value)
        case "uuid":
            return str(value.as_uuid())
        case "decimal":
            return number_of(value)
        case "double":
            return math.copysign(1, value), repr(float(value))
        case _:
            return value

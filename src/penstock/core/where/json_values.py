"""Values of jsonb: equality, containment, members, and their text.

Numbers are decimals and equal whatever their digits after the point; true, false and null are objects of
their own, since Python's true equals 1 and None stands for SQL's NULL.
"""

from __future__ import annotations

import json
from decimal import Decimal
from enum import Enum
from typing import Any

from penstock.core.where.arrays import Array


class _Constant(Enum):
    TRUE = "true"
    FALSE = "false"
    NULL = "null"


_CONSTANTS = {True: _Constant.TRUE, False: _Constant.FALSE, None: _Constant.NULL}


#: What jsonb takes of a number; and depth, which it does not bound.
_DIGITS_BEFORE, _DIGITS_AFTER = 131_072, 16_383
_DEPTH_MAX = 100


def read(text: str) -> Any:
    """A `ValueError` if it is not JSON, or none that jsonb holds, or too deep to be looked into."""
    try:
        found = json.loads(text, parse_float=_number, parse_int=_number, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("too deep") from None
    return _value(found, _DEPTH_MAX)


def _number(text: str) -> Decimal:
    number = Decimal(text)
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int) or number.adjusted() > _DIGITS_BEFORE or -exponent > _DIGITS_AFTER:
        raise ValueError("out of the range of numeric")
    return number


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _value(found: Any, depth: int) -> Any:
    if depth == 0:
        raise ValueError("too deep")
    if isinstance(found, dict):
        # In jsonb's own order, which its text shows.
        names = sorted(found, key=lambda name: (len(name.encode()), name.encode()))
        return {_text(name): _value(found[name], depth - 1) for name in names}
    if isinstance(found, list):
        return [_value(each, depth - 1) for each in found]
    if isinstance(found, str):
        return _text(found)
    return found if isinstance(found, Decimal) else _CONSTANTS[found]


def _text(text: str) -> str:
    if "\0" in text:
        raise ValueError("jsonb holds no null character")
    text.encode()  # nor half of a character
    return text


def print_json(value: Any) -> str:
    if isinstance(value, dict):
        members = (f"{_quoted(name)}: {print_json(each)}" for name, each in value.items())
        return "{" + ", ".join(members) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(print_json, value)) + "]"
    if isinstance(value, Decimal):
        return format(value, "f")
    return str(value.value) if isinstance(value, _Constant) else _quoted(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def element(value: Any, place: int) -> Any:
    """A bare scalar is an array of one here, as jsonb stores it."""
    if isinstance(value, dict):
        return None
    items = value if isinstance(value, list) else [value]
    return items[place] if -len(items) <= place < len(items) else None


def as_text(value: Any) -> str | None:
    """What `->>` gives."""
    if value is None or value is _Constant.NULL:
        return None
    return value if isinstance(value, str) else print_json(value)


def has_key(value: Any, name: str) -> bool:
    return name in value if isinstance(value, dict | list) else bool(value == name)


def has_any_key(value: Any, names: Array) -> bool:
    return any(name is not None and has_key(value, name) for name in names.items)


def has_all_keys(value: Any, names: Array) -> bool:
    return all(name is None or has_key(value, name) for name in names.items)


def contains(value: Any, part: Any) -> bool:
    """`@>`; an array contains a bare scalar too, at the top only."""
    if isinstance(value, list) and not isinstance(part, dict | list):
        return part in value
    return _holds(value, part)


def _holds(value: Any, part: Any) -> bool:
    if isinstance(part, dict):
        return isinstance(value, dict) and all(
            name in value and _holds(value[name], each) for name, each in part.items()
        )
    if isinstance(part, list):
        return isinstance(value, list) and all(any(_holds(own, each) for own in value) for each in part)
    return bool(value == part)

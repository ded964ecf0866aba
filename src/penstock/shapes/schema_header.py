"""The header `electric-schema`: each selected column's type, by which clients parse its texts."""

from __future__ import annotations

import json
from functools import lru_cache

from penstock.shapes.source.catalog import CardColumn, TableCard

_LENGTHS = {"varchar": "max_length", "text": "max_length", "bpchar": "length"}
_BITS = ("bit", "varbit")
_TIMES = ("time", "timetz", "timestamp", "timestamptz")
# Bits of an interval's modifier, in the order in which SQL names the fields.
_INTERVAL_FIELDS = {"YEAR": 1 << 2, "MONTH": 1 << 1, "DAY": 1 << 3, "HOUR": 1 << 10, "MINUTE": 1 << 11}
_INTERVAL_FIELDS["SECOND"] = 1 << 12
_ALL_FIELDS = 0x7FFF
_FULL_PRECISION = 0xFFFF


@lru_cache(maxsize=1024)
def schema_header(card: TableCard, columns: tuple[str, ...]) -> str:
    """One line of ASCII, as a header must be."""
    selected = (card.column(name) for name in columns)
    return json.dumps(
        {column.name: _described(column, card.key) for column in selected}, separators=(",", ":")
    )


def _described(column: CardColumn, key: tuple[str, ...]) -> dict[str, str | int | bool]:
    described: dict[str, str | int | bool] = {"type": column.type_name}
    if column.dimensions:
        described["dims"] = column.dimensions
    if column.modifier >= 0:
        described |= modifiers(column.type_name, column.modifier)
    if column.not_null:
        described["not_null"] = True
    if column.name in key:
        described["pk_index"] = key.index(column.name)
    return described


def modifiers(type_name: str, modifier: int) -> dict[str, str | int | bool]:
    """What a type's modifier says, as Postgres packs it."""
    if type_name in _LENGTHS:
        return {_LENGTHS[type_name]: modifier - 4}
    if type_name in _BITS:
        return {"length": modifier}
    if type_name in _TIMES:
        return {"precision": modifier}
    if type_name == "numeric":
        scale = ((modifier - 4 & 0x7FF) ^ 0x400) - 0x400  # 11 bits, signed
        return {"precision": modifier - 4 >> 16 & 0xFFFF, "scale": scale}
    if type_name == "interval":
        return _interval(modifier >> 16 & _ALL_FIELDS, modifier & 0xFFFF)
    return {"type_mod": modifier}


def _interval(fields: int, precision: int) -> dict[str, str | int | bool]:
    described: dict[str, str | int | bool] = {}
    if fields != _ALL_FIELDS:
        named = [name for name, bit in _INTERVAL_FIELDS.items() if fields & bit]
        described["fields"] = named[0] if len(named) == 1 else f"{named[0]} TO {named[-1]}"
    if precision != _FULL_PRECISION:
        described["precision"] = precision
    return described

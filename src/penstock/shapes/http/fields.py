"""What a request says, as text fields: the query string, and the JSON body of a POST laid over it.

`name[key]=value` makes a map under `name`. A name that comes twice counts the last time. Nothing is
interpreted here beyond that: `request.py` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote_plus

import orjson

FieldValue = str | Mapping[str, str]
Fields = Mapping[str, FieldValue]

FIELDS_MAX = 2000
_CACHED_BYTES_MAX = 2048
_CACHED_FIELDS_MAX = 40  # many short ones take fifty times their bytes, and anyone may send them
SUBSET_PREFIX = "subset__"
_SUBSET_FIELDS = ("where", "params", "order_by", "limit", "offset")


class BodyError(ValueError):
    """What is wrong with a body: the answer's JSON."""

    def __init__(self, answer: Mapping[str, str]) -> None:
        super().__init__(answer["error"])
        self.answer = dict(answer)


class QueryError(ValueError):
    """A query string that is no UTF-8, or has too many fields."""


def parse_query(query: bytes) -> Fields:
    """Waiting clients send the same line again and again: short ones are parsed once."""
    is_long = len(query) > _CACHED_BYTES_MAX or query.count(b"&") >= _CACHED_FIELDS_MAX
    return _parse_again(query) if is_long else _parse_once(query)


def _parse_again(query: bytes) -> Fields:
    fields: dict[str, FieldValue] = {}
    try:
        text = query.decode("ascii")
        pairs = text.split("&", FIELDS_MAX)
        if len(pairs) > FIELDS_MAX:
            raise QueryError("too many parameters")
        for pair in pairs:
            if not pair:
                continue
            name, _, value = pair.partition("=")
            _put(fields, unquote_plus(name, errors="strict"), unquote_plus(value, errors="strict"))
    except UnicodeDecodeError:
        raise QueryError("not UTF-8") from None
    return MappingProxyType(fields)


_parse_once = lru_cache(maxsize=4096)(_parse_again)


def _put(fields: dict[str, FieldValue], name: str, value: str) -> None:
    base, bracket, rest = name.partition("[")
    if not bracket or not base or not rest.endswith("]"):
        fields[name] = value
        return
    entries = fields.get(base)
    if not isinstance(entries, dict):
        entries = {}
        fields[base] = entries
    entries[rest[:-1]] = value


def with_body(fields: Fields, body: bytes) -> Fields:
    """The fields of the query with those of the body over them."""
    if not body.strip():
        return fields
    try:
        given = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        # Its words quote nothing of the body: what was expected, and where.
        raise BodyError({"error": "Invalid JSON in request body", "details": str(error)}) from None
    if not isinstance(given, dict):
        raise BodyError({"error": "Request body must be a JSON object"})
    # A body that names a subset means one, even if it asks for nothing in particular.
    named = {f"{SUBSET_PREFIX}where": ""} if "subset" in given else {}
    if "subset" in given:
        subset = given.pop("subset")
        if not isinstance(subset, dict):
            raise BodyError({"error": "Request body must have a JSON object as its subset"})
    else:
        subset = {name: given.pop(name) for name in _SUBSET_FIELDS if name in given}
    own = {name: _text(value) for name, value in given.items() if value is not None}
    inner = {f"{SUBSET_PREFIX}{name}": _text(value) for name, value in subset.items() if value is not None}
    return MappingProxyType({**named, **fields, **own, **inner})


def _text(value: Any) -> FieldValue:
    if isinstance(value, dict):
        return {str(name): _scalar(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):  # of column names
        quoted = ('"' + _scalar(each).replace('"', '""') + '"' for each in value)
        return ",".join(quoted)
    return _scalar(value)


def _scalar(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()

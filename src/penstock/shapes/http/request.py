"""A shape request, checked: which shape, from which offset, live or not, which subset of it.

Pure: fields in, a `ShapeRequest` out, or a `RequestError` with the messages that the client gets. Whether the
table and its columns are there is found out later, by `definition.define`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import orjson

from penstock.core.offset import LogOffset
from penstock.shapes.definition import DefinitionRequest, LogMode, Replica
from penstock.shapes.http.fields import SUBSET_PREFIX, Fields
from penstock.shapes.source.subset import SubsetRequest

PARAMS_MAX = 1000
PARAMS_BYTES_MAX = 256 * 1024  # of a shape: it keeps them for as long as it is there
_OFFSET = re.compile(r"([0-9]{1,20})_([0-9]{1,18}|inf)", re.ASCII)
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_SUBSET_FIELDS = tuple(SUBSET_PREFIX + name for name in ("where", "params", "order_by", "limit", "offset"))
_TX_MAX = 2**63 - 1

Errors = dict[str, Any]


class RequestError(ValueError):
    """Messages by field."""

    def __init__(self, errors: Mapping[str, Any]) -> None:
        super().__init__(str(dict(errors)))
        self.errors = dict(errors)


@dataclass(frozen=True, slots=True)
class ShapeRequest:
    """`offset` as it was asked for (`offset_text` for etags); with -1 and `now` there is no `handle`."""

    definition: DefinitionRequest
    offset: LogOffset | Literal["now"]
    handle: str | None = None
    live: bool = False
    sse: bool = False
    cursor: int | None = None
    compaction: bool = False
    subset: SubsetRequest | None = None

    @property
    def offset_text(self) -> str:
        return str(self.offset)

    @property
    def is_initial(self) -> bool:
        return self.handle is None


@dataclass(frozen=True, slots=True)
class DeleteRequest:
    """At least one of both is there."""

    definition: DefinitionRequest | None
    handle: str | None


def parse_request(fields: Fields) -> ShapeRequest:
    errors: Errors = {}
    replica, log = _replica(fields, errors), _log_mode(fields, errors)
    compaction = _boolean(fields, "experimental_compaction", errors)
    params = _shape_params(fields, errors)
    for name in ("table", "where", "handle", "columns", "queryable_columns", "offset"):
        if not isinstance(fields.get(name, ""), str):
            errors[name] = ["is invalid"]
    _stop_at(errors)

    offset = _offset(_text(fields, "offset"), errors)
    _stop_at(errors)
    at_start = offset in ("now", LogOffset.BEFORE_ALL)
    handle = None if at_start else _text(fields, "handle")
    if handle is None and not at_start:
        errors["handle"] = ["can't be blank when offset != -1"]
    live = _is_on(fields.get("live"))
    if live and at_start:
        said = "offset is 'now'" if offset == "now" else "offset == -1"
        errors["live"] = [f"can't be true when {said}"]
    sse = _is_on(fields.get("live_sse")) or _is_on(fields.get("experimental_live_sse"))
    if sse and not live:
        errors["live_sse"] = ["can't be true unless live is also true"]
    table = _text(fields, "table")
    if table is None and not errors:
        errors["table"] = ["can't be blank"]
    _stop_at(errors)
    assert table is not None
    assert offset is not None
    return ShapeRequest(
        definition=_definition(fields, table, params, replica, log),
        offset=offset,
        handle=handle,
        live=live,
        sse=sse,
        cursor=_cursor(fields.get("cursor")),
        compaction=compaction,
        subset=_subset(fields),
    )


def parse_delete(fields: Fields) -> DeleteRequest:
    errors: Errors = {}
    replica, log = _replica(fields, errors), _log_mode(fields, errors)
    for name in ("live", "live_sse", "experimental_live_sse", "experimental_compaction"):
        _boolean(fields, name, errors)
    params = _shape_params(fields, errors)
    for name in ("table", "where", "handle", "columns", "queryable_columns"):
        if not isinstance(fields.get(name, ""), str):
            errors[name] = ["is invalid"]
    _stop_at(errors)
    table, handle = _text(fields, "table"), _text(fields, "handle")
    if table is None and handle is None:
        raise RequestError({"handle": ["can't be blank when shape definition is missing"]})
    definition = None if table is None else _definition(fields, table, params, replica, log)
    return DeleteRequest(definition, handle)


def _stop_at(errors: Errors) -> None:
    if errors:
        raise RequestError(errors)


def _definition(
    fields: Fields, table: str, params: tuple[str, ...], replica: Replica, log: LogMode
) -> DefinitionRequest:
    return DefinitionRequest(
        table=table,
        # An empty list of columns is a mistake, and does not mean all of them.
        columns=cast(str | None, fields.get("columns")),
        where=_text(fields, "where"),
        params=params,
        replica=replica,
        log=log,
        queryable_columns=cast(str | None, fields.get("queryable_columns")),
    )


def _text(fields: Fields, name: str) -> str | None:
    """A field that says something."""
    value = fields.get(name)
    return value if isinstance(value, str) and value.strip() else None


def _is_on(value: object) -> bool:
    return value is not None and value != "false"


def _offset(text: str | None, errors: Errors) -> LogOffset | Literal["now"] | None:
    if text is None:
        errors["offset"] = ["can't be blank"]
        return None
    if text == "now":
        return "now"
    if text == "-1":
        return LogOffset.BEFORE_ALL
    found = _OFFSET.fullmatch(text)
    if found is None or int(found[1]) > _TX_MAX:
        errors["offset"] = ["has invalid format"]
        return None
    return LogOffset(int(found[1]), math.inf if found[2] == "inf" else int(found[2]))


def _replica(fields: Fields, errors: Errors) -> Replica:
    return cast(Replica, _choice(fields, "replica", ("default", "full"), errors))


def _log_mode(fields: Fields, errors: Errors) -> LogMode:
    return cast(LogMode, _choice(fields, "log", ("full", "changes_only"), errors))


def _choice(fields: Fields, name: str, choices: tuple[str, ...], errors: Errors) -> str:
    """One of the choices; the first if there is nothing."""
    value = fields.get(name) or choices[0]
    if value in choices:
        return str(value)
    errors[name] = ["is invalid"]
    return choices[0]


def _boolean(fields: Fields, name: str, errors: Errors) -> bool:
    value = fields.get(name) or "false"
    if isinstance(value, str) and value in _BOOLEANS:
        return _BOOLEANS[value]
    errors[name] = ["is invalid"]
    return False


def _cursor(value: object) -> int | None:
    """Any text is accepted; one that is no number cannot be ours."""
    return int(value) if isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value) else None


def _shape_params(fields: Fields, errors: Errors) -> tuple[str, ...]:
    params = _params(fields.get("params"), errors)
    if sum(len(text.encode()) for text in params) > PARAMS_BYTES_MAX:
        said = f"Parameters are bigger than maximum size of {PARAMS_BYTES_MAX // 1024} KiB"
        errors["params"] = [said]
    return params


def _params(value: object, errors: Errors) -> tuple[str, ...]:
    """The values of `params[1]`, `params[2]`, …"""
    if value is None or value == "":
        return ()
    if not isinstance(value, Mapping) or len(value) > PARAMS_MAX:
        errors["params"] = ["is invalid"]
        return ()
    if not all(_WHOLE_NUMBER.fullmatch(name) for name in value):
        errors["params"] = ["Parameters can only use numbers as keys"]
        return ()
    by_number = {int(name): text for name, text in value.items()}
    if sorted(by_number) != list(range(1, len(value) + 1)):
        errors["params"] = ["Parameters must be numbered sequentially, starting from 1"]
        return ()
    return tuple(by_number[number] for number in range(1, len(value) + 1))


def _subset(fields: Fields) -> SubsetRequest | None:
    """None: the request is not for a subset."""
    if not any(name in fields for name in _SUBSET_FIELDS):
        return None
    errors: Errors = {}
    given = {name.removeprefix(SUBSET_PREFIX): fields.get(name) for name in _SUBSET_FIELDS}
    for name in ("where", "order_by"):
        if not isinstance(given[name] or "", str):
            errors[name] = ["is invalid"]
    limit = _number(given, "limit", lambda number: number > 0, "must be greater than 0", errors)
    offset = _number(
        given, "offset", lambda number: number >= 0, "must be greater than or equal to 0", errors
    )
    params = _params(_json_params(given["params"], errors), errors)
    if (limit is not None or offset is not None) and not given["order_by"]:
        errors["order_by"] = ["order_by is required when limit or offset is present"]
    if errors:
        raise RequestError({"subset": errors})
    return SubsetRequest(
        where=cast(str | None, given["where"] or None),
        params=params,
        order_by=cast(str | None, given["order_by"] or None),
        limit=limit,
        offset=offset,
    )


def _number(
    given: Mapping[str, object], name: str, fits: Callable[[int], bool], otherwise: str, errors: Errors
) -> int | None:
    text = given[name]
    if text is None or text == "":
        return None
    if not isinstance(text, str) or not _WHOLE_NUMBER.fullmatch(text):
        errors[name] = ["is invalid"]
    elif not fits(int(text)):
        errors[name] = [otherwise]
    else:
        return int(text)
    return None


def _json_params(value: object, errors: Errors) -> object:
    """`subset__params` is a map, or a JSON object in one field."""
    if not isinstance(value, str) or not value:
        return value
    try:
        found = orjson.loads(value)
    except orjson.JSONDecodeError:
        errors["params"] = ["params must be valid JSON"]
        return None
    if not isinstance(found, dict):
        errors["params"] = ["params must be a JSON object"]
        return None
    return {
        name: each if isinstance(each, str) else orjson.dumps(each).decode() for name, each in found.items()
    }

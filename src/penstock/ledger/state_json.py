"""The state document as text: read without losing a digit, written without adding one.

Numbers with a fraction or an exponent keep the characters they were written with: a foreign field
or a cursor such as `0.12345678901234567890` would lose its last digits as a double.
"""

from __future__ import annotations

import json
import re
import uuid
from typing import Any


class ExactNumber(str):
    """A JSON number that is no integer, as it was written."""

    __slots__ = ()


def decode(content: bytes) -> dict[str, Any]:
    """The JSON object in `content`; ValueError says why it is none."""
    try:
        value = json.loads(content.decode(), parse_float=ExactNumber, parse_constant=_refuse)
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        if not content.strip():
            raise ValueError("it is empty") from None
        raise ValueError(f"it is not JSON (line {error.lineno}, column {error.colno})") from None
    if not isinstance(value, dict):
        raise ValueError("it does not hold a JSON object")
    return value


def encode(value: dict[str, Any]) -> bytes:
    """Indented for people, with a line for each stream: there may be many, and each save writes them all."""
    # json writes a number only by way of float; so each is written as a marked string, then unquoted.
    mark = uuid.uuid4().hex
    marked = _marked(value, mark)
    entries = marked.get("streams")
    lines = [json.dumps(entry, ensure_ascii=False) for entry in entries] if entries else []
    if lines:
        marked["streams"] = f"{mark}."
    text = json.dumps(marked, indent=1, ensure_ascii=False)
    if lines:
        text = text.replace(f'"{mark}."', "[\n  " + ",\n  ".join(lines) + "\n ]")
    return (re.sub(rf'"{mark}:([^"]*)"', r"\1", text) + "\n").encode()


def copied(value: Any) -> Any:
    """A copy that shares nothing that can change; ten times as fast as `copy.deepcopy` on JSON."""
    if isinstance(value, dict):
        return {name: copied(item) for name, item in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    return value


def _marked(value: Any, mark: str) -> Any:
    if isinstance(value, ExactNumber):
        return f"{mark}:{value}"
    if isinstance(value, dict):
        return {name: _marked(item, mark) for name, item in value.items()}
    if isinstance(value, list):
        return [_marked(item, mark) for item in value]
    return value


def _refuse(name: str) -> Any:
    raise ValueError(f"it holds {name}, which is not JSON")


def check_layout(raw: dict[str, Any]) -> None:
    """Only what every accessor relies on; `state_check.problems` looks closer."""
    section = raw.get("global")
    _expect(section is None or isinstance(section, dict), "`global` is not an object")
    _expect(isinstance(raw.get("penstock") or {}, dict), "`penstock` is not an object")
    if section is not None:
        state = section.get("state") or {}
        _expect(isinstance(state, dict), "`global.state` is not an object")
        _expect(isinstance(state.get("processing") or [], list), "`processing` is not a list")
        _expect(isinstance(section.get("streams") or [], list), "`global.streams` is not a list")
    entries = raw.get("streams") or []
    _expect(isinstance(entries, list), "`streams` is not a list")
    for entry in entries:
        _expect(isinstance(entry, dict), "an entry of `streams` is not an object")
        state = entry.get("state") or {}
        _expect(isinstance(state, dict), "the `state` of a stream is not an object")
        _expect(isinstance(state.get("penstock") or {}, dict), "`penstock` of a stream is not an object")
        chunks = state.get("chunks") or []
        well_formed = isinstance(chunks, list) and all(isinstance(chunk, dict) for chunk in chunks)
        _expect(well_formed, "the `chunks` of a stream are not a list of objects")


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)

"""What is wrong with a state document, for `penstock state check`. Empty list: nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.ledger.dialect import Unread
from penstock.ledger.state import CURSOR_PREFIX, FORMAT_VERSION, SYNC_MODES, StateDocument, entry_stream

_Spelled = Callable[[str], str]


def problems(document: StateDocument) -> list[str]:
    """In the words of the file; positions are compared by their numbers."""
    raw = document.in_numbers()
    spelled = document.dialect.spelled
    found: list[str] = []
    expected = document.type
    if raw.get("type") not in (None, expected):
        found.append(f"type is {raw['type']!r}, but the file is laid out as {expected}")
    version = (raw.get("penstock") or {}).get("format_version", FORMAT_VERSION)
    if not isinstance(version, int) or version > FORMAT_VERSION:
        found.append(f"penstock.format_version is {version!r}; this Penstock reads up to {FORMAT_VERSION}")
    entries = raw.get("streams") or []
    known = [entry_stream(entry) for entry in entries]
    found += [f"{stream}: listed twice" for stream in sorted({s for s in known if known.count(s) > 1})]
    if raw.get("global") is not None:
        found += _global_problems(raw["global"], set(known), spelled)
    members = {text for text in (raw.get("global") or {}).get("streams") or [] if isinstance(text, str)}
    for entry in entries:
        found += _stream_problems(entry, members, spelled)
    return found


def _global_problems(section: dict[str, Any], known: set[StreamId], spelled: _Spelled) -> list[str]:
    found: list[str] = []
    state = section.get("state") or {}
    lsn, target = (
        _position(state, name, f"global.state.{spelled(name)}", found) for name in ("lsn", "next_cdc_pos")
    )
    shared = spelled("lsn")
    processing = _stream_ids(state.get("processing") or [], "processing", found)
    members = _stream_ids(section.get("streams") or [], "global.streams", found)
    found += [f"global.state.{name} is empty; it should be omitted" for name in _empty(state)]
    if processing and target is None:
        found.append("processing names streams, but there is no next_cdc_pos")
    if target is not None and lsn is None:
        found.append(f"next_cdc_pos is set, but there is no {shared}")
    if lsn is not None and target is not None and target < lsn:
        found.append(f"next_cdc_pos {target} is before {shared} {lsn}")
    if members and lsn is None:
        found.append(f"global.streams names streams, but there is no {shared}")
    found += [f"{stream}: in processing, not in global.streams" for stream in processing - members]
    found += [f"{stream}: in global.streams, but has no entry in streams" for stream in members - known]
    return found


def _stream_problems(entry: dict[str, Any], members: set[str], spelled: _Spelled) -> list[str]:
    stream = entry_stream(entry)
    found: list[str] = []
    if not entry.get("stream"):
        return ["an entry of streams has no stream name"]
    if entry.get("sync_mode") not in SYNC_MODES:
        found.append(f"sync_mode {entry.get('sync_mode')!r} is not one of {', '.join(SYNC_MODES)}")
    state = entry.get("state") or {}
    found += [f"{name} is empty; it should be omitted" for name in _empty(state)]
    fields = ("cdc_from", "next_cdc_pos")
    start, target = (_position(state, name, spelled(name), found) for name in fields)
    own, end = map(spelled, fields)
    if target is not None and start is None:
        found.append(f"{end} is set, but there is no {own}")
    if start is not None and target is not None and target < start:
        found.append(f"{end} {target} is before {own} {start}")
    if start is not None and str(stream) in members:
        found.append(f"has its own {own} and is in global.streams at the same time")
    ours = state.get("penstock") or {}
    for name in ("committed_to", "replayable_from"):
        _position(ours, name, f"penstock.{name}", found)
    _position(ours.get("rewind") or {}, "to", "penstock.rewind.to", found)
    seen = set()
    for number, chunk in enumerate(state.get("chunks") or []):
        if "min" not in chunk or "max" not in chunk:
            found.append(f"chunk {number} has no min or no max")
        if chunk.get("status", "preparing") != "preparing":
            found.append(f"chunk {number} has status {chunk['status']!r}; only 'preparing' is known")
        bounds = (chunk.get("leaf"), str(chunk.get("min")), str(chunk.get("max")))
        if bounds in seen:
            found.append(f"chunk {number} is listed twice")
        seen.add(bounds)
    return [f"{stream}: {problem}" for problem in found]


def _empty(state: dict[str, Any]) -> list[str]:
    names = [
        name
        for name in state
        if name in ("next_cdc_pos", "processing", "next_data") or name.startswith(CURSOR_PREFIX)
    ]
    return [name for name in names if state[name] is None or state[name] in ("", [])]


def _position(fields: dict[str, Any], name: str, label: str, found: list[str]) -> Lsn | None:
    value = fields.get(name)
    if value is None or value == "":
        return None
    if isinstance(value, Unread):
        found.append(f"{label} cannot be read, or somebody else changed it: {value!r}")
        return None
    try:
        return Lsn.parse(value)
    except (ValueError, TypeError):
        found.append(f"{label} is not a log position: {value!r}")
        return None


def _stream_ids(values: list[Any], label: str, found: list[str]) -> set[StreamId]:
    streams = set()
    for value in values:
        try:
            streams.add(StreamId.parse(value))
        except (ValueError, AttributeError):
            found.append(f"{label} names {value!r}, which is not of the form schema.table")
    return streams

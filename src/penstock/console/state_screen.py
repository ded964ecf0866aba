"""The state file in words: what it says, what it said before, and what a start would do with it now.

What a start would do is decided by the ledger's own functions (`ledger/recovery.py`); the tables that they
would ask are asked here too where that is a look at a file (Parquet), and said as a question where it is
not.

Some of what the file holds are values of rows: bounds of chunks are keys, cursors are values of columns, and
a resume token of MongoDB has a document's key in it. Unless values are asked for, they are hidden; that one
changed is still seen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.config import Config
from penstock.core.cursor import RESERVED_NAMES
from penstock.core.errors import PenstockError
from penstock.core.stream import StreamId
from penstock.ledger import orders
from penstock.ledger.dialect import SourceName
from penstock.ledger.recovery import recover_chunks, recover_round, recover_stream_round
from penstock.ledger.state import Rewind, StateDocument, StreamState
from penstock.ledger.state_check import problems
from penstock.ledger.store import StateStore

DIFFERENCES_MAX = 400
HIDDEN = "(hidden)"
_TOKENS = frozenset({"_data", "next_data"})


def explained(config: Config, *, values: bool = False) -> dict[str, Any]:
    store = StateStore(config.state)
    document = store.load()
    versions = [
        {"version": each.version, "saved_at": each.saved_at.isoformat(), "unreadable": each.reason}
        for each in store.history()
    ]
    if document is None:
        return {"document": None, "facts": [], "problems": [], "restart": [], "versions": versions}
    return {
        "document": document.to_json() if values else _said(_without_values(document.to_json())),
        "facts": list(_facts(document)),
        "problems": problems(document) if values else _problems_without_values(document),
        "restart": restart(document, config),
        "versions": versions,
    }


def difference(state: Path, before: int, after: int, *, values: bool = False) -> dict[str, Any]:
    """What another version has otherwise, by path."""
    store = StateStore(state)
    old, new = (store.version(each).to_json() for each in (before, after))
    if not values:
        old, new = _without_values(old), _without_values(new)
    found = list(_differences(old, new, ""))
    return {"from": before, "to": after, "differences": found[:DIFFERENCES_MAX], "total": len(found)}


@dataclass(frozen=True, slots=True, repr=False)
class _Hidden:
    """A value of a row: as equal to another as it is, and shown as none."""

    value: Any

    def __repr__(self) -> str:
        return HIDDEN


def _without_values(document: dict[str, Any]) -> dict[str, Any]:
    """What is not known to be none of a row's values is taken for one."""
    entries = [
        {**entry, "state": _state_without_values(entry["state"])}
        if isinstance(entry.get("state"), dict)
        else entry
        for entry in document.get("streams") or []
    ]
    return {**document, "streams": entries}


def _state_without_values(state: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in state.items():
        if name == "chunks" and isinstance(value, list):
            found[name] = [_chunk_without_values(chunk) for chunk in value]
        else:
            is_known = name in RESERVED_NAMES - _TOKENS
            found[name] = value if is_known or value is None else _Hidden(value)
    return found


def _chunk_without_values(chunk: Any) -> Any:
    if not isinstance(chunk, dict):
        return _Hidden(chunk)
    return {
        name: value if name in ("status", "leaf") or value is None else _Hidden(value)
        for name, value in chunk.items()
    }


def _problems_without_values(document: StateDocument) -> list[str]:
    states = [entry.get("state") for entry in document.to_json().get("streams") or []]
    fields = [state for state in states if isinstance(state, dict)]
    tokens = [str(state[name]) for state in fields for name in _TOKENS if state.get(name)]
    found = problems(document)
    for token in tokens:
        found = [text.replace(token, HIDDEN) for text in found]
    return found


def _said(document: dict[str, Any]) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(json.dumps(document, default=str))
    return said


def _facts(document: StateDocument) -> Iterator[dict[str, str]]:
    yield _fact(
        "penstock.state_version",
        str(document.state_version or "none yet"),
        "Every save has the next number; of two writers, one gets it.",
    )
    if document.system_id is not None:
        yield _fact(
            "penstock.system_id, timeline",
            f"{document.system_id}, {document.timeline}",
            "The server this state is of; a state of another one is refused.",
        )
    if document.epoch is not None:
        yield _fact(
            "penstock.epoch", str(document.epoch), "The leader that wrote it: tables refuse any older one."
        )
    if document.lsn is not None:
        held = (
            "It is what the source may be told to forget, unless a stream of its own position is behind."
            if document.source == "postgres"
            else "The change log is needed from there on, or from where a stream of its own position is."
        )
        yield _fact(
            "global.state",
            str(document.lsn),
            f"Up to here {len(document.global_streams)} streams are committed in their tables. {held}",
        )
    if document.next_cdc_pos is not None:
        names = ", ".join(map(str, document.processing)) or "none"
        yield _fact(
            "global.state.next_cdc_pos, processing",
            str(document.next_cdc_pos),
            f"A round is open up to here. Not known to be committed yet: {names}.",
        )
    own = [state for state in document.stream_states if state.cdc_from is not None]
    if own:
        is_apart = document.dialect.shares_position
        yield _fact(
            f"streams[].state.{document.dialect.spelled('cdc_from')}",
            str(len(own)) if is_apart else f"{len(own)}, the least {document.level or 'of none'}",
            "Streams with a position of their own: loaded lately, set aside or paused; they join the others "
            "when they are level."
            if is_apart
            else "Each stream has a position of its own, up to which it is committed in its table; the least "
            "is of those that are not paused.",
        )
    rewinds = [state for state in document.stream_states if state.rewind is not None]
    if rewinds:
        yield _fact(
            "streams[].state.penstock.rewind",
            str(len(rewinds)),
            "Streams whose changes after a position are to be applied to their tables once more.",
        )
    every = [state for state in document.stream_states if state.is_loading]
    compared = [state for state in every if state.load_by_difference]
    if compared:
        yield _fact(
            "streams[].state.penstock.load_by_difference",
            str(len(compared)),
            "Streams of which the rows that differ from the source are being written, in one commit; what is "
            "not committed is compared again.",
        )
    loading = [state for state in every if not state.load_by_difference]
    if loading:
        left = sum(len(state.chunks or ()) for state in loading)
        yield _fact(
            "streams[].state.chunks",
            f"{left} in {len(loading)} streams",
            "Chunks of loads that are not committed. An empty list says: loaded, and visible.",
        )


def _fact(where: str, value: str, meaning: str) -> dict[str, str]:
    return {"where": where, "value": value, "meaning": meaning}


@dataclass(slots=True)
class _Tables:
    """Whether a table has committed a piece of work, where that is a look at a file."""

    directory: Path | None
    unknown: bool = False

    def is_thread_committed(self, stream: StreamId, thread_id: str) -> bool:
        if self.directory is None:
            self.unknown = True
            return False
        from penstock.destinations.parquet_layout import TableLayout

        record = TableLayout(self.directory, stream).newest_record()
        return record is not None and record.has_thread(thread_id)

    def is_rewound(self, stream: StreamId, rewind: Rewind) -> bool:
        if rewind.generation is None:
            return False
        if self.directory is None:
            self.unknown = True
            return False
        from penstock.destinations.parquet_layout import TableLayout

        record = TableLayout(self.directory, stream).newest_record()
        marker = None if record is None else record.marker
        is_of_it = marker is not None and marker.generation == rewind.generation
        return is_of_it and marker is not None and marker.start is not None and marker.start <= rewind.to


def restart(document: StateDocument, config: Config) -> list[dict[str, str]]:
    """What a start would do, in its order."""
    destination = config.destination
    tables = _Tables(destination.directory if destination.type == "parquet" else None)
    steps = [_step("the log", _log_step(document, config.source.type))]
    for _, order in orders.waiting(config.state):
        steps.append(_step(str(order.stream), f"The order to {order.action} it is carried out first."))
    try:
        steps += _rounds(document, tables)
        steps += [
            _step(str(state.stream), text)
            for state in document.stream_states
            if (text := _stream_step(document, state.stream, tables))
        ]
    except PenstockError as error:
        return [_step("the state", f"It would be refused: {error.message}")]
    if following := len(document.global_streams):
        steps.append(_step("all others", f"{following} streams follow the log from {document.lsn} on."))
    elif not document.dialect.shares_position and document.level is not None:
        text = f"Each stream follows the log from its own position on; the least is {document.level}."
        steps.append(_step("all streams", text))
    if tables.unknown:
        steps.append(_step("the tables", "They are asked what they hold, and what they say counts."))
    return steps


#: What a start does with a source of which nothing was read yet, and with one that was read before.
_FIRST = {
    "postgres": "a slot is made or found, and tables are loaded under its snapshot.",
    "mysql": "where the binary log ends is noted, tables are loaded, and the log is read from there.",
    "mongodb": "the cluster time is noted, tables are loaded, and change streams are opened from there.",
}
_AGAIN = {
    "postgres": "Capture takes the slot again. What the source sends a second time, the change log has "
    "already and skips; nothing after the position is lost, because the source was not told to forget it.",
    "mysql": "Capture reads the binary log from where the change log ends. The server keeps it as long as "
    "its own settings say: it must reach back to there.",
    "mongodb": "Capture opens change streams where the change log ends. The oplog is kept as long as its "
    "size allows: it must reach back to there.",
}


def _log_step(document: StateDocument, source: SourceName) -> str:
    own = (state.cdc_from for state in document.stream_states)
    has_followed = (
        document.lsn is not None
        if document.dialect.shares_position
        else any(position is not None for position in own)
    )
    return _AGAIN[source] if has_followed else f"Nothing was followed yet: {_FIRST[source]}"


def _rounds(document: StateDocument, tables: _Tables) -> list[dict[str, str]]:
    found = recover_round(document, set(document.streams), tables.is_thread_committed)
    if found.kind == "finish":
        return [
            _step(
                "the open round",
                f"All its tables have it: the position moves to {found.to}, nothing is written.",
            )
        ]
    if found.kind == "bounded":
        names = ", ".join(map(str, found.streams))
        return [
            _step(
                "the open round",
                f"{names}: exactly the changes after {found.start} up to {found.to} are written, or found to "
                "be there; then the position moves.",
            )
        ]
    return []


def _stream_step(document: StateDocument, stream: StreamId, tables: _Tables) -> str:
    state = document.stream(stream)
    assert state is not None
    if state.reload is not None and state.paused is None:
        if state.reload.by_difference:
            return f"Is compared with its source, and written where it differs: {state.reload.reason}."
        return f"Is loaded again: {state.reload.reason}."
    if state.is_loading and state.paused is None:
        return _load_step(document, state, tables)
    rewind = "" if state.rewind is None else _rewind_step(state, state.rewind, tables)
    return " ".join(text for text in (_following_step(document, state, tables), rewind) if text)


def _load_step(document: StateDocument, state: StreamState, tables: _Tables) -> str:
    found = recover_chunks(document, state.stream, tables.is_thread_committed)
    if state.load_by_difference:
        if not found.to_read:
            return "What differed from its source is in the table already: only the state is written."
        return "Is compared with its source again, and written where it differs: that was cut short."
    done = f"{len(found.committed)} of its open chunks are in the table already; " if found.committed else ""
    return f"{done}{len(found.to_read)} chunks are read, under a new snapshot if the old one is gone."


def _rewind_step(state: StreamState, rewind: Rewind, tables: _Tables) -> str:
    again = f"the log after {rewind.to} is applied to its table once more"
    if state.paused is not None:
        return f"When it is resumed, {again}."
    if tables.is_rewound(state.stream, rewind):
        return f"The log after {rewind.to} was applied to its table once more: only the state is written."
    return f"Behind the changes that wait, {again}, in one commit."


def _following_step(document: StateDocument, state: StreamState, tables: _Tables) -> str:
    if state.paused is not None:
        why = f" ({state.paused.reason})" if state.paused.reason else ""
        return f"Stands still, as it has since {state.paused.since}{why}; its changes are kept."
    own = recover_stream_round(document, state.stream, tables.is_thread_committed)
    if own.kind == "finish":
        return f"Its own round up to {own.to} is in the table: only its position moves."
    if own.kind == "bounded":
        return f"Its own round up to {own.to} is written with the same bounds."
    if own.kind == "again":
        return (
            f"Its own round is not in the table, and is given up: the next one begins at {own.start} too, "
            "and goes as far as the log does."
        )
    if state.cdc_from is not None and document.dialect.shares_position:
        return f"Reads the log from its own position {state.cdc_from} until it is level with the others."
    return ""


def _step(what: str, text: str) -> dict[str, str]:
    return {"what": what, "text": text}


def _differences(old: Any, new: Any, path: str) -> Iterator[dict[str, Any]]:
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *(name for name in new if name not in old)]:
            yield from _differences(old.get(name), new.get(name), f"{path}.{name}" if path else str(name))
    elif isinstance(old, list) and isinstance(new, list) and _named(old) and _named(new):
        by_name = {_name(each): each for each in old}
        now = {_name(each): each for each in new}
        for name in [*by_name, *(name for name in now if name not in by_name)]:
            yield from _differences(by_name.get(name), now.get(name), f"{path}[{name}]")
    else:
        yield {"path": path, "before": _brief(old), "after": _brief(new)}


def _named(entries: list[Any]) -> bool:
    return all(isinstance(each, dict) and "stream" in each for each in entries)


def _name(entry: dict[str, Any]) -> str:
    return f"{entry.get('namespace', '')}.{entry['stream']}"


def _brief(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, _Hidden):
        return HIDDEN
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 300 else f"{text[:300]}…"

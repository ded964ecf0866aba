"""What a state file of OLake says about each of its streams. Pure.

The file has our layout (it is where ours comes from), so it is read as a `StateDocument`; what differs is
what it can prove to us. Its positions and chunks speak of *its* tables, which we neither have nor can ask:

- a stream in `global.streams` whose load is complete (`chunks: []`, or no entry: it never had a load) is held
  by its table there up to `lsn`;
- in an open round, streams that `processing` no longer names are committed up to `next_cdc_pos`. For those it
  still names, only its own destination knows: they are *in doubt*;
- a load with chunks left, and a stream outside `global.streams`, stand at no position.

A position means the same there as here: transactions whose commit record begins before it are in the
table. It is what Postgres itself goes by when a reader reports that position and connects again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.ledger.state import CURSOR_PREFIX, StateDocument

_NOT_CURSORS = frozenset({"chunks", "cdc_from", "next_cdc_pos", "penstock", "_data", "next_data"})


@dataclass(frozen=True, slots=True)
class ImportedStream:
    """`position`: its table over there holds everything up to it. `cursors`: names of cursor columns."""

    stream: StreamId
    sync_mode: str
    position: Lsn | None
    in_doubt: bool
    chunks_left: int
    cursors: tuple[str, ...]


def imported_streams(raw: dict[str, Any]) -> list[ImportedStream]:
    """Every stream that the file knows. ValueError if it is not laid out as a state file."""
    document = StateDocument(raw)
    names = sorted({*document.streams, *document.global_streams})
    states = {entry_id(entry): entry.get("state") or {} for entry in raw.get("streams") or []}
    return [_imported(document, name, states.get(str(name), {})) for name in names]


def _imported(document: StateDocument, stream: StreamId, fields: dict[str, Any]) -> ImportedStream:
    state = document.stream(stream)
    chunks_left = len(state.chunks or ()) if state is not None else 0
    follows = stream in document.global_streams and not chunks_left
    in_doubt = stream in document.processing
    position = document.lsn if in_doubt else document.next_cdc_pos or document.lsn
    return ImportedStream(
        stream=stream,
        sync_mode=state.sync_mode if state is not None and state.sync_mode else "cdc",
        position=position if follows else None,
        in_doubt=in_doubt,
        chunks_left=chunks_left,
        cursors=tuple(
            name for name in fields if name not in _NOT_CURSORS and not name.startswith(CURSOR_PREFIX)
        ),
    )


def entry_id(entry: dict[str, Any]) -> str:
    return f"{entry.get('namespace', '')}.{entry.get('stream', '')}"


def selected_streams(catalog: dict[str, Any]) -> dict[str, str]:
    """From OLake's streams.json: each selected stream with how it was written (`append` or `upsert`)."""
    content = catalog.get("catalog", catalog)
    selected = content.get("selected_streams") if isinstance(content, dict) else None
    if not isinstance(selected, dict):
        raise ValueError("it has no selected_streams")
    return {
        f"{namespace}.{stream['stream_name']}": "append" if stream.get("append_mode") else "upsert"
        for namespace, streams in selected.items()
        for stream in streams
    }

"""What a state file of OLake says about each of its streams. Pure.

The file has our layout (it is where ours comes from), so it is read as a `StateDocument`; what differs is
what it can prove to us. Its positions and chunks speak of *its* tables, which we neither have nor can ask:

- a stream in `global.streams` whose load is complete (`chunks: []`, or no entry: it never had a load) is held
  by its table there up to `lsn`;
- in an open round, streams that `processing` no longer names are committed up to `next_cdc_pos`. For those it
  still names, only its own destination knows: they are *in doubt*;
- a load with chunks left, and a stream outside `global.streams`, stand at no position;
- MongoDB's streams stand at their own `_data`; one that has `next_data` is in doubt.

A position means the same there as here: transactions whose commit record begins before it are in the
table. It is what Postgres itself goes by when a reader reports that position and connects again. MySQL's
means the same with the place where a transaction begins. MongoDB's token may stand inside a transaction, of
which its table has only what came before the token: it is the token that says where to go on, not its number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.ledger.dialect import SourceName
from penstock.ledger.dialect_mysql import server_id_of
from penstock.ledger.state import CURSOR_PREFIX, StateDocument

_NOT_CURSORS = frozenset({"chunks", "cdc_from", "next_cdc_pos", "penstock", "_data", "next_data"})


@dataclass(frozen=True, slots=True)
class ImportedStream:
    """`position`: its table over there holds everything up to it; `place`: that in the source's words.

    `cursors`: names of cursor columns.
    """

    stream: StreamId
    sync_mode: str
    position: Lsn | None
    place: Place | None
    in_doubt: bool
    chunks_left: int
    cursors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ImportedFile:
    """`server_id`: MySQL, what OLake registers under to read the binlog."""

    source: SourceName
    server_id: int | None
    streams: tuple[ImportedStream, ...]


def imported_file(raw: dict[str, Any]) -> ImportedFile:
    """What the file says. ValueError if it is not laid out as a state file."""
    document = StateDocument(raw)
    return ImportedFile(document.source, server_id_of(raw), tuple(imported_streams(raw)))


def imported_streams(raw: dict[str, Any]) -> list[ImportedStream]:
    """Every stream that the file knows. ValueError if it is not laid out as a state file."""
    document = StateDocument(raw)
    names = sorted({*document.streams, *document.global_streams})
    states = {entry_id(entry): entry.get("state") or {} for entry in raw.get("streams") or []}
    return [_imported(document, name, states.get(str(name), {})) for name in names]


def _imported(document: StateDocument, stream: StreamId, fields: dict[str, Any]) -> ImportedStream:
    state = document.stream(stream)
    chunks_left = len(state.chunks or ()) if state is not None else 0
    shares = document.dialect.shares_position
    position, place, in_doubt = (_shared if shares else _own)(document, stream, fields)
    return ImportedStream(
        stream=stream,
        sync_mode=state.sync_mode if state is not None and state.sync_mode else "cdc",
        position=None if chunks_left else position,
        place=None if chunks_left else place,
        in_doubt=in_doubt,
        chunks_left=chunks_left,
        cursors=tuple(
            name for name in fields if name not in _NOT_CURSORS and not name.startswith(CURSOR_PREFIX)
        ),
    )


_Stand = tuple[Lsn | None, Place | None, bool]


def _shared(document: StateDocument, stream: StreamId, fields: dict[str, Any]) -> _Stand:
    in_doubt = stream in document.processing
    position = document.lsn if in_doubt else document.next_cdc_pos or document.lsn
    if position is None or stream not in document.global_streams:
        return None, None, in_doubt
    return position, document.place(position) or Place(str(position)), in_doubt


def _own(document: StateDocument, stream: StreamId, fields: dict[str, Any]) -> _Stand:
    state = document.stream(stream)
    if state is None or state.cdc_from is None:
        return None, None, False
    return state.cdc_from, Place(fields["_data"]), state.next_cdc_pos is not None


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

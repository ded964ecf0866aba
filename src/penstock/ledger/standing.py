"""Where the state file says that a stream is, in a word and as a position."""

from __future__ import annotations

from penstock.core.report import StreamState
from penstock.core.stream import StreamId
from penstock.ledger.state import StateDocument


def state_of(document: StateDocument, stream: StreamId) -> StreamState:
    entry = document.stream(stream)
    if entry is not None and entry.paused is not None:
        return "paused"
    if entry is None or entry.chunks is None:
        return "new"
    if entry.is_loading:
        return "loading"
    if entry.sync_mode in ("full_refresh", "incremental"):
        return "loaded"
    if document.dialect.shares_position:
        return "following" if stream in document.global_streams else "catching up"
    own = [each.cdc_from for each in document.stream_states if each.cdc_from is not None]
    return "following" if entry.cdc_from == max(own, default=None) else "catching up"


def committed_to(document: StateDocument, stream: StreamId) -> str | None:
    """A stream without changes is as far as the others, whatever its last commit was."""
    entry = document.stream(stream)
    position = document.lsn if stream in document.global_streams else entry.cdc_from if entry else None
    return str(position) if position is not None else None

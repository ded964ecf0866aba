"""Streams that stand still on purpose, and streams whose next load is already decided: moves of the state.

Both are decisions that must outlive the process that took them.

*Paused*: the mark may be set at any time, also while a round is open that an earlier run left behind. The
round is finished first, with the stream in it, since the others wait for it; between rounds the stream
leaves `global.streams` and keeps its position as its own `cdc_from` (`stand_aside`). From there on nothing
moves it: no round takes it, no load is begun or gone on with, while its changes are captured like
everybody's. What it has not read stays in the log, because the lane's flushed position is the least of all
positions; so after `resumed` it reads on from `cdc_from`, the same range, once.

*To be loaded again*: some reasons are seen only once (a table that had dropped out of the publication
is back in it now), so they are written down before anything else happens and go when a load is planned. So
does the wish to write no more than the rows that differ; who cannot do that loads the table.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.ledger import two_phase
from penstock.ledger.state import BY_DIFFERENCE, StateDocument, SyncMode


def paused(
    document: StateDocument,
    stream: StreamId,
    *,
    since: str,
    reason: str,
    sync_mode: SyncMode = "cdc",
    columns: str = "",
) -> StateDocument:
    """Mark a stream as paused; one that is keeps its first mark. A stream not seen yet gets an entry.

    `columns`: why it is paused is that its source has these now (a fingerprint); resuming accepts them.
    """
    before = document.stream(stream)
    if before is not None and before.paused is not None:
        return document
    draft = document.draft()
    if before is None:
        draft.entry(stream)["sync_mode"] = sync_mode
    mark = {"since": since, "reason": reason, **({"columns": columns} if columns else {})}
    draft.own(stream)["paused"] = mark
    return stand_aside(draft.done())


def resumed(document: StateDocument, stream: StreamId) -> StateDocument:
    """Take the mark away; the stream goes on from the position it carries."""
    before = document.stream(stream)
    if before is None or before.paused is None:
        return document
    draft = document.draft()
    own = draft.own(stream)
    if columns := own.pop("paused").get("columns"):
        own["accepted_columns"] = columns
    return draft.done()


def carried_out(document: StateDocument) -> StateDocument:
    """Without what was accepted by resuming a stream: the table has followed, and the next change is new."""
    draft = document.draft()
    for state in document.stream_states:
        if state.accepted_columns is not None and state.paused is None and state.reload is None:
            del draft.own(state.stream)["accepted_columns"]
    return draft.done()


def stand_aside(document: StateDocument) -> StateDocument:
    """Let paused streams leave the global position; nothing while a round is open."""
    if document.next_cdc_pos is not None:
        return document
    for state in document.stream_states:
        if state.paused is not None and state.stream in document.global_streams:
            document = two_phase.leave_global(document, state.stream)
    return document


def to_be_loaded_beyond(
    document: StateDocument, log_end: Lsn, newest_points: Mapping[StreamId, Lsn], reason: str
) -> StateDocument:
    """Have streams loaded again that stand beyond the end of a log which goes on at another server.

    Numbers behind its end mean other places there, and rows that were read may be of transactions which the
    other server never had. What counts is where a stream stands, the newest point of its load, and whether
    that load is still under way: its chunks were read at moments of their own.
    """
    for state in document.stream_states:
        if state.sync_mode not in ("cdc", "strict_cdc"):
            continue
        is_level = state.stream in document.global_streams
        stands_at = document.lsn if is_level else state.cdc_from
        positions = (stands_at, newest_points.get(state.stream))
        is_beyond = any(position is not None and position > log_end for position in positions)
        if not is_beyond and not state.is_loading:
            continue
        if is_level and is_beyond and document.next_cdc_pos is None:
            document = two_phase.leave_global(document, state.stream)
        document = to_be_loaded(document, state.stream, reason)
        if state.committed_to is not None and state.committed_to > log_end:
            document = _without_table(document, state.stream)
    return document


def _without_table(document: StateDocument, stream: StreamId) -> StateDocument:
    """No round goes on with the table, and its readers get to see the next load, whose number may be less."""
    draft = document.draft()
    del draft.own(stream)["committed_to"]
    return draft.done()


def to_be_loaded(
    document: StateDocument,
    stream: StreamId,
    reason: str,
    *,
    replace: bool = False,
    by_difference: bool = False,
) -> StateDocument:
    """Write down that the table must be loaded again; `replace`: also the history of an append table.

    `by_difference`: it is enough to write the rows that differ; a later wish to replace it takes that back.
    """
    before = document.stream(stream)
    if before is None:
        return document  # it is loaded in any case
    draft = document.draft()
    mark = draft.own(stream).setdefault("reload", {"reason": reason})
    if replace:
        mark["replace"] = True
        mark.pop(BY_DIFFERENCE, None)
    if by_difference:
        mark[BY_DIFFERENCE] = True
    return draft.done()


def to_be_loaded_whole(document: StateDocument, stream: StreamId) -> StateDocument:
    """Take back that it is enough to write the rows that differ."""
    before = document.stream(stream)
    if before is None or before.reload is None or not before.reload.by_difference:
        return document
    draft = document.draft()
    del draft.own(stream)["reload"][BY_DIFFERENCE]
    return draft.done()


def to_be_compared(
    document: StateDocument, streams: Mapping[StreamId, SyncMode], reason: str
) -> StateDocument:
    """A state that was begun anew, with streams whose tables are worth comparing; it knows no position."""
    for stream, sync_mode in streams.items():
        draft = document.draft()
        draft.entry(stream)["sync_mode"] = sync_mode
        document = to_be_loaded(draft.done(), stream, reason, by_difference=True)
    return document

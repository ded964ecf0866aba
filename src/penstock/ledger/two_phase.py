"""The two-phase commit between our state and a destination, as moves from document to document.

Order of every piece of work, a load chunk or a stream's part of a CDC round:

    (1) state: temporary fields   `preparing`, or `next_cdc_pos` + `processing`       durable
    (2) data files                written, referenced by nothing
    (3) destination commit        makes the files part of the table, with the thread id in it   atomic
    (4) state: moved              chunk or stream removed, then `lsn := next_cdc_pos`  durable
    (5) acknowledgement           the lane reports `lsn`, capture may confirm it to the source

Claim: whatever gap a crash strikes, repeating the work leads to the same table and the same state.

*Before (1)*: nothing happened. The next run plans the same work, or more of it, from the same `lsn`.

*Between (1) and (3)*: the temporary field names the work, the destination does not know its thread id.
Recovery asks the destination, hears no, and repeats the work *with the same bounds*: the chunk's, or
`(lsn, next_cdc_pos]`. Files of the first attempt are referenced by no commit; no reader sees them and
the sweep removes them. Other streams of the round are not touched.

*Between (3) and (4)*: the destination knows the thread id. Recovery hears yes and does (4) only; rows
are not written twice. It cannot hear a wrong yes: a thread id names stream, generation (or load id)
and start (or bounds). The start of a round is used once, since a round always advances and `lsn` never
goes back within a generation. It cannot hear a wrong no: the commit that holds the thread id stays the
table's newest change commit, since the table takes no other until this round is finished; a chunk's
thread id stays with the pending load, and with the table once the load is swapped in.

*Within (4)*: `processing` empties stream by stream, each durably. Empty, with `next_cdc_pos` still there,
means: every stream is committed, only the move is missing. Recovery makes it.

*Between (4) and (5)*: the source holds more than we need. It sends nothing twice into a table, since
the log, not the slot, is read from `lsn`; at the next start the lane reports `lsn` again.

*The end of a load* is a commit of its own: all chunks committed → swap → `chunks: []`. The list must not
become empty before the swap, because empty means "complete and visible". So the chunks that would empty
it stay, `preparing`, until `load_done`; recovery hears "committed" for each, before and after the swap,
and repeats the swap, which is idempotent by load id. What is brought to a load's point by the rows that
differ (`lake/by_difference.py`) is such a load of one chunk, whose commit is the swap as well.

*A rewind* (`rewinding.py`) is a round that no position moves by: it has a generation of its own, noted in (1)
and in the table's marker from (3) on, by which recovery tells whether it was committed.

*A stream with no changes in a round* is not in `processing` and its table keeps its old `to`. That is why
the position a table must be at is the stream's own `committed_to`, not the global `lsn`: between the
two the log holds nothing for it.

*Not level*: a stream that was added, reloaded or paused carries `cdc_from` in its own state and runs
rounds of its own by the same moves; it joins `global.streams` only while no round is open and its
position equals `lsn`, so that no range is skipped or read twice.

*One position each* (MongoDB): no stream is ever level. `cdc_from` and `next_cdc_pos` are spelled `_data`
and `next_data`, rounds are always the stream's own, and one that was not committed is given up: the next
begins at the same place, has the same thread id, and reads all that the lost one read and more. The claim
holds as above, since a thread id names where a round starts, not where it ends.

Moves are pure: they return a new document. A move that does not fit the document is a ValueError, a
defect of the caller, never of the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.ledger.state import BY_DIFFERENCE, Chunk, StateDocument, StreamState, SyncMode


def plan_load(
    document: StateDocument,
    stream: StreamId,
    *,
    sync_mode: SyncMode,
    load_id: str,
    generation: str,
    chunks: Sequence[Chunk],
) -> StateDocument:
    """List every chunk of a new load. A live table goes on under its old generation until the swap."""
    _require(len(chunks) > 0, "a load has at least one chunk; an empty table has one with open ends")
    _require(len(set(chunks)) == len(chunks), "a load lists each chunk once")
    before = document.stream(stream)
    is_live = before is not None and (
        stream in document.global_streams or before.cdc_from is not None or before.has_completed_backfill
    )
    draft = document.draft()
    draft.entry(stream)["sync_mode"] = sync_mode
    draft.stream_state(stream)["chunks"] = [Chunk(c.min, c.max, c.leaf).to_json() for c in chunks]
    own = draft.own(stream)
    own["load_id"] = load_id
    decided = own.pop("reload", None) or {}
    own.pop("rewind", None)  # what the load brings is later than all that would be applied again
    own.pop("load_by_difference", None)
    if decided.get("replace"):
        own["load_replaces"] = True
    if decided.get(BY_DIFFERENCE):
        own["load_by_difference"] = True
    if is_live:
        own["load_generation"] = generation
    else:
        own.pop("load_generation", None)
        own["generation"] = generation
    return draft.done()


def chunks_preparing(document: StateDocument, stream: StreamId, chunks: Iterable[Chunk]) -> StateDocument:
    draft = document.draft()
    listed = _listed_chunks(draft.stream_state(stream))
    for chunk in chunks:
        _require(chunk in listed, f"{stream}: a chunk that is not listed cannot be prepared")
        listed[chunk]["status"] = "preparing"
    return draft.done()


def chunks_committed(document: StateDocument, stream: StreamId, chunks: Iterable[Chunk]) -> StateDocument:
    """Remove committed chunks; those that would empty the list stay `preparing` until `load_done`."""
    done = set(chunks)
    draft = document.draft()
    state = draft.stream_state(stream)
    listed = _listed_chunks(state)
    for chunk in done & listed.keys():
        _require(listed[chunk].get("status") == "preparing", f"{stream}: a chunk was committed unprepared")
    left = [fields for chunk, fields in listed.items() if chunk not in done]
    state["chunks"] = left or list(listed.values())
    return draft.done()


def load_done(
    document: StateDocument, stream: StreamId, cdc_from: Lsn | None, *, read_to: Lsn | None = None
) -> StateDocument:
    """The load is swapped in: `chunks: []`. With CDC, the stream goes on from `cdc_from` by itself.

    `read_to`: the newest moment that rows of the load may be of (None: it is `cdc_from`).
    """
    _require(stream not in document.processing, f"{stream}: a load cannot end inside the stream's round")
    before = _known(document, stream)
    _require(before.chunks is not None, f"{stream}: no load is under way")
    draft = document.draft()
    state, own = draft.stream_state(stream), draft.own(stream)
    state["chunks"] = []
    own.pop("load_replaces", None)
    own.pop("load_by_difference", None)
    own.pop("rewind", None)
    own["generation"] = own.pop("load_generation", own.get("generation"))
    for fields, name in ((state, "cdc_from"), (own, "committed_to"), (own, "replayable_from")):
        fields.pop(name, None)
        if cdc_from is not None:
            fields[name] = str(cdc_from)
    if cdc_from is not None and read_to is not None and read_to > cdc_from:
        own["replayable_from"] = str(read_to)
    state.pop("next_cdc_pos", None)  # a round of the table that was replaced
    if draft.has_global():
        _leave(draft.global_streams(), stream)
    return draft.done()


def join_global(document: StateDocument, stream: StreamId) -> StateDocument:
    """Let a level stream share the global position; the document as it is while it is not level."""
    before = _known(document, stream)
    if before.cdc_from is None or before.next_cdc_pos is not None or document.next_cdc_pos is not None:
        return document
    if not document.dialect.shares_position:
        return document
    # A position that no stream stands at binds nobody.
    if document.global_streams and document.lsn is not None and document.lsn != before.cdc_from:
        return document
    draft = document.draft()
    draft.global_state()["lsn"] = str(before.cdc_from)
    streams = draft.global_streams()
    if str(stream) not in streams:
        streams.append(str(stream))
    del draft.stream_state(stream)["cdc_from"]
    return draft.done()


def leave_global(document: StateDocument, stream: StreamId) -> StateDocument:
    """Let a stream stand still (paused) at the position it has, without holding the others."""
    _require(document.next_cdc_pos is None, "a stream leaves between rounds")
    _require(stream in document.global_streams, f"{stream} does not share the global position")
    draft = document.draft()
    _leave(draft.global_streams(), stream)
    draft.stream_state(stream)["cdc_from"] = str(document.lsn)
    return draft.done()


def prepare_round(document: StateDocument, to: Lsn, streams: Iterable[StreamId]) -> StateDocument:
    """Step (1) of a round: the range is `(lsn, to]`, `streams` are those with changes in it."""
    names = sorted(set(streams))
    _require(document.next_cdc_pos is None and not document.processing, "a round is already open")
    _require(document.lsn is not None and to > document.lsn, "a round goes on from the global position")
    _require(set(names) <= set(document.global_streams), "a round is for streams of the global position")
    draft = document.draft()
    state = draft.global_state()
    state["next_cdc_pos"] = str(to)
    state["processing"] = [str(stream) for stream in names]
    return draft.done()


def stream_committed(document: StateDocument, stream: StreamId, to: Lsn) -> StateDocument:
    _require(document.next_cdc_pos == to, "a stream is committed up to the round's end")
    draft = document.draft()
    _leave(draft.global_state().get("processing") or [], stream)
    draft.own(stream)["committed_to"] = str(to)
    return draft.done()


def finish_round(document: StateDocument) -> StateDocument:
    """Step (4)'s end: only when this document is durable may the position be acknowledged."""
    _require(document.next_cdc_pos is not None, "no round is open")
    _require(not document.processing, "a round ends when every stream is committed")
    draft = document.draft()
    state = draft.global_state()
    state["lsn"] = state.pop("next_cdc_pos")
    return draft.done()


def set_aside(document: StateDocument, stream: StreamId) -> StateDocument:
    """Take a stream whose part cannot be committed out of the open round; it stands where the round began."""
    before = _known(document, stream)
    draft = document.draft()
    state = draft.stream_state(stream)
    if stream in document.global_streams:
        _leave(draft.global_streams(), stream)
        _leave(draft.global_state().get("processing") or [], stream)
        state["cdc_from"] = str(document.lsn)
    _require("cdc_from" in state, f"{before.stream}: a stream that follows no log has no round")
    state.pop("next_cdc_pos", None)
    return draft.done()


def adopt(document: StateDocument, stream: StreamId, position: Lsn) -> StateDocument:
    """Go on from where the table itself says it is: the state was put back, or the table rolled back.

    What made a table that is ahead the state does not know: there may have been repairs, which the log lacks.
    """
    before = _known(document, stream)
    draft = document.draft()
    if stream in document.global_streams:
        _leave(draft.global_streams(), stream)
    state = draft.stream_state(stream)
    state["cdc_from"] = str(position)
    state.pop("next_cdc_pos", None)
    own = draft.own(stream)
    own["committed_to"] = str(position)
    known = before.replayable_from
    if known is not None and (before.committed_to is None or before.committed_to < position):
        own["replayable_from"] = str(max(known, position))
    return draft.done()


def take_up(
    document: StateDocument,
    stream: StreamId,
    *,
    sync_mode: SyncMode,
    generation: str,
    committed_to: Lsn,
    cdc_from: Lsn,
) -> StateDocument:
    """Know a table that the state forgot: at `committed_to`, with nothing more for it up to `cdc_from`."""
    _require(document.stream(stream) is None, f"{stream} is in the state")
    draft = document.draft()
    draft.entry(stream)["sync_mode"] = sync_mode
    draft.stream_state(stream).update({"chunks": [], "cdc_from": str(cdc_from)})
    draft.own(stream).update(
        {
            "generation": generation,
            "committed_to": str(committed_to),
            "replayable_from": str(cdc_from),  # the log from before is gone with the state
        }
    )
    return draft.done()


def prepare_stream_round(document: StateDocument, stream: StreamId, to: Lsn) -> StateDocument:
    before = _known(document, stream)
    _require(before.next_cdc_pos is None, f"{stream}: a round is already open")
    _require(before.cdc_from is not None and to > before.cdc_from, f"{stream}: a round goes on from cdc_from")
    draft = document.draft()
    draft.stream_state(stream)["next_cdc_pos"] = str(to)
    return draft.done()


def finish_stream_round(
    document: StateDocument, stream: StreamId, *, committed: bool = True
) -> StateDocument:
    """`cdc_from := next_cdc_pos`. `committed=False`: the range held nothing for it, no commit was made."""
    before = _known(document, stream)
    _require(before.next_cdc_pos is not None, f"{stream}: no round is open")
    draft = document.draft()
    state = draft.stream_state(stream)
    state["cdc_from"] = state.pop("next_cdc_pos")
    if committed:
        draft.own(stream)["committed_to"] = state["cdc_from"]
    return draft.done()


def give_up_stream_round(document: StateDocument, stream: StreamId) -> StateDocument:
    """The round was not committed: begin again at `cdc_from`, and go as far as there is then."""
    before = _known(document, stream)
    _require(before.next_cdc_pos is not None, f"{stream}: no round is open")
    draft = document.draft()
    del draft.stream_state(stream)["next_cdc_pos"]
    return draft.done()


def pass_over(document: StateDocument, streams: Iterable[StreamId], to: Lsn) -> StateDocument:
    """Let streams of their own position that have nothing up to `to` stand there, in one document.

    A position that stays behind because nothing happens expires at the source with nothing missed. Streams
    that are as far, or whose round is open, are left as they are.
    """
    draft = document.draft()
    for stream in streams:
        before = _known(document, stream)
        _require(before.cdc_from is not None, f"{stream}: a stream without a position passes nothing over")
        assert before.cdc_from is not None
        if before.next_cdc_pos is None and before.cdc_from < to:
            draft.stream_state(stream)["cdc_from"] = str(to)
    return draft.done()


def bound_to_server(document: StateDocument, *, server_id: int, server_uuid: str) -> StateDocument:
    """MySQL: the id that we read the log under, and the server whose places the shared position is of."""
    _require(document.source == "mysql", "only MySQL has servers with ids")
    draft = document.draft()
    state = draft.global_state()
    state["server_id"] = server_id
    if server_uuid:
        state["server_uuid"] = server_uuid
    else:
        state.pop("server_uuid", None)
    return draft.done()


def remove_stream(document: StateDocument, stream: StreamId) -> StateDocument:
    """Forget a stream. A round that only waited for it is then complete but for `finish_round`."""
    draft = document.draft()
    draft.remove_entry(stream)
    if draft.has_global():
        _leave(draft.global_streams(), stream)
        _leave(draft.global_state().get("processing") or [], stream)
    return draft.done()


def flushed_position(document: StateDocument, open_load_points: Iterable[Lsn]) -> Lsn | None:
    """Up to where the log and the source are no longer needed; None: nothing may be given up yet."""
    own = [state.cdc_from for state in document.stream_states if state.cdc_from is not None]
    held = [*own, *open_load_points]
    # Without streams nobody reads on from `lsn`: it would hold the source for ever.
    if document.lsn is not None and (document.global_streams or not held):
        held.append(document.lsn)
    return min(held, default=None)


def _known(document: StateDocument, stream: StreamId) -> StreamState:
    state = document.stream(stream)
    if state is None:
        raise ValueError(f"{stream} is not in the state")
    return state


def _listed_chunks(state: dict[str, Any]) -> dict[Chunk, dict[str, Any]]:
    return {Chunk.from_json(fields): fields for fields in state.get("chunks") or []}


def _leave(streams: list[str], stream: StreamId) -> None:
    if str(stream) in streams:
        streams.remove(str(stream))


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)

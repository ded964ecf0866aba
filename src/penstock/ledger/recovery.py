"""What to do about temporary fields found in a state document. Decisions only, no I/O.

Each function asks the destination by `is_thread_committed(stream, thread_id)` and returns the document
that is to be saved next together with the work that is left. Asking again after a crash during recovery
gives the same answer, so recovery may itself be cut short anywhere.

Sources differ in one thing only, which the document's dialect says: whether a round that was not committed is
done again with the same bounds, or given up for a longer one.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Literal

from penstock.core.errors import StateError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.ledger import two_phase
from penstock.ledger.state import Chunk, StateDocument
from penstock.ledger.threads import cdc_thread_id, chunk_thread_id

IsThreadCommitted = Callable[[StreamId, str], bool]


@dataclass(frozen=True, slots=True)
class ChunkRecovery:
    """`to_read` empty: every chunk is at the destination; swap (again) and then `load_done`."""

    document: StateDocument
    committed: tuple[Chunk, ...]
    to_read: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class RoundRecovery:
    """What became of an open round.

    none: there was none. finish: every stream is committed; `document` has moved and, once it is
    durable, may be acknowledged. bounded: `streams` still need exactly `(start, to]`, then as normal.
    again: it is given up; `streams` go on from `start`, by a round as far as there is, then as normal.
    `dropped`: streams that the round waited for and that are no longer configured.
    """

    kind: Literal["none", "finish", "bounded", "again"]
    document: StateDocument
    streams: tuple[StreamId, ...] = ()
    start: Lsn | None = None
    to: Lsn | None = None
    dropped: tuple[StreamId, ...] = ()
    acknowledge: bool = False


def recover_chunks(
    document: StateDocument, stream: StreamId, is_thread_committed: IsThreadCommitted
) -> ChunkRecovery:
    state = document.stream(stream)
    if state is None or not state.chunks:
        return ChunkRecovery(document, (), ())
    load_id = state.load_id
    committed = tuple(
        chunk
        for chunk in state.chunks
        # A file of another tool has no load id of ours: nothing of it is in our destination.
        if chunk.preparing
        and load_id is not None
        and is_thread_committed(stream, chunk_thread_id(stream, load_id, chunk))
    )
    to_read = tuple(chunk for chunk in state.chunks if chunk not in committed)
    if committed:
        document = two_phase.chunks_committed(document, stream, committed)
    return ChunkRecovery(document, committed, to_read)


def recover_round(
    document: StateDocument, configured: Set[StreamId], is_thread_committed: IsThreadCommitted
) -> RoundRecovery:
    """The global round. Call it before anything else is prepared, loaded or removed."""
    start, to = document.lsn, document.next_cdc_pos
    if to is None:
        if document.processing:
            raise _contradiction("`processing` names streams, but there is no `next_cdc_pos`")
        return RoundRecovery("none", document)
    if start is None or to < start:
        raise _contradiction(f"`next_cdc_pos` does not follow `{document.dialect.spelled('lsn')}`")
    dropped: list[StreamId] = []
    left: list[StreamId] = []
    for stream in document.processing:
        if stream not in configured:
            dropped.append(stream)
            # Whole: without a position of its own it could only go on over a gap. Configured again,
            # it is loaded again.
            document = two_phase.remove_stream(document, stream)
        elif _is_committed(document, stream, start, is_thread_committed):
            document = two_phase.stream_committed(document, stream, to)
        else:
            left.append(stream)
    if left:
        return RoundRecovery("bounded", document, tuple(left), start, to, tuple(dropped))
    return RoundRecovery(
        "finish", two_phase.finish_round(document), (), start, to, tuple(dropped), acknowledge=True
    )


def recover_stream_round(
    document: StateDocument, stream: StreamId, is_thread_committed: IsThreadCommitted
) -> RoundRecovery:
    """The round of a stream that is not level; independent of all others."""
    state = document.stream(stream)
    if state is None or state.next_cdc_pos is None:
        return RoundRecovery("none", document)
    start, to = state.cdc_from, state.next_cdc_pos
    if start is None or to < start:
        spelled = document.dialect.spelled
        raise _contradiction(f"`{spelled('next_cdc_pos')}` does not follow `{spelled('cdc_from')}`", stream)
    if _is_committed(document, stream, start, is_thread_committed):
        finished = two_phase.finish_stream_round(document, stream)
        return RoundRecovery("finish", finished, (), start, to, acknowledge=True)
    if not document.dialect.repeats_bounds:
        return RoundRecovery("again", two_phase.give_up_stream_round(document, stream), (stream,), start)
    return RoundRecovery("bounded", document, (stream,), start, to)


def _is_committed(
    document: StateDocument, stream: StreamId, start: Lsn, is_thread_committed: IsThreadCommitted
) -> bool:
    state = document.stream(stream)
    if state is None or state.generation is None:  # imported: our destination has nothing of it
        return False
    return is_thread_committed(stream, cdc_thread_id(stream, state.generation, start))


def _contradiction(what: str, stream: StreamId | None = None) -> StateError:
    return StateError(
        f"The state file contradicts itself: {what}.",
        stream=None if stream is None else str(stream),
        remedy="Run `penstock state check`; `penstock state restore` brings back an earlier version.",
    )

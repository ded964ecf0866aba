"""A stream whose changes are applied to its table once more, on purpose: moves of the state.

For a table that somebody or something spoilt while the log still has what made it: the log after a position
`to` is applied again, up to where the table is. No position goes back. The stream is where it was throughout,
what waits behind it waits for nothing, and readers see the table of one position, before and after: what is
applied ends where the table is, in one commit (`lake/rewinding.py` says why that comes to the same rows).

    (0) asked       `rewind: {to}`                                        durable
    (1) prepared    `rewind: {to, generation}`, a generation of its own   durable
    (2) data files  written, referenced by nothing
    (3) commit      the marker has that generation, `from` = to; its `to` is the table's, as it was   atomic
    (4) done        `generation` is the new one, the mark is gone         durable

A crash before (3): the table is of the old generation, and all is done again under the one that is noted. A
crash between (3) and (4): the table is of the new one, which no other work has, so (4) alone is left. That is
asked before anything else is asked of the table: to all others it would be one of another load. In between
somebody may have asked for an earlier position; the marker says from where on it was done.

How far back a stream can go is told by its `replayable_from`: up to there rows came from a load or were put
right by a repair, and may be of changes that the log never had. A repair says so before it is committed; a
table that is ahead of a state that was put back may have had one that the state does not tell of
(`two_phase.adopt`).
"""

from __future__ import annotations

from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.ledger.state import StateDocument


def asked(document: StateDocument, stream: StreamId, to: Lsn) -> StateDocument:
    """Write down that the log after `to` is to be applied again; of two wishes, the earlier position."""
    before = document.stream(stream)
    if before is None:
        return document  # there is no table to take it
    draft = document.draft()
    mark = draft.own(stream).setdefault("rewind", {})
    mark["to"] = str(to if before.rewind is None else min(to, before.rewind.to))
    return draft.done()


def prepared(document: StateDocument, stream: StreamId, generation: str) -> StateDocument:
    """Step (1)."""
    before = document.stream(stream)
    if before is None or before.rewind is None:
        raise ValueError(f"{stream}: nobody asked for it to be applied again")
    draft = document.draft()
    draft.own(stream)["rewind"]["generation"] = generation
    return draft.done()


def done(document: StateDocument, stream: StreamId, start: Lsn) -> StateDocument:
    """Step (4); `start`: from where on it was applied again, by the table's own marker."""
    before = document.stream(stream)
    if before is None or before.rewind is None or before.rewind.generation is None:
        raise ValueError(f"{stream}: nothing was begun to be applied again")
    draft = document.draft()
    own = draft.own(stream)
    own["generation"] = own["rewind"].pop("generation")
    if start <= before.rewind.to:
        del own["rewind"]
    return draft.done()


def recovered(
    document: StateDocument, stream: StreamId, generation: str | None, start: Lsn | None
) -> StateDocument:
    """What a crash left: done, if the table is of the generation that was noted; else as it is, to be done.

    `generation`, `start`: of the table's own marker.
    """
    before = document.stream(stream)
    begun = before.rewind.generation if before is not None and before.rewind is not None else None
    if begun is None or begun != generation or start is None:
        return document
    return done(document, stream, start)


def given_up(document: StateDocument, stream: StreamId) -> StateDocument:
    """Forget the wish; the table must be as it was."""
    draft = document.draft()
    draft.own(stream).pop("rewind", None)
    return draft.done()


def mended(document: StateDocument, stream: StreamId, position: Lsn) -> StateDocument:
    """Rows were put right as the source had them at `position`: the log from before may lack why."""
    before = document.stream(stream)
    known = before.replayable_from if before is not None else None
    if known is None:
        return document
    draft = document.draft()
    draft.own(stream)["replayable_from"] = str(max(known, position))
    return draft.done()

"""The two-phase commit of an incremental stream: moves of the state and what recovery decides. No I/O.

A round reads, under one snapshot, the rows whose cursor lies between the last value less the lookback and the
greatest value of that snapshot. Its order:

    (1) state: `olake_next_cursor_<column>`   the greatest values, noted under the snapshot   durable
    (2) data files                            written, referenced by nothing
    (3) destination commit                    thread id and new cursors in it, refused unless the table
                                              is at the cursors the round starts from         atomic
    (4) state: moved                          `<column>` takes the new value                   durable

*Before (3)* the destination does not know the thread id: the temporary fields are dropped and the next round
starts from the same cursors, up to whatever the greatest values are then. It reads all that the lost one read
and more. *After (3)* it knows the thread id: the fields are moved and nothing is read. It cannot hear a wrong
yes: a thread id names stream, generation and starting cursors, and a round with a thread id always advances a
cursor, which never goes back within a generation; so no two such rounds start from the same cursors. It can
hear no wrong no: the table takes no other thread id until this round is settled.

*A round that does not advance* finds rows that committed late with an older value, or with the last one. It
moves nothing, so it has no temporary fields and no thread id (correctness 15); its commit leaves the marker
as it is. A crash around it changes nothing, because reading the same window again finds the same rows or
newer ones, and rows that the table holds already are left out.

*The first load* notes the greatest values of its snapshot with its chunks; they become the cursors with
`chunks: []`, after the swap that put the same values into the table's marker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from penstock.core.cursor import RESERVED_NAMES, Cursors, CursorValue
from penstock.core.stream import StreamId
from penstock.ledger.recovery import IsThreadCommitted
from penstock.ledger.state import CURSOR_PREFIX, StateDocument
from penstock.ledger.state_json import ExactNumber
from penstock.ledger.threads import incremental_thread_id

_NAMES, _LOAD_NAMES = "cursor", "load_cursor"


@dataclass(frozen=True, slots=True)
class Recovered:
    """What became of an open round: none, or rolled forward, or back; `document` is to be saved."""

    kind: Literal["none", "forward", "back"]
    document: StateDocument


def cursor_names(document: StateDocument, stream: StreamId) -> tuple[str, ...] | None:
    """The columns the stream's table was read by; None if the state does not say."""
    names = document.draft().own(stream).get(_NAMES) if document.stream(stream) else None
    return tuple(map(str, names)) if isinstance(names, list) else None


def load_cursor_names(document: StateDocument, stream: StreamId) -> tuple[str, ...] | None:
    """The columns that the load under way is read by; None if it is not read by any."""
    names = document.draft().own(stream).get(_LOAD_NAMES) if document.stream(stream) else None
    return tuple(map(str, names)) if isinstance(names, list) else None


def noted_by_load(document: StateDocument, stream: StreamId) -> dict[str, CursorValue]:
    """The values that a load noted when it was planned; those of the table, once it is swapped in."""
    return next_cursors(document, stream) or {}


def cursors(document: StateDocument, stream: StreamId, names: Sequence[str]) -> dict[str, CursorValue]:
    """The values that the next round starts from."""
    return _values(_fields(document, stream), names, "")


def next_cursors(document: StateDocument, stream: StreamId) -> dict[str, CursorValue] | None:
    """The values that a load or an open round will leave; None if there is none."""
    fields = _fields(document, stream)
    names = [name.removeprefix(CURSOR_PREFIX) for name in fields if name.startswith(CURSOR_PREFIX)]
    return _values(fields, names, CURSOR_PREFIX) if names else None


def note_load(
    document: StateDocument, stream: StreamId, names: Sequence[str], noted: Cursors
) -> StateDocument:
    """With the chunks of a planned load: the greatest values of the snapshot that it is read under."""
    _require(bool(_known(document, stream).is_loading), f"{stream}: no load is planned")
    draft = document.draft()
    fields = draft.stream_state(stream)
    _drop_temporary(fields)
    draft.own(stream)[_LOAD_NAMES] = list(names)
    _set(fields, noted, CURSOR_PREFIX)
    return draft.done()


def load_moved(document: StateDocument, stream: StreamId) -> StateDocument:
    """With the end of a load: its values are the cursors, and no others are."""
    _require(_known(document, stream).has_completed_backfill, f"{stream}: the load is not done")
    draft = document.draft()
    fields, own = draft.stream_state(stream), draft.own(stream)
    noted = _values(fields, [n.removeprefix(CURSOR_PREFIX) for n in fields], CURSOR_PREFIX)
    _drop_temporary(fields)
    for name in own.get(_NAMES) or ():
        fields.pop(name, None)
    own[_NAMES] = own.pop(_LOAD_NAMES, own.get(_NAMES) or sorted(noted))
    _set(fields, noted, "")
    return draft.done()


def prepare(document: StateDocument, stream: StreamId, advanced: Cursors) -> StateDocument:
    """Step (1): where the round will lead. Columns that it does not advance are not in `advanced`."""
    state = _known(document, stream)
    _require(state.has_completed_backfill, f"{stream}: a round goes on from a complete load")
    _require(next_cursors(document, stream) is None, f"{stream}: a round is already open")
    _require(bool(advanced), f"{stream}: a round that does not advance is not prepared")
    names = cursor_names(document, stream) or ()
    _require(set(advanced) <= set(names), f"{stream}: a round advances the stream's own cursors")
    before = cursors(document, stream, names)
    moves = all(before.get(name) != value for name, value in advanced.items())
    _require(moves, f"{stream}: a cursor that stays is not advanced")
    draft = document.draft()
    _set(draft.stream_state(stream), {**before, **advanced}, CURSOR_PREFIX)
    return draft.done()


def move(document: StateDocument, stream: StreamId) -> StateDocument:
    """Step (4): the round is committed."""
    advanced = next_cursors(document, stream)
    _require(advanced is not None and not _known(document, stream).is_loading, f"{stream}: no round is open")
    assert advanced is not None
    draft = document.draft()
    fields = draft.stream_state(stream)
    _drop_temporary(fields)
    _set(fields, advanced, "")
    return draft.done()


def give_up(document: StateDocument, stream: StreamId) -> StateDocument:
    """The round was not committed: start again from the cursors there are."""
    draft = document.draft()
    _drop_temporary(draft.stream_state(stream))
    return draft.done()


def adopt(document: StateDocument, stream: StreamId, held: Cursors) -> StateDocument:
    """Go on from where the table itself says it is: the state was put back to an earlier version."""
    draft = document.draft()
    fields = draft.stream_state(stream)
    _drop_temporary(fields)
    for name in cursor_names(document, stream) or ():
        fields.pop(name, None)
    _set(fields, held, "")
    return draft.done()


def take_up(
    document: StateDocument, stream: StreamId, names: Sequence[str], *, generation: str, held: Cursors
) -> StateDocument:
    """Know a table again that the state has forgotten: complete, and read up to `held`."""
    _require(document.stream(stream) is None, f"{stream} is in the state")
    draft = document.draft()
    draft.entry(stream)["sync_mode"] = "incremental"
    draft.stream_state(stream)["chunks"] = []
    draft.own(stream).update({"generation": generation, _NAMES: list(names)})
    _set(draft.stream_state(stream), held, "")
    return draft.done()


def forget(document: StateDocument, stream: StreamId) -> StateDocument:
    """Remove what an incremental stream leaves behind when it becomes one of another mode."""
    names = cursor_names(document, stream)
    if names is None and load_cursor_names(document, stream) is None:
        return document
    draft = document.draft()
    fields, own = draft.stream_state(stream), draft.own(stream)
    _drop_temporary(fields)
    for name in names or ():
        fields.pop(name, None)
    own.pop(_NAMES, None)
    own.pop(_LOAD_NAMES, None)
    return draft.done()


def recover(document: StateDocument, stream: StreamId, is_thread_committed: IsThreadCommitted) -> Recovered:
    """The open round of one stream, independent of all others; a load under way is not asked here."""
    state = document.stream(stream)
    if state is None or state.is_loading or next_cursors(document, stream) is None:
        return Recovered("none", document)
    names = cursor_names(document, stream)
    if state.generation is not None and names is not None:  # else imported: our destination has nothing of it
        thread_id = incremental_thread_id(stream, state.generation, cursors(document, stream, names), names)
        if is_thread_committed(stream, thread_id):
            return Recovered("forward", move(document, stream))
    return Recovered("back", give_up(document, stream))


def _known(document: StateDocument, stream: StreamId) -> Any:
    state = document.stream(stream)
    _require(state is not None, f"{stream} is not in the state")
    return state


def _fields(document: StateDocument, stream: StreamId) -> dict[str, Any]:
    return document.draft().stream_state(stream) if document.stream(stream) else {}


def _values(fields: dict[str, Any], names: Sequence[str], prefix: str) -> dict[str, CursorValue]:
    found = {name: fields[prefix + name] for name in names if fields.get(prefix + name) is not None}
    return {
        name: Decimal(value) if isinstance(value, ExactNumber) else value for name, value in found.items()
    }


def _set(fields: dict[str, Any], values: Cursors, prefix: str) -> None:
    for name, value in values.items():
        _require(name not in RESERVED_NAMES, "a cursor column has the name of another field of the state")
        fields[prefix + name] = ExactNumber(value) if isinstance(value, Decimal) else value


def _drop_temporary(fields: dict[str, Any]) -> None:
    for name in [name for name in fields if name.startswith(CURSOR_PREFIX)]:
        del fields[name]


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)

"""The state document: `state.json` as values.

The raw JSON object is kept whole, so that fields written by someone else survive at every level;
accessors read it, a `StateDraft` changes a copy. A document itself never changes. Positions are numbers in
memory and the source's own words in the file (`dialect.py`). Rules of the format that hold for every document
made here:

- a document with `global` is `GLOBAL`, any other `STREAM`;
- temporary fields that are empty are omitted (never null, "" or []);
- `chunks: []` is written: it says that the backfill is complete *and visible*.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.core.errors import StateError
from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.ledger.dialect import Dialect, PlaceOf, Places, SourceName
from penstock.ledger.dialects import DIALECTS, dialect_of
from penstock.ledger.state_json import check_layout, copied

FORMAT_VERSION = 1
SYNC_MODES = ("full_refresh", "incremental", "cdc", "strict_cdc")
CURSOR_PREFIX = "olake_next_cursor_"
BY_DIFFERENCE = "by_difference"
_TEMPORARY = ("next_cdc_pos", "processing", "next_data")

SyncMode = Literal["full_refresh", "incremental", "cdc", "strict_cdc"]
ChunkBound = int | str | None


@dataclass(frozen=True, slots=True)
class Chunk:
    """A half-open range `[min, max)` of one leaf; None is an open end. Equality ignores the status."""

    min: ChunkBound
    max: ChunkBound
    leaf: str | None = None
    preparing: bool = field(default=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"min": self.min, "max": self.max}
        if self.preparing:
            fields["status"] = "preparing"
        if self.leaf is not None:
            fields["leaf"] = self.leaf
        return fields

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Chunk:
        preparing = fields.get("status") == "preparing"
        return cls(fields.get("min"), fields.get("max"), fields.get("leaf"), preparing)


@dataclass(frozen=True, slots=True)
class Paused:
    """A stream that stands still: since when (UTC, ISO 8601), and why ("": somebody asked for it)."""

    since: str
    reason: str


@dataclass(frozen=True, slots=True)
class Reload:
    """A load that is decided and not planned yet."""

    reason: str
    replace: bool
    by_difference: bool = False  # only rows that differ from the source's are written, where that can be


@dataclass(frozen=True, slots=True)
class Rewind:
    """The log after `to` is to be applied to the table once more (`rewinding.py`); `generation`: under which
    that was begun."""

    to: Lsn
    generation: str | None = None


@dataclass(frozen=True, slots=True)
class StreamState:
    """One stream's entry.

    `generation` is that of the table readers see; while a load that will replace a live table is
    under way, `load_generation` is the one to come (else they are equal). `committed_to` is the
    table's own position: it may lie below the global `lsn` if the stream had no changes since. From
    `replayable_from` on the log alone made the table what it is: before, there was a load, or a repair.
    """

    stream: StreamId
    sync_mode: str
    chunks: tuple[Chunk, ...] | None
    cdc_from: Lsn | None
    next_cdc_pos: Lsn | None
    generation: str | None
    load_generation: str | None
    load_id: str | None
    committed_to: Lsn | None
    paused: Paused | None = None
    accepted_columns: str | None = None  # what its source's table may become without being asked about
    reload: Reload | None = None
    load_replaces: bool = False  # the load under way leaves nothing of the table there was
    load_by_difference: bool = False  # what is under way writes the rows that differ, as one chunk
    rewind: Rewind | None = None
    replayable_from: Lsn | None = None

    @property
    def has_completed_backfill(self) -> bool:
        return self.chunks == ()

    @property
    def is_loading(self) -> bool:
        return bool(self.chunks)


class StateDocument:
    """A whole state file. Equal documents hold equal JSON."""

    __slots__ = ("_places", "_raw", "dialect", "origin")

    def __init__(self, raw: dict[str, Any], origin: StateDocument | None = None) -> None:
        """ValueError if `raw` is not laid out as a state file at all.

        `origin`: the document that this one was made from by moves (None: by none).
        """
        check_layout(raw)
        self._raw: dict[str, Any] = copied(raw)
        self.dialect: Dialect = dialect_of(raw)
        self._places: Places = self.dialect.read(self._raw)
        self.origin = origin

    @classmethod
    def _of(
        cls, raw: dict[str, Any], origin: StateDocument | None, dialect: Dialect, places: Places
    ) -> StateDocument:
        """Of an object that nobody else holds: a save makes several documents, each as large as all."""
        check_layout(raw)
        document = cls.__new__(cls)
        document._raw, document.origin = raw, origin
        document.dialect, document._places = dialect, places
        return document

    @classmethod
    def new(cls, pipeline_id: str | None = None, source: SourceName = "postgres") -> StateDocument:
        own = {"format_version": FORMAT_VERSION, "pipeline_id": pipeline_id or str(uuid.uuid4())}
        own |= {} if source == "postgres" else {"source": source}
        return cls({"type": "STREAM", "streams": [], "penstock": own})

    def to_json(self) -> dict[str, Any]:
        """As the file has it. ValueError if a position is new and its words are not known (`placed`)."""
        document: dict[str, Any] = copied(self._raw)
        self.dialect.write(document, self._places)
        return document

    def in_numbers(self) -> dict[str, Any]:
        """As the ledger has it."""
        document: dict[str, Any] = copied(self._raw)
        return document

    def settled(self) -> StateDocument:
        """The same document with no past: documents are made from it, not from what it was made from."""
        if self.dialect.source == "postgres":
            return StateDocument._of(self._raw, None, self.dialect, self._places)
        return StateDocument(self.to_json())  # words of positions that it no longer has are forgotten

    def draft(self) -> StateDraft:
        return StateDraft(copied(self._raw), self)

    def placed(self, place_of: PlaceOf) -> StateDocument:
        """The same document with the words of every position; only those it does not know are asked for."""
        lacking = set(self.dialect.moved(self._raw)) - self._places.keys()
        if not lacking:
            return self
        places = {**self._places, **{position: place_of(position) for position in lacking}}
        return StateDocument._of(self._raw, self.origin, self.dialect, places)

    def place(self, position: Lsn) -> Place | None:
        """The source's words for a position of this document."""
        return self._places.get(position)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StateDocument) and self._raw == other._raw

    def __hash__(self) -> int:
        return hash(self.state_version)

    def __repr__(self) -> str:
        return f"StateDocument(version {self.state_version}, {len(self.streams)} streams)"

    @property
    def type(self) -> str:
        return "GLOBAL" if self._global is not None else "STREAM"

    @property
    def was_emptied(self) -> bool:
        """Whether somebody asked for a state without streams, with which every table is loaded anew."""
        return bool(self._own.get("emptied"))

    def emptied(self) -> StateDocument:
        return self._with_own(emptied=True)

    @property
    def pipeline_id(self) -> str | None:
        return _text(self._own, "pipeline_id")

    @property
    def state_version(self) -> int | None:
        version = self._own.get("state_version")
        return version if isinstance(version, int) else None

    @property
    def system_id(self) -> str | None:
        return _text(self._own, "system_id")

    @property
    def slot(self) -> str | None:
        """The slot that the log was read from."""
        return _text(self._own, "slot")

    @property
    def timeline(self) -> int | None:
        timeline = self._own.get("timeline")
        return timeline if isinstance(timeline, int) else None

    @property
    def epoch(self) -> Lsn | None:
        return _position(self._own, "epoch")

    @property
    def server_uuid(self) -> str | None:
        """MySQL's server whose log was read last."""
        return _text(self._global_state, "server_uuid")

    @property
    def source(self) -> SourceName:
        return self.dialect.source

    @property
    def lsn(self) -> Lsn | None:
        return _position(self._global_state, "lsn", self.dialect)

    @property
    def level(self) -> Lsn | None:
        """How far the log is applied to streams that go on together: the shared position; where each stream
        has its own, the least of those that are not paused."""
        if self.dialect.shares_position:
            return self.lsn
        own = [state.cdc_from for state in self.stream_states if state.paused is None]
        return min((position for position in own if position is not None), default=None)

    @property
    def next_cdc_pos(self) -> Lsn | None:
        return _position(self._global_state, "next_cdc_pos", self.dialect)

    @property
    def processing(self) -> tuple[StreamId, ...]:
        return tuple(map(_stream_id, self._global_state.get("processing") or ()))

    @property
    def is_under_way(self) -> bool:
        """Whether a round is open, of the position they share or of a stream by itself, or a chunk."""
        states = [self._global_state, *(entry.get("state") or {} for entry in self._entries)]
        names = {name for state in states for name in state}
        if any(name in _TEMPORARY or name.startswith(CURSOR_PREFIX) for name in names):
            return True
        return any(chunk.preparing for state in self.stream_states for chunk in state.chunks or ())

    @property
    def global_streams(self) -> tuple[StreamId, ...]:
        return tuple(map(_stream_id, (self._global or {}).get("streams") or ()))

    @property
    def streams(self) -> tuple[StreamId, ...]:
        return tuple(map(entry_stream, self._entries))

    @property
    def stream_states(self) -> tuple[StreamState, ...]:
        return tuple(_stream_state(entry, self.dialect) for entry in self._entries)

    def stream(self, stream: StreamId) -> StreamState | None:
        entry = _find(self._entries, stream)
        return None if entry is None else _stream_state(entry, self.dialect)

    def identified(
        self, *, system_id: str, timeline: int, epoch: Lsn, slot: str | None = None
    ) -> StateDocument:
        """The same document, bound to a source, its slot (if the log is read) and a leader.

        StateError if the leader is an earlier one than the document's: tables refuse it, and a state that
        named it would be taken for one that somebody with another state has left behind.
        """
        if self.epoch is not None and system_id == self.system_id and epoch < self.epoch:
            raise StateError(
                f"The state is that of a later leader: its epoch is {self.epoch}, ours {epoch}.",
                remedy="None needed if another instance leads, or if a clock was set back: what begins anew "
                "has a later epoch. If it goes on, see that only one Penstock uses this state directory.",
            )
        bound = {} if slot is None else {"slot": slot}
        return self._with_own(system_id=system_id, timeline=timeline, epoch=str(epoch), **bound)

    def of_source(self, source: SourceName) -> StateDocument:
        """The same document, of a source of this kind; StateError if it holds positions of another kind."""
        if source == self.source:
            return self
        positions = [self.lsn, *(state.cdc_from for state in self.stream_states)]
        if any(position is not None for position in positions):
            raise StateError(
                f"The state is that of a {self.source} source, and the pipeline file names {source}.",
                remedy="Give the pipeline a state directory of its own.",
            )
        document = self._with_own(source=source)
        if source == "postgres":  # whose files do not say it
            del document._raw["penstock"]["source"]
        return StateDocument._of(document._raw, document.origin, DIALECTS[source], {})

    def led_by(self, epoch: Lsn) -> StateDocument:
        return self._with_own(epoch=str(epoch))

    def numbered(self, version: int) -> StateDocument:
        return self._with_own(state_version=version)

    def _with_own(self, **fields: Any) -> StateDocument:
        draft = self.draft()
        own = draft.raw.setdefault("penstock", {})
        own.setdefault("format_version", FORMAT_VERSION)
        own.setdefault("pipeline_id", str(uuid.uuid4()))
        if self.source != "postgres":
            own.setdefault("source", self.source)
        own.update(fields)
        return draft.done()

    @property
    def _own(self) -> dict[str, Any]:
        return self._raw.get("penstock") or {}

    @property
    def _global(self) -> dict[str, Any] | None:
        return self._raw.get("global")

    @property
    def _global_state(self) -> dict[str, Any]:
        return (self._global or {}).get("state") or {}

    @property
    def _entries(self) -> list[dict[str, Any]]:
        return self._raw.get("streams") or []


class StateDraft:
    """A document being changed: `done()` applies the rules of the format and gives the new one."""

    def __init__(self, raw: dict[str, Any], of: StateDocument) -> None:
        self.raw = raw
        self._of = of

    def global_state(self) -> dict[str, Any]:
        return _child(self._global(), "state")

    def global_streams(self) -> list[str]:
        section = self._global()
        section["streams"] = streams = section.get("streams") or []
        return streams

    def has_global(self) -> bool:
        return self.raw.get("global") is not None

    def entry(self, stream: StreamId) -> dict[str, Any]:
        """The stream's entry, made if there is none."""
        self.raw["streams"] = entries = self.raw.get("streams") or []
        found = _find(entries, stream)
        if found is None:
            found = {"stream": stream.name, "namespace": stream.namespace, "sync_mode": "cdc", "state": {}}
            entries.append(found)
        return found

    def stream_state(self, stream: StreamId) -> dict[str, Any]:
        return _child(self.entry(stream), "state")

    def own(self, stream: StreamId) -> dict[str, Any]:
        return _child(self.stream_state(stream), "penstock")

    def remove_entry(self, stream: StreamId) -> None:
        entries = self.raw.get("streams") or []
        self.raw["streams"] = [entry for entry in entries if entry_stream(entry) != stream]

    def done(self) -> StateDocument:
        raw = self.raw
        raw["type"] = "GLOBAL" if self.has_global() else "STREAM"
        raw["streams"] = raw.get("streams") or []
        if self.has_global():
            _omit_empty(self.global_state())
        for entry in raw["streams"]:
            _omit_empty(entry.get("state") or {})
        self.raw = {}  # it is the document's now
        return StateDocument._of(raw, self._of.origin or self._of, self._of.dialect, self._of._places)

    def _global(self) -> dict[str, Any]:
        return _child(self.raw, "global")


def entry_stream(entry: dict[str, Any]) -> StreamId:
    return StreamId(str(entry.get("namespace", "")), str(entry.get("stream", "")))


def _stream_state(entry: dict[str, Any], dialect: Dialect) -> StreamState:
    state = entry.get("state") or {}
    own = state.get("penstock") or {}
    chunks = state.get("chunks")
    generation = _text(own, "generation")
    return StreamState(
        stream=entry_stream(entry),
        sync_mode=str(entry.get("sync_mode", "")),
        chunks=None if chunks is None else tuple(map(Chunk.from_json, chunks)),
        cdc_from=_position(state, "cdc_from", dialect),
        next_cdc_pos=_position(state, "next_cdc_pos", dialect),
        generation=generation,
        load_generation=_text(own, "load_generation") or generation,
        load_id=_text(own, "load_id"),
        committed_to=_position(own, "committed_to"),
        paused=_paused(own.get("paused")),
        accepted_columns=_text(own, "accepted_columns"),
        reload=_reload(own.get("reload")),
        load_replaces=bool(own.get("load_replaces")),
        load_by_difference=bool(own.get("load_by_difference")),
        rewind=_rewind(own.get("rewind")),
        replayable_from=_position(own, "replayable_from"),
    )


def _paused(mark: Any) -> Paused | None:
    fields = mark if isinstance(mark, dict) else {}
    return Paused(str(fields.get("since", "")), str(fields.get("reason", ""))) if mark else None


def _reload(mark: Any) -> Reload | None:
    fields = mark if isinstance(mark, dict) else {}
    if not mark:
        return None
    return Reload(str(fields.get("reason", "")), bool(fields.get("replace")), bool(fields.get(BY_DIFFERENCE)))


def _rewind(mark: Any) -> Rewind | None:
    fields = mark if isinstance(mark, dict) else {}
    to = _position(fields, "to")
    return None if to is None else Rewind(to, _text(fields, "generation"))


def _omit_empty(state: dict[str, Any]) -> None:
    for name in list(state):
        temporary = name in _TEMPORARY or name.startswith(CURSOR_PREFIX)
        if temporary and (state[name] is None or state[name] in ("", [])):
            del state[name]
    for chunk in state.get("chunks") or []:
        if not chunk.get("status", True):
            del chunk["status"]


def _find(entries: list[dict[str, Any]], stream: StreamId) -> dict[str, Any] | None:
    return next((entry for entry in entries if entry_stream(entry) == stream), None)


def _child(parent: dict[str, Any], name: str) -> dict[str, Any]:
    child: dict[str, Any] = parent.get(name) or {}
    parent[name] = child
    return child


def _text(fields: dict[str, Any], name: str) -> str | None:
    value = fields.get(name)
    return None if value is None else str(value)


def _position(fields: dict[str, Any], name: str, dialect: Dialect = DIALECTS["postgres"]) -> Lsn | None:
    value = fields.get(name)
    if value is None or value == "":
        return None
    try:
        return Lsn.parse(value)
    except (ValueError, TypeError) as error:
        raise _unreadable(f"`{dialect.spelled(name)}` in the state file is not a log position.") from error


def _stream_id(value: Any) -> StreamId:
    try:
        return StreamId.parse(value)
    except (ValueError, AttributeError) as error:
        raise _unreadable("The state file names a stream that is not of the form schema.table.") from error


def _unreadable(message: str) -> StateError:
    remedy = (
        "Run `penstock state check` to see every problem, `penstock state restore` for the last good one."
    )
    return StateError(message, remedy=remedy)

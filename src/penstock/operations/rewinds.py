"""`penstock state rewind`: from where on changes can be applied to their table once more, or why not.

All that the state and the change log can say is said here, before anything is asked of anybody; the lane has
the table besides, and looks again (`lake/rewinding.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.config import Config, StreamConfig
from penstock.core import binlog_place
from penstock.core.errors import ConfigError
from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.core.resume_token import ResumeToken
from penstock.core.selection import Selection
from penstock.core.stream import StreamId
from penstock.core.where import Condition, WhereError
from penstock.lake.rewind_range import why_not
from penstock.ledger.load_record import LoadRecords
from penstock.ledger.state import StateDocument, StreamState
from penstock.ledger.store import StateStore
from penstock.log.reader import ChangeLog, LogRange
from penstock.operations.streams import known_streams

_EXAMPLES = {
    "postgres": "as Postgres does: 0/1A2B3C4D",
    "mysql": "as MySQL does, mysql-bin.000070:772591, or as `penstock status` does: 46/BC9EF",
    "mongodb": "as `penstock status` does, 673F82FE/2, or as a resume token",
}


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """What is applied again: the changes of `(start, to]`. `asked`: the position that was given, if that is
    inside of a step of the log; what is read begins with the step then.

    `steps` and `transactions` are those of the log in that range, of all streams; `changes` and `bytes` count
    whole files of this one.
    """

    stream: StreamId
    asked: Lsn
    start: Lsn
    to: Lsn
    steps: int
    transactions: int
    changes: int
    bytes: int
    waits: str = ""

    @property
    def said(self) -> str:
        aligned = (
            f"{self.asked} is inside of a step of the change log, which begins at {self.start}. "
            if self.asked != self.start
            else ""
        )
        return (
            f"{aligned}{self.steps:,} steps of the log are read again, up to {self.to}, with "
            f"{self.transactions:,} transactions; of this stream, {self.changes:,} changes in "
            f"{self.bytes:,} bytes.{self.waits}"
        )

    def to_json(self) -> dict[str, Any]:
        positions = {"asked": str(self.asked), "from": str(self.start), "to": str(self.to)}
        counts = {name: getattr(self, name) for name in ("steps", "transactions", "changes", "bytes")}
        return {"stream": str(self.stream), **positions, **counts}


def plan(config: Config, stream: str, to: str) -> RewindPlan:
    """ConfigError that says why, and what to do instead, if it cannot be done."""
    document = StateStore(config.state).load() or StateDocument.new()
    [name] = known_streams(config, [stream], document)
    if not (found := config.resolve_streams([name], some_may_be_gone=True)):
        raise _refused(name, "the pipeline file leaves it out", "")
    [configured] = found
    log = ChangeLog(config.state / "log")
    state = _followed(name, configured, document)
    _require_shown(name, state, LoadRecords(config.state / "load"))
    asked = _position(config, to, log)
    start, end = _bounds(name, state, document, asked, log)
    changes = log.files(name, start, end)
    if not changes:
        raise _refused(name, f"the log has no change of it after {start}", "There is nothing to do.")
    _require_followable(name, configured, log, changes)
    steps = [step for step in log.after(start) if step.start < end]
    return RewindPlan(
        name,
        asked,
        start,
        end,
        len(steps),
        sum(step.transactions for step in steps),
        changes.rows,
        changes.bytes,
        "" if state.paused is None else " The stream is paused: it is done when it is resumed.",
    )


def _followed(stream: StreamId, configured: StreamConfig, document: StateDocument) -> StreamState:
    """The stream's state, if it is one whose table the log can be applied to again."""
    if configured.mode not in ("cdc", "strict_cdc"):
        raise _refused(stream, f"it is `mode: {configured.mode}`, which has no change log", _resync(stream))
    if configured.write == "append":
        raise _refused(
            stream, "its table has a row for each change, and would have each twice", _resync(stream)
        )
    state = document.stream(stream)
    if state is None or state.chunks is None or state.generation is None:
        raise _refused(stream, "it was not loaded yet", "`penstock sync` loads it.")
    return state


def _require_shown(stream: StreamId, state: StreamState, records: LoadRecords) -> None:
    if state.is_loading or state.reload is not None or records.load(stream) is not None:
        raise _refused(stream, "it is being loaded", "Wait for the load: what it brings is later.")


def _bounds(
    stream: StreamId, state: StreamState, document: StateDocument, asked: Lsn, log: ChangeLog
) -> tuple[Lsn, Lsn]:
    """From where on, and up to where, the log is to be applied again."""
    stands_at = document.lsn if stream in document.global_streams else state.cdc_from
    if state.committed_to is None or stands_at is None:
        raise _refused(stream, "its table does not follow the log", _resync(stream))
    if asked > stands_at:
        raise _refused(
            stream,
            f"it is at {stands_at}, and {asked} is later",
            "A stream goes on by itself: `penstock sync`.",
        )
    if state.replayable_from is None:
        raise _refused(stream, "its state does not say where its load ended", _resync(stream))
    if asked < state.replayable_from:
        raise _refused(
            stream,
            f"up to {state.replayable_from} its rows came from a load or a repair, not from the log, or the "
            "state that would tell was put back",
            f"Choose a later position, or: {_resync(stream)}",
        )
    begins = log.start()
    if begins is None or asked < begins:
        raise _refused(
            stream,
            f"the change log does not reach back to {asked}; it begins at {begins or 'no position yet'}",
            f"Choose a later position, or: {_resync(stream)} `log.retention` says how long the log is kept.",
        )
    if asked >= state.committed_to:
        raise _refused(stream, f"its last change is before {asked}", "There is nothing to do.")
    steps = log.after(asked)
    # Where a step begins, a transaction ends; where a load ended, its table was whole.
    start = max(steps[0].start, state.replayable_from) if steps else asked
    return start, state.committed_to


def _require_followable(
    stream: StreamId, configured: StreamConfig, log: ChangeLog, changes: LogRange
) -> None:
    try:
        selection = _selection(configured, log, changes)
        reason = why_not(
            changes,
            lambda schema_id: selection.of(log.schema(schema_id)),
            keeps_older_rows=configured.mode == "strict_cdc",
            keeps_deleted=configured.deletes == "soft",
        )
    except WhereError:
        reason = "columns of its filter had other types"
    if reason is not None:
        raise _refused(stream, f"since then, {reason}", _resync(stream))


def _selection(configured: StreamConfig, log: ChangeLog, changes: LogRange) -> Selection:
    columns = tuple(configured.columns or ())
    if configured.where is None or not changes.files:
        return Selection(columns)
    newest = log.schema(changes.files[-1].schema_id)
    return Selection(columns, Condition.compile(configured.where, newest.columns))


def _position(config: Config, text: str, log: ChangeLog) -> Lsn:
    """A position by its number, or in the words of the source."""
    source = config.source.type
    try:
        return Lsn.parse(text)
    except ValueError:
        pass
    try:
        if source == "mongodb":
            return ResumeToken(text).time
        if source == "mysql":
            return _by_place(text, log)
    except ValueError:
        pass
    raise ConfigError(f"{text!r} is no position.", remedy=f"Write it {_EXAMPLES[source]}.")


def _by_place(text: str, log: ChangeLog) -> Lsn:
    """Counted from the last step of the log before it that is of the same server."""
    place = binlog_place.BinlogPlace.parse(text)
    for step in reversed(log.manifests()):
        if step.place is not None:
            known = Place(str(place), server=step.place.server)
            position = binlog_place.position_at(known, step.place, step.end)
            if position is not None:
                return position
    raise ConfigError(
        f"The change log has no step that ends before {text}.",
        remedy="Choose a later place; `log.retention` says how long the log is kept.",
    )


def _resync(stream: StreamId) -> str:
    return f"`penstock resync {stream}` loads its table anew."


def _refused(stream: StreamId, reason: str, remedy: str) -> ConfigError:
    return ConfigError(
        f"The table cannot be taken back: {reason}.",
        stream=str(stream),
        remedy=remedy or "Run `penstock status` to see the streams there are.",
    )

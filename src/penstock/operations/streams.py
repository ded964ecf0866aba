"""Streams that are to stand still, go on or be loaded again, whether or not a run is at work on the state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from penstock.config import Config
from penstock.config.problems import nearest
from penstock.core.errors import ConfigError, SourceBusyError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.ledger import orders
from penstock.ledger.ledger import Ledger
from penstock.ledger.orders import Action, Order
from penstock.ledger.state import StateDocument, SyncMode
from penstock.ledger.store import StateStore
from penstock.locking import is_held_by_run, only_one

#: done: the state has it. ordered: the run that is at work does it between two turns, or the next one.
Told = Literal["done", "ordered"]
WAIT_S = 10.0


def pause(config: Config, streams: Sequence[str], reason: str = "", *, wait_s: float = WAIT_S) -> Told:
    """Let these streams stand still where they are; the others go on, and nothing of theirs is lost."""
    return _tell(config, "pause", streams, reason, wait_s)


def resume(config: Config, streams: Sequence[str], *, wait_s: float = WAIT_S) -> Told:
    """Let paused streams go on; the next turn or sync brings them up to the others."""
    return _tell(config, "resume", streams, "", wait_s)


def resync(config: Config, streams: Sequence[str], *, wait_s: float = WAIT_S) -> Told:
    """Have these tables loaded again, by the run that is at work or by the next run or sync.

    Readers see the old tables until each new one is complete.
    """
    return _tell(config, "resync", streams, "", wait_s)


def rewind(config: Config, stream: StreamId, to: Lsn, *, wait_s: float = WAIT_S) -> Told:
    """Have the log after `to` applied to a table once more, as `rewinds.plan` found that it can be."""
    return _order(config, [Order("rewind", stream, to=to)], wait_s)


def known_streams(config: Config, streams: Sequence[str], document: StateDocument) -> list[StreamId]:
    """Stream ids that the state knows or the pipeline file names, by itself or by a pattern."""
    names = [stream_id(stream) for stream in streams]
    known = {*document.streams, *(each.id for each in config.streams if not each.id.is_pattern)}
    for name in names:
        if name not in known and not any(each.id.matches(name) for each in config.streams):
            close = nearest(str(name), map(str, known))
            raise ConfigError(
                "This stream is not part of the pipeline.",
                stream=str(name),
                remedy=(f"Did you mean {close}? " if close else "")
                + "Run `penstock status` to see the streams there are.",
            )
    return names


def stream_id(text: str) -> StreamId:
    try:
        return StreamId.parse(text)
    except ValueError as error:
        raise ConfigError(
            f"{text!r} is not a stream id.", remedy="Write schema.table, for instance public.orders."
        ) from error


def _tell(config: Config, action: Action, streams: Sequence[str], reason: str, wait_s: float) -> Told:
    document = StateStore(config.state).load() or StateDocument.new()
    names = known_streams(config, streams, document)
    return _order(config, [Order(action, name, reason, mode=_mode(config, name)) for name in names], wait_s)


def _order(config: Config, wanted: Sequence[Order], wait_s: float) -> Told:
    try:
        with only_one(config.state):
            ledger = Ledger(StateStore(config.state), config.source.type)
            orders.settle(ledger, config.state)
            ledger.write(orders.applied(ledger.document, wanted))
            is_work = any(order.action in ("resync", "rewind") for order in wanted)
            return "ordered" if is_work else "done"
    except SourceBusyError:
        if not is_held_by_run(config.state):
            raise
    paths = orders.give(config.state, wanted)
    return "done" if orders.wait_for(paths, wait_s) else "ordered"


def _mode(config: Config, stream: StreamId) -> SyncMode:
    return next((each.mode for each in reversed(config.streams) if each.id.matches(stream)), "cdc")

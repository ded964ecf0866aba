"""`orders/` in the state directory: what people want of streams while a run is at work on the state.

Only one process writes the state at a time, and while `penstock run` runs that is its lake process. So a
command leaves a file here, and whoever opens the state next carries it out: the lake process between two
turns, or a command that finds the state free. Files are carried out in the order of their names, which is the
order they came in, and go when the state that has them is durable. A crash in between has the last ones
carried out again, before anything else is done with the state: each only sets or takes away a mark, so the
state is the same then, and a table is loaded once. That a file is gone is durable before its mark is acted
upon: an old order never comes again.

A file that is no order must not stop the lane that finds it: whoever carries orders out renames it to
`….unreadable` (`taken`), where people find it and nobody carries it out. Looking at orders changes nothing.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

import structlog

from penstock import durable
from penstock.core.errors import StateError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.ledger import pausing, rewinding
from penstock.ledger.ledger import Ledger
from penstock.ledger.state import SYNC_MODES, StateDocument, SyncMode

DIRECTORY = "orders"
ORDERS_MAX = 10_000  # that wait; a run that does not take them must not fill the disk
SET_ASIDE = ".unreadable"
SET_ASIDE_MAX = 100  # that are kept, the newest
_FORMAT_VERSION = 1
_LOOK_EVERY_S = 0.05

Action = Literal["pause", "resume", "resync", "rewind"]
_logger = structlog.get_logger("penstock.orders")


@dataclass(frozen=True, slots=True)
class Order:
    action: Action
    stream: StreamId
    reason: str = ""
    at: str = ""
    mode: SyncMode = "cdc"  # of a stream that the state does not know yet
    to: Lsn | None = None  # of a rewind


def give(state: Path, orders: Sequence[Order]) -> list[Path]:
    """Durable when it returns; each is there until it is carried out."""
    if len(orders) + len(_files(state)) > ORDERS_MAX:
        raise StateError(
            f"{ORDERS_MAX} orders wait in {state / DIRECTORY} already.",
            remedy="See why the lake process does not carry them out: `penstock status`.",
        )
    paths = []
    for order in orders:
        path = state / DIRECTORY / f"{time.time_ns():020d}-{secrets.token_hex(4)}.json"
        fields = asdict(order) | {"stream": str(order.stream), "at": order.at or _now()}
        fields["to"] = None if order.to is None else str(order.to)
        durable.replace(path, durable.to_json_bytes(fields | {"format_version": _FORMAT_VERSION}))
        paths.append(path)
    return paths


def waiting(state: Path) -> list[tuple[Path, Order]]:
    """Those that nobody has carried out, the oldest first, for who only looks."""
    return _looked_at(state)[0]


def taken(state: Path) -> list[tuple[Path, Order]]:
    """The same for who carries them out: what cannot be read is set aside."""
    found, unread = _looked_at(state)
    for path, error in unread:
        _set_aside(path, error)
    return found


def unreadable(state: Path) -> list[Path]:
    """What was set aside, until somebody removes it, or will be; the oldest first."""
    unread = [path for path, _ in _looked_at(state)[1]]
    return sorted([*_files(state, f".json{SET_ASIDE}"), *unread])


def any_wait(state: Path) -> bool:
    return bool(_files(state))


def carried_out(paths: Sequence[Path]) -> None:
    """The state has them: they are gone, durably."""
    for path in paths:
        path.unlink(missing_ok=True)
    for directory in {path.parent for path in paths}:
        durable.sync_directory(directory)


def wait_for(paths: Sequence[Path], within_s: float) -> bool:
    """Whether all of them were carried out in time; StateError if whoever took them could not read one."""
    ends_at = time.monotonic() + within_s
    while True:
        left = any(path.exists() for path in paths)
        for path in paths:
            if (aside := _aside(path)).exists():
                raise StateError(
                    f"The run could not read the order and has set it aside: {aside}.",
                    remedy="Give the order with the version of Penstock that runs.",
                )
        if not left or time.monotonic() >= ends_at:
            return not left
        time.sleep(_LOOK_EVERY_S)


def applied(document: StateDocument, orders: Sequence[Order]) -> StateDocument:
    """What the orders mean for a state that nobody is at work on."""
    for order in orders:
        match order.action:
            case "pause":
                since = order.at or _now()
                document = pausing.paused(
                    document, order.stream, since=since, reason=order.reason, sync_mode=order.mode
                )
            case "resume":
                document = pausing.resumed(document, order.stream)
            case "resync":
                document = pausing.resumed(document, order.stream)
                document = pausing.to_be_loaded(document, order.stream, "it was asked for", replace=True)
            case "rewind":
                assert order.to is not None
                document = rewinding.asked(document, order.stream, order.to)
    return document


def settle(ledger: Ledger, state: Path) -> None:
    """Carry out what was ordered of a run that ended before it could; the caller has the state to itself."""
    if found := taken(state):
        ledger.write(applied(ledger.document, [order for _, order in found]))
        carried_out([path for path, _ in found])


def _looked_at(state: Path) -> tuple[list[tuple[Path, Order]], list[tuple[Path, StateError]]]:
    """Orders, and what is none."""
    found: list[tuple[Path, Order]] = []
    unread: list[tuple[Path, StateError]] = []
    for path in _files(state):
        try:
            found.append((path, _read(path)))
        except FileNotFoundError:  # carried out just now
            continue
        except StateError as error:
            unread.append((path, error))
    return found, unread


def _files(state: Path, ending: str = ".json") -> list[Path]:
    try:
        paths = list((state / DIRECTORY).iterdir())
    except FileNotFoundError:
        return []
    return sorted(path for path in paths if path.name.endswith(ending) and not path.name.startswith("."))


def _aside(path: Path) -> Path:
    return path.with_name(path.name + SET_ASIDE)


def _set_aside(path: Path, error: StateError) -> None:
    """Or raise what was found, if the file cannot be moved: it would be found again at once."""
    try:
        path.rename(_aside(path))
    except FileNotFoundError:  # by another process
        return
    except OSError:
        raise error from error.__cause__
    _logger.warning("an order cannot be read and is set aside", file=_aside(path).name)
    for old in _files(path.parent.parent, f".json{SET_ASIDE}")[:-SET_ASIDE_MAX]:
        old.unlink(missing_ok=True)


def _read(path: Path) -> Order:
    try:
        fields = json.loads(path.read_bytes())
        if fields["format_version"] > _FORMAT_VERSION or fields["action"] not in get_args(Action):
            raise ValueError("unknown")
        stream = StreamId.parse(fields["stream"])
        mode: SyncMode = fields["mode"] if fields.get("mode") in SYNC_MODES else "cdc"
        to = Lsn.parse(fields["to"]) if fields["action"] == "rewind" else None
        return Order(fields["action"], stream, str(fields.get("reason", "")), str(fields["at"]), mode, to)
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        PermissionError,
        IsADirectoryError,
    ) as error:
        raise StateError(
            f"The order {path} cannot be read.", remedy="Remove it, and give the order again."
        ) from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

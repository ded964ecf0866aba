"""`orders.json`: what people have told a lane to do. Written by commands, carried out by the lane that leads.

A pause holds until it is taken back. A rewind and a resync are carried out once: the lane removes them when
the target has written down where it goes on from. A crash in between has them carried out again, which sends
the same again: that is what they are for.

Who changes the file reads it and writes it anew under a lock, so that of two commands, or of a command and
the lane that strikes out what it has carried out, neither undoes what the other said.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock import durable
from penstock.core.errors import StateError
from penstock.core.position import Lsn
from penstock.file_lock import held

ORDERS_FILE = "orders.json"
_LOCK = "orders.lock"
_FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Orders:
    """`rewind_to`: a position. `resync`: these streams; empty: all; None: nothing of the kind."""

    paused_since: str | None = None
    reason: str = ""
    rewind_to: str | None = None
    resync: tuple[str, ...] | None = None
    serial: str = ""  # another one with every order

    @property
    def is_paused(self) -> bool:
        return self.paused_since is not None

    @property
    def is_open(self) -> bool:
        """Whether there is something to carry out."""
        return self.rewind_to is not None or self.resync is not None

    @property
    def position(self) -> Lsn | None:
        return None if self.rewind_to is None else Lsn.parse(self.rewind_to)

    def pause(self, reason: str) -> Orders:
        since = self.paused_since or datetime.now(UTC).isoformat(timespec="seconds")
        return replace(self, paused_since=since, reason=reason)

    def resume(self) -> Orders:
        return replace(self, paused_since=None, reason="")

    def rewind(self, to: Lsn) -> Orders:
        return replace(self, rewind_to=str(to))

    def load_anew(self, streams: tuple[str, ...]) -> Orders:
        """Of several such orders, one for all counts."""
        before = self.resync
        both = () if not streams or before == () else tuple(dict.fromkeys([*(before or ()), *streams]))
        return replace(self, resync=both)

    def carried_out(self) -> Orders:
        return replace(self, rewind_to=None, resync=None)


def lane_directory(state: Path, lane: str) -> Path:
    """What a stream lane keeps beside the log: its orders, dead letters and checkpoints."""
    return state / "streams" / lane


class OrderBook:
    """The lane's orders in its directory."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / ORDERS_FILE
        self._lock = directory / _LOCK

    def read(self) -> Orders:
        try:
            fields = json.loads(self._path.read_bytes())
            return _orders(fields)
        except FileNotFoundError:
            return Orders()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StateError(
                f"{self._path} cannot be read.",
                remedy="Remove it: it says whether the lane is paused and what it is to send again, no more.",
            ) from error

    def change(self, change: Callable[[Orders], Orders]) -> None:
        """Say something more, or something else, than was said so far."""
        with held(self._lock):
            self.write(change(self.read()))

    def write(self, orders: Orders) -> None:
        """Whatever was said before."""
        fields = asdict(orders) | {"serial": uuid.uuid4().hex, "format_version": _FORMAT_VERSION}
        durable.replace(self._path, durable.to_json_bytes(fields))

    def carried_out(self, orders: Orders) -> None:
        """Unless somebody has said something else meanwhile."""
        with held(self._lock):
            if self.read().serial == orders.serial:
                self.write(orders.carried_out())


def _orders(fields: dict[str, Any]) -> Orders:
    if fields["format_version"] > _FORMAT_VERSION:
        raise StateError(
            "The lane's orders were written by a newer Penstock.",
            remedy="Install that version of Penstock, or a later one.",
        )
    resync, rewind = fields.get("resync"), fields.get("rewind_to")
    return Orders(
        fields.get("paused_since"),
        fields.get("reason", ""),
        None if rewind is None else str(Lsn.parse(rewind)),
        None if resync is None else tuple(map(str, resync)),
        fields["serial"],
    )

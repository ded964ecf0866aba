"""`orders.json`: what people have told a lane to do. Written by commands, carried out by the lane that leads.

A pause holds until it is taken back. A rewind and a resync are carried out once, and why that holds: each has
a number of its own in this file (`book`), greater than those of all before it. A term carries out all that
the file has when it begins, and the target writes down, in one with where the lane goes on from, the number
that it came to (`Standing.orders`). What is not beyond that number is done, whoever asks and whatever has
ended in between, and is struck out without being done again; what was ordered meanwhile is beyond it, and
stays.

Who changes the file reads it and writes it anew under a lock, so that of two commands, or of a command and
the lane that strikes out what it has carried out, neither undoes what the other said.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
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
_ALL = ""  # instead of a stream


@dataclass(frozen=True, slots=True)
class Orders:
    """`rewind_to`: a position. `resyncs`: streams, each with its order's number; "" stands for all.

    `number`: the last rewind's or resync's, in the file that has the name `book`.
    """

    paused_since: str | None = None
    reason: str = ""
    rewind_to: str | None = None
    rewind_number: int = 0
    resyncs: Mapping[str, int] = field(default_factory=dict)
    number: int = 0
    book: str = ""
    serial: str = ""  # another one with every order

    @property
    def is_paused(self) -> bool:
        return self.paused_since is not None

    @property
    def pause_told(self) -> str:
        """For a person; empty if it is not paused."""
        why = f" ({self.reason})" if self.reason else ""
        return f"paused since {self.paused_since}{why}" if self.is_paused else ""

    @property
    def is_open(self) -> bool:
        """Whether there is something to carry out."""
        return self.rewind_to is not None or self.resync is not None

    @property
    def position(self) -> Lsn | None:
        return None if self.rewind_to is None else Lsn.parse(self.rewind_to)

    @property
    def resync(self) -> tuple[str, ...] | None:
        """These streams; empty: all; None: nothing of the kind."""
        if not self.resyncs:
            return None
        return () if _ALL in self.resyncs else tuple(self.resyncs)

    @property
    def mark(self) -> str:
        """What a target remembers of everything that is ordered here; empty if nothing ever was."""
        return f"{self.book}:{self.number}" if self.number else ""

    def pause(self, reason: str) -> Orders:
        since = self.paused_since or datetime.now(UTC).isoformat(timespec="seconds")
        return replace(self, paused_since=since, reason=reason)

    def resume(self) -> Orders:
        return replace(self, paused_since=None, reason="")

    def rewind(self, to: Lsn) -> Orders:
        number = self.number + 1
        return replace(self, rewind_to=str(to), rewind_number=number, number=number)

    def load_anew(self, streams: tuple[str, ...]) -> Orders:
        """Of several such orders, one for all counts."""
        number = self.number + 1
        return replace(
            self, resyncs={**self.resyncs, **dict.fromkeys(streams or (_ALL,), number)}, number=number
        )

    def beyond(self, mark: str) -> Orders:
        """Without what is carried out where this mark is remembered."""
        book, _, number = mark.rpartition(":")
        if not mark or book != self.book:
            return self
        done = int(number)
        is_rewound = self.rewind_number <= done
        return replace(
            self,
            rewind_to=None if is_rewound else self.rewind_to,
            rewind_number=0 if is_rewound else self.rewind_number,
            resyncs={stream: number for stream, number in self.resyncs.items() if number > done},
        )


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
        serial = uuid.uuid4().hex
        fields = asdict(replace(orders, book=orders.book or serial, serial=serial))
        durable.replace(self._path, durable.to_json_bytes(fields | {"format_version": _FORMAT_VERSION}))

    def carried_out(self, orders: Orders) -> Orders:
        """Strike these out. What is left; or these again, if something came meanwhile: their serial is over,
        and whoever compares serials learns of it."""
        with held(self._lock):
            now = self.read()
            if (left := now.beyond(orders.mark)) != now:
                self.write(left)
            return self.read() if now.serial == orders.serial else orders


def _orders(fields: dict[str, Any]) -> Orders:
    if fields["format_version"] > _FORMAT_VERSION:
        raise StateError(
            "The lane's orders were written by a newer Penstock.",
            remedy="Install that version of Penstock, or a later one.",
        )
    resyncs, rewind = fields.get("resyncs", {}), fields.get("rewind_to")
    number = fields.get("number", 0)
    if "book" not in fields:  # written before orders had numbers
        named = fields.get("resync")
        resyncs = {} if named is None else dict.fromkeys(named or (_ALL,), 1)
        number = 1
    return Orders(
        fields.get("paused_since"),
        fields.get("reason", ""),
        None if rewind is None else str(Lsn.parse(rewind)),
        int(fields.get("rewind_number", 0 if rewind is None else 1)),
        {str(stream): int(order) for stream, order in resyncs.items()},
        int(number),
        str(fields.get("book", fields["serial"])),
        fields["serial"],
    )

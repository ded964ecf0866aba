"""Sets of global transaction ids, as MySQL and MariaDB write them.

MySQL: per source (a UUID, since 8.3 perhaps with a tag) intervals of numbers, both ends included in the text
and the last one excluded on the wire. MariaDB: per domain the last transaction, which implies all before it.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.core.errors import StateError

Interval = tuple[int, int]  # first, last: both are in it
_TAGGED = 1  # how the wire says that sources may have tags


@dataclass(frozen=True, slots=True)
class GtidSet:
    """MySQL's: sources are `uuid` or `uuid:tag`, intervals in order and apart."""

    sources: dict[str, tuple[Interval, ...]]

    @classmethod
    def parse(cls, text: str) -> GtidSet:
        found: dict[str, list[Interval]] = {}
        for part in filter(None, (part.strip() for part in text.replace("\n", "").split(","))):
            name, *rest = (piece.strip().lower() for piece in part.split(":"))
            source = _checked_uuid(name, text)
            for piece in rest:
                if not piece[:1].isdigit():
                    source = f"{name}:{piece}"  # a tag holds for the intervals behind it
                else:
                    found.setdefault(source, []).append(_interval(piece, text))
        return cls({source: _merged(intervals) for source, intervals in sorted(found.items())})

    def __str__(self) -> str:
        return ",".join(
            ":".join(
                [source, *(f"{first}-{last}" if last > first else f"{first}" for first, last in intervals)]
            )
            for source, intervals in self.sources.items()
        )

    def union(self, other: GtidSet) -> GtidSet:
        sources = self.sources.keys() | other.sources.keys()
        return GtidSet(
            {
                source: _merged([*self.sources.get(source, ()), *other.sources.get(source, ())])
                for source in sorted(sources)
            }
        )

    def contains(self, other: GtidSet) -> bool:
        return all(
            any(first <= begin and end <= last for first, last in self.sources.get(source, ()))
            for source, intervals in other.sources.items()
            for begin, end in intervals
        )

    def to_wire(self) -> bytes:
        """As COM_BINLOG_DUMP_GTID wants it; the older form unless there are tags."""
        tagged = any(":" in source for source in self.sources)
        count = len(self.sources)
        parts = [struct.pack("<Q", (_TAGGED << 56) | (count << 8) | _TAGGED if tagged else count)]
        for source, intervals in self.sources.items():
            name, _, tag = source.partition(":")
            parts.append(uuid.UUID(name).bytes)
            if tagged:
                parts.append(bytes([len(tag) << 1]) + tag.encode())  # a length of one byte, as its varint
            parts.append(struct.pack("<Q", len(intervals)))
            parts += [struct.pack("<QQ", first, last + 1) for first, last in intervals]
        return b"".join(parts)


def _merged(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    merged: list[Interval] = []
    for first, last in sorted(intervals):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def _checked_uuid(name: str, text: str) -> str:
    try:
        return str(uuid.UUID(name))
    except ValueError as error:
        raise _unreadable(text) from error


def _interval(piece: str, text: str) -> Interval:
    first, _, last = piece.partition("-")
    try:
        return int(first), int(last or first)
    except ValueError as error:
        raise _unreadable(text) from error


def _unreadable(text: str) -> StateError:
    return StateError(
        f"{text[:80]!r} is no set of global transaction ids.",
        remedy="It looks like 3E11FA47-71CA-11E1-9E33-C80AA9429562:1-5; take it from @@gtid_executed.",
    )

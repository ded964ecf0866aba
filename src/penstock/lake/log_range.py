"""Ranges of the change log as people and queries give them, and how a range is cut into partitions.

A `Place` lies between two changes: before the first one whose offset is not below it. So `(first, end)` is
half open, ranges that follow each other share a place, and no change lies in two of them or in none.

    after = 26800664_4   the place behind that change          after = 2D9/AD00445A, from = the same
    from  = 26800664_4   the place before it                       the place before the transactions that
    to    = 26800664_4   the place behind it                       commit at that position or later

Pure, but for what it asks a `ChangeLog`; that one never changes what it once said, and says so if it is gone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.core.errors import ConfigError, PositionGoneError
from penstock.core.offset import LogOffset
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.log.manifest import Manifest
from penstock.log.reader import ChangeLog, LogFile

PARTITION_BYTES = 32 * 1024 * 1024
_STEPS_AT_ONCE = 64
_INTEGER_MAX = 2**63 - 1


class Place(NamedTuple):
    tx: int
    op: int = 0

    @classmethod
    def parse(cls, text: str, *, behind: bool) -> Place:
        """From an offset (before the change or behind it) or a log position."""
        if "/" in text:
            return cls(Lsn.parse(text))
        offset = LogOffset.parse(text)
        if offset == LogOffset.BEFORE_ALL:
            return cls(0)
        if offset.op == math.inf:
            return cls(offset.tx + 1)
        return cls(offset.tx, int(offset.op) + behind)

    def __str__(self) -> str:
        return f"{int(self.tx)}_{self.op}"  # an Lsn would print as the source does

    @property
    def first_transaction(self) -> Lsn:
        return Lsn(self.tx)

    @property
    def transactions_end(self) -> Lsn:
        """No transaction at or behind this position has a change before the place."""
        return Lsn(self.tx + (1 if self.op else 0))


END = Place(_INTEGER_MAX)


class Part(NamedTuple):
    """What one partition reads: whole files, or every n-th row group of one."""

    files: tuple[LogFile, ...]
    share: tuple[int, int] = (0, 1)


def option_place(name: str, text: str, *, behind: bool) -> Place:
    try:
        return Place.parse(text, behind=behind)
    except ValueError as error:
        raise ConfigError(
            f"The option `{name}` is not an offset: {text!r}.",
            remedy="Write an offset such as 26800664_4, or a log position such as 2D9/AD00445A.",
        ) from error


def first_place(log: ChangeLog, stream: StreamId, asked: Place | None) -> Place:
    """Where reading begins: as asked, or with what the log still holds."""
    start = log.start()
    if asked is None:
        return Place(start or 0)
    if start is None or asked < Place(start):
        raise gone(stream, asked, start)
    return asked


def gone(stream: StreamId, asked: Place, start: Lsn | None) -> PositionGoneError:
    return PositionGoneError(
        f"The change log begins at {start}; changes from {Lsn(asked.tx)} on are no longer in it.",
        stream=str(stream),
        remedy="Read the table for what was before, and the log from its beginning (leave out `after` and "
        "`from`, and give a streaming query a new checkpoint). `log.retention` says how long changes stay.",
    )


def batch_end(log: ChangeLog, stream: StreamId, first: Place, last: Place, bytes_max: int) -> Place:
    """The end of a batch from `first` on with about `bytes_max` bytes of the stream, at least a step."""
    end, size = first, 0
    for manifest in _steps(log, first.first_transaction):
        table = manifest.table(stream)
        more = sum(file.bytes for file in table.files) if table is not None else 0
        if size and bytes_max and size + more > bytes_max:
            break
        end, size = Place(manifest.end), size + more
    return max(first, min(end, last))


def _steps(log: ChangeLog, after: Lsn) -> Iterator[Manifest]:
    """Read as they are asked for: a batch may end long before the log."""
    while steps := log.after(after, most=_STEPS_AT_ONCE):
        yield from steps
        after = steps[-1].end


def parts(files: Sequence[LogFile], bytes_max: int = PARTITION_BYTES) -> list[Part]:
    """Large files by row groups, small ones together, in the order of the log."""
    found: list[Part] = []
    waiting: list[LogFile] = []
    for file in files:
        count = math.ceil(file.bytes / bytes_max)
        if waiting and (count > 1 or sum(each.bytes for each in waiting) + file.bytes > bytes_max):
            found.append(Part(tuple(waiting)))
            waiting = []
        if count > 1:
            found += [Part((file,), (number, count)) for number in range(count)]
        else:
            waiting.append(file)
    return [*found, Part(tuple(waiting))] if waiting else found

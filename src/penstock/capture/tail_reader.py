"""The newest changes, from memory where capture has them there and from the change log where not.

A reader that knows where the log lies gets one sequence of whole transactions from any position that is still
in the log, and then follows. It keeps nothing itself: after an error the lane begins again with the `end` of
the last item it has dealt with.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from penstock.capture.remote import RemoteCapture
from penstock.capture.tail_items import Origin, Piece, ReadLog, Transactions
from penstock.core.errors import PositionGoneError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.log import columns as log_columns
from penstock.log.reader import ChangeLog, LogFile, read_batches

LOG_ITEM_BYTES = 16 << 20
LOG_PIECE_ROWS = 1 << 12  # a transaction of the log may be larger than memory


class TailReader:
    """`streams`: only their changes are read, and given; None: all."""

    def __init__(
        self, capture: RemoteCapture, log_directory: Path, streams: Collection[StreamId] | None = None
    ) -> None:
        self._capture = capture
        self._streams = None if streams is None else frozenset(streams)
        self._log = LogReader(log_directory, self._streams)
        self.origin: Origin | None = None  # of the last time `follow` was begun

    def follow(self, after: Lsn) -> Iterator[Transactions]:
        """Everything after `after`, for ever. Pieces of an item are read as they are asked for, and must be
        before the next item is."""
        for item in self._capture.tail(after):
            if isinstance(item, Origin):
                self.origin = item
            elif isinstance(item, ReadLog):
                yield from self._log.read(after, item.to)
                after = item.to
            else:
                yield item if self._streams is None else self._without_others(item)
                after = item.end

    def _without_others(self, item: Transactions) -> Transactions:
        assert self._streams is not None
        pieces = tuple(piece for piece in item.pieces if piece.stream in self._streams)
        return replace(item, pieces=pieces)


class LogReader:
    """The same from the change log alone, up to a position that it has. `streams` as above."""

    def __init__(self, log_directory: Path, streams: frozenset[StreamId] | None = None) -> None:
        self._streams = streams
        self._log = ChangeLog(log_directory)

    def read(self, after: Lsn, to: Lsn) -> Iterator[Transactions]:
        start = self._log.start()
        if start is None or start > after:
            raise PositionGoneError(
                f"The change log begins at {start} and does not reach back to {after}.",
                remedy="Load what this lane holds anew; `log.retention` says how long the log is kept.",
            )
        for end in self._log.boundaries(after, to, LOG_ITEM_BYTES):
            yield Transactions(end, self._pieces(after, end), untold=self._untold(after, end))
            after = end

    def _untold(self, after: Lsn, to: Lsn) -> dict[StreamId, tuple[int, ...]]:
        found = self._log.untold(after, to)
        return {
            stream: txs for stream, txs in found.items() if self._streams is None or stream in self._streams
        }

    def _pieces(self, after: Lsn, to: Lsn) -> Iterator[Piece]:
        """Stream by stream; of leaves that have changes of the same time, by the first of each piece."""
        for stream, found in self._log.streams_with_changes(after, to).items():
            if self._streams is not None and stream not in self._streams:
                continue
            leaves: dict[str, list[LogFile]] = {}
            for file in found.files:
                leaves.setdefault(file.leaf, []).append(file)
            yield from heapq.merge(
                *(_read(stream, files, after, to) for files in leaves.values()), key=first_change
            )


def _read(stream: StreamId, files: Sequence[LogFile], after: Lsn, to: Lsn) -> Iterator[Piece]:
    for file in files:
        for rows in read_batches(file, after, to, LOG_PIECE_ROWS):
            yield Piece(stream, StreamId.parse(file.leaf), file.schema_id, rows)


def first_change(piece: Piece) -> tuple[int, int]:
    rows = piece.rows
    return rows.column(log_columns.TX)[0].as_py(), rows.column(log_columns.OP_INDEX)[0].as_py()

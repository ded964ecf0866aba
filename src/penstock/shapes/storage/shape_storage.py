"""One shape's snapshot and log, as it is written and read.

Items stand in a buffer first, where readers find them at once; the write loop makes them durable in the
commit log, and later writes them to the shape's own files and takes them out of the buffer.

| field | meaning |
|---|---|
| `last_seen_offset` | newest in the buffer |
| `last_seen_txn_offset` | newest whole transaction seen |
| `readable_offset` | the same, unless what it covers must be durable first (correctness 41) |
| `last_persisted_offset` | newest that is durable, in the commit log or the files |
| `last_persisted_txn_offset` | newest whole transaction that is durable: what recovery gives again |

Two threads write here, each its own fields: the engine appends, the write loop counts what is durable and
moves items to disk. Readers hold no lock. They take the buffer first and then look how far the files go:
what is moved to disk in between is then in both, and is taken from the files alone. The other order could
miss it.

An append whose offsets were seen already is dropped, item by item: transactions replayed after a crash, or
after capture was away, change nothing. An idle shape holds no file open and about 1 KiB of memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.core.offset import LogOffset
from penstock.shapes.storage import compaction
from penstock.shapes.storage.chunk_index import Chunk, ItemColumns, OpenChunk
from penstock.shapes.storage.items import LogItems
from penstock.shapes.storage.records import Range, encode, read_buffer, read_file, scan
from penstock.shapes.storage.shape_files import (
    LogFiles,
    Metadata,
    NewRecords,
    cut_to_boundary,
    publish_metadata,
    recover_files,
    stage_metadata,
    stage_records,
    write_boundary,
)
from penstock.shapes.storage.snapshots import (
    Extent,
    SnapshotChunk,
    SnapshotState,
    SnapshotWriter,
    find_chunk,
    sync_chunks,
)

if TYPE_CHECKING:
    from penstock.shapes.storage.store import ShapeStore


class Piece(NamedTuple):
    """What one append put into the buffer."""

    records: bytes
    last: LogOffset
    boundary: LogOffset | None


class Staged(NamedTuple):
    """What is written to a shape's files and does not count yet: bytes, pieces and chunks."""

    files: LogFiles
    size: int
    pieces: int
    chunks: int
    metadata: Metadata | None


class Hold(NamedTuple):
    """Readers see nothing after `base` that is not durable, until `until` is."""

    base: LogOffset
    until: LogOffset


class ShapeStorage:
    """Use `ShapeStore.open` to get one."""

    __slots__ = (
        "_chunk", "_closed", "_committed", "_files", "_hold", "_last_chunk_end", "_metadata", "_pieces",
        "_snapshot", "_store", "buffered_since", "committed_bytes", "handle", "is_gone", "is_kept",
        "last_persisted_offset", "last_persisted_txn_offset", "last_seen_offset", "last_seen_txn_offset",
        "named_in", "number", "on_snapshot_progress", "slot",
    )  # fmt: skip

    def __init__(self, store: ShapeStore, handle: str, number: int, slot: int) -> None:
        nothing = LogOffset.LAST_BEFORE_REAL
        self._store = store
        self.handle = handle
        self.number = number  #: in the commit log
        self.slot = slot
        self.is_gone = False
        self.is_kept = False  #: it was made ready before, so its snapshot is on disk
        self.last_seen_offset = self.last_seen_txn_offset = nothing
        self.last_persisted_offset = self.last_persisted_txn_offset = nothing
        self.on_snapshot_progress: Callable[[], None] | None = None
        self.named_in = 0  #: the segment of the commit log that knows its number
        self.committed_bytes = 0  #: in the buffer
        self.buffered_since = 0  #: the oldest segment with something that is not in its files; 0: none
        self._metadata: Metadata | None = None  # committed, and not in its file
        self._snapshot = Extent()
        self._files = LogFiles()
        self._chunk = OpenChunk()
        self._closed: list[Chunk] = []  # chunks whose end is not in the files
        self._last_chunk_end = LogOffset.BEFORE_ALL
        self._pieces: list[Piece] = []
        self._committed = 0  # of the pieces
        self._hold: Hold | None = None

    @property
    def directory(self) -> str:
        return self._store.shape_directory(self.handle)

    # Appending: the engine's thread.

    def append_to_log(self, items: LogItems) -> None:
        """Readable at once as far as `items.boundary` says; durable after the next commit."""
        if not self.is_gone:
            records, ends = encode(items)
            columns = ItemColumns(items.tx, items.op, ends, items.key_ends, items.json_ends)
            piece = self.append_records(records.tobytes(), columns, items.boundary, items.durable_first)
            if piece is not None:
                self._store.pend(self, piece)

    def append_records(
        self, records: bytes, items: ItemColumns, boundary: LogOffset | None, durable_first: bool = False
    ) -> Piece | None:
        """What is new of it, which is in the buffer then; None if nothing is."""
        seen = _seen(items, self.last_seen_offset)
        if seen:
            records = records[int(items.record_ends[seen - 1]) :]
            items = items.slice(seen, len(items.tx))
        last = self.last_seen_offset
        if len(items.tx):
            last = LogOffset(int(items.tx[-1]), int(items.op[-1]))
            closed = self._chunk.add(items, self._store.chunk_bytes)
            if closed:
                self._closed += closed
                self._last_chunk_end = closed[-1].last
        if boundary is not None and boundary <= self.last_seen_txn_offset:
            boundary = None
        if not records and boundary is None:
            return None
        piece = Piece(records, last, boundary)
        self._enter(piece, durable_first)
        return piece

    def append_small(
        self, tx: int, op: int, records: bytes, last: LogOffset, key_bytes: int, json_bytes: int
    ) -> Piece | None:
        """The same for items from (tx, op) to `last` that are whole transactions, if all of them are new
        and no chunk ends in them; else nothing is done, and it is None."""
        seen, chunk = self.last_seen_offset, self._chunk
        if tx < seen.tx or (tx == seen.tx and op <= seen.op):
            return None
        if chunk.json + json_bytes >= self._store.chunk_bytes:
            return None
        chunk.add_below(tx, op, len(records), key_bytes, json_bytes)
        piece = Piece(records, last, last)
        self._enter(piece, False)
        return piece

    def _enter(self, piece: Piece, durable_first: bool) -> None:
        self._pieces.append(piece)
        self.last_seen_offset = piece.last
        if piece.boundary is not None:
            # The hold before the offset: see `readable_offset`.
            if durable_first:
                self._hold = Hold(self.readable_offset, piece.boundary)
            elif self._hold is not None and self.last_persisted_txn_offset >= self._hold.until:
                self._hold = None
            self.last_seen_txn_offset = piece.boundary

    def make_ready(self, definition_json: str, facts: str = "") -> None:
        """With the next commit the shape outlives a crash. To be called when the snapshot is complete and all
        that was buffered meanwhile is appended; and again when the texts change. Recovery gives them back."""
        self._store.pend_ready(self, Metadata(definition_json, facts, self._snapshot.chunks))

    # Durability: the write loop's thread.

    def note_ready(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self.is_kept = True

    def note_committed(self, piece: Piece) -> None:
        self._committed += 1
        self.committed_bytes += len(piece.records)
        self.last_persisted_offset = piece.last
        if piece.boundary is not None:
            self.last_persisted_txn_offset = piece.boundary

    @property
    def has_chunk_end(self) -> bool:
        """Whether a chunk has ended that is not in the files."""
        return bool(self._closed)

    def stage_files(self, *, sync: bool) -> Staged:
        """Write what is committed behind what the files have. Nothing has changed before `publish_files`."""
        pieces = self._pieces[: self._committed]
        if self._metadata is not None:
            stage_metadata(self.directory, self._metadata, sync=sync)
        if not pieces:
            return Staged(self._files, 0, 0, 0, self._metadata)
        records, whole, boundary = b"".join([piece.records for piece in pieces]), 0, None
        written = 0
        for piece in pieces:
            written += len(piece.records)
            if piece.boundary is not None:
                whole, boundary = written, piece.boundary
        end = self._files.end + len(records)
        closed = [chunk for chunk in tuple(self._closed) if chunk.end <= end]
        new = NewRecords(records, pieces[-1].last, boundary, whole, closed)
        files = stage_records(self.directory, self._files, new, sync=sync)
        return Staged(files, len(records), len(pieces), len(closed), self._metadata)

    def publish_files(self, staged: Staged, *, sync: bool) -> None:
        """What was staged is on disk: let it count, and take it out of the buffer."""
        if staged.pieces:
            write_boundary(self.directory, staged.files, sync=sync)
            self._files = staged.files
            del self._pieces[: staged.pieces]
            del self._closed[: staged.chunks]
            self._committed = self.committed_bytes = 0
        if staged.metadata is not None:
            publish_metadata(self.directory, sync=sync)
            self._metadata = None

    def sync_snapshot(self) -> None:
        sync_chunks(Path(self.directory, "snapshot"), self._snapshot.chunks)

    def drop_buffer(self) -> int:
        """Free its memory; how many bytes."""
        size = sum(len(piece.records) for piece in self._pieces)
        self._pieces.clear()
        self._closed.clear()
        self._committed = self.committed_bytes = 0
        return size

    # Recovery: before anything runs.

    def restore(self, files: LogFiles, chunk: OpenChunk, last_chunk: Chunk | None) -> None:
        """What the files have; `replay` and `cut_unfinished` follow."""
        self._files, self._chunk = files, chunk
        self.last_seen_offset = self.last_persisted_offset = files.last
        self.last_seen_txn_offset = self.last_persisted_txn_offset = files.boundary
        self._last_chunk_end = last_chunk.last if last_chunk is not None else LogOffset.BEFORE_ALL

    def replay(self, records: bytes, boundary: LogOffset | None) -> bool:
        """What the commit log has of it, appended and committed again; whether anything of it is new."""
        found = scan(records)
        key_ends = np.cumsum(found.key_end - found.key_start)
        json_ends = np.cumsum(found.end - found.json_start)
        items = ItemColumns(found.tx, found.op, found.end, key_ends, json_ends)
        piece = self.append_records(records, items, boundary)
        if piece is None:
            return False
        self.note_committed(piece)
        return True

    def cut_unfinished(self) -> None:
        """Drop what is behind the last whole transaction: it comes again."""
        if self.last_seen_offset <= self.last_seen_txn_offset:
            return
        boundary, pieces = self.last_seen_txn_offset, list(self._pieces)
        while pieces and pieces[-1].boundary is None:
            pieces.pop()
        if not pieces and self._files.last > self._files.boundary:
            cut_to_boundary(self.directory, self._files)
        self.drop_buffer()
        self.restore(*recover_files(self.directory))
        if pieces:
            self.replay(b"".join([piece.records for piece in pieces]), boundary)

    def restore_ready(self, snapshot: Extent, metadata: Metadata | None) -> None:
        """`metadata`: it is in the commit log alone."""
        self._snapshot, self._metadata = snapshot, metadata
        self.is_kept = True

    # Reading: any thread.

    def is_buffered(self, after: LogOffset) -> bool:
        """Whether all that follows the offset is in memory."""
        return self._files.last <= after

    def get_log_stream(self, after: LogOffset, up_to: LogOffset) -> Iterator[bytes]:
        """JSON of the items after `after` and up to `up_to`, which is no further than `readable_offset`, in
        blocks (see `records`). `FileNotFoundError` once the shape is gone."""
        pieces, files = tuple(self._pieces), self._files
        first = True
        if after < files.last:
            with ExitStack() as opened:
                try:
                    parts = self._open_files(opened, files, after)
                except FileNotFoundError:
                    if self.is_gone or self._files is files:
                        raise
                    yield from self.get_log_stream(after, up_to)  # compacted in between
                    return
                for descriptor, start, stop in parts:
                    for block in read_file(descriptor, start, stop, Range.of(after, up_to), first=first):
                        yield block
                        first = False
        buffered = _between(pieces, max(after, files.last), up_to)
        if buffered:
            wanted = Range.of(max(after, files.last), up_to)
            yield from read_buffer(b"".join(buffered), wanted, first=first)

    def get_chunk_end_log_offset(self, offset: LogOffset) -> LogOffset | None:
        """Where an answer that begins after the offset ends: the end of the first chunk that ends later. None
        if that chunk is still open, or ends in a transaction that is not whole."""
        if offset >= self._last_chunk_end:
            return None
        closed = tuple(self._closed)
        chunk = self._chunk_on_disk(offset)
        if chunk is None:
            chunk = next((chunk for chunk in closed if chunk.last > offset), None)
        return chunk.last if chunk is not None and chunk.last <= self.last_seen_txn_offset else None

    @property
    def readable_offset(self) -> LogOffset:
        """What readers may have. Read in this order: an offset that is held is never seen without its
        hold."""
        seen = self.last_seen_txn_offset
        hold, persisted = self._hold, self.last_persisted_txn_offset
        if hold is None or persisted >= hold.until:
            return seen
        return max(hold.base, persisted)

    @property
    def snapshot_state(self) -> SnapshotState:
        return self._snapshot.state

    @property
    def snapshot_chunks(self) -> int:
        """How many there are so far."""
        return self._snapshot.chunks

    def snapshot_chunk(self, number: int) -> SnapshotChunk | None:
        return find_chunk(Path(self.directory, "snapshot"), self._snapshot, number)

    @property
    def bytes_on_disk(self) -> int:
        return self._files.bytes + self._snapshot.total

    # What others do with it.

    def make_new_snapshot(self) -> SnapshotWriter:
        return SnapshotWriter(
            Path(self.directory, "snapshot"), self._store.chunk_bytes, self._publish_snapshot
        )

    def compact(self, keep_chunks: int = 2) -> bool:
        """Merge what is older than the newest `keep_chunks` closed chunks; False if there is nothing to
        merge. Takes as long as reading and writing it: not for the loop's or the engine's thread."""
        return compaction.compact(self, self._store, max(2, keep_chunks))

    def cleanup(self) -> None:
        """Have it gone before the next commit is durable. Returns at once."""
        self._store.remove(self)

    def move_away(self) -> None:
        """In the write loop's thread: recovery does not find it any more."""
        self._store.remove_directory(self.handle)

    @property
    def files(self) -> LogFiles:
        return self._files

    def switch_files(self, files: LogFiles) -> None:
        """After compaction, in the write loop's thread."""
        self._files = files

    def _publish_snapshot(self, extent: Extent) -> None:
        self._snapshot = extent
        if self.on_snapshot_progress is not None:
            self.on_snapshot_progress()

    def _open_files(self, opened: ExitStack, files: LogFiles, after: LogOffset) -> list[tuple[int, int, int]]:
        """Descriptor, first and last position of the files that have something after the offset."""
        parts = []
        if files.compacted:
            chunk = files.compacted_index(self.directory).first_after(after)
            if chunk is not None:
                descriptor = _opened(opened, files.compacted_path(self.directory))
                parts.append((descriptor, chunk.start, files.compacted_bytes))
        end = files.end - files.base
        if end:
            descriptor = _opened(opened, files.latest_path(self.directory))
            parts.append((descriptor, self._position(files, after), end))
        return parts

    def _position(self, files: LogFiles, after: LogOffset) -> int:
        """Where in the latest file the chunk begins that has what follows the offset."""
        index = files.latest_index(self.directory)
        chunk = index.first_after(after)
        if chunk is not None:
            return chunk.start
        last = index.last()
        return last.end if last is not None else 0

    def _chunk_on_disk(self, offset: LogOffset) -> Chunk | None:
        while True:
            files = self._files
            try:
                found = files.compacted_index(self.directory).first_after(offset) if files.compacted else None
                return found or files.latest_index(self.directory).first_after(offset)
            except FileNotFoundError:
                if self.is_gone or self._files is files:
                    raise


def _opened(opened: ExitStack, path: str) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    opened.callback(os.close, descriptor)
    return descriptor


def _seen(items: ItemColumns, last: LogOffset) -> int:
    """How many of the items are not new."""
    if not len(items.tx) or (int(items.tx[0]), int(items.op[0])) > (last.tx, last.op):
        return 0
    return int(np.count_nonzero((items.tx < last.tx) | ((items.tx == last.tx) & (items.op <= last.op))))


def _between(pieces: tuple[Piece, ...], after: LogOffset, up_to: LogOffset) -> list[bytes]:
    """The pieces that can hold something of the range."""
    found: list[bytes] = []
    if after < up_to:
        for piece in pieces:
            if piece.last > after:
                found.append(piece.records)
                if piece.last >= up_to:
                    break
    return found

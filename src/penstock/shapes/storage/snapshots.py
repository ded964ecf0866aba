"""A shape's first answer: NDJSON files, one for each chunk, readable while they are written.

A chunk is closed by the row that brings it to the threshold, and ends with one byte 0x04 (EOT), which JSON
text cannot hold. The last line of the last chunk is the `snapshot-end` message; it stands alone in a chunk if
the one before was closed by the last row. Nothing of it need be on disk before the commit that makes the
shape ready (`ShapeStorage.make_ready`), which sees to that for all shapes that become ready with it.

Readers know how much there is from `Extent`, which is replaced as a whole after each write: they never see
half a line, and nothing of a file has to be parsed to know.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock import failpoints
from penstock.durable import sync_directory, sync_file
from penstock.shapes.storage.records import BLOCK_BYTES_MAX, BLOCK_ITEMS_MAX, SEPARATOR

SnapshotState = Literal["none", "writing", "complete"]
END_OF_TRANSMISSION: Final = b"\x04"
_NEWLINE = 0x0A
_SYNC_BYTES_MIN = 1024 * 1024  # smaller chunks wait for the commit that makes the shape ready


class Extent(NamedTuple):
    """How much of a snapshot there is; `size` and `closed` are of its newest chunk, `total` is of all."""

    state: SnapshotState = "none"
    chunks: int = 0
    size: int = 0
    closed: bool = False
    total: int = 0


class SnapshotChunk(NamedTuple):
    """One chunk: `size` bytes of whole lines; more may come unless it is `complete`."""

    path: Path
    size: int
    complete: bool
    is_last: bool

    def blocks(self, start: int = 0) -> Iterator[bytes]:
        """The lines from byte `start` on (an earlier `size`) as objects joined by a comma and a newline.
        With `start`, the first block begins with the separator, as every later one does."""
        window = BLOCK_BYTES_MAX
        with open(self.path, "rb", buffering=0) as file:
            while start < self.size:
                content = os.pread(file.fileno(), min(window, self.size - start), start)
                end = content.rfind(b"\n") + 1
                if end == 0:
                    if len(content) < min(window, self.size - start):
                        raise OSError(f"{self.path.name} ends before {self.size}")
                    window *= 2
                    continue
                for lines in _batches(content[:end]):
                    joined = lines[:-1].replace(b"\n", SEPARATOR)
                    yield joined if start == 0 else SEPARATOR + joined
                    start += len(lines)
                window = BLOCK_BYTES_MAX


class SnapshotWriter:
    """Writes a snapshot; used by one thread. After `close` or `abort` it is of no more use."""

    __slots__ = ("_chunk_bytes", "_descriptor", "_directory", "_extent", "_publish")

    def __init__(self, directory: Path, chunk_bytes: int, publish: Callable[[Extent], None]) -> None:
        directory.parent.mkdir(exist_ok=True)  # the shape's own
        try:
            directory.mkdir()
        except FileExistsError:  # of a snapshot that was left off
            shutil.rmtree(directory)
            directory.mkdir()
        self._directory = directory
        self._chunk_bytes = chunk_bytes
        self._publish = publish
        self._descriptor: int | None = None
        self._extent = Extent("writing")
        publish(self._extent)

    def write(self, lines: bytes, row_ends: npt.NDArray[np.int64]) -> None:
        """Add rows: `row_ends` says where each ends, its newline included."""
        start = 0
        while start < len(lines):
            room = self._chunk_bytes - (0 if self._extent.closed else self._extent.size)
            row = min(int(np.searchsorted(row_ends, start + room)), len(row_ends) - 1)
            end = int(row_ends[row])
            self._add(memoryview(lines)[start:end])
            if self._extent.size >= self._chunk_bytes:
                self._close_chunk("writing")
            start = end
        self._publish(self._extent)

    def close(self, snapshot_end_json: bytes) -> None:
        """Write the last line: the snapshot is complete."""
        self._add(snapshot_end_json + b"\n")
        self._close_chunk("complete")
        self._publish(self._extent)

    def abort(self) -> None:
        """Leave off. What was written is removed with the shape, or by the next snapshot of it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _add(self, lines: bytes | memoryview) -> None:
        failpoints.reach("shapes.snapshot_write")
        extent = self._extent
        if self._descriptor is None:
            path = self._directory / chunk_name(extent.chunks)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            extent = extent._replace(chunks=extent.chunks + 1, size=0, closed=False)
        write_all(self._descriptor, lines)
        self._extent = extent._replace(size=extent.size + len(lines), total=extent.total + len(lines))

    def _close_chunk(self, state: SnapshotState) -> None:
        assert self._descriptor is not None
        write_all(self._descriptor, END_OF_TRANSMISSION)
        if self._extent.size >= _SYNC_BYTES_MIN:
            os.fdatasync(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = None
        self._extent = self._extent._replace(closed=True, state=state)


def chunk_name(number: int) -> str:
    return f"chunk_{number}.jsonl"


def find_chunk(directory: Path, extent: Extent, number: int) -> SnapshotChunk | None:
    """A chunk of the snapshot; None if there is no such one, or not yet."""
    path, newest = directory / chunk_name(number), extent.chunks - 1
    if not 0 <= number <= newest:
        return None
    if number == newest:
        return SnapshotChunk(path, extent.size, extent.closed, is_last=extent.state == "complete")
    return SnapshotChunk(path, path.stat().st_size - len(END_OF_TRANSMISSION), True, False)


def sync_chunks(directory: Path, chunks: int) -> None:
    """Return when all of a complete snapshot is on disk."""
    for number in range(chunks):
        sync_file(directory / chunk_name(number))
    for path in (directory, directory.parent, directory.parent.parent):
        sync_directory(path)


def find_extent(directory: Path, chunks: int) -> Extent | None:
    """A complete snapshot of so many chunks, as it is on disk; None if something of it is missing."""
    total = size = 0
    for number in range(chunks):
        try:
            with open(directory / chunk_name(number), "rb") as file:
                file.seek(-1, os.SEEK_END)
                size = file.tell()
                if file.read(1) != END_OF_TRANSMISSION:
                    return None
        except OSError:
            return None
        total += size
    return Extent("complete", chunks, size, True, total) if chunks else None


def write_all(descriptor: int, content: bytes | memoryview) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _batches(lines: bytes) -> Iterator[bytes]:
    """Whole lines, at most so many at a time."""
    ends = np.flatnonzero(np.frombuffer(lines, np.uint8) == _NEWLINE) + 1
    start = 0
    for end in [*ends[BLOCK_ITEMS_MAX - 1 :: BLOCK_ITEMS_MAX].tolist(), len(lines)]:
        if end > start:
            yield lines[start:end]
            start = end

"""The commit log: what all shapes were given, in one file after another, durable with one datasync.

A record holds the items of every shape that a commit touched, and the position up to which the source's
changes are then durable. Ten thousand shapes that change in one batch cost one write and one datasync;
their own files follow when it suits (`write_loop`). A segment is removed once every shape it speaks of has
its files written.

Layout, big-endian: a segment begins with `MAGIC`; a record is

    checksum:u32 size:u64 sequence:u64 end:u64 names_size:u32 parts:u32
    names (number, boundary_tx, boundary_op, bytes: 4 x i64)* items (segment, bytes: 2 x i64)*

`sequence` counts records, so that a missing one is noticed; the first record of a segment holds nothing and
has the number of the record before it. It says which segments come before it and how many bytes of each
count: what a process adds behind that, which somebody else has taken over from, counts for nothing. `end` is
0 if the record is a part of a larger commit. Shapes go by numbers; `names`, JSON, says which handle a number
stands for before the segment first uses it, and carries the definition and facts of a shape that became
ready. `boundary_tx` is -1 if the items are a part of a transaction. A record that is cut short or whose
checksum is wrong is where writing stopped: nothing after it was ever reported durable.
"""

from __future__ import annotations

import itertools
import math
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import orjson

from penstock import failpoints
from penstock.durable import sync_directory
from penstock.shapes.storage.snapshots import write_all

MAGIC: Final = b"PENSHAP1"
SEGMENT_BYTES_MAX: Final = 64 * 1024 * 1024
_FRAME = struct.Struct(">IQ")
_HEAD = struct.Struct(">QQII")
_PART = np.dtype([("number", ">i8"), ("tx", ">i8"), ("op", ">i8"), ("size", ">i8")])
_BEFORE = np.dtype((">i8", 2))


class Name(NamedTuple):
    """A shape's number in this segment; definition and facts if it became ready."""

    number: int
    handle: str
    definition: str | None = None
    facts: str = ""
    chunks: int = 0  #: of its snapshot


class Part(NamedTuple):
    """What one shape was given; `tx` is -1 if it ends no transaction."""

    number: int
    tx: int
    op: int
    items: bytes


class CommitRecord(NamedTuple):
    sequence: int
    end: int
    names: Sequence[Name]
    parts: Sequence[Part]
    before: Sequence[tuple[int, int]] = ()  #: of a segment's first: how many bytes of each before it count

    def pack(self) -> bytes:
        names = orjson.dumps([tuple(name) for name in self.names]) if self.names else b""
        table = np.array(
            [(number, tx, op, len(items)) for number, tx, op, items in self.parts], dtype=_PART
        ).tobytes()
        head = _HEAD.pack(self.sequence, self.end, len(names), len(self.parts))
        before = np.array(self.before, dtype=">i8").tobytes()
        body = b"".join([head, names, table, *[part.items for part in self.parts], before])
        return _FRAME.pack(zlib.crc32(body), len(body)) + body

    @classmethod
    def unpack(cls, body: memoryview) -> CommitRecord:
        sequence, end, names_size, count = _HEAD.unpack_from(body)
        at = _HEAD.size
        names = [Name(*fields) for fields in orjson.loads(body[at : at + names_size])] if names_size else []
        at += names_size
        table = np.frombuffer(body, _PART, count, at)
        at += table.nbytes
        parts = []
        for number, tx, op, size in table.tolist():
            parts.append(Part(number, tx, op, bytes(body[at : at + size])))
            at += size
        before = [(number, size) for number, size in np.frombuffer(body, _BEFORE, offset=at).tolist()]
        return cls(sequence, end, names, parts, before)


class CommitLog:
    """Writes segments; used by the write loop alone."""

    def __init__(self, directory: Path, *, segment_bytes_max: int = SEGMENT_BYTES_MAX) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._segment_bytes_max = segment_bytes_max
        self._descriptor: int | None = None
        self._sizes = {number: path.stat().st_size for number, path in segments(directory)}
        self.number = max(self._sizes, default=0)  #: of the segment that is written to

    @property
    def bytes_on_disk(self) -> int:
        return sum(list(self._sizes.values()))

    @property
    def oldest(self) -> int:
        return min(self._sizes, default=self.number)

    @property
    def is_full(self) -> bool:
        return self._descriptor is None or self._sizes[self.number] >= self._segment_bytes_max

    def counts_to(self, number: int, size: int) -> None:
        """A segment that was there before has so many bytes of whole records."""
        self._sizes[number] = size

    def begin_segment(self, sequence: int, position: int) -> None:
        """Go on in a new file, which says by itself how far everything is durable."""
        self.close()
        self.number += 1
        path = self.directory / segment_name(self.number)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        before = sorted(self._sizes.items())
        self._sizes[self.number] = 0
        content = MAGIC + CommitRecord(sequence, position, (), (), before).pack()
        write_all(self._descriptor, content)
        os.fdatasync(self._descriptor)
        sync_directory(self.directory)
        self._sizes[self.number] = len(content)

    def write(self, packed: bytes) -> None:
        """Durable when it returns. If it raises, the segment is of no more use: begin another."""
        assert self._descriptor is not None
        failpoints.reach("shapes.commit_write")
        write_all(self._descriptor, packed)
        failpoints.reach("shapes.commit_written")
        os.fdatasync(self._descriptor)
        self._sizes[self.number] += len(packed)

    def give_up_segment(self) -> None:
        """After a failed write: cut off what may have been written of it, as far as the disk allows."""
        size = self._sizes.get(self.number, 0)
        if self._descriptor is not None:
            with suppress(OSError):  # if it cannot be cut off, its checksum tells
                os.ftruncate(self._descriptor, size)
                os.fdatasync(self._descriptor)
            self.close()
        if size == 0 and self._sizes.pop(self.number, None) is not None:
            with suppress(OSError):
                (self.directory / segment_name(self.number)).unlink()

    def remove_before(self, number: int) -> None:
        """Segments below `number` are not needed any more."""
        for old in [old for old in self._sizes if old < min(number, self.number)]:
            (self.directory / segment_name(old)).unlink(missing_ok=True)
            del self._sizes[old]
            failpoints.reach("shapes.segment_removed")

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def segment_name(number: int) -> str:
    return f"{number:012d}.commits"


def segments(directory: Path) -> list[tuple[int, Path]]:
    return sorted((int(path.stem), path) for path in directory.glob("*.commits"))


def sizes_that_count(found: Sequence[tuple[int, Path]]) -> dict[int, int]:
    """Of the segments that a later one speaks of."""
    sizes: dict[int, int] = {}
    for _, path in found:
        for first, _ in itertools.islice(read_segment(path), 1):
            for number, size in first.before:
                sizes[number] = min(size, sizes.get(number, size))
    return sizes


def read_segment(path: Path, size_max: float = math.inf) -> Iterator[tuple[CommitRecord, int]]:
    """Its records, and where each ends, up to the first that is not whole or ends behind `size_max`."""
    with open(path, "rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return
        while len(frame := file.read(_FRAME.size)) == _FRAME.size:
            checksum, size = _FRAME.unpack(frame)
            end = file.tell() + size
            if end > min(size_max, os.fstat(file.fileno()).st_size):
                return
            body = file.read(size)
            if zlib.crc32(body) != checksum:
                return
            yield CommitRecord.unpack(memoryview(body)), end

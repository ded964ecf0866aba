"""The files of one shape, and in which order they are written.

    <handle>/shape.json                            format version, definition, facts: there once it is ready
    <handle>/snapshot/chunk_N.jsonl                see `snapshots`
    <handle>/log/log.latest.G.jsonfile.bin         records, see `records_kernels`
    <handle>/log/log.latest.G.chunk.bin            see `chunk_index`
    <handle>/log/log.compacted.N.jsonfile.bin      what stood before them, merged, with its .chunk.bin
    <handle>/log/last_persisted_txn_offset.bin     the boundary

The boundary has the offset of the last whole transaction and where it ends, the same of the last record
(they differ while a large transaction is written), and which files are in use. It is replaced as a whole, and
only after the records and chunks it speaks of are on disk. Whatever a crash leaves besides is behind that end
or in a file that is not named, and is cut off or removed when the shape is recovered. The part of a
transaction is cut off only after the commit log was read, which may have its rest.

The boundary file has two places, written in turn, each with a number and a checksum: the valid one with the
higher number counts. A write that is cut short leaves the other. That is as atomic as a new file that takes
the old one's name, and cheaper: no inode is made and none is freed.

Paths are text: with `pathlib` a third of recovery's time went into them.
"""
# ruff: noqa: PTH102, PTH116, PTH119, PTH208

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import numpy as np
import orjson

from penstock import failpoints
from penstock.core.offset import LogOffset
from penstock.durable import sync_directory
from penstock.shapes.storage import chunk_index
from penstock.shapes.storage.chunk_index import Chunk, ChunkIndex, OpenChunk
from penstock.shapes.storage.records import scan

BOUNDARY: Final = "last_persisted_txn_offset.bin"
METADATA: Final = "shape.json"
FORMAT_VERSION: Final = 1
_BOUNDARY = struct.Struct(">7Q2I")
_SEQUENCE = 6  # among the boundary's fields
_FIRST = 2  # sequence of a shape's first boundary, which goes to the first place
_PLACE_BYTES = 512  # a sector: it is written whole or not at all
_CHECKSUM = struct.Struct(">I")
_NOTHING = LogOffset.LAST_BEFORE_REAL


class LogFiles(NamedTuple):
    """What is on disk of a shape's log; replaced as a whole. Positions are counted from where the log began
    in this process, so that they stay when compaction cuts a file: `base` is where the latest file
    begins."""

    sequence: int = _FIRST - 1  #: of the boundary
    generation: int = 0  #: of the latest file
    compacted: int = 0  #: number of the compacted file; 0 if there is none
    base: int = 0
    end: int = 0
    chunks: int = 0  #: closed ones of the latest file
    compacted_chunks: int = 0
    compacted_bytes: int = 0
    last: LogOffset = _NOTHING  #: the newest item on disk
    boundary: LogOffset = _NOTHING  #: the newest whole transaction on disk
    boundary_end: int = 0

    def latest_path(self, directory: str) -> str:
        return f"{directory}/log/log.latest.{self.generation}.jsonfile.bin"

    def compacted_path(self, directory: str) -> str:
        return f"{directory}/log/log.compacted.{self.compacted}.jsonfile.bin"

    def latest_index(self, directory: str) -> ChunkIndex:
        return ChunkIndex(f"{directory}/log/log.latest.{self.generation}.chunk.bin", self.chunks)

    def compacted_index(self, directory: str) -> ChunkIndex:
        path = f"{directory}/log/log.compacted.{self.compacted}.chunk.bin"
        return ChunkIndex(path, self.compacted_chunks)

    @property
    def bytes(self) -> int:
        return self.end - self.base + self.compacted_bytes


_NO_FILES = LogFiles()


class Metadata(NamedTuple):
    """What makes a directory a shape: without it, it is removed."""

    definition: str
    facts: str
    chunks: int  #: of the snapshot


class NewRecords(NamedTuple):
    """What is to be added to a shape's files: records, of which the first `whole` bytes are whole
    transactions up to `boundary` (None: it stays where it is), and the chunks that end in them."""

    records: bytes
    last: LogOffset
    boundary: LogOffset | None
    whole: int
    chunks: Sequence[Chunk]


def stage_records(directory: str, files: LogFiles, new: NewRecords, *, sync: bool) -> LogFiles:
    """Write records and chunks behind those that count; `write_boundary` makes them count, once they are on
    disk: now with `sync`, else when the file system is synced."""
    if files == _NO_FILES:
        with suppress(FileExistsError):
            os.mkdir(f"{directory}/log")
    if new.records:
        failpoints.reach("shapes.file_write")
        write_at(files.latest_path(directory), files.end - files.base, new.records, sync=sync)
    if new.chunks:
        packed = chunk_index.pack([chunk.moved(-files.base) for chunk in new.chunks])
        position = files.chunks * chunk_index.RECORD_BYTES
        write_at(files.latest_index(directory).path, position, packed, sync=sync)
        if sync and not files.chunks:
            sync_directory(f"{directory}/log")
    grown = files._replace(
        sequence=files.sequence + 1,
        end=files.end + len(new.records),
        chunks=files.chunks + len(new.chunks),
        last=new.last,
    )
    if new.boundary is not None:
        grown = grown._replace(boundary=new.boundary, boundary_end=files.end + new.whole)
    return grown


def write_at(path: str, position: int, content: bytes, *, sync: bool) -> None:
    """Write there, whatever stands there."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(content)
        while view:
            written = os.pwrite(descriptor, view, position)
            view, position = view[written:], position + written
        if sync:
            os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def write_boundary(directory: str, files: LogFiles, *, sync: bool) -> None:
    """Have recovery find this: what it speaks of is on disk."""
    failpoints.reach("shapes.file_written")
    content = _BOUNDARY.pack(
        *_numbers(files.boundary),
        files.boundary_end - files.base,
        *_numbers(files.last),
        files.end - files.base,
        files.sequence,
        files.generation,
        files.compacted,
    )
    place = files.sequence % 2 * _PLACE_BYTES
    packed = content + _CHECKSUM.pack(zlib.crc32(content))
    write_at(f"{directory}/log/{BOUNDARY}", place, packed, sync=sync)
    if sync and files.sequence == _FIRST:
        sync_directory(f"{directory}/log")
        sync_directory(directory)
    failpoints.reach("shapes.boundary_moved")


def stage_metadata(directory: str, metadata: Metadata, *, sync: bool) -> None:
    content = orjson.dumps({"format_version": FORMAT_VERSION, **metadata._asdict()})
    with suppress(FileNotFoundError):  # a longer one, left behind
        os.unlink(f"{directory}/{METADATA}.new")
    write_at(f"{directory}/{METADATA}.new", 0, content, sync=sync)


def publish_metadata(directory: str, *, sync: bool) -> None:
    """What was staged is on disk: let it count."""
    os.replace(f"{directory}/{METADATA}.new", f"{directory}/{METADATA}")
    if sync:
        sync_directory(directory)


def read_metadata(directory: str) -> Metadata | None:
    """None if there is none. `OSError` if it is damaged or of another version."""
    try:
        with open(f"{directory}/{METADATA}", "rb") as file:
            content = orjson.loads(file.read())
        if content.pop("format_version") == FORMAT_VERSION:
            return Metadata(**content)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    raise OSError(f"{METADATA} is damaged or of another version")


def recover_files(directory: str) -> tuple[LogFiles, OpenChunk, Chunk | None]:
    """What the boundary speaks of, the chunk that is open there, and the last closed one; the rest is cut
    off and removed. `OSError` if some of it is missing: the shape is then beyond repair."""
    try:
        there = os.listdir(f"{directory}/log")
    except FileNotFoundError:
        return _NO_FILES, OpenChunk(), None
    files = _read_boundary(f"{directory}/log/{BOUNDARY}") if BOUNDARY in there else _NO_FILES
    _remove_others(directory, files, there)
    if files.end or os.path.basename(files.latest_path(directory)) in there:
        _cut(files.latest_path(directory), files.end)
    index = files.latest_index(directory)
    if os.path.basename(index.path) in there:
        files = files._replace(chunks=_cut_index(index.path, files.end))
    if files.compacted:
        files = files._replace(
            compacted_bytes=os.stat(files.compacted_path(directory)).st_size,
            compacted_chunks=_count(files.compacted_index(directory).path),
        )
    last = files.latest_index(directory).last()
    chunk = _open_chunk(directory, files, last)
    return files, chunk, last or files.compacted_index(directory).last()


def cut_to_boundary(directory: str, files: LogFiles) -> None:
    """Have recovery find nothing behind the last whole transaction."""
    cut = files._replace(sequence=files.sequence + 1, end=files.boundary_end, last=files.boundary)
    write_boundary(directory, cut, sync=True)


def _read_boundary(path: str) -> LogFiles:
    with open(path, "rb") as file:
        content = file.read()
    places = [content[at : at + _BOUNDARY.size + _CHECKSUM.size] for at in (0, _PLACE_BYTES)]
    valid = [
        _BOUNDARY.unpack(place[: _BOUNDARY.size])
        for place in places
        if len(place) == _BOUNDARY.size + _CHECKSUM.size
        and place[_BOUNDARY.size :] == _CHECKSUM.pack(zlib.crc32(place[: _BOUNDARY.size]))
    ]
    if not valid and len(content) < _BOUNDARY.size + _CHECKSUM.size:
        return _NO_FILES  # the very first one was cut short: the commit log has it all
    if not valid:
        raise OSError(f"{BOUNDARY} is damaged")
    newest = max(valid, key=lambda fields: int(fields[_SEQUENCE]))
    tx, op, boundary_end, last_tx, last_op, end, sequence, generation, compacted = newest
    return LogFiles(
        sequence,
        generation,
        compacted,
        end=end,
        last=_offset(last_tx, last_op),
        boundary=_offset(tx, op),
        boundary_end=boundary_end,
    )


def _numbers(offset: LogOffset) -> tuple[int, int]:
    return (offset.tx, int(offset.op)) if offset.tx else (0, 0)


def _offset(tx: int, op: int) -> LogOffset:
    return LogOffset(tx, op) if tx else _NOTHING


def _cut(path: str, size: int) -> None:
    there = os.stat(path).st_size
    if there < size:
        raise OSError(f"a shape's log has {there} bytes, and had {size}")
    if there > size:
        os.truncate(path, size)


def _cut_index(path: str, log_end: int) -> int:
    """Drop chunks that end behind the log; how many are left."""
    count = _count(path)
    kept = sum(1 for chunk in ChunkIndex(path, count).all() if chunk.end <= log_end)
    os.truncate(path, kept * chunk_index.RECORD_BYTES)
    return kept


def _count(path: str) -> int:
    return os.stat(path).st_size // chunk_index.RECORD_BYTES


def _remove_others(directory: str, files: LogFiles, there: Sequence[str]) -> None:
    """What a compaction left that was not finished, or that had not removed its predecessors."""
    named = {BOUNDARY}
    named |= {f"log.latest.{files.generation}.{kind}.bin" for kind in ("jsonfile", "chunk")}
    if files.compacted:
        named |= {f"log.compacted.{files.compacted}.{kind}.bin" for kind in ("jsonfile", "chunk")}
    for name in there:
        if name not in named:
            os.unlink(f"{directory}/log/{name}")


def _open_chunk(directory: str, files: LogFiles, last: Chunk | None) -> OpenChunk:
    """The chunk that is being filled, found by reading it."""
    start, keys = (last.end, last.key_end) if last is not None else (0, 0)
    found = OpenChunk(start, keys)
    if start < files.end:
        with open(files.latest_path(directory), "rb") as file:
            file.seek(start)
            records = scan(file.read(files.end - start))
        if not len(records.tx) or int(records.end[-1]) != files.end - start:
            raise OSError("a shape's log ends within a record")
        key_bytes = int(np.sum(records.key_end - records.key_start))
        json_bytes = int(np.sum(records.end - records.json_start))
        found.add_below(int(records.tx[0]), int(records.op[0]), files.end - start, key_bytes, json_bytes)
    return found

"""Compaction: older chunks of a log with one update where a key had several in a row.

The newest chunks stay as they are. In the rest, updates of a key with neither an insert nor a delete of
that key between them become one, at the place and with the offset, `lsn` and `op_position` of the last:
`value` has the newest of each column, `old_value` the oldest, `txids` all. Inserts and deletes stay: a
reader who has had an insert must not get it again. Items with tags are not touched (subqueries).

Why a reader in the middle goes on correctly: offsets are never renumbered, so what it asks for begins with
the next item that is left. An update it has had in part comes again merged with later ones, which gives the
same row; an update it has not had is in the merged one, which stands further on, never behind it. The item
that ended a transaction may be gone; then the one before it of that transaction says `last`.

Safe at any moment: the merged file and the rest of the latest one are complete and datasynced under new names
before the boundary file names them; then the old ones are removed. A crash leaves files that nobody names.

Memory: a window of `ITEMS_MAX` items is looked at together, about 100 bytes for each; files are mapped, not
read. Keys are compared by fingerprint and then by themselves.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from penstock import failpoints
from penstock.durable import sync_directory
from penstock.shapes.storage import chunk_index
from penstock.shapes.storage.chunk_index import Chunk, ItemColumns, OpenChunk
from penstock.shapes.storage.items import LogItems
from penstock.shapes.storage.records import Records, as_array, encode, scan
from penstock.shapes.storage.records_kernels import BEFORE_KEY, hash_ranges
from penstock.shapes.storage.shape_files import LogFiles, write_boundary
from penstock.shapes.storage.snapshots import write_all

if TYPE_CHECKING:
    from penstock.shapes.storage.shape_storage import ShapeStorage
    from penstock.shapes.storage.store import ShapeStore

ITEMS_MAX: Final = 1_000_000
_UPDATE = ord("u")
_CLOSE, _CLOSE_LAST = b"}}", b',"last":true}}'
_COPY_BYTES = 1024 * 1024
_Bools = npt.NDArray[np.bool_]
_Ints = npt.NDArray[np.int64]


def compact(storage: ShapeStorage, store: ShapeStore, keep_chunks: int) -> bool:
    """Whether anything was merged; the log is as it was if not."""
    with store.compacting:
        files = storage.files
        chunks = files.latest_index(storage.directory).all()
        older = [chunk for chunk in chunks[:-keep_chunks] if chunk.last <= files.boundary]
        if not older or storage.is_gone:
            return False
        merged = files._replace(compacted=files.compacted + 1)
        output = _Output(merged, storage.directory, store.chunk_bytes)
        try:
            for window in _windows(storage.directory, files, older):
                output.add_window(window)
            output.finish()
        except BaseException:
            output.remove()
            raise
        if not output.absorbed:
            output.remove()
            return False
        failpoints.reach("shapes.compacted")
        merged = merged._replace(compacted_chunks=len(output.chunks), compacted_bytes=output.size)
        store.loop.run_now(lambda: _switch(storage, merged, older))
        return True


def merge_updates(updates: Iterable[bytes]) -> bytes:
    """One update that does what these do, one after the other."""
    value: dict[str, str | None] = {}
    old_value: dict[str, str | None] = {}
    txids: dict[int, None] = {}
    item: dict[str, Any] = {}
    for update in updates:
        item = orjson.loads(update)
        value |= item["value"]
        old_value = item.get("old_value", {}) | old_value
        txids |= dict.fromkeys(item["headers"]["txids"])
    item["value"] = value
    if "old_value" in item:
        item["old_value"] = old_value
    item["headers"]["txids"] = list(txids)
    return orjson.dumps(item)


def absorbed_updates(key_hashes: _Ints, kinds: _Ints) -> tuple[_Bools, _Ints]:
    """Which items are updates that the next item of their key, an update too, can take in; and for each
    item the one it would take in, or -1."""
    order = np.argsort(key_hashes, kind="stable")
    before, after = order[:-1], order[1:]
    takes = (key_hashes[before] == key_hashes[after]) & (kinds[before] == _UPDATE) & (kinds[after] == _UPDATE)
    previous = np.full(len(kinds), -1, np.int64)
    previous[after[takes]] = before[takes]
    absorbed = np.zeros(len(kinds), np.bool_)
    absorbed[before[takes]] = True
    return absorbed, previous


class _Part(NamedTuple):
    """The records of a chunk, in a mapped file."""

    content: mmap.mmap
    records: Records

    def key(self, item: int) -> bytes:
        return self.content[int(self.records.key_start[item]) : int(self.records.key_end[item])]

    def json(self, item: int) -> bytes:
        return self.content[int(self.records.json_start[item]) : int(self.records.end[item])]


class _Window:
    """Items that are looked at together."""

    def __init__(self, parts: list[_Part]) -> None:
        self.parts = parts
        self._part_ends = np.cumsum([len(part.records.tx) for part in parts])
        kinds = np.concatenate([part.records.kind for part in parts])
        hashes = [
            hash_ranges(as_array(memoryview(part.content)), part.records.key_start, part.records.key_end)
            for part in parts
        ]
        self.absorbed, self.previous = absorbed_updates(np.concatenate(hashes), kinds)
        for item in np.flatnonzero(self.previous >= 0).tolist():
            if not self._may_take_in(item):
                self.absorbed[self.previous[item]] = False
                self.previous[item] = -1
        self.ends_transaction = self._newly_last(np.concatenate([part.records.tx for part in parts]))

    def _may_take_in(self, item: int) -> bool:
        part, at = self._find(item)
        other, other_at = self._find(int(self.previous[item]))
        if part.key(at) != other.key(other_at):
            return False
        return b'tags":' not in part.json(at) and b'tags":' not in other.json(other_at)

    def _newly_last(self, tx: _Ints) -> _Bools:
        """Items that become the last of their transaction because what followed was absorbed."""
        kept = np.flatnonzero(~self.absorbed)
        last_kept = np.append(tx[kept][1:] != tx[kept][:-1], False)
        followed = np.append(tx[1:] == tx[:-1], False)
        found = np.zeros(len(tx), np.bool_)
        found[kept[last_kept & followed[kept]]] = True
        return found

    def merged(self, item: int) -> bytes:
        """The item with all it takes in."""
        chain = [item]
        while (before := int(self.previous[chain[-1]])) >= 0:
            chain.append(before)
        return merge_updates(self._json(member) for member in reversed(chain))

    def _json(self, item: int) -> bytes:
        part, at = self._find(item)
        return part.json(at)

    def _find(self, item: int) -> tuple[_Part, int]:
        place = int(np.searchsorted(self._part_ends, item, side="right"))
        return self.parts[place], item - (int(self._part_ends[place - 1]) if place else 0)


class _Output:
    """The merged file and its chunks."""

    def __init__(self, files: LogFiles, directory: str, chunk_bytes: int) -> None:
        self._path, self._index = files.compacted_path(directory), files.compacted_index(directory).path
        self._chunk_bytes = chunk_bytes
        self._open = OpenChunk()
        self._last = (0, 0)
        self.chunks: list[Chunk] = []
        self.absorbed = 0
        self._file = open(self._path, "wb", buffering=_COPY_BYTES)  # noqa: SIM115 - closed by finish or remove

    @property
    def size(self) -> int:
        return self._open.end

    def add_window(self, window: _Window) -> None:
        first = 0
        self.absorbed += int(np.count_nonzero(window.absorbed))
        changed = (window.previous >= 0) | window.ends_transaction
        for part in window.parts:
            stop = first + len(part.records.tx)
            for start, end, is_changed in _runs(window.absorbed[first:stop], changed[first:stop]):
                if is_changed:
                    self._add_changed(part, start, window, first + start)
                else:
                    self._add_run(part, start, end)
            first = stop

    def finish(self) -> None:
        if self._open.start != self._open.end:
            self.chunks.append(self._open.close(*self._last))
        with self._file as file:
            file.flush()
            os.fdatasync(file.fileno())
        _write_new(self._index, [chunk_index.pack(self.chunks)])

    def remove(self) -> None:
        with suppress(OSError):  # it may be what failed
            self._file.close()
        for path in (self._path, self._index):
            with suppress(FileNotFoundError):
                os.unlink(path)

    def _add_run(self, part: _Part, start: int, stop: int) -> None:
        """Items as they are."""
        records = part.records
        position = int(records.key_start[start]) - BEFORE_KEY
        content = memoryview(part.content)[position : int(records.end[stop - 1])]
        key_ends = np.cumsum(records.key_end[start:stop] - records.key_start[start:stop])
        json_ends = np.cumsum(records.end[start:stop] - records.json_start[start:stop])
        offsets = records.tx[start:stop], records.op[start:stop]
        self._add(content, ItemColumns(*offsets, records.end[start:stop] - position, key_ends, json_ends))

    def _add_changed(self, part: _Part, at: int, window: _Window, item: int) -> None:
        json, key = window.merged(item), part.key(at)
        if window.ends_transaction[item] and not json.endswith(_CLOSE_LAST):
            json = json.removesuffix(_CLOSE) + _CLOSE_LAST
        records = part.records
        items = LogItems(
            records.tx[at : at + 1],
            records.op[at : at + 1],
            records.kind[at : at + 1].astype(np.uint8),
            np.array([len(key)]),
            key,
            np.array([len(json)]),
            json,
            None,
        )
        content, ends = encode(items)
        self._add(content.data, ItemColumns(items.tx, items.op, ends, items.key_ends, items.json_ends))

    def _add(self, content: memoryview, items: ItemColumns) -> None:
        self._file.write(content)
        self.chunks += self._open.add(items, self._chunk_bytes)
        self._last = int(items.tx[-1]), int(items.op[-1])


def _windows(directory: str, files: LogFiles, older: list[Chunk]) -> Iterator[_Window]:
    sources = [(files.latest_path(directory), older)]
    if files.compacted:
        sources.insert(0, (files.compacted_path(directory), files.compacted_index(directory).all()))
    parts: list[_Part] = []
    items = 0
    for path, chunks in sources:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        content = mmap.mmap(descriptor, chunks[-1].end, prot=mmap.PROT_READ)
        os.close(descriptor)
        for chunk in chunks:
            parts.append(_Part(content, scan(memoryview(content), chunk.start, chunk.end)))
            items += len(parts[-1].records.tx)
            if items >= ITEMS_MAX:
                yield _Window(parts)
                parts, items = [], 0
    if parts:
        yield _Window(parts)


def _runs(absorbed: _Bools, changed: _Bools) -> Iterator[tuple[int, int, bool]]:
    """Items that are left: those that changed one by one, the others as far as they stand side by side."""
    code = np.where(absorbed, 0, np.where(changed, 2, 1))
    limits = np.flatnonzero((code[1:] != code[:-1]) | (code[1:] == 2)) + 1
    for start, stop in zip([0, *limits.tolist()], [*limits.tolist(), len(code)], strict=True):
        if code[start]:
            yield start, stop, bool(code[start] == 2)


def _switch(storage: ShapeStorage, merged: LogFiles, older: list[Chunk]) -> None:
    """Have the merged file stand for the older chunks. In the write loop's thread: nothing is added to the
    latest file meanwhile, but something may have been since it was looked at."""
    if storage.is_gone:
        return
    directory, old, cut = storage.directory, storage.files, older[-1]
    rest = old.latest_index(directory).all()[len(older) :]
    new = merged._replace(
        sequence=old.sequence + 1,
        generation=old.generation + 1,
        base=old.base + cut.end,
        end=old.end,
        chunks=len(rest),
        last=old.last,
        boundary=old.boundary,
        boundary_end=old.boundary_end,
    )
    _copy_from(old.latest_path(directory), cut.end, old.end - old.base, new.latest_path(directory))
    packed = chunk_index.pack([chunk.moved(-cut.end) for chunk in rest])
    _write_new(new.latest_index(directory).path, [packed])
    sync_directory(f"{directory}/log")
    write_boundary(directory, new, sync=True)
    failpoints.reach("shapes.compaction_switched")
    storage.switch_files(new)
    for path in (
        old.latest_path(directory),
        old.latest_index(directory).path,
        *([old.compacted_path(directory), old.compacted_index(directory).path] if old.compacted else []),
    ):
        os.unlink(path)


def _copy_from(source: str, start: int, end: int, target: str) -> None:
    with open(source, "rb") as file:
        file.seek(start)
        _write_new(target, (file.read(min(_COPY_BYTES, end - at)) for at in range(start, end, _COPY_BYTES)))


def _write_new(path: str, contents: Iterable[bytes]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        for content in contents:
            write_all(descriptor, content)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)

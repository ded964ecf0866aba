"""Writes steps of the change log.

Why nothing is lost, doubled or half visible:

- Rows of the open step go to files in a directory of its own (`data/<seq>-<random>/`) that no
  manifest names. A crash leaves that directory behind; the next writer sweeps it when it has sealed the
  step of that number itself (see `retention`).
- `seal` is only ever called at the end of a transaction. It closes the files, makes them and their
  directories durable, and then creates the manifest under the next number. That creation is the
  commit: before it no reader knows the files, after it all of them are on disk.
- It is exclusive. Of two writers that both believe to lead, one creates the number and the other one
  gets an error, so the log never forks (correctness 16).
- A step begins where the one before ended; what is received again after a restart lies below the
  log's end and is dropped by whoever fills the step (correctness 2).

A transaction larger than memory goes on in the files of its step. Memory is bounded by the rows
that wait for their row group (`pending_bytes_max` over all files) and by the number of open files.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from penstock import durable, failpoints
from penstock.core.alteration import Alteration
from penstock.core.errors import SourceBusyError
from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId
from penstock.log import retention
from penstock.log.manifest import (
    DATA_DIRECTORY,
    SCHEMA_DIRECTORY,
    FileEntry,
    Manifest,
    TableEntry,
    list_sequence,
    manifest_path,
    write_manifest,
)
from penstock.log.step_file import StepFile

OPEN_FILES_MAX = 400  # a file that waits for its first row group has no descriptor yet
PENDING_BYTES_MAX = 48 << 20


class LogWriter:
    """The only writer of a log directory; `end` is what is durable."""

    def __init__(
        self,
        directory: Path,
        *,
        system_id: str,
        timeline: int,
        epoch: Lsn,
        end: Lsn,
        last_seq: int = 0,
        message_count: int = 0,
        may_commit: Callable[[], None] | None = None,
        open_files_max: int = OPEN_FILES_MAX,
        pending_bytes_max: int = PENDING_BYTES_MAX,
    ) -> None:
        self.directory = directory
        self.end = end
        self.message_count = message_count
        self.system_id, self._timeline, self.epoch = system_id, timeline, epoch
        self._last_seq = last_seq
        self._may_commit = may_commit
        self._open_files_max, self._pending_bytes_max = open_files_max, pending_bytes_max
        self._known_schemas: set[str] = set()
        self._first = True
        self._begin()

    def _begin(self) -> None:
        self._step: Path | None = None
        self._open: dict[str, StepFile] = {}  # by leaf, least recently used first
        self._files: dict[StreamId, list[StepFile]] = {}
        self._truncates: dict[StreamId, list[tuple[int, int]]] = {}
        self._leaf_truncates: dict[StreamId, list[tuple[int, int, str]]] = {}
        self._altered: dict[StreamId, list[tuple[int, int]]] = {}
        self._alterations: dict[StreamId, list[tuple[int, int, Alteration]]] = {}
        self._untold: dict[StreamId, list[tuple[int, int]]] = {}
        self.transactions = self.messages = 0

    @property
    def step_bytes(self) -> int:
        """Bytes of the open step, written or waiting."""
        return sum(file.bytes for files in self._files.values() for file in files)

    @property
    def step_rows(self) -> int:
        return sum(file.rows for files in self._files.values() for file in files)

    def write(
        self, schema: TableSchema, leaf: StreamId, rows: pa.RecordBatch, operations: dict[str, int]
    ) -> None:
        """Add rows of one leaf, in the order of the log, to the open step. Not durable until `seal`."""
        with durable.storage_errors(f"Could not write rows of {leaf} to the change log."):
            failpoints.reach("log.file_write")
        with self._while_ours():
            self._file(schema, leaf).add(rows, operations)
            self._bound_memory()

    def truncate(self, stream: StreamId, tx: int, op: int) -> None:
        """Note that the whole stream was emptied at this offset."""
        self._truncates.setdefault(stream, []).append((tx, op))

    def truncate_leaf(self, stream: StreamId, leaf: StreamId, tx: int, op: int) -> None:
        self._leaf_truncates.setdefault(stream, []).append((tx, op, str(leaf)))

    def alter(
        self,
        stream: StreamId,
        tx: int,
        op: int,
        *,
        is_untold: bool = False,
        alteration: Alteration | None = None,
    ) -> None:
        """Note that a statement made another table of the stream's at this offset; `is_untold`: that its rows
        were changed there, and the log has no change of it; `alteration`: what it did, if that is certain."""
        self._altered.setdefault(stream, []).append((tx, op))
        if alteration is not None:
            self._alterations.setdefault(stream, []).append((tx, op, alteration))
        if is_untold:
            self._untold.setdefault(stream, []).append((tx, op))

    def seal(self, to: Lsn, place: Place | None = None) -> Manifest | None:
        """Make everything up to `to` durable as one step; None if there is nothing to say. `place`: `to` in
        the source's words."""
        if to <= self.end and not self._files and not self._truncates and not self._altered:
            return None
        assert to > self.end, "rows were written for a range that is in the log already"
        with self._while_ours():
            tables = self._close_files()
        failpoints.reach("log.files_written")
        manifest = Manifest(
            seq=self._last_seq + 1,
            system_id=self.system_id,
            timeline=self._timeline,
            epoch=self.epoch,
            start=self.end,
            end=to,
            sealed_at=datetime.now(UTC).isoformat(),
            transactions=self.transactions,
            messages=self.messages,
            message_count=self.message_count + self.messages,
            tables=tables,
            place=place,
        )
        if self._may_commit is not None:
            self._may_commit()
        # From here on the step may be committed whatever comes back: its files are no longer ours to remove.
        self._step = None
        if not write_manifest(self.directory, manifest):
            raise self._overtaken()
        failpoints.reach("log.manifest_written")
        self._require_to_follow(manifest.seq)
        self._last_seq, self.end, self.message_count = manifest.seq, to, manifest.message_count
        self._begin()
        if self._first:
            self._first = False
            retention.sweep(self.directory, manifest.seq)
        return manifest

    def _require_to_follow(self, seq: int) -> None:
        """A writer that slept until its number was taken and removed again has made an orphan."""
        if manifest_path(self.directory, seq - 1).exists():
            return
        numbers = list_sequence(self.directory)
        if numbers[0] == seq and len(numbers) > 1 and numbers[1] != seq + 1:
            manifest_path(self.directory, seq).unlink(missing_ok=True)
            raise self._overtaken()

    @contextmanager
    def _while_ours(self) -> Iterator[None]:
        """Whoever takes this step's number removes what others have written under it."""
        try:
            yield
        except FileNotFoundError as error:
            raise self._overtaken() from error

    def _overtaken(self) -> SourceBusyError:
        return SourceBusyError(
            f"Another process has written step {self._last_seq + 1} of the change log in {self.directory}.",
            remedy="Let only one Penstock use this state directory, then run the same command again.",
        )

    def abandon(self) -> None:
        """Give up the open step and remove what it left on disk."""
        for file in self._open.values():
            file.discard()
        if self._step is not None:
            shutil.rmtree(self._step, ignore_errors=True)
        self._begin()

    def _file(self, schema: TableSchema, leaf: StreamId) -> StepFile:
        name = str(leaf)
        file = self._open.pop(name, None)
        if file is not None and file.schema_id != schema.id:
            file.close()
            file = None
        if file is None:
            while len(self._open) >= self._open_files_max:
                self._open.pop(next(iter(self._open))).close()
            file = self._create_file(schema, leaf)
        self._open[name] = file
        return file

    def _create_file(self, schema: TableSchema, leaf: StreamId) -> StepFile:
        self._write_schema(schema)
        if self._step is None:
            name = f"{self._last_seq + 1:020d}-{secrets.token_hex(4)}"
            self._step = self.directory / DATA_DIRECTORY / name
            with durable.storage_errors(f"Could not create a directory in {self.directory}."):
                self._step.mkdir(parents=True)
        files = self._files.setdefault(schema.stream, [])
        file = StepFile(self._step / f"{schema.stream.file_name}.{len(files)}.parquet", schema, str(leaf))
        files.append(file)
        return file

    def _write_schema(self, schema: TableSchema) -> None:
        if schema.id in self._known_schemas:
            return
        path = self.directory / SCHEMA_DIRECTORY / f"{schema.id}.json"
        if not path.exists():
            durable.create_exclusively(path, durable.to_json_bytes(schema.to_json()))
        self._known_schemas.add(schema.id)

    def _bound_memory(self) -> None:
        pending = sum(file.pending_bytes for file in self._open.values())
        while pending > self._pending_bytes_max:
            largest = max(self._open.values(), key=lambda file: file.pending_bytes)
            pending -= largest.pending_bytes
            largest.flush()

    def _close_files(self) -> tuple[TableEntry, ...]:
        for file in self._open.values():
            file.close()
        streams = sorted({*self._files, *self._truncates, *self._leaf_truncates, *self._altered})
        with durable.storage_errors(f"Could not write a step in {self.directory}."):
            for files in self._files.values():
                for file in files:
                    durable.sync_file(file.path)
            if self._step is not None:
                durable.sync_directory(self._step)
                durable.sync_directory(self._step.parent)
                durable.sync_directory(self.directory)
        return tuple(
            TableEntry(
                stream,
                tuple(self._entry(file) for file in self._files.get(stream, [])),
                tuple(self._truncates.get(stream, [])),
                tuple(self._leaf_truncates.get(stream, [])),
                tuple(self._altered.get(stream, [])),
                tuple(self._untold.get(stream, [])),
                tuple(self._alterations.get(stream, [])),
            )
            for stream in streams
        )

    def _entry(self, file: StepFile) -> FileEntry:
        return FileEntry(
            path=os.path.relpath(file.path, self.directory),
            schema_id=file.schema_id,
            leaf=file.leaf,
            rows=file.rows,
            bytes=file.path.stat().st_size,
            operations=file.operations,
            first_tx=file.first_tx,
            last_tx=file.last_tx,
        )


def open_writer(
    directory: Path,
    *,
    system_id: str,
    timeline: int,
    epoch: Lsn,
    newest: Manifest | None,
    start: Lsn,
    may_commit: Callable[[], None] | None = None,
) -> LogWriter:
    """A writer that goes on after `newest`, or begins a log at `start`.

    `may_commit` is called last of all before a step is committed, and raises if that must not be.
    """
    if newest is not None:
        assert manifest_path(directory, newest.seq).exists()
    return LogWriter(
        directory,
        system_id=system_id,
        timeline=timeline,
        epoch=epoch,
        end=newest.end if newest else start,
        last_seq=newest.seq if newest else 0,
        message_count=newest.message_count if newest else 0,
        may_commit=may_commit,
    )

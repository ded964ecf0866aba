"""Loads whole tables by chunks as Spark tasks, and swaps them in.

Why nothing is lost, doubled or mixed: all chunks of a load are read under one exported snapshot with
consistent point P, so the load holds exactly the transactions that committed before P, and the log is
applied from P on. Chunks commit invisibly (thread ids `stream + load id + bounds`), several per commit;
one swap publishes them. Until then readers see the old table.

A load that was cut short goes on under a new snapshot with a later point P', if that is exact:

- *key ranges*: a key stays in its range, so each chunk is right as of its own point, and changes below the
  point of the key's own chunk are skipped (`SkipRule`);
- *ctid ranges, upsert*: a row may have moved between pages, so that both or neither of its places were
  read. Every change since P is in the log and is applied again, in order, which ends in the right state
  for each key that changed. If a row that was not read lacks a value in the log as well (unchanged TOAST),
  that shows when it is applied, before anyone sees the table, and the load starts again;
- *ctid ranges, append*: applying again would double; the load starts again;
- *no log* (`full_refresh`): nothing would repair rows that moved; the load starts again.

A resumed table mixes two moments until the log has passed P', so it is shown to readers after that.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock import failpoints
from penstock.core.position import Lsn
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId
from penstock.destinations.base import DestinationTable
from penstock.destinations.parquet_files import new_file_name
from penstock.lake.load_progress import LoadProgress
from penstock.lake.load_task import LoadResult, LoadTask, load_chunk
from penstock.lake.session import run_tasks
from penstock.lake.target import Target
from penstock.ledger import two_phase
from penstock.ledger.ledger import Ledger
from penstock.ledger.load_record import LoadChunk, LoadPoint, LoadRecord, LoadRecords
from penstock.ledger.state import Chunk, ChunkBound, SyncMode
from penstock.ledger.threads import chunk_thread_id, new_generation, new_load_id
from penstock.sources.postgres.catalog import TableInfo
from penstock.sources.postgres.chunks import ChunkMethod, PlannedChunk, plan_chunks
from penstock.sources.postgres.connection import connect, connection_string, load_connection_settings
from penstock.sources.postgres.types import arrow_type

CHUNKS_PER_COMMIT_MAX = 16
JOBS_AT_ONCE = 2  # while one job's last tasks finish, the next one's use the free cores


@dataclass(frozen=True, slots=True)
class StreamLoad:
    """One stream's load as planned: what is read, where it goes, what identifies it."""

    stream: StreamId
    sync_mode: SyncMode
    target: Target
    table: DestinationTable
    info: TableInfo
    record: LoadRecord
    to_read: tuple[LoadChunk, ...]

    def state_chunk(self, chunk: LoadChunk) -> Chunk:
        leaf = chunk.leaf if chunk.leaf != str(self.stream) else None
        return Chunk(chunk.min, chunk.max, leaf)

    def thread_id(self, chunk: LoadChunk) -> str:
        return chunk_thread_id(self.stream, self.record.load_id, self.state_chunk(chunk))


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    rows: dict[StreamId, int]
    dead_letters: dict[StreamId, int]
    rewritten: frozenset[StreamId]  # the source rewrote the table meanwhile: the load must start again


class Loader:
    """Plans loads and runs them. One instance serves one snapshot."""

    def __init__(
        self,
        url: str,
        spark: SparkSession,
        ledger: Ledger,
        records: LoadRecords,
        epoch: Lsn,
        point: LoadPoint,
        server_version: int,
        progress: LoadProgress,
        at_once: int | None,
    ) -> None:
        self._url = url
        self._spark = spark
        self._ledger = ledger
        self._records = records
        self._epoch = epoch
        self._point = point
        self._settings = load_connection_settings(server_version)
        self._progress = progress
        self._at_once = at_once
        self._lock = threading.Lock()

    def plan(
        self,
        info: TableInfo,
        sync_mode: SyncMode,
        target: Target,
        table: DestinationTable,
        method: ChunkMethod,
        rows: int,
    ) -> StreamLoad:
        """A new load: record durable, then the destination, then the state."""
        with connect(self._url, application_name="penstock plan", settings=self._settings) as connection:
            planned = plan_chunks(connection, info, method, rows_per_chunk=rows)
        nodes = {str(leaf.stream): leaf.filenode for leaf in info.leaves}
        record = LoadRecord(
            load_id=new_load_id(),
            generation=new_generation(),
            stream=info.stream,
            method=method,
            key_column=info.schema.key[0] if method == "key" else None,
            schema=info.schema,
            settings=settings_of(sync_mode, target),
            points=(self._point,),
            # The file nodes that the settled catalog had, not those found while planning: in between the
            # table may have been rewritten, and the snapshot would show it empty.
            chunks=tuple(LoadChunk(each.leaf, each.min, each.max, nodes[each.leaf]) for each in planned),
        )
        load = StreamLoad(info.stream, sync_mode, target, table, info, record, record.chunks)
        self._records.save(record)
        failpoints.reach("load.recorded")
        table.begin_load(record.load_id, self._epoch, info.schema, target.write)
        self._ledger.write(
            two_phase.plan_load(
                self._ledger.document,
                info.stream,
                sync_mode=sync_mode,
                load_id=record.load_id,
                generation=record.generation,
                chunks=[load.state_chunk(chunk) for chunk in record.chunks],
            )
        )
        failpoints.reach("load.planned")
        return load

    def resume(
        self,
        info: TableInfo,
        sync_mode: SyncMode,
        target: Target,
        table: DestinationTable,
        record: LoadRecord,
        to_read: Iterable[Chunk],
    ) -> StreamLoad:
        """The same load under this loader's snapshot, for the chunks that are left."""
        left = frozenset(record.chunk(chunk) for chunk in to_read)
        record = record.resumed(self._point, left)
        self._records.save(record)
        latest = len(record.points) - 1
        remaining = tuple(chunk for chunk in record.chunks if chunk.point == latest)
        return StreamLoad(info.stream, sync_mode, target, table, info, record, remaining)

    def run(self, loads: Sequence[StreamLoad]) -> LoadOutcome:
        """Read and commit every chunk; the swap is the caller's."""
        rows = {load.stream: 0 for load in loads}
        dead_letters = {load.stream: 0 for load in loads}
        rewritten: set[StreamId] = set()

        def run_group(group: Sequence[tuple[StreamLoad, LoadChunk]]) -> None:
            results = self._read_group(group)
            with self._lock:
                for load in {id(load): load for load, _ in group}.values():
                    done = [
                        (chunk, result)
                        for (each, chunk), result in zip(group, results, strict=True)
                        if each is load
                    ]
                    if any(result.table_rewritten for _, result in done):
                        rewritten.add(load.stream)
                    if load.stream in rewritten:
                        continue
                    self._commit(load, done)
                    rows[load.stream] += sum(result.rows for _, result in done)
                    dead_letters[load.stream] += sum(r.dead_letters.rows for _, r in done if r.dead_letters)
                    self._progress.committed(load.stream, rows[load.stream])

        with ThreadPoolExecutor(1 if self._at_once else JOBS_AT_ONCE, "penstock-load") as pool:
            futures = [pool.submit(run_group, group) for group in _groups(loads)]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self._spark.sparkContext.cancelAllJobs()
                raise
        return LoadOutcome(rows, dead_letters, frozenset(rewritten))

    def _read_group(self, group: Sequence[tuple[StreamLoad, LoadChunk]]) -> list[LoadResult]:
        with self._lock:
            document = self._ledger.document
            for load, chunk in group:
                document = two_phase.chunks_preparing(document, load.stream, [load.state_chunk(chunk)])
            self._ledger.write(document)
            failpoints.reach("load.preparing")
        tasks = [self._task(*each) for each in group]
        results = run_tasks(self._spark, load_chunk, tasks, "load chunks", self._at_once)
        failpoints.reach("load.written")
        return results

    def _task(self, load: StreamLoad, chunk: LoadChunk) -> LoadTask:
        leaf = next(leaf for leaf in load.info.leaves if str(leaf.stream) == chunk.leaf)
        name = self._progress.application_name(load.stream)
        return LoadTask(
            connection=connection_string(self._url, application_name=name, settings=self._settings),
            snapshot=self._point.snapshot,
            chunk=PlannedChunk(chunk.leaf, _bound(chunk.min), _bound(chunk.max), chunk.filenode, 0),
            leaf_oid=leaf.oid,
            method=load.record.method,
            target=load.target,
            path=load.table.files_directory / new_file_name("load"),
            dead_letter_path=load.table.dead_letters_directory / new_file_name("load"),
        )

    def _commit(self, load: StreamLoad, done: Sequence[tuple[LoadChunk, LoadResult]]) -> None:
        load.table.commit_chunks(
            load.record.load_id,
            self._epoch,
            [load.thread_id(chunk) for chunk, _ in done],
            [result.file for _, result in done if result.file is not None],
            [result.dead_letters for _, result in done if result.dead_letters is not None],
        )
        failpoints.reach("load.committed")
        chunks = [load.state_chunk(chunk) for chunk, _ in done]
        self._ledger.write(two_phase.chunks_committed(self._ledger.document, load.stream, chunks))
        failpoints.reach("load.chunks_removed")


def _groups(loads: Sequence[StreamLoad]) -> list[list[tuple[StreamLoad, LoadChunk]]]:
    """Chunks of all streams in order, cut into commits; small tables share a Spark job."""
    work = [(load, chunk) for load in loads for chunk in load.to_read]
    return [
        work[start : start + CHUNKS_PER_COMMIT_MAX] for start in range(0, len(work), CHUNKS_PER_COMMIT_MAX)
    ]


def settings_of(sync_mode: SyncMode, target: Target) -> dict[str, str]:
    """What a load is written by, besides the table's schema."""
    rename = {f"rename {name}": renamed for name, renamed in target.rename.items()}
    return {"mode": sync_mode, "write": target.write, **rename}


def columns_of(schema: TableSchema) -> list[tuple[int, str]]:
    """Which column each name stands for."""
    return [(column.attribute_number, column.name) for column in schema.columns]


def is_as_planned(record: LoadRecord, info: TableInfo, sync_mode: SyncMode, target: Target) -> bool:
    """Whether a load that was read to its end is still what the stream is to be."""
    same_settings = record.settings == settings_of(sync_mode, target)
    return same_settings and columns_of(record.schema) == columns_of(info.schema)


def can_resume(record: LoadRecord, info: TableInfo, sync_mode: SyncMode, target: Target) -> str | None:
    """None if going on is exact, else why the load must start again (see the proof above)."""
    if record.settings != settings_of(sync_mode, target):
        return "the stream's settings changed"
    nodes = {str(leaf.stream): leaf.filenode for leaf in info.leaves}
    if any(nodes.get(chunk.leaf) != chunk.filenode for chunk in record.chunks):
        return "the table was rewritten or its partitions changed"
    if record.schema.id != info.schema.id:
        return "the table's columns changed"
    if sync_mode == "full_refresh":
        return "its snapshot is gone, and a full refresh has no log to repair rows that moved"
    if owns_keys(record):
        return None
    if target.write == "append":
        return "rows may have moved between pages, and an append table would get them twice"
    return None


def owns_keys(record: LoadRecord) -> bool:
    """Whether each key has one owner chunk that we can tell: key ranges of one leaf, in a plain order."""
    if record.key_column is None or len({chunk.leaf for chunk in record.chunks}) > 1:
        return False
    column = record.schema.column(record.key_column)
    return not pa.types.is_string(arrow_type(column)) or column.type_name == "uuid"


def _bound(bound: ChunkBound) -> str | None:
    """Bounds are text at the source; an imported state may have written numbers."""
    return None if bound is None else str(bound)

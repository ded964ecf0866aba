"""Loads whole tables by chunks, as Spark tasks or here if they are small, and swaps them in.

Why nothing is lost, doubled or mixed: all chunks of a load are read under one exported snapshot with
consistent point P, so the load holds exactly the transactions that committed before P, and the log is
applied from P on. Chunks commit invisibly (thread ids `stream + load id + bounds`), several per commit;
one swap publishes them. Until then readers see the old table.

Writers never wait, and what they do around P cannot be torn. The slot's creation waits for every transaction
that runs when it begins, so each is wholly before P or wholly after it. A commit that stands in the log while
no snapshot shows it yet (it waits for a synchronous standby) still counts as running: P comes after it, and
the snapshot shows it. A transaction that is open while chunks are read commits after P: no chunk shows it,
however late that chunk is read, and the log brings it once. A row that moves between chunks meanwhile moves
in a version that the snapshot does not see.

A load that was cut short goes on under a new snapshot with a later point P', if that is exact:

- *key ranges*: a key stays in its range, so each chunk is right as of its own point, and changes below the
  point of the key's own chunk are skipped (`SkipRule`);
- *ctid ranges, upsert*: a row may have moved between pages, so that both or neither of its places were
  read. Every change since P is in the log and is applied again, in order, which ends in the right state
  for each key that changed. If a row that was not read lacks a value in the log as well (unchanged TOAST),
  that shows when it is applied, before anyone sees the table, and the load starts again;
- *ctid ranges, append*: applying again would double; the load starts again;
- *no log* (`full_refresh`, `incremental`): nothing would repair rows that moved; the load starts again. By
  choice (`resume: per_chunk`) a full refresh goes on all the same: each chunk is right as of its own point,
  and the table shows several. A row that was in one chunk at one point and in another one at the other is
  there twice or not at all. In key ranges those are the rows whose key changed meanwhile, so such a table is
  cut by its key if it can be; in ctid ranges every row that was updated meanwhile may be one.

A source that exports no snapshots (`TableReading.shows_one_moment`) is read in the same way: P is noted
before the first chunk, P' after the last one, and each chunk shows a moment between them. Every change since
P is applied in order, which ends in the right state for each key that changed, and rows that were not changed
were read as they are. That needs a key and `write: upsert`; what no log follows is read in one chunk. Where
each change counts once (`write: append`, rows that are kept when they are deleted), the table is read in one
chunk as well, under a snapshot that the chunk takes itself and whose place it says. That is the load's P
then, durable in the load's record before the chunk is committed.

A resumed table mixes two moments until the log has passed P', so it is shown to readers after that. A load
whose snapshot has been held for `snapshot_age_max` goes on in the same way, in the same sync.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence, Set
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
from penstock.destinations.records import TableRecord
from penstock.lake.light import Stages
from penstock.lake.load_progress import LoadProgress
from penstock.lake.load_task import LoadResult, LoadTask, load_chunk
from penstock.lake.places import position_at
from penstock.lake.target import Target
from penstock.ledger import incremental, two_phase
from penstock.ledger.ledger import Ledger
from penstock.ledger.load_record import LoadChunk, LoadPoint, LoadRecord, LoadRecords
from penstock.ledger.state import Chunk, ChunkBound, SyncMode
from penstock.ledger.threads import chunk_thread_id, new_generation, new_load_id
from penstock.sources.base import ReadingSession, TableReading
from penstock.sources.chunk import OWN_SNAPSHOT, ChunkMethod, PlannedChunk
from penstock.sources.cursor import Cursor, Noted
from penstock.sources.pace import share
from penstock.sources.tables import SourceTable
from penstock.sources.types import cast_text, types_of

CHUNKS_PER_COMMIT_MAX = 16
#: So many tables of one small chunk count as one chunk: each costs its commit and little else.
SMALL_TABLES_PER_CHUNK = 16
SMALL_TABLE_BYTES_MAX = 4 * 1024 * 1024
_JOBS = "penstock-load"
JOBS_AT_ONCE = 2  # while one job's last tasks finish, the next one's use the free cores


@dataclass(frozen=True, slots=True)
class StreamLoad:
    """One stream's load as planned: what is read, where it goes, what identifies it."""

    stream: StreamId
    sync_mode: SyncMode
    target: Target
    table: DestinationTable
    info: SourceTable
    record: LoadRecord
    to_read: tuple[LoadChunk, ...]
    noted: Noted | None = None  # of a table that is read by a cursor: how far it is read

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


OnRead = Callable[[Sequence[StreamLoad], LoadOutcome], None]


class Loader:
    """Plans loads and runs them, if they are `light` without Spark. One instance serves one snapshot."""

    def __init__(
        self,
        reading: TableReading,
        spark: Callable[[], SparkSession],
        ledger: Ledger,
        records: LoadRecords,
        epoch: Lsn,
        point: LoadPoint,
        progress: LoadProgress,
        at_once: int | None,
        origin: str = "",
        rows_per_second: int | None = None,
        snapshot_age_max_s: float | None = None,
        per_chunk: Set[StreamId] = frozenset(),
        *,
        light: bool = False,
    ) -> None:
        self._reading = reading
        self._spark = spark
        self._ledger = ledger
        self._records = records
        self._epoch = epoch
        self._point = point
        self._progress = progress
        self._at_once = at_once
        self._origin = origin
        self._light = light
        self._stages = Stages(spark)
        readers = at_once or (1 if light else self._stages.cores)
        self._rows_per_second = share(rows_per_second, readers)
        self._let_go_at = None if snapshot_age_max_s is None else time.monotonic() + snapshot_age_max_s
        self._per_chunk = per_chunk
        self._lock = threading.Lock()

    def note(self, info: SourceTable, cursors: Sequence[Cursor]) -> Noted:
        """How far a table is to be read by its cursors: to the greatest values of this loader's snapshot."""
        with self._reading.session(self._point.snapshot) as session:
            return session.note(info, cursors, {})

    def plan(
        self,
        session: ReadingSession,
        info: SourceTable,
        sync_mode: SyncMode,
        target: Target,
        table: DestinationTable,
        method: ChunkMethod,
        rows: int,
        noted: Noted | None = None,
    ) -> StreamLoad:
        """A new load: its record is durable, then the destination knows it; `run` writes the state."""
        planned = session.plan_chunks(info, method, rows_per_chunk=rows)
        assert len(planned) == 1 or not self._takes_own_snapshot(info, sync_mode, target)
        nodes = {str(leaf.stream): leaf.filenode for leaf in info.leaves}
        record = LoadRecord(
            load_id=new_load_id(),
            generation=new_generation(self._origin),
            stream=info.stream,
            method=method,
            key_column=info.schema.key[0] if method == "key" else None,
            schema=target.schema,
            settings=settings_of(sync_mode, target),
            points=(self._point,),
            # The file nodes that the settled catalog had, not those found while planning: in between the
            # table may have been rewritten, and the snapshot would show it empty.
            chunks=tuple(LoadChunk(each.leaf, each.min, each.max, nodes[each.leaf]) for each in planned),
        )
        self._records.save(record)
        failpoints.reach("load.recorded")
        begun = table.begin_load(
            record.load_id, self._epoch, target.schema, target.write, target.arrow_schema(), target.options
        )
        target = as_begun(target, begun)
        return StreamLoad(info.stream, sync_mode, target, table, info, record, record.chunks, noted)

    def resume(
        self,
        info: SourceTable,
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
        target = as_begun(target, table.record())
        latest = len(record.points) - 1
        remaining = tuple(chunk for chunk in record.chunks if chunk.point == latest)
        return StreamLoad(info.stream, sync_mode, target, table, info, record, remaining)

    def run(self, loads: Sequence[StreamLoad], on_read: OnRead) -> frozenset[StreamId]:
        """Read and commit every chunk. `on_read` hears of each load when it is read to its end.

        Once the snapshot is too old, no more chunks are begun of loads that can go on under another: those
        come back. The first ones are read in any case, so that every snapshot brings a load further.
        """
        self._list_chunks(loads)
        rows = {load.stream: 0 for load in loads}
        dead_letters = {load.stream: 0 for load in loads}
        left = {load.stream: len(load.to_read) for load in loads}
        rewritten: set[StreamId] = set()
        postponed: set[StreamId] = set()

        def run_group(number: int, group: Sequence[tuple[StreamLoad, LoadChunk]]) -> None:
            if not self._light:
                self._spark().sparkContext.addJobTag(_JOBS)  # of this thread
            if number >= JOBS_AT_ONCE and self._may_wait(group):
                postponed.update(load.stream for load, _ in group)
                return
            results = self._read_group(group)
            with self._lock:
                by_load: dict[StreamId, tuple[StreamLoad, list[tuple[LoadChunk, LoadResult]]]] = {}
                for (load, chunk), result in zip(group, results, strict=True):
                    by_load.setdefault(load.stream, (load, []))[1].append((chunk, result))
                document = self._ledger.document
                for load, done in by_load.values():
                    if any(result.table_rewritten or not self._noted(load, result) for _, result in done):
                        rewritten.add(load.stream)
                    if load.stream in rewritten:
                        continue
                    self._commit(load, done)
                    chunks = [load.state_chunk(chunk) for chunk, _ in done]
                    document = two_phase.chunks_committed(document, load.stream, chunks)
                    rows[load.stream] += sum(result.rows for _, result in done)
                    dead_letters[load.stream] += sum(r.dead_letters.rows for _, r in done if r.dead_letters)
                    self._progress.committed(load.stream, rows[load.stream])
                self._ledger.write(document)
                failpoints.reach("load.chunks_removed")
                for load, done in by_load.values():
                    left[load.stream] -= len(done)
                whole = [load for load, _ in by_load.values() if not left[load.stream]]
                if whole:
                    on_read(whole, LoadOutcome(rows, dead_letters, frozenset(rewritten)))

        with ThreadPoolExecutor(1 if self._at_once or self._light else JOBS_AT_ONCE, "penstock-load") as pool:
            futures = [pool.submit(run_group, *each) for each in enumerate(_groups(loads))]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                if not self._light:  # what is light ends by itself
                    self._spark().sparkContext.cancelJobsWithTag(_JOBS)  # rounds beside the load go on
                raise
        return frozenset(postponed)

    def _may_wait(self, group: Sequence[tuple[StreamLoad, LoadChunk]]) -> bool:
        """Whether the snapshot has been held for long enough, and these chunks may be read under another."""
        if self._let_go_at is None or time.monotonic() < self._let_go_at:
            return False
        loads = {load.stream: load for load, _ in group}.values()
        reasons = (
            can_resume(
                each.record, each.info, each.sync_mode, each.target, per_chunk=each.stream in self._per_chunk
            )
            for each in loads
        )
        return all(reason is None for reason in reasons)

    def _list_chunks(self, loads: Sequence[StreamLoad]) -> None:
        """New loads' chunks into the state, in one write: a write for each would rewrite all of them each."""
        document = self._ledger.document
        for load in loads:
            state = document.stream(load.stream)
            if state is None or state.load_id != load.record.load_id:
                document = two_phase.plan_load(
                    document,
                    load.stream,
                    sync_mode=load.sync_mode,
                    load_id=load.record.load_id,
                    generation=load.record.generation,
                    chunks=[load.state_chunk(chunk) for chunk in load.record.chunks],
                )
                noted = load.noted
                if noted is None:
                    document = incremental.forget(document, load.stream)
                else:
                    document = incremental.note_load(document, load.stream, noted.names, noted.advanced)
        self._ledger.write(document)
        failpoints.reach("load.planned")

    def _read_group(self, group: Sequence[tuple[StreamLoad, LoadChunk]]) -> list[LoadResult]:
        with self._lock:
            document = self._ledger.document
            for load, chunk in group:
                document = two_phase.chunks_preparing(document, load.stream, [load.state_chunk(chunk)])
            self._ledger.write(document)
            failpoints.reach("load.preparing")
        tasks = [self._task(*each) for each in group]
        sizes = [_bytes(load) // len(load.record.chunks) for load, _ in group]
        results = self._stages.run(
            load_chunk, tasks, "load chunks", light=self._light, weights=sizes, at_once=self._at_once
        )
        failpoints.reach("load.written")
        return results

    def _task(self, load: StreamLoad, chunk: LoadChunk) -> LoadTask:
        leaf = next(leaf for leaf in load.info.leaves if str(leaf.stream) == chunk.leaf)
        reading = self._reading.chunk(
            PlannedChunk(chunk.leaf, _bound(chunk.min), _bound(chunk.max), chunk.filenode, 0),
            leaf,
            load.record.method,
            self._snapshot_for(load),
            reader=self._progress.reader(load.stream),
            condition="" if load.noted is None else self._reading.within(load.noted),
        )
        return LoadTask(
            reading,
            target=load.target,
            path=load.table.files_directory / new_file_name("load"),
            dead_letter_path=load.table.dead_letters_directory / new_file_name("load"),
            is_first=chunk.min is None,
            rows_per_second=self._rows_per_second,
        )

    def _snapshot_for(self, load: StreamLoad) -> str:
        takes_own = self._takes_own_snapshot(load.info, load.sync_mode, load.target)
        return OWN_SNAPSHOT if takes_own else self._point.snapshot

    def _takes_own_snapshot(self, info: SourceTable, sync_mode: SyncMode, target: Target) -> bool:
        return takes_own_snapshot(self._reading, info, sync_mode, target)

    def _noted(self, load: StreamLoad, result: LoadResult) -> bool:
        """Make durable at which point a chunk was read that found it out itself; False: nobody can tell."""
        if result.place is None:
            return True
        position = position_at(result.place, self._point)
        if position is not None:
            self._records.save(load.record.seen_at(LoadPoint(position, "", result.place)))
        return position is not None

    def _commit(self, load: StreamLoad, done: Sequence[tuple[LoadChunk, LoadResult]]) -> None:
        load.table.commit_chunks(
            load.record.load_id,
            self._epoch,
            [load.thread_id(chunk) for chunk, _ in done],
            [file for _, result in done for file in result.files],
            [result.dead_letters for _, result in done if result.dead_letters is not None],
        )
        failpoints.reach("load.committed")


def takes_own_snapshot(reading: TableReading, info: SourceTable, sync_mode: SyncMode, target: Target) -> bool:
    """Whether a load must know exactly which changes it has, and nobody can tell it beforehand."""
    exact = target.write == "append" or target.soft_deletes
    return sync_mode == "cdc" and exact and reading.finds_place and not reading.shows_one_moment(info)


def _groups(loads: Sequence[StreamLoad]) -> list[list[tuple[StreamLoad, LoadChunk]]]:
    """Chunks of all streams in order, cut into commits; small tables share a job."""
    groups: list[list[tuple[StreamLoad, LoadChunk]]] = []
    room = 0
    for load in loads:
        size = 1 if _is_small(load) else SMALL_TABLES_PER_CHUNK
        for chunk in load.to_read:
            if room < size:
                groups.append([])
                room = CHUNKS_PER_COMMIT_MAX * SMALL_TABLES_PER_CHUNK
            groups[-1].append((load, chunk))
            room -= size
    return groups


def _is_small(load: StreamLoad) -> bool:
    return len(load.record.chunks) == 1 and _bytes(load) <= SMALL_TABLE_BYTES_MAX


def _bytes(load: StreamLoad) -> int:
    return sum(leaf.bytes for leaf in load.info.leaves)


def settings_of(sync_mode: SyncMode, target: Target) -> dict[str, str]:
    """What a load is written by, besides the table's schema."""
    rename = {f"rename {name}": renamed for name, renamed in target.rename.items()}
    types = {f"type {each.name}": each.held_as for each in target.schema.columns if each.held_as}
    chosen = {f"column {name}": "held" for name in target.schema.chosen}
    where = {"where": target.schema.where} if target.schema.where else {}
    deletes = {"deletes": "soft"} if target.soft_deletes else {}
    return {"mode": sync_mode, "write": target.write, **deletes, **rename, **types, **chosen, **where}


def columns_of(schema: TableSchema) -> list[tuple[int, str]]:
    """Which column each name stands for, also those that only the filter reads."""
    return [(column.attribute_number, column.name) for column in (*schema.columns, *schema.hidden)]


def is_as_planned(record: LoadRecord, info: SourceTable, sync_mode: SyncMode, target: Target) -> bool:
    """Whether a load that was read to its end is still what the stream is to be."""
    same_settings = record.settings == settings_of(sync_mode, target)
    return same_settings and columns_of(record.schema) == columns_of(info.schema)


def can_resume(
    record: LoadRecord, info: SourceTable, sync_mode: SyncMode, target: Target, *, per_chunk: bool = False
) -> str | None:
    """None if going on is exact, else why the load must start again (see the proof above).

    `per_chunk`: a table that no log follows may show more than one moment.
    """
    if record.settings != settings_of(sync_mode, target):
        return "the stream's settings changed"
    nodes = {str(leaf.stream): leaf.filenode for leaf in info.leaves}
    if any(nodes.get(chunk.leaf) != chunk.filenode for chunk in record.chunks):
        return "the table was rewritten or its partitions changed"
    if record.schema.id != target.schema.id:
        return "the table's columns changed"
    if sync_mode == "full_refresh" and per_chunk:
        return None
    if sync_mode in ("full_refresh", "incremental"):
        return "its snapshot is gone, and this mode has no log to repair rows that moved"
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
    bounds = pa.array([str(chunk.min) for chunk in record.chunks if chunk.min is not None], pa.string())
    if cast_text(bounds, column).bad is not None:
        return False  # an infinite bound has no place in the order of the values we hold
    return types_of(column).orders_as_held(column)


def as_begun(target: Target, table: TableRecord | None) -> Target:
    """The target with the ids that the load's columns were given when it began, and the table's layout."""
    if table is None or table.load is None:
        return target
    return target.with_ids_of(table.load.columns, table.layout)


def _bound(bound: ChunkBound) -> str | None:
    """Bounds are text at the source; an imported state may have written numbers."""
    return None if bound is None else str(bound)

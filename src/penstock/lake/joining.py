"""Starts a table without its rows: `mode: strict_cdc`, the log and nothing but the log.

The table begins empty at P, the consistent point of a slot that was created after the source's table had
been published. Slot creation waits for every transaction that runs at that moment. So a transaction that
commits after P began after the ALTER PUBLICATION, and all of its rows are published; one that committed
before P may have been published in part, and the table takes nothing of it (correctness 9). From P on the
table follows the log like any other: whole transactions, each once.

It goes the way of a load, with one chunk that has no rows: record, state, file, commit, swap. What differs
is recovery. A load that was cut short goes on under a newer snapshot, because reading again brings what was
missed; here nothing would. So a start that the state knows of keeps its P, whatever happens to it, and
the log is kept from P on as for any open load. The columns are those that were settled around P.

For the same reason such a table is never started anew unasked: where another would be loaded again, this
one is paused with the reason, and `penstock resync` is the way to begin afresh.
"""

from __future__ import annotations

from penstock import failpoints
from penstock.core.stream import StreamId
from penstock.destinations.parquet_files import new_file_name
from penstock.lake.lane_state import LaneState
from penstock.lake.load import as_begun, settings_of
from penstock.lake.output import OutputFile
from penstock.lake.target import Target
from penstock.ledger import two_phase
from penstock.ledger.load_record import LoadChunk, LoadPoint, LoadRecord
from penstock.ledger.recovery import recover_chunks
from penstock.ledger.state import Chunk
from penstock.ledger.threads import chunk_thread_id, new_generation, new_load_id

_ALL = Chunk(None, None)


class Joining:
    def __init__(self, lane: LaneState) -> None:
        self._lane = lane

    def begin(self, stream: StreamId, point: LoadPoint) -> LoadRecord | None:
        """An empty load, committed and ready to be swapped in; None if the stream was paused instead."""
        begun = self._begun(stream)
        configured = self._lane.streams[stream]
        target = configured.target(begun.schema if begun is not None else None)
        target.arrow_schema()  # a clash of names is said before anything is made
        if begun is None and self._holds_unknown_rows(stream):
            self._lane.pause(stream, "its table was there before, and nothing tells what it lacks")
            return None
        if begun is None or begun.settings != settings_of(configured.mode, target):
            begun = self._plan(stream, target, point if begun is None else begun.points[0])
        recovery = recover_chunks(self._lane.ledger.document, stream, self._lane.is_thread_committed)
        self._lane.ledger.write(recovery.document)
        if recovery.to_read:
            self._commit_empty(stream, target, begun)
        return begun

    def _begun(self, stream: StreamId) -> LoadRecord | None:
        """The start that the state knows of, unless another was asked for."""
        record, state = self._lane.records.load(stream), self._lane.ledger.document.stream(stream)
        if record is None or state is None or stream in self._lane.to_reload:
            return None
        return record if state.is_loading and state.load_id == record.load_id else None

    def _holds_unknown_rows(self, stream: StreamId) -> bool:
        record = self._lane.table(stream).record()
        return record is not None and record.marker is not None and stream not in self._lane.to_reload

    def _plan(self, stream: StreamId, target: Target, point: LoadPoint) -> LoadRecord:
        configured, document = self._lane.streams[stream], self._lane.ledger.document
        record = LoadRecord(
            load_id=new_load_id(),
            generation=new_generation(self._lane.settings.origin),
            stream=stream,
            method="ctid",
            key_column=None,
            schema=target.schema,
            settings=settings_of(configured.mode, target),
            points=(point,),
            chunks=(LoadChunk(str(stream), None, None, 0),),
        )
        self._lane.records.save(record)
        failpoints.reach("load.recorded")
        if stream in document.global_streams:
            document = two_phase.leave_global(document, stream)
        planned = two_phase.plan_load(
            document,
            stream,
            sync_mode=configured.mode,
            load_id=record.load_id,
            generation=record.generation,
            chunks=[_ALL],
        )
        self._lane.ledger.write(planned)
        failpoints.reach("load.planned")
        return record

    def _commit_empty(self, stream: StreamId, target: Target, record: LoadRecord) -> None:
        """One file without rows: a reader of the empty table finds its columns."""
        table, epoch = self._lane.table(stream), self._lane.settings.epoch
        begun = table.begin_load(
            record.load_id, epoch, target.schema, target.write, target.arrow_schema(), target.options
        )
        target = as_begun(target, begun)
        self._lane.ledger.write(two_phase.chunks_preparing(self._lane.ledger.document, stream, [_ALL]))
        path = table.files_directory / new_file_name("load")
        with OutputFile(path, target.arrow_schema(), even_if_empty=True) as output:
            pass
        assert output.data_file is not None
        thread_id = chunk_thread_id(stream, record.load_id, _ALL)
        table.commit_chunks(record.load_id, epoch, [thread_id], [output.data_file])
        failpoints.reach("load.committed")
        self._lane.ledger.write(two_phase.chunks_committed(self._lane.ledger.document, stream, [_ALL]))

"""Brings tables to where a load would bring them, by writing only the rows that differ (`resync --diff`).

After a lost slot the log has a gap: no round leads from where a table stands to anything later. A load begins
it anew at the point P of a snapshot, and writes all of it again. This comes to the same table and hands it
over to the log in the same way, with less written:

1. *Nobody else writes to the table.* Rounds leave it from the beginning (it is not kept up), and the commit
   is refused unless the table's marker is the very one that it had when it was compared.
2. *The source is at P.* The snapshot shows exactly the transactions that committed before P, as for a load.
3. *What differs is all that differs.* Both sides are hashed row by row, whatever the table went through
   (`penstock.verify`). Each key with a difference loses its rows and gets what the source has for it. Where
   deleted rows are kept, those that the source has no more stay, marked as deleted, and so do all older ones.
4. *One commit has it all*: rows, the dead letters of what does not fit now, and a marker of a new generation
   that says "at P". Readers see the old table before it and the source's state at P after it; what is later
   comes from the log, once.
5. *To the state it is a load of one chunk*, whose commit is the swap as well. Cut short before the commit, it
   is compared anew under another snapshot; after it, the chunk's thread id is in the table's marker, and
   recovery ends the load as it ends any other (`ledger/two_phase.py`).

What cannot be compared, or differs in so much that it is better loaded, is loaded, under the same snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from penstock import failpoints
from penstock.core.errors import StaleLookupError
from penstock.core.stream import StreamId
from penstock.destinations.records import Marker
from penstock.lake.apply import Outcome, StreamWork, merge
from penstock.lake.comparing import BetterLoaded, Differing, HeldTable
from penstock.lake.lane_state import LaneState
from penstock.lake.leaves import leaf_marks
from penstock.lake.light import Stages
from penstock.lake.load import columns_of, settings_of
from penstock.lake.repair import repaired
from penstock.ledger import pausing, two_phase
from penstock.ledger.load_record import LoadChunk, LoadPoint, LoadRecord
from penstock.ledger.state import Chunk
from penstock.ledger.threads import chunk_thread_id, new_generation, new_load_id
from penstock.sources.tables import SourceTable

LOOKUPS_MAX = 5  # while somebody else changes the table's files
_WHOLE = Chunk(None, None)

Altered = Callable[[Mapping[StreamId, SourceTable]], set[StreamId]]
Swap = Callable[[StreamId, LoadRecord], None]


class ByDifference:
    """`altered`: which of these tables have other columns at the source by now. `swap`: end a load."""

    def __init__(self, lane: LaneState, altered: Altered, swap: Swap) -> None:
        self._lane = lane
        self._altered = altered
        self._swap = swap
        self._stages = Stages(lane.spark)

    def bring(self, streams: Sequence[StreamId], point: LoadPoint) -> list[StreamId]:
        """Take these tables to the point; what is left is to be loaded, under the same snapshot.

        Those that the source rewrote or altered meanwhile stay to be tried again under another.
        """
        tables: dict[StreamId, HeldTable] = {}
        left: list[StreamId] = []
        for stream in streams:
            held = self._held(stream)
            if isinstance(held, HeldTable):
                tables[stream] = held
            else:
                left.append(self._load_instead(stream, held))
        comparer = self._lane.settings.comparer
        if not tables or comparer is None:
            return [*left, *tables]
        for stream, found in comparer.compare(tables, point.snapshot):
            held = tables[stream]
            if isinstance(found, BetterLoaded):
                left.append(self._load_instead(stream, found))
            elif found is None or self._altered({stream: held.info}):
                self._lane.listener.note(
                    f"{stream} was rewritten at the source while it was compared; comparing again."
                )
            else:
                self._write(stream, held, found, point)
        return left

    def _held(self, stream: StreamId) -> HeldTable | BetterLoaded:
        """The table, if the source's rows as they are now could all be in it."""
        configured, table = self._lane.streams[stream], self._lane.table(stream)
        record, info = table.record(), configured.info
        if record is None or record.marker is None:
            return BetterLoaded("there is no table yet")
        if record.readable_from is not None:
            return BetterLoaded("its last load was never shown to readers")
        if not info.schema.key:
            return BetterLoaded("it has no key to tell its rows by")
        has_columns = columns_of(record.schema) == columns_of(info.schema) and (
            self._lane.is_layout_of(stream, record) and self._lane.is_layout_of(stream, record, info.schema)
        )
        if not has_columns or record.schema.key != info.schema.key or record.write != configured.write:
            return BetterLoaded("its columns are not those that it is to have now")
        target = configured.target().with_ids_of(record.columns, record.layout)
        return HeldTable(info, table, record, target)

    def _load_instead(self, stream: StreamId, why: BetterLoaded) -> StreamId:
        lane = self._lane
        lane.ledger.write(pausing.to_be_loaded_whole(lane.ledger.document, stream))
        lane.by_difference.discard(stream)
        loses = " Rows that were deleted at the source are not kept." * lane.streams[stream].soft_deletes
        lane.listener.note(f"{stream} is loaded and not compared: {why.reason}.{loses}")
        return stream

    def _write(self, stream: StreamId, held: HeldTable, found: Differing, point: LoadPoint) -> None:
        lane, configured = self._lane, self._lane.streams[stream]
        if stream in lane.ledger.document.global_streams and not lane.beside_rounds:
            lane.ledger.write(two_phase.leave_global(lane.ledger.document, stream))
        record = LoadRecord(
            load_id=new_load_id(),
            generation=new_generation(lane.settings.origin),
            stream=stream,
            method="ctid",
            key_column=None,
            schema=held.target.schema,
            settings=settings_of(configured.mode, held.target),
            points=(point,),
            chunks=(LoadChunk(str(stream), None, None, 0),),
        )
        lane.records.save(record)
        failpoints.reach("load.recorded")
        document = two_phase.plan_load(
            lane.ledger.document,
            stream,
            sync_mode=configured.mode,
            load_id=record.load_id,
            generation=record.generation,
            chunks=[_WHOLE],
        )
        lane.ledger.write(two_phase.chunks_preparing(document, stream, [_WHOLE]))
        failpoints.reach("load.preparing")
        self._commit(held, found, record)
        failpoints.reach("load.committed")
        totals = lane.totals[stream]
        totals.rows_repaired += found.rows
        totals.dead_letters += sum(file.rows for file in found.letters)
        lane.to_reload.discard(stream)
        lane.by_difference.discard(stream)
        self._swap(stream, record)
        lane.listener.note(
            f"{stream}: {found.rows:,} of {found.rows_compared:,} rows differed from the source; "
            "those were written."
        )

    def _commit(self, held: HeldTable, found: Differing, record: LoadRecord) -> None:
        """Write the rows that differ and commit them, with the marker that a swap of the load would leave."""
        stream, expected = record.stream, held.record.marker
        assert expected is not None, "a table that was loaded"
        thread_id = chunk_thread_id(stream, record.load_id, _WHOLE)
        settings = self._lane.settings
        marker = Marker(
            record.generation,
            settings.epoch,
            None,
            record.oldest_point,
            (thread_id,),
            leaves=leaf_marks(held.info) or None,
            timeline=settings.timeline,
        )
        for lookup in range(1, LOOKUPS_MAX + 1):
            work = self._work(held, record)
            outcome = self._made(work, found)
            failpoints.reach("load.written")
            try:
                held.table.mend(
                    record.load_id,
                    expected,
                    marker,
                    held.target.schema,
                    added=outcome.added,
                    removed=sorted(outcome.removed),
                    dead_letter_files=found.letters,
                    deletes=outcome.deletes,
                    columns=held.target.arrow_schema(),
                    read_from=work.read_from,
                )
                return
            except StaleLookupError:
                if lookup == LOOKUPS_MAX:
                    raise

    def _work(self, held: HeldTable, load: LoadRecord) -> StreamWork:
        """The table's files as they are now: others may have merged some since they were compared."""
        record = held.table.record()
        assert record is not None, "a table that was compared"
        return StreamWork(
            stream=load.stream,
            table=held.table,
            target=held.target,
            files=held.table.files(record),
            changes=(),
            truncates=(),
            after=load.oldest_point,
            to=load.oldest_point,
            columns={},
            rewrite=None,
            read_from=record.snapshot_id,
        )

    def _made(self, work: StreamWork, found: Differing) -> Outcome:
        repair, stream = found.repair, work.stream
        if repair is None:
            return Outcome()
        for file in work.files:  # rows may be elsewhere in it than its index has them
            work.table.index_path(file).unlink(missing_ok=True)
        return merge(
            self._stages, [work], lambda staging: {stream: [repaired(work, repair, staging[stream])]}
        )[stream]

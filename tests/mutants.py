"""`python -m tests.mutants` (make mutants): known bugs are planted, and each must turn a test red.

A mutant is one edit of one file, made in a copy of the sources that the chosen tests then import instead of
the real ones. The run fails if a mutant survives, if the text to edit is no longer there (then the mutant
must be written anew, not dropped), or if the chosen tests are not green without any bug to begin with.

`python -m tests.mutants NAME…` runs only those whose name contains one of the words; with SHARE=8 in the
environment it runs an eighth of them, another one when code changes. GREEN=known: the tests have just been
run without a bug, as in CI, and are not run so again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.share import is_in_share

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 900.0
_GREEN, _RED = 0, 1  # pytest's exit codes; others mean that it could not run the tests

WORKLOAD = "tests/integration/test_workload.py::test_a_table_that_is_followed_in_rounds_equals_its_source"
TRAPS = "tests/integration/test_traps.py::"
CHANGE_TRAPS = "tests/integration/test_change_traps.py::"
SYNC = "tests/integration/test_sync.py::"
REWIND = "tests/integration/test_rewind.py::"
FILTERING = "tests/unit/test_filtering.py::"
INCREMENTAL = "tests/integration/test_incremental.py::"
INCREMENTAL_MOVES = "tests/unit/test_incremental_moves.py::"
CATALOGS = "tests/integration/test_iceberg_catalogs.py::"
ICEBERG = "tests/integration/test_iceberg_sync.py::"
LETTERS = "tests/integration/test_dead_letters.py::"
STREAMED = "tests/integration/test_streamed.py::"
KILLED = "tests/chaos/test_kill.py::test_killed_while_following_it_ends_with_every_value_right"
COMMIT_PUBLISHER = "tests/unit/test_commit_publisher.py::test_each_event_is_there_once_and_in_order"
RECORD_PUBLISHER = "tests/unit/test_record_publisher.py::test_each_event_is_there_once_and_in_order"
RECORD_HELD = (
    "tests/unit/test_record_publisher.py"
    "::test_a_record_that_is_held_for_long_lets_so_many_pass_it_and_no_more"
)
MYSQL_SNAPSHOTS = (
    "tests/integration/test_mysql_snapshots.py::test_a_snapshot_shows_what_was_logged_before_its_place"
)
KINESIS_WOKEN = (
    "tests/integration/test_kinesis_target.py::test_a_leader_that_was_stopped_and_wakes_up_sends_nothing_more"
)
KINESIS_HALVED = (
    "tests/unit/test_kinesis_calls.py"
    "::test_each_event_is_there_once_whichever_answer_of_a_halved_call_is_lost"
)
COLLECTOR = "tests/unit/test_shape_collector.py::"
ROUTER = "tests/unit/test_shape_router.py::"
SHAPE_LIVE = "tests/unit/test_shape_http_live.py::"
STREAMS_KILLED = "tests/chaos/test_streams.py::test_killed_while_following_each_change_is_there_once"

COMMIT = "            if not self.commit(work, outcome):\n                continue\n"
REACH_COMMITTED = '            failpoints.reach("cdc.committed")\n'
SAY_COMMITTED = (
    "            self._lane.ledger.write("
    "two_phase.stream_committed(self._lane.ledger.document, work.stream, to))\n"
)
SAY_STREAM_COMMITTED = (
    "            self._lane.ledger.write(\n"
    "                two_phase.finish_stream_round(self._lane.ledger.document, work.stream, committed=True)\n"
    "            )\n"
)


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    find: str
    put: str
    tests: tuple[str, ...]
    #: pytest's -k, where the test is one of many cases
    select: str = ""

    def places(self, sources: Path) -> int:
        """How often the text to edit is there; it must be once."""
        return self._path(sources).read_text().count(self.find)

    def plant(self, sources: Path) -> None:
        if (places := self.places(sources)) != 1:
            raise SystemExit(f"{self.name}: the text to edit is {places} times in {self.file}")
        path = self._path(sources)
        path.write_text(path.read_text().replace(self.find, self.put))

    def _path(self, sources: Path) -> Path:
        return sources / "penstock" / self.file


MUTANTS = (
    Mutant(
        "acknowledge early: before the tables hold it",
        "turns.py",
        "                lane.follow(end)\n",
        "                self._capture.acknowledge(LAKE_LANE, end)\n                lane.follow(end)\n",
        (TRAPS + "test_nothing_is_acknowledged_before_the_state_says_it_is_committed",),
    ),
    Mutant(
        "end a step where its last commit begins",
        "capture/postgres/decoder.py",
        "position = max(position, Lsn(int(found.commit_end[-1])))",
        "position = max(position, Lsn(int(found.tx[-1])))",
        (TRAPS + "test_a_step_ends_where_its_last_commit_ends",),
    ),
    Mutant(
        "drop one: of the changes that are read",
        "capture/step_sink.py",
        "        self._writer.write(table.schema, table.leaf, rows, operations)\n",
        "        rows = rows.slice(1) if rows.num_rows > 3 else rows\n"
        "        self._writer.write(table.schema, table.leaf, rows, operations)\n",
        (WORKLOAD,),
    ),
    Mutant(
        "drop one: of the rows that are applied",
        "lake/fold_task.py",
        "                output.write_table(folded.rows)\n",
        "                output.write_table(folded.rows.slice(1))\n",
        (WORKLOAD,),
    ),
    Mutant(
        "drop one: of the rows that are loaded",
        "lake/load_task.py",
        "            output.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))\n",
        "            output.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema).slice(1))\n",
        (WORKLOAD,),
    ),
    Mutant(
        "double one: of an append table's changes",
        "lake/fold_task.py",
        "                output.write_table(append_rows(part, target.key))\n",
        "                output.write_table(append_rows(part, target.key))\n"
        "                output.write_table(append_rows(part, target.key).slice(0, 1))\n",
        (WORKLOAD,),
    ),
    Mutant(
        "double one: the recovery forgets to ask the destination",
        "ledger/recovery.py",
        "    return is_thread_committed(stream, cdc_thread_id(stream, state.generation, start))\n",
        "    return False\n",
        (KILLED,),
        "cdc.committed",
    ),
    Mutant(
        "apply again: rows are completed from the key that they came from",
        "lake/fold_task.py",
        "                    pending = pending.at_own_keys()\n",
        "                    pass\n",
        (REWIND + "test_a_spoilt_table_is_what_the_log_says_after_a_rewind",),
        "hard-parquet",
    ),
    Mutant(
        "apply again: the recovery forgets to ask the table",
        "ledger/rewinding.py",
        "    if begun is None or begun != generation or start is None:\n",
        "    if start is None or start >= 0:\n",
        ("tests/unit/test_rewind.py::test_cut_short_before_any_durable_step_it_is_done_once",),
    ),
    Mutant(
        "swap two: changes of one transaction",
        "capture/rows.py",
        "pa.array(changes.ordinal * 2)",
        "pa.array(changes.ordinal[::-1] * 2)",
        (WORKLOAD,),
    ),
    Mutant(
        "null a TOAST value that was not sent",
        "capture/rows.py",
        "    if changes.unchanged is None:\n",
        "    if changes is not None:\n",
        (WORKLOAD,),
    ),
    Mutant(
        "skip the skip: changes that are in the load are applied again",
        "lake/backfill.py",
        "            record.oldest_point if follows else None,\n",
        "            (self._lane.log.start() or record.oldest_point) if follows else None,\n",
        (TRAPS + "test_a_table_rewritten_between_chunks_is_loaded_again",),
        "TRUNCATE",
    ),
    Mutant(
        "skip the skip: in a load by key ranges that was resumed",
        "lake/round_plan.py",
        "        skip = skip_rule(",
        "        skip = None and skip_rule(",
        (SYNC + "test_key_ranges_load_and_resume_exactly",),
    ),
    Mutant(
        "say it is committed before it is",
        "lake/following.py",
        COMMIT + REACH_COMMITTED + SAY_COMMITTED,
        SAY_COMMITTED + REACH_COMMITTED + COMMIT,
        (KILLED,),
        "cdc.committed",
    ),
    Mutant(
        "commit without moving the fence",
        "destinations/iceberg_handle.py",
        "                        stage.move_fence()\n",
        "                        pass\n",
        (CATALOGS + "test_every_commit_has_the_catalog_compare_the_fence_and_moves_it",),
    ),
    Mutant(
        "do not look whether a commit that was refused is our own",
        "destinations/iceberg_handle.py",
        "            return self._find(staged)  # it was us",
        "            return None  # it was us",
        (CATALOGS + "test_a_commit_whose_answer_was_lost_is_found_and_not_made_twice",),
        "table_only-changes",
    ),
    Mutant(
        "take what was looked up again for whole",
        "lake/following.py",
        "        while not self._lacks_values(work, outcome):\n",
        "        while lookups > 1 or not self._lacks_values(work, outcome):\n",
        (ICEBERG + "test_values_that_somebody_took_from_the_table_before_the_second_lookup_are_not_missed",),
    ),
    Mutant(
        "let what a load holds settle its dead letters",
        "lake/settle_task.py",
        "    if task.skip is None:\n",
        "    if task.skip is None or task.before or task.written:\n",
        (LETTERS + "test_a_row_that_a_resumed_load_read_itself_is_a_dead_letter_once",),
    ),
    Mutant(
        "write dead letters of what a load holds",
        "lake/fold_task.py",
        "        told = unfit if task.skip is None else",
        "        told = unfit if task.skip is None or task.files else",
        (LETTERS + "test_a_row_that_a_resumed_load_read_itself_is_a_dead_letter_once",),
    ),
    Mutant(
        "leave the load to its lock when a round fails",
        "turns.py",
        "        self._source.cancel_queries()\n",
        "",
        (
            "tests/integration/test_beside.py::"
            "test_an_error_in_a_round_does_not_wait_for_a_load_that_waits_for_a_lock",
        ),
    ),
    Mutant(
        "do not look whether the table was rewritten between chunks",
        "sources/postgres/chunk_reading.py",
        "            if file_node(connection, self.leaf_oid) != self.chunk.filenode:\n",
        "            if file_node(connection, self.leaf_oid) < 0:\n",
        (TRAPS + "test_a_table_rewritten_between_chunks_is_loaded_again",),
        "VACUUM",
    ),
    Mutant(
        "fold a deferrable key by its last operation",
        "lake/fold.py",
        "    if not deferrable_key:\n",
        "    if True:\n",
        (CHANGE_TRAPS + "test_keys_that_move_onto_each_other_lose_no_row",),
        "DEFERRED",
    ),
    Mutant(
        "keep a row that an update takes out of the filter",
        "core/row_filter.py",
        "    found[updates & ~new_inside & maybe_before] = DELETE\n",
        "",
        (FILTERING + "test_an_upsert_table_holds_the_rows_inside",),
    ),
    Mutant(
        "take a condition that is unknown for true",
        "core/row_filter.py",
        ".fill_null(False)",
        ".fill_null(True)",
        (FILTERING + "test_an_upsert_table_holds_the_rows_inside",),
    ),
    Mutant(
        "load rows that the filter leaves out",
        "sources/postgres/chunk_reading.py",
        "    filtered = where.sql() if",
        "    filtered = '' if",
        ("tests/integration/test_filter.py::test_a_truncate_empties_the_part",),
    ),
    Mutant(
        "incremental: begin behind the last cursor",
        "sources/postgres/cursor_windows.py",
        'bounds = [(">=", window.low), ("<=", window.high)]',
        'bounds = [(">", window.low), ("<=", window.high)]',
        (INCREMENTAL + "test_a_cursor_of_any_orderable_type_is_read_on_exactly",),
        "upsert",
    ),
    Mutant(
        "incremental: forget the lookback",
        "sources/postgres/cursor_windows.py",
        'if not lookback or cursor.kind in ("text", "uuid"):',
        "if True:",
        (INCREMENTAL + "test_rows_that_commit_late_are_found_within_the_lookback_and_not_beyond",),
    ),
    Mutant(
        "incremental: read only when the cursor has advanced",
        "lake/increments.py",
        "        if not chunks and not noted.advanced and rewrite is None:\n",
        "        if not noted.advanced and rewrite is None:\n",
        (INCREMENTAL + "test_rows_that_commit_late_are_found_within_the_lookback_and_not_beyond",),
    ),
    Mutant(
        "incremental: append rows that the table holds already",
        "lake/increment_task.py",
        "        held = self._held.contain(arrays)\n",
        "        held = None\n",
        (INCREMENTAL + "test_an_append_table_gets_every_version_that_a_sync_sees_once",),
    ),
    Mutant(
        "incremental: roll back what the destination has",
        "ledger/incremental.py",
        "        if is_thread_committed(stream, thread_id):\n",
        "        if False:\n",
        (INCREMENTAL_MOVES + "test_a_crash_before_any_step_changes_nothing_in_the_end",),
    ),
    Mutant(
        "incremental: take a batch from a stale cursor",
        "destinations/moves.py",
        "    if base.marker.cursor != expected_cursor:\n",
        "    if False:\n",
        ("tests/unit/test_parquet_table.py::test_a_batch_from_a_stale_cursor_is_refused",),
    ),
    Mutant(
        "acknowledge although a lane has not said how far it is",
        "capture/acknowledgement.py",
        "            elif not self._lanes or None in self._lanes.values():\n",
        "            elif not self._lanes:\n",
        ("tests/unit/test_acknowledgement.py",),
    ),
    Mutant(
        "acknowledge half a transaction",
        "ledger/flush_tracker.py",
        "    return int(flushed.tx) if flushed.op == math.inf else int(flushed.tx) - 1\n",
        "    return int(flushed.tx)\n",
        ("tests/unit/test_flush_tracker.py",),
    ),
    Mutant(
        "keep what a savepoint rolled back",
        "sources/postgres/streamed_kernels.py",
        "            keep = at == len(rolled_back) or rolled_back[at] != number\n",
        "            keep = at >= 0\n",
        (STREAMED + "test_the_log_is_the_same_whether_transactions_were_streamed_or_not",),
    ),
    Mutant(
        "send a transaction before its commit is known",
        "capture/tail.py",
        "            whole, still_open = _cut(whole, open_tx)\n",
        "            still_open = []\n",
        ("tests/unit/test_tail.py",),
    ),
    Mutant(
        "let an old leader commit to tables that its successor has fenced",
        "destinations/moves.py",
        '    return following(base, epoch, kind="fence") if base.epoch < epoch else None\n',
        "    return None\n",
        ("tests/unit/test_parquet_table.py",),
    ),
    Mutant(
        "streams: a transaction holds the position of the one before",
        "streams/kafka/target.py",
        "            return {ALONE: (WHOLE, Mark(number, standing, ahead,",
        "            return {ALONE: (WHOLE, Mark(number, self._last or standing, ahead,",
        (STREAMS_KILLED,),
        "kafka_committed",
    ),
    Mutant(
        "streams: the position passes dead letters before they are on disk",
        "streams/commit_writer.py",
        "                    self._write_letters()\n"
        "                    self._target.commit(replace(standing, letters=self._letters.mark))\n",
        "                    self._target.commit(replace(standing, letters=self._letters.mark))\n"
        "                    self._write_letters()\n",
        (COMMIT_PUBLISHER,),
    ),
    Mutant(
        "streams: later events of a blocked key are sent",
        "streams/blocked_keys.py",
        "        if not (keys := self._keys.get(events.stream)):\n",
        "        if not (keys := self._keys.get(events.stream)) or keys:\n",
        (COMMIT_PUBLISHER,),
    ),
    Mutant(
        "streams: a call whose answer was lost is sent again without looking",
        "streams/record_call.py",
        "                return np.delete(unknown, _true_rows(self._target.is_there(lost)))\n",
        "                return unknown\n",
        (RECORD_PUBLISHER,),
    ),
    Mutant(
        "streams: what another call was answered for is looked for behind the one that was lost",
        "streams/kinesis/target.py",
        "                    outcome.lose(put.rows)\n                    return\n",
        "                    outcome.lose(np.arange(len(records.sizes)))\n                    return\n",
        (KINESIS_HALVED,),
    ),
    Mutant(
        "streams: a put is begun without a proof of the lead",
        "streams/lease.py",
        "        return proved_at >= self._counts_from and _now() - proved_at < within_s\n",
        "        return True\n",
        (KINESIS_WOKEN,),
    ),
    Mutant(
        "streams: an event that is held lets all others pass without a bound",
        "streams/record_flow.py",
        "        self._trouble.is_full(is_full)\n        return is_full\n",
        "        self._trouble.is_full(is_full)\n        return False\n",
        (RECORD_HELD,),
    ),
    Mutant(
        "streams: calls that are remembered together have the bounds of the later one",
        "streams/kinesis/bounds.py",
        "            older.bounds,\n",
        "            newer.bounds,\n",
        ("tests/unit/test_kinesis_bounds.py",),
    ),
    Mutant(
        "streams: an order that cannot be carried out does without dead letters",
        "streams/starting_point.py",
        "        return self.left(held).resync == () or self.goes_back_to(held) is not None\n",
        "        return self.left(held).resync == () or self.left(held).position is not None\n",
        ("tests/unit/test_stream_orders.py",),
    ),
    Mutant(
        "streams: what was sent before a crash is not looked for",
        "streams/record_call.py",
        "                found = _true_rows(self._target.is_there(parcel.events))\n",
        "                found = _NO_ROWS\n",
        (STREAMS_KILLED,),
        "record_sent",
    ),
    Mutant(
        "MySQL: nobody looks whether the log went on while a snapshot was taken",
        "sources/mysql/snapshots.py",
        "    if log_end(connections[0]) == place:\n",
        "    if log_end(connections[0]) != place or True:\n",
        (MYSQL_SNAPSHOTS,),
        "looking and not mariadb",
    ),
    Mutant(
        "MySQL: a snapshot and its place are asked for without the lock",
        "sources/mysql/snapshots.py",
        " as other, _locked(other, table):\n",
        ":\n",
        (MYSQL_SNAPSHOTS,),
        "lock and not looking",
    ),
    Mutant(
        "MySQL: an append table takes the log from before its load was read",
        "lake/load.py",
        '            self._records.save(load.record.seen_at(LoadPoint(position, "", result.place)))\n',
        "            pass\n",
        (
            "tests/integration/test_mysql_modes.py::test_append_tables_have_the_rows_of_one_moment_and_each_change_"
            "since_once",
        ),
        "mysql-parquet",
    ),
    Mutant(
        "MongoDB: the state says that a stream is committed before its table has it",
        "lake/following.py",
        COMMIT + REACH_COMMITTED + SAY_STREAM_COMMITTED,
        SAY_STREAM_COMMITTED + REACH_COMMITTED + COMMIT,
        ("tests/chaos/test_kill_mongodb.py::test_killed_while_following_it_ends_with_every_document_right",),
        "cdc.committed",
    ),
    Mutant(
        "MongoDB: the log is taken up a second after the snapshot",
        "capture/mongodb/snapshots.py",
        "Lsn(time + 1)",
        "Lsn(time + 2**32)",
        (
            "tests/integration/test_mongo_sync.py::test_collections_that_are_written_to_while_they_are_loaded_and_"
            "followed_equal_the_source",
        ),
    ),
    Mutant(
        "MongoDB: an update that was looked up is not marked",
        "capture/mongodb/rows.py",
        "    return np.zeros(len(chosen), np.bool_) if events.exact else is_update\n",
        "    return np.zeros(len(chosen), np.bool_) & is_update\n",
        ("tests/unit/test_mongo_capture.py::test_every_kind_of_change_has_its_row",),
    ),
    Mutant(
        "shapes: transactions beyond a snapshot's position are asked for in it, too",
        "shapes/engine/consumer.py",
        "        return (tx >= self.point.lsn) | ~self.point.shows(xid)\n",
        "        return ~self.point.shows(xid)\n",
        (
            COLLECTOR
            + "test_a_snapshot_is_asked_about_transactions_up_to_its_position_and_beyond_it_about_none",
        ),
    ),
    Mutant(
        "shapes: a snapshot is used that lacks what was handed out before",
        "shapes/engine/consumer.py",
        "        return not bool(point.shows(ids.astype(np.uint64)).all())\n",
        "        return False\n",
        (COLLECTOR + "test_a_snapshot_that_lacks_what_was_handed_out_before_is_not_used",),
    ),
    Mutant(
        "shapes: a shape that had it on disk before a crash is waited for again",
        "shapes/engine/delivery.py",
        "    return shape.storage.last_seen_txn_offset <= shape.storage.last_persisted_txn_offset\n",
        "    return False\n",
        (COLLECTOR + "test_a_shape_that_had_all_of_it_on_disk_before_a_crash_is_not_waited_for_again",),
    ),
    Mutant(
        "shapes: changes of a partition are its root's alone",
        "shapes/engine/collector.py",
        "        own = [each for each in fragment.partitions if self._recent.knows(each.stream)]\n",
        "        own: list[ChangeRows] = []\n",
        (COLLECTOR + "test_changes_of_a_partition_are_those_of_its_root_and_its_own",),
    ),
    Mutant(
        "shapes: what a restart would not give again is read before it is durable",
        "shapes/storage/shape_storage.py",
        "            if durable_first:\n",
        "            if False:\n",
        ("tests/unit/test_shape_storage.py::test_events_are_not_readable_before_they_are_durable",),
    ),
    Mutant(
        "shapes: what comes after a commit that was not written is written",
        "shapes/storage/write_loop.py",
        "                self._commits.clear()\n",
        "                pass\n",
        (
            "tests/unit/test_shape_storage.py"
            "::test_a_store_that_ends_before_a_commit_is_written_writes_none_that_came_after_it",
        ),
    ),
    Mutant(
        "shapes: who was sent events resumes within the last transaction",
        "shapes/http/sse.py",
        "    closing = events(up_to_date(end.tx + 1))\n",
        "    closing = events(up_to_date(end.tx))\n",
        (SHAPE_LIVE + "test_events_follow_the_log_and_resume_without_repeating",),
    ),
    Mutant(
        "shapes: an offset that is still to be replayed is out of bounds",
        "shapes/http/log_serving.py",
        "        if not self._api.replayed:\n",
        "        if False:\n",
        (SHAPE_LIVE + "test_until_the_log_is_replayed_an_offset_beyond_it_is_only_too_early",),
    ),
    Mutant(
        "shapes: rows that move in are told where readers of events resume",
        "shapes/subquery/layers.py",
        "        return last + 2\n",
        "        return last + 1\n",
        (
            "tests/unit/test_shape_subquery_model.py"
            "::test_a_shape_is_what_its_condition_says[negated nullable and more]",
        ),
    ),
    Mutant(
        "shapes: a row that leaves a condition is not asked for as it was",
        "shapes/routing/routed.py",
        "            both += 2 * (wanted[rows:] & images.is_old).astype(np.uint8)\n",
        "            pass\n",
        (ROUTER + "test_a_change_is_an_insert_an_update_or_a_delete_by_the_row_as_it_was_and_as_it_is",),
    ),
    Mutant(
        "shapes: a condition that cannot be evaluated is passed over",
        "shapes/routing/routed.py",
        "            self._failed.add(slot)\n",
        "            pass\n",
        (ROUTER + "test_a_condition_that_cannot_be_evaluated_fails_its_shape_and_no_other",),
    ),
    Mutant(
        "conditions: true or unknown is unknown",
        "core/where/evaluate.py",
        "        return reduce(pc.or_kleene, [self.values(operand) for operand in node.operands])\n",
        "        return reduce(pc.or_, [self.values(operand) for operand in node.operands])\n",
        ("tests/unit/test_where.py::test_logic_has_three_values",),
    ),
    Mutant(
        "conditions: what is not in a list with a null is known not to be",
        "core/where/evaluate.py",
        "        has_null = len(known) < len(node.literals)\n",
        "        has_null = False\n",
        ("tests/unit/test_where.py::test_logic_has_three_values",),
    ),
)


@dataclass(frozen=True)
class Outcome:
    name: str
    verdict: str
    seconds: float
    output: str = ""

    @property
    def fine(self) -> bool:
        return self.verdict in ("red", "green")


def main(words: Sequence[str]) -> int:
    console = Console()
    chosen = [mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)]
    chosen = [mutant for mutant in chosen if is_in_share(mutant.name)]
    with tempfile.TemporaryDirectory(prefix="penstock-mutants-") as directory:
        # Planted first, all of them: a text that has moved is said at once.
        for number, mutant in enumerate(chosen):
            mutant.plant(_copy_of_sources(Path(directory) / str(number)))
        outcomes = []
        if os.environ.get("GREEN") != "known":
            outcomes = _check_green(chosen, _copy_of_sources(Path(directory) / "green"), console)
        if all(outcome.fine for outcome in outcomes):
            outcomes += _run_all(
                [
                    (mutant.name, mutant.tests, mutant.select, Path(directory) / str(number) / "src", _RED)
                    for number, mutant in enumerate(chosen)
                ],
                console,
            )
    console.print(_table(outcomes))
    bad = [outcome for outcome in outcomes if not outcome.fine]
    for outcome in bad:
        console.print(f"\n[bold]{outcome.name}[/bold]\n{outcome.output}", markup=True, highlight=False)
    return 1 if bad else 0


def _copy_of_sources(directory: Path) -> Path:
    # copy2 keeps the times of files, so that compiled functions in the caches stay valid.
    shutil.copytree(ROOT / "src", directory / "src", ignore=shutil.ignore_patterns("*.egg-info", "*.pyc"))
    return directory / "src"


def _check_green(mutants: Sequence[Mutant], sources: Path, console: Console) -> list[Outcome]:
    """Each choice of tests once without a bug: red would mean nothing if it was red before."""
    runs = []
    for tests, select in dict.fromkeys((mutant.tests, mutant.select) for mutant in mutants):
        name = f"no bug: {', '.join(test.rpartition('::')[2] for test in tests)} {select}".rstrip()
        runs.append((name, tests, select, sources, _GREEN))
    return _run_all(runs, console)


_Run = tuple[str, Sequence[str], str, Path, int]


def _run_all(runs: Sequence[_Run], console: Console) -> list[Outcome]:
    """One process per core: most of each is waiting for its own servers to start."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = []
        for outcome in pool.map(lambda run: _run(*run), runs):
            _say(console, outcome)
            outcomes.append(outcome)
    return outcomes


def _run(name: str, tests: Sequence[str], select: str, sources: Path, wanted: int) -> Outcome:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    begun = time.monotonic()
    try:
        done = subprocess.run(
            [*command, *(["-k", select] if select else [])],
            cwd=ROOT,
            # The share of mutants says nothing about which of the slow tests they need.
            env={
                **os.environ,
                "PYTHONPATH": str(sources),
                "PENSTOCK_CHAOS": "",
                "SHARE": "",
                "PENSTOCK_TEST_WAIT_S": "30",  # many of them fail by waiting in vain
            },
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Outcome(name, "hangs", TIMEOUT_S)
    seconds = time.monotonic() - begun
    verdicts = {_GREEN: "green" if wanted == _GREEN else "SURVIVED", _RED: "red" if wanted == _RED else "RED"}
    verdict = verdicts.get(done.returncode, f"pytest ended with {done.returncode}")
    return Outcome(name, verdict, seconds, "\n".join(done.stdout.splitlines()[-40:]))


def _say(console: Console, outcome: Outcome) -> None:
    console.print(
        f"{outcome.verdict:9} {outcome.seconds:5.0f} s  {outcome.name}", highlight=False, soft_wrap=True
    )


def _table(outcomes: Sequence[Outcome]) -> Table:
    table = Table("bug", "tests are", "seconds")
    for outcome in outcomes:
        table.add_row(outcome.name, outcome.verdict, f"{outcome.seconds:.0f}")
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

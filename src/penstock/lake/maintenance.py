"""Keeps Iceberg tables in order: merges files, applies deletes, lets old snapshots and orphans go.

It gives way to everybody, our own rounds too, beside which it runs. Its commits are Iceberg's own, which are
refused if another writer changed the files they replace; then the work is dropped with a note, and is due
again. A round whose files were replaced under it is refused as well, and looks its rows up again: so each row
is there once, whoever was first. None of these commits carries a record, so the table holds what it held
before (`iceberg_history`), and none touches a branch but `main`. What goes is old (`orphan_age` is a day at
least): a round's files that are not committed yet are younger. And nothing goes by somebody whose leadership
ended meanwhile: each step that removes something begins only if no newer leader has come to the table
since the turn began (it may have been asleep) and whoever asked for it is still there (`goes_on`).

In order, and why a crash between any two steps leaves a right table with work that is due again:

1. data files, in passes of `PASS_BYTES` with a commit each, by the table's own sort order if it has one;
2. files of deletes: merged, and without those whose data files are gone;
3. manifests;
4. snapshots: what the kept ones hold is written down first (`iceberg_expiry`), then the others expire and
   the files that only they have are removed. Killed in between, files are left that belong to nobody;
5. orphans: such files, those of work that was cut short, and of dead letters that no kept commit names, once
   they are older than `orphan_age`.

Rows go from file to file inside Spark. A task holds one row group of Parquet, about `TASK_MEMORY_BYTES` with
what it reads; a group of files has no more tasks than the memory of the JVM allows, and one group is written
at a time. The key indexes of new files are made at the next lookup, once: 0.15 CPU-seconds a million rows.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import IllegalArgumentException, PySparkException
from pyspark.sql import SparkSession

from penstock import failpoints
from penstock.core.errors import DestinationError, SparkError
from penstock.core.report import CompactedStream, ProgressListener, TableHealth
from penstock.core.stream import StreamId
from penstock.destinations.iceberg import IcebergDestination, IcebergTable
from penstock.destinations.iceberg_expiry import Most, prepare_expiry
from penstock.destinations.iceberg_health import (
    SPARE_MIN,
    Limits,
    deletes_are_due,
    due,
    files_are_due,
    read_health,
)
from penstock.destinations.iceberg_java import (
    ConflictingFilesError,
    StaleMetadataError,
    UnknownOutcomeError,
    iceberg_errors,
)
from penstock.destinations.iceberg_record import EPOCH
from penstock.destinations.iceberg_staging import NEXT_BRANCH
from penstock.lake.session import is_on_one_machine

PASS_BYTES = 4 * 1024**3
TASK_MEMORY_BYTES = 512 * 1024**2
#: Files of a group, and tasks: of fewer, groups of large files would not be enough to be worth it.
TASKS_MIN, TASKS_MAX = 2, 16
_FILES_PER_PASS = 100, 10_000
#: Who asks for it waits for it: a rewrite that loses is made again so many times, each with smaller passes.
TRIES_BY_HAND = 4
_MILLISECONDS = 1000
_VECTORS_FROM = 3  # format version: a data file has one vector of deletes at most, and takes it with it

#: What Iceberg throws if somebody else's commit came first.
_CAME_FIRST = frozenset({"CommitFailedException", "ValidationException", "BadRequestException"})

#: Held while nobody else of ours is to write; `GaveWayError` if that cannot be had.
Alone = Callable[[], AbstractContextManager[object]]


class GaveWayError(Exception):
    """Another writer came first; nothing was changed."""


class Maintenance:
    def __init__(
        self,
        destination: IcebergDestination,
        limits: Limits,
        spark: Callable[[], SparkSession],
        listener: ProgressListener,
    ) -> None:
        self._destination = destination
        self._limits = limits
        self._spark = spark
        self._listener = listener
        self.gave_way = False  #: whether the last rewrite was dropped, since another writer was first
        self.has_swept = False  #: whether the last turn removed orphans to the end

    def look_at(
        self, stream: StreamId, *, by_hand: bool, orphans_s: float | None = None
    ) -> CompactedStream | None:
        """How a table is and what is due to it; None if there is no table to see."""
        table = self._destination.table(stream)
        health = read_health(table, self._limits.target_file_bytes, time.time())
        if health is None:
            return None
        work = due(health, self._limits, by_hand=by_hand, orphans_s=orphans_s)
        return CompactedStream(str(stream), work, health)

    def compact(
        self,
        stream: StreamId,
        *,
        by_hand: bool,
        orphans_s: float | None = None,
        pass_bytes: int = PASS_BYTES,
        alone: Alone = nullcontext,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> CompactedStream | None:
        """Do what is due. By schedule one pass over the data files at most, and one try: others are waiting.

        `alone` keeps others from writing while a pass over the data files is made, which has a limit, and
        during no other step: none has one, or needs it, since rounds add deletes and manifests, and replace
        few. `goes_on`: whether another step may begin.
        """
        self.gave_way = self.has_swept = False
        found = self.look_at(stream, by_hand=by_hand, orphans_s=orphans_s)
        if found is None or not found.due:
            return found
        turn = _Turn(self._destination.table(stream), self._limits, self._spark(), self._listener)
        expired = orphans = 0
        self.gave_way = True
        for lost in range(TRIES_BY_HAND if by_hand else 1):
            with self._may_give_way(stream):
                turn.rewrite(found.due, pass_bytes >> 2 * lost, alone, in_one_pass=not by_hand)
                self.gave_way = False
            if not (self.gave_way and goes_on()):
                break
        os.sync()  # what the table refers to now is on disk before what it referred to goes
        if goes_on() and "snapshots" in found.due:
            with self._may_give_way(stream):
                expired = turn.expire()
        if goes_on() and "orphans" in found.due:
            with self._may_give_way(stream):
                orphans = turn.remove_orphans()
                self.has_swept = True
        after = read_health(turn.table, self._limits.target_file_bytes, time.time())
        return CompactedStream(str(stream), found.due, found.before, after, expired, orphans)

    @contextmanager
    def _may_give_way(self, stream: StreamId) -> Iterator[None]:
        """Each step by itself: those that others keep from being done do not keep from the rest."""
        try:
            yield
        except GaveWayError:
            self._listener.note(f"{stream}: another writer came between; what is left to do stays due.")


class _Turn:
    """The steps on one table."""

    def __init__(
        self, table: IcebergTable, limits: Limits, spark: SparkSession, listener: ProgressListener
    ) -> None:
        self.table = table
        self._limits = limits
        self._listener = listener
        self._leader = self._newest_leader()
        jvm = table.catalog.java.jvm
        jvm.org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)  # of this thread
        self._actions = jvm.org.apache.iceberg.spark.actions.SparkActions.get(spark._jsparkSession)
        memory = int(jvm.java.lang.Runtime.getRuntime().maxMemory())
        here = is_on_one_machine(spark.sparkContext.master or "")
        self._tasks = min(max(memory // TASK_MEMORY_BYTES, TASKS_MIN), TASKS_MAX) if here else TASKS_MAX

    def rewrite(self, work: Sequence[str], pass_bytes: int, alone: Alone, *, in_one_pass: bool) -> None:
        health = self._health()
        metadata = self.table.handle.metadata()
        if metadata is None or metadata.head(NEXT_BRANCH) is not None:
            return  # it is about to be replaced
        if work and not self._spark_reads(metadata.schema_json):
            self._note("Spark cannot read its columns of type time, so its files stay as they are")
            return
        has_vectors = int(metadata.java.formatVersion()) >= _VECTORS_FROM
        per_pass = _files_per_pass(health, pass_bytes)
        passes = 1 if in_one_pass else 1 + health.data_files // per_pass
        rewritten: int | None = None
        while passes and "data files" in work and files_are_due(health, self._limits):
            self._note(f"merging {health.data_files:,} data files")
            with alone():
                replaced = self._rewrite_data_files(per_pass)
            failpoints.reach("compact.rewritten")
            rewritten = (rewritten or 0) + replaced
            passes, health = passes - 1 if replaced else 0, self._health()
        if deletes_are_due(health, self._limits, rewritten):
            self._note(f"merging {health.delete_files:,} files of deletes")
            with self._gives_way("merging files of deletes"):
                self._merge_deletes(has_vectors=has_vectors)
            failpoints.reach("compact.deletes_merged")
        if "manifests" in work:
            with self._gives_way("merging manifests"):
                self._actions.rewriteManifests(self._opened()).execute()
            failpoints.reach("compact.manifests_merged")

    def expire(self) -> int:
        now_ms = int(time.time() * _MILLISECONDS)
        older_than_ms = now_ms - int(self._limits.snapshot_age_max_s * _MILLISECONDS)
        unread_ms = now_ms - int(self._limits.readers_grace_s * _MILLISECONDS)
        most = Most(self._limits.snapshots_max, unread_ms)
        self._give_way_to_a_leader()
        # Refused as an argument: a snapshot that somebody gave a name meanwhile.
        with self._gives_way("letting snapshots expire", IllegalArgumentException):
            expired = prepare_expiry(self.table, older_than_ms, self._limits.snapshots_min, now_ms, most)
            failpoints.reach("compact.written_down")
            self._give_way_to_a_leader()
            if expired:
                self._note(f"letting {len(expired):,} snapshots expire")
                action = self._actions.expireSnapshots(self._opened()).expireOlderThan(0)  # only these:
                for snapshot_id in expired:
                    action.expireSnapshotId(snapshot_id)
                self._with(action, {"stream-results": "true"}).execute()
        failpoints.reach("compact.expired")
        return len(expired)

    def remove_orphans(self) -> int:
        before = time.time() - self._limits.orphan_age_s
        self._give_way_to_a_leader()
        with self._gives_way("removing orphans"):
            action = self._actions.deleteOrphanFiles(self._opened()).olderThan(int(before * _MILLISECONDS))
            removed = int(self._with(action, {"stream-results": "true"}).execute().orphanFilesCount())
        self._give_way_to_a_leader()
        removed += self.table.remove_orphan_letters(before)
        failpoints.reach("compact.orphans_removed")
        return removed

    def _newest_leader(self) -> str | None:
        metadata = self.table.handle.metadata()
        return None if metadata is None else metadata.property(EPOCH)

    def _give_way_to_a_leader(self) -> None:
        """What goes is for the newest leader to say."""
        if self._newest_leader() != self._leader:
            raise GaveWayError

    @staticmethod
    def _spark_reads(schema_json: str) -> bool:
        return not any(field["type"] == "time" for field in json.loads(schema_json)["fields"])

    def _rewrite_data_files(self, files_max: int) -> int:
        """How many files were replaced, by one commit."""
        options = {
            "target-file-size-bytes": str(self._limits.target_file_bytes),
            "max-file-group-size-bytes": str(self._limits.target_file_bytes * self._tasks),
            "max-files-to-rewrite": str(files_max),
            "min-input-files": str(SPARE_MIN),
            "delete-ratio-threshold": str(self._limits.delete_ratio),
            **self._one_at_a_time(),
        }
        with self._gives_way("merging data files"):
            table = self._opened()
            action = self._actions.rewriteDataFiles(table)
            # Both write by the table's current partitions.
            action = action.sort() if table.sortOrder().isSorted() else action.binPack()
            return int(self._with(action, options).execute().rewrittenDataFilesCount())

    def _merge_deletes(self, *, has_vectors: bool) -> None:
        if has_vectors:  # nothing to merge, but others may have left some behind that concern no file
            self._actions.removeDanglingDeleteFiles(self._opened()).execute()
            return
        action = self._actions.rewritePositionDeletes(self._opened())
        self._with(action, {"rewrite-all": "true", **self._one_at_a_time()}).execute()

    def _one_at_a_time(self) -> dict[str, str]:
        return {"max-concurrent-file-group-rewrites": "1"}

    def _with(self, action: Any, options: dict[str, str]) -> Any:
        for name, value in options.items():
            action.option(name, value)
        return action

    def _opened(self) -> Any:
        """Iceberg's own object as of now."""
        table = self.table.handle.table
        table.refresh()
        return table

    def _health(self) -> TableHealth:
        health = read_health(self.table, self._limits.target_file_bytes, time.time())
        if health is None:  # dropped meanwhile, to be loaded anew
            raise GaveWayError
        return health

    def _note(self, doing: str) -> None:
        self._listener.note(f"{self.table.stream}: {doing}.")

    @contextmanager
    def _gives_way(self, doing: str, *also: type[Exception]) -> Iterator[None]:
        """Errors as ours; `GaveWayError` if it was somebody else's commit, or one of `also`."""
        try:
            with iceberg_errors(doing, self.table.stream):
                yield
        except (StaleMetadataError, ConflictingFilesError, UnknownOutcomeError) as error:
            raise GaveWayError from error
        except DestinationError as error:
            cause = error.__cause__
            if isinstance(cause, also) or (isinstance(cause, Py4JJavaError) and _came_first(cause)):
                raise GaveWayError from error
            if not isinstance(cause, PySparkException):
                raise
            raise SparkError(
                f"Spark failed while {doing}.",
                stream=str(self.table.stream),
                detail=f"{type(cause).__name__}; the Spark log in the state directory may say more.",
                remedy="Run the same command again; what was committed is not done again.",
            ) from cause


def _files_per_pass(health: TableHealth, pass_bytes: int) -> int:
    size = max(health.file_bytes // max(health.data_files, 1), 1)
    least, most = _FILES_PER_PASS
    if pass_bytes < PASS_BYTES:
        least = SPARE_MIN  # fewer are never merged
    return min(max(pass_bytes // size, least), most)


def _came_first(error: Py4JJavaError) -> bool:
    """Whether a Java exception, or any that caused it, says that somebody else committed first."""
    cause = error.java_exception
    while cause is not None:
        if str(cause.getClass().getSimpleName()) in _CAME_FIRST:
            return True
        cause = cause.getCause()
    return False

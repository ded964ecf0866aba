"""A table as it is at a position of the log: pinned where it stands, and taken on by what a round would do.

The pin is the table's newest record: its files never change, and whoever commits later makes another record.
What the log has between the pin and the position is applied by the functions of a round, and not committed:
the files it wrote are the view's own, and are removed with it. A crash leaves files that no record names,
which the table's sweep and Iceberg's removal of orphans know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from penstock.core.errors import LogGoneError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.destinations.base import DestinationTable
from penstock.destinations.records import DataFile, HeldDeletes, Marker, TableRecord
from penstock.lake.apply import Outcome, StreamWork, apply
from penstock.lake.delete_stage import delete_paths
from penstock.lake.lane_state import LaneStream
from penstock.lake.light import Stages
from penstock.lake.round_plan import plan_round
from penstock.lake.target import Target
from penstock.lake.work import MustReload
from penstock.ledger.load_record import LoadRecord, LoadRecords
from penstock.ledger.state import StateDocument, StreamState
from penstock.log.reader import ChangeLog
from penstock.verify.sides import TableFile, UnreadableFileError

PINS_MAX = 5  # of a table that loads replace meanwhile
LOG_BYTES_MAX = 1 << 30  # of changes that wait; a table that is further behind is to be synced first


class NotComparableError(Exception):
    """A stream has no table that could be taken to the position; the reason is for people."""


class UnreadableTablesError(Exception):
    """Tables with a file that cannot be read, and what to say of each."""

    def __init__(self, reasons: Mapping[StreamId, str]) -> None:
        super().__init__("; ".join(reasons.values()))
        self.reasons = reasons


@dataclass(frozen=True, slots=True)
class Pin:
    """A table at `position`, up to which the log is in it."""

    table: DestinationTable
    record: TableRecord
    position: Lsn
    load: LoadRecord | None

    @classmethod
    def of(
        cls,
        stream: StreamId,
        table: DestinationTable,
        document: Callable[[], StateDocument],
        loads: LoadRecords,
        at: Lsn | None = None,
    ) -> Pin:
        """`at`: the newest version of the table that is not beyond it; None: the newest of all.

        `document` is read after the record: a state that names the record's commit is not older. One of
        another generation tells nothing of this table, which a load has replaced meanwhile: look again.
        """
        for _ in range(PINS_MAX):
            record = table.record() if at is None else _version_at(table, at)
            if record is None or record.marker is None:
                raise NotComparableError("it is not loaded yet; run `penstock sync` first")
            if record.readable_from is not None:
                raise NotComparableError(
                    "its load is not one state of the source yet; run `penstock sync` first"
                )
            if record.marker.to is None:
                raise NotComparableError("its table follows no log, so it is at no position")
            # Once: a later one may know of a commit that this record does not have.
            now = document()
            state = now.stream(stream)
            if state is None:
                return cls(table, record, record.marker.to, None)
            if state.reload is not None or state.is_loading:
                raise NotComparableError("it is being loaded again; compare it when that is done")
            if state.generation in (None, record.marker.generation):
                load = loads.load(stream) if state.has_completed_backfill else None
                if load is not None and load.generation != record.marker.generation:
                    load = None  # one that has begun since, or that came to nothing
                return cls(table, record, _level(state, record.marker, now), load)
        raise NotComparableError("its table is of another load than the state; run `penstock sync` first")


def _level(state: StreamState, marker: Marker, now: StateDocument) -> Lsn:
    """Up to where the log is in a table: it may have had nothing since the commit that left the marker."""
    assert marker.to is not None
    if (state.generation, state.committed_to) != (marker.generation, marker.to):
        return marker.to
    shared = now.lsn if state.stream in now.global_streams else state.cdc_from
    return max(marker.to, shared or marker.to)


def _version_at(table: DestinationTable, at: Lsn) -> TableRecord | None:
    """By its commit records, or its snapshots; of Parquet tables, while the files are not swept."""
    newest = table.record()
    if newest is None or newest.marker is None:
        return newest
    for record in table.history():
        marker = record.marker
        if marker is None or marker.to is None or marker.generation != newest.marker.generation:
            break
        if marker.to <= at and record.readable_from is None:
            files = map(table.path, table.files(record))
            if all(path.exists() for path in (*files, *_letters_of(table, record))):
                return record
            break
    raise NotComparableError(f"no version of its table at or before {at} is kept")


@dataclass(frozen=True, slots=True)
class View:
    pin: Pin
    target: Target
    files: tuple[TableFile, ...]
    letters: tuple[Path, ...]  # files of dead letters, and of those that are open or settled
    at: Lsn | None = None  # the position, where the source's rows are known too


def plan_view(configured: LaneStream, pin: Pin, log: ChangeLog, position: Lsn) -> StreamWork | None:
    """What is to be applied to take the table to the position; None: the log has nothing for it.

    `LogGoneError` if the log does not reach back to the table any more.
    """
    if pin.position < position and log.start() is None:
        raise NotComparableError("there is no change log; run `penstock sync` first")
    changes = log.files(configured.info.stream, pin.position, position)
    if not changes:
        return None
    if changes.bytes > LOG_BYTES_MAX:
        raise NotComparableError(
            "more of the log waits for it than is applied here; run `penstock sync` first"
        )
    work = plan_round(configured, pin.table, pin.record, log, pin.load, pin.position, position)
    if isinstance(work, MustReload):
        raise NotComparableError(f"it is to be loaded again: {work.reason}")
    return work


@contextmanager
def applied(
    spark: Callable[[], SparkSession], works: Mapping[StreamId, StreamWork | None]
) -> Iterator[Mapping[StreamId, Outcome]]:
    """What a round would make of these; the files that were written for it are gone after the block.

    `LogGoneError` if the log lost files of theirs meanwhile: nobody holds it back for us.
    """
    outcomes: dict[StreamId, Outcome] = {}
    try:
        outcomes = _apply(spark, [work for work in works.values() if work is not None])
        yield outcomes
    finally:
        for stream, outcome in outcomes.items():
            work = works[stream]
            assert work is not None
            for path in _written(work.table, outcome):
                with suppress(FileNotFoundError):
                    path.unlink()


def _apply(spark: Callable[[], SparkSession], works: Sequence[StreamWork]) -> dict[StreamId, Outcome]:
    try:
        return apply(Stages(spark), works)
    except Exception as error:  # of a task that read a file, or of Spark's about it
        for work in works:
            if not all(file.path.exists() for file in work.changes):
                raise LogGoneError(
                    "Changes were taken from the change log while they were read.",
                    stream=str(work.stream),
                    remedy="Try again; `log.retention` says how long changes stay.",
                ) from error
        if unreadable := {work.stream: said for work in works if (said := _unreadable(work))}:
            raise UnreadableTablesError(unreadable) from error
        raise


def _unreadable(work: StreamWork) -> str:
    """What to say of the first file of the table that cannot be read; empty: there is none.

    Asked when something went wrong: every file is read to its end, a batch at a time.
    """
    for path in map(work.table.path, work.files):
        try:
            with pq.ParquetFile(path) as parquet:
                for _ in parquet.iter_batches():
                    pass
        except (OSError, pa.ArrowException):
            return str(UnreadableFileError(path, work.stream))
    return ""


def pinned(configured: LaneStream, pin: Pin) -> View:
    """The table where it stands."""
    target = configured.target(pin.record.schema).with_ids_of(pin.record.columns, pin.record.layout)
    return View(pin, target, _held(pin, pin.table.files(pin.record)), _letters(pin))


def as_written(pin: Pin, target: Target) -> View:
    """The table where it stands, by columns that are known to be its own; no row of it is excused."""
    return View(pin, target, _held(pin, pin.table.files(pin.record)), ())


def taken_on(pin: Pin, work: StreamWork, outcome: Outcome) -> View:
    """The table with what was applied."""
    directory = pin.table.dead_letters_directory
    written = [directory / file.name for file in (*outcome.dead_letters, *outcome.settled)]
    return View(pin, work.target, _held(pin, _files_after(work, outcome)), (*_letters(pin), *written))


def only_added(pin: Pin, work: StreamWork, outcome: Outcome) -> View:
    """What was applied, without the table."""
    return View(pin, work.target, _held(pin, outcome.added), ())


def _held(pin: Pin, files: Sequence[DataFile]) -> tuple[TableFile, ...]:
    shown = _shown(pin)
    return tuple(_table_file(pin.table, file, shown) for file in files if file.rows)


def _shown(pin: Pin) -> dict[str, Path]:
    """Where readers find each file of a table that shows versions of itself, as directories of links."""
    if pin.table.deletes_rows or pin.record.directory is None:
        return {}
    version = pin.table.files_directory.parent / pin.record.directory
    return {path.name.partition("-")[2]: path for path in version.glob("*.parquet")}


def _letters(pin: Pin) -> tuple[Path, ...]:
    return _letters_of(pin.table, pin.record)


def _letters_of(table: DestinationTable, record: TableRecord) -> tuple[Path, ...]:
    return tuple(table.dead_letters_directory / name for name in record.dead_letters.names)


def _files_after(work: StreamWork, outcome: Outcome) -> tuple[DataFile, ...]:
    files = {file.name: file for file in work.files if file.name not in outcome.removed}
    for each in outcome.deletes:
        location = work.table.file_location(each.file.name)
        new = HeldDeletes(location, each.file.rows, each.file.bytes, each.vector)
        held = files[each.of]
        left = () if each.vector else tuple(old for old in held.deletes if old not in each.replaces)
        files[each.of] = replace(held, deletes=(*left, new))
    return (*files.values(), *outcome.added)


def _table_file(table: DestinationTable, file: DataFile, shown: Mapping[str, Path]) -> TableFile:
    return TableFile(
        path=shown.get(file.name) or table.path(file),
        rows=file.rows,
        bytes=file.bytes,
        location=table.file_location(file.name),
        deletes=file.deletes,
        delete_paths=delete_paths(table, file),
    )


def _written(table: DestinationTable, outcome: Outcome) -> Sequence[Path]:
    letters = [table.dead_letters_directory / file.name for file in (*outcome.dead_letters, *outcome.settled)]
    deletes = [table.path(each.file) for each in outcome.deletes]
    return [*(table.path(file) for file in outcome.added), *deletes, *letters]


def has_columns(configured: LaneStream, pin: Pin, read_schema: Callable[[Path], pa.Schema]) -> bool:
    """Whether the table has the columns that the stream's settings ask for."""
    record = pin.record
    if not configured.selection.is_of(record.schema):
        return False
    written = record.columns
    if written is None:
        files = pin.table.files(record)
        written = _schema_of(pin.table.path(files[0]), record.schema.stream, read_schema) if files else None
    wanted = configured.target(record.schema).arrow_schema()
    return written is None or (written.names == wanted.names and written.types == wanted.types)


def _schema_of(path: Path, stream: StreamId, read_schema: Callable[[Path], pa.Schema]) -> pa.Schema:
    try:
        return read_schema(path)
    except (OSError, pa.ArrowException) as error:
        raise NotComparableError(str(UnreadableFileError(path, stream))) from error

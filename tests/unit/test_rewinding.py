"""The log applied to a table once more: what becomes of a wish that cannot be met, and how much of the log a
task is given. Table and state are real; what applying makes: `test_fold`, `integration/test_rewind`."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from penstock.core.errors import (
    CommitConflictError,
    DestinationAwayError,
    DestinationError,
    PenstockError,
    SparkError,
    StaleLookupError,
    StaleTermError,
    StorageError,
)
from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.destinations.parquet import ParquetDestination, ParquetTable
from penstock.destinations.parquet_files import DataFileWriter, new_file_name
from penstock.destinations.records import DataFile, Marker
from penstock.lake import apply as applying
from penstock.lake import rewinding as lake_rewinding
from penstock.lake.apply import BYTES_PER_BUCKET_MAX, EXPANSION, ROUND_BYTES_MAX, Outcome, StreamWork
from penstock.lake.backfill import Backfill
from penstock.lake.buckets import IndivisibleError
from penstock.lake.fold_task import FoldResult, FoldTask, Staged
from penstock.lake.following import Following
from penstock.lake.lane_state import LaneSettings, LaneState, LaneStream, StreamTotals
from penstock.lake.light import Stages
from penstock.lake.places import cluster_mark
from penstock.lake.rewinding import LOOKUPS_MAX, Rewinds
from penstock.lake.target import Target
from penstock.ledger import rewinding, two_phase
from penstock.ledger.dialect import SourceName
from penstock.ledger.ledger import Ledger
from penstock.ledger.load_record import LoadRecords
from penstock.ledger.state import Chunk, StateDocument, StreamState, SyncMode
from penstock.ledger.store import StateStore
from penstock.log.manifest import SCHEMA_DIRECTORY, FileEntry, Manifest, TableEntry, manifest_path
from penstock.log.reader import ChangeLog, LogFile
from penstock.sources.tables import SourceTable

ITEMS = StreamId("public", "items")
COLUMNS = (
    SourceColumn("id", 20, -1, "int8", "bigint", 1),
    SourceColumn("v", 25, -1, "text", "text", 2),
)
SCHEMA = TableSchema(ITEMS, COLUMNS, ("id",))
ARROW = pa.schema([("id", pa.int64()), ("v", pa.string())])
EPOCH = Lsn(1)
GIB = 1024 * 1024 * 1024


@dataclass
class Listener:
    notes: list[str] = field(default_factory=list)

    def note(self, message: str) -> None:
        self.notes.append(message)

    def stream_started(self, stream: str, phase: str, rows_estimated: int | None) -> None: ...

    def progressed(self, stream: str, phase: str, rows_total: int, bytes_total: int) -> None: ...

    def stream_finished(self, stream: str, phase: str, rows: int) -> None: ...


class Lane:
    """A stream whose table is at 400 and was loaded at 100; the log after 200 was asked for."""

    def __init__(self, directory: Path, mode: SyncMode = "cdc", source: SourceName = "postgres") -> None:
        self.listener = Listener()
        place_of = cluster_mark if source == "mongodb" else None
        ledger = Ledger(StateStore(directory / "state"), source, place_of)
        destination = ParquetDestination(directory / "lake")
        self.table = destination.table(ITEMS)
        info = SourceTable(stream=ITEMS, oid=1, kind="table", schema=SCHEMA, leaves=(), primary_key=("id",))
        self.state = LaneState(
            settings=LaneSettings(
                cast(Any, None), cast(Any, None), EPOCH, "key", 1, 1, origin="o", timeline=1
            ),
            streams={ITEMS: LaneStream(info, mode, "upsert", {})},
            ledger=ledger,
            records=LoadRecords(directory / "load"),
            log=ChangeLog(directory / "log"),
            destination=destination,
            spark=cast(Any, None),
            listener=self.listener,
            totals={ITEMS: StreamTotals()},
        )
        _write_log(directory / "log")
        _write_table(self.table)
        ledger.write(rewinding.asked(_followed(mode, source), ITEMS, Lsn(200)))
        self.rewinds = Rewinds(
            self.state,
            Stages(cast(Any, None)),
            lambda _, generation, start, to: _marker(generation, start, to),
        )

    @property
    def own(self) -> StreamState:
        state = self.state.ledger.document.stream(ITEMS)
        assert state is not None
        return state


def _marker(generation: str, start: int, to: int) -> Marker:
    return Marker(generation, EPOCH, Lsn(start), Lsn(to), (f"{generation}-{start}",))


def _followed(mode: SyncMode, source: SourceName) -> StateDocument:
    document = two_phase.plan_load(
        StateDocument.new("p", source),
        ITEMS,
        sync_mode=mode,
        load_id="load",
        generation="first",
        chunks=[Chunk(None, None)],
    )
    document = two_phase.join_global(two_phase.load_done(document, ITEMS, Lsn(100)), ITEMS)
    if not document.dialect.shares_position:
        return two_phase.finish_stream_round(two_phase.prepare_stream_round(document, ITEMS, Lsn(400)), ITEMS)
    document = two_phase.prepare_round(document, Lsn(400), [ITEMS])
    return two_phase.finish_round(two_phase.stream_committed(document, ITEMS, Lsn(400)))


def _write_log(directory: Path) -> None:
    (directory / SCHEMA_DIRECTORY).mkdir(parents=True)
    (directory / SCHEMA_DIRECTORY / f"{SCHEMA.id}.json").write_text(json.dumps(SCHEMA.to_json()))
    for number in (1, 2, 3):
        start = 100 * number
        file = FileEntry("f", SCHEMA.id, str(ITEMS), 3, 1000, {"u": 3}, start, start + 50)
        manifest = Manifest(
            number, "1", 1, Lsn(1), Lsn(start), Lsn(start + 100), "", 2, 0, 0, (TableEntry(ITEMS, (file,)),),
            cast(Place, None),
        )  # fmt: skip
        manifest_path(directory, number).write_text(json.dumps(manifest.to_json()))


def _write_table(table: ParquetTable) -> None:
    with DataFileWriter(table.files_directory / new_file_name(), ARROW, "id") as writer:
        writer.write_batch(pa.record_batch({"id": [1], "v": ["one"]}, schema=ARROW))
        file = writer.close()
    table.begin_load("load", EPOCH, SCHEMA, "upsert")
    table.commit_chunks("load", EPOCH, ["chunk"], [file])
    table.swap("load", EPOCH, "first", Lsn(100))
    table.commit_changes(Lsn(100), _marker("first", 100, 400), SCHEMA, added=[], removed=[])


@pytest.fixture
def lane(tmp_path: Path) -> Lane:
    return Lane(tmp_path)


def apply_as(monkeypatch: pytest.MonkeyPatch, made: Exception | Outcome) -> None:
    def apply(_stages: Stages, works: Sequence[StreamWork]) -> dict[StreamId, Outcome]:
        if isinstance(made, Exception):
            raise made
        return {work.stream: made for work in works}

    monkeypatch.setattr(lake_rewinding, "apply", apply)


# What becomes of a wish


def test_what_is_applied_again_is_committed_once(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    apply_as(monkeypatch, Outcome())
    lane.rewinds.carry_out()
    record = lane.table.record()
    assert record is not None
    assert record.marker is not None
    assert (record.marker.start, record.marker.to) == (Lsn(200), Lsn(400))
    assert (lane.own.generation, lane.own.rewind) == (record.marker.generation, None)
    lane.rewinds.carry_out()
    assert lane.table.record() == record


FAILURES = [
    (FileNotFoundError(errno.ENOENT, "a row's value"), "applying it failed unexpectedly (FileNotFoundError)"),
    (pa.ArrowInvalid("a row's value"), "applying it failed unexpectedly (ArrowInvalid)"),
    (
        SparkError("The Spark job to fold changes failed."),
        "again: the Spark job to fold changes failed. Its table",
    ),
    (IndivisibleError(), "can only be taken whole"),
    (
        DestinationError("Iceberg failed while reading the table.", detail="ValidationException; see there."),
        "again: Iceberg failed while reading the table (ValidationException; see there). Its table",
    ),
]


@pytest.mark.parametrize(("error", "words"), FAILURES)
def test_what_fails_at_the_table_itself_is_given_up_with_a_note_and_the_table_stays(
    lane: Lane, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    apply_as(monkeypatch, error)
    before = lane.table.record()
    lane.rewinds.carry_out()
    [note] = lane.listener.notes
    assert words in note
    assert "`penstock resync public.items` loads it anew" in note
    assert "a row's value" not in note
    assert (lane.own.rewind, lane.own.reload, lane.table.record()) == (None, None, before)


OTHERS = [
    StorageError("The disk is full."),
    StaleTermError("A later leader has written."),
    DestinationAwayError("Iceberg failed while reading the table."),
    OSError(errno.ENOSPC, "No space left on device"),
]


@pytest.mark.parametrize("error", OTHERS)
def test_what_is_no_matter_of_the_table_is_no_reason_to_give_it_up(
    lane: Lane, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    apply_as(monkeypatch, error)
    with pytest.raises(type(error)):
        lane.rewinds.carry_out()
    assert lane.own.rewind is not None


def test_a_run_that_is_to_end_gives_nothing_up(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = iter((False, True))
    lane.state.leaves_off = lambda: next(asked)
    apply_as(monkeypatch, SparkError("The Spark job failed."))
    with pytest.raises(SparkError):
        lane.rewinds.carry_out()
    assert lane.own.rewind is not None


def commit_as(monkeypatch: pytest.MonkeyPatch, error: PenstockError) -> list[int]:
    tried: list[int] = []

    def commit_changes(_table: ParquetTable, **_: Any) -> None:
        tried.append(1)
        raise error

    monkeypatch.setattr(ParquetTable, "commit_changes", commit_changes)
    return tried


def test_files_that_others_change_as_often_as_we_look_end_it(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply_as(monkeypatch, Outcome())
    tried = commit_as(monkeypatch, StaleLookupError("Another writer changed the table's files."))
    lane.rewinds.carry_out()
    assert (len(tried), lane.own.rewind) == (LOOKUPS_MAX, None)
    assert "others changed the table's files meanwhile" in lane.listener.notes[0]


@pytest.mark.parametrize(
    "error",
    [CommitConflictError("A later leader has the table."), DestinationAwayError("The catalog is away.")],
)
def test_a_commit_that_may_be_made_later_is_still_to_be_done(
    lane: Lane, monkeypatch: pytest.MonkeyPatch, error: PenstockError
) -> None:
    apply_as(monkeypatch, Outcome())
    with monkeypatch.context() as away:
        tried = commit_as(away, error)
        with pytest.raises(type(error)):
            lane.rewinds.carry_out()
    assert (len(tried), lane.own.rewind is not None) == (1, True)
    lane.rewinds.carry_out()
    assert lane.own.rewind is None
    assert "is applied to its table once more" in lane.listener.notes[-1]


def test_a_table_that_refuses_the_commit_ends_it_and_says_why(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the lane would begin anew without end, and all its streams with it."""
    apply_as(monkeypatch, Outcome())
    before = lane.table.record()
    tried = commit_as(monkeypatch, DestinationError("The catalog refused a commit.", detail="By its rules."))
    lane.rewinds.carry_out()
    assert (len(tried), lane.own.rewind, lane.table.record()) == (1, None, before)
    [note] = lane.listener.notes
    assert "is not applied again: the catalog refused a commit (By its rules). Its table stays" in note


def test_a_commit_that_was_made_before_it_failed_counts(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    apply_as(monkeypatch, Outcome())
    commit_changes = ParquetTable.commit_changes

    def commit_and_fail(table: ParquetTable, *given: Any, **named: Any) -> None:
        commit_changes(table, *given, **named)
        raise DestinationError("The table's files cannot be shown.")

    monkeypatch.setattr(ParquetTable, "commit_changes", commit_and_fail)
    lane.rewinds.carry_out()
    record = lane.table.record()
    assert record is not None
    assert record.marker is not None
    assert (lane.own.generation, lane.own.rewind) == (record.marker.generation, None)


def test_rounds_do_not_wait_for_a_rewind(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    following = Following(lane.state, cast(Backfill, None))
    done: list[str] = []
    monkeypatch.setattr(Following, "_follow_together", lambda *_: done.append("together"))
    monkeypatch.setattr(Following, "_bring_level", lambda *_: done.append("level"))
    monkeypatch.setattr(Rewinds, "carry_out", lambda _: done.append("rewinds"))
    following.follow(Lsn(500))
    assert done == ["together", "level", "rewinds"]


# Values that nobody has


def test_killed_after_any_write_a_table_that_lacks_values_is_still_to_be_loaded(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply_as(monkeypatch, Outcome(unresolved=1))
    states: list[StreamState] = []
    write: Callable[[Ledger, StateDocument], None] = Ledger.write

    def noted(ledger: Ledger, document: StateDocument) -> None:
        write(ledger, document)
        states.append(lane.own)

    monkeypatch.setattr(Ledger, "write", noted)
    lane.rewinds.carry_out()
    assert all(state.rewind is not None or state.reload is not None for state in states)
    assert (states[-1].rewind, states[-1].reload is not None) == (None, True)
    assert "lacks large values" in lane.listener.notes[0]
    assert ITEMS in lane.state.to_reload


def test_a_stream_whose_rows_are_nowhere_else_goes_on_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = Lane(tmp_path, "strict_cdc")
    apply_as(monkeypatch, Outcome(unresolved=1))
    lane.rewinds.carry_out()
    assert (lane.own.rewind, lane.own.paused, lane.own.reload) == (None, None, None)
    [note] = lane.listener.notes
    assert "lacks large values of rows that the table has not either" in note
    assert "`penstock resync public.items` begins it anew, empty" in note


# How much a task is given


class OfTwoCores(Stages):
    """Tasks that say that they cannot be cut, unless they are whole."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    @property
    def cores(self) -> int:
        return 2

    def run(self, function: Any, tasks: Any, description: str, **_: Any) -> list[Any]:
        self.counts.append(len(tasks))
        folds = cast(Sequence[FoldTask], tasks)
        whole = FoldResult((), None, Staged(), False, {})
        return [whole if task.bucket.count == 1 else None for task in folds]


def work(lane: Lane, size: int, *, again: bool = True, files: tuple[DataFile, ...] = ()) -> StreamWork:
    """400,000 updates of so many bytes."""
    log_file = LogFile(Path("f"), SCHEMA.id, str(ITEMS), 400_000, size, {"u": 400_000}, 200, 350)
    return StreamWork(
        ITEMS, lane.table, Target(SCHEMA, "upsert"), files, (log_file,), (), Lsn(200), Lsn(400), {}, None,
        again=again,
    )  # fmt: skip


@pytest.mark.parametrize("again", [False, True], ids=["one transaction of a round", "many rounds again"])
def test_large_changes_are_cut_by_their_own_size_though_the_table_is_empty(lane: Lane, again: bool) -> None:
    held = (DataFile("a", 1_000_000, 1_000_000),)
    for files in ((), held):
        parts = applying._parts(work(lane, 3 * GIB, files=files, again=again), OfTwoCores())
        assert 3 * GIB * EXPANSION / parts <= BYTES_PER_BUCKET_MAX
    large = (DataFile("a", 1000, 10_000_000),)
    by_table = applying._parts(work(lane, 1_000_000, files=large, again=again), OfTwoCores())
    assert 400_000 * 10_000 * EXPANSION / by_table <= BYTES_PER_BUCKET_MAX


def test_what_cannot_be_cut_is_not_folded_whole_beyond_what_a_round_has(lane: Lane) -> None:
    stages = OfTwoCores()
    large = replace(work(lane, ROUND_BYTES_MAX + 1), columns={SCHEMA.id: ()})
    staging = {ITEMS: Path("staging")}
    with pytest.raises(IndivisibleError):
        applying.fold(stages, [large], staging)
    assert len(stages.counts) == 1, "no task took it whole"
    small = work(lane, ROUND_BYTES_MAX)
    assert len(applying.fold(stages, [small], staging)[ITEMS]) == 1
    assert len(applying.fold(stages, [replace(large, again=False)], staging)[ITEMS]) == 1

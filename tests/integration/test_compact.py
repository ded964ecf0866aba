"""`penstock compact`: tables get fewer files and snapshots, and lose neither rows nor their position."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock.core.position import Lsn
from penstock.core.report import CompactedStream
from penstock.destinations import iceberg_expiry, iceberg_health
from penstock.destinations.iceberg import IcebergTable
from penstock.destinations.iceberg_health import Limits
from penstock.destinations.iceberg_java import Attempt
from penstock.destinations.iceberg_record import Known
from penstock.destinations.records import DataFile
from penstock.failpoints import FAILPOINTS
from penstock.lake import maintenance
from penstock.lake.maintenance import Maintenance
from penstock.pipeline import Pipeline
from tests.beside import WriterBeside
from tests.conftest import Database, wait_until
from tests.iceberg import session, sqlite_destination
from tests.integration import test_sync
from tests.integration.test_iceberg_table import (
    SCHEMA,
    STREAM,
    begun,
    loaded,
    marker,
    rows_in_spark,
    write,
    write_deletes,
)
from tests.oracle_iceberg import iceberg_referenced, iceberg_rows
from tests.pipelines import Notes, PipelineUnderTest
from tests.traps import MakePipeline, of_parquet

#: Everything that can go does.
LIMITS = Limits(
    target_file_bytes=256 * 1024 * 1024,
    small_file_ratio=0.3,
    delete_ratio=0.1,
    snapshot_age_max_s=0,
    snapshots_min=1,
    orphan_age_s=3 * 86400,
    snapshots_max=1000,
    readers_grace_s=0,
)
OF_COMPACTION = [name for name in FAILPOINTS if name.startswith("compact.")]
KEPT = replace(LIMITS, snapshot_age_max_s=86400)
FAR_AHEAD_MS = 1 << 60


@dataclass
class Worn:
    """A table of ours after some rounds, each with a new row and with deletes in the loaded file."""

    directory: Path
    rows: dict[int, str] = field(default_factory=dict)
    at: int = 100

    def __post_init__(self) -> None:
        self.table: IcebergTable = sqlite_destination(self.directory).table(STREAM)
        self.columns, self.file = loaded(self.table, list(range(100)))
        self.rows = dict.fromkeys(range(100), "loaded")

    def round(
        self, deleted: int | None = None, generation: str = "g1", letters: Sequence[DataFile] = ()
    ) -> None:
        """One more row; `deleted` is the position, and the id, of a row of the loaded file."""
        record = self.table.record()
        assert record is not None
        deletes = [] if deleted is None else [write_deletes(self.table, self.file, [deleted])]
        self.table.commit_changes(
            Lsn(self.at),
            marker(self.at, self.at + 10, generation=generation),
            SCHEMA,
            added=[write(self.table, self.columns, [self.at], "round")],
            removed=[],
            deletes=deletes,
            columns=self.columns,
            read_from=record.snapshot_id,
            dead_letter_files=letters,
        )
        self.rows.pop(-1 if deleted is None else deleted, None)
        self.rows[self.at] = "round"
        self.at += 10

    def compact(self, limits: Limits = LIMITS, *, by_hand: bool = True) -> CompactedStream:
        self.notes = Notes()
        destination = sqlite_destination(self.directory)
        work = Maintenance(destination, limits, lambda: session(self.directory), self.notes)
        found = work.compact(STREAM, by_hand=by_hand)
        assert found is not None
        self.sweeps = int(work.has_swept)
        return found

    def forget_the_past(self) -> None:
        """As after a hundred commits and a day: neither older metadata nor the fence's tag is there."""
        table = self.table.handle.table
        table.refresh()
        table.updateProperties().set("write.metadata.previous-versions-max", "1").commit()
        if "penstock_fence" in table.refs():
            table.manageSnapshots().removeTag("penstock_fence").commit()

    def assert_whole(self) -> None:
        assert rows_in_spark(self.table, self.directory) == [(n, v, n) for n, v in sorted(self.rows.items())]

    @property
    def marker(self) -> Any:
        """As somebody reads it who has seen nothing of this table before."""
        record = sqlite_destination(self.directory).table(STREAM).record()
        assert record is not None
        return record.marker


@pytest.fixture
def worn(tmp_path: Path) -> Worn:
    made = Worn(tmp_path)
    for number in range(6):
        made.round(deleted=2 * number)
    return made


def test_files_are_merged_deletes_applied_and_old_snapshots_expire(worn: Worn) -> None:
    before = worn.marker
    worn.forget_the_past()
    done = worn.compact()
    assert done.due == ("data files", "snapshots", "orphans")
    assert done.before.data_files == 7
    assert done.before.delete_files == 6
    assert done.before.small_file_ratio == pytest.approx(6 / 7)
    assert done.before.delete_ratio == pytest.approx(6 / 106)
    assert done.after is not None
    assert (done.after.data_files, done.after.delete_files, done.after.snapshots) == (1, 0, 1)
    assert done.snapshots_expired >= 8
    data = [each.name for each in worn.table.files_directory.iterdir() if each.suffix == ".parquet"]
    assert len(data) == 1, "the files of expired snapshots are gone"
    worn.assert_whole()
    assert worn.marker == before
    again = worn.compact()
    assert again.due == ("orphans",)


@pytest.mark.slow
def test_of_too_many_snapshots_the_oldest_go_however_young_they_are(worn: Worn) -> None:
    before = worn.marker
    worn.forget_the_past()
    few = replace(KEPT, small_file_ratio=1.0, delete_ratio=1.0, snapshots_max=3)
    assert worn.compact(replace(few, readers_grace_s=3600)).due == ("orphans",)
    done = worn.compact(few)
    assert done.due == ("snapshots", "orphans")
    assert done.after is not None
    assert done.after.snapshots == 3
    worn.assert_whole()
    assert worn.marker == before
    worn.round()
    assert worn.marker.to == before.to + 10


@pytest.mark.slow
def test_the_position_is_known_without_any_snapshot_of_ours_and_a_rollback_is_seen(worn: Worn) -> None:
    """Nothing but what the expiry wrote down tells what the compacted table holds."""
    before = worn.marker
    worn.forget_the_past()
    worn.compact()
    update = worn.table.handle.table.updateProperties()
    update.set("penstock.commits", "{}").commit()  # as after sixteen other commits
    compacted = worn.table.record()
    assert compacted is not None
    assert compacted.marker == before
    worn.round()
    worn.assert_whole()
    assert worn.marker.to == before.to + 10
    worn.table.handle.table.refresh()
    worn.table.handle.table.manageSnapshots().rollbackTo(compacted.snapshot_id).commit()
    assert worn.marker == before
    del worn.rows[worn.at - 10]
    worn.assert_whole()


@pytest.mark.slow
def test_rounds_go_on_between_one_compaction_and_the_next(worn: Worn) -> None:
    for _ in range(2):
        for _ in range(6):
            worn.round()
        worn.forget_the_past()
        assert worn.compact().after is not None
        worn.assert_whole()
        assert worn.marker.to == Lsn(worn.at)


@pytest.mark.slow
def test_a_pending_load_keeps_its_branch_and_its_files(worn: Worn) -> None:
    columns = begun(worn.table, "load2")
    files = [write(worn.table, columns, [number], "again") for number in (500, 501)]
    for number, file in enumerate(files):
        worn.table.commit_chunks("load2", Lsn(1), [f"c{number}"], [file])
        age(worn.table.path(file))
    worn.forget_the_past()
    worn.compact()
    worn.assert_whole()
    worn.round()
    worn.table.commit_chunks("load2", Lsn(1), ["c3"], [write(worn.table, columns, [502], "again")])
    worn.table.swap("load2", Lsn(1), "g2", Lsn(900))
    worn.rows = dict.fromkeys((500, 501, 502), "again")
    worn.assert_whole()


@pytest.mark.slow
def test_a_table_that_waits_to_be_shown_keeps_its_rows_and_its_position(worn: Worn) -> None:
    columns = begun(worn.table, "load2")
    worn.table.commit_chunks("load2", Lsn(1), ["c0"], [write(worn.table, columns, [500], "again")])
    worn.table.swap("load2", Lsn(1), "g2", Lsn(900), Lsn(1000))
    worn.forget_the_past()
    done = worn.compact()
    assert done.after is not None
    assert done.after.data_files == 7, "what is about to be replaced is not written again"
    worn.assert_whole()
    worn.at, worn.rows = 900, {500: "again"}
    worn.round(generation="g2")
    assert worn.table.publish(Lsn(1), Lsn(1000)).readable_from is None
    worn.assert_whole()


@pytest.mark.slow
def test_files_that_nobody_committed_go_when_they_are_old_and_no_others(worn: Worn) -> None:
    young, old = (write(worn.table, worn.columns, [900 + n], "uncommitted") for n in range(2))
    named, unnamed, begun = (worn.table.dead_letters_directory / f"{name}.parquet" for name in "abc")
    named.parent.mkdir(parents=True, exist_ok=True)
    for path in (named, unnamed, begun):
        path.write_bytes(b"")
    worn.round(letters=[DataFile(named.name, 1, 0)])
    for path in (worn.table.path(old), named, unnamed, *live_files(worn.table)):
        age(path)
    done = worn.compact(replace(KEPT, small_file_ratio=1.0, delete_ratio=1.0))
    assert done.orphans_removed == 2
    assert worn.table.path(young).exists()
    assert not worn.table.path(old).exists()
    assert [path.exists() for path in (named, unnamed, begun)] == [True, False, True]
    worn.assert_whole()


def live_files(table: IcebergTable) -> list[Path]:
    record = table.record()
    assert record is not None
    return [table.path(file) for file in table.files(record)]


def age(path: Path) -> None:
    then = time.time() - 4 * 86400
    os.utime(path, (then, then))


@pytest.mark.slow
def test_many_manifests_are_merged_where_everything_else_stays(tmp_path: Path) -> None:
    worn = Worn(tmp_path)
    for _ in range(25):
        worn.round()
    limits = replace(KEPT, small_file_ratio=1.0, delete_ratio=1.0)
    before = worn.marker
    done = worn.compact(limits, by_hand=False)
    assert done.due == ("manifests",)
    assert done.before.spare_manifests >= 20
    assert done.after is not None
    assert done.after.spare_manifests == 0
    assert done.after.data_files == done.before.data_files
    worn.assert_whole()
    assert worn.marker == before
    assert worn.compact(limits, by_hand=False).due == ()
    worn.round(deleted=7)
    worn.assert_whole()


@pytest.mark.slow
def test_others_wait_while_data_files_are_merged_and_during_no_other_step(
    worn: Worn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only that has a limit: the files of deletes and the manifests of the whole table are merged."""
    monkeypatch.setattr(iceberg_health, "SPARE_MANIFESTS_MIN", 2)
    rounds, held = threading.Lock(), dict[str, bool]()
    for step in ("_rewrite_data_files", "_merge_deletes"):
        monkeypatch.setattr(maintenance._Turn, step, noting(step, held, rounds))
    monkeypatch.setattr("penstock.failpoints.reach", lambda name: held.update({name: rounds.locked()}))
    work = Maintenance(sqlite_destination(worn.directory), LIMITS, lambda: session(worn.directory), Notes())
    done = work.compact(STREAM, by_hand=False, alone=lambda: rounds)
    assert done is not None
    assert {"data files", "manifests", "snapshots"} <= {*done.due}
    assert held.pop("_rewrite_data_files")
    assert held == {
        "compact.rewritten": False,
        "_merge_deletes": False,
        "compact.deletes_merged": False,
        "compact.manifests_merged": False,
        "compact.written_down": False,
        "compact.expired": False,
    }
    worn.assert_whole()


def noting(step: str, held: dict[str, bool], lock: threading.Lock) -> Callable[..., Any]:
    """A step that says whether the lock is held meanwhile."""
    original = getattr(maintenance._Turn, step)

    def note_and_go_on(*arguments: Any, **named: Any) -> Any:
        held[step] = lock.locked()
        return original(*arguments, **named)

    return note_and_go_on


@pytest.mark.slow
@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.parametrize("foreign", ["deletes", "rows"])
def test_compaction_gives_way_to_another_writer(
    worn: Worn, monkeypatch: pytest.MonkeyPatch, foreign: str, by_hand: bool
) -> None:
    """The other's commit falls between the plan of a rewrite and its commit. By hand it is made again."""
    opened = maintenance._Turn._opened
    struck: list[str] = []

    def open_and_let_others_commit(turn: Any) -> Any:
        table = opened(turn)
        if not struck:
            struck.append(foreign)
            worn.round(deleted=50 if foreign == "deletes" else None)
        return table

    monkeypatch.setattr(maintenance._Turn, "_opened", open_and_let_others_commit)
    done = worn.compact(KEPT, by_hand=by_hand)
    assert struck
    assert done.after is not None
    gave_way = any("another writer" in note for note in worn.notes)
    assert gave_way == (foreign == "deletes")
    assert done.after.data_files == (8 if gave_way and not by_hand else 1 if gave_way else 2)
    worn.assert_whole()
    assert worn.marker.to == Lsn(worn.at)
    worn.compact(KEPT)
    worn.assert_whole()


@pytest.mark.slow
def test_a_snapshot_that_somebody_names_meanwhile_is_kept(
    worn: Worn, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = iceberg_expiry.prepare_expiry

    def prepare_and_let_others_tag(*arguments: Any) -> list[int]:
        expired = prepare(*arguments)
        worn.table.handle.table.refresh()
        worn.table.handle.table.manageSnapshots().createTag("theirs", expired[0]).commit()
        return expired

    monkeypatch.setattr(maintenance, "prepare_expiry", prepare_and_let_others_tag)
    done = worn.compact()
    assert any("another writer" in note for note in worn.notes)
    assert done.snapshots_expired == 0
    worn.assert_whole()
    monkeypatch.undo()
    before = worn.marker
    assert worn.compact().snapshots_expired > 0
    assert "theirs" in worn.table.handle.table.refs()
    assert worn.marker == before


@pytest.mark.slow
def test_nothing_goes_by_somebody_whom_a_newer_leader_has_replaced(
    worn: Worn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have slept in the midst of it: what goes then is the new leader's to say."""
    prepare = iceberg_expiry.prepare_expiry

    def prepare_and_be_replaced(*arguments: Any) -> list[int]:
        expired = prepare(*arguments)
        assert expired
        worn.table.fence(Lsn(2))
        return expired

    monkeypatch.setattr(maintenance, "prepare_expiry", prepare_and_be_replaced)
    stray = worn.table.handle.files.directory / "stray.parquet"
    stray.write_bytes(b"of a round that was cut short")
    age(stray)
    done = worn.compact()
    assert any("another writer" in note for note in worn.notes)
    assert (done.snapshots_expired, done.orphans_removed) == (0, 0)
    assert stray.exists()
    assert worn.sweeps == 0
    worn.assert_whole()
    monkeypatch.undo()
    done = worn.compact()
    assert done.snapshots_expired > 0
    assert done.orphans_removed == 1
    assert not stray.exists()
    assert worn.sweeps == 1
    worn.assert_whole()


@pytest.mark.slow
def test_two_that_let_snapshots_expire_at_once_write_down_what_both_of_them_need(
    worn: Worn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that was replaced in the midst of it, and its successor, with other limits."""
    for _ in range(2):
        worn.compact(KEPT)
        worn.table.handle.table.newAppend().commit()  # of somebody else
    others: list[int] = []
    set_properties = Attempt.set_properties

    def set_after_the_other(attempt: Any, properties: Any) -> None:
        monkeypatch.undo()
        other = sqlite_destination(worn.directory).table(STREAM)
        others.extend(iceberg_expiry.prepare_expiry(other, FAR_AHEAD_MS, 1, 0))
        set_properties(attempt, properties)

    monkeypatch.setattr(Attempt, "set_properties", set_after_the_other)
    ours = iceberg_expiry.prepare_expiry(worn.table, FAR_AHEAD_MS, 2, 0)
    metadata = worn.table.handle.metadata()
    assert metadata is not None
    parser = worn.table.catalog.java.iceberg("TableMetadataParser")
    history = iceberg_expiry.History.from_json(json.loads(str(parser.toJson(metadata.java))), 0)
    needed = {each for expired in (ours, others) for each in iceberg_expiry.cut_off(history, set(expired))}
    known = Known(metadata.property)
    assert len(needed) == 2
    assert all(each in known for each in needed)


@pytest.mark.slow
def test_many_files_of_deletes_are_merged_where_the_data_files_stay(tmp_path: Path) -> None:
    worn = Worn(tmp_path)
    record = worn.table.record()
    assert record is not None
    for number in range(6):
        record = worn.table.commit_changes(
            Lsn(worn.at),
            marker(worn.at, worn.at + 10),
            SCHEMA,
            added=[],
            removed=[],
            deletes=[write_deletes(worn.table, worn.file, [number])],
            columns=worn.columns,
            read_from=record.snapshot_id,
        )
        worn.at += 10
        del worn.rows[number]
    done = worn.compact(replace(KEPT, delete_ratio=0.5))
    assert "delete files" in done.due
    assert done.after is not None
    assert (done.after.data_files, done.after.delete_files) == (1, 1)
    worn.assert_whole()
    worn.round(deleted=70)
    worn.assert_whole()


@pytest.mark.slow
@pytest.mark.parametrize("format_version", ["2", "3"])
def test_deletes_of_files_that_others_rewrote_are_due_once(tmp_path: Path, format_version: str) -> None:
    """Another writer replaces a file, and leaves the deletes of its rows behind."""
    worn = Worn(tmp_path)
    for number in range(6):
        worn.round(deleted=2 * number)
    kept = [number for number in range(100) if number in worn.rows]
    copied = write(worn.table, worn.columns, kept, "loaded")
    files, table = worn.table.handle.files, worn.table.handle.table
    replaced = table.newOverwrite().deleteFile(files.data_file(worn.file)).addFile(files.data_file(copied))
    replaced.commit()
    table.updateProperties().set("format-version", format_version).commit()
    limits = replace(KEPT, delete_ratio=0.01, small_file_ratio=1)
    done = worn.compact(limits)
    assert (done.before.data_files, done.before.delete_files) == (7, 6), "not too many for so many files"
    assert "data files" in done.due
    assert done.after is not None
    assert done.after.delete_files == 0
    worn.assert_whole()
    assert worn.compact(limits).due == ("orphans",)


@pytest.mark.slow
@pytest.mark.parametrize("readable_from", [None, Lsn(1000)], ids=["load", "resumed load"])
def test_an_age_for_the_branches_of_users_does_not_end_a_load(worn: Worn, readable_from: Lsn | None) -> None:
    columns = begun(worn.table, "load2")
    worn.table.commit_chunks("load2", Lsn(1), ["c0"], [write(worn.table, columns, [500], "again")])
    if readable_from is not None:
        worn.table.swap("load2", Lsn(1), "g2", Lsn(900), readable_from)
    table = worn.table.handle.table
    table.refresh()
    table.updateProperties().set("history.expire.max-ref-age-ms", "1").commit()
    time.sleep(0.01)
    table.expireSnapshots().expireOlderThan(int(time.time() * 1000)).retainLast(1).commit()
    if readable_from is None:
        worn.table.swap("load2", Lsn(1), "g2", Lsn(900))
    else:
        assert worn.table.publish(Lsn(1), readable_from).readable_from is None
    worn.rows = {500: "again"}
    worn.assert_whole()


@pytest.mark.slow
def test_a_table_with_a_sort_order_is_merged_in_that_order(worn: Worn) -> None:
    java = worn.table.catalog.java
    by_id = java.iceberg("expressions.Expressions").ref("id")
    worn.table.handle.table.replaceSortOrder().desc(by_id, java.iceberg("NullOrder").NULLS_LAST).commit()
    assert worn.compact().after is not None
    [path] = live_files(worn.table)
    ids = pq.read_table(path).column("id").to_pylist()
    assert ids == sorted(worn.rows, reverse=True)
    worn.assert_whole()


@pytest.mark.slow
def test_by_schedule_one_pass_is_made_and_by_hand_as_many_as_it_takes(
    worn: Worn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_FILES_PER_PASS", (6, 6))
    for _ in range(8):
        worn.round()
    limits = replace(KEPT, small_file_ratio=0.0)
    done = worn.compact(limits, by_hand=False)
    assert done.after is not None
    assert 6 < done.after.data_files < done.before.data_files
    finished = worn.compact(limits).after
    assert finished is not None
    assert finished.data_files < 6
    worn.assert_whole()


# By the command, on pipelines


def worn_pipeline(
    database: Database, make: MakePipeline, rounds: int = 6, /, **settings: Any
) -> PipelineUnderTest:
    test_sync.orders(database, 200)
    pipeline = make(["public.orders"], **settings)
    pipeline.sync()
    for number in range(rounds):
        database.execute(f"UPDATE orders SET note = 'changed' WHERE id % 20 = {number}")
        pipeline.sync()
    return pipeline


EXPIRE_ALL: dict[str, dict[str, Any]] = {
    "maintenance": {"every": "never", "snapshot_age_max": "0s", "snapshots_min": 1},
    "readers": {"grace": "0s"},
}


@pytest.mark.slow
@pytest.mark.parametrize("make", ["iceberg"], indirect=True)
@pytest.mark.parametrize("upserts", ["merge_on_read", "copy_on_write"])
def test_a_compacted_table_equals_its_source_and_follows_it(
    database: Database, make: MakePipeline, upserts: str
) -> None:
    destination = {"type": "iceberg", "warehouse": "./lake", "upserts": upserts}
    pipeline = worn_pipeline(database, make, destination=destination, **EXPIRE_ALL)
    opened = Pipeline.from_yaml(pipeline.file)
    [status] = opened.status().streams
    assert status.health is not None
    [planned] = opened.compact(dry_run=True).streams
    assert planned.after is None
    assert planned.before.data_files == status.files == status.health.data_files
    ended = pipeline.start_sync(command=("compact", "public.orders")).wait()
    assert ended.status == 0, str(ended)
    [done] = ended.answer["streams"]
    if upserts == "merge_on_read":
        assert "data files" in planned.due
        assert status.health.delete_files == 6
        assert (done["after"]["data_files"], done["after"]["delete_files"]) == (1, 0)
    assert done["snapshots_expired"] > 0
    pipeline.assert_same("public.orders")
    database.execute("UPDATE orders SET note = 'later' WHERE id % 3 = 0; DELETE FROM orders WHERE id % 7 = 0")
    pipeline.sync()
    pipeline.assert_same("public.orders")


@pytest.mark.slow
@pytest.mark.parametrize("make", ["iceberg"], indirect=True)
@pytest.mark.parametrize("failpoint", ["compact.rewritten", "compact.written_down", "compact.expired"])
def test_a_kill_while_a_table_is_looked_after_loses_nothing(
    database: Database, make: MakePipeline, failpoint: str
) -> None:
    settings = {**EXPIRE_ALL, "maintenance": {**EXPIRE_ALL["maintenance"], "every": "0s"}}
    pipeline = worn_pipeline(database, make, **EXPIRE_ALL)
    pipeline.settings = {**pipeline.settings, **settings}
    pipeline.write_file()
    database.execute("UPDATE orders SET note = 'killed' WHERE id % 5 = 0")
    ended = pipeline.sync_apart(f"{failpoint}=kill")
    assert ended.killed, str(ended)
    assert ended.struck == (f"{failpoint}=kill",)
    pipeline.assert_same("public.orders")
    database.execute("DELETE FROM orders WHERE id % 7 = 0")
    pipeline.sync()
    pipeline.assert_same("public.orders")
    [status] = Pipeline.from_yaml(pipeline.file).status().streams
    assert status.health is not None
    assert status.health.data_files < 6


class Ordering(WriterBeside):
    """Orders come, change and go."""

    def write(self, connection: Any, number: int) -> None:
        connection.execute("INSERT INTO orders (id, note) VALUES (%s, 'beside')", (100_000 + number,))
        connection.execute(f"UPDATE orders SET note = 'round {number}' WHERE id % 50 = {number % 50}")
        connection.execute("DELETE FROM orders WHERE id = %s", (99_990 + number,))
        time.sleep(0.1)


def shown(pipeline: PipelineUnderTest) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = iceberg_rows(pipeline.warehouse, "public.orders").to_pylist()
    return sorted(rows, key=lambda row: row["id"])


def assert_every_file_is_there(pipeline: PipelineUnderTest) -> set[Path]:
    referenced = iceberg_referenced(pipeline.warehouse, "public.orders")
    missing = [path for path in referenced if not path.exists()]
    assert not missing, f"{len(missing)} of {len(referenced)} files that snapshots need are gone: {missing}"
    return referenced


def age_all(pipeline: PipelineUnderTest) -> set[Path]:
    """By their age all files may go, so that only what refers to them keeps them; the table's data files."""
    files = {path for path in pipeline.warehouse.rglob("*") if path.is_file()}
    for path in files:
        age(path)
    referenced = iceberg_referenced(pipeline.warehouse, "public.orders")
    directories = {path.parent for path in referenced if path.suffix == ".parquet"}
    return {path for path in files if path.parent in directories}


def compact_killed(pipeline: PipelineUnderTest, place: str) -> None:
    """At a failpoint; or when the first new file of rows is there, wherever that is on the way."""
    command = ("compact", "public.orders")
    before = age_all(pipeline)
    if place in FAILPOINTS:
        ended = pipeline.sync_apart(f"{place}=kill", command=command)
        assert ended.killed, str(ended)
        assert ended.struck == (f"{place}=kill",)
        return
    [directory] = {path.parent for path in before}
    running = pipeline.start_sync(command=command)
    wait_until(
        lambda: running.process.poll() is not None or {*directory.glob("*.parquet")} > before,
        "files to be merged",
    )
    running.process.kill()
    assert running.wait().killed
    pipeline.wait_until_nothing_runs()


@pytest.mark.slow
@pytest.mark.parametrize("make", ["iceberg"], indirect=True)
@pytest.mark.parametrize("place", ["a file is there", *OF_COMPACTION])
def test_compact_killed_at_any_step_while_changes_come_loses_nothing_and_is_done_again(
    database: Database, make: MakePipeline, place: str
) -> None:
    pipeline = worn_pipeline(database, make, 20 if place == "compact.manifests_merged" else 6, **EXPIRE_ALL)
    with Ordering(database) as orders:
        pipeline.sync()
        before = shown(pipeline)
        compact_killed(pipeline, place)
        assert_every_file_is_there(pipeline)
        assert shown(pipeline) == before
        orders.wait_for_more(5)
        pipeline.sync()
    pipeline.sync()
    pipeline.assert_same("public.orders")
    assert_every_file_is_there(pipeline)
    age_all(pipeline)
    again = pipeline.sync_apart(command=("compact", "public.orders"))
    assert again.status == 0, str(again)
    [done] = again.answer["streams"]
    assert done["after"]["snapshots"] <= 2, "the newest, and what the fence of a killed leader names"
    referenced = assert_every_file_is_there(pipeline)
    [directory] = {path.parent for path in referenced if path.suffix == ".parquet"}
    left = {*directory.glob("*.parquet")} - referenced
    assert not left, f"files of work that was cut short are there for good: {left}"
    pipeline.assert_same("public.orders")
    database.execute("UPDATE orders SET note = 'later' WHERE id % 3 = 0; DELETE FROM orders WHERE id % 7 = 0")
    pipeline.sync()
    pipeline.assert_same("public.orders")


@pytest.mark.slow
@pytest.mark.parametrize("make", ["iceberg"], indirect=True)
def test_a_sync_looks_after_tables_as_often_as_it_is_told(database: Database, make: MakePipeline) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 10)")
    pipeline = make(["public.t"], maintenance={"every": "never"})
    timetable = pipeline.state / "maintenance.json"
    pipeline.sync()
    assert not timetable.exists()
    pipeline.settings = {**pipeline.settings, "maintenance": {"every": "1h"}}
    pipeline.write_file()
    pipeline.sync()
    first = json.loads(timetable.read_text())["streams"]["public.t"]
    pipeline.sync()
    assert json.loads(timetable.read_text())["streams"]["public.t"] == first
    pipeline.settings = {**pipeline.settings, "maintenance": {"every": "0s"}}
    pipeline.write_file()
    for number in range(6):
        database.execute(f"INSERT INTO t VALUES ({100 + number})")
        pipeline.sync()
    assert json.loads(timetable.read_text())["streams"]["public.t"]["looked_at"] > first["looked_at"]
    assert any("merging" in note for note in pipeline.notes)
    pipeline.assert_same("public.t")


@of_parquet("Iceberg tables do need it")
def test_parquet_tables_need_none_and_it_is_said(database: Database, make: MakePipeline) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    pipeline = make(["public.t"])
    report = Pipeline.from_yaml(pipeline.file).compact()
    assert report.streams == []
    assert "need no compaction" in report.notes[0]

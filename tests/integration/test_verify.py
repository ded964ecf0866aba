"""`penstock verify` against real tables: every planted difference is named, and nothing else ever is."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import penstock
import penstock.verify.run
from penstock import Pipeline
from penstock.core.errors import ConfigError, SourceBusyError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.core.verify_report import VerifiedStream
from penstock.lake.fold_task import FoldResult
from penstock.lake.lane import LakeLane
from penstock.log.reader import ChangeLog
from penstock.log.retention import apply_retention
from penstock.verify.run import Verification
from tests.beside import WriterBeside
from tests.conftest import Database
from tests.pipelines import DESTINATIONS, Notes, PipelineUnderTest
from tests.running import Instance, flushed_position, instances, is_acknowledged
from tests.traps import MakePipeline
from tests.verifiable import (
    damage_file,
    data_files,
    plant_in,
    with_column,
    with_value,
    without_beginning,
    without_end,
)

#: On both kinds of tables; Iceberg's cost Java's start.
BOTH = pytest.mark.parametrize(
    "make", ["parquet", pytest.param("iceberg", marks=pytest.mark.slow)], indirect=True
)
DELETED = pa.timestamp("us", "UTC")
ORDERS = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, amount numeric(12,2), price numeric, note text, "
    "at timestamptz, local timestamp, tags text[], body jsonb, paid boolean, rate double precision, "
    "ratio real, day date, clock time, raw bytea, code uuid, small smallint)"
)
FILL = (
    "INSERT INTO orders SELECT i, i * 1.37, i * 0.001, CASE WHEN i % 3 = 0 THEN NULL ELSE 'note ' || i END, "
    "timestamptz '2026-01-01 00:00+00' + i * interval '1 minute', "
    "timestamp '2026-01-01' + i * interval '1 s', ARRAY['a', NULL, 'b,c'], jsonb_build_object('k', i), "
    "i % 2 = 0, i / 7.0, i / 3.0, date '2026-01-01' + (i % 400), "
    "time '00:00' + i * interval '1 s', decode(md5(i::text), 'hex'), md5(i::text)::uuid, i % 100 "
    "FROM generate_series({first}, {last}) AS i"
)


def orders(database: Database, rows: int = 1000) -> None:
    database.execute(ORDERS)
    database.execute(FILL.format(first=1, last=rows))


def verify(pipeline: PipelineUnderTest, stream: str = "public.orders", **options: object) -> VerifiedStream:
    report = Pipeline.from_yaml(pipeline.file).verify([stream], **options)  # type: ignore[arg-type]
    [found] = report.streams
    return found


def plant(
    pipeline: PipelineUnderTest, change: Callable[[pa.Table], pa.Table], stream: str = "public.orders"
) -> None:
    """Change the rows of a table behind everybody's back: in the longest of its files, in its place."""
    files = data_files(pipeline, stream)
    plant_in(max(files, key=lambda path: pq.read_metadata(path).num_rows), change)


def flipped_bit(table: pa.Table) -> pa.Table:
    bits = table.column("rate").combine_chunks().to_numpy().copy().view(np.uint64)
    bits[7] ^= 1
    return with_column(table, "rate", pa.array(bits.view(np.float64)))


def missing_row(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table.slice(0, 7), table.slice(8)])


def extra_row(table: pa.Table) -> pa.Table:
    row = with_column(table.slice(7, 1), "id", pa.array([999_999], pa.int64()))
    return pa.concat_tables([table, row])


def doubled_row(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table, table.slice(7, 1)])


def swapped_pair(table: pa.Table) -> pa.Table:
    order = np.arange(table.num_rows)
    order[[7, 8]] = order[[8, 7]]
    return with_column(table, "code", table.column("code").take(pa.array(order)).combine_chunks())


def shifted_zone(table: pa.Table) -> pa.Table:
    column = table.column("at").combine_chunks()
    hour = column.view(pa.int64()).to_numpy(zero_copy_only=False) + 3_600_000_000
    return with_column(table, "at", pa.array(hour).view(column.type))


@pytest.mark.slow
@BOTH
def test_equal_tables_are_found_equal_also_when_changes_wait_in_the_log(
    database: Database, make: MakePipeline
) -> None:
    orders(database)
    pipeline = make(["public.orders"], load={"rows_per_chunk": 250})
    pipeline.sync()
    assert (found := verify(pipeline)).verdict == "equal", found
    assert (found.source_rows, found.table_rows) == (1000, 1000)
    # Nobody has synced these: the comparison takes the table there by the log, and leaves it as it is.
    before = pipeline.version("public.orders")
    database.execute("UPDATE orders SET id = id + 100000, note = 'moved' WHERE id % 10 = 2")
    database.execute("DELETE FROM orders WHERE id % 10 = 1")
    database.execute("UPDATE orders SET at = at + interval '1 hour' WHERE id % 10 = 3")
    found = verify(pipeline)
    assert found.verdict == "equal", found
    assert (found.source_rows, found.table_rows) == (900, 900)
    assert found.position != found.table_position
    assert pipeline.version("public.orders") == before
    pipeline.sync()
    pipeline.assert_same("public.orders")


PLANTS: dict[str, tuple[Callable[[pa.Table], pa.Table], tuple[int, int, int], dict[str, int]]] = {
    "a flipped bit": (flipped_bit, (0, 0, 1), {"rate": 1}),
    "a missing row": (missing_row, (1, 0, 0), {}),
    "an extra row": (extra_row, (0, 1, 0), {}),
    "a row twice": (doubled_row, (0, 1, 0), {}),
    "a swapped pair": (swapped_pair, (0, 0, 2), {"code": 2}),
    "another time zone": (shifted_zone, (0, 0, 1000), {"at": 1000}),
}


@BOTH
@pytest.mark.parametrize(
    "in_spark", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["light", "spark"]
)
def test_every_planted_difference_is_found_and_named(
    database: Database, make: MakePipeline, monkeypatch: pytest.MonkeyPatch, in_spark: bool
) -> None:
    orders(database)
    pipeline = make(["public.orders"])
    pipeline.sync()
    if in_spark:
        monkeypatch.setattr("penstock.verify.comparison.LIGHT_ROWS_MAX", 0)
    [path] = data_files(pipeline, "public.orders")
    whole = path.read_bytes()
    for name, (change, counts, columns) in PLANTS.items():
        plant(pipeline, change)
        found = verify(pipeline, limit=30, show_values=True)
        assert found.verdict == "different", name
        assert (found.missing, found.extra, found.different) == counts, name
        assert found.columns == columns, name
        assert found.found == len(found.differences) + found.left_out
        if name == "a flipped bit":
            [row] = found.differences
            assert row.key == {"id": "8"}
            assert [(each.name, each.source != each.table) for each in row.columns] == [("rate", True)]
        if name in ("a missing row", "a row twice"):
            assert [row.key for row in found.differences] == [{"id": "8"}]
        if name == "a swapped pair":
            assert {row.key["id"] for row in found.differences} == {"8", "9"}
        with open(path, "wb") as sink:
            sink.write(whole)
    assert verify(pipeline).verdict == "equal"


class Writer(WriterBeside):
    """Everything that can happen to rows, in transactions of several statements, until the block is left."""

    def write(self, connection: Any, number: int) -> None:
        low = 20_000 + number * 10
        connection.execute(FILL.format(first=low, last=low + 9).encode())
        touched = f"id > 500 AND id % 97 = {number % 97}"
        connection.execute(f"UPDATE orders SET note = note || '.', rate = rate + 1 WHERE {touched}".encode())
        connection.execute(f"DELETE FROM orders WHERE id = {low - 50}".encode())
        connection.execute(f"UPDATE orders SET id = -id WHERE id = {low - 91}".encode())


@BOTH
def test_writers_cause_no_false_alarm(database: Database, make: MakePipeline) -> None:
    orders(database)
    pipeline = make(["public.orders"])
    pipeline.sync()
    with Writer(database) as writer:
        for run in range(4):
            found = verify(pipeline)
            assert found.verdict == "equal", found
            assert found.position != found.table_position
            writer.wait_for_more()
            if run == 1:
                pipeline.sync()
    pipeline.sync()
    pipeline.assert_same("public.orders")


@pytest.mark.slow
@BOTH
def test_the_part_of_a_table_that_a_stream_holds_is_what_is_compared(
    database: Database, make: MakePipeline
) -> None:
    """Filters, column lists, other names and types, and rows that are kept when they are deleted."""
    orders(database, 300)
    stream = {
        "table": "public.orders",
        "columns": ["id", "note", "at", "price"],
        "where": "id % 2 = 0 AND small < 50",
        "rename": {"note": "remark"},
        "types": {"price": "decimal(20,6)"},
        "deletes": "soft",
    }
    pipeline = make([stream])
    pipeline.sync()
    inside = "SELECT count(*) FROM orders WHERE id % 2 = 0 AND small < 50"
    for change in (
        "DELETE FROM orders WHERE id % 10 = 4",
        "UPDATE orders SET small = 99 WHERE id % 10 = 6",
        "UPDATE orders SET small = 1 WHERE id % 10 = 8",
    ):
        database.execute(change)
        found = verify(pipeline)
        assert found.verdict == "equal", found
        assert found.source_rows == database.query(inside)[0][0]
    pipeline.sync()
    assert verify(pipeline).verdict == "equal"
    # Rows that are deleted at the source live in the table.
    for path in data_files(pipeline, "public.orders"):
        plant_in(path, lambda table: with_column(table, "_deleted_at", pa.nulls(table.num_rows, DELETED)))
    assert verify(pipeline).extra > 0


@pytest.mark.slow
@BOTH
def test_a_dead_letter_is_told_as_one_and_not_as_a_difference(database: Database, make: MakePipeline) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, day date)")
    database.execute("INSERT INTO orders VALUES (1, '2026-01-01'), (2, 'infinity')")
    pipeline = make(["public.orders"])
    pipeline.sync()
    database.execute("INSERT INTO orders VALUES (3, '-infinity'), (4, '2026-01-04')")
    found = verify(pipeline)
    assert (found.verdict, found.dead_letters, found.table_rows) == ("equal", 2, 2)


@pytest.mark.slow
@BOTH
def test_a_table_that_keeps_deleted_rows_shows_no_older_version_of_a_dead_letter(
    database: Database, make: MakePipeline
) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, day date)")
    database.execute("INSERT INTO orders SELECT i, '2026-01-01' FROM generate_series(1, 9) AS i")
    pipeline = make([{"table": "public.orders", "deletes": "soft"}])
    pipeline.sync()
    database.execute("UPDATE orders SET day = 'infinity' WHERE id = 3")
    database.execute("DELETE FROM orders WHERE id = 4")
    for _ in range(2):
        found = verify(pipeline)
        assert (found.verdict, found.dead_letters, found.table_rows) == ("equal", 1, 7), found
        pipeline.sync()
    plant(pipeline, lambda table: pa.concat_tables([table, numbered(table.slice(0, 1), 3)]))
    found = verify(pipeline)
    assert (found.verdict, found.extra, found.dead_letters) == ("different", 1, 1), found
    assert [row.key for row in found.differences] == [{"id": "3"}]


def numbered(row: pa.Table, number: int) -> pa.Table:
    return with_column(row, "id", pa.array([number], pa.int32()))


@pytest.mark.slow
def test_dead_letters_alone_are_no_difference_however_many_there_are(
    database: Database, make: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that fit in every column that is compared, and are dead letters for another one."""
    monkeypatch.setattr("penstock.verify.drill.ROWS_MAX", 100)
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, day date)")
    database.execute(
        "INSERT INTO orders SELECT i, CASE WHEN i <= 600 THEN 'infinity' ELSE date '2026-01-01' END "
        "FROM generate_series(1, 1000) AS i"
    )
    pipeline = make(["public.orders"])
    pipeline.sync()
    database.execute("ALTER TABLE orders RENAME COLUMN day TO due")
    found = verify(pipeline)
    assert found.columns_not_compared == ("day",)
    assert (found.verdict, found.dead_letters, found.found) == ("equal", 600, 0), found
    plant(pipeline, missing_row)
    found = verify(pipeline)
    assert (found.verdict, found.dead_letters, found.missing) == ("different", 600, 1), found
    assert found.buckets_differing == found.buckets_looked_into == 1


@pytest.mark.slow
@BOTH
def test_a_history_has_every_change_of_the_log_once(database: Database, make: MakePipeline) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, v text)")
    database.execute("INSERT INTO orders SELECT i, 'v' || i FROM generate_series(1, 50) AS i")
    pipeline = make([{"table": "public.orders", "write": "append"}])
    pipeline.sync()
    database.execute("UPDATE orders SET v = v || '!' WHERE id <= 20")
    database.execute("DELETE FROM orders WHERE id > 40")
    pipeline.sync()
    database.execute("DELETE FROM orders WHERE id = 1")  # waits in the log, and is not the table's yet
    found = verify(pipeline)
    assert (found.verdict, found.against, found.table_rows) == ("equal", "change log", 30)
    changes = [
        path for path in data_files(pipeline, "public.orders") if pq.read_metadata(path).num_rows == 30
    ]
    whole = changes[0].read_bytes()
    plants: dict[str, tuple[Callable[[pa.Table], pa.Table], tuple[int, int, int]]] = {
        "lost": (lambda table: table.slice(1), (1, 0, 0)),
        "doubled": (lambda table: pa.concat_tables([table, table.slice(0, 1)]), (0, 1, 0)),
        "altered": (lambda table: with_column(table, "v", pa.array(["x"] * 30)), (0, 0, 30)),
    }
    for name, (change, counts) in plants.items():
        plant_in(changes[0], change)
        found = verify(pipeline)
        assert (found.missing, found.extra, found.different) == counts, name
        with open(changes[0], "wb") as sink:
            sink.write(whole)
    plant_in(changes[0], plants["lost"][0])
    said = Notes()
    assert not Pipeline.from_yaml(pipeline.file).verify((), said, repair=True).equal
    assert [line for line in said if "was not repaired" in line and "`write: append`" in line], said


def test_a_history_of_which_nothing_is_compared_is_not_called_equal(
    database: Database, make: MakePipeline
) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, v text); CREATE TABLE other (id int)")
    database.execute("INSERT INTO orders SELECT i, 'v' || i FROM generate_series(1, 50) AS i")
    pipeline = make([{"table": "public.orders", "write": "append"}])
    pipeline.sync()
    assert_nothing_is_compared(pipeline)
    database.execute("INSERT INTO other VALUES (1)")  # the log goes on without the table
    pipeline.sync()
    found = assert_nothing_is_compared(pipeline)
    # It is read all the same: it must have nothing that the log has not.
    assert found.compared_from is not None
    within = int(Lsn.parse(found.compared_from))
    [path] = data_files(pipeline, "public.orders")
    plant_in(path, lambda table: with_value(table, "_tx", 0, within))
    found = verify(pipeline)
    assert (found.verdict, found.missing, found.extra) == ("different", 0, 1), found
    database.execute("TRUNCATE orders")
    Pipeline.from_yaml(pipeline.file).resync(["public.orders"])
    assert verify(pipeline).verdict == "equal"  # nothing is all there is


def assert_nothing_is_compared(pipeline: PipelineUnderTest) -> VerifiedStream:
    report = Pipeline.from_yaml(pipeline.file).verify()
    [found] = report.streams
    assert (found.verdict, found.why_not) == ("not compared", "nothing yet"), found
    assert "after a sync that brings changes" in found.reason
    assert not report.complete  # exit code 11
    return found


def history_in_steps(database: Database, make: MakePipeline) -> PipelineUnderTest:
    """An append table whose changes came in several steps of the log."""
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, v text)")
    pipeline = make([{"table": "public.orders", "write": "append"}])
    for number in range(4):
        pipeline.sync()
        database.execute(f"INSERT INTO orders SELECT i, 'v' FROM generate_series({number}0, {number}9) AS i")
    pipeline.sync()
    assert (found := verify(pipeline)).verdict == "equal", found
    assert found.table_rows == 40
    return pipeline


def take_log(pipeline: PipelineUnderTest) -> int:
    """What retention may do at any moment; how many steps it took."""
    return apply_retention(pipeline.state / "log", ChangeLog(pipeline.state / "log").manifests()[1].end)


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment", ["verify.history._compared_from", "verify.history.plan_round", "verify.view.apply"]
)
def test_retention_in_the_middle_of_a_comparison_is_no_difference(
    database: Database, make: MakePipeline, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    pipeline = history_in_steps(database, make)
    taken: list[int] = []
    whole = operator.attrgetter(moment)(penstock)

    def with_retention(*given: Any) -> Any:
        is_look = moment.endswith("_compared_from")
        found = whole(*given) if is_look else None
        if not taken:
            taken.append(take_log(pipeline))
        return found if is_look else whole(*given)

    monkeypatch.setattr(f"penstock.{moment}", with_retention)
    found = verify(pipeline)
    assert taken[0] > 0
    assert (found.verdict, found.extra, found.missing) == ("equal", 0, 0), found
    assert 0 < found.table_rows < 40  # of what the log still has
    # The same where it may not try again.
    database.execute("INSERT INTO orders VALUES (100, 'v')")
    pipeline.sync()
    taken.clear()
    monkeypatch.setattr("penstock.verify.run.TRIES_MAX", 1)
    found = verify(pipeline)
    assert (found.verdict, found.why_not) == ("not compared", "for now"), found
    assert "change log" in found.reason


@pytest.mark.slow
def test_the_command_ends_with_a_code_for_what_it_found(
    database: Database, make: MakePipeline, tmp_path: Path
) -> None:
    orders(database, 50)
    pipeline = make(["public.orders"])
    pipeline.sync()
    page = tmp_path / "verify.html"
    ended = pipeline.sync_apart(command=("verify", "--html", str(page)))
    assert (ended.status, ended.answer["equal"]) == (0, True), ended
    assert "are equal" in page.read_text()
    plant(pipeline, missing_row)
    ended = pipeline.sync_apart(command=("verify", "public.orders", "--html", str(page)))
    assert (ended.status, ended.answer["equal"]) == (10, False), ended
    assert ended.answer["streams"][0]["differences"][0]["key"] == {"id": "8"}
    assert "id=8" in page.read_text()


@pytest.mark.parametrize("waits", [False, True], ids=["at rest", "changes wait"])
@pytest.mark.parametrize("damage", [without_beginning, pytest.param(without_end, marks=pytest.mark.slow)])
def test_a_file_that_cannot_be_read_is_named_and_the_other_tables_are_compared(
    database: Database, make: MakePipeline, damage: Callable[[bytes], bytes], waits: bool
) -> None:
    orders(database)
    database.execute("CREATE TABLE lines (id int PRIMARY KEY); INSERT INTO lines VALUES (1), (2)")
    pipeline = make(["public.orders", "public.lines"])
    pipeline.sync()
    [path] = data_files(pipeline, "public.orders")
    damage_file(path, damage)
    if waits:
        database.execute("UPDATE orders SET note = 'x' WHERE id = 7; INSERT INTO lines VALUES (3)")
    report = Pipeline.from_yaml(pipeline.file).verify()
    found = {each.stream: each for each in report.streams}
    assert (found["public.lines"].verdict, found["public.lines"].source_rows) == ("equal", 2 + waits), report
    assert (found["public.orders"].verdict, found["public.orders"].why_not) == ("not compared", "for now")
    assert "penstock resync public.orders" in found["public.orders"].reason
    assert path.name.partition("-")[2] in found["public.orders"].reason
    assert not report.complete  # exit code 11


@BOTH
def test_a_repair_gives_exactly_the_rows_that_differ_what_the_source_has(
    database: Database, make: MakePipeline
) -> None:
    orders(database)
    pipeline = make(["public.orders"])
    pipeline.sync()

    def damaged(table: pa.Table) -> pa.Table:
        return shifted_rows(extra_row(missing_row(swapped_pair(table))))

    plant(pipeline, damaged)
    database.execute("DELETE FROM orders WHERE id = 500")
    database.execute("UPDATE orders SET note = 'new' WHERE id = 700")
    report = Pipeline.from_yaml(pipeline.file).verify(repair=True)
    assert report.equal, report
    # 8 is lost and swapped with 9, 999999 is extra, 21 to 40 are shifted.
    assert report.streams[0].repaired == 23
    pipeline.sync()
    pipeline.assert_same("public.orders")


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("changed", [False, True], ids=["at rest", "between changes"])
def test_every_planted_difference_is_repaired_by_itself(
    database: Database, make: MakePipeline, changed: bool
) -> None:
    """Each in a table of its own. Some leave a file with more rows than the metadata says, or with fewer."""
    orders(database)
    planted = {f"public.orders_{number}": each for number, (each, *_) in enumerate(PLANTS.values())}
    for stream in planted:
        database.execute(f"CREATE TABLE {stream} (LIKE orders INCLUDING ALL)")
        database.execute(f"INSERT INTO {stream} SELECT * FROM orders")
    pipeline = make(list(planted))

    def change_and_sync(first: int) -> None:
        if first:
            for stream in planted:
                database.execute(f"DELETE FROM {stream} WHERE id BETWEEN {first} AND {first + 9}")
                database.execute(f"UPDATE {stream} SET note = 'new' WHERE id > 990 OR id = {first + 10}")
        pipeline.sync()

    change_and_sync(0)
    if changed:
        change_and_sync(100)
    for stream, change in planted.items():
        plant(pipeline, change, stream)
    if changed:
        change_and_sync(200)
    before = Pipeline.from_yaml(pipeline.file).verify()
    assert {each.verdict for each in before.streams} == {"different"}, before
    report = Pipeline.from_yaml(pipeline.file).verify(repair=True)
    assert report.equal, report
    assert all(each.repaired for each in report.streams), report
    for first in (0, 300):  # rounds go on with the files as they are
        change_and_sync(first)
        for stream in planted:
            pipeline.assert_same(stream)


@pytest.mark.slow
@BOTH
def test_a_sync_after_a_repair_that_failed_goes_on(
    database: Database, make: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It closes the round that the repair left open, without what nobody has any more."""
    orders(database, 100)
    pipeline = make(["public.orders"])
    pipeline.sync()
    plant(pipeline, doubled_row)
    with monkeypatch.context() as failing:
        failing.setattr("penstock.lake.repair_round.repaired", failed)
        with pytest.raises(RuntimeError, match="on the way"):
            Pipeline.from_yaml(pipeline.file).verify(repair=True)
    database.execute("UPDATE orders SET note = 'later' WHERE id = 50")
    pipeline.sync()
    found = verify(pipeline)
    assert (found.verdict, found.extra, found.found) == ("different", 1, 1), found
    assert Pipeline.from_yaml(pipeline.file).verify(repair=True).equal
    pipeline.sync()
    pipeline.assert_same("public.orders")


def failed(*_: Any) -> FoldResult:
    raise RuntimeError("on the way")


def test_a_repair_of_more_than_is_looked_into_at_a_time_goes_on_in_pieces(
    database: Database, make: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders(database)
    pipeline = make(["public.orders"])
    pipeline.sync()
    plant(pipeline, lambda table: with_column(table, "note", pa.array(["x"] * table.num_rows)))
    ((rows,),) = database.query("SELECT count(*) FROM orders")
    monkeypatch.setattr("penstock.verify.drill.ROWS_MAX", rows // 7)
    said = Notes()
    report = Pipeline.from_yaml(pipeline.file).verify((), said, repair=True)
    assert report.equal, " ".join(said)
    assert report.streams[0].repaired == rows, "each row once"
    pieces = [line for line in said if "were given what the source has" in line]
    assert len(pieces) > 5, said
    assert "`penstock resync public.orders` may be sooner done" in pieces[0]
    assert "resync" not in pieces[-1]
    pipeline.assert_same("public.orders")


@pytest.mark.slow
def test_a_repair_that_does_not_help_comes_to_an_end(
    database: Database, make: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders(database)
    pipeline = make(["public.orders"])
    pipeline.sync()
    plant(pipeline, lambda table: table.slice(5))
    monkeypatch.setattr("penstock.verify.mending._repair", repaired_in_vain)
    said = Notes()
    report = Pipeline.from_yaml(pipeline.file).verify((), said, repair=True)
    assert not report.equal
    assert "still differs after 5 rows of it were repaired" in " ".join(said)


def repaired_in_vain(
    verification: Verification, _lane: LakeLane, given_up: set[StreamId], _left: dict[StreamId, str]
) -> dict[StreamId, int]:
    return {stream: 1 for stream in verification.found if stream not in given_up}


@pytest.mark.slow
@BOTH
def test_a_repair_is_exact_while_others_write(database: Database, make: MakePipeline) -> None:
    orders(database)
    pipeline = make(["public.orders"])
    pipeline.sync()
    plant(pipeline, shifted_zone)
    with Writer(database) as writer:
        report = Pipeline.from_yaml(pipeline.file).verify(repair=True)
        writer.wait_for_more()
    assert report.equal, report
    assert (report.streams[0].repaired or 0) >= 500
    pipeline.sync()
    pipeline.assert_same("public.orders")


def shifted_rows(table: pa.Table) -> pa.Table:
    inside = pc.and_(pc.greater(table.column("id"), 20), pc.less_equal(table.column("id"), 40))
    moved = pc.add(table.column("at").combine_chunks().view(pa.int64()), 7_200_000_000)
    column = table.column("at").combine_chunks()
    return with_column(table, "at", pc.if_else(inside.combine_chunks(), moved.view(column.type), column))


@pytest.mark.slow
@pytest.mark.parametrize("failpoint", ["cdc.prepared", "destination.recorded", "cdc.committed"])
def test_a_repair_that_is_killed_leaves_a_pipeline_that_goes_on(
    database: Database, make: MakePipeline, failpoint: str
) -> None:
    orders(database, 100)
    pipeline = make(["public.orders"], destination=DESTINATIONS["parquet"])
    pipeline.sync()
    plant(pipeline, missing_row)
    ended = pipeline.sync_apart(failpoint, command=("verify", "--repair"))
    assert ended.killed, ended
    database.execute("UPDATE orders SET note = 'later' WHERE id = 50")
    ended = pipeline.sync_apart(command=("verify", "--repair"))
    assert (ended.status, ended.answer["equal"]) == (0, True), ended
    pipeline.sync()
    pipeline.assert_same("public.orders")


@pytest.mark.slow
@BOTH
def test_a_sample_reads_ranges_of_the_key_and_finds_what_is_in_them(
    database: Database, make: MakePipeline
) -> None:
    orders(database, 12_000)
    database.execute("ANALYZE orders")
    pipeline = make(["public.orders"])
    pipeline.sync()
    found = verify(pipeline, sample=0.5)
    assert found.verdict == "equal", found
    assert 3_000 < found.source_rows == found.table_rows < 9_000
    plant(pipeline, shifted_zone)
    found = verify(pipeline, sample=0.5)
    assert found.different == found.source_rows > 3_000


@pytest.mark.slow
@BOTH
def test_an_earlier_version_of_a_table_is_compared_at_its_own_position(
    database: Database, make: MakePipeline
) -> None:
    orders(database, 100)
    pipeline = make(["public.orders"])
    pipeline.sync()
    first = verify(pipeline)
    plant(pipeline, missing_row)
    database.execute("UPDATE orders SET note = 'new' WHERE id > 90")
    database.execute("INSERT INTO orders (id) VALUES (8) ON CONFLICT (id) DO UPDATE SET note = 'back'")
    pipeline.sync()
    assert verify(pipeline).verdict == "equal"  # the change has put the row right
    found = verify(pipeline, at=first.table_position)
    assert found.verdict == "equal"  # as it would have, in any version
    assert Lsn.parse(found.table_position or "") <= Lsn.parse(first.table_position or "")
    database.execute("DELETE FROM orders WHERE id = 1")
    assert verify(pipeline, at=first.table_position).source_rows == 99
    with pytest.raises(ConfigError, match="not yet"):
        verify(pipeline, at="FFFFFFFF/0")
    assert verify(pipeline, at="0/8").why_not == "for now"


@pytest.mark.slow
def test_a_sample_of_a_key_without_an_order_is_by_its_hash(database: Database, make: MakePipeline) -> None:
    database.execute("CREATE TABLE orders (code text PRIMARY KEY, v int)")
    database.execute("INSERT INTO orders SELECT md5(i::text), i FROM generate_series(1, 5000) AS i")
    pipeline = make(["public.orders"])
    pipeline.sync()
    found = verify(pipeline, sample=0.2)
    assert found.verdict == "equal", found
    assert 700 < found.source_rows == found.table_rows < 1_300


@pytest.mark.slow
@BOTH
def test_tables_of_every_kind_are_compared(parted: Database, make: MakePipeline) -> None:
    """Partitioned, empty, without a plain key, full refreshes, and with columns that just changed."""
    parted.execute("CREATE TABLE empty (id int PRIMARY KEY)")
    parted.execute("CREATE TABLE pairs (a text, b numeric, v int, PRIMARY KEY (a, b))")
    parted.execute("INSERT INTO pairs SELECT 'ä' || i % 7, i, i FROM generate_series(1, 100) AS i")
    parted.execute("CREATE TABLE still (id int)")
    pipeline = make(
        ["public.m", "public.empty", "public.pairs", {"table": "public.still", "mode": "full_refresh"}]
    )
    pipeline.sync()
    parted.execute("UPDATE m SET day = day + 31 WHERE id <= 5 AND day < '2026-01-10'")  # to another leaf
    parted.execute("UPDATE pairs SET b = -b WHERE a = 'ä1'")
    parted.execute("ALTER TABLE pairs ADD COLUMN w int DEFAULT 7")
    found = {each.stream: each for each in Pipeline.from_yaml(pipeline.file).verify().streams}
    assert {name: each.verdict for name, each in found.items()} == {
        "public.m": "equal",
        "public.empty": "equal",
        "public.pairs": "equal",
        "public.still": "not compared",
    }
    assert found["public.pairs"].columns_not_compared == ("w",)
    assert found["public.still"].why_not == "by its mode"
    assert (found["public.m"].source_rows, found["public.empty"].source_rows) == (100, 0)
    parted.execute("UPDATE pairs SET v = 0 WHERE a = 'ä2'")  # the log has the new column now
    again = verify(pipeline, "public.pairs")
    assert (again.verdict, again.columns_not_compared) == ("equal", ())


@pytest.mark.slow
def test_what_is_told_of_differences_is_bounded(
    database: Database, make: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.verify.drill.ROWS_MAX", 100)
    orders(database)
    pipeline = make(["public.orders"])
    pipeline.sync()
    plant(pipeline, shifted_zone)
    found = verify(pipeline, limit=5)
    assert found.verdict == "different"
    assert 0 < found.buckets_looked_into < found.buckets_differing
    assert len(found.differences) == 5
    assert found.left_out == found.found - 5
    assert all(column.source is None for row in found.differences for column in row.columns)


@pytest.mark.slow
@BOTH
def test_tables_are_compared_while_an_instance_keeps_them_up(database: Database, make: MakePipeline) -> None:
    """By the instance itself and by the command beside it: no false alarm, and a true one is heard."""
    orders(database)
    pipeline = make(
        ["public.orders"], lanes={"lake": {"every": "1s"}}, log={"seal_every": "1s"}, verify={"every": "1s"}
    )
    instance = Instance(pipeline, "one")
    differences = 'penstock_verify_differences{stream="public.orders"}'

    seen: set[str] = set()

    def runs() -> int:
        """Counted here: only the newest results are kept."""
        seen.update(path.name for path in (pipeline.state / "verify").glob("*.json"))
        return len(seen)

    with instances(instance):
        instance.start()
        not_compared = differences.replace("differences", "not_compared")
        instance.wait_until(lambda: instance.metrics().get(not_compared) == 0, "a first comparison")
        with Writer(database) as writer:
            for _ in range(3):
                report = Pipeline.from_yaml(instance.file).verify()
                assert report.equal, report
                assert report.complete, report
                writer.wait_for_more()
            begun = runs()
            instance.wait_until(lambda: runs() >= begun + 3, "comparisons by the instance")
        assert instance.metrics()[differences] == 0
        assert instance.metrics()["penstock_verify_failures_total"] == 0
        with pytest.raises(SourceBusyError, match="at work"):
            Pipeline.from_yaml(instance.file).verify(repair=True)
        position = flushed_position(database.url)
        instance.wait_until(
            lambda: is_acknowledged(database.url, pipeline.name, position), "all changes to be in the table"
        )
        for path in data_files(pipeline, "public.orders"):
            plant_in(path, shifted_zone)
        instance.wait_until(lambda: instance.metrics()[differences] > 0, "the difference to be told")
        assert "differs from its source" in instance.said()
        assert instance.stop() == 0


@pytest.mark.slow
def test_the_first_comparison_by_schedule_waits_for_the_first_load(
    database: Database, make: MakePipeline, tmp_path: Path
) -> None:
    orders(database)
    pipeline = make(
        ["public.orders"], lanes={"lake": {"every": "1s"}}, log={"seal_every": "1s"}, verify={"every": "1s"}
    )
    reached, gate = tmp_path / "reached", tmp_path / "gate"
    environment = {
        "PENSTOCK_FAILPOINT": "load.planned=pause",
        "PENSTOCK_FAILPOINT_REPORT": str(reached),
        "PENSTOCK_FAILPOINT_GATE": str(gate),
    }
    instance = Instance(pipeline, "one", environment=environment)
    results = pipeline.state / "verify"
    with instances(instance):
        instance.start()
        instance.wait_until(reached.exists, "the load to be planned")
        with Writer(database):
            # Each step takes a second in which a comparison could begin.
            instance.wait_until(
                lambda: len(ChangeLog(pipeline.state / "log").manifests()) >= 5, "the log to go on meanwhile"
            )
            gate.touch()
            instance.wait_until(lambda: any(results.glob("*.json")), "a first comparison")
        first = json.loads(min(results.glob("*.json")).read_bytes())
        assert (first["equal"], first["complete"]) == (True, True), first
        assert instance.stop() == 0

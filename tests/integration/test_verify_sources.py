"""`penstock verify` for MySQL, MariaDB and MongoDB: every planted difference is named, and nothing else is.

What does not depend on the source, `test_verify` has for Postgres.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import Pipeline
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.core.verify_report import VerifiedStream
from penstock.lake.repair import Repairs
from penstock.lake.repair_round import RepairRounds
from penstock.sources.mongodb import warming as mongo_warming
from penstock.sources.mysql import held_snapshot, snapshots
from penstock.sources.mysql.binlog import warming as mysql_warming
from penstock.verify.outcome import digest_all
from penstock.verify.run import TRIES_MAX, Verification
from tests.mongo_server import MongoServer
from tests.mongo_shop import new_shop
from tests.mysql_server import MARIADB, MYSQL, MysqlServer
from tests.pipelines import Notes, PipelineUnderTest
from tests.running import Instance, instances
from tests.verifiable import (
    MongoOrders,
    MysqlOrders,
    Verifiable,
    another,
    data_files,
    plant_in,
    with_column,
    with_value,
)

pytestmark = pytest.mark.integration
ROWS = 1000
slow = pytest.mark.slow


@pytest.fixture(scope="module")
def mysql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MysqlServer]:
    with MysqlServer(tmp_path_factory.mktemp("mysql"), MYSQL) as started:
        yield started


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MysqlServer]:
    with MysqlServer(tmp_path_factory.mktemp("mariadb"), MARIADB) as started:
        yield started


@pytest.fixture
def orders(request: pytest.FixtureRequest) -> Iterator[Verifiable]:
    """No test waits for a compiler."""
    if not request.param.startswith("mongo"):
        mysql_warming.warm_up()
        yield MysqlOrders(request.getfixturevalue(request.param))
        return
    mongo_warming.warm_up()
    mongo = request.getfixturevalue("mongo")
    with new_shop(mongo) as shop:
        yield MongoOrders(mongo, shop, request.param.partition("-")[2])


def of_sources(*quick: str) -> pytest.MarkDecorator:
    """Every source; `make test` has those that are named."""
    named = ("mysql", "mariadb", "mongo-document", "mongo-fields")
    each = [pytest.param(name, marks=() if name in quick else slow) for name in named]
    return pytest.mark.parametrize("orders", each, indirect=True)


EVERY = of_sources()
DESTINATION = pytest.mark.parametrize("destination", ["parquet", pytest.param("iceberg", marks=slow)])


def verify(pipeline: PipelineUnderTest, **options: Any) -> VerifiedStream:
    [found] = Pipeline.from_yaml(pipeline.file).verify(**options).streams
    return found


def longest(pipeline: PipelineUnderTest, stream: str) -> Path:
    return max(data_files(pipeline, stream), key=lambda path: pq.read_metadata(path).num_rows)


@slow
@EVERY
@DESTINATION
def test_equal_tables_are_found_equal_also_when_changes_wait_in_the_log(
    orders: Verifiable, destination: str, tmp_path: Path
) -> None:
    orders.fill(ROWS)
    pipeline = orders.pipeline(tmp_path / "pipeline", destination)
    pipeline.sync()
    assert (found := verify(pipeline)).verdict == "equal", found
    assert (found.source_rows, found.table_rows) == (ROWS, ROWS)
    before = pipeline.version(orders.stream)
    orders.change()
    found = verify(pipeline)
    assert found.verdict == "equal", found
    assert found.source_rows == found.table_rows == orders.count() == ROWS * 9 // 10
    assert found.position != found.table_position
    assert pipeline.version(orders.stream) == before  # the log was applied for the comparison alone
    pipeline.sync()
    assert verify(pipeline).verdict == "equal"


@of_sources("mysql")
@DESTINATION
def test_every_planted_difference_is_found_and_named(
    orders: Verifiable, destination: str, tmp_path: Path
) -> None:
    orders.fill(ROWS)
    pipeline = orders.pipeline(tmp_path / "pipeline", destination)
    pipeline.sync()
    path = longest(pipeline, orders.stream)
    table = pq.ParquetFile(path).read()
    values = [name for name in table.column_names if name != orders.key]
    rows = {name: _row_with(table, name, place) for place, name in enumerate(values)}

    def damaged(whole: pa.Table) -> pa.Table:
        for name, row in rows.items():
            whole = with_value(whole, name, row, another(whole.column(name)[row]))
        last = whole.num_rows - 1
        extra = with_value(whole.slice(last), orders.key, 0, _new_key(whole, orders.key))
        return pa.concat_tables([whole.slice(0, last), extra])  # the last one is missing, another there

    plant_in(path, damaged)
    found = verify(pipeline, limit=100, show_values=True)
    assert (found.missing, found.extra, found.different) == (1, 1, len(set(rows.values()))), found
    assert found.columns == dict.fromkeys(values, 1)
    told = {each.key[orders.key]: each for each in found.differences}
    keys = [str(key) for key in table.column(orders.key).to_pylist()]
    for name, row in rows.items():
        [column] = [each for each in told[keys[row]].columns if each.name == name]
        assert column.source != column.table
    assert told[keys[-1]].kind == "missing"
    assert told[str(_new_key(table, orders.key))].kind == "extra"
    expected = len(set(rows.values())) + 2
    if isinstance(orders, MysqlOrders):
        # At MySQL nothing is written for a comparison: the log ends where the table stands.
        said = Notes()
        report = Pipeline.from_yaml(pipeline.file).verify((), said, repair=True)
        assert (report.equal, report.streams[0].repaired) == (False, 0)
        assert "when something was committed" in " ".join(said)
        orders.server.execute("UPDATE shop.orders SET name = 'new' WHERE id = 999")
        expected -= keys[-1] == "999"
    found = verify(pipeline, repair=True)
    assert (found.verdict, found.repaired) == ("equal", expected), found
    pipeline.sync()
    assert verify(pipeline).verdict == "equal"
    orders.assert_same(pipeline)


def _row_with(table: pa.Table, name: str, first: int) -> int:
    """The first row from there on that has a value, and is not the last; any, if none has (`_rest`)."""
    column = table.column(name)
    return next((row for row in range(first, table.num_rows - 1) if column[row].is_valid), first)


def _new_key(table: pa.Table, name: str) -> Any:
    key = table.column(name)[0].as_py()
    return "f" * len(key) if isinstance(key, str) else key + 999_999


def spoilt(table: pa.Table, key: str) -> pa.Table:
    """A hundred rows are missing, one is extra, one is there twice, and all others have a wrong value."""
    name = "document" if "document" in table.column_names else "name"
    values = table.column(name).to_pylist()
    wrong = [None if value is None else value.replace("n", "m", 1) for value in values]
    table = with_column(table, name, pa.array(wrong, table.schema.field(name).type))
    last = table.slice(table.num_rows - 1)
    return pa.concat_tables([table.slice(100), with_value(last, key, 0, _new_key(table, key)), last])


@slow
@EVERY
@DESTINATION
def test_a_repair_is_exact_while_others_write(orders: Verifiable, destination: str, tmp_path: Path) -> None:
    orders.fill(ROWS)
    pipeline = orders.pipeline(tmp_path / "pipeline", destination)
    pipeline.sync()
    for path in data_files(pipeline, orders.stream):
        plant_in(path, lambda table: spoilt(table, orders.key))
    with orders.writing() as wait_for_more:
        found = verify(pipeline, repair=True)
        wait_for_more()
    assert found.verdict == "equal", found
    assert (found.repaired or 0) >= 400, found  # no writer touches the lower half
    pipeline.sync()
    found = verify(pipeline)
    assert (found.verdict, found.notes, found.source_rows) == ("equal", (), orders.count()), found
    orders.assert_same(pipeline)


@slow
@EVERY
@DESTINATION
def test_what_is_changed_while_rows_are_put_right_is_not_turned_back(
    orders: Verifiable, destination: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that were found wrong are deleted, get other keys or other values before they are written."""
    orders.fill(ROWS)
    pipeline = orders.pipeline(tmp_path / "pipeline", destination)
    pipeline.sync()
    plant_in(longest(pipeline, orders.stream), lambda table: spoilt(table, orders.key))
    whole, changed = RepairRounds.carry_out, list[bool]()

    def changed_first(rounds: RepairRounds, position: Lsn, repairs: Repairs) -> dict[StreamId, str]:
        if not changed:
            orders.change()
            changed.append(True)
        return whole(rounds, position, repairs)

    monkeypatch.setattr(RepairRounds, "carry_out", changed_first)
    with orders.connected() as connection:
        orders.write(connection, 1)
    found = verify(pipeline, repair=True)
    assert (found.verdict, changed, found.source_rows) == ("equal", [True], orders.count()), found
    assert (found.repaired or 0) > 200, found
    pipeline.sync()
    orders.assert_same(pipeline)


@slow
@EVERY
@DESTINATION
def test_rows_that_the_source_has_no_more_stay_as_deleted_where_those_are_kept(
    orders: Verifiable, destination: str, tmp_path: Path
) -> None:
    orders.fill(ROWS)
    pipeline = orders.pipeline(tmp_path / "pipeline", destination, deletes="soft")
    pipeline.sync()
    path = longest(pipeline, orders.stream)
    extra = str(_new_key(pq.ParquetFile(path).read(), orders.key))
    plant_in(path, lambda table: spoilt(table, orders.key))
    orders.change()
    found = verify(pipeline, repair=True)
    assert (found.verdict, found.source_rows) == ("equal", orders.count()), found
    pipeline.sync()
    orders.assert_same(pipeline)
    rows = pq.read_table(pipeline.path(orders.stream)).to_pylist()
    deleted = {str(row[orders.key]) for row in rows if row["_deleted_at"] is not None}
    assert extra in deleted
    assert len(deleted) == ROWS // 5 - 20 + 1  # of those that the change deleted, twenty were missing


@slow
@pytest.mark.parametrize("orders", ["mysql", "mongo-document"], indirect=True)
@pytest.mark.parametrize(
    ("failpoint", "left"), [("cdc.prepared", 5), ("destination.recorded", 0), ("cdc.committed", 0)]
)
def test_a_repair_that_is_killed_loses_and_doubles_nothing(
    orders: Verifiable, failpoint: str, left: int, tmp_path: Path
) -> None:
    """In its own round: the first one takes the table to just before the position."""
    orders.fill(ROWS)
    pipeline = orders.pipeline(tmp_path / "pipeline", "parquet")
    pipeline.sync()
    plant_in(longest(pipeline, orders.stream), lambda table: table.slice(0, table.num_rows - 5))
    with orders.connected() as connection:
        orders.write(connection, 1)
        ended = pipeline.sync_apart(f"{failpoint}=kill@2", command=("verify", "--repair"))
        assert ended.killed, ended
        orders.write(connection, 2)
        pipeline.sync()  # closes what the repair left open
        found = verify(pipeline)
        assert (found.missing, found.extra, found.different) == (left, 0, 0), found
        orders.write(connection, 3)
        found = verify(pipeline, repair=True)
    assert (found.verdict, found.repaired) == ("equal", left), found
    pipeline.sync()
    orders.assert_same(pipeline)


@slow
@pytest.mark.parametrize("orders", ["mongo-document", "mongo-fields"], indirect=True)
def test_pieces_of_a_repair_wait_for_nobody_where_a_comparison_writes_at_the_source(
    orders: Verifiable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.fill(ROWS)
    pipeline = orders.pipeline(tmp_path / "pipeline", "parquet")
    pipeline.sync()
    plant_in(longest(pipeline, orders.stream), lambda table: table.slice(table.num_rows))
    missing = verify(pipeline).missing
    monkeypatch.setattr("penstock.verify.drill.ROWS_MAX", missing // 4)
    said = Notes()
    report = Pipeline.from_yaml(pipeline.file).verify((), said, repair=True)
    assert report.equal, " ".join(said)
    assert report.streams[0].repaired == missing > 200
    assert len([line for line in said if "were given what the source has" in line]) > 3, said
    orders.assert_same(pipeline)


@slow
def test_a_paused_collection_is_left_as_it_is_and_told_and_the_others_are_repaired(
    mongo: MongoServer, tmp_path: Path
) -> None:
    mongo_warming.warm_up()
    with new_shop(mongo) as shop:
        orders = MongoOrders(mongo, shop, "document")
        orders.fill(100)
        pipeline = orders.pipeline(tmp_path / "pipeline", "parquet")
        words = f"{shop.name}.words"
        pipeline.streams[:] = [orders.stream, words]
        pipeline.write_file()
        pipeline.sync()
        for stream in (orders.stream, words):
            plant_in(longest(pipeline, stream), lambda table: table.slice(3))
        opened = Pipeline.from_yaml(pipeline.file)
        opened.pause([words])
        said = Notes()
        found = {each.stream: each for each in opened.verify((), said, repair=True).streams}
        assert (found[orders.stream].verdict, found[orders.stream].repaired) == ("equal", 3), found
        assert (found[words].verdict, found[words].repaired) == ("different", 0), found
        assert f"`penstock resume {words}` lets it go on" in " ".join(said)
        opened.resume([words])
        report = opened.verify(repair=True)
        assert report.equal, report
        assert [each.repaired for each in report.streams] == [0, 3]
        orders.assert_same(pipeline)


@of_sources("mongo-document")
@DESTINATION
def test_writers_cause_no_false_alarm(orders: Verifiable, destination: str, tmp_path: Path) -> None:
    orders.fill(ROWS)
    pipeline = orders.pipeline(tmp_path / "pipeline", destination)
    pipeline.sync()
    with orders.writing() as wait_for_more:
        for run in range(4):
            found = verify(pipeline)
            assert found.verdict == "equal", found
            assert found.position != found.table_position
            wait_for_more()
            if run == 1:
                pipeline.sync()
    pipeline.sync()
    found = verify(pipeline)
    assert (found.verdict, found.source_rows) == ("equal", orders.count())


@slow
@EVERY
def test_tables_are_compared_while_an_instance_keeps_them_up(orders: Verifiable, tmp_path: Path) -> None:
    """By the instance itself and by the command beside it: no false alarm, and a true one is heard."""
    orders.fill(ROWS)
    often = {"lanes": {"lake": {"every": "1s"}}, "log": {"seal_every": "1s"}, "verify": {"every": "1s"}}
    pipeline = orders.pipeline(tmp_path / "pipeline", "parquet", settings=often)
    instance = Instance(pipeline, "one")
    differences = f'penstock_verify_differences{{stream="{orders.stream}"}}'
    with instances(instance):
        instance.start()
        not_compared = differences.replace("differences", "not_compared")
        instance.wait_until(lambda: instance.metrics().get(not_compared) == 0, "a first comparison")
        with orders.writing() as wait_for_more:
            for _ in range(3):
                report = Pipeline.from_yaml(instance.file).verify()
                assert report.equal, report
                assert report.complete, report
                wait_for_more()
        assert instance.metrics()[differences] == 0
        assert instance.metrics()["penstock_verify_failures_total"] == 0
        for path in data_files(pipeline, orders.stream):
            plant_in(path, lambda table: table.slice(1))
        instance.wait_until(lambda: instance.metrics()[differences] > 0, "the difference to be told")
        assert instance.stop() == 0


@slow
@EVERY
def test_a_part_of_the_rows_is_compared_with_the_same_part(orders: Verifiable, tmp_path: Path) -> None:
    orders.fill(6 * ROWS)
    pipeline = orders.pipeline(tmp_path / "pipeline", "parquet")
    pipeline.sync()
    found = verify(pipeline, sample=0.5)
    assert found.verdict == "equal", found
    assert 2 * ROWS < found.source_rows == found.table_rows < 4 * ROWS
    for path in data_files(pipeline, orders.stream):
        plant_in(path, lambda table: table.slice(0, 0))
    found = verify(pipeline, sample=0.5)
    assert found.missing == found.source_rows > 2 * ROWS


@slow
@EVERY
def test_rows_that_are_kept_when_they_are_deleted_do_not_count(orders: Verifiable, tmp_path: Path) -> None:
    orders.fill(ROWS)
    pipeline = orders.pipeline(tmp_path / "pipeline", "parquet", deletes="soft")
    pipeline.sync()
    orders.change()
    for _ in range(2):
        found = verify(pipeline)
        assert (found.verdict, found.source_rows) == ("equal", orders.count()), found
        pipeline.sync()


@slow
@EVERY
def test_an_append_table_is_compared_with_the_change_log(orders: Verifiable, tmp_path: Path) -> None:
    orders.fill(100)
    pipeline = orders.pipeline(tmp_path / "pipeline", "parquet", write="append")
    pipeline.sync()
    orders.change()
    pipeline.sync()
    found = verify(pipeline)
    assert (found.verdict, found.against) == ("equal", "change log"), found
    changes = found.table_rows
    assert changes >= 30
    path = min(data_files(pipeline, orders.stream), key=lambda each: pq.read_metadata(each).num_rows)
    plant_in(path, lambda table: table.slice(1))
    assert verify(pipeline).missing == 1


MYSQLS = pytest.mark.parametrize("orders", ["mysql", pytest.param("mariadb", marks=slow)], indirect=True)


@slow
@MYSQLS
def test_several_tables_of_which_one_has_no_snapshots_are_compared_and_that_one_is_told(
    orders: MysqlOrders, tmp_path: Path
) -> None:
    orders.fill(ROWS)
    orders.server.execute(
        "CREATE TABLE shop.plain (id INT PRIMARY KEY, v INT) ENGINE = MyISAM",
        "INSERT INTO shop.plain VALUES (1, 1)",
        "CREATE TABLE shop.empty (id INT PRIMARY KEY)",
        "CREATE TABLE shop.pairs (a VARCHAR(20), b DECIMAL(10,3), v INT, PRIMARY KEY (a, b))",
        "INSERT INTO shop.pairs VALUES " + ", ".join(f"('ä{n % 7}', {n}, {n})" for n in range(100)),
    )
    pipeline = orders.pipeline(tmp_path / "pipeline", "parquet")
    pipeline.streams[:] = [f"shop.{name}" for name in ("orders", "plain", "empty", "pairs")]
    pipeline.write_file()
    pipeline.sync()
    orders.server.execute("UPDATE shop.pairs SET b = -b WHERE a = 'ä1'")
    report = Pipeline.from_yaml(pipeline.file).verify()
    found = {each.stream.partition(".")[2]: each for each in report.streams}
    assert {name: each.verdict for name, each in found.items()} == {
        "orders": "equal", "plain": "not compared", "empty": "equal", "pairs": "equal",
    }  # fmt: skip
    assert "MyISAM" in found["plain"].reason
    assert "InnoDB" in found["plain"].reason
    assert (found["pairs"].source_rows, found["empty"].source_rows) == (100, 0)


@slow
@MYSQLS
@pytest.mark.parametrize("how", ["ADD COLUMN later INT", "MODIFY small INT UNSIGNED"])
def test_an_alter_does_not_wait_for_a_comparison_and_is_no_difference(
    orders: MysqlOrders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The first is followed, and what differs is the row that was planted; after the second it is loaded."""
    orders.fill(ROWS)
    pipeline = orders.pipeline(tmp_path / "pipeline", "parquet")
    pipeline.sync()
    whole = digest_all

    def altered_after(*given: Any, **named: Any) -> Any:
        """Both sides have been read once by then, under a snapshot that is still held."""
        found = whole(*given, **named)
        orders.server.execute("SET lock_wait_timeout = 30", f"ALTER TABLE shop.orders {how}")
        monkeypatch.undo()
        return found

    path = longest(pipeline, orders.stream)
    plant_in(path, lambda table: table.slice(1))
    monkeypatch.setattr("penstock.verify.run.digest_all", altered_after)
    found = verify(pipeline)
    if how.startswith("ADD"):
        assert (found.missing, found.extra, found.different) == (1, 0, 0), found
    else:
        assert found.verdict == "not compared", found
        assert "loaded again" in found.reason


def two_tables(orders: MysqlOrders, directory: Path, streams: list[str]) -> PipelineUnderTest:
    """`orders` and `pairs`."""
    orders.fill(20)
    orders.server.execute(
        "CREATE TABLE shop.pairs (id INT PRIMARY KEY, v INT)", "INSERT INTO shop.pairs VALUES (1, 1), (2, 2)"
    )
    pipeline = orders.pipeline(directory, "parquet")
    pipeline.streams[:] = streams
    pipeline.write_file()
    pipeline.sync()
    return pipeline


def one_after_the_other(monkeypatch: pytest.MonkeyPatch, between: Callable[[list[str]], None]) -> None:
    """Each table by itself, as large ones are; `between` is told whose digests are about to be made."""
    whole = digest_all

    def told_first(stages: Any, comparisons: Any, **named: Any) -> Any:
        between([each.name for each in comparisons])
        return whole(stages, comparisons, **named)

    monkeypatch.setattr("penstock.verify.run.is_light", lambda *_: False)
    monkeypatch.setattr("penstock.verify.run.digest_all", told_first)


def told_of_each(pipeline: PipelineUnderTest) -> dict[str, VerifiedStream]:
    return {each.stream: each for each in Pipeline.from_yaml(pipeline.file).verify().streams}


@pytest.mark.parametrize("orders", ["mysql"], indirect=True)
@pytest.mark.parametrize(
    "streams", [["shop.orders", "shop.pairs"], pytest.param(["shop.*"], marks=slow)], ids=["named", "pattern"]
)
def test_a_table_that_is_dropped_before_its_turn_is_told_and_the_others_are_compared(
    orders: MysqlOrders, streams: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = two_tables(orders, tmp_path / "pipeline", streams)
    one_after_the_other(monkeypatch, lambda _: orders.server.execute("DROP TABLE IF EXISTS shop.pairs"))
    found = told_of_each(pipeline)
    assert found["shop.orders"].verdict == "equal", found
    assert (found["shop.pairs"].verdict, found["shop.pairs"].reason) == (
        "not compared",
        "its table is gone at the source",
    )


@slow
def test_a_collection_that_is_dropped_before_its_turn_is_told_and_the_others_are_compared(
    mongo: MongoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mongo_warming.warm_up()
    with new_shop(mongo) as shop:
        orders = MongoOrders(mongo, shop, "document")
        pipeline = orders.pipeline(tmp_path / "pipeline", "parquet")
        pipeline.streams[:] = [f"{shop.name}.{name}" for name in ("orders", "words")]
        pipeline.write_file()
        pipeline.sync()
        one_after_the_other(monkeypatch, lambda _: shop["words"].drop())
        found = told_of_each(pipeline)
        assert found[orders.stream].verdict == "equal", found
        words = found[f"{shop.name}.words"]
        assert (words.verdict, words.reason) == ("not compared", "its table is gone at the source")


@MYSQLS
@pytest.mark.parametrize("often", [pytest.param(1, marks=slow), TRIES_MAX], ids=["once", "each time"])
def test_a_session_that_somebody_ends_costs_its_own_table_a_try_and_no_other(
    orders: MysqlOrders, often: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = two_tables(orders, tmp_path / "pipeline", ["shop.orders", "shop.pairs"])
    held: list[Any] = []
    whole = snapshots.begin_snapshots

    def remembered(connections: Any, *given: Any) -> Any:
        held[:] = connections
        return whole(connections, *given)

    ended: list[str] = []

    def end_sessions(names: list[str]) -> None:
        if names == ["shop.orders"] and len(ended) < often:
            ended.extend(names)
            for connection in held:
                orders.server.execute(f"KILL {connection.thread_id()}")

    monkeypatch.setattr(held_snapshot, "begin_snapshots", remembered)
    one_after_the_other(monkeypatch, end_sessions)
    found = told_of_each(pipeline)
    assert found["shop.pairs"].verdict == "equal", found
    assert ended == ["shop.orders"] * often
    if often < TRIES_MAX:
        assert found["shop.orders"].verdict == "equal", found
    else:
        assert found["shop.orders"].verdict == "not compared", found
        assert "session that kept the table's snapshot has ended" in found["shop.orders"].reason


@pytest.mark.parametrize("orders", ["mysql"], indirect=True)
@pytest.mark.parametrize("often", [1, pytest.param(2, marks=slow)], ids=["once", "twice"])
def test_tables_are_pinned_when_their_turn_comes_and_anew_if_a_file_is_gone(
    orders: MysqlOrders, often: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds sweep files that no table needs any more while others are compared."""
    pipeline = two_tables(orders, tmp_path / "pipeline", ["shop.orders", "shop.pairs"])
    file = longest(pipeline, "shop.orders")
    away = file.with_suffix(".away")
    seen: list[str] = []
    pin = Verification._pin

    def pinned(verification: Verification, stream: Any, configured: Any) -> Any:
        seen.append(f"{stream} pinned")
        if away.exists():
            away.rename(file)
        return pin(verification, stream, configured)

    def swept(names: list[str]) -> None:
        seen.extend(f"{name} compared" for name in names)
        if names == ["shop.orders"] and seen.count("shop.orders compared") <= often:
            file.rename(away)

    monkeypatch.setattr(Verification, "_pin", pinned)
    one_after_the_other(monkeypatch, swept)
    found = told_of_each(pipeline)
    each_in_turn = [f"shop.{name} {done}" for name in ("orders", "pairs") for done in ("pinned", "compared")]
    assert seen == [*each_in_turn, "shop.orders pinned", "shop.orders compared"]
    assert found["shop.pairs"].verdict == "equal", found
    if often == 1:
        assert found["shop.orders"].verdict == "equal", found
    else:
        assert found["shop.orders"].verdict == "not compared", found
        assert "cannot be read" in found["shop.orders"].reason


@pytest.mark.parametrize("orders", ["mysql"], indirect=True)
def test_a_table_that_could_not_be_locked_in_time_is_told_and_the_others_are_compared(
    orders: MysqlOrders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = two_tables(orders, tmp_path / "pipeline", ["shop.orders", "shop.pairs"])
    monkeypatch.setattr(snapshots, "_LOOKS", 0)
    monkeypatch.setattr(snapshots, "_LOCK_WITHIN_S", 0.0)
    with orders.server.connect("shop") as writer, writer.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("UPDATE pairs SET v = 3")
        found = told_of_each(pipeline)
        cursor.execute("ROLLBACK")
    assert found["shop.orders"].verdict == "equal", found
    assert found["shop.pairs"].verdict == "not compared", found
    assert "could not be locked" in found["shop.pairs"].reason


@slow
def test_rows_of_which_the_change_stream_is_ahead_are_no_difference(
    mongo: MongoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document that changes again between the snapshot and the reading of its event."""
    mongo_warming.warm_up()
    with new_shop(mongo) as shop:
        orders = MongoOrders(mongo, shop, "document")
        orders.fill(100)
        pipeline = orders.pipeline(tmp_path / "pipeline", "parquet")
        pipeline.sync()
        shop["orders"].update_one({"number": 7}, {"$set": {"name": "before"}})
        whole = Verification._read_log_to
        written: list[int] = []

        def changed_first(verification: Verification, position: Lsn) -> None:
            if not written:  # the snapshot is taken, and nobody has read the event yet
                written.append(7)
                shop["orders"].update_one({"number": 7}, {"$set": {"name": "after"}})
            whole(verification, position)

        monkeypatch.setattr(Verification, "_read_log_to", changed_first)
        found = verify(pipeline)
        assert (found.verdict, found.found) == ("equal", 0), found
        assert any("1 rows that changed meanwhile" in note for note in found.notes), found
        # A difference beside it is told all the same.
        plant_in(longest(pipeline, orders.stream), lambda table: table.slice(0, table.num_rows - 1))
        written.clear()
        found = verify(pipeline)
        assert (found.verdict, found.missing, found.different) == ("different", 1, 0), found
        # That is put right, and the other is left to the log, which has its latest state.
        shop["orders"].update_one({"number": 7}, {"$set": {"name": "before"}})
        written.clear()
        found = verify(pipeline, repair=True)
        assert (found.verdict, found.repaired) == ("equal", 1), found
        pipeline.sync()
        orders.assert_same(pipeline)


@slow
def test_a_capped_collection_is_not_compared_and_the_others_are(mongo: MongoServer, tmp_path: Path) -> None:
    mongo_warming.warm_up()
    with new_shop(mongo) as shop:
        orders = MongoOrders(mongo, shop, "document")
        pipeline = orders.pipeline(tmp_path / "pipeline", "parquet")
        pipeline.streams[:] = [f"{shop.name}.{name}" for name in ("orders", "words", "ring")]
        pipeline.write_file()
        pipeline.sync()
        found = {each.stream: each for each in Pipeline.from_yaml(pipeline.file).verify().streams}
        assert {name.partition(".")[2]: each.verdict for name, each in found.items()} == {
            "orders": "equal", "words": "equal", "ring": "not compared",
        }  # fmt: skip
        ring = found[f"{shop.name}.ring"]
        assert ring.why_not == "by its mode"
        assert "capped collection" in ring.reason

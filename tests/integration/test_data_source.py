"""The change log as a Spark data source: every change once, exact, and a clear word where that cannot be."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import penstock.spark
from penstock import Pipeline
from penstock.core.position import Lsn
from penstock.lake.session import spark_session
from penstock.log.reader import ChangeLog
from penstock.log.retention import apply_retention
from tests.conftest import Database, wait_until
from tests.pipelines import PipelineUnderTest
from tests.traps import MakePipeline

TABLE = (
    "CREATE TABLE orders (id int PRIMARY KEY, price numeric(10,2), placed timestamptz, day date, note text)"
)
STREAM = "public.orders"


@pytest.fixture
def session(tmp_path: Path) -> SparkSession:
    running = spark_session("local[2]", {"spark.driver.memory": "512m"}, tmp_path / "spark.log")
    penstock.spark.register(running)
    return running


@pytest.fixture
def orders(database: Database, make: MakePipeline) -> PipelineUnderTest:
    database.execute(TABLE)
    pipeline = make([STREAM])
    pipeline.sync()
    return pipeline


def read(session: SparkSession, pipeline: PipelineUnderTest, **options: Any) -> DataFrame:
    given = {"state": str(pipeline.state), "stream": STREAM, **options}
    return session.read.format("penstock").options(**given).load()


def rows(frame: DataFrame) -> list[Row]:
    return frame.orderBy("_tx", "_op_index").collect()


def offset(row: Row) -> str:
    return f"{row['_tx']}_{row['_op_index']}"


@pytest.mark.slow
def test_a_batch_query_gets_every_change_typed_as_the_tables_are(
    database: Database, orders: PipelineUnderTest, session: SparkSession
) -> None:
    database.execute("INSERT INTO orders VALUES (1, 1.10, '2026-01-02 03:04:05.678901Z', '2026-01-02', 'a')")
    database.execute("UPDATE orders SET price = 12345678.99, day = 'infinity' WHERE id = 1")
    database.execute("UPDATE orders SET id = 2 WHERE id = 1")
    database.execute("DELETE FROM orders; TRUNCATE orders")
    orders.sync()
    insert, update, move, delete, truncate = rows(read(session, orders))
    assert [row["_op"] for row in (insert, update, move, delete, truncate)] == ["i", "u", "u", "d", "t"]
    assert (insert["id"], insert["price"]) == (1, decimal.Decimal("1.10"))
    assert insert["day"] == date(2026, 1, 2)
    moment = read(session, orders).filter("_op = 'i'").selectExpr("unix_micros(placed) AS m").first()
    assert moment is not None
    assert moment["m"] == int(datetime(2026, 1, 2, 3, 4, 5, 678901, UTC).timestamp() * 1_000_000 + 0.5)
    # An infinite date is no date: it is null and named, never null alone.
    assert (update["day"], update["_bad"], insert["_bad"]) == (None, ["day"], None)
    assert (move["id"], move["_old"]["id"], delete["_old"]["id"]) == (2, 1, 2)
    assert truncate["id"] is None
    assert {row["_leaf"] for row in rows(read(session, orders))} == {STREAM}


@pytest.mark.slow
def test_untyped_columns_are_the_text_that_the_source_sent(
    database: Database, orders: PipelineUnderTest, session: SparkSession
) -> None:
    database.execute("INSERT INTO orders VALUES (1, 'NaN', 'infinity', '0044-03-15 BC', 'x')")
    orders.sync()
    [row] = rows(read(session, orders, typed="false"))
    assert (row["id"], row["price"], row["placed"], row["day"]) == ("1", "NaN", "infinity", "0044-03-15 BC")


@pytest.mark.slow
def test_after_from_and_to_cut_the_log_between_any_two_changes(
    database: Database, orders: PipelineUnderTest, session: SparkSession
) -> None:
    for first in (1, 4, 7):
        database.execute(f"INSERT INTO orders SELECT n FROM generate_series({first}, {first + 2}) n")
    orders.sync()
    whole = rows(read(session, orders))
    ids = [row["id"] for row in whole]
    assert ids == list(range(1, 10))
    for cut in (0, 4, 8):  # the first change, one inside a transaction, the last
        at = offset(whole[cut])
        assert [row["id"] for row in rows(read(session, orders, after=at))] == ids[cut + 1 :]
        assert [row["id"] for row in rows(read(session, orders, to=at))] == ids[: cut + 1]
    middle = read(session, orders, **{"from": offset(whole[2]), "to": offset(whole[5])})
    assert [row["id"] for row in rows(middle)] == ids[2:6]
    second = str(Lsn(whole[3]["_tx"]))
    assert [row["id"] for row in rows(read(session, orders, **{"from": second}))] == ids[3:]
    assert [row["id"] for row in rows(read(session, orders, to=second))] == ids[:3]


@pytest.mark.slow
def test_a_batch_query_gives_the_same_rows_while_the_log_grows(
    database: Database, orders: PipelineUnderTest, session: SparkSession
) -> None:
    database.execute("INSERT INTO orders VALUES (1)")
    orders.sync()
    frame = read(session, orders)
    assert frame.count() == 1
    database.execute("ALTER TABLE orders ADD COLUMN more int; INSERT INTO orders (id) VALUES (2)")
    orders.sync()
    assert frame.count() == 1
    assert read(session, orders).count() == 2


def test_older_changes_read_as_the_newest_schema_does(
    database: Database, orders: PipelineUnderTest, session: SparkSession
) -> None:
    database.execute("INSERT INTO orders (id, note) VALUES (1, 'kept')")
    orders.sync()
    database.execute("ALTER TABLE orders RENAME note TO remark; ALTER TABLE orders DROP COLUMN day")
    database.execute("ALTER TABLE orders ADD COLUMN day text; ALTER TABLE orders ADD COLUMN n int DEFAULT 7")
    database.execute("INSERT INTO orders (id, remark, day) VALUES (2, 'new', 'monday')")
    orders.sync()
    first, second = rows(read(session, orders))
    assert (first["remark"], first["day"], first["n"]) == ("kept", None, 7)
    assert (second["remark"], second["day"], second["n"]) == ("new", "monday", 7)


def test_columns_that_nobody_can_tell_apart_any_more_are_not_guessed(
    database: Database, orders: PipelineUnderTest, session: SparkSession
) -> None:
    database.execute("INSERT INTO orders (id, note) VALUES (1, 'kept')")
    # Renamed before capture could ask the catalog which column `note` was.
    database.execute("ALTER TABLE orders RENAME note TO remark; INSERT INTO orders (id) VALUES (2)")
    orders.sync()
    with pytest.raises(PySparkException, match="cannot be read as one"):
        read(session, orders).count()
    [manifest] = [each for each in ChangeLog(orders.state / "log").manifests() if each.tables]
    files = manifest.tables[0].files
    [first] = rows(read(session, orders, to=str(Lsn(files[0].last_tx + 1))))
    assert first["note"] == "kept"
    [second] = rows(read(session, orders, **{"from": str(Lsn(files[1].first_tx))}))
    assert (second["id"], second["remark"]) == (2, None)


def test_a_column_that_begins_with_an_underscore_clashes_with_none_of_ours(
    database: Database, make: MakePipeline, session: SparkSession
) -> None:
    database.execute('CREATE TABLE orders (id int PRIMARY KEY, _op text, "_tx" text)')
    pipeline = make([STREAM])
    pipeline.sync()
    database.execute("INSERT INTO orders VALUES (1, 'mine', 'too')")
    pipeline.sync()
    [row] = rows(read(session, pipeline))
    assert (row["__op"], row["__tx"], row["_op"]) == ("mine", "too", "i")


def test_asking_for_what_retention_removed_is_an_error(
    database: Database, orders: PipelineUnderTest, session: SparkSession
) -> None:
    for number in (1, 2):
        database.execute(f"INSERT INTO orders VALUES ({number})")
        orders.sync()
    first = offset(rows(read(session, orders))[0])
    log = ChangeLog(orders.state / "log")
    end = log.end()
    assert end is not None
    assert apply_retention(log.directory, log.manifests()[-2].end) > 0
    assert [row["id"] for row in rows(read(session, orders))] == [2]
    with pytest.raises(PySparkException, match="no longer in it"):
        read(session, orders, after=first).count()


SENSELESS = [
    ({"stream": "orders"}, "stream id"),
    ({"stream": "public.nothing"}, "holds no change"),
    ({"state": "/nowhere"}, "no change log"),
    ({"config": "penstock.yaml"}, "one of them only"),
    ({"after": "yesterday"}, "not an offset"),
    ({"after": "1_0", "from": "1_0"}, "exclude each other"),
    ({"typed": "perhaps"}, "neither true nor false"),
    ({"batch_bytes": "-1"}, "number of bytes"),
]


@pytest.mark.slow
def test_an_option_that_makes_no_sense_is_refused(
    database: Database, orders: PipelineUnderTest, session: SparkSession
) -> None:
    database.execute("INSERT INTO orders VALUES (1)")
    orders.sync()
    for options, said in SENSELESS:
        with pytest.raises(PySparkException, match=said):
            read(session, orders, **options)


class Sink:
    """What a streaming query gave, batch by batch; a batch that is run again replaces itself."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Row]] = {}
        self.fails_at: int | None = None

    def __call__(self, frame: DataFrame, number: int) -> None:
        self.batches[number] = frame.collect()
        if number == self.fails_at:
            raise RuntimeError("on purpose")

    @property
    def ids(self) -> list[int]:
        return sorted(row["id"] for batch in self.batches.values() for row in batch)


Start = Callable[..., StreamingQuery]


@pytest.fixture
def start(session: SparkSession, orders: PipelineUnderTest, tmp_path: Path) -> Start:
    def begin(sink: Sink, **options: Any) -> StreamingQuery:
        given = {"state": str(orders.state), "stream": STREAM, **options}
        stream = session.readStream.format("penstock").options(**given).load()
        writer = stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "query"))
        return writer.start()

    return begin


def insert_steps(database: Database, orders: PipelineUnderTest, numbers: range) -> None:
    """A step of the log for each."""
    for number in numbers:
        database.execute(f"INSERT INTO orders VALUES ({number})")
        orders.sync()


def has(query: StreamingQuery, sink: Sink, numbers: range) -> None:
    def there() -> bool:
        assert query.exception() is None, str(query.exception())
        return len(sink.ids) >= len(numbers)

    wait_until(there, f"the query to give {len(numbers)} changes", timeout_s=90)
    assert sink.ids == list(numbers)


@pytest.mark.slow
def test_a_streaming_query_gets_each_change_in_one_batch_across_restarts(
    database: Database, orders: PipelineUnderTest, start: Start
) -> None:
    insert_steps(database, orders, range(1, 5))
    sink = Sink()
    query = start(sink, batch_bytes="1")
    has(query, sink, range(1, 5))
    assert len([batch for batch in sink.batches.values() if batch]) == 4, "a batch is bounded by a step here"
    query.stop()
    insert_steps(database, orders, range(5, 8))
    known = len(sink.batches)
    query = start(sink, batch_bytes="1")
    has(query, sink, range(1, 8))
    later = [batch for number, batch in sink.batches.items() if number >= known]
    assert max(map(len, later)) == 1, "bounded after a restart as well"
    query.stop()


@pytest.mark.slow
def test_a_batch_that_failed_is_given_again_with_the_same_changes(
    database: Database, orders: PipelineUnderTest, start: Start
) -> None:
    insert_steps(database, orders, range(1, 4))
    sink = Sink()
    sink.fails_at = 1
    query = start(sink, batch_bytes="1")
    wait_until(lambda: not query.isActive, "the query to fail", timeout_s=90)
    failed = sink.batches[1]
    sink.fails_at = None
    insert_steps(database, orders, range(4, 6))
    query = start(sink, batch_bytes="1")
    has(query, sink, range(1, 6))
    assert sink.batches[1] == failed
    query.stop()


@pytest.mark.slow
def test_a_streaming_query_stops_at_new_columns_and_goes_on_with_them(
    database: Database, orders: PipelineUnderTest, start: Start
) -> None:
    insert_steps(database, orders, range(1, 3))
    sink = Sink()
    query = start(sink)
    has(query, sink, range(1, 3))
    database.execute("ALTER TABLE orders ADD COLUMN more int DEFAULT 3")
    insert_steps(database, orders, range(3, 4))
    wait_until(lambda: not query.isActive, "the query to stop", timeout_s=90)
    assert "columns of this stream have changed" in str(query.exception())
    query = start(sink)
    has(query, sink, range(1, 4))
    assert [row["more"] for batch in sink.batches.values() for row in batch if row["id"] == 3] == [3]
    query.stop()


@pytest.mark.slow
def test_a_streaming_query_that_comes_too_late_is_told(
    database: Database, orders: PipelineUnderTest, start: Start
) -> None:
    insert_steps(database, orders, range(1, 3))
    sink = Sink()
    query = start(sink, batch_bytes="1")
    has(query, sink, range(1, 3))
    query.stop()
    insert_steps(database, orders, range(3, 5))
    log = ChangeLog(orders.state / "log")
    apply_retention(log.directory, log.manifests()[-2].end)
    query = start(sink)
    wait_until(lambda: not query.isActive, "the query to stop", timeout_s=90)
    assert "no longer in it" in str(query.exception())


def test_a_pipelines_own_session_has_the_data_source(
    database: Database, orders: PipelineUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("INSERT INTO orders VALUES (1)")
    orders.sync()
    session = SparkSession.builder.getOrCreate()
    options = {"config": str(orders.file), "stream": STREAM}
    assert session.read.format("penstock").options(**options).load().count() == 1
    assert Pipeline.from_yaml(orders.file).log(STREAM).to_arrow().num_rows == 1

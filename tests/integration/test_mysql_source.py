"""MySQL and MariaDB as the source of a pipeline: what can be asked of it, by the interface that all share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.config import Config
from penstock.core.binlog_place import BinlogPlace
from penstock.core.errors import PositionGoneError, SourceError
from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.pipeline import Pipeline
from penstock.resolution import stream_needs
from penstock.sources.base import Source, TableEnd
from penstock.sources.chunk import ChunkMethod, PlannedChunk
from penstock.sources.finding import StreamNeed
from penstock.sources.mysql.binlog.warming import warm_up
from penstock.sources.mysql.connection import connect, rows
from penstock.sources.mysql.server import read_server
from penstock.sources.open import open_source
from penstock.sources.tables import SourceTable
from tests.conftest import wait_until
from tests.mysql_server import MARIADB, MYSQL, MysqlServer

ORDERS = StreamId("shop", "orders")
ROWS = 1000


@pytest.fixture(scope="module", params=[MYSQL, MARIADB], ids=lambda kind: str(kind.name))
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MysqlServer]:
    warm_up()  # no test waits for a compiler
    with MysqlServer(tmp_path_factory.mktemp(request.param.name), request.param) as started:
        started.execute(
            "CREATE DATABASE shop CHARACTER SET utf8mb4",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY, name VARCHAR(20), paid DECIMAL(9,2))",
            "CREATE TABLE shop.notes (body TEXT)",
            "INSERT INTO shop.orders VALUES " + ", ".join(f"({n}, 'näme {n}', {n}.25)" for n in range(ROWS)),
        )
        yield started


@pytest.fixture
def pipeline(server: MysqlServer, tmp_path: Path) -> Pipeline:
    path = tmp_path / "penstock.yaml"
    path.write_text(
        f'source: {{type: mysql, url: "mysql://root:${{NONE}}@127.0.0.1:{server.port}/shop"}}\n'
        "destination: {type: parquet, path: ./lake}\nstate: ./state\n"
        "streams: [shop.orders, {table: shop.notes, mode: full_refresh}]\n"
    )
    return Pipeline(Config.load(path, {"NONE": ""}))


@pytest.fixture
def source(pipeline: Pipeline) -> Source:
    return open_source(pipeline.config.source)


def _orders(source: Source) -> SourceTable:
    [table] = source.tables([ORDERS])
    return table


def test_a_pipeline_is_checked_and_its_tables_are_listed(pipeline: Pipeline) -> None:
    findings = pipeline.check()
    assert {finding.level for finding in findings} == {"ok"}, findings
    assert {"log_bin", "server id"} <= {finding.name for finding in findings}
    assert [str(table.stream) for table in pipeline.discover()] == ["shop.notes", "shop.orders"]


def test_a_catalog_answers_without_asking_again(source: Source, pipeline: Pipeline) -> None:
    catalog = source.catalog([ORDERS, StreamId("shop", "order")])
    assert {table.stream for table in catalog.tables} == {ORDERS, StreamId("shop", "notes")}
    assert all(source.is_captured(table) for table in catalog.tables)
    found = catalog.check(stream_needs(pipeline.config, pipeline.config.streams))
    assert [(finding.stream, finding.level) for finding in found] == [
        ("shop.orders", "ok"),
        ("shop.notes", "ok"),
    ]
    [unfit] = catalog.check([StreamNeed(ORDERS, columns=("name", "colour"))])[:1]
    assert (unfit.name, unfit.level) == ("selection", "error")


def test_the_server_says_who_it_is_and_how_far_its_log_is(server: MysqlServer, source: Source) -> None:
    identity = source.identity()
    assert identity.version >= 90000
    with connect(f"mysql://root@127.0.0.1:{server.port}") as connection:
        before = read_server(connection)
        server.execute("INSERT INTO shop.notes VALUES ('one')")
        after = read_server(connection)
    assert before.uuid == after.uuid == identity.system_id
    assert identity.position < source.identity().position, "a clock, since nothing need be written meanwhile"
    assert (after.last.name, after.last.pos) == server.position()
    assert before.first.number <= before.last.number < after.last.number
    assert before.executed not in ("", after.executed)
    assert (source.hold(), source.drop_hold(), source.teardown()) == (None, False, [])


def test_positions_of_another_tool_must_be_in_the_log(server: MysqlServer, source: Source) -> None:
    table, now = _orders(source), BinlogPlace(*server.position())

    def end(place: BinlogPlace) -> TableEnd:
        return TableEnd(table, Lsn(place.number), Place(str(place)))

    assert source.positions_behind([end(now)]) == [Lsn(now.number)]
    beyond = BinlogPlace.of_number(now.base, now.number + (1 << 32))
    others = (BinlogPlace(f"{now.base}.000000", 4), beyond, BinlogPlace(now.name, now.pos + 1))
    for wrong in (*others, BinlogPlace(now.name.replace(now.base, "other"), now.pos)):
        with pytest.raises(PositionGoneError, match="does not have"):
            source.positions_behind([end(wrong)])


@pytest.mark.parametrize("wanted", ["ctid", "key"])
def test_chunks_of_any_kind_cover_a_table_once(source: Source, wanted: ChunkMethod) -> None:
    reading, table = source.reading(), _orders(source)
    method = reading.method_for(table, wanted)
    assert method == wanted
    with reading.session() as session:
        planned = session.plan_chunks(table, method, rows_per_chunk=300)
        bounds = [chunk.min for chunk in planned if chunk.min is not None]
        if method == "key":
            assert session.bounds_after(table, method, bounds[::-1], bounds[0]) == bounds[1:]
    assert (len(planned) > 1) == (method == "key")
    typed = [block for chunk in planned for block in _blocks(source, table, chunk, method)]
    ids = [number for block in typed for number in block[0].to_pylist()]
    assert sorted(ids) == list(range(ROWS))
    session_of_texts = reading.text_session()
    texts = [
        (rows, columns)
        for chunk in planned
        for rows, columns in session_of_texts.columns(
            chunk, table, table.schema.columns[::-1], method, None, "", block_bytes=4096
        )
    ]
    session_of_texts.close()
    assert sum(rows for rows, _ in texts) == ROWS
    names = {columns[2][at].as_py(): columns[1][at].as_py() for rows, columns in texts for at in range(rows)}
    assert names == {str(number): f"näme {number}" for number in range(ROWS)}


def _blocks(source: Source, table: SourceTable, chunk: PlannedChunk, method: ChunkMethod) -> list[Any]:
    read = source.reading().chunk(chunk, table.leaves[0], method, "", reader="penstock test")
    return [block.values for block in read.blocks(table.schema)]


def test_what_other_threads_ask_can_be_ended(server: MysqlServer, source: Source) -> None:
    ended: list[BaseException] = []

    def ask() -> None:
        with connect(f"mysql://root@127.0.0.1:{server.port}") as connection:
            try:
                rows(connection, "SELECT COUNT(*), SLEEP(60) FROM shop.orders", doing="a test")
            except SourceError as error:
                ended.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    running = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE '%SLEEP(60) FROM%'"
    wait_until(lambda: server.rows(running)[0][0] > 1, "the query to run")
    source.cancel_queries()
    thread.join(120)
    assert len(ended) == 1 or server.kind is MYSQL  # where only SLEEP ends, and the query with its answer
    assert not thread.is_alive()

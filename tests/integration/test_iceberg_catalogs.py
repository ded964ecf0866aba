"""The same promises on every catalog: a load, changes, and a second writer that must not land.

A catalog refuses a commit by comparing what it holds with what the commit was made on top of. SQL catalogs
and Hadoop's compare the whole; a REST catalog compares the references that the commit moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyiceberg.catalog
import pytest
from pyiceberg.table import StaticTable

from penstock.config.destination import DestinationConfig
from penstock.core.errors import CommitConflictError, DestinationAwayError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.destinations.iceberg import IcebergDestination, IcebergTable
from penstock.destinations.iceberg_expiry import prepare_expiry
from penstock.destinations.iceberg_java import Attempt
from penstock.destinations.iceberg_record import Known
from penstock.destinations.records import TableRecord
from penstock.lake.destination import iceberg_settings
from penstock.lake.iceberg_session import java_in
from tests.conftest import Database
from tests.iceberg import session
from tests.integration.test_iceberg_table import (
    COLUMNS,
    SCHEMA,
    STREAM,
    begun,
    loaded,
    marker,
    rows_in_spark,
    write,
)
from tests.integration.test_sync import orders
from tests.oracle import assert_same
from tests.pipelines import PipelineUnderTest
from tests.ports import free_port
from tests.rest_catalog import FailingWay, RestCatalog
from tests.traps import MakePipeline

Operation = Callable[[IcebergTable], object]
Late = Callable[[IcebergTable, int], None]


def destination(catalog: dict[str, Any], directory: Path) -> IcebergDestination:
    config = DestinationConfig.model_validate(
        {"type": "iceberg", "warehouse": str(directory / "lake"), "catalog": catalog}
    )
    gateway = session(directory).sparkContext._gateway
    return IcebergDestination(iceberg_settings(config), lambda: java_in(gateway))


@pytest.fixture(scope="module")
def rest_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalog]:
    with RestCatalog(tmp_path_factory.mktemp("rest") / "catalog") as running:
        yield running


@pytest.fixture
def rest(rest_server: RestCatalog, tmp_path: Path) -> Iterator[RestCatalog]:
    """Without tables, before and after."""
    yield rest_server
    opened = destination({"type": "rest", "uri": rest_server.url}, tmp_path)
    for stream in opened.streams():
        opened.table(stream).drop_all()


CATALOGS = ["sqlite", "hadoop", "postgres", "rest"]


@pytest.fixture(params=CATALOGS)
def catalog(request: pytest.FixtureRequest) -> dict[str, Any]:
    settings = {"type": request.param}
    if request.param == "postgres":
        settings["uri"] = request.getfixturevalue("database").url
    if request.param == "rest":
        settings["uri"] = request.getfixturevalue("rest").url
    return settings


def at_the_commit(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Have this happen once, between what the next commit was checked against and the commit."""

    def strike(name: str) -> None:
        if name == "iceberg.staged":
            monkeypatch.undo()
            action()

    monkeypatch.setattr("penstock.failpoints.reach", strike)


def test_what_is_committed_is_read_and_a_second_writer_lands_nowhere(
    catalog: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = destination(catalog, tmp_path).table(STREAM)
    columns, _ = loaded(table, [1])
    fresh = destination(catalog, tmp_path)
    assert fresh.streams() == [STREAM]
    other = fresh.table(STREAM)
    added = [write(other, columns, [2], "second")]
    at_the_commit(
        monkeypatch,
        lambda: other.commit_changes(
            Lsn(100), marker(100, 150, epoch=2), SCHEMA, added=added, removed=[], columns=columns
        ),
    )
    late = [write(table, columns, [3], "first")]
    with pytest.raises(CommitConflictError):
        table.commit_changes(Lsn(100), marker(100, 200), SCHEMA, added=late, removed=[], columns=columns)
    assert rows_in_spark(table, tmp_path) == [(1, "loaded", 1), (2, "second", 2)]
    table.drop_all()
    assert destination(catalog, tmp_path).streams() == []


def told(table: IcebergTable) -> TableRecord:
    """What the table says, but for when: a load without a table has no time of its own."""
    record = table.record()
    assert record is not None
    return replace(record, committed_at="")


def changes(table: IcebergTable, epoch: int) -> None:
    record = table.record()
    assert record is not None
    assert record.marker is not None
    assert record.marker.to is not None
    follows = marker(record.marker.to, record.marker.to + 100, epoch, record.marker.generation)
    table.commit_changes(record.marker.to, follows, SCHEMA, added=[], removed=[], columns=record.columns)


def begins(table: IcebergTable, epoch: int) -> None:
    table.begin_load(f"load of {epoch}", Lsn(epoch), SCHEMA, "upsert", COLUMNS)


def chunk_with_rows(table: IcebergTable, epoch: int) -> None:
    record = table.record()
    assert record is not None
    assert record.load is not None
    file = write(table, record.load.columns, [7], "chunk")
    table.commit_chunks("load2", Lsn(epoch), [f"chunk of {epoch}"], [file])


def chunk_without_rows(table: IcebergTable, epoch: int) -> None:
    table.commit_chunks("load2", Lsn(epoch), [f"chunk of {epoch}"], [])


def swaps(table: IcebergTable, epoch: int) -> None:
    table.swap("load2", Lsn(epoch), f"generation of {epoch}", Lsn(300))


def publishes(table: IcebergTable, epoch: int) -> None:
    table.publish(Lsn(epoch), Lsn(500))


def first_load_begun(table: IcebergTable) -> None:
    table.begin_load("load2", Lsn(1), SCHEMA, "upsert", COLUMNS)


def table_only(table: IcebergTable) -> None:
    loaded(table, [1])


def load_beside_table(table: IcebergTable) -> None:
    columns, _ = loaded(table, [1])
    begun(table, "load2")
    table.commit_chunks("load2", Lsn(1), ["c2"], [write(table, columns, [2], "again")])


def waiting_to_be_shown(table: IcebergTable) -> None:
    load_beside_table(table)
    table.swap("load2", Lsn(1), "g2", Lsn(300), Lsn(500))


#: What is there, what the old leader does, and what its successor did in between. The first of each operation
#: runs on every catalog.
OVERTAKEN: list[tuple[Operation, Late, Late]] = [
    (first_load_begun, chunk_without_rows, begins),
    (first_load_begun, chunk_with_rows, chunk_without_rows),
    (first_load_begun, begins, chunk_without_rows),
    (table_only, changes, begins),
    (table_only, begins, changes),
    (table_only, begins, begins),
    (load_beside_table, begins, chunk_without_rows),
    (load_beside_table, chunk_with_rows, changes),
    (load_beside_table, chunk_without_rows, changes),
    (load_beside_table, chunk_without_rows, chunk_with_rows),
    (load_beside_table, swaps, changes),
    (load_beside_table, swaps, chunk_without_rows),
    (load_beside_table, swaps, begins),
    (load_beside_table, changes, chunk_without_rows),
    (waiting_to_be_shown, publishes, begins),
    (waiting_to_be_shown, publishes, changes),
    (waiting_to_be_shown, changes, publishes),
]


def overtaken() -> list[Any]:
    names = [late.__name__ for _, late, _ in OVERTAKEN]
    return [
        pytest.param(kind, *case, id="-".join([kind, *(step.__name__ for step in case)]))
        for number, case in enumerate(OVERTAKEN)
        for kind in (CATALOGS if names.index(names[number]) == number else ["rest"])
    ]


@pytest.mark.parametrize(("catalog", "there", "late", "overtakes"), overtaken(), indirect=["catalog"])
def test_an_old_leader_lands_nothing_on_top_of_any_commit_of_its_successor(
    catalog: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    there: Operation,
    late: Late,
    overtakes: Late,
) -> None:
    table = destination(catalog, tmp_path).table(STREAM)
    there(table)
    successor = destination(catalog, tmp_path).table(STREAM)
    at_the_commit(monkeypatch, lambda: overtakes(successor, 2))
    with pytest.raises(CommitConflictError, match="newer leader"):
        late(table, 1)
    held = told(successor)
    assert held.epoch == Lsn(2)
    assert not held.has_thread("chunk of 1")
    assert told(table) == held
    with pytest.raises(CommitConflictError, match="newer leader"):
        late(table, 1)
    assert told(successor) == held


def test_every_commit_has_the_catalog_compare_the_fence_and_moves_it(
    rest: RestCatalog, tmp_path: Path
) -> None:
    """What the server here finds out besides, by the numbers of snapshots, is not in the protocol."""
    with FailingWay(rest) as way:
        table = destination({"type": "rest", "uri": way.url}, tmp_path).table(STREAM)
        waiting_to_be_shown(table)
        changes(table, 1)
        publishes(table, 1)
        begins(table, 1)
        begun(table, "load3")
        table.commit_chunks("load3", Lsn(1), ["c3"], [])
        table.swap("load3", Lsn(1), "g3", Lsn(600), keep_files=True)
    fence = None
    for commit in way.commits:
        asserted = {"type": "assert-ref-snapshot-id", "ref": "penstock_fence", "snapshot-id": fence}
        assert asserted in commit["requirements"]
        [moved] = [
            update["snapshot-id"]
            for update in commit["updates"]
            if update["action"] == "set-snapshot-ref" and update["ref-name"] == "penstock_fence"
        ]
        assert moved != fence
        fence = moved
    assert len(way.commits) == 12


@pytest.mark.parametrize("operation", [chunk_with_rows, swaps, changes], ids=lambda step: step.__name__)
def test_a_foreign_commit_between_check_and_commit_is_kept(
    catalog: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    operation: Late,
) -> None:
    """Whoever compacts or adds rows meanwhile neither loses that nor stops us."""
    table = destination(catalog, tmp_path).table(STREAM)
    load_beside_table(table)
    other = destination(catalog, tmp_path).table(STREAM)
    record = other.record()
    assert record is not None
    file = write(other, record.columns, [50], "foreign")
    foreign = other.handle.table.newAppend().appendFile(other.handle.files.data_file(file))
    at_the_commit(monkeypatch, foreign.commit)
    operation(table, 1)
    shown = [(7, "chunk", 7)] if operation is chunk_with_rows else []
    if operation is not swaps:
        table.swap("load2", Lsn(1), "g9", Lsn(300), keep_files=True)
        shown = [(1, "loaded", 1), *shown, (50, "foreign", 50)]
    assert rows_in_spark(table, tmp_path) == sorted([*shown, (2, "again", 2)])


@pytest.mark.parametrize("catalog", ["rest"], indirect=True)
def test_two_that_let_snapshots_expire_at_once_take_no_answer_from_each_other(
    catalog: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog takes both commits, since neither moves a reference."""
    table = destination(catalog, tmp_path).table(STREAM)
    table_only(table)
    others = []
    for _ in range(3):
        table.handle.table.newAppend().commit()
        others.append(int(table.handle.table.currentSnapshot().snapshotId()))
    successor = destination(catalog, tmp_path).table(STREAM)
    commit = Attempt.commit

    def commit_after_the_other(attempt: Attempt) -> None:
        monkeypatch.undo()
        assert others[0] in prepare_expiry(successor, 1 << 60, 2, 0)
        commit(attempt)

    monkeypatch.setattr(Attempt, "commit", commit_after_the_other)
    assert others[1] in prepare_expiry(table, 1 << 60, 1, 0)
    metadata = table.handle.metadata()
    assert metadata is not None
    known = Known(metadata.property)
    assert others[1] in known, "kept by the one that was in between, without its parent"
    assert others[2] in known, "kept by the other, without its parent"


@pytest.mark.parametrize("status", [None, 400, 500, 503], ids=["no answer", "400", "500", "503"])
@pytest.mark.parametrize(
    ("there", "operation"),
    [(first_load_begun, chunk_with_rows), (table_only, begins), (table_only, changes)],
    ids=lambda step: step.__name__,
)
def test_a_commit_whose_answer_was_lost_is_found_and_not_made_twice(
    rest: RestCatalog,
    tmp_path: Path,
    there: Operation,
    operation: Late,
    status: int | None,
) -> None:
    with FailingWay(rest) as way:
        table = destination({"type": "rest", "uri": way.url}, tmp_path).table(STREAM)
        there(table)
        before = table.handle.table.operations().refresh().lastSequenceNumber()
        lost = []

        def lose() -> int | None:
            lost.append(status)
            way.after_commit = None
            return status

        way.after_commit = lose
        operation(table, 1)
        assert lost == [status]
        assert table.handle.table.operations().refresh().lastSequenceNumber() == before + 1


@pytest.mark.parametrize("kind", ["postgres", "rest"])
def test_a_catalog_that_is_away_is_told_from_a_table_that_is_wrong(kind: str, tmp_path: Path) -> None:
    scheme = {"postgres": "postgresql://nobody@", "rest": "http://"}[kind]
    away = destination({"type": kind, "uri": f"{scheme}127.0.0.1:{free_port()}"}, tmp_path)
    with pytest.raises(DestinationAwayError):
        away.table(STREAM).record()


def on_rest(rest: RestCatalog, database: Database, make: MakePipeline) -> PipelineUnderTest:
    return followed({"type": "rest", "uri": rest.url}, database, make)


def followed(catalog: dict[str, Any], database: Database, make: MakePipeline) -> PipelineUnderTest:
    """Loaded, and followed once: an upsert table and an append table."""
    orders(database, 200)
    database.execute("CREATE TABLE orders_log (id int PRIMARY KEY)")
    settings = {"type": "iceberg", "warehouse": "./lake", "catalog": catalog}
    streams = ["public.orders", {"table": "public.orders_log", "write": "append"}]
    pipeline = make(streams, destination=settings)
    pipeline.sync()
    database.execute("UPDATE orders SET note = 'changed' WHERE id % 3 = 0")
    database.execute("DELETE FROM orders WHERE id % 7 = 0; INSERT INTO orders_log VALUES (1), (2)")
    pipeline.sync()
    return pipeline


def assert_read_by_others(rest: RestCatalog, pipeline: PipelineUnderTest, log: list[int]) -> None:
    """By PyIceberg, which knows nothing but the catalog's address."""
    reader = pyiceberg.catalog.load_catalog("any", type="rest", uri=rest.url)
    directory = pipeline.directory / "read"
    directory.mkdir(exist_ok=True)
    pq.write_table(reader.load_table("public.orders").scan().to_arrow(), directory / "rows.parquet")
    assert_same(pipeline.url, "public.orders", directory)
    history = reader.load_table("public.orders_log").scan().to_arrow()
    assert sorted(history.column("id").to_pylist()) == log
    assert set(history.column("_op").to_pylist()) == {"i"}


def test_a_rest_catalog_is_enough_for_a_sync_and_for_other_readers(
    rest: RestCatalog, database: Database, make: MakePipeline
) -> None:
    assert_read_by_others(rest, on_rest(rest, database, make), [1, 2])


@pytest.mark.slow
@pytest.mark.parametrize("catalog", ["sqlite", "hadoop", "postgres"], indirect=True)
def test_a_sync_on_every_other_catalog_ends_in_the_same_tables(
    catalog: dict[str, Any], database: Database, make: MakePipeline
) -> None:
    pipeline = followed(catalog, database, make)
    opened, directory = destination(catalog, pipeline.directory), pipeline.directory / "read"
    directory.mkdir()

    def read_by_pyiceberg(stream: str) -> pa.Table:
        current = opened.table(StreamId.parse(stream)).handle.table.operations().current()
        return StaticTable.from_metadata(current.metadataFileLocation()).scan().to_arrow()

    pq.write_table(read_by_pyiceberg("public.orders"), directory / "rows.parquet")
    assert_same(pipeline.url, "public.orders", directory)
    history = read_by_pyiceberg("public.orders_log")
    assert sorted(history.column("id").to_pylist()) == [1, 2]
    assert set(history.column("_op").to_pylist()) == {"i"}


@pytest.mark.slow
@pytest.mark.parametrize("failpoint", ["iceberg.staged", "iceberg.committed"])
def test_a_sync_that_was_killed_around_a_commit_to_a_rest_catalog_goes_on(
    rest: RestCatalog, database: Database, make: MakePipeline, failpoint: str
) -> None:
    pipeline = on_rest(rest, database, make)
    database.execute("UPDATE orders SET note = 'killed' WHERE id % 5 = 0; INSERT INTO orders_log VALUES (3)")
    ended = pipeline.sync_apart(f"{failpoint}=kill")
    assert ended.killed, str(ended)
    database.execute("INSERT INTO orders (id) VALUES (6000)")
    pipeline.sync()
    assert_read_by_others(rest, pipeline, [1, 2, 3])

"""What goes wrong in a user's hands ends with a clear message, its own exit code, and nothing lost.

Each is tried as a user would meet it: the command itself, in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.conftest import Database, with_password
from tests.pipelines import Ended, PipelineUnderTest


@pytest.fixture
def pipeline(database: Database, tmp_path: Path) -> Iterator[PipelineUnderTest]:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, v text); INSERT INTO orders VALUES (1, 'x')")
    made = PipelineUnderTest(tmp_path, database.url, ["public.orders"])
    yield made
    made.url = database.url
    made.streams = ["public.orders"]
    made.write_file()
    made.drop()


def assert_refused(ended: Ended, code: str, status: int, *words: str) -> None:
    error = ended.answer["error"]
    assert (error["code"], ended.status) == (code, status), str(ended)
    text = " ".join(str(value) for value in error.values())
    for word in words:
        assert word in text, str(ended)
    assert error["remedy"], str(ended)
    assert "Traceback" not in ended.err


def test_a_wrong_password(pipeline: PipelineUnderTest) -> None:
    pipeline.url = with_password(pipeline.url, "wrong-secret")
    pipeline.write_file()
    ended = pipeline.sync_apart()
    assert_refused(ended, "source", 3, "password is wrong")
    assert "wrong-secret" not in ended.out + ended.err


def test_a_missing_table(pipeline: PipelineUnderTest) -> None:
    pipeline.streams = ["public.order"]
    pipeline.write_file()
    assert_refused(pipeline.sync_apart(), "config", 2, "public.order", "Did you mean public.orders?")


def test_a_role_without_the_right_to_replicate(pipeline: PipelineUnderTest, database: Database) -> None:
    role, pipeline.url = database.create_role("LOGIN")
    database.execute(
        f"ALTER TABLE orders OWNER TO {role}; GRANT CREATE ON DATABASE {database.name} TO {role}"
    )
    pipeline.write_file()
    assert_refused(pipeline.sync_apart(), "source", 3, "replicate", "REPLICATION")
    database.execute("ALTER TABLE orders OWNER TO postgres")
    database.execute(f"REVOKE CREATE ON DATABASE {database.name} FROM {role}")


def test_a_server_that_does_not_log_what_is_needed(tmp_path: Path) -> None:
    with EmbeddedPostgres(settings={"wal_level": "replica"}) as server:
        with closing(psycopg.connect(server.url(), autocommit=True)) as connection:
            connection.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        pipeline = PipelineUnderTest(tmp_path, server.url(), ["public.orders"])
        assert_refused(pipeline.sync_apart(), "source", 3, "wal_level", "logical")


@pytest.mark.slow
def test_a_slot_that_somebody_else_reads(pipeline: PipelineUnderTest, database: Database) -> None:
    pipeline.sync()
    with closing(psycopg.connect(database.url, autocommit=True, replication="database")) as other:
        other.pgconn.exec_(
            f"START_REPLICATION SLOT {pipeline.name} LOGICAL 0/0 "
            f"(proto_version '1', publication_names '{pipeline.name}')".encode()
        )
        [(pid,)] = database.query(
            f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{pipeline.name}'"
        )
        database.execute("INSERT INTO orders VALUES (2, 'y')")
        assert_refused(pipeline.sync_apart(), "source_busy", 5, pipeline.name, str(pid))
    pipeline.sync()
    pipeline.assert_same("public.orders")


@pytest.mark.slow
def test_a_slot_dropped_between_two_syncs(pipeline: PipelineUnderTest, database: Database) -> None:
    pipeline.sync()
    database.execute(f"SELECT pg_drop_replication_slot('{pipeline.name}')")
    assert_refused(pipeline.sync_apart(), "position_gone", 4, pipeline.name, "penstock resync --yes")


def test_a_file_that_is_not_yaml(pipeline: PipelineUnderTest) -> None:
    pipeline.file.write_text("source: {type: postgres\nstreams: [")
    assert_refused(pipeline.sync_apart(), "config", 2, "line")


def test_keys_that_nobody_knows(pipeline: PipelineUnderTest) -> None:
    pipeline.file.write_text(pipeline.file.read_text().replace("streams:", "streems:"))
    assert_refused(pipeline.sync_apart(), "config", 2, "streems", "streams")


def test_a_table_without_a_key_under_upsert(pipeline: PipelineUnderTest, database: Database) -> None:
    database.execute("ALTER TABLE orders DROP CONSTRAINT orders_pkey")
    assert_refused(pipeline.sync_apart(), "source", 3, "public.orders", "no primary key", "write: append")


@pytest.mark.slow
def test_a_corrupt_state_file(pipeline: PipelineUnderTest) -> None:
    pipeline.sync()
    (pipeline.state / "state.json").write_text('{"type": "GLO')
    assert_refused(pipeline.sync_apart(), "state", 6, "state.json", "penstock state restore")


@pytest.mark.slow
def test_two_syncs_of_one_pipeline(pipeline: PipelineUnderTest) -> None:
    running = pipeline.start_sync("load.planned=pause")
    running.wait_until_paused("load.planned")
    assert_refused(pipeline.start_sync().wait(), "source_busy", 5, "Another sync")
    running.go_on()
    assert running.wait().status == 0
    pipeline.wait_until_nothing_runs()
    pipeline.assert_same("public.orders")

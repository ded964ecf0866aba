"""`mode: strict_cdc`: a table that begins empty where it joined the publication, and misses nothing after."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from penstock import Pipeline
from penstock.core.errors import SourceError
from tests.conftest import Database, wait_until
from tests.pipelines import PipelineUnderTest
from tests.traps import MakePipeline, syncing

STRICT: list[Any] = [
    {"table": "public.state", "mode": "strict_cdc"},
    {"table": "public.history", "mode": "strict_cdc", "write": "append"},
]


def rows(pipeline: PipelineUnderTest, stream: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = Pipeline.from_yaml(pipeline.file).table(stream).to_arrow().to_pylist()
    return found


def state_rows(pipeline: PipelineUnderTest) -> Counter[tuple[int, str]]:
    return Counter((row["id"], row["v"]) for row in rows(pipeline, "public.state"))


def history_rows(pipeline: PipelineUnderTest) -> Counter[tuple[str, int, str | None]]:
    return Counter((row["_op"], row["id"], row["v"]) for row in rows(pipeline, "public.history"))


def both(database: Database, statement: str) -> None:
    """The same change to both tables, in one transaction."""
    database.execute("; ".join(statement.format(table) for table in ("state", "history")))


def test_a_table_begins_empty_and_takes_every_change_from_there_on(
    tables: Database, make: MakePipeline
) -> None:
    pipeline = make(STRICT)
    report = pipeline.sync()
    assert [stream.rows_loaded for stream in report.streams] == [0, 0]
    assert rows(pipeline, "public.state") == rows(pipeline, "public.history") == []
    both(tables, "INSERT INTO {} VALUES (100, 'new')")
    both(tables, "UPDATE {} SET v = 'changed' WHERE id = 5")  # a row the table never had
    both(tables, "DELETE FROM {} WHERE id = 6")
    pipeline.sync()
    assert state_rows(pipeline) == Counter([(100, "new"), (5, "changed")])
    assert history_rows(pipeline) == Counter([("i", 100, "new"), ("u", 5, "changed"), ("d", 6, None)])
    both(tables, "UPDATE {} SET id = 200 WHERE id = 7")
    both(tables, "DELETE FROM {} WHERE id = 100")
    pipeline.sync()
    assert state_rows(pipeline) == Counter([(5, "changed"), (200, "v7")])


def test_a_value_that_nobody_has_is_a_dead_letter_and_never_null(
    database: Database, make: MakePipeline
) -> None:
    database.execute("CREATE TABLE docs (id int PRIMARY KEY, title text, body text)")
    database.execute("ALTER TABLE docs ALTER body SET STORAGE EXTERNAL")
    database.execute("INSERT INTO docs SELECT n, 't', repeat(md5(n::text), 400) FROM generate_series(1, 3) n")
    pipeline = make([{"table": "public.docs", "mode": "strict_cdc"}])
    pipeline.sync()
    database.execute("UPDATE docs SET title = 'body not sent' WHERE id = 1")
    database.execute("UPDATE docs SET title = 'whole', body = 'short' WHERE id = 2")
    report = pipeline.sync()
    assert report.streams[0].dead_letters == 1
    assert [(row["id"], row["body"]) for row in rows(pipeline, "public.docs")] == [(2, "short")]


def test_a_transaction_that_wrote_before_the_table_was_published_is_taken_whole_or_not_at_all(
    tables: Database, make: MakePipeline
) -> None:
    """Postgres publishes only what such a transaction writes after the ALTER."""
    tables.execute("CREATE TABLE first (id int PRIMARY KEY)")
    pipeline = make(["public.first"])
    pipeline.sync()
    pipeline.streams = ["public.first", *STRICT]
    pipeline.write_file()

    def is_published() -> bool:
        published = "SELECT count(*) FROM pg_publication_tables WHERE pubname = %s"
        return tables.query(published, (pipeline.name,)) == [(3,)]

    with tables.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO history VALUES (100, 'before the ALTER')")
        writer.execute("INSERT INTO state VALUES (100, 'before the ALTER')")
        with syncing(pipeline) as running:
            wait_until(lambda: is_published() or running.done(), "the tables to be published", 60)
            writer.execute("INSERT INTO history VALUES (101, 'after it')")
            writer.execute("INSERT INTO state VALUES (101, 'after it')")
            writer.commit()
    both(tables, "INSERT INTO {} VALUES (102, 'later')")
    pipeline.sync()
    assert state_rows(pipeline) == Counter([(102, "later")])
    assert history_rows(pipeline) == Counter([("i", 102, "later")])


@pytest.mark.slow
@pytest.mark.parametrize("place", ["load.planned", "load.committed", "load.swapped", "load.done"])
def test_a_start_that_was_killed_goes_on_from_the_position_where_it_joined(
    tables: Database, make: MakePipeline, place: str
) -> None:
    pipeline = make(STRICT)
    assert pipeline.sync_apart(f"{place}=kill@2").killed  # the second stream's; the first has joined
    both(tables, "INSERT INTO {} VALUES (100, 'while nobody ran')")
    pipeline.sync()
    assert state_rows(pipeline) == Counter([(100, "while nobody ran")])
    assert history_rows(pipeline) == Counter([("i", 100, "while nobody ran")])


@pytest.mark.slow
def test_a_table_whose_rows_are_nowhere_else_is_paused_instead_of_begun_anew(
    tables: Database, make: MakePipeline
) -> None:
    pipeline = make(STRICT)
    pipeline.sync()
    both(tables, "INSERT INTO {} VALUES (100, 'kept')")
    pipeline.sync()
    tables.execute("ALTER TABLE state ALTER v TYPE int USING 0")
    tables.execute("UPDATE state SET v = 7 WHERE id = 100; INSERT INTO history VALUES (101, 'goes on')")
    pipeline.sync()
    assert state_rows(pipeline) == Counter([(100, "kept")])
    assert history_rows(pipeline)[("i", 101, "goes on")] == 1
    opened = Pipeline.from_yaml(pipeline.file)
    [paused] = [stream.paused for stream in opened.status().streams if stream.stream == "public.state"]
    assert paused is not None
    assert "resync" in paused.reason
    opened.resync(["public.state"])
    assert rows(pipeline, "public.state") == []
    tables.execute("UPDATE state SET v = 8 WHERE id = 100")
    pipeline.sync()
    assert [(row["id"], row["v"]) for row in rows(pipeline, "public.state")] == [(100, 8)]


@pytest.mark.slow
def test_a_table_that_is_to_hold_all_rows_after_all_is_loaded(tables: Database, make: MakePipeline) -> None:
    pipeline = make(STRICT[:1])
    pipeline.sync()
    tables.execute("UPDATE state SET v = 'x' WHERE id < 4")
    pipeline.sync()
    pipeline.streams = ["public.state"]
    pipeline.write_file()
    pipeline.sync()
    pipeline.assert_same("public.state")
    tables.execute("UPDATE state SET v = 'y' WHERE id < 6")
    pipeline.sync()
    pipeline.assert_same("public.state")


def test_a_deferrable_key_is_refused_for_upserts(database: Database, make: MakePipeline) -> None:
    database.execute("CREATE TABLE state (id int PRIMARY KEY DEFERRABLE, v text)")
    pipeline = make([{"table": "public.state", "mode": "strict_cdc", "replica_identity": "full"}])
    with pytest.raises(SourceError, match="deferrable"):
        pipeline.sync()

"""Dead letters: a table of their own, each once, and settled by the change that makes them history."""

from __future__ import annotations

import json
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from penstock import Pipeline
from penstock.core.stream import StreamId
from penstock.lake import file_merging, letter_merging
from penstock.lake.destination import destination_of
from tests.conftest import Database
from tests.pipelines import PipelineUnderTest
from tests.traps import IN_A_COMMIT, MakePipeline

pytestmark = pytest.mark.integration


@pytest.fixture
def offers(database: Database, make: MakePipeline) -> PipelineUnderTest:
    """A table with one row that cannot be held, loaded."""
    database.execute("CREATE TABLE offers (id int PRIMARY KEY, until date, v text)")
    database.execute("INSERT INTO offers SELECT n, '2024-01-01', 'v' FROM generate_series(1, 5) n")
    database.execute("INSERT INTO offers VALUES (6, 'infinity', 'a secret')")
    pipeline = make(["public.offers"])
    pipeline.sync()
    return pipeline


def letters(pipeline: PipelineUnderTest) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        Pipeline.from_yaml(pipeline.file).dead_letters("public.offers").to_arrow().to_pylist()
    )
    return rows


def dead_keys(pipeline: PipelineUnderTest) -> list[str]:
    status = Pipeline.from_yaml(pipeline.file).status().streams[0]
    keys = Pipeline.from_yaml(pipeline.file).dead_letters("public.offers").open_keys()
    assert status.dead_keys == keys.num_rows
    return sorted(key for (key,) in keys.column("_key").to_pylist())


def held(pipeline: PipelineUnderTest) -> set[int]:
    table = Pipeline.from_yaml(pipeline.file).table("public.offers").to_arrow()
    return set(table.column("id").to_pylist())


def test_a_dead_letter_says_what_it_was_and_why_and_keeps_every_value(
    database: Database, offers: PipelineUnderTest
) -> None:
    database.execute("UPDATE offers SET until = '-infinity', v = NULL WHERE id = 1")
    offers.sync()
    loaded, changed = letters(offers)
    assert (loaded["_op"], loaded["_tx"], loaded["_commit_ts"]) == ("r", 0, None)
    assert loaded["_row"] == [
        {"column": "id", "value": "6"},
        {"column": "until", "value": "infinity"},
        {"column": "v", "value": "a secret"},
    ]
    [change] = [
        row
        for row in Pipeline.from_yaml(offers.file).log("public.offers").to_arrow().to_pylist()
        if row["_op"] == "u"
    ]
    for mark in ("_op", "_tx", "_op_index", "_commit_ts"):
        assert changed[mark] == change[mark]
    assert changed["_row"][1:] == [{"column": "until", "value": "-infinity"}, {"column": "v", "value": None}]
    for letter in (loaded, changed):
        assert letter["_bad_columns"] == ["until"]
        assert letter["_reason"] == "until is infinite"
        assert letter["_dead_at"] is not None


def test_a_later_version_settles_a_dead_letter_and_another_one_does_not(
    database: Database, offers: PipelineUnderTest
) -> None:
    assert dead_keys(offers) == ["6"]
    steps = [
        (
            "UPDATE offers SET v = 'again' WHERE id = 6; UPDATE offers SET until = 'infinity' WHERE id < 4",
            "1236",
        ),
        (
            "UPDATE offers SET until = '2024-02-01' WHERE id = 6; DELETE FROM offers WHERE id = 1;"
            "UPDATE offers SET id = 7 WHERE id = 2; UPDATE offers SET id = 8, until = NULL WHERE id = 3;"
            "INSERT INTO offers VALUES (0, 'infinity'); UPDATE offers SET until = NULL WHERE id = 0;"
            "UPDATE offers SET until = NULL WHERE id = 4; UPDATE offers SET until = 'infinity' WHERE id = 4",
            "47",
        ),
        ("INSERT INTO offers VALUES (9, 'infinity')", "479"),
        ("TRUNCATE offers; INSERT INTO offers VALUES (1, 'infinity'), (2, NULL)", "1"),
    ]
    for statement, keys in steps:
        database.execute(statement)
        offers.sync()
        assert dead_keys(offers) == list(keys), statement
        source = {row for (row,) in database.query("SELECT id FROM offers")}
        assert held(offers) == source - {int(key) for key in keys}, statement
    assert len(letters(offers)) == 10


def test_a_load_starts_the_dead_letters_anew(database: Database, offers: PipelineUnderTest) -> None:
    database.execute("UPDATE offers SET until = 'infinity' WHERE id = 1")
    offers.sync()
    database.execute("DELETE FROM offers WHERE id = 6")
    Pipeline.from_yaml(offers.file).resync(["public.offers"])
    assert [letter["_row"][0]["value"] for letter in letters(offers)] == ["1"]
    assert dead_keys(offers) == ["1"]


def test_the_history_of_an_append_table_is_the_table_and_its_dead_letters(
    database: Database, make: MakePipeline
) -> None:
    database.execute("CREATE TABLE offers (id int PRIMARY KEY, until date)")
    pipeline = make([{"table": "public.offers", "write": "append"}])
    pipeline.sync()
    for day in ("2024-01-01", "infinity", "2024-01-02"):
        database.execute(
            f"INSERT INTO offers VALUES (1, '{day}') ON CONFLICT (id) DO UPDATE SET until = '{day}'"
        )
    pipeline.sync()
    table = Pipeline.from_yaml(pipeline.file).table("public.offers").to_arrow().to_pylist()
    offsets = sorted((row["_tx"], row["_op_index"], row["_op"]) for row in [*table, *letters(pipeline)])
    assert [op for _, _, op in offsets] == ["i", "u", "u"]
    assert Pipeline.from_yaml(pipeline.file).status().streams[0].dead_keys is None


def test_any_tool_reads_the_directory_of_dead_letters(database: Database, offers: PipelineUnderTest) -> None:
    path = Pipeline.from_yaml(offers.file).dead_letters("public.offers").path
    assert pq.read_table(path).num_rows == 1
    query = f"SELECT map_from_entries(_row)['until'] FROM read_parquet('{path}/*.parquet')"
    assert duckdb.connect().execute(query).fetchall() == [("infinity",)]
    database.execute("UPDATE offers SET until = 'infinity' WHERE id = 1")
    database.execute("ALTER TABLE offers ADD COLUMN w int; UPDATE offers SET w = 1 WHERE id = 6")
    offers.sync()
    newer = Pipeline.from_yaml(offers.file).dead_letters("public.offers").path
    assert pq.read_table(path).num_rows == 1, "a directory that was given out does not change"
    assert duckdb.connect().execute(f"SELECT count(*) FROM read_parquet('{newer}/*.parquet')").fetchall() == [
        (3,)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("make", ["parquet", "iceberg"], indirect=True)
def test_letters_and_rows_of_many_rounds_are_in_few_files_and_are_what_they_were(
    database: Database, make: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letter_merging, "FILES_MAX", 2)
    monkeypatch.setattr(file_merging, "SMALL_FILES_MAX", 2)
    database.execute("CREATE TABLE offers (id int PRIMARY KEY, until date, v text)")
    database.execute("INSERT INTO offers VALUES (1, 'infinity', 'v 0'), (2, 'infinity', 'v 0')")
    pipeline = make(["public.offers"])
    pipeline.sync()
    shown = {"v 0"}
    for number in range(1, 7):
        database.execute(f"INSERT INTO offers VALUES ({10 + number}, '2024-01-01', 'v {number}')")
        database.execute(f"UPDATE offers SET v = 'v {number}' WHERE id = 1")
        if number == 2:
            database.execute("UPDATE offers SET until = '2024-01-01' WHERE id = 2")
        pipeline.sync()
        shown.add(f"v {number}")
    words = [dict(each.values() for each in letter["_row"])["v"] for letter in letters(pipeline)]
    assert words == ["v 0", *sorted(shown)]
    assert dead_keys(pipeline) == ["1"]
    assert held(pipeline) == {2, *range(11, 17)}
    path = Pipeline.from_yaml(pipeline.file).dead_letters("public.offers").path
    assert pq.read_table(path).num_rows == len(words)
    assert len(list(path.iterdir())) <= 4
    config = Pipeline.from_yaml(pipeline.file).config
    record = destination_of(config).table(StreamId("public", "offers")).record()
    assert record is not None
    assert any(name.startswith("history-") for name in record.dead_letters.files)
    assert len(record.dead_letters.names) <= 5
    if path.parent.name == "offers":
        assert len(record.files) <= 4
        assert any(file.name.startswith("merged-") for file in record.files)


@pytest.mark.slow
@pytest.mark.parametrize("failpoint", ["cdc.written", "cdc.committed", IN_A_COMMIT])
def test_dead_letters_are_there_once_after_a_kill(
    database: Database, offers: PipelineUnderTest, failpoint: str
) -> None:
    database.execute("UPDATE offers SET until = 'infinity' WHERE id < 3")
    database.execute("UPDATE offers SET until = NULL WHERE id = 6")
    killed = offers.sync_apart(f"{failpoint}=kill")
    assert killed.killed, killed
    offers.sync()
    assert len(letters(offers)) == 3
    assert dead_keys(offers) == ["1", "2"]
    path = Pipeline.from_yaml(offers.file).dead_letters("public.offers").path
    assert pq.read_table(path).num_rows == 3


@pytest.mark.slow
@pytest.mark.parametrize("make", ["parquet", "iceberg"], indirect=True)
def test_a_row_that_a_resumed_load_read_itself_is_a_dead_letter_once(
    database: Database, make: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its change is in the log as well; row 1 was read before its change, row 3990 after."""

    def cut_short(name: str) -> None:
        if name == "load.chunks_removed":
            raise InterruptedError

    database.execute("CREATE TABLE offers (id int PRIMARY KEY, until date)")
    database.execute("INSERT INTO offers SELECT n, '2024-01-01' FROM generate_series(1, 4000) n")
    database.execute("ANALYZE offers")
    pipeline = make(["public.offers"], load={"method": "key", "rows_per_chunk": 100})
    monkeypatch.setattr("penstock.lake.load.JOBS_AT_ONCE", 1)
    with monkeypatch.context() as patched:
        patched.setattr("penstock.failpoints.reach", cut_short)
        with pytest.raises(InterruptedError):
            pipeline.sync()
    database.execute("UPDATE offers SET until = 'infinity' WHERE id IN (1, 3990)")
    pipeline.sync()
    assert sorted((letter["_op"], letter["_key"]) for letter in letters(pipeline)) == [
        ("r", ["3990"]),
        ("u", ["1"]),
    ]
    assert dead_keys(pipeline) == ["1", "3990"]
    database.execute("UPDATE offers SET until = '2024-01-01'")
    pipeline.sync()
    assert dead_keys(pipeline) == []
    assert held(pipeline) == set(range(1, 4001))


@pytest.mark.slow
def test_a_row_that_could_not_be_completed_is_a_dead_letter_until_it_is_whole(
    database: Database, make: MakePipeline
) -> None:
    """A large value that was not sent again, of a row whose other version did not fit."""
    database.execute("CREATE TABLE offers (at timestamptz PRIMARY KEY, until date, big text)")
    database.execute("ALTER TABLE offers ALTER COLUMN big SET STORAGE EXTERNAL")
    database.execute("INSERT INTO offers VALUES ('2024-01-01 12:00:00.5+00', 'infinity', repeat('x', 9000))")
    pipeline = make(["public.offers"])
    pipeline.sync()
    assert dead_keys(pipeline) == ["2024-01-01 12:00:00.5+00"]
    database.execute("UPDATE offers SET until = NULL")
    pipeline.sync()
    assert dead_keys(pipeline) == ["2024-01-01 12:00:00.5+00"]
    assert letters(pipeline)[-1]["_bad_columns"] == ["big"]
    database.execute("UPDATE offers SET big = 'short'")
    pipeline.sync()
    assert dead_keys(pipeline) == []
    pipeline.assert_same("public.offers")


def test_the_command_shows_no_value_unless_it_is_asked(offers: PipelineUnderTest) -> None:
    from typer.testing import CliRunner

    from penstock.cli.main import app

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["-c", str(offers.file), *arguments])
        assert result.exit_code == 0, result.output
        return result.output

    for arguments in (("dlq", "list"), ("dlq", "show", "public.offers"), ("status",)):
        assert "secret" not in run(*arguments)
        assert "secret" not in run("--json", *arguments)
    assert "until is infinite" in run("dlq", "show", "public.offers")
    assert "a secret" in run("dlq", "show", "public.offers", "--values")
    [listed] = json.loads(run("--json", "dlq", "list"))
    assert (listed["dead_letters"], listed["dead_keys"]) == (1, 1)
    assert run("table", "path", "--dead-letters", "public.offers").strip() == listed["dead_letters_path"]

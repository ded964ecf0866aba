"""Ways to lose or falsify rows while following a table: keys that collide, columns that come with values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock import Pipeline
from penstock.sources.postgres import embedded_binaries
from penstock.sources.postgres.embedded import EmbeddedPostgres
from penstock.turns import Turns
from tests.conftest import Database, new_database
from tests.pipelines import DESTINATIONS, PipelineUnderTest
from tests.traps import MakePipeline

OLD_PROGRAMS = Path("/usr/lib/postgresql/15/bin")


@pytest.mark.slow
@pytest.mark.parametrize("timing", ["DEFERRABLE INITIALLY DEFERRED", "DEFERRABLE INITIALLY IMMEDIATE"])
def test_keys_that_move_onto_each_other_lose_no_row(
    database: Database, make: MakePipeline, timing: str
) -> None:
    """In mid-transaction two rows hold the same key; the last operation of a key may be a delete."""
    for table in ("state", "history"):
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY {timing}, v text)")
        database.execute(f"INSERT INTO {table} SELECT n, 'v' || n FROM generate_series(1, 50) n")
    pipeline = make(
        [
            {"table": "public.state", "replica_identity": "full"},
            {"table": "public.history", "write": "append", "replica_identity": "full"},
        ]
    )
    pipeline.sync()
    for shuffle in ("id = id + 1", "id = id - 1, v = v || '!'", "id = 51 - id", "id = (id + 5) % 50 + 1"):
        database.execute(f"UPDATE state SET {shuffle}; UPDATE history SET {shuffle}")
        pipeline.sync()
        pipeline.assert_same("public.state")
    with database.connect() as connection, connection.transaction():
        connection.execute("SET CONSTRAINTS ALL DEFERRED")
        connection.execute("UPDATE state SET v = 'row ' || id")
        connection.execute("UPDATE state SET id = id + 1")
        connection.execute("DELETE FROM state WHERE id = 7")
        connection.execute("INSERT INTO state VALUES (1, 'new'), (7, 'newer')")
        connection.execute("UPDATE state SET id = 1000 WHERE id = 19")
        connection.execute("UPDATE state SET id = id + 1 WHERE id < 19")
        connection.execute("UPDATE state SET id = 31 WHERE v = 'row 29'")  # two rows have key 31 now
        connection.execute("UPDATE state SET id = 30 WHERE v = 'row 30'")
        connection.execute("INSERT INTO state VALUES (40, 'second')")
        connection.execute("DELETE FROM state WHERE v = 'row 39'")  # the other one with key 40
    pipeline.sync()
    pipeline.assert_same("public.state")


def assert_same_now_and_later(tables: Database, pipeline: PipelineUnderTest) -> None:
    pipeline.sync()
    pipeline.assert_same("public.state")
    tables.execute("UPDATE state SET v = 'much later' WHERE id < 5")
    pipeline.sync()
    pipeline.assert_same("public.state")


COLUMNS = (
    "c int NOT NULL DEFAULT 7",
    "c text DEFAULT 'it''s {\"quoted\", too}'",
    "c numeric(8,3) DEFAULT 1.5",
    "c timestamptz DEFAULT now()",
    "c int",
    "c uuid DEFAULT gen_random_uuid()",
    "c bigint GENERATED ALWAYS AS IDENTITY",
    "c int GENERATED ALWAYS AS (id * 2) STORED",
    "c int DEFAULT 1 CHECK (c > 0)",
)
ADDED_COLUMNS = pytest.mark.parametrize("column", COLUMNS)


def test_columns_added_with_defaults_one_after_the_other_are_right_in_old_rows_too(
    tables: Database, make: MakePipeline
) -> None:
    pipeline = make(["public.state"])
    pipeline.sync()
    for number, column in enumerate(COLUMNS):
        tables.execute("UPDATE state SET v = v || ' before' WHERE id = %s", (number,))
        named = column.replace("c ", f"c{number} ", 1).replace("(c > 0)", f"(c{number} > 0)")
        tables.execute(f"ALTER TABLE state ADD COLUMN {named}")
        tables.execute("INSERT INTO state (id, v) VALUES (%s, 'new')", (1000 + number,))
    assert_same_now_and_later(tables, pipeline)


@pytest.mark.slow
@ADDED_COLUMNS
def test_a_column_added_with_a_default_is_right_in_old_rows_too(
    tables: Database, make: MakePipeline, column: str
) -> None:
    """A constant default rewrites no row and logs nothing; any other rewrites them all, and logs nothing."""
    pipeline = make(["public.state"])
    pipeline.sync()
    tables.execute("UPDATE state SET v = 'before' WHERE id = 1")
    tables.execute(f"ALTER TABLE state ADD COLUMN {column}")
    tables.execute(
        "UPDATE state SET v = 'after' WHERE id = 2; INSERT INTO state (id, v) VALUES (1000, 'new')"
    )
    assert_same_now_and_later(tables, pipeline)


@pytest.mark.slow
@ADDED_COLUMNS
def test_a_column_added_before_older_changes_were_read_is_right_in_old_rows_too(
    tables: Database, make: MakePipeline, column: str
) -> None:
    """The catalog has moved on when the log is read: what it says belongs to rows that come later."""
    pipeline = make(["public.state"])
    pipeline.sync()
    tables.execute("UPDATE state SET v = 'before' WHERE id = 1")
    tables.execute(f"ALTER TABLE state ADD COLUMN {column}")
    pipeline.sync()
    tables.execute("INSERT INTO state (id, v) VALUES (1000, 'new')")
    pipeline.sync()
    pipeline.assert_same("public.state")


def test_a_constant_default_that_was_changed_meanwhile_is_right_in_every_row(
    tables: Database, make: MakePipeline
) -> None:
    """What old rows read as is the default of the moment the column was added, not today's."""
    pipeline = make(["public.state"])
    pipeline.sync()
    tables.execute("ALTER TABLE state ADD COLUMN c int DEFAULT 1")
    tables.execute("INSERT INTO state (id) VALUES (1000)")
    tables.execute("ALTER TABLE state ALTER COLUMN c SET DEFAULT 2")
    tables.execute("INSERT INTO state (id) VALUES (1001); UPDATE state SET c = NULL WHERE id = 3")
    pipeline.sync()
    pipeline.assert_same("public.state")


STORED = "w text GENERATED ALWAYS AS (v || '!') STORED"
VIRTUAL = "x text GENERATED ALWAYS AS (v || '?') VIRTUAL"


def make_generated(database: Database, *columns: str) -> None:
    database.execute(f"CREATE TABLE state ({', '.join(('id int PRIMARY KEY', 'v text', *columns))})")
    database.execute("INSERT INTO state (id, v) SELECT n, 'v' FROM generate_series(1, 10) n")


def change_generated(database: Database, word: str) -> None:
    database.execute(f"UPDATE state SET v = '{word}' WHERE id % 2 = 0; DELETE FROM state WHERE id % 7 = 6")
    database.execute(f"INSERT INTO state (id, v) SELECT max(id) + 1, '{word}' FROM state")


def test_stored_generated_columns_are_exact_in_load_and_log_and_virtual_ones_in_neither(
    database: Database, make: MakePipeline
) -> None:
    make_generated(database, STORED, VIRTUAL)
    # A key that is generated, and old rows that have generated columns: the application's statements go on.
    database.execute("CREATE TABLE keyed (v int, k int GENERATED ALWAYS AS (v * 2) STORED PRIMARY KEY)")
    database.execute(
        "CREATE TABLE whole (id int PRIMARY KEY, v int, k int GENERATED ALWAYS AS (v * 2) STORED)"
    )
    database.execute("INSERT INTO keyed VALUES (1), (2), (3); INSERT INTO whole VALUES (1, 1), (2, 2)")
    pipeline = make(["public.state", "public.keyed", {"table": "public.whole", "replica_identity": "full"}])
    pipeline.sync()
    assert_columns(pipeline, ["id", "v", "w"])
    pipeline.assert_same("public.state", "public.keyed", "public.whole")
    change_generated(database, "changed")
    database.execute(
        "UPDATE keyed SET v = v + 10; UPDATE whole SET v = v + 1; DELETE FROM whole WHERE id = 2"
    )
    pipeline.sync()
    pipeline.assert_same("public.state", "public.keyed", "public.whole")
    assert_columns(pipeline, ["id", "v", "w"])


@pytest.mark.slow
@pytest.mark.parametrize("write", ["before", "after"])
@pytest.mark.parametrize(
    "statement",
    [
        "ALTER COLUMN w SET EXPRESSION AS (v || ' with another end')",
        "ALTER COLUMN w DROP EXPRESSION",
        "DROP COLUMN w",
        f"DROP COLUMN w, ADD COLUMN {STORED}",
        "ADD COLUMN more int GENERATED ALWAYS AS (length(v)) STORED",
    ],
)
def test_generated_columns_that_are_altered_are_right_in_every_row(
    database: Database, make: MakePipeline, statement: str, write: str
) -> None:
    """What older rows have in them was told by no event."""
    make_generated(database, STORED)
    pipeline = make(["public.state"])
    pipeline.sync()
    if write == "before":
        change_generated(database, "before")
    database.execute(f"ALTER TABLE state {statement}")
    if write == "after":
        change_generated(database, "after")
    pipeline.sync()
    change_generated(database, "later")
    pipeline.sync()
    pipeline.assert_same("public.state")


@pytest.mark.parametrize("destination", ["parquet", pytest.param("iceberg", marks=pytest.mark.slow)])
def test_tables_that_keep_what_was_take_a_new_generated_column_as_any_other(
    database: Database, make: MakePipeline, destination: str
) -> None:
    """An append table, and tables of `strict_cdc`: neither loaded again nor paused."""
    made: list[Any] = [{"table": "public.history", "write": "append"}]
    made += [{"table": "public.strict", "mode": "strict_cdc"}]
    made += [{"table": "public.deeds", "mode": "strict_cdc", "write": "append"}]
    names = ("history", "strict", "deeds")
    for name in names:
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
    database.execute("INSERT INTO history VALUES (1, 'loaded')")
    pipeline = make(made, destination=DESTINATIONS[destination])
    pipeline.sync()
    for name in names:
        database.execute(f"INSERT INTO {name} VALUES (10, 'a'), (20, 'b')")
        database.execute(f"ALTER TABLE {name} ADD {STORED}")
        database.execute(f"UPDATE {name} SET v = 'c' WHERE id = 10; INSERT INTO {name} VALUES (30, 'd')")
    report = pipeline.sync()
    assert [each.rows_loaded for each in report.streams] == [0, 0, 0]
    opened = Pipeline.from_yaml(pipeline.file)
    assert [each.state for each in opened.status().streams] == ["following"] * 3

    def rows(name: str, *columns: str) -> list[tuple[Any, ...]]:
        found = opened.table(f"public.{name}").to_arrow().to_pylist()
        return sorted(tuple(str(row[column]) for column in columns) for row in found)

    told = [
        ("10", "i", "a", "None"),
        ("10", "u", "c", "c!"),
        ("20", "i", "b", "None"),
        ("30", "i", "d", "d!"),
    ]
    assert rows("history", "id", "_op", "v", "w") == [("1", "r", "loaded", "None"), *told]
    assert rows("deeds", "id", "_op", "v", "w") == told
    assert rows("strict", "id", "v", "w") == [("10", "c", "c!"), ("20", "b", "None"), ("30", "d", "d!")]
    for name in names:
        assert sum(f"{name}: column w is generated" in note for note in pipeline.notes) == 1, pipeline.notes
        database.execute(f"UPDATE {name} SET v = 'e' WHERE id = 20")
    report = pipeline.sync()
    assert [each.rows_loaded for each in report.streams] == [0, 0, 0]
    assert ("20", "e", "e!") in rows("strict", "id", "v", "w")


KEPT: list[Any] = [
    {"table": "public.history", "write": "append"},
    {"table": "public.strict", "mode": "strict_cdc"},
    {"table": "public.deeds", "mode": "strict_cdc", "write": "append"},
]
KEPT_NAMES = ("history", "strict", "deeds")


def rows_of(pipeline: PipelineUnderTest, name: str, *columns: str) -> list[tuple[Any, ...]]:
    found = Pipeline.from_yaml(pipeline.file).table(f"public.{name}").to_arrow().to_pylist()
    return sorted(tuple(str(row[column]) for column in columns) for row in found)


def assert_kept(pipeline: PipelineUnderTest) -> None:
    """What was told before and after is there; only what changed meanwhile lacks the column."""
    told = [
        ("10", "i", "a", "a!"),
        ("10", "u", "c", "None"),
        ("20", "i", "b", "b!"),
        ("20", "u", "e", "e!"),
        ("30", "i", "d", "None"),
    ]
    assert rows_of(pipeline, "history", "id", "_op", "v", "w") == [("1", "r", "loaded", "loaded!"), *told]
    assert rows_of(pipeline, "deeds", "id", "_op", "v", "w") == told
    strict = [("10", "c", "None"), ("20", "e", "e!"), ("30", "d", "None")]
    assert rows_of(pipeline, "strict", "id", "v", "w") == strict
    for name in KEPT_NAMES:
        notes = [note for note in pipeline.notes if f"{name}: column w is generated" in note]
        assert len(notes) == 1, pipeline.notes
        assert "not published for a while" in notes[0]


def made_kept(database: Database) -> None:
    for name in KEPT_NAMES:
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text, {STORED})")
    database.execute("INSERT INTO history VALUES (1, 'loaded')")


def change_kept(database: Database, *statements: str) -> None:
    for name in KEPT_NAMES:
        for statement in statements:
            database.execute(statement.format(name))


BEFORE = ("INSERT INTO {} VALUES (10, 'a'), (20, 'b')",)
MEANWHILE = ("UPDATE {} SET v = 'c' WHERE id = 10", "INSERT INTO {} VALUES (30, 'd')")
AFTERWARDS = ("UPDATE {} SET v = 'e' WHERE id = 20",)


@pytest.mark.parametrize("rounds", ["one round", pytest.param("many rounds", marks=pytest.mark.slow)])
@pytest.mark.parametrize("destination", ["parquet", pytest.param("iceberg", marks=pytest.mark.slow)])
def test_tables_that_keep_what_was_keep_a_generated_column_that_was_not_published_for_a_while(
    database: Database, make: MakePipeline, destination: str, rounds: str
) -> None:
    made_kept(database)
    pipeline = make(KEPT, destination=DESTINATIONS[destination])
    pipeline.sync()
    change_kept(database, *BEFORE)
    if rounds == "many rounds":
        pipeline.sync()
    database.execute(f"ALTER PUBLICATION {pipeline.name} SET (publish_generated_columns = none)")
    change_kept(database, *MEANWHILE)
    if rounds == "many rounds":
        assert [each.rows_loaded for each in pipeline.sync().streams] == [0, 0, 0]
    database.execute(f"ALTER PUBLICATION {pipeline.name} SET (publish_generated_columns = stored)")
    change_kept(database, *AFTERWARDS)
    assert [each.rows_loaded for each in pipeline.sync().streams] == [0, 0, 0]
    assert_kept(pipeline)


@pytest.mark.slow
def test_a_round_that_meets_changes_without_a_generated_column_pauses_with_the_statement_to_run(
    database: Database, make: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run, such a round may come before the next look at the source's tables."""
    made_kept(database)
    make_generated(database, STORED)
    pipeline = make(["public.state", *KEPT], source={"publication_mode": "manual"})
    database.execute(
        f"CREATE PUBLICATION {pipeline.name} FOR TABLE state, history, strict, deeds "
        "WITH (publish_generated_columns = stored)"
    )
    pipeline.sync()
    change_kept(database, *BEFORE)
    pipeline.sync()
    monkeypatch.setattr(Turns, "_lacking", lambda *_: [])  # nobody looks
    database.execute(f"ALTER PUBLICATION {pipeline.name} SET (publish_generated_columns = none)")
    change_generated(database, "meanwhile")
    change_kept(database, *MEANWHILE)
    opened = Pipeline.from_yaml(pipeline.file)
    streams = ["public.state", *(f"public.{name}" for name in KEPT_NAMES)]
    for _ in range(2):
        assert [each.rows_loaded for each in pipeline.sync().streams] == [0] * 4
        paused = {each.stream: each.paused for each in opened.status().streams}
        for stream in streams:
            why = paused[stream]
            assert why is not None, stream
            assert "SET (publish_generated_columns = stored)" in why.reason
        opened.resume(streams)  # to no avail
    database.execute(f"ALTER PUBLICATION {pipeline.name} SET (publish_generated_columns = stored)")
    change_generated(database, "afterwards")
    change_kept(database, *AFTERWARDS)
    pipeline.sync()
    pipeline.assert_same("public.state")
    assert_kept(pipeline)


@pytest.mark.slow
def test_a_publication_that_left_generated_columns_out_has_them_published_and_the_table_loaded_again(
    database: Database, make: MakePipeline
) -> None:
    """As one that is older than the server, or than a version of Penstock that knew of this."""
    make_generated(database, STORED)
    database.execute("CREATE TABLE other (id int PRIMARY KEY); INSERT INTO other VALUES (1)")
    pipeline = make(["public.state", "public.other"])
    pipeline.sync()
    database.execute(f"ALTER PUBLICATION {pipeline.name} SET (publish_generated_columns = none)")
    change_generated(database, "left out")  # to the log without the column
    pipeline.sync()
    change_generated(database, "published")
    pipeline.sync()
    pipeline.assert_same("public.state", "public.other")
    assert_columns(pipeline, ["id", "v", "w"])
    assert any("column w is generated" in note for note in pipeline.notes), pipeline.notes


@pytest.mark.slow
def test_a_publication_by_hand_that_lacks_generated_columns_holds_up_their_streams_alone(
    database: Database, make: MakePipeline
) -> None:
    make_generated(database, STORED)
    database.execute("CREATE TABLE other (id int PRIMARY KEY, v text); INSERT INTO other VALUES (1, 'a')")
    database.execute("CREATE TABLE later (id int PRIMARY KEY, v text); INSERT INTO later VALUES (1, 'a')")
    pipeline = make(
        ["public.state", "public.other", "public.later", {"table": "public.part", "columns": ["id", "v"]}],
        source={"publication_mode": "manual"},
    )
    database.execute("CREATE TABLE part (LIKE state INCLUDING ALL); INSERT INTO part (id, v) VALUES (1, 'a')")
    database.execute(f"CREATE PUBLICATION {pipeline.name} FOR TABLE state, other, later, part")
    opened = Pipeline.from_yaml(pipeline.file)

    def paused() -> dict[str, str]:
        streams = opened.status().streams
        return {each.stream: each.paused.reason for each in streams if each.paused is not None}

    pipeline.sync()
    assert paused().keys() == {"public.state"}
    assert "SET (publish_generated_columns = stored)" in paused()["public.state"]
    pipeline.assert_same("public.other", "public.later")
    # A column that comes to a table that is followed.
    database.execute(f"ALTER TABLE later ADD {STORED}")
    for word in ("b", "c"):
        database.execute(
            f"UPDATE other SET v = '{word}'; UPDATE later SET v = '{word}'; UPDATE part SET v = '{word}'"
        )
        change_generated(database, word)
        opened.resume(["public.state"])  # to no avail
        pipeline.sync()
        assert paused().keys() == {"public.state", "public.later"}
        pipeline.assert_same("public.other")
    assert [row["v"] for row in opened.table("public.part").to_arrow().to_pylist()] == ["c"]
    database.execute(f"ALTER PUBLICATION {pipeline.name} SET (publish_generated_columns = stored)")
    opened.resume(["public.state", "public.later"])
    change_generated(database, "published")
    pipeline.sync()
    change_generated(database, "at last")
    database.execute("UPDATE later SET v = 'd'")
    pipeline.sync()
    assert paused() == {}
    pipeline.assert_same("public.state", "public.other", "public.later")


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """Of a server that cannot publish generated columns."""
    if not OLD_PROGRAMS.exists():
        pytest.skip("needs Debian's postgresql-15")
    server = EmbeddedPostgres()
    with monkeypatch.context() as patched:
        patched.setattr(embedded_binaries, "find_programs", lambda: OLD_PROGRAMS)
        server.start()
    try:
        with new_database(server) as database:
            yield database
    finally:
        server.close()


@pytest.mark.slow
def test_an_older_server_leaves_generated_columns_out_of_load_and_log_alike(
    old: Database, make: MakePipeline
) -> None:
    make_generated(old, STORED)
    old.execute("CREATE TABLE whole (LIKE state INCLUDING ALL); INSERT INTO whole (id, v) VALUES (1, 'a')")
    pipeline = make(["public.state", {"table": "public.whole", "replica_identity": "full"}], url=old.url)
    pipeline.sync()
    change_generated(old, "changed")
    old.execute("UPDATE whole SET v = 'b'")
    pipeline.sync()
    pipeline.assert_same("public.state", "public.whole")
    assert_columns(pipeline, ["id", "v"])


def assert_columns(pipeline: PipelineUnderTest, names: list[str]) -> None:
    file = next(iter(sorted(pipeline.path("public.state").glob("*.parquet"))))
    assert pq.read_schema(file).names == names

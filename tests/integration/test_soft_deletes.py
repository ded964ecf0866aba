"""Tables that keep deleted rows, compared with a table that triggers of the source keep in the same way.

The triggers are the oracle: plain SQL, run by Postgres at every change, with the commit time that Postgres
itself has noted for the transaction. They know nothing of logs, batches or Penstock.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from penstock import Pipeline
from penstock.core.errors import PenstockError
from penstock.lake import apply
from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.conftest import Database
from tests.oracle import assert_same
from tests.pipelines import Notes, PipelineUnderTest
from tests.traps import IN_A_COMMIT, MakePipeline

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("loads_by_spark")]

both = pytest.mark.parametrize("make", ["parquet", "iceberg"], indirect=True)

#: `<table>_kept` has every row that ever was inside, with the transaction that took it away.
SHADOW = """
CREATE TABLE {name}_kept (ended xid8, LIKE {name});
CREATE FUNCTION keep_{name}() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE was bool := false; is_in bool := false;
BEGIN
  IF TG_OP = 'TRUNCATE' THEN
    UPDATE {name}_kept SET ended = pg_current_xact_id() WHERE ended IS NULL;
    RETURN NULL;
  END IF;
  IF TG_OP <> 'INSERT' THEN was := (OLD.{inside}) IS TRUE; END IF;
  IF TG_OP <> 'DELETE' THEN is_in := (NEW.{inside}) IS TRUE; END IF;
  IF was AND (NOT is_in OR NEW.id <> OLD.id) THEN
    UPDATE {name}_kept SET ended = pg_current_xact_id() WHERE id = OLD.id AND ended IS NULL;
  END IF;
  IF is_in THEN
    DELETE FROM {name}_kept WHERE id = NEW.id;
    INSERT INTO {name}_kept SELECT NULL, NEW.*;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER keep_rows AFTER INSERT OR UPDATE OR DELETE ON {name}
  FOR EACH ROW EXECUTE FUNCTION keep_{name}();
CREATE TRIGGER keep_all AFTER TRUNCATE ON {name} EXECUTE FUNCTION keep_{name}();
"""
#: For keys that are checked at the end of a transaction: what counts is what is there then.
DEFERRED_SHADOW = """
CREATE TABLE {name}_kept (ended xid8, LIKE {name});
CREATE FUNCTION keep_{name}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP <> 'INSERT' AND NOT EXISTS (SELECT 1 FROM {name} WHERE id = OLD.id) THEN
    DELETE FROM {name}_kept WHERE id = OLD.id;
    INSERT INTO {name}_kept SELECT pg_current_xact_id(), OLD.*;
  END IF;
  IF TG_OP <> 'DELETE' AND EXISTS (SELECT 1 FROM {name} WHERE id = NEW.id) THEN
    DELETE FROM {name}_kept WHERE id = NEW.id;
    INSERT INTO {name}_kept SELECT NULL, t.* FROM {name} t WHERE id = NEW.id;
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER keep_rows AFTER INSERT OR UPDATE OR DELETE ON {name}
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION keep_{name}();
"""
ROWS = 40
#: Rows change their partition, and those that have ended lie in one of their own.
PARTITIONED = {"iceberg": {"partition_by": ["bucket(4, n)", "day(_deleted_at)"]}}


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """One that notes commit times, so that the oracle can ask for them."""
    with EmbeddedPostgres(settings={"track_commit_timestamp": "on"}) as running:
        yield running


def make_table(database: Database, name: str = "t", inside: str = "id IS NOT NULL") -> None:
    """`big` is too large to be sent with updates that leave it as it is."""
    database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, n int, v text, big text)")
    database.execute(SHADOW.format(name=name, inside=inside))
    show_shadow(database, name)
    database.execute(
        f"INSERT INTO {name} SELECT n, n, 'v' || n, CASE n % 3 WHEN 0 THEN {large('n')} END "
        f"FROM generate_series(1, {ROWS}) n"
    )


def large(seed: str) -> str:
    return f"(SELECT string_agg(md5({seed} || '-' || g), '') FROM generate_series(1, 300) g)"


def show_shadow(database: Database, name: str = "t") -> None:
    columns = (
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
    )
    names = ", ".join(column for (column,) in database.query(columns, (name,)))
    time = "pg_xact_commit_timestamp(ended::xid) AS _deleted_at"
    database.execute(f"DROP VIEW IF EXISTS {name}_shadow")
    database.execute(f"CREATE VIEW {name}_shadow AS SELECT {names}, {time} FROM {name}_kept")


def forget_ended(database: Database) -> None:
    """A load has what is there; rows that were deleted before it are nowhere."""
    database.execute("DELETE FROM t_kept WHERE ended IS NOT NULL")


def soft(name: str = "t", **settings: Any) -> dict[str, Any]:
    return {"table": f"public.{name}", "deletes": "soft", **settings}


def assert_kept(pipeline: PipelineUnderTest, name: str = "t") -> int:
    """All rows, live and deleted, value by value, and the microsecond at which each was deleted."""
    return assert_same(pipeline.url, f"public.{name}_shadow", pipeline.path(f"public.{name}"))


def read(pipeline: PipelineUnderTest, name: str = "t") -> pa.Table:
    return Pipeline.from_yaml(pipeline.file).table(f"public.{name}").to_arrow()


def live(pipeline: PipelineUnderTest, name: str = "t") -> dict[int, bool]:
    """For each key that the table has, whether its row is live."""
    rows = read(pipeline, name)
    return dict(
        zip(rows.column("id").to_pylist(), rows.column("_deleted_at").is_null().to_pylist(), strict=True)
    )


# -- whatever happens ---------------------------------------------------------------------------------


def statement(chance: random.Random, name: str) -> str:
    one, other, number = chance.randint(1, ROWS), chance.randint(1, ROWS), chance.randint(0, 2 * ROWS)
    big = large(f"'{number}'")
    if chance.random() < 0.02:
        return f"TRUNCATE {name}"
    return chance.choice(
        [
            f"INSERT INTO {name} VALUES ({one}, {number}, 'new', {big}) ON CONFLICT DO NOTHING",
            f"INSERT INTO {name} VALUES ({one}, {number}, 'again') ON CONFLICT (id) DO UPDATE SET v = 'met'",
            f"UPDATE {name} SET n = {number}, v = v || '.' WHERE id = {one}",
            f"UPDATE {name} SET n = {number} WHERE id BETWEEN {one} AND {one + 5}",
            f"UPDATE {name} SET id = {other}, v = 'moved' "
            f"WHERE id = {one} AND NOT EXISTS (SELECT 1 FROM {name} WHERE id = {other})",
            f"DELETE FROM {name} WHERE id = {one}",
            f"DELETE FROM {name} WHERE id BETWEEN {one} AND {one + 3}",
        ]
    )


def change_at_random(database: Database, chance: random.Random, names: list[str], transactions: int) -> None:
    with database.connect(autocommit=False) as connection:
        for _ in range(transactions):
            for _ in range(chance.randint(1, 5)):
                connection.execute(statement(chance, chance.choice(names)).encode())
            connection.commit()


@pytest.mark.parametrize(
    ("make", "of_tables", "of_streams"),
    [
        ("parquet", {}, {}),
        pytest.param("iceberg", {"upserts": "merge_on_read"}, {}, marks=pytest.mark.slow),
        pytest.param("iceberg", {"upserts": "copy_on_write"}, {}, marks=pytest.mark.slow),
        pytest.param("iceberg", {"format_version": 3}, {}, marks=pytest.mark.slow),
        pytest.param("iceberg", {}, PARTITIONED, marks=pytest.mark.slow),
        pytest.param("iceberg", {"format_version": 3}, PARTITIONED, marks=pytest.mark.slow),
    ],
    indirect=["make"],
)
def test_a_table_keeps_what_triggers_at_the_source_keep(
    database: Database,
    make: MakePipeline,
    of_tables: dict[str, Any],
    of_streams: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(apply, "ROWS_PER_BUCKET_MAX", 60)  # so that rounds are folded in several buckets
    make_table(database)
    make_table(database, "part", inside="n < 40")
    iceberg = {"destination": {"type": "iceberg", "warehouse": "./lake", **of_tables}}
    streams = [soft(**of_streams), soft("part", where="n < 40", replica_identity="full", **of_streams)]
    pipeline = make(streams, **(iceberg if of_tables or of_streams else {}))
    pipeline.sync()
    assert assert_kept(pipeline) == ROWS
    assert assert_kept(pipeline, "part") == 39
    assert read(pipeline).schema.field("_deleted_at").type == pa.timestamp("us", "UTC")
    chance = random.Random(f"of {of_tables} {of_streams}")
    for transactions in (1, 60, 60):
        change_at_random(database, chance, ["t", "part"], transactions)
        pipeline.sync()
        assert_kept(pipeline)
        assert_kept(pipeline, "part")
    assert set(live(pipeline).values()) == {True, False}, "there were rows of both kinds to compare"
    assert not [note for note in pipeline.notes if "loaded again" in note]


# -- one thing at a time ------------------------------------------------------------------------------


@pytest.mark.slow
@both
def test_a_deleted_row_keeps_its_last_values_until_its_key_lives_again(
    database: Database, make: MakePipeline
) -> None:
    make_table(database)
    pipeline = make([soft()])
    pipeline.sync()
    rounds = [
        # Values of 3 and 6 that were not sent, deleted in the same round; a row that no round ever saw alive.
        "UPDATE t SET v = 'last' WHERE id < 9; DELETE FROM t WHERE id IN (3, 6, 7); "
        "INSERT INTO t VALUES (100, 1, 'short-lived'); DELETE FROM t WHERE id = 100",
        "UPDATE t SET id = 7, v = 'moved' WHERE id = 9; UPDATE t SET id = 101 WHERE id = 12",
        "INSERT INTO t VALUES (3, 30, 'again'), (100, 2, 'again'); DELETE FROM t WHERE id = 7",
        "TRUNCATE t; INSERT INTO t VALUES (5, 5, 'new'); TRUNCATE t; INSERT INTO t VALUES (6, 6, 'newest')",
        "INSERT INTO t VALUES (7, 70, 'inserts alone'), (8, 80, 'inserts alone')",
    ]
    for statements in rounds:
        for each in statements.split("; "):
            database.execute(each)
        pipeline.sync()
        assert_kept(pipeline)
    assert sorted(key for key, is_live in live(pipeline).items() if is_live) == [6, 7, 8]


@pytest.mark.slow
def test_without_old_rows_a_row_outside_the_filter_keeps_the_time_it_left(
    database: Database, make: MakePipeline
) -> None:
    """Every update of it looks like one that takes it out."""
    database.execute("CREATE TABLE part (id int PRIMARY KEY, n int, v int)")
    database.execute(SHADOW.format(name="part", inside="n < 40"))
    show_shadow(database, "part")
    database.execute(f"INSERT INTO part SELECT i, i, i FROM generate_series(1, {ROWS}) i")
    pipeline = make([soft("part", where="n < 40")])
    pipeline.sync()
    for statements in (
        "UPDATE part SET n = 50 WHERE id < 9; UPDATE part SET v = -v WHERE id < 12",
        "UPDATE part SET v = -v; DELETE FROM part WHERE id < 4; UPDATE part SET id = 99 WHERE id = 4",
        "UPDATE part SET n = 1 WHERE id IN (5, 99); INSERT INTO part VALUES (1, 50, 0), (2, 1, 0)",
        "UPDATE part SET n = 50 WHERE id = 99; DELETE FROM part",
    ):
        for each in statements.split("; "):
            database.execute(each)
        pipeline.sync()
        assert_kept(pipeline, "part")


@pytest.mark.slow
def test_rows_that_trade_keys_end_only_where_no_row_is_left(database: Database, make: MakePipeline) -> None:
    database.execute("CREATE TABLE d (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v text)")
    database.execute(DEFERRED_SHADOW.format(name="d"))
    show_shadow(database, "d")
    database.execute("INSERT INTO d SELECT n, 'v' || n FROM generate_series(1, 9) n")
    pipeline = make([soft("d", replica_identity="full")])
    pipeline.sync()
    for statements in (
        ["UPDATE d SET id = id + 1", "UPDATE d SET v = 'x' WHERE id = 5", "UPDATE d SET id = id - 2"],
        [
            "INSERT INTO d VALUES (4, 'comes and goes'); DELETE FROM d WHERE v = 'v5'",
            "DELETE FROM d WHERE id = 6",
        ],
        ["INSERT INTO d VALUES (20, 'never seen'); DELETE FROM d WHERE id = 20", "UPDATE d SET id = id + 3"],
    ):
        for each in statements:
            database.execute(each)
        pipeline.sync()
        assert_kept(pipeline, "d")


@both
@pytest.mark.slow
def test_a_table_that_keeps_deleted_rows_follows_its_columns(database: Database, make: MakePipeline) -> None:
    make_table(database)
    pipeline = make([soft()])
    pipeline.sync()
    database.execute("DELETE FROM t WHERE id < 5")
    pipeline.sync()
    # What a row that is gone shows in a new column is what one that is there does.
    for table in ("t", "t_kept"):
        database.execute(f"ALTER TABLE {table} ADD COLUMN w int DEFAULT 5")
    show_shadow(database)
    database.execute("DELETE FROM t WHERE id = 6; UPDATE t SET w = 6 WHERE id = 7")
    pipeline.sync()
    assert_kept(pipeline)
    database.execute("DROP VIEW t_shadow")
    for table in ("t", "t_kept"):
        database.execute(f"ALTER TABLE {table} RENAME COLUMN v TO renamed")
        database.execute(f"ALTER TABLE {table} DROP COLUMN w")
    show_shadow(database)
    database.execute("DELETE FROM t WHERE id = 7")
    pipeline.sync()
    assert_kept(pipeline)
    assert not [note for note in pipeline.notes if "loaded again" in note]


@both
@pytest.mark.slow
def test_a_dead_letter_is_neither_live_nor_deleted_and_a_delete_settles_it(
    database: Database, make: MakePipeline
) -> None:
    database.execute("CREATE TABLE offers (id int PRIMARY KEY, until date)")
    database.execute("INSERT INTO offers SELECT n, '2024-01-01' FROM generate_series(1, 6) n")
    pipeline = make([soft("offers")])
    pipeline.sync()
    rounds = [
        ("UPDATE offers SET until = 'infinity' WHERE id = 1; DELETE FROM offers WHERE id IN (2, 4)", "1"),
        ("DELETE FROM offers WHERE id = 1; INSERT INTO offers VALUES (2, 'infinity')", "2"),
        ("UPDATE offers SET id = 8, until = 'infinity' WHERE id = 3", "28"),
        ("UPDATE offers SET id = 4, until = 'infinity' WHERE id = 5", "248"),
        ("UPDATE offers SET until = NULL WHERE id = 2; DELETE FROM offers WHERE id = 4", "8"),
        ("UPDATE offers SET until = 'infinity' WHERE id = 6; DELETE FROM offers WHERE id = 6", "8"),
        ("TRUNCATE offers", ""),
    ]
    held = []
    for statements, dead in rounds:
        for each in statements.split("; "):
            database.execute(each)
        pipeline.sync()
        keys = Pipeline.from_yaml(pipeline.file).dead_letters("public.offers").open_keys()
        assert sorted(key for (key,) in keys.column("_key").to_pylist()) == list(dead), statements
        held.append(live(pipeline, "offers"))
    assert held == [
        {2: False, 3: True, 4: False, 5: True, 6: True},
        {3: True, 4: False, 5: True, 6: True},
        {3: False, 4: False, 5: True, 6: True},
        {3: False, 5: False, 6: True},
        {2: True, 3: False, 5: False, 6: True},
        {2: True, 3: False, 5: False},
        {2: False, 3: False, 5: False},
    ]


def test_a_table_that_begins_empty_keeps_only_rows_it_had(database: Database, make: MakePipeline) -> None:
    make_table(database)
    pipeline = make([soft(mode="strict_cdc")])
    pipeline.sync()
    database.execute("DELETE FROM t WHERE id = 1")
    database.execute("INSERT INTO t VALUES (50, 1, 'a'); UPDATE t SET id = 60 WHERE id = 2")
    database.execute("DELETE FROM t WHERE id = 50")
    pipeline.sync()
    assert live(pipeline) == {50: False, 60: True}


# -- settings, loads and crashes ----------------------------------------------------------------------


@both
@pytest.mark.slow
def test_a_load_replaces_the_table_and_its_deleted_rows(database: Database, make: MakePipeline) -> None:
    make_table(database)
    pipeline = make(["public.t"])
    pipeline.sync()
    for deletes in ("soft", "hard", "soft"):
        database.execute("DELETE FROM t WHERE id = (SELECT min(id) FROM t)")
        pipeline.streams = [soft() | {"deletes": deletes}]
        pipeline.write_file()
        pipeline.notes.clear()
        pipeline.sync()
        assert "loaded again" in pipeline.notes[0]
        assert ("deleted at the source are not kept" in pipeline.notes[0]) == (deletes == "soft")
        if deletes == "hard":
            pipeline.assert_same("public.t")
    forget_ended(database)
    assert_kept(pipeline)
    database.execute("DELETE FROM t WHERE id < 10")
    pipeline.sync()
    assert_kept(pipeline)
    for streams in (["public.t"], []):
        notes = Notes()
        Pipeline.from_yaml(pipeline.file).resync(streams, notes)
        assert any("deleted at the source are not kept" in note for note in notes), notes
        forget_ended(database)
        assert_kept(pipeline)
    database.execute("DELETE FROM t WHERE id < 20")
    pipeline.sync()
    assert_kept(pipeline)


def test_a_column_of_that_name_at_the_source_is_refused_until_it_is_renamed(
    database: Database, make: MakePipeline
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, _deleted_at text)")
    database.execute("INSERT INTO t VALUES (1, 'x')")
    pipeline = make([soft()])
    with pytest.raises(PenstockError, match="_deleted_at") as refused:
        pipeline.sync()
    assert "rename" in refused.value.remedy
    pipeline.streams = [soft(rename={"_deleted_at": "theirs"})]
    pipeline.write_file()
    pipeline.sync()
    assert read(pipeline).to_pylist() == [{"id": 1, "theirs": "x", "_deleted_at": None}]


@pytest.mark.slow
@pytest.mark.parametrize("failpoint", ["cdc.written", "cdc.committed", IN_A_COMMIT])
def test_deleted_rows_are_there_once_after_a_kill(
    database: Database, make: MakePipeline, failpoint: str
) -> None:
    make_table(database)
    pipeline = make([soft()])
    pipeline.sync()
    chance = random.Random(failpoint)
    for _ in range(2):
        change_at_random(database, chance, ["t"], 30)
        killed = pipeline.sync_apart(f"{failpoint}=kill")
        assert killed.killed, killed
    change_at_random(database, chance, ["t"], 5)
    pipeline.sync()
    assert_kept(pipeline)


@pytest.mark.slow
@both
@pytest.mark.parametrize("method", ["ctid", "key"])
def test_a_load_that_was_cut_short_keeps_what_was_deleted_meanwhile_if_it_had_read_it(
    database: Database, make: MakePipeline, method: str
) -> None:
    """What was not read before it was deleted is nowhere; everything else is as the source last showed it."""
    make_table(database)
    database.execute("INSERT INTO t SELECT n, n, 'later' FROM generate_series(1000, 21000) n; ANALYZE t")
    pipeline = make([soft()], load={"method": method, "rows_per_chunk": 500})
    ended = pipeline.sync_apart("load.chunks_removed=kill")
    assert ended.killed, str(ended)
    # A large value that moves from where nothing was read yet to where it was has the table loaded again.
    database.execute("UPDATE t SET v = 'since', id = id + 100000 WHERE id % 7 = 0 AND big IS NULL")
    database.execute("DELETE FROM t WHERE id % 5 = 0")
    pipeline.sync()
    kept = [key for key, is_live in live(pipeline).items() if not is_live]
    assert kept, "some had been read"
    database.execute(f"DELETE FROM t_kept WHERE ended IS NOT NULL AND id <> ALL (ARRAY{kept})")
    assert_kept(pipeline)
    database.execute("DELETE FROM t WHERE id % 3 = 0")
    pipeline.sync()
    assert_kept(pipeline)

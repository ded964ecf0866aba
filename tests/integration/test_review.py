"""Ways to lose, double or keep rows that a review of the whole found; each holds now."""

from __future__ import annotations

import shutil
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.capture.client import CaptureProcess
from penstock.capture.spec import Started
from penstock.core.errors import PenstockError
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.lake.changes import conform
from penstock.lake.evolve import ColumnSource
from penstock.lake.lane import LakeLane
from penstock.lake.target import Target
from penstock.ledger.store import StateStore
from penstock.turns import Turns
from tests.conftest import Database
from tests.pipelines import PipelineUnderTest
from tests.traps import MakePipeline

pytestmark = pytest.mark.slow


@pytest.fixture
def state(database: Database) -> Database:
    database.execute("CREATE TABLE state (id int PRIMARY KEY, a text, b text)")
    database.execute("INSERT INTO state SELECT n, 'a' || n, 'b' || n FROM generate_series(1, 20) n")
    return database


def synced(pipeline: PipelineUnderTest) -> bool:
    """Whether a sync went through; a refusal that says what to do is as good."""
    try:
        pipeline.sync()
    except PenstockError as error:
        if not error.remedy:
            raise
        return False
    return True


def execute(database: Database, statements: str) -> None:
    """Each statement in a transaction of its own."""
    for statement in statements.split("; "):
        database.execute(statement)


# -- columns that change between two syncs, with rows written before and after ------------------------


@pytest.mark.parametrize(
    "statements",
    [
        "UPDATE state SET a = 'x' WHERE id = 1; ALTER TABLE state RENAME a TO c; "
        "UPDATE state SET c = 'y' WHERE id = 2",
        "UPDATE state SET a = 'x' WHERE id = 1; ALTER TABLE state RENAME a TO t; "
        "ALTER TABLE state RENAME b TO a; ALTER TABLE state RENAME t TO b; "
        "UPDATE state SET a = 'y' WHERE id = 2",
        "UPDATE state SET a = 'x' WHERE id = 1; ALTER TABLE state DROP a; ALTER TABLE state ADD a text; "
        "UPDATE state SET b = 'y' WHERE id = 2",
        "ALTER TABLE state ADD c int; UPDATE state SET c = 1 WHERE id = 1; ALTER TABLE state DROP c; "
        "UPDATE state SET b = 'y' WHERE id = 2",
        "UPDATE state SET a = 'x' WHERE id = 1; ALTER TABLE state ADD c int DEFAULT 7; VACUUM FULL state; "
        "UPDATE state SET a = 'y' WHERE id = 2",
        "ALTER TABLE state ALTER a TYPE text USING upper(a); UPDATE state SET b = 'y' WHERE id = 2",
        "UPDATE state SET a = 'x' WHERE id = 1; ALTER TABLE state DROP b; "
        "UPDATE state SET a = 'y' WHERE id = 2",
        "UPDATE state SET a = 'x' WHERE id = 1; ALTER TABLE state ALTER a TYPE varchar(90); "
        "UPDATE state SET a = 'y' WHERE id = 2",
    ],
    ids=[
        "renamed",
        "names_swapped",
        "dropped_and_added",
        "added_and_dropped",
        "default_then_vacuum_full",
        "rewritten_by_using",
        "dropped",
        "retyped",
    ],
)
def test_a_table_equals_its_source_after_its_columns_changed_between_changes(
    state: Database, make: MakePipeline, statements: str
) -> None:
    pipeline = make(["public.state"])
    pipeline.sync()
    execute(state, statements)
    pipeline.sync()
    pipeline.assert_same("public.state")


def test_a_rename_after_the_last_change_of_a_sync_does_not_stop_the_stream(
    state: Database, make: MakePipeline
) -> None:
    pipeline = make(["public.state"])
    pipeline.sync()
    execute(state, "UPDATE state SET a = 'x' WHERE id = 1; ALTER TABLE state RENAME a TO c")
    pipeline.sync()
    execute(state, "UPDATE state SET c = 'y' WHERE id = 2")
    pipeline.sync()
    pipeline.assert_same("public.state")


@pytest.mark.parametrize(
    "statements",
    [
        "ALTER TABLE state ADD c uuid DEFAULT gen_random_uuid()",
        "ALTER TABLE state ALTER id TYPE bigint USING id + 1000",
        "CREATE TABLE fresh (LIKE state INCLUDING ALL); INSERT INTO fresh VALUES (1, 'new', 'new'); "
        "ALTER TABLE state RENAME TO old; ALTER TABLE fresh RENAME TO state",
        "DROP TABLE state; CREATE TABLE state (id int PRIMARY KEY, a text, b text); "
        "INSERT INTO state VALUES (1, 'new', 'new')",
    ],
    ids=["added_column", "rewritten", "table_swapped", "table_created_anew"],
)
def test_rows_that_were_replaced_without_an_event_are_not_kept(
    state: Database, make: MakePipeline, statements: str
) -> None:
    pipeline = make(["public.state"])
    pipeline.sync()
    execute(state, statements)
    pipeline.sync()
    pipeline.assert_same("public.state")


# -- settings that change between two syncs -----------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"mode": "full_refresh"}, {}),
        ({"write": "append"}, {}),
        ({}, {"rename": {"a": "renamed"}}),
    ],
    ids=["full_refresh_to_cdc", "append_to_upsert", "renamed"],
)
def test_a_stream_whose_settings_changed_is_loaded_again_or_refused(
    state: Database, make: MakePipeline, before: dict[str, Any], after: dict[str, Any]
) -> None:
    pipeline = make([{"table": "public.state", **before}])
    pipeline.sync()
    state.execute("UPDATE state SET a = 'x' WHERE id = 1")
    pipeline.sync()
    pipeline.streams = [{"table": "public.state", **after}]
    pipeline.write_file()
    state.execute("UPDATE state SET a = 'y' WHERE id = 2; INSERT INTO state VALUES (100, 'new', 'new')")
    if not synced(pipeline):
        return
    state.execute("DELETE FROM state WHERE id = 3")
    pipeline.sync()
    if "rename" in after:
        state.execute("ALTER TABLE state RENAME a TO renamed")
    pipeline.assert_same("public.state")


def test_an_upsert_table_that_becomes_an_append_table_has_one_kind_of_row(
    state: Database, make: MakePipeline
) -> None:
    pipeline = make(["public.state"])
    pipeline.sync()
    pipeline.streams = [{"table": "public.state", "write": "append"}]
    pipeline.write_file()
    state.execute("UPDATE state SET a = 'y' WHERE id = 2")
    if not synced(pipeline):
        return
    schemas = {tuple(pq.read_schema(path).names) for path in pipeline.path("public.state").glob("*.parquet")}
    assert len(schemas) == 1


# -- the publication and the slot ---------------------------------------------------------------------


def test_changes_made_while_a_table_was_not_published_are_not_lost(
    state: Database, make: MakePipeline
) -> None:
    pipeline = make(["public.state"])
    pipeline.sync()
    state.execute(f"ALTER PUBLICATION {pipeline.name} DROP TABLE state")
    state.execute("INSERT INTO state VALUES (100, 'unseen', 'unseen')")
    if synced(pipeline):
        pipeline.assert_same("public.state")


def test_a_lost_log_and_slot_are_an_error_and_no_silent_gap(state: Database, make: MakePipeline) -> None:
    pipeline = make(["public.state"])
    pipeline.sync()
    shutil.rmtree(pipeline.state / "log")
    state.execute(f"SELECT pg_drop_replication_slot('{pipeline.name}')")
    state.execute("INSERT INTO state VALUES (100, 'unseen', 'unseen')")
    if synced(pipeline):
        pipeline.assert_same("public.state")


def test_a_table_that_a_wildcard_finds_while_capture_starts_loses_nothing(
    state: Database, make: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = make(["public.*"])
    start = CaptureProcess.start

    def create_and_start(self: CaptureProcess) -> Started:
        started = start(self)
        state.execute("CREATE TABLE IF NOT EXISTS late (id int PRIMARY KEY, v text)")
        return started

    monkeypatch.setattr(CaptureProcess, "start", create_and_start)
    pipeline.sync()
    state.execute("INSERT INTO late VALUES (1, 'v')")
    pipeline.sync()
    pipeline.assert_same("public.late")


# -- partitions ---------------------------------------------------------------------------------------


JANUARY = "FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')"
MARCH = "FOR VALUES FROM ('2026-03-01') TO ('2026-04-01')"


@pytest.mark.parametrize(
    "statements",
    [
        f"DROP TABLE m1; CREATE TABLE m1 PARTITION OF m {JANUARY}",
        "ALTER TABLE m DETACH PARTITION m1; DELETE FROM m1 WHERE id < 50; "
        f"ALTER TABLE m ATTACH PARTITION m1 {JANUARY}",
        "CREATE TABLE m3 (LIKE m INCLUDING ALL); INSERT INTO m3 VALUES (900, '2026-03-03'); "
        f"ALTER TABLE m ATTACH PARTITION m3 {MARCH}; UPDATE m SET id = 901 WHERE id = 900; "
        "ALTER TABLE m DETACH PARTITION m3",
    ],
    ids=["created_anew", "detached_and_attached", "attached_and_detached"],
)
def test_a_partition_that_left_and_came_back_leaves_no_rows_behind(
    parted: Database, make: MakePipeline, statements: str
) -> None:
    pipeline = make(["public.m"])
    pipeline.sync()
    execute(parted, statements)
    pipeline.sync()
    pipeline.assert_same("public.m")


def test_a_partition_that_leaves_while_another_table_is_loaded_is_noticed_later(
    parted: Database, make: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    parted.execute("CREATE TABLE other (id int PRIMARY KEY)")
    pipeline = make(["public.m"])
    pipeline.sync()
    pipeline.streams.append("public.other")
    pipeline.write_file()
    settle = Turns._settled_snapshot

    def drop_and_settle(self: Turns, *arguments: Any) -> Any:
        parted.execute("DROP TABLE IF EXISTS m1")
        return settle(self, *arguments)

    monkeypatch.setattr(Turns, "_settled_snapshot", drop_and_settle)
    pipeline.sync()
    pipeline.sync()
    pipeline.assert_same("public.m")


def test_a_truncate_of_a_partitioned_table_is_one_row_of_an_append_table(
    parted: Database, make: MakePipeline
) -> None:
    pipeline = make([{"table": "public.m", "write": "append"}])
    pipeline.sync()
    parted.execute("TRUNCATE m")
    pipeline.sync()
    operations = pq.read_table(pipeline.path("public.m")).column("_op").to_pylist()
    assert operations.count("t") == 1


# -- values that do not fit ---------------------------------------------------------------------------


def test_an_old_value_that_does_not_fit_costs_an_append_table_no_change(
    database: Database, make: MakePipeline
) -> None:
    database.execute("CREATE TABLE v (id int PRIMARY KEY, day date)")
    database.execute("INSERT INTO v VALUES (1, 'infinity'), (2, 'infinity')")
    pipeline = make([{"table": "public.v", "write": "append", "replica_identity": "full"}])
    pipeline.sync()
    database.execute("UPDATE v SET day = '2026-01-01' WHERE id = 1")
    database.execute("DELETE FROM v WHERE id = 2")
    pipeline.sync()
    rows = pq.read_table(pipeline.path("public.v")).to_pylist()
    assert {(row["_op"], row["id"]) for row in rows} == {("u", 1), ("d", 2)}


# -- while a load is under way ------------------------------------------------------------------------


def test_a_table_rewritten_between_its_snapshot_and_its_plan_loses_no_row(
    state: Database, make: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark starts in between: seconds, in which a migration may run."""
    load = LakeLane.load
    done: list[str] = []

    def alter_and_load(self: LakeLane, *arguments: Any) -> None:
        if not done:
            done.append("altered")
            state.execute("ALTER TABLE state ALTER a TYPE text USING upper(a)")
        load(self, *arguments)

    monkeypatch.setattr(LakeLane, "load", alter_and_load)
    pipeline = make(["public.state"])
    pipeline.sync()
    pipeline.assert_same("public.state")


def test_columns_that_swap_names_while_a_table_is_loaded_keep_their_values(
    state: Database, make: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = LakeLane.load
    done: list[str] = []

    def swap_and_load(self: LakeLane, *arguments: Any) -> None:
        if not done:
            done.append("swapped")
            for names in ("a TO t", "b TO a", "t TO b"):
                state.execute(f"ALTER TABLE state RENAME {names}")
        load(self, *arguments)

    monkeypatch.setattr(LakeLane, "load", swap_and_load)
    pipeline = make(["public.state"])
    pipeline.sync()
    state.execute("UPDATE state SET a = 'y' WHERE id = 2")
    pipeline.sync()
    pipeline.assert_same("public.state")


@pytest.mark.parametrize("kind", ["HASH (id)", "RANGE (id)"])
def test_a_resumed_load_of_a_partitioned_table_by_key_equals_the_source(
    database: Database, make: MakePipeline, kind: str
) -> None:
    database.execute(f"CREATE TABLE p (id int PRIMARY KEY, v int) PARTITION BY {kind}")
    bounds = ["WITH (MODULUS 2, REMAINDER 0)", "WITH (MODULUS 2, REMAINDER 1)"]
    if kind.startswith("RANGE"):
        bounds = ["FROM (0) TO (2000)", "FROM (2000) TO (9000)"]
    for number, bound in enumerate(bounds):
        database.execute(f"CREATE TABLE p{number} PARTITION OF p FOR VALUES {bound}")
    database.execute("INSERT INTO p SELECT i, 0 FROM generate_series(1, 4000) AS i; ANALYZE p, p0, p1")
    pipeline = make(["public.p"], load={"method": "key", "rows_per_chunk": 100})
    ended = pipeline.sync_apart("load.chunks_removed=kill")
    assert ended.killed, str(ended)
    database.execute("UPDATE p SET v = 1; DELETE FROM p WHERE id % 5 = 0")
    pipeline.sync()
    pipeline.assert_same("public.p")


def test_a_table_without_columns_is_refused(database: Database, make: MakePipeline) -> None:
    database.execute("CREATE TABLE e ()")
    with pytest.raises(PenstockError, match="no columns"):
        make([{"table": "public.e", "write": "append", "replica_identity": "full"}]).sync()


def test_a_table_created_anew_after_a_change_leaves_no_rows_behind(
    state: Database, make: MakePipeline
) -> None:
    pipeline = make(["public.state"])
    pipeline.sync()
    execute(
        state,
        "UPDATE state SET a = 'x' WHERE id = 1; DROP TABLE state; "
        "CREATE TABLE state (id int PRIMARY KEY, a text, b text); INSERT INTO state VALUES (1, 'n', 'n')",
    )
    pipeline.sync()
    state.execute("INSERT INTO state VALUES (2, 'n', 'n')")
    pipeline.sync()
    pipeline.assert_same("public.state")


def test_a_partition_named_as_a_stream_of_its_own_gets_its_changes_or_is_refused(
    parted: Database, make: MakePipeline
) -> None:
    pipeline = make(["public.m1"])
    if not synced(pipeline):
        return
    parted.execute("INSERT INTO m VALUES (7000, '2026-01-05')")
    pipeline.sync()
    pipeline.assert_same("public.m1")


def test_an_emptied_table_has_the_columns_of_its_source(database: Database, make: MakePipeline) -> None:
    database.execute("CREATE TABLE e (id int PRIMARY KEY, v text)")
    pipeline = make(["public.e"])
    pipeline.sync()
    execute(database, "ALTER TABLE e ADD w int; INSERT INTO e VALUES (1, 'v', 1); DELETE FROM e WHERE id = 1")
    pipeline.sync()
    pipeline.assert_same("public.e")


def test_an_append_table_keeps_its_history_when_it_is_loaded_again(
    parted: Database, make: MakePipeline
) -> None:
    pipeline = make([{"table": "public.m", "write": "append"}])
    pipeline.sync()
    parted.execute("DELETE FROM m WHERE id = 40")
    pipeline.sync()
    parted.execute("INSERT INTO m VALUES (8000, '2026-02-05'); DELETE FROM m WHERE id = 8000")
    parted.execute("TRUNCATE m1")
    pipeline.sync()
    rows = pq.read_table(pipeline.path("public.m")).to_pylist()
    assert [row["_op"] for row in rows if row["id"] == 40].count("d") == 1
    assert sorted(row["_op"] for row in rows if row["id"] == 8000) == ["d", "i"]


def test_a_state_put_back_to_an_earlier_version_goes_on(state: Database, make: MakePipeline) -> None:
    pipeline = make(["public.state"])
    pipeline.sync()
    document = StateStore(pipeline.state).load()
    assert document is not None
    state.execute("UPDATE state SET a = 'x' WHERE id = 1")
    pipeline.sync()
    StateStore(pipeline.state).restore(document.state_version)
    state.execute("UPDATE state SET a = 'y' WHERE id = 2")
    pipeline.sync()
    pipeline.assert_same("public.state")


def test_a_full_refresh_shows_rows_that_came_after_the_sync_that_was_killed(
    state: Database, make: MakePipeline
) -> None:
    pipeline = make([{"table": "public.state", "mode": "full_refresh"}])
    ended = pipeline.sync_apart("load.swapped=kill")
    assert ended.killed, str(ended)
    state.execute("INSERT INTO state VALUES (100, 'later', 'later')")
    pipeline.sync()
    pipeline.assert_same("public.state")


def test_a_load_by_numeric_keys_that_is_resumed_equals_the_source(
    database: Database, make: MakePipeline
) -> None:
    database.execute("CREATE TABLE n (id numeric PRIMARY KEY, v int)")
    database.execute("INSERT INTO n SELECT i, 0 FROM generate_series(1, 4000) AS i; ANALYZE n")
    pipeline = make(
        [{"table": "public.n", "replica_identity": "full"}], load={"method": "key", "rows_per_chunk": 100}
    )
    ended = pipeline.sync_apart("load.chunks_removed=kill")
    assert ended.killed, str(ended)
    database.execute("UPDATE n SET v = 1; DELETE FROM n WHERE id % 5 = 0")
    pipeline.sync()
    pipeline.assert_same("public.n")


def test_a_value_that_does_not_fit_stops_no_append_table(database: Database, make: MakePipeline) -> None:
    database.execute("CREATE TABLE v (id int PRIMARY KEY, day date)")
    pipeline = make([{"table": "public.v", "write": "append"}])
    pipeline.sync()
    database.execute("INSERT INTO v VALUES (1, 'infinity'), (2, '2026-01-01'), (3, '2026-01-01')")
    pipeline.sync()
    rows = pq.read_table(pipeline.path("public.v")).to_pylist()
    assert [(row["_op"], row["id"]) for row in rows] == [("i", 2), ("i", 3)]


def test_an_unchanged_value_of_a_dropped_column_is_not_missing_from_its_namesake() -> None:
    """`a` is dropped and `b` becomes `a`: that the old `a` was not sent says nothing of the new one."""
    columns = [ColumnSource("id", "id"), ColumnSource("a", "b")]
    text = ("id", "a", "b")
    old = pa.struct([pa.field(name, pa.string()) for name in text])
    log = pa.table(
        {
            **{name: pa.array([value]) for name, value in zip(text, ("1", None, "new b"), strict=True)},
            "_old": pa.nulls(1, old),
            "_op": ["u"],
            "_tx": [1],
            "_op_index": [0],
            "_commit_ts": pa.array([0], pa.timestamp("us", "UTC")),
            "_unchanged": pa.array([["a"]], pa.list_(pa.string())),
        }
    )
    kinds: dict[str, Any] = {"type_oid": 25, "type_modifier": -1, "type_name": "text", "type_text": "text"}
    schema = TableSchema(
        StreamId("public", "t"),
        tuple(SourceColumn(name, attribute_number=n, **kinds) for n, name in ((1, "id"), (3, "a"))),
        ("id",),
    )
    conformed = conform(log, columns, schema)
    changes = conformed.changes(conformed.text, conformed.old, Target(schema, "upsert"), None)
    assert changes.unchanged is None or changes.unchanged.to_pylist() in ([None], [[]])


@pytest.mark.parametrize("make", ["parquet", pytest.param("iceberg", marks=pytest.mark.slow)], indirect=True)
@pytest.mark.parametrize(
    ("before", "after"),
    [({"mode": "full_refresh"}, {}), ({"write": "append"}, {}), ({}, {"rename": {"v": "w"}})],
    ids=["full_refresh_to_cdc", "append_to_upsert", "renamed"],
)
def test_a_load_cut_short_under_other_settings_starts_again(
    database: Database, make: MakePipeline, before: dict[str, Any], after: dict[str, Any]
) -> None:
    database.execute("CREATE TABLE up (id int PRIMARY KEY, v int)")
    database.execute("INSERT INTO up SELECT i, 0 FROM generate_series(1, 20000) AS i; ANALYZE up")
    pipeline = make([{"table": "public.up", **before}], load={"rows_per_chunk": 500})
    ended = pipeline.sync_apart("load.chunks_removed=kill")
    assert ended.killed, str(ended)
    database.execute("UPDATE up SET v = 1 WHERE id % 3 = 0; DELETE FROM up WHERE id % 5 = 0")
    pipeline.streams = [{"table": "public.up", **after}]
    pipeline.write_file()
    pipeline.sync()
    if "rename" in after:
        database.execute("ALTER TABLE up RENAME v TO w")
    pipeline.assert_same("public.up")

"""Incremental streams against a real server: what a cursor shows, exactly once, and what it cannot show."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest

from penstock import Pipeline
from penstock.core.errors import SourceError
from penstock.core.stream import StreamId
from penstock.lake.destination import destination_of
from penstock.ledger.store import StateStore
from penstock.sources.cursor import CursorChoice
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.cursor_windows import cut, note
from tests.conftest import Database
from tests.oracle import destination_rows
from tests.pipelines import PipelineUnderTest
from tests.traps import MakePipeline, PauseAt, syncing

STREAM = "public.items"


def incremental(**settings: Any) -> dict[str, Any]:
    return {"table": STREAM, "mode": "incremental", "cursor": "n", **settings}


def state_of(pipeline: PipelineUnderTest) -> dict[str, Any]:
    document = json.loads((pipeline.state / "state.json").read_text(), parse_float=str)
    assert document["type"] == "STREAM"
    assert "global" not in document
    [entry] = document["streams"]
    assert entry["sync_mode"] == "incremental"
    fields: dict[str, Any] = entry["state"]
    return fields


def version_of(pipeline: PipelineUnderTest, stream: str) -> object:
    """What every commit to the table changes."""
    destination = destination_of(Pipeline.from_yaml(pipeline.file).config)
    record = destination.table(StreamId.parse(stream)).record()
    assert record is not None
    return record.version, record.snapshot_id


def rows_of(pipeline: PipelineUnderTest, columns: Sequence[str]) -> list[tuple[str | None, ...]]:
    return sorted(destination_rows(pipeline.path(STREAM), columns).rows, key=str)


def test_rows_up_to_the_cursor_are_loaded_and_later_ones_merged(
    database: Database, make: MakePipeline
) -> None:
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, n bigint NOT NULL, v text);"
        "INSERT INTO items SELECT i, i, 'v' || i FROM generate_series(1, 5000) i"
    )
    pipeline = make([incremental()], load={"rows_per_chunk": 1000})
    first = pipeline.sync()
    pipeline.assert_same(STREAM)
    assert first.streams[0].rows_loaded == 5000
    assert state_of(pipeline)["n"] == 5000
    assert database.query(
        "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    ) == [(0,)]
    database.execute(
        "UPDATE items SET v = 'changed', n = 5000 + id WHERE id <= 3000;"
        "INSERT INTO items SELECT i, i + 5000, 'new' FROM generate_series(5001, 6000) i"
    )
    second = pipeline.sync()
    pipeline.assert_same(STREAM)
    assert second.streams[0].rows_loaded == 4000
    fields = state_of(pipeline)
    assert fields["n"] == 11000
    assert not [name for name in fields if name.startswith("olake_next_cursor_")]
    assert fields["chunks"] == []


def test_a_sync_without_news_leaves_the_table_as_it_is(database: Database, make: MakePipeline) -> None:
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, n bigint, v float8);"
        "INSERT INTO items SELECT i, i, CASE i % 3 WHEN 0 THEN 'NaN'::float8 WHEN 1 THEN i END "
        "FROM generate_series(1, 100) i"
    )
    pipeline = make([incremental()])
    pipeline.sync()
    before = version_of(pipeline, STREAM)
    report = pipeline.sync()
    assert report.streams[0].rows_loaded == 0
    assert version_of(pipeline, STREAM) == before


#: A cursor column's type: values that rise, and one between the first two.
TYPES: dict[str, tuple[list[str], str, Any]] = {
    "int2": (["-3", "5", "7"], "4", 7),
    "int4": (["1", "5", "2147483647"], "4", 2147483647),
    "int8": (["1", "5", "9223372036854775807"], "4", 9223372036854775807),
    "numeric": (["1.5", "5.25", "123456789012345678901234567890.12345"], "5", None),
    "numeric(12,2)": (["1.5", "5.25", "1234567890.10"], "5", "1234567890.10"),
    "timestamp": (
        ["2024-01-15 10:30:00", "2024-01-15 10:30:10.000001", "2024-01-15 10:30:20.5"],
        "2024-01-15 10:30:05",
        "2024-01-15T10:30:20.5Z",
    ),
    "timestamptz": (
        ["0044-03-15 12:00:00+00 BC", "2024-01-15 10:30:10.000001+01", "2024-01-15 10:30:20.123456+01"],
        "2024-01-15 10:30:05+01",
        "2024-01-15T09:30:20.123456Z",
    ),
    "date": (["2024-01-15", "2024-01-16", "2024-02-01"], "2024-01-15", "2024-02-01"),
    "text": (["B", "a", "ä"], "Z", "ä"),
    "varchar(9)": (["B", "a", "ä'\\"], "Z", "ä'\\"),
    "uuid": (
        [f"{digit}0000000-0000-4000-8000-00000000000{digit}" for digit in "147"],
        "30000000-0000-4000-8000-000000000003",
        "70000000-0000-4000-8000-000000000007",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("write", ["upsert", "append"])
def test_a_cursor_of_any_orderable_type_is_read_on_exactly(
    database: Database, make: MakePipeline, write: str
) -> None:
    """All types at once, a table each: a load, ties with the last value, rises, and a sync without news."""
    streams = []
    for number, (type_name, (values, _, _)) in enumerate(TYPES.items()):
        name = f"by_{number}"
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, c {type_name} NOT NULL, v text)")
        database.execute(f"INSERT INTO {name} VALUES (1, %s, 'a'), (2, %s, 'b')", (values[0], values[1]))
        streams.append(
            {"table": f"public.{name}", "mode": "incremental", "cursor": "c", "lookback": 0, "write": write}
        )
    names = [str(stream["table"]) for stream in streams]
    pipeline = make(streams)
    pipeline.sync()
    for name, (values, older, _) in zip(names, TYPES.values(), strict=True):
        database.execute(f"INSERT INTO {name} VALUES (3, %s, 'tie'), (4, %s, 'late')", (values[1], older))
    pipeline.sync()
    for name in names:
        assert _column(pipeline, name, "id") == ["1", "2", "3"], f"{name}: a tie is found, a late row is not"
    for name, (values, _, _) in zip(names, TYPES.values(), strict=True):
        database.execute(f"UPDATE {name} SET c = %s, v = 'risen' WHERE id = 1", (values[2],))
    pipeline.sync()
    before = [version_of(pipeline, name) for name in names]
    for name, (_, _, noted) in zip(names, TYPES.values(), strict=True):
        expected = ["1", "2", "3"] if write == "upsert" else ["1", "1", "2", "3"]
        assert _column(pipeline, name, "id") == expected, name
        kept = _fields(pipeline, name)["c"]
        assert noted is None or kept == noted, name
    assert _fields(pipeline, names[3])["c"] == "123456789012345678901234567890.12345"
    pipeline.sync()
    assert [version_of(pipeline, name) for name in names] == before, "nothing was written again"
    if write == "upsert":
        for name in names:
            database.execute(f"DELETE FROM {name} WHERE id = 4")
        pipeline.assert_same(*names)


def _column(pipeline: PipelineUnderTest, stream: str, column: str) -> list[str | None]:
    return sorted((row[0] for row in destination_rows(pipeline.path(stream), [column]).rows), key=str)


def _fields(pipeline: PipelineUnderTest, stream: str) -> dict[str, Any]:
    document = json.loads((pipeline.state / "state.json").read_text(), parse_float=str)
    [fields] = [each["state"] for each in document["streams"] if f"public.{each['stream']}" == stream]
    return dict(fields)


def test_rows_that_commit_late_are_found_within_the_lookback_and_not_beyond(
    database: Database, make: MakePipeline
) -> None:
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, n timestamptz NOT NULL, v text);"
        "INSERT INTO items VALUES (1, '2026-01-01 12:00', 'a')"
    )
    pipeline = make([incremental(lookback="10m")])
    with database.connect(autocommit=False) as writer:
        # Open across the load, with values older than the greatest that it notes.
        writer.execute("INSERT INTO items VALUES (2, '2026-01-01 11:50', 'at the edge')")
        writer.execute("INSERT INTO items VALUES (3, '2026-01-01 11:49:59.999999', 'too old')")
        pipeline.sync()
        writer.commit()
    pipeline.sync()
    assert _column(pipeline, STREAM, "id") == ["1", "2"]
    assert state_of(pipeline)["n"] == "2026-01-01T12:00:00Z", "no cursor has advanced"
    database.execute("INSERT INTO items VALUES (4, '2026-01-01 13:00', 'later')")
    pipeline.sync()
    assert _column(pipeline, STREAM, "id") == ["1", "2", "4"]
    pipeline.notes.clear()
    database.execute("DELETE FROM items WHERE id IN (1, 3)")
    pipeline.sync()
    assert _column(pipeline, STREAM, "id") == ["1", "2", "4"], "this mode does not see deletes"


def test_a_second_cursor_serves_rows_whose_first_is_null(database: Database, make: MakePipeline) -> None:
    database.execute(
        "CREATE TABLE items (id bigint PRIMARY KEY, n timestamp, v text);"
        "INSERT INTO items SELECT i, CASE WHEN i % 2 = 0 THEN timestamp '2026-01-01' + i * interval '1s' END"
        ", 'v' FROM generate_series(1, 1000) i"
    )
    pipeline = make(
        [incremental(cursor="n:id", lookback=["5s", 10])], load={"rows_per_chunk": 100, "method": "key"}
    )
    pipeline.sync()
    pipeline.assert_same(STREAM)
    fields = state_of(pipeline)
    assert (fields["n"], fields["id"]) == ("2026-01-01T00:16:40Z", 999)
    database.execute(
        "INSERT INTO items SELECT i, NULL, 'null' FROM generate_series(1001, 1500) i;"
        "UPDATE items SET v = 'touched', n = '2026-02-01' WHERE id <= 10;"
        "UPDATE items SET v = 'touched' WHERE id = 991"
    )
    pipeline.sync()
    pipeline.assert_same(STREAM)
    fields = state_of(pipeline)
    assert (fields["n"], fields["id"]) == ("2026-02-01T00:00:00Z", 1500)


def test_rows_without_any_cursor_value_are_not_read_and_check_says_so(
    database: Database, make: MakePipeline
) -> None:
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, n int, v text); INSERT INTO items VALUES (1, 1), (2, NULL)"
    )
    pipeline = make([incremental()])
    pipeline.sync()
    assert _column(pipeline, STREAM, "id") == ["1"]
    warnings = {
        finding.message for finding in Pipeline.from_yaml(pipeline.file).check() if finding.level == "warning"
    }
    assert {message.partition(":")[0] for message in warnings} >= {
        "The cursor may be null",
        "There is no index on the cursor n",
    }
    database.execute("CREATE INDEX ON items (n); ALTER TABLE items ADD CHECK (n > 0)")
    assert not [
        finding for finding in Pipeline.from_yaml(pipeline.file).check() if "no index" in finding.message
    ]


def test_an_empty_table_is_loaded_and_read_on_from_the_beginning(
    database: Database, make: MakePipeline
) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, n int NOT NULL)")
    pipeline = make([incremental()])
    pipeline.sync()
    assert _column(pipeline, STREAM, "id") == []
    assert "n" not in state_of(pipeline)
    database.execute("INSERT INTO items VALUES (1, -2147483648)")
    pipeline.sync()
    database.execute("INSERT INTO items VALUES (2, -2147483648)")
    pipeline.sync()
    pipeline.assert_same(STREAM)
    assert state_of(pipeline)["n"] == -2147483648


def test_infinite_cursors_are_read_each_time_and_do_not_hold_up_the_others(
    database: Database, make: MakePipeline
) -> None:
    streams = []
    for name, kind in (("a", "timestamptz"), ("b", "numeric")):
        database.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, n {kind} NOT NULL, v text);"
            f"INSERT INTO {name} VALUES (1, 'infinity', 'x'), (2, '-infinity', 'y')"
        )
        streams.append({"table": f"public.{name}", "mode": "incremental", "cursor": "n"})
    database.execute("INSERT INTO a VALUES (3, '2026-01-01', 'z'); INSERT INTO b VALUES (3, 'NaN', 'z')")
    pipeline = make(streams)
    pipeline.sync()
    assert _column(pipeline, "public.a", "id") == ["3"], "a timestamp column cannot hold infinity"
    pipeline.assert_same("public.b")
    database.execute(
        "UPDATE a SET v = 'changed', n = '2026-01-02' WHERE id = 1; UPDATE b SET v = 'changed' WHERE id = 1;"
        "INSERT INTO a VALUES (4, '2026-01-03', 'w'); INSERT INTO b VALUES (4, 5.5, 'w')"
    )
    pipeline.sync()
    assert _column(pipeline, "public.a", "id") == ["1", "3", "4"]
    pipeline.assert_same("public.b")


def test_an_append_table_gets_rows_with_infinite_cursors_once_and_those_with_nan(
    database: Database, make: MakePipeline
) -> None:
    """Beside others, by themselves, and where a chunk begins."""
    values = {
        "a": ("5", "-infinity", "9e400", "9e401", "NaN", "infinity", "NaN", "infinity"),
        "b": ("infinity", "infinity", "NaN"),
        "c": ("-infinity", "-infinity", "-infinity"),
    }
    for name, cursors in values.items():
        database.execute(f"CREATE TABLE {name} (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n numeric)")
        for cursor in cursors:
            database.execute(f"INSERT INTO {name} (n) VALUES ('{cursor}')")
    tables = [f"public.{name}" for name in values]
    pipeline = make(
        [incremental(table=table, write="append") for table in tables], load={"rows_per_chunk": 2}
    )
    pipeline.sync()
    pipeline.assert_same(*tables)
    database.execute("INSERT INTO a (n) VALUES ('9e402'), ('NaN'); INSERT INTO b (n) VALUES ('NaN')")
    for loaded in (3, 0):
        assert sum(stream.rows_loaded for stream in pipeline.sync().streams) == loaded
        pipeline.assert_same(*tables)


def test_a_dead_letter_is_written_once_and_settled_when_its_row_fits(
    database: Database, make: MakePipeline
) -> None:
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, n int NOT NULL, d date);"
        "INSERT INTO items VALUES (1, 1, '2026-01-01'), (2, 2, 'infinity')"
    )
    pipeline = make([incremental()])
    for _ in range(3):
        pipeline.sync()
        assert _status(pipeline).dead_letters == 1, "the window is read again, the letter is not"
    database.execute("UPDATE items SET n = 3, d = 'infinity' WHERE id = 1")
    pipeline.sync()
    assert _column(pipeline, STREAM, "id") == [], "an older version of a row that does not fit is not shown"
    assert (_status(pipeline).dead_letters, _status(pipeline).dead_keys) == (2, 2)
    database.execute("UPDATE items SET n = 4, d = '2026-02-02'")
    pipeline.sync()
    pipeline.assert_same(STREAM)
    assert (_status(pipeline).dead_letters, _status(pipeline).dead_keys) == (2, 0)


@pytest.mark.slow
def test_a_dead_letter_that_was_settled_is_told_anew_with_the_same_words(
    database: Database, make: MakePipeline
) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, n int NOT NULL, d date)")
    database.execute("INSERT INTO items VALUES (1, 1, '2026-01-01')")
    pipeline = make([incremental()])
    pipeline.sync()
    for letters in (1, 2):
        database.execute("UPDATE items SET d = 'infinity'")
        for _ in range(2):
            pipeline.sync()
            assert (_status(pipeline).dead_letters, _status(pipeline).dead_keys) == (letters, 1)
        database.execute("UPDATE items SET d = '2026-01-01'")
        pipeline.sync()
        pipeline.assert_same(STREAM)
        assert (_status(pipeline).dead_letters, _status(pipeline).dead_keys) == (letters, 0)


def _status(pipeline: PipelineUnderTest) -> Any:
    [stream] = Pipeline.from_yaml(pipeline.file).status().streams
    return stream


def test_a_row_that_leaves_the_filter_leaves_the_table(database: Database, make: MakePipeline) -> None:
    database.execute(
        "CREATE TABLE items (id int, region text, n int NOT NULL, v text, PRIMARY KEY (region, id));"
        "INSERT INTO items SELECT i, 'eu', i, 'v' FROM generate_series(1, 100) i"
    )
    pipeline = make([incremental(where="v <> 'gone'", columns=["id", "region", "n"], lookback=0)])
    pipeline.sync()
    assert len(_column(pipeline, STREAM, "id")) == 100
    database.execute(
        "UPDATE items SET v = 'gone', n = 200 WHERE id <= 10;UPDATE items SET v = NULL, n = 200 WHERE id = 11"
    )
    pipeline.sync()
    assert _column(pipeline, STREAM, "id") == sorted(str(n) for n in range(12, 101))


def test_an_append_table_gets_every_version_that_a_sync_sees_once(
    database: Database, make: MakePipeline
) -> None:
    database.execute(
        "CREATE TABLE items (n date NOT NULL, v text, w float8);"
        "INSERT INTO items VALUES ('2026-01-01', 'a', 'NaN'), ('2026-01-01', NULL, NULL)"
    )
    pipeline = make([incremental(write="append")])
    pipeline.sync()
    database.execute(
        "UPDATE items SET v = 'b' WHERE v = 'a'; INSERT INTO items VALUES ('2026-01-02', 'c', 1)"
    )
    pipeline.sync()
    pipeline.sync()
    rows = rows_of(pipeline, ["n", "v", "w", "_op"])
    assert rows == sorted(
        [
            ("2026-01-01", "a", "NaN", "r"),
            ("2026-01-01", None, None, "r"),
            ("2026-01-01", "b", "NaN", "r"),
            ("2026-01-02", "c", "1", "r"),
        ],
        key=str,
    )


def test_columns_that_change_are_followed_and_rows_keep_what_the_source_shows(
    database: Database, make: MakePipeline
) -> None:
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, n int NOT NULL, v text);"
        "INSERT INTO items SELECT i, i, 'v' FROM generate_series(1, 2000) i"
    )
    pipeline = make([incremental(lookback=5)])
    pipeline.sync()
    database.execute("ALTER TABLE items ADD w int DEFAULT 7; ALTER TABLE items RENAME v TO words")
    pipeline.sync()
    pipeline.assert_same(STREAM)
    database.execute("ALTER TABLE items DROP words; UPDATE items SET w = 8, n = 2000 + id WHERE id < 5")
    pipeline.sync()
    pipeline.assert_same(STREAM)
    assert not [note for note in pipeline.notes if "loaded again" in note]
    database.execute("ALTER TABLE items ALTER w TYPE bigint USING w * 2")
    pipeline.sync()
    pipeline.assert_same(STREAM)
    assert [note for note in pipeline.notes if "loaded again" in note]


@pytest.mark.slow
def test_another_cursor_or_mode_loads_the_table_again(database: Database, make: MakePipeline) -> None:
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, n int NOT NULL, m int NOT NULL, v text);"
        "INSERT INTO items SELECT i, i, 1, 'v' FROM generate_series(1, 20) i"
    )
    pipeline = make([incremental()])
    pipeline.sync()
    database.execute("UPDATE items SET m = 2, v = 'changed behind n' WHERE id = 3")
    for setting in (incremental(cursor="m"), STREAM, incremental()):
        pipeline.streams[:] = [setting]
        pipeline.write_file()
        database.execute(
            "UPDATE items SET m = m + 1, v = v || 'x' WHERE id = 4; DELETE FROM items WHERE id = 5"
        )
        pipeline.sync()
        pipeline.assert_same(STREAM)
        database.execute("UPDATE items SET m = m + 1, n = n + 100, v = v || 'y' WHERE id = 6")
        pipeline.sync()
        pipeline.assert_same(STREAM)
    fields = _fields(pipeline, STREAM)
    assert set(fields) == {"chunks", "n", "penstock"}


def test_a_partitioned_table_is_read_on_leaf_by_leaf(database: Database, make: MakePipeline) -> None:
    database.execute(
        "CREATE TABLE items (id int, n int NOT NULL, part int, PRIMARY KEY (id, part)) "
        "PARTITION BY LIST (part);"
        "CREATE TABLE items_0 PARTITION OF items FOR VALUES IN (0);"
        "CREATE TABLE items_1 PARTITION OF items FOR VALUES IN (1);"
        "INSERT INTO items SELECT i, i, i % 2 FROM generate_series(1, 300) i"
    )
    pipeline = make([incremental(lookback=0)], load={"rows_per_chunk": 50})
    pipeline.sync()
    database.execute(
        "CREATE TABLE items_2 PARTITION OF items FOR VALUES IN (2);"
        "INSERT INTO items SELECT i, 1000, i % 3 FROM generate_series(301, 600) i;"
        "UPDATE items SET n = 1000 WHERE id % 7 = 0"
    )
    pipeline.sync()
    pipeline.assert_same(STREAM)


def test_a_state_that_was_put_back_goes_on_from_where_the_table_is(
    database: Database, make: MakePipeline
) -> None:
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, n int NOT NULL); INSERT INTO items VALUES (1, 1)"
    )
    pipeline = make([incremental(write="append")])
    pipeline.sync()
    version = StateStore(pipeline.state).history()[0].version
    database.execute("INSERT INTO items VALUES (2, 2000)")
    pipeline.sync()
    StateStore(pipeline.state).restore(version)
    assert state_of(pipeline)["n"] == 1
    database.execute("INSERT INTO items VALUES (3, 3000)")
    pipeline.sync()
    pipeline.assert_same(STREAM)
    assert state_of(pipeline)["n"] == 3000


@pytest.mark.parametrize(
    ("column", "settings", "said"),
    [
        ("n jsonb", {}, "cannot be a cursor"),
        ("n float8", {}, "cannot be a cursor"),
        ("m int", {}, "names the column n"),
        ("n text", {"lookback": "5m"}, "lookback of the column n does not fit"),
        ("n int", {"lookback": "5m"}, "lookback of the column n does not fit"),
        ("n int", {"types": {"n": "text"}}, "cannot be a cursor"),
    ],
)
def test_a_cursor_that_cannot_be_read_by_is_refused(
    database: Database, make: MakePipeline, column: str, settings: dict[str, Any], said: str
) -> None:
    database.execute(f"CREATE TABLE items (id int PRIMARY KEY, {column})")
    with pytest.raises(SourceError, match=said):
        make([incremental(**settings)]).sync()


def test_a_table_rewritten_while_it_is_read_on_is_read_again(
    database: Database, make: MakePipeline, pause_at: PauseAt
) -> None:
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, n int NOT NULL, v text);"
        "INSERT INTO items SELECT i, i, 'v' FROM generate_series(1, 100) i"
    )
    pipeline = make([incremental()])
    pipeline.sync()
    database.execute("UPDATE items SET n = 1000 + id")
    with pause_at("incremental.prepared=pause") as pause, syncing(pipeline) as running:
        pause.wait(running)
        database.execute("VACUUM FULL items")
        pause.__exit__()
    pipeline.assert_same(STREAM)
    assert [note for note in pipeline.notes if "read again" in note]


def test_without_its_state_a_pipeline_goes_on_from_the_tables_own_cursor(
    database: Database, make: MakePipeline
) -> None:
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, n numeric NOT NULL); INSERT INTO items VALUES (1, 0.10)"
    )
    pipeline = make([incremental(write="append")])
    pipeline.sync()
    shutil.rmtree(pipeline.state)
    database.execute("INSERT INTO items VALUES (2, 0.100000000000000000001)")
    report = pipeline.sync()
    assert report.streams[0].rows_loaded == 1
    pipeline.assert_same(STREAM)
    assert state_of(pipeline)["n"] == "0.100000000000000000001"
    database.execute("DELETE FROM items WHERE id = 1")
    Pipeline.from_yaml(pipeline.file).resync()
    pipeline.assert_same(STREAM)


def test_rows_that_share_one_value_are_read_in_chunks_of_bounded_size(
    database: Database, make: MakePipeline
) -> None:
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, n timestamptz NOT NULL, v text);"
        "INSERT INTO items SELECT i, '2026-01-01', 'v' FROM generate_series(1, 3000) i;"
        "CREATE INDEX ON items (n)"
    )
    pipeline = make([incremental(lookback=0)], load={"rows_per_chunk": 500})
    pipeline.sync()
    database.execute("UPDATE items SET n = '2026-01-02', v = 'all at once'")
    report = pipeline.sync()
    assert report.streams[0].rows_loaded == 3000
    pipeline.assert_same(STREAM)
    [info] = [each for each in Pipeline.from_yaml(pipeline.file).discover() if str(each.stream) == STREAM]
    cursors = CursorChoice(("n",), (Decimal(0),)).cursors(info.schema)
    with connect(database.url) as connection, connection.transaction():
        noted = note(connection, info, cursors, {"n": "2026-01-01T00:00:00Z"})
        chunks = cut(connection, info.leaves[0], noted.windows[0], 500)
        counts = [
            connection.execute(f"SELECT count(*) FROM items WHERE {chunk.condition}".encode()).fetchone()
            for chunk in chunks
        ]
    assert counts == [(500,)] * 6

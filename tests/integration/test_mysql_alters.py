"""ALTER TABLE at real MySQL and MariaDB servers: the lake's table follows without a new load, or has one.

The oracle asks the server by its driver and reads the files by PyArrow; neither is Penstock's.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import Pipeline
from penstock.core.errors import SourceError
from penstock.sources.mysql.binlog.warming import warm_up
from tests.mysql_server import MARIADB, MYSQL, MysqlServer
from tests.pipelines import PipelineUnderTest

pytestmark = pytest.mark.integration

ROWS = 40


@pytest.fixture(
    scope="module",
    params=[MYSQL, pytest.param(MARIADB, marks=pytest.mark.slow)],
    ids=lambda kind: str(kind.name),
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MysqlServer]:
    warm_up()  # no test waits for a compiler
    with MysqlServer(tmp_path_factory.mktemp(request.param.name), request.param) as started:
        yield started


@pytest.fixture
def shop(server: MysqlServer) -> MysqlServer:
    server.execute("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop CHARACTER SET utf8mb4")
    return server


def make(shop: MysqlServer, *names: str) -> None:
    for name in names:
        shop.execute(
            f"CREATE TABLE shop.{name} (id INT PRIMARY KEY, a INT NOT NULL, b VARCHAR(10), "
            "c DECIMAL(40,2), d DATETIME(3), e ENUM('x','y'), f TINYINT)",
            f"INSERT INTO shop.{name} VALUES "
            + ", ".join(
                f"({n}, {n}, 'bé {n}', {n}.25, '2026-01-01 00:00:00.125', 'x', {n})" for n in range(ROWS)
            ),
        )


def pipeline(server: MysqlServer, directory: Path, *streams: Any, **settings: Any) -> PipelineUnderTest:
    source = {"type": "mysql", "url": f"mysql://root@127.0.0.1:{server.port}/shop", "name": directory.name}
    destination = {"type": "parquet", "path": "./lake"}
    return PipelineUnderTest(
        directory, "", list(streams), {"source": source, "destination": destination, **settings}
    )


def found(synced: PipelineUnderTest, name: str) -> pa.Table:
    files = sorted(synced.path(f"shop.{name}").glob("*.parquet"))
    return pa.concat_tables([pq.read_table(file) for file in files])


def table_columns(shop: MysqlServer, name: str) -> list[str]:
    return [
        column
        for (column,) in shop.rows(
            "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'shop' "
            f"AND TABLE_NAME = '{name}' ORDER BY ORDINAL_POSITION"
        )
    ]


def assert_same(shop: MysqlServer, synced: PipelineUnderTest, name: str) -> None:
    """All columns of the source and no other, in its order, and all values."""
    columns = table_columns(shop, name)
    table = found(synced, name)
    assert table.column_names == columns, name
    expected = shop.rows(f"SELECT {', '.join(f'`{each}`' for each in columns)} FROM shop.{name}")
    rows = [tuple(row[each] for each in columns) for row in table.to_pylist()]
    assert sorted(rows, key=repr) == sorted((tuple(map(plain, row)) for row in expected), key=repr), name


def plain(value: Any) -> Any:
    """A decimal of more digits than Arrow has is text in the table."""
    is_wide = isinstance(value, Decimal) and value.as_tuple().exponent == -2
    return str(value) if is_wide else value


def loaded(synced: PipelineUnderTest) -> set[str]:
    return {report.stream.removeprefix("shop.") for report in synced.sync().streams if report.rows_loaded}


#: Each for a table of its own: what is done between two syncs. `{t}` is the table.
FOLLOWED = {
    "added": (
        "UPDATE {t} SET a = -a WHERE id % 5 = 0",
        "ALTER TABLE {t} ADD COLUMN g INT",
        "UPDATE {t} SET g = id WHERE id % 4 = 0",
        "DELETE FROM {t} WHERE id = 7",
    ),
    "filled": (
        "ALTER TABLE {t} ADD COLUMN g DECIMAL(8,3) NOT NULL DEFAULT 1.5 COMMENT 'a, b' FIRST, "
        "ADD h VARCHAR(9) CHARACTER SET utf8mb4 DEFAULT 'é''s' AFTER a, ADD i ENUM('p','q') NOT NULL, "
        "ADD j INT UNSIGNED NOT NULL, ADD k TEXT NOT NULL, ADD l DOUBLE DEFAULT -0.1, "
        "ADD m BOOL DEFAULT TRUE, ADD n DECIMAL(40,2) NOT NULL",
        "UPDATE {t} SET h = 'new', m = 0 WHERE id % 3 = 0",
        "INSERT INTO {t} (id, a, k, i, j, n) VALUES (1000, 1, 'k', 'q', 4294967295, 2.5)",
    ),
    # No row comes after it.
    "silent": ("ALTER TABLE {t} ADD COLUMN g INT NOT NULL DEFAULT 7, DROP COLUMN b",),
    "dropped": (
        "INSERT INTO {t} (id, a, b) VALUES (1000, 1, 'gone')",
        "ALTER TABLE {t} DROP COLUMN b, DROP d, ALGORITHM=INPLACE, LOCK=NONE",
        "UPDATE {t} SET a = 9 WHERE id % 2 = 0",
    ),
    "renamed": (
        "UPDATE {t} SET b = 'old' WHERE id = 3",
        "ALTER TABLE {t} RENAME COLUMN b TO `c d`, CHANGE a aa INT NOT NULL AFTER f",
        "UPDATE {t} SET `c d` = 'new', aa = -1 WHERE id = 4",
    ),
    "widened": (
        "UPDATE {t} SET b = 'before' WHERE id = 3",
        "ALTER TABLE {t} MODIFY b VARCHAR(50) DEFAULT 'z', MODIFY COLUMN c DECIMAL(50,2), MODIFY f SMALLINT, "
        "MODIFY e ENUM('x','y','z')",
        "UPDATE {t} SET b = 'longer than ten it is', f = 300, e = 'z', c = c * 1000 WHERE id % 2 = 0",
    ),
    "loosened": (
        "ALTER TABLE {t} MODIFY a INT NULL COMMENT 'nothing', ADD INDEX (b), ADD UNIQUE KEY u (id, a), "
        "ALTER COLUMN f SET DEFAULT 4, COMMENT = 'x'",
        "UPDATE {t} SET a = NULL WHERE id % 2 = 0",
        "ALTER TABLE {t} DROP INDEX u",
    ),
}


@pytest.mark.slow
def test_tables_that_are_altered_in_ways_that_are_certain_follow_without_a_load(
    shop: MysqlServer, tmp_path: Path
) -> None:
    make(shop, *FOLLOWED)
    synced = pipeline(shop, tmp_path / "pipeline", *(f"shop.{name}" for name in FOLLOWED))
    assert loaded(synced) == set(FOLLOWED)
    for name, statements in FOLLOWED.items():
        shop.execute(*(statement.format(t=f"shop.{name}") for statement in statements))
    assert loaded(synced) == set()
    for name in FOLLOWED:
        assert_same(shop, synced, name)
    # And they go on from there: what was added is a column like any other, and may be altered again.
    shop.execute(
        "UPDATE shop.silent SET g = 8 WHERE id = 3",
        "ALTER TABLE shop.added RENAME COLUMN g TO gg",
        "ALTER TABLE shop.renamed DROP COLUMN `c d`",
    )
    assert loaded(synced) == set()
    for name in FOLLOWED:
        assert_same(shop, synced, name)


#: The same for those that must be loaded again, each for a reason of its own.
LOADED_AGAIN = {
    "computed": ("ALTER TABLE {t} ADD COLUMN g VARCHAR(40) DEFAULT (CONCAT('x', 'y'))",),
    "timed": ("ALTER TABLE {t} ADD COLUMN g DATETIME DEFAULT CURRENT_TIMESTAMP",),
    "retyped": ("ALTER TABLE {t} MODIFY a BIGINT NOT NULL",),
    "renumbered": ("ALTER TABLE {t} MODIFY e ENUM('y','x')",),
    "rekeyed": ("ALTER TABLE {t} DROP PRIMARY KEY, ADD PRIMARY KEY (a)",),
    "keyed": ("ALTER TABLE {t} CHANGE COLUMN id number INT", "DELETE FROM {t} WHERE number = 4"),
    "zeroed": (
        "UPDATE {t} SET f = NULL WHERE id % 2 = 0",
        "SET SESSION sql_mode = ''",
        "ALTER TABLE {t} MODIFY f TINYINT NOT NULL",
    ),
    "cut": (
        "SET SESSION sql_mode = ''",
        "ALTER TABLE {t} MODIFY b VARCHAR(3)",
        "ALTER TABLE {t} MODIFY b VARCHAR(30)",
    ),
    "converted": (
        "UPDATE {t} SET b = '\u20ac \U0001f600' WHERE id % 2 = 0",
        "SET SESSION sql_mode = ''",
        "ALTER TABLE {t} DEFAULT CHARACTER SET latin1",
        "ALTER TABLE {t} MODIFY b VARCHAR(30)",
    ),
    "again": ("ALTER TABLE {t} DROP COLUMN b", "ALTER TABLE {t} ADD COLUMN b VARCHAR(10) DEFAULT 'x'"),
    "swapped": (
        "ALTER TABLE {t} RENAME COLUMN b TO x",
        "ALTER TABLE {t} ADD COLUMN b VARCHAR(10), DROP COLUMN x",
    ),
    "default": ("ALTER TABLE {t} ADD COLUMN g INT DEFAULT 5", "ALTER TABLE {t} ALTER g SET DEFAULT 6"),
}


@pytest.mark.slow
def test_tables_that_are_altered_in_ways_that_are_not_certain_are_loaded_again(
    shop: MysqlServer, tmp_path: Path
) -> None:
    make(shop, *LOADED_AGAIN, "other")
    synced = pipeline(shop, tmp_path / "pipeline", *(f"shop.{name}" for name in LOADED_AGAIN), "shop.other")
    synced.sync()
    for name, statements in LOADED_AGAIN.items():
        with shop.connect("shop") as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement.format(t=f"shop.{name}"))
            connection.commit()
    shop.execute("UPDATE shop.other SET a = 1")
    assert loaded(synced) == set(LOADED_AGAIN)
    for name in (*LOADED_AGAIN, "other"):
        assert_same(shop, synced, name)


@pytest.mark.slow
def test_what_a_person_is_to_be_asked_about_is_what_changes_the_table(
    shop: MysqlServer, tmp_path: Path
) -> None:
    make(shop, "asked", "unasked", "ended")
    synced = pipeline(
        shop,
        tmp_path / "pipeline",
        {"table": "shop.asked", "on_schema_change": "pause"},
        {"table": "shop.unasked", "on_schema_change": "pause"},
    )
    synced.sync()
    shop.execute(
        "ALTER TABLE shop.unasked MODIFY b VARCHAR(60), ADD INDEX (a)",
        "UPDATE shop.unasked SET b = 'longer than ten it is'",
        "UPDATE shop.asked SET a = -1 WHERE id = 3",
        "ALTER TABLE shop.asked RENAME COLUMN b TO bb, ADD COLUMN g INT DEFAULT 3",
        "UPDATE shop.asked SET g = 4 WHERE id = 5",
    )
    shown = found(synced, "asked")
    assert loaded(synced) == set()
    assert_same(shop, synced, "unasked")
    assert found(synced, "asked") == shown
    opened = Pipeline.from_yaml(synced.file)
    [paused] = [each.paused for each in opened.status().streams if each.stream == "shop.asked"]
    assert paused is not None
    assert "column b was renamed to bb" in paused.reason
    assert "column g was added" in paused.reason
    opened.resume(["shop.asked"])
    assert loaded(synced) == set()
    assert_same(shop, synced, "asked")

    failing = pipeline(shop, tmp_path / "failing", {"table": "shop.ended", "on_schema_change": "fail"})
    failing.sync()
    shop.execute("ALTER TABLE shop.ended DROP COLUMN b")
    for _ in range(2):
        with pytest.raises(SourceError, match="changed at the source"):
            failing.sync()


@pytest.mark.slow
def test_rows_that_come_without_some_columns_have_what_was_added_filled(
    shop: MysqlServer, tmp_path: Path
) -> None:
    make(shop, "parts", "history", "some")
    synced = pipeline(
        shop,
        tmp_path / "pipeline",
        "shop.parts",
        {"table": "shop.history", "write": "append"},
        {"table": "shop.some", "columns": ["id", "b", "f"], "where": "a > 4"},
    )
    synced.sync()
    with shop.connect("shop") as connection, connection.cursor() as cursor:
        for name in ("parts", "history", "some"):
            # A filter needs whole rows.
            cursor.execute(f"SET SESSION binlog_row_image = {'FULL' if name == 'some' else 'MINIMAL'}")
            cursor.execute(f"UPDATE {name} SET b = 'before' WHERE id = 6")
            cursor.execute(f"ALTER TABLE {name} ADD COLUMN g VARCHAR(9) DEFAULT 'é' FIRST, DROP COLUMN e")
            cursor.execute(f"UPDATE {name} SET b = 'after' WHERE id = 7")
            cursor.execute(f"UPDATE {name} SET f = 1 WHERE id = 6")
            connection.commit()
    assert loaded(synced) == set()
    assert_same(shop, synced, "parts")
    rows = sorted((row["id"], row["b"], row["f"]) for row in found(synced, "some").to_pylist())
    assert rows == sorted(shop.rows("SELECT id, b, f FROM shop.some WHERE a > 4"))
    told = found(synced, "history")
    assert [name for name in table_columns(shop, "history") if name not in told.column_names] == []
    assert "e" not in told.column_names
    history = told.to_pylist()
    assert sorted(row["_op"] for row in history) == [*"r" * ROWS, *"uuu"]
    assert {row["g"] for row in history if row["_op"] == "r"} == {None}, "they stay as they were told"
    left_out = [row["id"] for row in history if row["g"] is None and "g" in (row["_unchanged"] or [])]
    assert sorted(left_out) == [6, 7], "an update after it says that it does not carry the column"


@pytest.mark.slow
@pytest.mark.parametrize("failpoint", ["log.files_written=kill", "cdc.written=kill", "cdc.committed=kill"])
def test_a_sync_that_is_killed_amid_an_alteration_goes_on(
    shop: MysqlServer, tmp_path: Path, failpoint: str
) -> None:
    make(shop, "state", "other")
    synced = pipeline(shop, tmp_path / "pipeline", "shop.state", "shop.other")
    synced.sync()
    shop.execute(
        "UPDATE shop.state SET b = 'one' WHERE id = 1",
        "ALTER TABLE shop.state RENAME COLUMN b TO bb, ADD COLUMN g INT NOT NULL DEFAULT 3 FIRST",
        "UPDATE shop.state SET bb = 'two', g = 5 WHERE id = 2",
        "ALTER TABLE shop.other DROP COLUMN d",
    )
    ended = synced.sync_apart(failpoint)
    assert ended.struck == (failpoint,), str(ended)
    shop.execute("UPDATE shop.state SET g = 9 WHERE id = 3")
    assert loaded(synced) == set()
    assert_same(shop, synced, "state")
    assert_same(shop, synced, "other")


@pytest.mark.slow
def test_a_table_that_is_altered_while_it_is_loaded_equals_the_source(
    shop: MysqlServer, tmp_path: Path
) -> None:
    names = ("added", "renamed", "dropped")
    make(shop, *names)
    synced = pipeline(shop, tmp_path / "pipeline", *(f"shop.{name}" for name in names))
    running = synced.start_sync("load.written=pause")
    running.wait_until_paused("load.written")
    shop.execute(
        "ALTER TABLE shop.added ADD COLUMN g INT DEFAULT 3",
        "UPDATE shop.added SET g = 4 WHERE id = 1",
        "ALTER TABLE shop.renamed RENAME COLUMN b TO bb",
        "UPDATE shop.renamed SET bb = 'x' WHERE id = 1",
        "ALTER TABLE shop.dropped DROP COLUMN b",
    )
    running.go_on()
    ended = running.wait()
    assert ended.status == 0, str(ended)
    synced.sync()
    for name in names:
        assert_same(shop, synced, name)


@pytest.mark.slow
def test_names_that_change_hands_while_a_table_is_loaded_load_it_again(
    shop: MysqlServer, tmp_path: Path
) -> None:
    """A part of the rows is read before, a part after, and both have the same names of columns."""
    make(shop, "swapped")
    synced = pipeline(shop, tmp_path / "pipeline", "shop.swapped", load={"rows_per_chunk": 2, "parallel": 1})
    running = synced.start_sync("load.preparing=pause@2")
    running.wait_until_paused("load.preparing")
    for statement in (
        "ALTER TABLE shop.swapped DROP COLUMN a",
        "ALTER TABLE shop.swapped RENAME COLUMN f TO a",
        "ALTER TABLE shop.swapped ADD COLUMN f TINYINT",
        "UPDATE shop.swapped SET f = 100",
    ):
        shop.execute(statement)
    running.go_on()
    running.wait()  # however it ends
    synced.sync()
    assert_same(shop, synced, "swapped")


@pytest.mark.slow
def test_a_column_that_is_held_as_text_and_gets_another_name_is_loaded_again(
    shop: MysqlServer, tmp_path: Path
) -> None:
    make(shop, "named")
    synced = pipeline(shop, tmp_path / "pipeline", {"table": "shop.*", "types": {"d": "text"}})
    synced.sync()
    assert found(synced, "named").schema.field("d").type == pa.string()
    shop.execute("ALTER TABLE shop.named RENAME COLUMN d TO g")
    assert loaded(synced) == {"named"}
    assert_same(shop, synced, "named")

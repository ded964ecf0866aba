"""The live lane on a real source, without HTTP: what shapes hold is what the source has, whatever happens.

Most tests share one capture and one lane, each with tables of its own.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.shapes.definition import DefinitionError
from penstock.shapes.shape import Shape
from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.conftest import Database, new_database, wait_until
from tests.live_lane import LiveLane, is_complete, items_of, rows_of, shapes_capture

pytestmark = pytest.mark.integration
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def live(server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveLane]:
    state = tmp_path_factory.mktemp("live")
    with (
        new_database(server) as database,
        shapes_capture(database, state) as capture,
        LiveLane(database, state, capture.capture.address) as running,
    ):
        running.wait_until_following()
        yield running


@dataclass
class Table:
    """`id int PRIMARY KEY, owner int, note text`, unless it is made otherwise; statements name it `{t}`."""

    database: Database
    name: str

    @classmethod
    def made(cls, database: Database) -> Table:
        table = cls(database, f"items_{next(_NUMBERS)}")
        table.execute("CREATE TABLE {t} (id int PRIMARY KEY, owner int, note text)")
        return table

    def execute(self, statement: str) -> None:
        self.database.execute(statement.replace("{t}", self.name))

    def rows(self, where: str = "true", columns: str = "id, owner, note") -> dict[str, Any]:
        """By key, as clients have them."""
        texts = ", ".join(f"'{column}', {column}::text" for column in columns.split(", "))
        key = f"""'"public"."{self.name}"/"' || id || '"'"""
        found = self.database.query(
            f"SELECT {key}, jsonb_build_object({texts}) FROM {self.name} WHERE {where}"
        )
        return {row_key: row for row_key, row in found}  # noqa: C416 - two columns each

    def key(self, row_id: int) -> str:
        return f'"public"."{self.name}"/"{row_id}"'


@pytest.fixture
def items(live: LiveLane) -> Table:
    return Table.made(live.database)


def wait_until_equal(
    shape: Shape, table: Table, where: str = "true", columns: str = "id, owner, note"
) -> None:
    wait_until(lambda: rows_of(shape) == table.rows(where, columns), "the shape to be what the table is")


def test_a_shape_is_its_table_before_and_after_changes(live: LiveLane, items: Table) -> None:
    items.execute("INSERT INTO {t} SELECT n, n % 3, 'row ' || n FROM generate_series(1, 100) AS n")
    everything = live.ready(items.name)
    some = live.ready(items.name, where="owner = 1")

    items.execute("UPDATE {t} SET owner = owner + 1, note = NULL WHERE id % 2 = 0")
    items.execute("DELETE FROM {t} WHERE id % 5 = 0")
    items.execute("UPDATE {t} SET id = id + 1000 WHERE id < 10")

    wait_until_equal(everything, items)
    wait_until_equal(some, items, "owner = 1")


def test_changes_while_snapshots_are_taken_are_neither_lost_nor_doubled(live: LiveLane, items: Table) -> None:
    items.execute("INSERT INTO {t} SELECT n, n % 3, 'row ' || n FROM generate_series(1, 2000) AS n")
    stop = threading.Event()
    writers = [threading.Thread(target=_write, args=(items, n, stop)) for n in range(3)]
    for writer in writers:
        writer.start()
    try:
        shapes = [live.ready(items.name, where=f"owner = {n % 3} AND id > {n}") for n in range(12)]
        shapes.append(live.ready(items.name))
    finally:
        stop.set()
        for writer in writers:
            writer.join()

    wait_until_equal(shapes[-1], items)
    for n, shape in enumerate(shapes[:-1]):
        wait_until_equal(shape, items, f"owner = {n % 3} AND id > {n}")


def _write(items: Table, number: int, stop: threading.Event) -> None:
    """Transactions of up to three changes, each writer on rows of its own, until the end."""
    table = items.name
    with psycopg.connect(items.database.url) as connection:
        for turn in itertools.count():
            if stop.is_set():
                return
            row = number + 3 * (turn % 600)
            connection.execute(f"UPDATE {table} SET owner = (owner + 1) % 3 WHERE id = {row}".encode())
            connection.execute(f"DELETE FROM {table} WHERE id = {row + 3}".encode())
            values = f"({row + 3}, {turn % 3}, 'turn {turn}')"
            connection.execute(f"INSERT INTO {table} VALUES {values} ON CONFLICT DO NOTHING".encode())
            connection.commit()


def test_what_the_lane_holds_is_acknowledged(live: LiveLane, items: Table) -> None:
    shape = live.ready(items.name)
    items.execute("INSERT INTO {t} VALUES (1, 1, 'a')")
    wait_until_equal(shape, items)

    def acknowledged() -> bool:
        ((done,),) = live.database.query(
            "SELECT confirmed_flush_lsn - '0/0' > %s FROM pg_replication_slots WHERE database = %s",
            (shape.last_offset.tx, live.database.name),
        )
        return bool(done)

    wait_until(acknowledged, "the source to be told that it may forget the change")


@pytest.mark.parametrize(
    "statement",
    [
        "TRUNCATE {t}",
        "ALTER TABLE {t} DROP COLUMN note",
        "ALTER TABLE {t} RENAME COLUMN note TO remark",
        "ALTER TABLE {t} ALTER COLUMN owner TYPE bigint",
        "ALTER TABLE {t} ADD COLUMN more text DEFAULT 'more'",
        "ALTER TABLE {t} ADD COLUMN more int GENERATED ALWAYS AS (owner * 2) STORED",
        "ALTER TABLE {t} REPLICA IDENTITY DEFAULT; UPDATE {t} SET owner = 5",
    ],
)
def test_a_shape_ends_with_a_change_that_it_cannot_follow(
    live: LiveLane, items: Table, statement: str
) -> None:
    items.execute("INSERT INTO {t} VALUES (1, 1, 'a')")
    shape, other = live.ready(items.name), live.ready(Table.made(live.database).name)

    items.execute(statement)
    items.execute("INSERT INTO {t} (id) VALUES (2)")

    wait_until(lambda: shape.state == "gone", "the shape to end")
    assert other.state == "ready"
    live.lane.catalog.forget(shape.definition.table)  # as an answer to its clients does
    again = live.ready(items.name)
    items.execute("INSERT INTO {t} (id) VALUES (3)")
    wait_until(lambda: items.key(3) in rows_of(again), "the new shape to follow the table")
    assert items.key(2) in rows_of(again)


def test_stored_generated_columns_are_in_shapes_and_conditions(live: LiveLane, items: Table) -> None:
    items.execute("ALTER TABLE {t} ADD COLUMN twice int GENERATED ALWAYS AS (owner * 2) STORED")
    items.execute("INSERT INTO {t} SELECT n, n % 5, 'row ' || n FROM generate_series(1, 50) AS n")
    columns = "id, owner, note, twice"
    everything, some = live.ready(items.name), live.ready(items.name, where="twice > 4")
    wait_until_equal(everything, items, columns=columns)

    items.execute("UPDATE {t} SET owner = owner + 1 WHERE id % 3 = 0; DELETE FROM {t} WHERE id % 7 = 0")
    items.execute("INSERT INTO {t} VALUES (100, 9, 'new')")

    wait_until_equal(everything, items, columns=columns)
    wait_until_equal(some, items, "twice > 4", columns)

    items.execute("ALTER TABLE {t} ALTER COLUMN twice SET EXPRESSION AS (owner * 3)")
    live.lane.engine.reconcile()
    wait_until(lambda: everything.state == some.state == "gone", "shapes of the old values to end")
    wait_until_equal(live.ready(items.name), items, columns=columns)


def test_a_shape_ends_when_another_table_has_the_name(live: LiveLane, items: Table) -> None:
    shape = live.ready(items.name)
    items.execute("DROP TABLE {t}; CREATE TABLE {t} (id int PRIMARY KEY, owner int, note text)")

    live.lane.engine.reconcile()

    wait_until(lambda: shape.state == "gone", "the shape to end")
    again = live.ready(items.name)
    items.execute("INSERT INTO {t} VALUES (1, 1, 'a')")
    wait_until_equal(again, items)


def test_a_column_that_came_is_shown_from_its_first_value_on(live: LiveLane, items: Table) -> None:
    items.execute("INSERT INTO {t} VALUES (1, 1, 'a')")
    everything, narrow = live.ready(items.name), live.ready(items.name, columns="id,owner")

    items.execute("ALTER TABLE {t} ADD COLUMN more text; INSERT INTO {t} VALUES (2, 1, 'b', 'more')")

    wait_until(lambda: all(items.key(2) in rows_of(each) for each in (everything, narrow)), "the new row")
    assert rows_of(everything)[items.key(2)]["more"] == "more"
    assert rows_of(narrow)[items.key(2)] == {"id": "2", "owner": "1"}
    wait_until(lambda: '"more"' in everything.definition.schema_header, "the header to have the column")
    assert everything.state == "ready"


def test_rows_of_partitions_are_rows_of_their_root(live: LiveLane, items: Table) -> None:
    items.execute("""
        DROP TABLE {t};
        CREATE TABLE {t} (id int PRIMARY KEY, note text) PARTITION BY RANGE (id);
        CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES FROM (0) TO (100);
        CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (100) TO (200);
        INSERT INTO {t} SELECT n, 'old' FROM generate_series(0, 199, 10) AS n""")
    shape = live.ready(items.name)
    items.execute("""
        INSERT INTO {t} SELECT n, 'new' FROM generate_series(5, 199, 10) AS n;
        UPDATE {t} SET note = 'changed' WHERE id % 20 = 0;
        UPDATE {t} SET id = id + 99 WHERE id < 50;
        DELETE FROM {t} WHERE id % 30 = 0""")

    wait_until_equal(shape, items, columns="id, note")
    logged = [item["headers"] for item in items_of(shape) if "lsn" in item["headers"]]
    offsets = [(int(headers["lsn"]), headers["op_position"]) for headers in logged]
    assert offsets == sorted(set(offsets))

    items.execute("CREATE TABLE {t}_3 PARTITION OF {t} FOR VALUES FROM (200) TO (300)")
    live.lane.engine.reconcile()
    wait_until(lambda: shape.state == "gone", "the shape to end with another partition")


def test_a_partition_has_shapes_of_its_own(live: LiveLane, items: Table) -> None:
    """Alone, beside its root, and when it leaves it and comes back."""
    items.execute("""
        DROP TABLE {t};
        CREATE TABLE {t} (id int PRIMARY KEY, note text) PARTITION BY RANGE (id);
        CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES FROM (0) TO (100);
        CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (100) TO (200);
        INSERT INTO {t} SELECT n, 'old' FROM generate_series(0, 199, 10) AS n""")
    leaf = Table(items.database, f"{items.name}_1")
    alone = live.ready(leaf.name)
    items.execute("UPDATE {t} SET note = 'changed' WHERE id % 20 = 0")
    wait_until_equal(alone, leaf, columns="id, note")

    root = live.ready(items.name)
    some = live.ready(leaf.name, where="note = 'new'")
    other = Table(items.database, f"{items.name}_2")
    chosen = live.ready(other.name, where=f"note IN (SELECT note FROM {leaf.name})")
    items.execute("""
        INSERT INTO {t} SELECT n, 'new' FROM generate_series(5, 199, 10) AS n;
        UPDATE {t} SET id = id + 99 WHERE id < 50;
        DELETE FROM {t} WHERE id % 30 = 0;
        UPDATE {t} SET note = 'moved in' WHERE id IN (80, 110)""")
    wait_until_equal(alone, leaf, columns="id, note")
    wait_until_equal(some, leaf, "note = 'new'", columns="id, note")
    wait_until_equal(root, items, columns="id, note")

    def has_moved_in() -> bool:
        moved = [item for item in items_of(chosen) if item["headers"].get("is_move_in")]
        return {"id": "110", "note": "moved in"} in [item["value"] for item in moved]

    wait_until(has_moved_in, "a row to come with a value of the other partition")

    items.execute("ALTER TABLE {t} DETACH PARTITION {t}_1; INSERT INTO {t}_1 VALUES (1, 'apart')")
    wait_until_equal(alone, leaf, columns="id, note")
    live.lane.engine.reconcile()
    wait_until(lambda: root.state == "gone", "the root's shape to end with a partition that left")
    assert alone.state == "ready"
    wait_until_equal(live.ready(items.name), items, columns="id, note")
    items.execute("ALTER TABLE {t} ATTACH PARTITION {t}_1 FOR VALUES FROM (0) TO (100)")
    items.execute("INSERT INTO {t} VALUES (2, 'back')")
    wait_until_equal(alone, leaf, columns="id, note")
    items.execute("TRUNCATE {t}_1")
    wait_until(lambda: alone.state == "gone", "the shape to end with its rows")


def test_a_table_taken_out_of_the_publication_is_put_back_and_its_shapes_made_anew(
    live: LiveLane, items: Table
) -> None:
    other = Table.made(live.database)
    shape, untouched = live.ready(items.name), live.ready(other.name)
    ((publication,),) = live.database.query(
        "SELECT pubname FROM pg_publication_tables WHERE tablename = %s", (items.name,)
    )
    live.lane.engine.reconcile()
    items.execute(f"ALTER PUBLICATION {publication} DROP TABLE {{t}}; INSERT INTO {{t}} VALUES (1, 1, 'a')")
    live.lane.engine.reconcile()
    wait_until(lambda: shape.state == "gone", "the shape to end that hears of nothing")
    assert untouched.state == "ready"
    anew = live.ready(items.name)
    items.execute("INSERT INTO {t} VALUES (2, 1, 'b')")
    wait_until_equal(anew, items)


def test_a_table_between_a_root_and_its_leaves_has_no_shapes(live: LiveLane, items: Table) -> None:
    items.execute("""
        DROP TABLE {t};
        CREATE TABLE {t} (id int PRIMARY KEY, note text) PARTITION BY RANGE (id);
        CREATE TABLE {t}_branch (id int PRIMARY KEY, note text) PARTITION BY RANGE (id);
        CREATE TABLE {t}_leaf PARTITION OF {t}_branch FOR VALUES FROM (0) TO (100)""")
    shape = live.ready(f"{items.name}_branch")
    items.execute("ALTER TABLE {t} ATTACH PARTITION {t}_branch FOR VALUES FROM (0) TO (100)")
    live.lane.engine.reconcile()
    wait_until(lambda: shape.state == "gone", "the shape to end")
    with pytest.raises(DefinitionError, match="a partition with partitions of its own"):
        live.create(f"{items.name}_branch")
    leaf = live.ready(f"{items.name}_leaf")
    items.execute("INSERT INTO {t} VALUES (1, 'a')")
    wait_until(lambda: len(rows_of(leaf)) == 1, "the row")


def test_a_transaction_larger_than_the_tail_is_seen_whole_or_not_at_all(live: LiveLane, items: Table) -> None:
    shape = live.ready(items.name)
    items.execute("INSERT INTO {t} SELECT n, 1, repeat(md5(n::text), 30) FROM generate_series(1, 40000) AS n")

    wait_until(lambda: bool(rows_of(shape)), "the transaction")
    found = items_of(shape)
    assert len(found) - 1 == 40_000
    assert [item["headers"].get("last", False) for item in found[1:]] == [False] * 39_999 + [True]


def test_many_shapes_asked_for_at_once_are_made_and_followed(live: LiveLane, items: Table) -> None:
    items.execute("INSERT INTO {t} SELECT n, n, 'a' FROM generate_series(0, 199) AS n")
    made: list[Shape] = []

    def ask(owner: int) -> None:
        made.append(live.create(items.name, where=f"owner = {owner}"))

    asked = [threading.Thread(target=ask, args=(n,)) for n in range(200)]
    for thread in asked:
        thread.start()
    for thread in asked:
        thread.join()
    wait_until(lambda: all(map(is_complete, made)), "all snapshots")

    items.execute("UPDATE {t} SET note = 'b'")

    wait_until(lambda: all(_notes(shape) == ["b"] for shape in made), "all shapes to have the change")


def _notes(shape: Shape) -> list[Any]:
    return [row["note"] for row in rows_of(shape).values()]


def test_a_shape_that_is_asked_for_twice_is_made_once(live: LiveLane, items: Table) -> None:
    assert live.create(items.name, where="owner = 1") is live.create(items.name, where="owner  =  1")


def test_a_shape_whose_table_is_gone_says_why_and_no_other_ends(live: LiveLane, items: Table) -> None:
    other = Table.made(live.database)
    gone, stays = live.ready(items.name), live.ready(other.name)
    items.execute("DROP TABLE {t}")

    late = live.create(items.name, where="id = 1")  # by a card that was read before

    wait_until(lambda: late.state == "gone", "the shape to be given up")
    assert late.error is not None
    live.lane.engine.reconcile()
    wait_until(lambda: gone.state == "gone", "the shape of the table to end")
    assert stays.state == "ready"


def test_nobody_waits_for_a_shape_without_being_told_of_its_end(live: LiveLane, items: Table) -> None:
    shape = live.ready(items.name)
    woken = threading.Event()
    shape.subscribe(woken.set)

    live.lane.engine.submit(lambda: live.lane.engine.drop(shape, "test")).result()

    assert woken.wait(120)
    assert live.lane.engine.registry.find(shape.handle) is None
    wait_until(lambda: not Path(shape.storage.directory).exists(), "its files to be removed")


@pytest.fixture
def own(database: Database) -> Table:
    """A table in a database of its own, for a lane of its own."""
    return Table.made(database)


def test_after_a_restart_shapes_go_on_where_they_were_and_capture_is_found_again(
    own: Table, tmp_path: Path
) -> None:
    with shapes_capture(own.database, tmp_path) as capture:
        address = capture.capture.address
        with LiveLane(own.database, tmp_path, address) as live:
            live.wait_until_following()
            shape = live.ready(own.name)
            own.execute("INSERT INTO {t} VALUES (1, 1, 'a')")
            wait_until_equal(shape, own)
            handle, read = shape.handle, shape.last_offset
        own.execute("INSERT INTO {t} VALUES (2, 1, 'b')")

        with LiveLane(own.database, tmp_path, address) as live:
            (again,) = live.lane.engine.registry.all()
            assert (again.handle, again.last_offset) == (handle, read)
            wait_until_equal(again, own)
            wait_until(lambda: live.lane.engine.replayed, "what was there at the start to be read again")
            assert [item["value"]["id"] for item in items_of(again, read)] == ["2"]

            capture.process.kill()
            capture.process.wait()
            own.execute("INSERT INTO {t} VALUES (3, 1, 'c')")
            wait_until(lambda: not live.follows, "the lane to see that capture is away")
            with shapes_capture(own.database, tmp_path, address):
                wait_until_equal(again, own)
            assert again.state == "ready"


def test_shapes_of_another_server_are_made_anew(own: Table, tmp_path: Path) -> None:
    with shapes_capture(own.database, tmp_path) as capture:
        address = capture.capture.address
        with LiveLane(own.database, tmp_path, address) as live:
            live.wait_until_following()
            shape = live.ready(own.name)
            live.lane.engine.registry.read_from("7000000000000000000", 1)

        with LiveLane(own.database, tmp_path, address, max_shapes=2) as live:
            (old,) = live.lane.engine.registry.all()
            assert old.handle == shape.handle
            wait_until(lambda: old.state == "gone", "the shape to end")
            live.wait_until_following()
            own.execute("INSERT INTO {t} VALUES (2, 1, 'b')")
            first, second = (live.ready(own.name, where=f"owner = {n}") for n in (1, 2))
            wait_until_equal(first, own)

            first.last_read = second.last_read + 1
            third = live.ready(own.name, where="owner = 3")
            states = [shape.state for shape in (first, second, third)]
            assert states == ["ready", "gone", "ready"], "the one that was not read for the longest time goes"

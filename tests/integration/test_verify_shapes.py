"""`penstock verify --lane shapes`: a shape's rows are what its SELECT gives, or it is said which are not."""

from __future__ import annotations

import json
import random
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.core.errors import ConfigError
from penstock.core.verify_report import VerifiedStream, VerifyReport
from penstock.ledger.run_file import read_running
from penstock.pipeline import Silence
from penstock.shapes.comparison.run import ShapeOptions, compare_shapes
from penstock.sources.postgres.embedded import EmbeddedPostgres
from penstock.verify import reports
from tests.conftest import Database, new_database, wait_until
from tests.serving import ShapeServer, synced

pytestmark = pytest.mark.integration

_COMMAND = [sys.executable, "-c", "from penstock.cli.main import main; main()"]


@pytest.fixture(scope="module")
def shared(server: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(server) as created:
        yield created


@pytest.fixture(scope="module")
def shapes(shared: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShapeServer]:
    """Chunks are small, so that a shape has many. Any number may write while rows are asked for."""
    small = {
        "ELECTRIC_SHAPE_CHUNK_BYTES_THRESHOLD": "10000",
        "ELECTRIC_SUBQUERY_BUFFER_MAX_TRANSACTIONS": "1000000",
    }
    with ShapeServer(shared.url, tmp_path_factory.mktemp("shapes"), environment=small) as started:
        started.wait_until_active()
        yield started


@pytest.fixture
def items(shared: Database) -> str:
    table = f"items_{secrets.token_hex(4)}"
    shared.execute(
        f"CREATE TABLE {table} (id int PRIMARY KEY, note text, done bool, at timestamptz, n numeric)"
    )
    shared.execute(
        f"INSERT INTO {table} SELECT i, 'note ' || i, i % 2 = 0, to_timestamp(i * 3600.25), i / 7.0"
        " FROM generate_series(1, 500) AS i"
    )
    return table


def verify(shapes: ShapeServer, *names: str, **given: Any) -> VerifyReport:
    running = read_running(shapes.storage)
    assert running is not None
    assert running.admin is not None
    return compare_shapes(shapes.database_url, Path(running.admin), Silence(), ShapeOptions(names, **given))


def only(report: VerifyReport) -> VerifiedStream:
    (stream,) = report.streams
    return stream


def numbers(told: VerifiedStream) -> dict[str, int]:
    names = ("source_rows", "table_rows", "missing", "extra", "different")
    return {name: getattr(told, name) for name in names}


def plant(shapes: ShapeServer, table: str, row: str, old: str, new: str, handle: str = "") -> None:
    """Write something else into the file that has a row of a shape, or of the only one of a table."""
    assert len(old) == len(new)
    before = f'{table}\\"/\\"{row}\\"","value":{{"id":"{row}","note":"note {row}"'.encode()
    (path,) = (
        path
        for path in shapes.storage.rglob("*")
        if handle in str(path) and path.is_file() and path.read_bytes().count(before) == 1
    )
    path.write_bytes(path.read_bytes().replace(before, before.replace(old.encode(), new.encode())))


def test_a_shape_of_every_kind_of_change_is_equal(shared: Database, items: str, shapes: ShapeServer) -> None:
    shared.execute(f"CREATE TABLE no_key_{items} (a int, b text)")
    shared.execute(f"INSERT INTO no_key_{items} VALUES (1, 'x'), (2, NULL)")
    wanted: list[dict[str, str]] = [
        {"table": items},
        {"table": items, "where": "n > $1 AND done", "params[1]": "20"},
        {"table": items, "columns": "id,note", "replica": "full"},
        {"table": f"no_key_{items}"},
    ]
    handles = [synced(shapes, **each)[0].handle for each in wanted]
    shared.execute(f"UPDATE {items} SET done = NOT done, note = NULL WHERE id % 3 = 0")
    shared.execute(f"UPDATE {items} SET id = id + 1000, n = 'NaN' WHERE id % 50 = 7")
    shared.execute(f"DELETE FROM {items} WHERE id % 10 = 1")
    shared.execute(
        f"INSERT INTO {items} SELECT i, 'new', true, 'infinity', 99 FROM generate_series(2000, 2100) AS i"
    )
    shared.execute(f"UPDATE no_key_{items} SET b = 'y' WHERE a = 2")
    report = verify(shapes, *handles)
    assert report.equal, report
    assert report.complete
    assert len(report.streams) == 4
    counts = {each.stream.split()[1]: (each.source_rows, each.table_rows) for each in report.streams}
    conditions = ["true", "n > 20 AND done", "true"]
    for handle, condition in zip(handles, conditions, strict=False):
        ((expected,),) = shared.query(f"SELECT count(*) FROM {items} WHERE {condition}")
        assert counts[handle] == (expected, expected)
    assert counts[handles[3]] == (2, 2)
    assert only(verify(shapes, f"no_key_{items}")).verdict == "equal", (
        "by its table, and as often as one likes"
    )


def test_a_wrong_a_missing_and_a_row_too_many_are_found_and_named(
    shared: Database, items: str, shapes: ShapeServer
) -> None:
    handle = synced(shapes, table=items)[0].handle
    assert only(verify(shapes, handle)).verdict == "equal"
    plant(shapes, items, "31", "note 31", "nope 31")
    plant(shapes, items, "44", "44", "x4")
    told = only(verify(shapes, handle))
    assert told.verdict == "different"
    assert numbers(told) == {
        "source_rows": 500, "table_rows": 500, "missing": 1, "extra": 1, "different": 1,
    }  # fmt: skip
    assert [(each.kind, each.key) for each in told.differences] == [
        ("missing", {"id": "44"}),
        ("extra", {"id": "x4"}),
        ("different", {"id": "31"}),
    ]
    (column,) = told.differences[2].columns
    assert (column.name, column.source, column.table) == ("note", None, None), "nobody asked for values"
    (column,) = only(verify(shapes, handle, show_values=True)).differences[2].columns
    assert (column.name, column.source, column.table) == ("note", "note 31", "nope 31")
    assert told.columns == {"note": 1}
    limited = only(verify(shapes, handle, limit=2))
    assert (len(limited.differences), limited.left_out) == (2, 1)


def change(table: str, writer: int, draw: random.Random) -> str:
    """Of a row that is this writer's alone, or of one that all of them change."""
    row, number = draw.randrange(600) * 3 + writer, draw.randrange(60)
    return draw.choice(
        (
            f"UPDATE {table} SET note = '{draw.random()}' WHERE id = {row}",
            f"UPDATE {table} SET n = {number}, done = NOT done WHERE id = {row}",
            f"UPDATE {table} SET id = id + 3000 WHERE id = {row} AND id < 3000",
            f"DELETE FROM {table} WHERE id = {row}",
            f"INSERT INTO {table} VALUES ({row}, 'new', true, now(), {number})"
            " ON CONFLICT (id) DO UPDATE SET note = excluded.note",
            f"UPDATE {table} SET n = {number}, note = note || '.' WHERE id = {2000 + draw.randrange(3)}",
        )
    )


@pytest.mark.timeout(600)
def test_shapes_are_found_equal_again_and_again_while_writers_write(
    shared: Database, items: str, shapes: ShapeServer
) -> None:
    """Short and long transactions, key changes, rows that come to meet the condition, and rollbacks."""
    handles = [
        synced(shapes, table=items)[0].handle,
        synced(shapes, table=items, where="n > 30")[0].handle,
    ]
    shared.execute(f"INSERT INTO {items} SELECT i, '', true, NULL, 1 FROM generate_series(2000, 2002) AS i")
    ended, failures, changed = threading.Event(), list[BaseException](), list[int]()
    positions: list[str | None] = []

    def write(seed: int) -> None:
        draw = random.Random(seed)
        try:
            with psycopg.connect(shared.url) as connection:
                while not ended.is_set():
                    try:
                        for _ in range(draw.choice((1, 1, 5, 40))):
                            connection.execute(change(items, seed, draw))
                        (connection.rollback if draw.random() < 0.1 else connection.commit)()
                        changed.append(1)
                    except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
                        connection.rollback()
        except BaseException as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(3)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(25):
            before = len(changed)
            report = verify(shapes, *handles)
            assert report.equal, json.dumps(report.to_json())
            assert report.complete
            positions += [each.position for each in report.streams]
            wait_until(lambda: len(changed) > before or bool(failures), "somebody to write")  # noqa: B023
    finally:
        ended.set()
        for writer in writers:
            writer.join()
    assert not failures
    assert len(set(positions)) >= 25, "at another position each time"


def test_what_cannot_be_compared_is_said_and_is_no_difference(
    shared: Database, items: str, shapes: ShapeServer
) -> None:
    changes = synced(shapes, table=items, log="changes_only")[0].handle
    told = {each.stream.split()[1]: each for each in verify(shapes, items).streams}
    assert (told[changes].verdict, told[changes].why_not) == ("not compared", "by its mode")
    assert set(told) == {changes}
    with pytest.raises(ConfigError, match="no shape"):
        verify(shapes, "public.nothing")


@pytest.fixture
def teams(shared: Database, items: str) -> str:
    """Beside the items: who owns them, and of which team these are; the names end alike."""
    end = items.removeprefix("items_")
    shared.execute(
        f"CREATE TABLE teams_{end} (id int PRIMARY KEY, open bool);"
        f"CREATE TABLE owners_{end} (id int PRIMARY KEY, team int, active bool);"
        f"ALTER TABLE {items} ADD owner bigint;"
        f"INSERT INTO teams_{end} SELECT i, i % 2 = 0 FROM generate_series(1, 10) AS i;"
        f"INSERT INTO owners_{end} SELECT i, 1 + i % 10, i % 3 > 0 FROM generate_series(1, 100) AS i;"
        f"UPDATE {items} SET owner = 1 + id % 100"
    )
    return end


def nested(end: str) -> list[str]:
    active = f"SELECT id FROM owners_{end} WHERE active"
    of_open_teams = f"SELECT id FROM owners_{end} WHERE team IN (SELECT id FROM teams_{end} WHERE open)"
    return [
        f"owner IN ({active})",
        f"owner IN ({of_open_teams}) OR n > 60 AND owner IN ({active})",
        f"owner NOT IN ({active}) AND done",
    ]


def test_shapes_with_subqueries_are_equal_and_what_is_planted_in_one_is_found(
    shared: Database, items: str, teams: str, shapes: ShapeServer
) -> None:
    handles = [synced(shapes, table=items, where=where)[0].handle for where in nested(teams)]
    shared.execute(f"UPDATE owners_{teams} SET active = NOT active WHERE id % 4 = 0")
    shared.execute(f"UPDATE teams_{teams} SET open = NOT open WHERE id < 4")
    shared.execute(f"DELETE FROM teams_{teams} WHERE id = 5")
    shared.execute(f"UPDATE {items} SET owner = 1 + (owner + 7) % 100, note = 'moved' WHERE id % 9 = 0")
    shared.execute(f"INSERT INTO owners_{teams} VALUES (200, 4, NULL), (201, 2, true)")
    report = verify(shapes, *handles)
    assert report.equal, json.dumps(report.to_json())
    assert report.complete, json.dumps(report.to_json())
    by_handle = {each.stream.split()[1]: each for each in report.streams}
    for handle, where in zip(handles, nested(teams), strict=True):
        told = by_handle[handle]
        ((expected,),) = shared.query(f"SELECT count(*) FROM {items} WHERE {where}")
        assert (told.source_rows, told.table_rows) == (expected, expected)
    plant(shapes, items, "40", "note 40", "nope 40", handles[0])
    plant(shapes, items, "46", "46", "x6", handles[0])
    assert planted(only(verify(shapes, handles[0]))) == ["missing 46", "extra x6", "different 40"]


def planted(told: VerifiedStream) -> list[str]:
    return [f"{each.kind} {each.key['id']}" for each in told.differences]


def change_nested(table: str, end: str, writer: int, draw: random.Random) -> str:
    """Of the items from 100 on, of those who own them from 42 on, and of their teams."""
    owner, team = 42 + draw.randrange(58), 1 + draw.randrange(10)
    row, number = 102 + draw.randrange(200) * 3 + writer, draw.randrange(90)
    own = owner // 3 * 3 + writer
    return draw.choice(
        (
            f"UPDATE {table} SET owner = {owner} WHERE id = {row}",
            f"UPDATE {table} SET n = {number}, done = NOT done, note = note || '.' WHERE id = {row}",
            f"UPDATE {table} SET id = id + 3000 WHERE id = {row}",
            f"DELETE FROM {table} WHERE id = {row}",
            f"INSERT INTO {table} VALUES ({row}, '', true, now(), {number}, {owner}) ON CONFLICT DO NOTHING",
            f"UPDATE owners_{end} SET active = NOT active WHERE id = {own}",
            f"UPDATE owners_{end} SET team = {team} WHERE id = {own}",
            f"DELETE FROM owners_{end} WHERE id = {own}",
            f"INSERT INTO owners_{end} VALUES ({own}, {team}, true) ON CONFLICT DO NOTHING",
            f"UPDATE teams_{end} SET open = NOT open WHERE id = {team} AND id % 3 = {writer}",
        )
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_shapes_with_subqueries_cause_no_false_alarm_while_all_their_tables_are_written(
    shared: Database, items: str, teams: str, shapes: ShapeServer
) -> None:
    """And what is planted is found meanwhile, though values come into the subqueries and go."""
    handles = [synced(shapes, table=items, where=where)[0].handle for where in nested(teams)]
    ended, failures, changed = threading.Event(), list[BaseException](), list[int]()

    def write(seed: int) -> None:
        draw = random.Random(seed)
        try:
            with psycopg.connect(shared.url) as connection:
                while not ended.is_set():
                    try:
                        for _ in range(draw.choice((1, 1, 5, 40))):
                            connection.execute(change_nested(items, teams, seed, draw))
                        (connection.rollback if draw.random() < 0.1 else connection.commit)()
                        changed.append(1)
                        ended.wait(0.005)  # else values come and go without a pause on a slow machine
                    except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
                        connection.rollback()
        except BaseException as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(3)]
    for writer in writers:
        writer.start()
    compared = 0
    try:
        for _ in range(12):
            before = len(changed)
            report = verify(shapes, *handles)
            assert report.equal, json.dumps(report.to_json())
            assert all(each.why_not in (None, "for now") for each in report.streams), json.dumps(
                report.to_json()
            )
            compared += sum(each.verdict == "equal" for each in report.streams)
            wait_until(lambda: len(changed) > before or bool(failures), "somebody to write")  # noqa: B023
        assert compared, "not all are left open each time"
        plant(shapes, items, "31", "note 31", "nope 31", handles[0])
        plant(shapes, items, "37", "37", "x7", handles[0])
        assert planted(only(verify(shapes, handles[0]))) == ["missing 37", "extra x7", "different 31"]
    finally:
        ended.set()
        for writer in writers:
            writer.join()
    assert not failures


def test_the_command_tells_it_as_of_tables_and_hides_values(
    shared: Database, items: str, shapes: ShapeServer, tmp_path: Path
) -> None:
    handle = synced(shapes, table=items)[0].handle
    file = tmp_path / "penstock.yaml"
    file.write_text(
        json.dumps(
            {
                "source": {"type": "postgres", "url": shared.url},
                "destination": {"type": "parquet", "path": str(tmp_path / "lake")},
                "state": str(shapes.storage),
                "streams": ["public.*"],
                "lanes": {"shapes": {"port": shapes.port, "insecure": True}},
            }
        )
    )

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*_COMMAND, "-c", str(file), *arguments], capture_output=True, text=True, timeout=120, check=False
        )

    equal = command("--json", "verify", "--lane", "shapes", handle)
    assert equal.returncode == 0, equal.stderr
    assert json.loads(equal.stdout)["equal"]
    plant(shapes, items, "12", "note 12", "nope 12")
    shown = command("verify", "--lane", "shapes", items)
    assert shown.returncode == 10, shown.stderr
    assert "shape rows" in shown.stdout
    assert "id=12" in shown.stdout
    assert "nope" not in shown.stdout
    assert "nope 12" in command("verify", "--lane", "shapes", handle, "--show-values").stdout
    assert command("verify", "--lane", "shapes", "--repair").returncode not in (0, 10, 11)
    assert command("verify", "--lane", "shapes", "--from", "0/0").returncode not in (0, 10, 11)
    (known,) = (each for name, each in reports.newest_known(shapes.storage).items() if handle in name)
    assert known.stream.verdict == "different"
    dropped = command("shapes", "drop", handle)
    assert dropped.returncode == 0, dropped.stderr
    command("verify", "--lane", "shapes")
    assert not any(handle in name for name in reports.newest_known(shapes.storage)), "nobody can settle it"

"""Messages that applications emit at the source, from the source's log to the events of a lane."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.capture.tail_reader import TailReader
from penstock.capture.transactions import ChangeRows, MessageConverter
from penstock.config import Config
from penstock.core.errors import ConfigError
from penstock.core.stream import MESSAGES
from penstock.log.reader import ChangeLog
from penstock.streams.followed import followed_streams
from penstock.streams.messages import EmittedRoute, message_events
from penstock.streams.settings import StreamSettings
from tests.always import AlwaysOn, always_spec
from tests.captured import log_rows
from tests.conftest import Database
from tests.stream_lane import pipeline_file

pytestmark = pytest.mark.integration

STREAM = str(MESSAGES)
ROUTE = EmittedRoute(("app", "job.*"), "messages.{prefix}")


@pytest.fixture
def orders(database: Database) -> Database:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    return database


def capturing(database: Database, state: Path, *messages: str, **more: Any) -> AlwaysOn:
    return AlwaysOn(always_spec(database, state, messages=messages, **more))


def emitted(state: Path) -> list[tuple[str, bytes, str]]:
    return [
        (row["prefix"], bytes.fromhex(row["content"][2:]), row["transactional"])
        for row in log_rows(state, STREAM)
    ]


def test_messages_have_their_place_among_the_changes_of_their_transaction(
    orders: Database, tmp_path: Path
) -> None:
    with capturing(orders, tmp_path, "app", "job.*") as always:
        always.join()
        with orders.connect(autocommit=False) as connection:
            connection.execute("SELECT pg_logical_emit_message(true, 'app', 'first')")
            connection.execute("INSERT INTO orders VALUES (1)")
            connection.execute("SELECT pg_logical_emit_message(true, 'job.1', '\\x00ff'::bytea)")
            connection.execute("SELECT pg_logical_emit_message(true, 'other', 'not ours')")
            connection.execute("SELECT pg_logical_emit_message(true, 'app', 'third')")
            connection.execute("INSERT INTO orders VALUES (2)")
        always.read_now()
        rows = log_rows(tmp_path, STREAM)
        changes = log_rows(tmp_path)
    assert emitted(tmp_path) == [("app", b"first", "t"), ("job.1", b"\x00\xff", "t"), ("app", b"third", "t")]
    assert [row["number"] for row in rows] == ["0", "1", "2"]
    assert {row["_tx"] for row in rows} == {row["_tx"] for row in changes}
    assert {row["_xid"] for row in rows} == {row["_xid"] for row in changes}
    places = sorted(
        [(row["_op_index"], "message") for row in rows] + [(row["_op_index"], "change") for row in changes]
    )
    assert [kind for _, kind in places] == ["message", "change", "message", "message", "change"]
    assert [row["_op_index"] for row in changes] == [0, 2], "messages take no number of the changes"


@pytest.mark.slow
def test_messages_outside_transactions_are_told_once_and_in_order(orders: Database, tmp_path: Path) -> None:
    with capturing(orders, tmp_path, "*") as always:
        always.join()
        with orders.connect(autocommit=False) as connection:
            connection.execute("INSERT INTO orders VALUES (1)")
            connection.execute("SELECT pg_logical_emit_message(false, 'app', 'at once')")
            connection.rollback()
        orders.execute("SELECT pg_logical_emit_message(false, 'app', 'alone')")
        orders.execute("INSERT INTO orders VALUES (2)")
        orders.execute("SELECT pg_logical_emit_message(true, 'app', 'by itself')")
        always.read_now()
        always.process.kill()
    # Capture begins again where its log ends: what is in it is not taken twice.
    with capturing(orders, tmp_path, "*") as always:
        always.join()
        orders.execute("SELECT pg_logical_emit_message(false, 'app', 'later')")
        always.read_now()
        rows = log_rows(tmp_path, STREAM)
    assert emitted(tmp_path) == [
        ("app", b"at once", "f"),
        ("app", b"alone", "f"),
        ("app", b"by itself", "t"),
        ("app", b"later", "f"),
    ]
    assert [row["_xid"] == 0 for row in rows] == [True, True, False, True]
    order = sorted([(row["_tx"], "m") for row in rows] + [(row["_tx"], "c") for row in log_rows(tmp_path)])
    assert [kind for _, kind in order] == ["m", "m", "c", "m", "m"]
    for manifest in ChangeLog(tmp_path / "log").manifests():
        for table in manifest.tables:
            for file in table.files:
                assert manifest.start <= file.first_tx <= file.last_tx < manifest.end


def test_messages_of_savepoints_that_are_rolled_back_are_not_told(orders: Database, tmp_path: Path) -> None:
    """Of a large transaction too, which the server would stream if nobody asked for messages."""
    orders.execute(f"ALTER DATABASE {orders.name} SET logical_decoding_work_mem = '64kB'")
    with capturing(orders, tmp_path, "app") as always:
        always.join()
        for rows in (1, 5000):
            with orders.connect(autocommit=False) as connection:
                connection.execute("SELECT pg_logical_emit_message(true, 'app', 'kept')")
                connection.execute("SAVEPOINT s")
                connection.execute("SELECT pg_logical_emit_message(true, 'app', 'undone')")
                connection.execute(
                    "INSERT INTO orders SELECT -n, repeat('x', 100) FROM generate_series(1, %s) n", (rows,)
                )
                connection.execute("ROLLBACK TO s")
                connection.execute(
                    "INSERT INTO orders SELECT n + %s, 'y' FROM generate_series(1, %s) n", (rows, rows)
                )
                connection.execute("SELECT pg_logical_emit_message(true, 'app', 'kept too')")
        always.read_now()
    assert [content for _, content, _ in emitted(tmp_path)] == [b"kept", b"kept too"] * 2
    assert log_rows(tmp_path, STREAM)[-1]["_op_index"] == 2 * 5000 - 1


def test_nothing_is_kept_unless_somebody_asks(orders: Database, tmp_path: Path) -> None:
    with capturing(orders, tmp_path) as always:
        always.join()
        orders.execute("SELECT pg_logical_emit_message(true, 'app', 'nobody listens')")
        orders.execute("SELECT pg_logical_emit_message(false, 'app', 'nobody listens')")
        orders.execute("INSERT INTO orders VALUES (1)")
        always.read_now()
    streams = {table.stream for step in ChangeLog(tmp_path / "log").manifests() for table in step.tables}
    assert MESSAGES not in streams


def test_a_lane_makes_events_of_them(orders: Database, tmp_path: Path) -> None:
    with capturing(orders, tmp_path, "app", "job.*") as always:
        started = always.join()
        orders.execute("SELECT pg_logical_emit_message(true, 'app', 'é')")
        orders.execute("SELECT pg_logical_emit_message(false, 'job/1', 'not wanted')")
        orders.execute("SELECT pg_logical_emit_message(false, 'job.a/b', 'wanted')")
        end = always.read_now()
        found: list[ChangeRows] = []
        for item in TailReader(always.capture, tmp_path / "log", {MESSAGES}).follow(started.slot_position):
            for fragment in MessageConverter().fragments(item):
                found += fragment.changes
            if item.end >= end:
                break
    events = [each for changes in found for each in message_events(changes, ROUTE)]
    assert [(each.route, each.key.to_pylist()) for each in events] == [
        ("messages.app", [b"app"]),
        ("messages.job.a_b", [b"job.a/b"]),
    ]
    values = [json.loads(value) for each in events for value in each.value.to_pylist()]
    assert [base64.b64decode(value["message"]["content"]).decode() for value in values] == ["é", "wanted"]
    assert [value["source"]["transactional"] for value in values] == [True, False]
    assert all(value["op"] == "m" for value in values)


@pytest.mark.parametrize(
    ("outbox", "mask", "reason"),
    [
        ({"payload": "body"}, {}, "has no column body"),
        ({"topic": "e.{nothing}"}, {}, "has no column nothing"),
        ({"key": "nobody"}, {}, "has no column nobody"),
        ({}, {"public.outbox.payload": "redact"}, "whose rows are sent as they are"),
    ],
)
def test_an_outbox_that_its_table_cannot_fill_or_that_would_show_what_is_masked_is_refused(
    database: Database, tmp_path: Path, outbox: dict[str, str], mask: dict[str, str], reason: str
) -> None:
    database.execute("CREATE TABLE outbox (id int PRIMARY KEY, kind text, payload text)")
    table = {"table": "public.outbox", "topic": "e.{kind}", **outbox}
    section = {"path": "./out", "outbox": [table], "mask": mask}
    config = Config.load(pipeline_file(tmp_path, database, "file", section))
    with pytest.raises(ConfigError, match=reason):
        followed_streams(StreamSettings.of_pipeline(config, "file"))

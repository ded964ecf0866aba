"""Postgres to Kinesis by the lane itself: rows that are there, changes, a table that has no key, messages."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from penstock.config import Config
from tests.conftest import WAIT_S, Database, wait_until
from tests.kinesis_server import CREDENTIALS, REGION, Kinesalite, Record
from tests.stream_lane import LaneThread, pipeline_file, stream_capture

_TABLES = """
CREATE TABLE orders (id bigint PRIMARY KEY, status text);
INSERT INTO orders SELECT i, 'placed' FROM generate_series(1, 20) AS i;
CREATE TABLE notes (text text);
ALTER TABLE notes REPLICA IDENTITY FULL;
INSERT INTO notes VALUES ('same'), ('same'), ('other');
"""


def _events(records: list[Record], table: str) -> list[dict[str, Any]]:
    values = [record.value for record in records]
    return [value for value in values if value["penstock"]["stream"] == f"public.{table}"]


@pytest.mark.parametrize("aggregation", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_rows_and_changes_are_told_once_across_lives_of_the_lane(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aggregation: bool
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    database.execute(_TABLES)
    with Kinesalite() as server:
        stream = server.create_stream(2)
        section: dict[str, Any] = {"stream": stream, "region": REGION, "endpoint": server.endpoint}
        section["aggregation"] = aggregation
        path = pipeline_file(tmp_path, database, "kinesis", {**section, "take_over_wait": "6s"})

        def wait_for(table: str, ops: str) -> None:
            def told() -> str:
                return "".join(event["op"] for event in _events(server.read(stream), table))

            wait_until(lambda: len(told()) >= len(ops), f"events of {table}", WAIT_S)
            assert sorted(told()) == sorted(ops)

        with stream_capture(Config.load(path), database) as capture:
            wait_until(lambda: "leading" in capture.states, "capture to lead", WAIT_S)
            with LaneThread(path, capture.capture.address):
                wait_for("orders", "r" * 20)
                wait_for("notes", "r" * 3)
                database.execute("UPDATE orders SET status = 'sent'; DELETE FROM notes WHERE text = 'other'")
                wait_for("orders", "r" * 20 + "u" * 20)
                wait_for("notes", "rrrd")
            with LaneThread(path, capture.capture.address):
                database.execute("DELETE FROM orders; INSERT INTO notes VALUES ('same')")
                wait_for("orders", "r" * 20 + "u" * 20 + "d" * 20)
                wait_for("notes", "rrrdc")
        records = server.read(stream)
    keys: dict[str, dict[str, list[str]]] = {"public.orders": {}, "public.notes": {}}
    for record in records:
        told = keys[record.value["penstock"]["stream"]]
        told.setdefault(record.partition_key, []).append(record.value["op"])
    assert list(keys["public.orders"].values()) == [["r", "u", "d"]] * 20
    assert len(keys["public.notes"]) == 2, "rows without a key go by what they hold"


def test_messages_and_their_headers_are_in_the_stream_once_across_lives_of_the_lane(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    database.execute(
        "CREATE TABLE outbox (id bigint PRIMARY KEY, kind text, order_id text, body jsonb, trace text)"
    )
    outbox = {
        "table": "public.outbox",
        "topic": "events.{kind}",
        "payload": "body",
        "key": "order_id",
        "type": "kind",
        "headers": ["trace"],
    }
    with Kinesalite() as server:
        stream = server.create_stream(2)
        section: dict[str, Any] = {"stream": stream, "region": REGION, "endpoint": server.endpoint}
        section |= {"outbox": [outbox], "messages": {"prefixes": ["shop*"], "topic": "messages"}}
        path = pipeline_file(tmp_path, database, "kinesis", {**section, "take_over_wait": "6s"})

        def wait_for(count: int) -> list[Record]:
            wait_until(lambda: len(server.read(stream)) >= count, f"{count} records", WAIT_S)
            records = server.read(stream)
            assert len(records) == count
            return records

        with stream_capture(Config.load(path), database) as capture:
            wait_until(lambda: "leading" in capture.states, "capture to lead", WAIT_S)
            with LaneThread(path, capture.capture.address) as lane:
                lane.wait_until_running()
                database.execute("""
                    INSERT INTO outbox VALUES (1, 'sale', '7', '{"total": 3}', 'a "b"');
                    INSERT INTO outbox VALUES (2, 'sale', '7', '[1]');
                    SELECT pg_logical_emit_message(true, 'shop.note', 'hello')
                """)
                wait_for(3)
            with LaneThread(path, capture.capture.address):
                database.execute("DELETE FROM outbox; INSERT INTO outbox VALUES (3, 'sale', '7', '{}', NULL)")
                records = wait_for(4)
    told = [record for record in records if record.value["penstock"]["route"] == "events.sale"]
    assert {record.partition_key for record in told} == {"7"}
    first, second, third = (record.value for record in told)
    assert first["penstock"]["headers"] == {"type": "sale", "trace": 'a "b"'}
    assert second["penstock"]["headers"] == third["penstock"]["headers"] == {"type": "sale"}
    assert first["total"] == 3
    assert base64.b64decode(second["value"]) == b"[1]"
    assert third.keys() == {"penstock"}
    [note] = [record.value for record in records if record.value["penstock"]["route"] == "messages"]
    assert base64.b64decode(note["message"]["content"]) == b"hello"

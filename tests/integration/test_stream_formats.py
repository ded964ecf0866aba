"""The formats on their way: Postgres, lane, Kafka, and back by the libraries of others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.config import Config
from tests.conftest import WAIT_S, Database, wait_until
from tests.kafka_server import KafkaServer
from tests.registry_reading import avro, protobuf
from tests.schema_registry import SchemaRegistry, schema_registry
from tests.stream_lane import LaneThread, pipeline_file, stream_capture

pytestmark = pytest.mark.integration


def fields(message: Any) -> dict[str, Any] | None:
    """Of a message of either format, what it holds."""
    if message is None or isinstance(message, dict):
        return message
    parts = ((field, value) for field, value in message.ListFields())
    return {field.name: value if field.message_type is None else fields(value) for field, value in parts}


READERS: dict[str, Callable[[SchemaRegistry, bytes | None], Any]] = {"avro": avro, "protobuf": protobuf}


@pytest.mark.parametrize("form", ["avro", pytest.param("protobuf", marks=pytest.mark.slow)])
def test_a_column_is_added_while_events_with_schemas_flow_to_kafka(
    database: Database, kafka: KafkaServer, tmp_path: Path, form: str
) -> None:
    database.execute("CREATE TABLE orders (id bigint PRIMARY KEY, total numeric(8,2))")
    database.execute("INSERT INTO orders VALUES (1, 1.50)")
    with schema_registry() as registry:
        section = {
            "bootstrap": kafka.bootstrap,
            "format": form,
            "schema_registry": {"url": registry.url},
        }
        path = pipeline_file(tmp_path, database, "kafka", section)
        topic = f"slot_{database.name}.public.orders"
        with stream_capture(Config.load(path), database) as capture:
            wait_until(lambda: "leading" in capture.states, "capture to lead", WAIT_S)
            with LaneThread(path, capture.capture.address) as lane:
                lane.wait_until_running()
                database.execute("UPDATE orders SET total = 2.5 WHERE id = 1")
                database.execute("ALTER TABLE orders ADD COLUMN note text")
                database.execute("INSERT INTO orders VALUES (2, 3, 'new')")
                database.execute("DELETE FROM orders WHERE id = 1")
                wait_until(lambda: topic in kafka.topics() and len(kafka.read(topic)) >= 5, "records", WAIT_S)
        told = kafka.read(topic)
        keys = [fields(READERS[form](registry, each.key)) or {} for each in told]
        values = [fields(READERS[form](registry, each.value)) or {} for each in told]
    assert [value.get("op") for value in values] == ["r", "u", "c", "d", None]
    assert [key["id"] for key in keys] == [1, 1, 2, 1, 1]
    rows = [value.get("after") or {} for value in values]
    assert [str(row.get("total")) for row in rows] == ["1.50", "2.50", "3.00", "None", "None"]
    assert rows[2]["note"] == "new"
    assert [len(registry.versions(f"{topic}-{part}")) for part in ("key", "value")] == [1, 2]

"""The formats on their way: Postgres, lane, Kafka, and back by the libraries of others."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest

from penstock.config import Config
from tests.conftest import WAIT_S, Database, wait_until
from tests.kafka_server import KafkaServer
from tests.schema_registry import SchemaRegistry, schema_registry
from tests.stream_lane import LaneThread, pipeline_file, stream_capture

pytestmark = pytest.mark.integration


def avro(registry: SchemaRegistry, record: bytes | None) -> Any:
    if record is None:
        return None
    schema = fastavro.parse_schema(json.loads(registry.schema(int.from_bytes(record[1:5], "big"))))
    return fastavro.schemaless_reader(io.BytesIO(record[5:]), schema, None)


def test_a_column_is_added_while_avro_flows_to_kafka(
    database: Database, kafka: KafkaServer, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE orders (id bigint PRIMARY KEY, total numeric(8,2))")
    database.execute("INSERT INTO orders VALUES (1, 1.50)")
    with schema_registry() as registry:
        section = {
            "bootstrap": kafka.bootstrap,
            "format": "avro",
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
        records = [(avro(registry, each.key), avro(registry, each.value)) for each in kafka.read(topic)]
    ops = [value and value["op"] for _, value in records]
    assert ops == ["r", "u", "c", "d", None]
    assert [key["id"] for key, _ in records] == [1, 1, 2, 1, 1]
    rows = [value and value["after"] for _, value in records]
    assert [row and str(row["total"]) for row in rows] == ["1.50", "2.50", "3.00", None, None]
    assert rows[2]["note"] == "new"
    assert [len(registry.versions(f"{topic}-{part}")) for part in ("key", "value")] == [1, 2]

"""Postgres to Kafka: how fast, how soon, and in how much memory.

Throughput: rows that wait in the write-ahead log, from the moment when the lane turns to capture and to its
target (its process is there) until a `read_committed` consumer could read the last of them, against
`pg_recvlogical` over a slot with the same rows. Settings are the defaults: acks=all, transactions with the
position in them, lz4, one partition, our JSON. When the last record could be read is seen from the last
stable offset, asked for every 10 ms: a consumer that reads along would take cores from both. Afterwards one
does read everything, and must find each row once.

Latency: single-row transactions, 1,000 a second, from before the INSERT is sent until a `read_committed`
consumer, in a process of its own, has the record. The first seconds are not counted.

Memory: the most that the lane's process has had (VmHWM) in all of this.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import Consumer, IsolationLevel, TopicPartition, admin
from psycopg import sql
from rich.console import Console

from bench import workload
from bench.comparison import Bars, Comparison, Figure, Run
from bench.references import ReceiveLogical
from bench.resources import Usage
from bench.streams_service import TABLE, WAIT_S, StreamPipeline, create_table
from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.kafka_server import KafkaServer

BARS = Bars(ratio_min=0.5)
MEMORY_MIB_MAX = 512.0
RATE, SECONDS, WARM_UP_S = 1000, 20, 4
P99_MS_MAX = 100.0
_ASK_EVERY_S = 0.01
_REFERENCE = "streams_reference"
_LATEST: Any = vars(admin)["OffsetSpec"].latest()  # the library does not tell mypy of it
#: As a broker runs elsewhere: with the compiler that makes the fastest code.
_BROKER_OPTIONS = ("-XX:+UseG1GC",)


def compare(
    server: EmbeddedPostgres, rows: int, rounds: int, directory: Path, console: Console
) -> tuple[Comparison, list[Figure]]:
    figures: list[Figure] = []
    with (
        KafkaServer(directory / "kafka", java_options=_BROKER_OPTIONS) as broker,
        workload.connect(server) as connection,
    ):
        create_table(connection)
        reference = ReceiveLogical(server, connection, _pipeline_name(0))
        comparison = Comparison("streams-kafka", f"{rows:,} rows, Postgres → Kafka", reference.name, BARS)
        console.log("streams-kafka: priming a lane for each round")
        lanes = [_pipeline(server, broker, directory, number) for number in range(rounds + 1)]
        for number, lane in enumerate(lanes):
            lane.prime()
            reference.create_slot(f"{_REFERENCE}_{number}")
        console.log(f"inserting {rows:,} rows behind {2 * len(lanes)} slots")
        workload.insert_rows(connection, TABLE, 1, rows)
        end = workload.log_end(connection)
        peaks = []
        for number, lane in enumerate(lanes):
            theirs = reference.read(f"{_REFERENCE}_{number}", end, rows)
            ours = _publish(broker, lane, connection, end, rows)
            peaks.append(ours.usage.memory_peak_bytes)
            if number:
                console.log(comparison.add_round(theirs, ours))
        figures += _latency(broker, lanes[-1], connection, console)
        figures.append(
            Figure("peak memory of the lane's process, to Kafka", max(peaks) / 2**20, MEMORY_MIB_MAX, "MiB")
        )
        workload.drop_slots(connection)
        for number in range(len(lanes)):
            name = sql.Identifier(_pipeline_name(number))
            connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(name))
        workload.drop_table(connection, TABLE)
    return comparison, figures


def _pipeline_name(number: int) -> str:
    return f"streams_kafka_{number}"


def _pipeline(server: EmbeddedPostgres, broker: KafkaServer, directory: Path, number: int) -> StreamPipeline:
    name = _pipeline_name(number)
    section = {"bootstrap": broker.bootstrap}
    broker.create_topic(_topic(name))
    return StreamPipeline(server, name, directory / name, "kafka", section)


def _topic(slot: str) -> str:
    return f"{slot}.{TABLE}"


def _publish(
    broker: KafkaServer, pipeline: StreamPipeline, connection: workload.Connection, end: str, rows: int
) -> Run:
    stable = _StableOffset(broker.bootstrap, _topic(pipeline.slot))
    samples: list[tuple[float, int]] = []
    with pipeline.running() as lane:
        began = lane.wait_until_starting()
        before = lane.cpu_s()
        while not samples or samples[-1][1] < rows:
            time.sleep(_ASK_EVERY_S)
            samples.append((time.perf_counter(), stable.ask()))
            assert samples[-1][0] < began + WAIT_S, "the rows do not come"
        # Ends of transactions have offsets too: the last record may come a little later than the count says.
        pipeline.wait_until_acknowledged(connection, end)
        samples.append((time.perf_counter(), stable.ask()))
        usage_cpu, peak = lane.cpu_s() - before, lane.peak_bytes
    last = _count(broker.bootstrap, _topic(pipeline.slot), rows)
    done = next(at for at, offset in samples if offset > last)
    return Run(rows, Usage(done - began, usage_cpu, peak))


class _StableOffset:
    """Where the first record lies that a `read_committed` consumer cannot read yet."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._admin: Any = admin.AdminClient({"bootstrap.servers": bootstrap})
        self._partition = TopicPartition(topic, 0)

    def ask(self) -> int:
        asked = self._admin.list_offsets(
            {self._partition: _LATEST}, isolation_level=IsolationLevel.READ_COMMITTED
        )
        return int(asked[self._partition].result().offset)


def _count(bootstrap: str, topic: str, rows: int) -> int:
    """Each row is there once; the offset of the last."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    keys: set[bytes] = set()
    count = last = 0
    try:
        while True:
            for message in consumer.consume(10_000, timeout=5):
                if (error := message.error()) is not None:
                    assert error.code() == error._PARTITION_EOF, error
                    assert count == len(keys) == rows, (
                        f"{count:,} records of {len(keys):,} rows, not {rows:,}"
                    )
                    return last
                count += 1
                keys.add(message.key() or b"")
                last = message.offset() or 0
    finally:
        consumer.close()


def _latency(
    broker: KafkaServer, pipeline: StreamPipeline, connection: workload.Connection, console: Console
) -> list[Figure]:
    command = [sys.executable, "-m", "bench.streams_consumer", broker.bootstrap, _topic(pipeline.slot)]
    with (
        pipeline.running() as lane,
        subprocess.Popen([*command, str(RATE * SECONDS)], stdout=subprocess.PIPE, text=True) as consumer,
    ):
        assert consumer.stdout is not None
        lane.wait_until_running()
        assert consumer.stdout.readline() == "ready\n"
        _write_evenly(connection)
        latencies: list[float] = json.loads(consumer.stdout.readline())
    counted = latencies[RATE * WARM_UP_S :]
    p50, p99 = (float(each) for each in np.percentile(counted, [50, 99]))
    console.log(
        f"write → Kafka consumer at {RATE:,}/s: p50 {p50:.1f} ms, p99 {p99:.1f} ms of {len(counted):,}"
    )
    return [
        Figure(f"write → Kafka consumer, {RATE:,} changes/s, p50", p50, P99_MS_MAX, "ms"),
        Figure(f"write → Kafka consumer, {RATE:,} changes/s, p99", p99, P99_MS_MAX, "ms"),
    ]


def _write_evenly(connection: workload.Connection) -> None:
    """`reference` is when it was sent, in nanoseconds."""
    insert: Any = (
        f"INSERT INTO {TABLE} SELECT %s, 7, %s, 1.37, 'some text value', md5('x'), now(), current_date, "
        'true, 3.14159, \'{"k": 1, "v": "abc"}\''
    )
    began = time.perf_counter()
    for number in range(RATE * SECONDS):
        wait = began + number / RATE - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        connection.execute(insert, (-1 - number, time.time_ns()), prepare=True)
    rate = RATE * SECONDS / (time.perf_counter() - began)
    assert rate > 0.9 * RATE, f"the machine is too busy to write {RATE:,} a second: {rate:,.0f}"

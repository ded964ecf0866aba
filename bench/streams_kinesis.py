"""Postgres to Kinesis: against a bare PutRecords loop, and what it costs when the service costs nothing.

Throughput: rows that wait in the write-ahead log go to an emulator (kinesalite); the measure is a loop of
boto3's `put_records` that has the very same records ready and puts them, 500 a call, into a stream like it.
The emulator is the slower part of both, so what is told is whether the lane keeps it busy. For either side
the time is that between the first and the last record's arrival, as the emulator has stamped them. After each
run its records are read: each row is there once.

CPU: the same lane against an endpoint that answers at once and keeps nothing (`bench.instant_kinesis`);
CPU seconds of the lane's process per million rows.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from psycopg import sql
from rich.console import Console

from bench import workload
from bench.comparison import Bars, Comparison, Figure, Run
from bench.instant_kinesis import HOST
from bench.resources import Usage, peak_bytes
from bench.streams_service import TABLE, WAIT_S, StreamPipeline, create_table
from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.kinesis_server import CREDENTIALS, REGION, Kinesalite

BARS = Bars(ratio_min=0.9)
ROWS = 40_000
CPU_S_PER_MILLION_MAX = 15.0
MEMORY_MIB_MAX = 512.0
_CALL_RECORDS = 500
_REFERENCE = "bare PutRecords loop"
_ASK_EVERY_S = 0.05

Records = Sequence[dict[str, Any]]


def compare(
    server: EmbeddedPostgres, rows: int, rounds: int, directory: Path, console: Console
) -> tuple[Comparison, list[Figure]]:
    comparison = Comparison("streams-kinesis", f"{ROWS:,} rows, Postgres → Kinesis", _REFERENCE, BARS)
    with workload.connect(server) as connection:
        create_table(connection)
        with Kinesalite() as emulator:
            console.log("streams-kinesis: priming a lane for each round")
            streams = [emulator.create_stream() for _ in range(rounds + 1)]
            lanes = [
                _pipeline(server, directory, f"streams_kinesis_{number}", stream, emulator.endpoint)
                for number, stream in enumerate(streams)
            ]
            for lane in lanes:
                lane.prime()
            workload.insert_rows(connection, TABLE, 1, ROWS)
            end = workload.log_end(connection)
            for number, (lane, stream) in enumerate(zip(lanes, streams, strict=True)):
                ours, records = _publish(emulator, lane, stream, connection, end)
                theirs = _put(emulator, records)
                if number:
                    console.log(comparison.add_round(theirs, ours))
        figures = _cpu(server, connection, rows, directory, console)
        workload.drop_slots(connection)
        for name in [*(lane.slot for lane in lanes), "streams_instant"]:
            connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))
        workload.drop_table(connection, TABLE)
    return comparison, figures


def _pipeline(
    server: EmbeddedPostgres, directory: Path, name: str, stream: str, endpoint: str
) -> StreamPipeline:
    section = {"stream": stream, "region": REGION, "endpoint": endpoint}
    return StreamPipeline(server, name, directory / name, "kinesis", section, CREDENTIALS)


def _publish(
    emulator: Kinesalite, pipeline: StreamPipeline, stream: str, connection: workload.Connection, end: str
) -> tuple[Run, Records]:
    """Our run, and the records that it has put, ready to be put again."""
    with pipeline.running() as lane:
        lane.wait_until_starting()
        before = lane.cpu_s()
        pipeline.wait_until_acknowledged(connection, end)
        cpu_s, peak = lane.cpu_s() - before, lane.peak_bytes
    found = list(_read(emulator, stream))
    assert len({record["PartitionKey"] for record in found}) == len(found) == ROWS, "each row is there once"
    records = [{"Data": record["Data"], "PartitionKey": record["PartitionKey"]} for record in found]
    return Run(ROWS, Usage(_seconds(found), cpu_s, peak)), records


def _put(emulator: Kinesalite, records: Records) -> Run:
    stream = emulator.create_stream()
    client = emulator.client()
    before = time.process_time()
    for first in range(0, len(records), _CALL_RECORDS):
        answer = client.put_records(StreamName=stream, Records=records[first : first + _CALL_RECORDS])
        assert answer["FailedRecordCount"] == 0
    cpu_s = time.process_time() - before
    found = list(_read(emulator, stream))
    assert len(found) == ROWS
    return Run(ROWS, Usage(_seconds(found), cpu_s, peak_bytes(os.getpid())))


def _read(emulator: Kinesalite, stream: str) -> Iterator[dict[str, Any]]:
    client = emulator.client()
    (shard,) = emulator.shards(stream)
    asked = {"StreamName": stream, "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
    iterator = client.get_shard_iterator(**asked)["ShardIterator"]
    while (page := client.get_records(ShardIterator=iterator))["Records"]:
        yield from page["Records"]
        iterator = page["NextShardIterator"]


def _seconds(records: Records) -> float:
    arrived = [record["ApproximateArrivalTimestamp"] for record in records]
    return float((max(arrived) - min(arrived)).total_seconds())


def _cpu(
    server: EmbeddedPostgres, connection: workload.Connection, rows: int, directory: Path, console: Console
) -> list[Figure]:
    with _instant() as port:
        endpoint = f"http://{HOST}:{port}"
        pipeline = _pipeline(server, directory, "streams_instant", "instant", endpoint)
        pipeline.prime()
        workload.insert_rows(connection, TABLE, ROWS + 1, ROWS + rows)
        with pipeline.running() as lane:
            began = lane.wait_until_starting()
            before = lane.cpu_s(with_capture=False)
            while (count := _count(endpoint)) < rows:
                assert time.perf_counter() < began + WAIT_S, "the records do not come"
                time.sleep(_ASK_EVERY_S)
            seconds = time.perf_counter() - began
            cpu_s, peak = lane.cpu_s(with_capture=False) - before, lane.peak_bytes
            pipeline.wait_until_acknowledged(connection, workload.log_end(connection))
    assert count == rows, "each row is sent once"
    console.log(f"to an endpoint that answers at once: {rows / seconds:,.0f} rows/s")
    per_million = cpu_s / rows * 1e6
    return [
        Figure("CPU-s of the lane per million rows, Kinesis at once", per_million, CPU_S_PER_MILLION_MAX),
        Figure("peak memory of the lane's process, to Kinesis", peak / 2**20, MEMORY_MIB_MAX, "MiB"),
    ]


@contextmanager
def _instant() -> Iterator[int]:
    command = [sys.executable, "-m", "bench.instant_kinesis"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.stdin.close()


def _count(endpoint: str) -> int:
    with urllib.request.urlopen(endpoint, timeout=10) as answer:
        return int(answer.read())

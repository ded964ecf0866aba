"""Servers that answer as Kinesis does: kinesalite (real sequence numbers, splits and merges) and moto.

Both keep streams in memory and end with the test. `read` is what a consumer sees: every shard from its
beginning, parents before children, aggregated records taken apart by a reader that shares no code with us.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import boto3
from botocore.config import Config

from tests.conftest import wait_until
from tests.node import NodeProcess
from tests.ports import free_port

REGION = "eu-west-1"
#: For the environment of whoever connects: both servers take any.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "of-a-test", "AWS_SECRET_ACCESS_KEY": "of-a-test"}
_HOST = "127.0.0.1"
_SCRIPTS = Path(__file__).parent / "kinesis"
_MAGIC = b"\xf3\x89\x9a\xc2"
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Record:
    shard: str
    sequence: int
    partition_key: str
    data: bytes

    @property
    def value(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.data)
        return value


class KinesisServer:
    """Something that answers on `port`; entered and left by the classes below."""

    port: int

    @property
    def endpoint(self) -> str:
        return f"http://{_HOST}:{self.port}"

    def client(self, endpoint: str | None = None) -> Any:
        return boto3.client(
            "kinesis",
            region_name=REGION,
            endpoint_url=endpoint or self.endpoint,
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            config=Config(retries={"total_max_attempts": 1}, parameter_validation=False),
        )

    def create_stream(self, shards: int = 1) -> str:
        """A stream of its own for each test."""
        name = f"stream-{next(_numbers)}"
        client = self.client()
        client.create_stream(StreamName=name, ShardCount=shards)
        self._wait_until_active(client, name)
        return name

    def shards(self, stream: str, *, is_open: bool = False) -> list[dict[str, Any]]:
        shards: list[dict[str, Any]] = self.client().list_shards(StreamName=stream)["Shards"]
        if is_open:
            return [shard for shard in shards if "EndingSequenceNumber" not in shard["SequenceNumberRange"]]
        return shards

    def split(self, stream: str, shard: dict[str, Any] | None = None) -> None:
        shard = shard or self.shards(stream, is_open=True)[0]
        first, last = (int(shard["HashKeyRange"][f"{end}HashKey"]) for end in ("Starting", "Ending"))
        client = self.client()
        client.split_shard(
            StreamName=stream, ShardToSplit=shard["ShardId"], NewStartingHashKey=str((first + last) // 2)
        )
        self._wait_until_active(client, stream)

    def merge(self, stream: str) -> None:
        """The two open shards with the lowest keys."""
        shards = self.shards(stream, is_open=True)
        shards.sort(key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))
        client = self.client()
        client.merge_shards(
            StreamName=stream, ShardToMerge=shards[0]["ShardId"], AdjacentShardToMerge=shards[1]["ShardId"]
        )
        self._wait_until_active(client, stream)

    def read(self, stream: str) -> list[Record]:
        """Everything, of each key in the order in which a consumer gets it."""
        client = self.client()
        records: list[Record] = []
        for shard in _parents_first(self.shards(stream)):
            for record in _records_of(client, stream, shard["ShardId"]):
                records.extend(taken_apart_as_consumers_do(record, shard))
        return records

    def _wait_until_active(self, client: Any, stream: str) -> None:
        def is_active() -> bool:
            summary = client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]
            return bool(summary["StreamStatus"] == "ACTIVE")

        wait_until(is_active, f"stream {stream} to be active")


class Kinesalite(KinesisServer):
    def __enter__(self) -> Self:
        self._process = NodeProcess(_SCRIPTS / "server.mjs")
        self._process.__enter__()
        self.port = self._process.ask("listen")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.__exit__(None, None, None)


class Moto(KinesisServer):
    def __init__(self, log: Path) -> None:
        self._log = log
        self.port = free_port()

    def __enter__(self) -> Self:
        command = [sys.executable, str(_SCRIPTS / "moto_server.py"), _HOST, str(self.port)]
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until(self._answers, "moto to answer")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        try:
            with urllib.request.urlopen(self.endpoint, timeout=5):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False


def _parents_first(shards: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    by_id = {shard["ShardId"]: shard for shard in shards}
    given: set[str] = set()

    def give(shard_id: str | None) -> Iterator[dict[str, Any]]:
        if shard_id is not None and shard_id in by_id and shard_id not in given:
            shard = by_id[shard_id]
            given.add(shard_id)
            yield from give(shard.get("ParentShardId"))
            yield from give(shard.get("AdjacentParentShardId"))
            yield shard

    for shard_id in by_id:
        yield from give(shard_id)


def _records_of(client: Any, stream: str, shard_id: str) -> Iterator[Record]:
    iterator = client.get_shard_iterator(
        StreamName=stream, ShardId=shard_id, ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    while iterator is not None:
        answer = client.get_records(ShardIterator=iterator)
        for record in answer["Records"]:
            yield Record(shard_id, int(record["SequenceNumber"]), record["PartitionKey"], record["Data"])
        if not answer["Records"] and answer["MillisBehindLatest"] == 0:
            return
        iterator = answer.get("NextShardIterator")


def taken_apart_as_consumers_do(record: Record, shard: dict[str, Any]) -> list[Record]:
    """As the Kinesis Client Library does it: what is not in the shard's range belongs elsewhere."""
    if not record.data.startswith(_MAGIC):
        return [record]
    message, checksum = record.data[4:-16], record.data[-16:]
    assert hashlib.md5(message).digest() == checksum
    first, last = (int(shard["HashKeyRange"][f"{end}HashKey"]) for end in ("Starting", "Ending"))
    fields = list(_fields(message))
    keys = [bytes(value).decode() for number, value in fields if number == 1 and isinstance(value, bytes)]
    parts = []
    for number, value in fields:
        if number == 3 and isinstance(value, bytes):
            part = dict(_fields(value))
            key, data = keys[int(part[1])], part[3]
            assert isinstance(data, bytes)
            if first <= int(hashlib.md5(key.encode()).hexdigest(), 16) <= last:
                parts.append(Record(record.shard, record.sequence, key, data))
    return parts


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Of a Protobuf message: those of wire types 0 and 2."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
        else:
            assert tag & 7 == 2
            length = varint()
            yield tag >> 3, message[at : at + length]
            at += length


def ids(records: list[Record]) -> list[tuple[str, str, str]]:
    """Stream, chunk and id of each record of ours."""
    told = [record.value["penstock"] for record in records]
    return [(each["stream"], each.get("chunk", ""), each["id"]) for each in told]

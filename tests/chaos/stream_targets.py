"""The targets that stream lanes are struck on: what each is told in the pipeline file, and how it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.failure_plan import Plan
from tests.failure_proxy import FailureProxy
from tests.kafka_server import KafkaServer
from tests.kinesis_proxy import HttpFailureProxy
from tests.kinesis_server import CREDENTIALS, REGION, Kinesalite
from tests.stream_reader import Told, read_file, read_shards, read_topics

PARTITIONS, SHARDS = 2, 2
#: Longer than a request to a server beside us lasts, and than what a proxy passes on late.
TAKE_OVER_S = 4.0  # requests may take most of it, on a machine that has much else to do


class Target(Protocol):
    """`one_place`: all events of a key are in one partition."""

    name: str
    environment: Mapping[str, str]
    one_place: bool

    @property
    def section(self) -> Mapping[str, Any]:
        """Of the lane, in the pipeline file."""

    def read(self, slot: str, tables: Sequence[str]) -> list[Told]: ...


@dataclass
class OfFile:
    directory: Path
    name: str = "file"
    one_place: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def section(self) -> Mapping[str, Any]:
        return {"path": str(self.directory / "events.ndjson")}

    def read(self, slot: str, tables: Sequence[str]) -> list[Told]:
        return read_file(self.directory / "events.ndjson")


@dataclass
class OfKafka:
    server: KafkaServer
    bootstrap: str
    buckets: int = 1
    name: str = "kafka"
    one_place: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def section(self) -> Mapping[str, Any]:
        return {
            "bootstrap": self.bootstrap,
            "partitions": PARTITIONS,
            "buckets": self.buckets,
            "transaction_timeout": "10s",
        }

    def read(self, slot: str, tables: Sequence[str]) -> list[Told]:
        topics = {f"{slot}.{table}": table for table in tables}
        there = self.server.topics()
        return read_topics(self.server, {topic: table for topic, table in topics.items() if topic in there})


@dataclass
class OfKinesis:
    server: Kinesalite
    endpoint: str
    stream: str
    name: str = "kinesis"
    one_place: bool = False
    environment: Mapping[str, str] = field(default_factory=lambda: dict(CREDENTIALS))

    @property
    def section(self) -> Mapping[str, Any]:
        return {
            "stream": self.stream,
            "region": REGION,
            "endpoint": self.endpoint,
            "take_over_wait": f"{TAKE_OVER_S:g}s",
            "checkpoint_every": "0.2s",
        }

    def read(self, slot: str, tables: Sequence[str]) -> list[Told]:
        return read_shards(self.server, self.stream)


@contextmanager
def target(
    name: str, request: pytest.FixtureRequest, directory: Path, plan: Plan | None = None, buckets: int = 1
) -> Iterator[Target]:
    """With a `plan`, reached through a failure proxy. A file has no way to it that could fail.

    `buckets`: of Kafka, how many producers the lane has.
    """
    if name == "file":
        yield OfFile(directory)
    elif name == "kafka":
        server: KafkaServer = request.getfixturevalue("kafka")
        if plan is None:
            yield OfKafka(server, server.bootstrap, buckets)
        else:
            with FailureProxy(server.behind, plan, server.proxied) as proxy:
                yield OfKafka(server, proxy.address, buckets)
    else:
        kinesis: Kinesalite = request.getfixturevalue("kinesis")
        stream = kinesis.create_stream(SHARDS)
        if plan is None:
            yield OfKinesis(kinesis, kinesis.endpoint, stream)
        else:
            with HttpFailureProxy(kinesis.port, plan) as http_proxy:
                yield OfKinesis(kinesis, http_proxy.endpoint, stream)

"""A Kinesis stream: its limits, its shards, and puts of records whose answers say what became of each.

Limits are asked of the stream. Where it does not tell them, the service's documented ones hold: 500 records
and 5 MiB a call, 1 MiB a record with its key.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.streams.events import Int64s
from penstock.streams.kinesis.aggregation import EVENT_OVERHEAD, FRAME_OVERHEAD, Aggregate, aggregated
from penstock.streams.kinesis.client import KinesisClient
from penstock.streams.kinesis.records import Records, body_head
from penstock.streams.kinesis.settings import KinesisSettings
from penstock.streams.kinesis.shards import Shard, ShardMap
from penstock.streams.kinesis.tail import TRIES, patiently
from penstock.streams.target import RecordLimits

_KIB, _MIB = 1024, 1024 * 1024
_CALL_RECORDS, _CALL_BYTES, _RECORD_BYTES = 500, 5 * _MIB, _MIB
#: As the Kinesis Producer Library has it: larger ones gain nothing, and a failed one is sent again whole.
_AGGREGATE_BYTES = 50 * _KIB
_AGGREGATED_EVENTS = 10_000
_CALLS_MAX = 32


@dataclass(frozen=True, slots=True)
class Put:
    """One PutRecords call with events `rows`, a record each, or those of each aggregate."""

    body: bytes
    rows: Int64s
    aggregates: Sequence[Aggregate] | None = None

    def __len__(self) -> int:
        """How many records it has."""
        return len(self.rows if self.aggregates is None else self.aggregates)

    def rows_of(self, record: int) -> Int64s:
        return self.rows[record : record + 1] if self.aggregates is None else self.aggregates[record].rows


class KinesisStream:
    def __init__(
        self,
        settings: KinesisSettings,
        client: KinesisClient,
        stopped: threading.Event,
        tries_max: int = TRIES,
    ) -> None:
        self._settings = settings
        self._client = client
        self._stopped = stopped
        self._tries_max = tries_max
        self._map = ShardMap([])
        self._is_stale = True
        self._record_bytes = _RECORD_BYTES
        self.retention_s = 24 * 3600.0
        self.created_at: float | None = None

    @property
    def limits(self) -> RecordLimits:
        calls = min(_CALLS_MAX, self._settings.per_shard_in_flight * max(1, len(self._map.open)))
        call_bytes = max(_CALL_BYTES, self._record_bytes)
        if not self._settings.aggregation:
            return RecordLimits(_CALL_RECORDS, call_bytes, self._record_bytes, calls)
        record_bytes = self._record_bytes - FRAME_OVERHEAD - EVENT_OVERHEAD
        return RecordLimits(_AGGREGATED_EVENTS, call_bytes * 3 // 4, record_bytes, calls)

    @property
    def map(self) -> ShardMap:
        return self._map

    def describe(self) -> None:
        """Ask for limits and shards."""
        asked = self._ask("DescribeStreamSummary", StreamName=self._settings.stream)
        summary = asked["StreamDescriptionSummary"]
        self._record_bytes = summary.get("MaxRecordSizeInKiB", _RECORD_BYTES // _KIB) * _KIB
        self.retention_s = summary.get("RetentionPeriodHours", 24) * 3600.0
        self.created_at = summary.get("StreamCreationTimestamp")
        self.list_shards()

    def list_shards(self) -> None:
        answer = self._ask("ListShards", StreamName=self._settings.stream)
        told = list(answer["Shards"])
        while token := answer.get("NextToken"):
            answer = self._ask("ListShards", NextToken=token)
            told.extend(answer["Shards"])
        self._map, self._is_stale = ShardMap(map(Shard.parse, told)), False

    def outdate(self) -> None:
        """There are shards that the map does not know."""
        self._is_stale = True

    @property
    def is_outdated(self) -> bool:
        return self._is_stale

    def puts(self, records: Records, rows: Int64s) -> Iterator[Put]:
        """`rows`, each of which fits, as calls within the limits."""
        if self._settings.aggregation:
            yield from self._aggregated_puts(records, rows)
            return
        for part in _cut(records.sizes[rows], _CALL_RECORDS, self.limits.bytes):
            chosen = rows[part]
            yield Put(records.body(self._settings.stream, chosen), chosen)

    def put(self, call: Put, may_send: Callable[[], bool]) -> Any:
        """Its answer; raises a `CallError` or a `TargetError`."""
        return self._client.call("PutRecords", call.body, may_send)

    def _aggregated_puts(self, records: Records, rows: Int64s) -> Iterator[Put]:
        places = self._map.places(records.hashes[rows])
        bytes_max = min(_AGGREGATE_BYTES, self._record_bytes)
        aggregates = list(aggregated(records, rows, places, bytes_max))
        sizes = np.array([len(each.data) + len(each.key) for each in aggregates], np.int64)
        for part in _cut(sizes, _CALL_RECORDS, max(_CALL_BYTES, self._record_bytes)):
            chosen = aggregates[part]
            yield Put(self._body(chosen), np.concatenate([each.rows for each in chosen]), chosen)

    def _body(self, aggregates: Sequence[Aggregate]) -> bytes:
        entries = [
            b'{"PartitionKey":%s,"ExplicitHashKey":"%d","Data":"%s"}'
            % (json.dumps(each.key.decode()).encode(), each.hash, base64.b64encode(each.data))
            for each in aggregates
        ]
        return b"%s%s]}" % (body_head(self._settings.stream), b",".join(entries))

    def _ask(self, operation: str, **arguments: Any) -> Any:
        return patiently(lambda: self._client.ask(operation, **arguments), self._stopped, self._tries_max)


def _cut(sizes: Int64s, count_max: int, bytes_max: int) -> Iterator[slice]:
    """Parts of at most so many, of at most so many bytes; one that is larger goes alone."""
    totals = np.concatenate([[0], np.cumsum(sizes)])
    start = 0
    while start < len(sizes):
        fitting = int(np.searchsorted(totals, totals[start] + bytes_max, side="right")) - 1
        stop = max(start + 1, min(fitting, start + count_max))
        yield slice(start, stop)
        start = stop

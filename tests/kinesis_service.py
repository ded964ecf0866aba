"""Kinesis as a `KinesisTarget` sees it, in memory: it takes what is put, and keeps what that was."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from penstock.streams.kinesis.errors import CallError
from penstock.streams.kinesis.settings import KinesisSettings


class Service:
    """A stream with one shard. `taking` is called for each call, while it is under way, and `asking` before
    anything else is answered. A call with the partition key `invalid` is refused whole; of those that are
    taken, the answers of `lost` get lost, counted from 1.
    """

    def __init__(self) -> None:
        self.calls: list[list[int]] = []  # the sizes of each call's records
        self.contents: list[bytes] = []
        self.taking: Callable[[], None] = lambda: None
        self.asking: Callable[[str], None] = lambda _: None
        self.invalid = ""
        self.lost: frozenset[int] = frozenset()

    def __call__(self, _: KinesisSettings) -> Service:
        return self

    def ask(self, operation: str, **asked: Any) -> Any:
        self.asking(operation)
        whole = {"StartingHashKey": "0", "EndingHashKey": str(2**128 - 1)}
        shard = {"ShardId": "shard-0", "HashKeyRange": whole, "SequenceNumberRange": {}}
        answers = {
            "DescribeStreamSummary": {"StreamDescriptionSummary": {}},
            "ListShards": {"Shards": [shard]},
            "GetShardIterator": {"ShardIterator": asked.get("StartingSequenceNumber", "0")},
            "GetRecords": self._read(int(asked.get("ShardIterator", "0"))),
        }
        return answers.get(operation, {})

    def call(self, operation: str, body: bytes, _: Callable[[], bool]) -> Any:
        assert operation == "PutRecords"
        records = json.loads(body)["Records"]
        contents = [base64.b64decode(each["Data"]) for each in records]
        keys = [each["PartitionKey"] for each in records]
        if self.invalid in keys:
            raise CallError("ValidationException")
        self.calls.append([len(key) + len(content) for key, content in zip(keys, contents, strict=True)])
        first = len(self.contents) + 1
        self.contents += contents
        self.taking()
        if len(self.calls) in self.lost:
            raise CallError("HTTP 500", is_lost=True)
        numbers = range(first, first + len(records))
        return {"Records": [{"ShardId": "shard-0", "SequenceNumber": str(number)} for number in numbers]}

    def _read(self, after: int) -> Any:
        """Sequence numbers are places in `contents`, from 1."""
        records = [
            {"Data": base64.b64encode(content), "SequenceNumber": str(number)}
            for number, content in enumerate(self.contents[after:], start=after + 1)
        ]
        return {"Records": records, "NextShardIterator": str(len(self.contents))}

    def close(self) -> None: ...

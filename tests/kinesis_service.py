"""Kinesis as a `KinesisTarget` sees it, in memory: it takes all that is put, and keeps what that was."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from penstock.streams.kinesis.settings import KinesisSettings


class Service:
    """A stream with one shard. `taking` is called for each call, while it is under way, and `asking` before
    anything else is answered.
    """

    def __init__(self) -> None:
        self.calls: list[list[int]] = []  # the sizes of each call's records
        self.contents: list[bytes] = []
        self.taking: Callable[[], None] = lambda: None
        self.asking: Callable[[str], None] = lambda _: None

    def __call__(self, _: KinesisSettings) -> Service:
        return self

    def ask(self, operation: str, **_: Any) -> Any:
        self.asking(operation)
        whole = {"StartingHashKey": "0", "EndingHashKey": str(2**128 - 1)}
        shard = {"ShardId": "shard-0", "HashKeyRange": whole, "SequenceNumberRange": {}}
        answers = {
            "DescribeStreamSummary": {"StreamDescriptionSummary": {}},
            "ListShards": {"Shards": [shard]},
        }
        return answers.get(operation, {})

    def call(self, operation: str, body: bytes, _: Callable[[], bool]) -> Any:
        assert operation == "PutRecords"
        records = json.loads(body)["Records"]
        contents = [base64.b64decode(each["Data"]) for each in records]
        keys = [each["PartitionKey"] for each in records]
        self.calls.append([len(key) + len(content) for key, content in zip(keys, contents, strict=True)])
        self.contents += contents
        self.taking()
        return {"Records": [{"ShardId": "shard-0", "SequenceNumber": "1"}] * len(records)}

    def close(self) -> None: ...

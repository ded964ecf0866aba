"""`python -m bench.instant_kinesis`: answers as Kinesis does, at once, and keeps nothing.

It says its port. One stream with one shard, always empty. `GET /` tells how many records were put.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, cast

import uvloop

HOST = "127.0.0.1"
_SHARD = "shardId-000000000000"
_HASHES = {"StartingHashKey": "0", "EndingHashKey": str(2**128 - 1)}
_SUMMARY = {
    "StreamName": "instant",
    "StreamARN": "arn:aws:kinesis:eu-west-1:000000000000:stream/instant",
    "StreamStatus": "ACTIVE",
    "StreamCreationTimestamp": 0,
    "RetentionPeriodHours": 24,
    "OpenShardCount": 1,
    "EnhancedMonitoring": [],
}
_ANSWERS: dict[str, Any] = {
    "DescribeStreamSummary": {"StreamDescriptionSummary": _SUMMARY},
    "ListShards": {
        "Shards": [
            {
                "ShardId": _SHARD,
                "HashKeyRange": _HASHES,
                "SequenceNumberRange": {"StartingSequenceNumber": "1"},
            }
        ]
    },
    "ListTagsForStream": {"Tags": [], "HasMoreTags": False},
    "AddTagsToStream": {},
    "GetShardIterator": {"ShardIterator": "end"},
    "GetRecords": {"Records": [], "NextShardIterator": "end", "MillisBehindLatest": 0},
}


class Answering(asyncio.Protocol):
    records = 0
    calls = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._waiting = bytearray()

    def data_received(self, data: bytes) -> None:
        self._waiting += data
        while (end := self._waiting.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._waiting[:end]).lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            if len(self._waiting) < end + 4 + length:
                return
            operation = head.partition(b"x-amz-target: kinesis_20131202.")[2].partition(b"\r\n")[0].decode()
            body = bytes(self._waiting[end + 4 : end + 4 + length])
            del self._waiting[: end + 4 + length]
            self._answer(operation, body)

    def _answer(self, operation: str, body: bytes) -> None:
        if operation == "putrecords":
            text = self._put(body.count(b'"PartitionKey"'))
        else:
            known = {name.lower(): answer for name, answer in _ANSWERS.items()}
            text = json.dumps(known[operation] if operation else Answering.records).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.1\r\nContent-Length: %d\r\n\r\n"
        self._transport.write(head % len(text) + text)

    def _put(self, count: int) -> bytes:
        Answering.records += count
        Answering.calls += 1
        result = b'{"SequenceNumber":"%d","ShardId":"%s"}' % (Answering.calls + 1, _SHARD.encode())
        return b'{"FailedRecordCount":0,"Records":[' + b",".join([result] * count) + b"]}"


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Answering, HOST, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # ends with whoever started it
    server.close()


if __name__ == "__main__":
    uvloop.run(serve())

"""`penstock check` of the Kinesis lane: the stream is there, may be written and read."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

from penstock.config.streams import KinesisLaneConfig
from penstock.core.errors import PenstockError, TargetError
from penstock.sources.finding import Finding
from penstock.streams.kinesis.client import KinesisClient
from penstock.streams.kinesis.errors import CallError
from penstock.streams.kinesis.owner import is_denied, tags
from penstock.streams.kinesis.settings import KinesisSettings
from penstock.streams.kinesis.stream import KinesisStream
from penstock.streams.target import RecordLimits

_NAME = "lanes.kinesis"


def check(section: KinesisLaneConfig) -> list[Finding]:
    try:
        return list(_findings(KinesisSettings.of(section)))
    except PenstockError as error:
        return [Finding.of_error(_NAME, error)]


def _findings(settings: KinesisSettings) -> Iterator[Finding]:
    client = KinesisClient(settings)
    try:
        stream = KinesisStream(settings, client, threading.Event(), tries_max=1)
        stream.describe()
        limits: RecordLimits = stream.limits
        yield Finding(
            _NAME,
            "ok",
            f"Stream {settings.stream} has {len(stream.map.open)} open shards, takes records of"
            f" {limits.record_bytes // 1024} KiB and keeps them for {stream.retention_s / 3600:.0f} hours.",
        )
        for shard in stream.map.open[:1]:
            asked = {"ShardIteratorType": "LATEST", "StreamName": settings.stream, "ShardId": shard.id}
            iterator = client.ask("GetShardIterator", **asked)["ShardIterator"]
            client.ask("GetRecords", ShardIterator=iterator, Limit=1)
            yield Finding(_NAME, "ok", "It may be read, which is needed to send nothing twice.")
        yield _write_right(settings, client)
        yield _tag_right(settings, client)
    finally:
        client.close()


def _write_right(settings: KinesisSettings, client: KinesisClient) -> Finding:
    """A put that is refused for its content, but only to those who may put at all."""
    empty = json.dumps({"StreamName": settings.stream, "Records": []}).encode()
    try:
        client.call("PutRecords", empty)
    except CallError as error:
        if error.code in ("AccessDeniedException", "ResourceNotFoundException"):
            return Finding.of_error(_NAME, error.as_target_error("PutRecords", settings.stream))
    return Finding(_NAME, "ok", "It may be written to.")


def _tag_right(settings: KinesisSettings, client: KinesisClient) -> Finding:
    """Whether tags may be written is seen when the lane begins: nothing is changed here."""
    try:
        tags(client, settings.stream)
    except TargetError as error:
        if not is_denied(error):
            raise
        return Finding(
            _NAME,
            "warning",
            "Its tags may not be read: it would not be noticed that another state has its checkpoints.",
            "Allow kinesis:ListTagsForStream and AddTagsToStream; or be sure that instances share `state`.",
        )
    return Finding(_NAME, "ok", "Its tags may be read: they say whose checkpoints its records are known to.")

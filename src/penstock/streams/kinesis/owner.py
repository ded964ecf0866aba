"""Whose records a lane's are: the stream says which state directory keeps account of them.

Checkpoints and dead letters are files. An instance that has others than those who sent before it, or none,
would take what is in the stream for nothing, and send all of it again. So a state directory has an id, and
the stream bears the id of the one that its records are known to, in a tag with the lane's identity. Who finds
another id there does not begin (correctness 40), unless somebody has ordered it to send anew: then the tag
is written anew, and the other one does not begin any more.

The id is on disk before the tag is written, and the tag before anything is sent: a crash in between leaves an
id that nobody has heard of, or a tag whose directory goes on.

A stream whose tags this lane may not read or write cannot tell: that is said, and the lane goes on, as one
does whose instances share their state.
"""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

import structlog

from penstock import durable
from penstock.core.errors import StateError, TargetError
from penstock.streams.kinesis.client import KinesisClient
from penstock.streams.kinesis.errors import CallError
from penstock.streams.kinesis.tail import patiently

_FILE = "state_id"
_DENIED = frozenset(
    {"AccessDeniedException", "InvalidArgumentException", "UnknownOperationException", "InvalidAction"}
)
_logger = structlog.get_logger("penstock.streams")


def claim(
    client: KinesisClient,
    stream: str,
    identity: str,
    directory: Path,
    stopped: threading.Event,
    *,
    is_ordered: bool,
) -> None:
    """Begin with the state in `directory`; a `StateError` if the records are another one's."""
    own, key = _own_id(directory), f"penstock/{identity}"
    try:
        held = patiently(lambda: tags(client, stream), stopped).get(key)
        if held == own:
            return
        if held is not None and not is_ordered:
            raise StateError(
                f"What this lane has sent to Kinesis stream {stream} is known to another state directory,"
                f" not to {directory}: all of it would be sent again.",
                remedy="Let the instances share one state directory, or bring `streams/kinesis` of the other"
                " one here. To begin anew on purpose, with all rows sent again:"
                " `penstock resync --lane kinesis --yes`.",
            )
        tag = {"StreamName": stream, "Tags": {key: own}}
        patiently(lambda: client.ask("AddTagsToStream", **tag), stopped)
    except TargetError as error:
        if not is_denied(error):
            raise
        _logger.warning("the stream's tags cannot be used: another state directory would not be noticed")


def tags(client: KinesisClient, stream: str) -> dict[str, str]:
    """Raises a `TargetError`."""
    found: dict[str, str] = {}
    asked: dict[str, str] = {}
    while True:
        answer = client.ask("ListTagsForStream", StreamName=stream, **asked)
        told = answer.get("Tags", [])
        found |= {tag["Key"]: tag.get("Value", "") for tag in told}
        if not answer.get("HasMoreTags") or not told:
            return found
        asked = {"ExclusiveStartTagKey": told[-1]["Key"]}


def is_denied(error: TargetError) -> bool:
    """Whether this lane may not use tags, the stream has as many as it can have, or the service has none."""
    return isinstance(error.__cause__, CallError) and error.__cause__.code in _DENIED


def _own_id(directory: Path) -> str:
    path = directory / _FILE
    durable.create_exclusively(path, uuid.uuid4().hex.encode())
    return path.read_text()

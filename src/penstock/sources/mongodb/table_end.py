"""Where another tool's copy of a collection ends: from a resume token to the position of what it lacks.

A position has whole cluster times, and the token of an event may stand in the midst of one: a transaction of
several documents has one time. So the server is asked what comes behind the token. If that is of a later time
the token is the last of its own, and the position right behind that time leaves nothing out and brings
nothing twice. Something of the same time means that the copy has a part of a transaction: no position says
that. A high water mark stands before all events of its time, which is the position.

By the token the server also tells whether it is one of this cluster and collection, and still in the oplog.
"""

from __future__ import annotations

import time
from contextlib import closing

import bson

from penstock.core.errors import AnotherSourceError, PositionGoneError, SourceError, StateError
from penstock.core.position import Lsn
from penstock.core.resume_token import ResumeToken
from penstock.core.stream import StreamId
from penstock.sources.mongodb.change_stream import ChangeBatch, ChangeStream, Place, StreamOptions, time_of
from penstock.sources.mongodb.connection import Client, query_errors
from penstock.sources.mongodb.control import position_now

_WAIT_MS, _WITHIN_S = 200, 60.0
_ROUTER = "isdbgrid"


def position_behind(client: Client, stream: StreamId, token: ResumeToken) -> Lsn:
    """From where on a collection's changes are those behind the token."""
    if token.time > position_now(client):
        raise AnotherSourceError(
            "OLake's table ends at a time that this cluster has not come to.",
            stream=str(stream),
            remedy="Connect to the cluster that OLake read from; or set `mode: cdc` to load anew.",
        )
    options = StreamOptions(collection=stream.name)
    place = Place(bson.encode({"_data": token.data}))
    try:
        with closing(ChangeStream(client[stream.namespace], options, place)) as changes:
            if token.kind == "mark":
                changes.read(_WAIT_MS)  # it looks where the token is by then
                return token.time
            if not _is_last_of_its_time(changes, token, sharded=_is_sharded(client)):
                raise StateError(
                    "OLake was stopped in the middle of a transaction: its table has a part of it.",
                    stream=str(stream),
                    remedy="Run OLake's sync once more, then migrate; or set `mode: cdc` to load anew.",
                )
    except PositionGoneError as error:
        raise PositionGoneError(
            error.message,
            stream=str(stream),
            remedy="Connect to the cluster that OLake read from; if its oplog no longer reaches back so far, "
            "set `mode: cdc` to load the collection anew.",
        ) from error
    return Lsn(token.time + 1)


def _is_last_of_its_time(changes: ChangeStream, token: ResumeToken, *, sharded: bool) -> bool:
    """A server that has anything left of an entry of its oplog hands it out before it waits for more. A
    router of several shards knows only by a later token."""
    batch = changes.read(_WAIT_MS)
    deadline = time.monotonic() + _WITHIN_S
    while not batch.rows and sharded and _time_of(batch) <= token.time:
        if time.monotonic() > deadline:
            raise SourceError(
                "The change stream does not come past the place where OLake ended.",
                remedy="Run the same command again; look whether all shards answer.",
            )
        batch = changes.read(_WAIT_MS)
    return not batch.rows or int(batch.parts[0].times[0]) > int(token.time)


def _time_of(batch: ChangeBatch) -> Lsn:
    return Lsn(0) if batch.place.token is None else time_of(batch.place.token)


def _is_sharded(client: Client) -> bool:
    with query_errors("asking what the server is"):
        return bool(client.admin.command("hello").get("msg") == _ROUTER)

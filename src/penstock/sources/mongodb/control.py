"""What Penstock keeps at a MongoDB: one small collection, `penstock.control`, in a database of its own.

| document | says |
|---|---|
| `{_id: "cluster", id: …}` | which cluster this is: a random id, made once |
| `{_id: "pipeline NAME", from: …, streams: […], …}` | a pipeline of that name follows these streams |

The server tells an ordinary user nothing that stays the same over elections, restarts and new members, and
is another one elsewhere: names of replica sets repeat. So a pipeline that goes on by a cluster time would not
notice that the url leads to another cluster, where the same time means nothing. A document does: it is
written with the concern of a majority, so no election takes it back, and is read so.

MongoDB keeps its oplog by size and age, for nobody in particular. A pipeline's document holds nothing back.
It says from which cluster time on the pipeline needs changes: that of its beginning, which may be where
tables of another tool end, then what all its lanes hold. So one that was killed before it had written
anything begins where it began; and as the document is there until the pipeline is torn down, a new beginning
is told from going on.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from datetime import UTC
from typing import Any

from bson import Timestamp
from pymongo import ReturnDocument, WriteConcern
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from penstock.core.errors import SourceError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.sources.mongodb.connection import Client, query_errors

DATABASE, COLLECTION = "penstock", "control"
ACTIONS = ("find", "insert", "update", "remove")
_CLUSTER = "cluster"
_FROM, _STREAMS, _MARKS = "from", "streams", "marks"
_MAJORITY = WriteConcern(w="majority")
_TRIES = 3


class Control:
    def __init__(self, client: Client) -> None:
        self._client = client
        found = client[DATABASE].get_collection(COLLECTION, write_concern=_MAJORITY)
        self.documents: Collection[dict[str, Any]] = found

    def cluster_id(self) -> str:
        """Of this cluster; made if it has none yet."""
        with query_errors(f"reading {DATABASE}.{COLLECTION}"):
            known = self.documents.find_one({"_id": _CLUSTER})
        return str((known or self.made(_CLUSTER, {"id": secrets.token_hex(8)}))["id"])

    def held_from(self, name: str) -> Lsn | None:
        """From where on a pipeline of this name needs the changes; None: there is none."""
        with query_errors(f"reading {DATABASE}.{COLLECTION}"):
            found = self.documents.find_one({"_id": document_id(name), _FROM: {"$exists": True}})
        return None if found is None else position_of(found[_FROM])

    def hold(self, name: str, position: Lsn) -> None:
        """Note that a pipeline of this name needs the changes from here on; it never goes back."""
        time = Timestamp(position >> 32, position & 0xFFFFFFFF)
        with query_errors(f"writing to {DATABASE}.{COLLECTION}"):
            self.documents.update_one({"_id": document_id(name)}, {"$max": {_FROM: time}}, upsert=True)

    def begin_anew(self, name: str) -> None:
        """The next beginning is a new one, at its own time."""
        with query_errors(f"writing to {DATABASE}.{COLLECTION}"):
            forgotten = {_FROM: "", _STREAMS: ""}
            self.documents.update_one({"_id": document_id(name)}, {"$unset": forgotten})

    def select(self, name: str, streams: Sequence[StreamId]) -> tuple[StreamId, ...]:
        """Note that the pipeline follows these streams too; those that it did not until now."""
        names = [str(stream) for stream in streams]
        with query_errors(f"writing to {DATABASE}.{COLLECTION}"):
            before = self.documents.find_one_and_update(
                {"_id": document_id(name)}, {"$addToSet": {_STREAMS: {"$each": names}}}, upsert=True
            )
        known = frozenset((before or {}).get(_STREAMS, ()))
        return tuple(stream for stream in streams if str(stream) not in known)

    def selected(self, name: str) -> tuple[StreamId, ...]:
        """All that the pipeline ever followed since its beginning."""
        with query_errors(f"reading {DATABASE}.{COLLECTION}"):
            found = self.documents.find_one({"_id": document_id(name)})
        return tuple(StreamId.parse(stream) for stream in (found or {}).get(_STREAMS, ()))

    def begin_at(self, name: str, position: Lsn, streams: Iterable[StreamId]) -> bool:
        """Have a pipeline that is yet to begin do so here, with these streams. False: one of this name has
        begun already, which a mark of its own tells."""
        time = Timestamp(position >> 32, position & 0xFFFFFFFF)
        begun = {_FROM: time, _STREAMS: sorted(map(str, streams))}
        not_begun = {"_id": document_id(name), _MARKS: {"$exists": False}}
        with query_errors(f"writing to {DATABASE}.{COLLECTION}"):
            try:
                self.documents.update_one(not_begun, {"$set": begun}, upsert=True)
            except DuplicateKeyError:
                return False
        return True

    def drop(self, name: str) -> bool:
        """False: there was none."""
        with query_errors(f"writing to {DATABASE}.{COLLECTION}"):
            before = self.documents.find_one_and_delete({"_id": document_id(name)})
        return _FROM in (before or {})

    def made(self, identifier: str, fields: dict[str, Any]) -> dict[str, Any]:
        """The document of this id, with these fields if it was not there; two may make it at a time."""
        with query_errors(f"writing to {DATABASE}.{COLLECTION}"):
            for _ in range(_TRIES):
                try:
                    found = self.documents.find_one_and_update(
                        {"_id": identifier},
                        {"$setOnInsert": fields},
                        upsert=True,
                        return_document=ReturnDocument.AFTER,
                    )
                except DuplicateKeyError:  # the other one was first
                    continue
                assert found is not None
                return dict(found)
        raise SourceError(
            f"The document {identifier} of {DATABASE}.{COLLECTION} could not be made.",
            remedy="Run the same command again.",
        )

    def mark(self, name: str) -> Lsn:
        """A cluster time behind everything that is committed now, of the pipeline's own document.

        It is that of a write of ours, which is in the oplog when this returns: a change stream comes past it
        without waiting for somebody else to write.
        """
        with query_errors(f"writing to {DATABASE}.{COLLECTION}"), self._client.start_session() as session:
            self.documents.update_one(
                {"_id": document_id(name)}, {"$inc": {_MARKS: 1}}, upsert=True, session=session
            )
            return position_of(session.operation_time)


def document_id(name: str) -> str:
    return f"pipeline {name}"


def cluster_time(client: Client) -> Lsn | None:
    """Of the last thing that the server knows of; None: it is of no replica set."""
    with query_errors("asking for the cluster time"):
        time = client.admin.command("hello").get("operationTime")
    return None if time is None else position_of(time)


def position_now(client: Client) -> Lsn:
    """The cluster time; of a server that has none, its clock."""
    time = cluster_time(client)
    if time is not None:
        return time
    with query_errors("asking for the time"):
        clock = client.admin.command("hello")["localTime"]
    return Lsn(int(clock.replace(tzinfo=UTC).timestamp()) << 32)


def position_of(time: Timestamp | None) -> Lsn:
    """A cluster time as 64 bits."""
    if time is None:
        raise SourceError(
            "The server has no cluster time: it is not of a replica set.",
            remedy="Start it with --replSet (a set of one member will do) and run rs.initiate() once.",
        )
    return Lsn(time.time << 32 | time.inc)

"""A capture of MongoDB that is set up without a process of its own, and what its change log comes to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bson.json_util import CANONICAL_JSON_OPTIONS, dumps, loads

from penstock.capture.server import CaptureServer
from penstock.capture.source_spec import MongoSpec
from penstock.capture.spec import CaptureSpec
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.log.reader import ChangeLog, read_rows
from penstock.sources.mongodb.replies import Source

WITHIN_S = 60.0


class Reader:
    """A capture that was set up, and reads to where the cluster is."""

    def __init__(self, server: CaptureServer, ended: list[dict[str, Any]]) -> None:
        self.server = server
        self._ended = ended

    def to_now(self) -> Lsn:
        target = Lsn.parse(self.server.carry_out("note_target", {}))
        self.server.carry_out("demand", {"target": str(target)})
        reading = self.server.reading
        assert reading is not None
        end = reading.sealed(target, WITHIN_S)
        assert end is not None, self._ended
        return end


@contextmanager
def started(spec: CaptureSpec) -> Iterator[Reader]:
    ended: list[dict[str, Any]] = []
    server = CaptureServer(spec, lambda event: ended.append(event) if event["event"] == "failed" else None)
    try:
        server.carry_out("start", {})
        yield Reader(server, ended)
    finally:
        server.stop()


def changes(spec: CaptureSpec, name: str, start: Lsn | None = None) -> list[dict[str, Any]]:
    log = ChangeLog(spec.log_directory)
    begin, end = start or log.start(), log.end()
    assert begin is not None
    assert end is not None
    stream = StreamId(database_of(spec), name)
    rows = [
        row for part in read_rows(log.files(stream, begin, end).files, begin, end) for row in part.to_pylist()
    ]
    places = [(row["_tx"], row["_op_index"]) for row in rows]
    assert places == sorted(set(places))
    return rows


def database_of(spec: CaptureSpec) -> str:
    assert isinstance(spec.source, MongoSpec)
    return spec.source.database


def applied(rows: list[dict[str, Any]], before: dict[str, str] | None = None) -> dict[str, str]:
    """What a table holds that had `before`: a text of each document by its key."""
    held = dict(before or {})
    for row in rows:
        if row["_op"] == "t":
            held.clear()
        elif row["_op"] == "d":
            held.pop(row["_old"]["__id"], None)
        elif not row["_unchanged"]:
            held[row["__id"]] = row["document"]
    return {key: canonical(loads(document)) for key, document in held.items()}


def canonical(document: Any) -> str:
    return dumps(document, json_options=CANONICAL_JSON_OPTIONS)


def present(database: Source, name: str) -> list[str]:
    return sorted(canonical(each) for each in database[name].find())

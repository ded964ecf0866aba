"""A MongoDB's changes from where the change log ends: a `LogReading`, as the set-up found it.

Where reading begins is a cluster time, and that is all there is to know: a position P has every event of an
earlier time and none of P or later, and a stream that is opened at P brings exactly those. While it is open
it goes on by the tokens that the server sends (`sources.mongodb.change_stream`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.capture.mongodb.collections import Collections
from penstock.capture.mongodb.decoder import ChangeDecoder
from penstock.capture.mongodb.selection import Selection
from penstock.capture.mongodb.stream import MongoStream
from penstock.capture.source_spec import MongoSpec
from penstock.capture.spec import Started
from penstock.core.position import Lsn
from penstock.log.manifest import Manifest
from penstock.sources.mongodb.change_stream import ChangeStream, Place, StreamOptions
from penstock.sources.mongodb.connection import Client, connect
from penstock.sources.mongodb.control import Control
from penstock.sources.mongodb.remembered import RememberedFields

CAPTURE_APPLICATION = "penstock capture"
_IMAGES_VERSION = (6, 0)


@dataclass(frozen=True, slots=True)
class MongoLog:
    started: Started
    newest: Manifest | None
    read_from: Lsn
    source: MongoSpec
    selection: Selection
    version: tuple[int, int, int]
    sharded: bool

    def decoder(self) -> ChangeDecoder:
        path = self.source.fields_path
        return ChangeDecoder(
            Collections(
                self.selection,
                lambda: connect(self.source.url, application_name="penstock catalog"),
                self.source.layout,
                None if path is None else RememberedFields(Path(path)),
            ),
            self.source.database,
            None if self.newest is None else self.newest.place,
        )

    def stream(self) -> MongoStream:
        client = connect(self.source.url, application_name=CAPTURE_APPLICATION)

        def open_stream(before: ChangeStream | None) -> ChangeStream:
            place = Place(at=int(self.read_from)) if before is None else before.place
            return opened(client, self.source, self.selection, self.version, place)

        try:
            return MongoStream(
                open_stream,
                self.selection,
                sharded=self.sharded,
                acknowledge=lambda position: Control(client).hold(self.source.name, position),
                on_close=client.close,
            )
        except BaseException:
            client.close()
            raise


def opened(
    client: Client, source: MongoSpec, selection: Selection, version: tuple[int, int, int], place: Place
) -> ChangeStream:
    """A stream of what is selected, from `place` on; `PositionGoneError` if the server has forgotten that."""
    has_images = version >= _IMAGES_VERSION
    options = StreamOptions(
        images="required" if has_images and selection.needs_images else "updateLookup",
        before="whenAvailable" if has_images and selection.wants_old else None,
        whole_cluster=not source.database,
        pipeline=selection.pipeline(),
        split_large=_can_split(version),
    )
    stream = ChangeStream(client[source.database or "admin"], options, place)
    try:
        stream.open()
    except BaseException:
        stream.close()
        raise
    return stream


def _can_split(version: tuple[int, int, int]) -> bool:
    """Whether the server sends events in fragments that are larger than a document may be."""
    return version >= (7, 0, 0) or (6, 0, 9) <= version < (6, 1, 0)

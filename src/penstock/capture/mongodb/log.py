"""A MongoDB's changes from where the change log ends: a `LogReading`, as the set-up found it.

Where reading begins is a cluster time, and that is all there is to know: a position P has every event of an
earlier time and none of P or later, and a stream that is opened at P brings exactly those. While it is open
it goes on by the tokens that the server sends (`sources.mongodb.change_stream`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from penstock.capture.mongodb.collections import Collections, Room
from penstock.capture.mongodb.decoder import ChangeDecoder
from penstock.capture.mongodb.merging import STREAMS_MAX, MergedStreams
from penstock.capture.mongodb.selection import Selection
from penstock.capture.mongodb.stream import LogCursor, MongoStream
from penstock.capture.source_spec import MongoSpec
from penstock.capture.spec import Started
from penstock.core.errors import SourceError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.log.manifest import Manifest
from penstock.sources.mongodb.change_stream import ChangeStream, Place, StreamOptions, stream_of
from penstock.sources.mongodb.connection import Client, connect
from penstock.sources.mongodb.control import Control
from penstock.sources.mongodb.remembered import RememberedFields
from penstock.sources.mongodb.rights import FOLLOW, Rights, Scope, read_rights

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
                Room(self.source.new_fields, self.source.names_taken),
            ),
            self.source.database,
            None if self.newest is None else self.newest.place,
        )

    def stream(self) -> MongoStream:
        """By the rights that the user has now: how it is read stays so while it is open."""
        client = connect(self.source.url, application_name=CAPTURE_APPLICATION)
        try:
            return MongoStream(
                self._opener(client, read_rights(client)),
                self.selection,
                sharded=self.sharded,
                acknowledge=lambda position: Control(client).hold(self.source.name, position),
                on_close=client.close,
            )
        except BaseException:
            client.close()
            raise

    def _opener(self, client: Client, rights: Rights) -> Callable[[LogCursor | None], LogCursor]:
        def open_stream(before: LogCursor | None) -> LogCursor:
            stream: ChangeStream | MergedStreams
            if rights.may(FOLLOW, self.source.database):
                stream = self._of_all(client, before)
            else:
                assert before is None or isinstance(before, MergedStreams), "rights are asked for once"
                stream = self._of_each(client, rights, before)
            try:
                stream.open()
            except BaseException:
                stream.close()
                raise
            return stream

        return open_stream

    def _of_all(self, client: Client, before: LogCursor | None) -> ChangeStream:
        """One stream of what is selected; `PositionGoneError` if the server has forgotten its place."""
        options = replace(self._options(), pipeline=self.selection.pipeline())
        place = self._begin if before is None else before.place
        return stream_of(client, Scope(self.source.database), options, place)

    def _of_each(self, client: Client, rights: Rights, before: MergedStreams | None) -> MergedStreams:
        """A stream for each collection that is selected."""
        options = self._options()
        making = {
            each: partial(
                stream_of,
                client,
                Scope(each.namespace, each.name),
                replace(options, pipeline=self.selection.pipeline_of(each)),
            )
            for each in self._followed_alone(rights)
        }
        return MergedStreams(making, self._begin, before, rests_between=not self.sharded)

    @property
    def _begin(self) -> Place:
        return Place(at=int(self.read_from))

    def _options(self) -> StreamOptions:
        has_images, selection = self.version >= _IMAGES_VERSION, self.selection
        return StreamOptions(
            images="required" if has_images and selection.needs_images else "updateLookup",
            before="whenAvailable" if has_images and selection.wants_old else None,
            split_large=_can_split(self.version),
        )

    def _followed_alone(self, rights: Rights) -> tuple[StreamId, ...]:
        """The collections that have a stream each, since there can be none of all. Where none is selected,
        any that may be followed: its marks say how far the log is."""
        followed = self.selection.streams or tuple(
            StreamId(each.database, each.collection)
            for each in rights.followable(self.source.database)
            if each.collection
        )
        whole = self.source.database or "cluster"
        if not followed or len(followed) > STREAMS_MAX or any(each.is_pattern for each in followed):
            raise SourceError(
                f"The user {rights.user} may not follow the changes of {whole} as a whole, and only up to "
                f"{STREAMS_MAX} collections that are named can be followed one by one.",
                remedy=f"Grant changeStream on {whole}, or name the collections instead of a pattern.",
            )
        return followed[:1] if not self.selection.streams else followed


def _can_split(version: tuple[int, int, int]) -> bool:
    """Whether the server sends events in fragments that are larger than a document may be."""
    return version >= (7, 0, 0) or (6, 0, 9) <= version < (6, 1, 0)

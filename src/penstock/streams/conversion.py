"""Changes to events: what the stream holds of them, where they go, and as which bytes.

The same for changes of the tail, of the log and for loaded rows. What a stream's events depend on is looked
up once for each version of its columns; the primary key is asked of the source then, since the log names the
columns that identify a row and not their order in the index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pyarrow as pa

from penstock.capture.transactions import ChangeRows
from penstock.config.streams import KafkaLaneConfig, KinesisLaneConfig
from penstock.core.errors import StateError
from penstock.core.stream import MESSAGES, StreamId
from penstock.log.reader import ChangeLog
from penstock.sources.tables import SourceTable
from penstock.streams.encoding.encoder import Encoder, encoder
from penstock.streams.encoding.view import MaskKind, StreamView
from penstock.streams.events import Events
from penstock.streams.followed import FollowedStream, followed_streams
from penstock.streams.notices import columns_told
from penstock.streams.routing import Router
from penstock.streams.selection import StreamSelection
from penstock.streams.settings import StreamSettings

_VIEWS_KEPT = 10_000


class Conversion:
    """Not for several threads. `look_up` gives a stream as the catalog has it now; None: it is gone."""

    def __init__(
        self,
        settings: StreamSettings,
        streams: Mapping[StreamId, FollowedStream],
        database: str,
        encoder: Encoder,
        router: Router,
        look_up: Callable[[StreamId], FollowedStream | None],
    ) -> None:
        self._settings = settings
        self._streams = dict(streams)
        self._database = database
        self._encoder = encoder
        self._router = router
        self._look_up = look_up
        self._selections = {
            name: StreamSelection(name, stream.selection, stream.table.schema.key)
            for name, stream in streams.items()
        }
        self._views: dict[tuple[StreamId, str], StreamView] = {}

    @classmethod
    def of_source(cls, settings: StreamSettings, streams: Mapping[StreamId, FollowedStream]) -> Conversion:
        def look_up(stream: StreamId) -> FollowedStream | None:
            return followed_streams(settings).get(stream)

        router = Router(settings.routes)
        return cls(settings, streams, settings.source.database, encoder(settings.encoding), router, look_up)

    def events(self, changes: ChangeRows) -> list[Events]:
        """What these changes are at the target, in their order."""
        if changes.stream == MESSAGES:
            return self._router.messages(changes, None, lambda rows: rows.new("prefix"))
        selection = self._selections[changes.stream]
        view = self._views.get((changes.stream, changes.schema_id))
        told: list[Events] = []
        if view is None:
            view = self._new_view(changes, selection)
            if (topic := self._settings.section.schema_changes) is not None:
                told.append(columns_told(changes, view.key, topic))
        actions = selection.actions(changes)
        if not self._router.sends_messages(changes.stream):
            return [*told, self._encoder.encode(changes, view, actions)]
        return [*told, *self._router.messages(changes, actions, partial(self._keys, view))]

    def undecided(self, changes: ChangeRows) -> tuple[int, ...]:
        """Transactions of which the stream's filter cannot tell what they are to it."""
        return () if changes.stream == MESSAGES else self._selections[changes.stream].undecided(changes)

    def _key_in_log(self, schema_id: str) -> tuple[str, ...]:
        try:
            return ChangeLog(self._settings.log_directory).schema(schema_id).key
        except StateError:
            return ()  # not sealed yet

    def _keys(self, view: StreamView, inserted: ChangeRows) -> pa.BinaryArray:
        return self._encoder.encode(inserted, view).key

    def _new_view(self, changes: ChangeRows, selection: StreamSelection) -> StreamView:
        stream = changes.stream
        if set(changes.version.types) != set(self._streams[stream].table.schema.names):
            self._streams[stream] = self._look_up(stream) or self._streams[stream]
        columns = selection.columns(changes)
        table = self._streams[stream].table
        now = {column.attribute_number: column.name for column in table.schema.columns}
        then = {now.get(each.attribute_number): name for name, each in changes.version.columns.items()}
        key = tuple(_name_then(name, changes, then) for name in _key(table))
        if not set(key) <= set(changes.version.types):
            key = self._key_in_log(changes.schema_id)  # renamed before capture could ask for its number
        settings = self._settings
        view = StreamView(
            stream,
            self._router.route(stream),
            columns,
            key=key if set(key) <= set(columns) else (),
            masks=_masks(settings.masks(stream), key, changes, then, table),
            tombstones=isinstance(settings.section, KafkaLaneConfig) and settings.section.tombstones,
            before=settings.section.before,
            row_keys=isinstance(settings.section, KinesisLaneConfig),
            prefix=settings.prefix,
            database=self._database,
        )
        while len(self._views) >= _VIEWS_KEPT:
            del self._views[next(iter(self._views))]
        self._views[stream, changes.schema_id] = view
        return view


def _key(table: SourceTable) -> tuple[str, ...]:
    """The primary key, if the source tells it of deleted rows too; else what it tells of them."""
    told = table.schema.key
    is_told = table.schema.replica_identity == "f" or set(table.primary_key) <= set(told)
    return table.primary_key if is_told else told


def _name_then(name: str, changes: ChangeRows, then: Mapping[str | None, str]) -> str:
    """What a column of the table was called when these changes were made."""
    return name if name in changes.version.types else then.get(name, name)


def _masks(
    masks: Sequence[tuple[str, MaskKind]],
    key: Sequence[str],
    changes: ChangeRows,
    then: Mapping[str | None, str],
    table: SourceTable,
) -> tuple[tuple[str, MaskKind], ...]:
    """The masks by the names that columns had then.

    Of a stream that has masks, a column that the table has no more is not shown: it may be a masked one under
    a name that nobody can tell from now. One that took over values of a masked one is masked as that is.
    """
    if not masks:
        return ()
    found: dict[str, MaskKind] = {_name_then(name, changes, then): kind for name, kind in masks}
    known = {_name_then(name, changes, then) for name in table.schema.names}
    for name in changes.version.types:
        if name not in known:
            found.setdefault(name, "sha256" if name in key else "null")
    for name, column in changes.version.columns.items():
        if column.moved_from in found:
            found.setdefault(name, found[column.moved_from])
    return tuple(sorted(found.items()))

"""The streams a lane is given: those of the pipeline that are read from the log, as the source has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.capture.remote import RemoteCapture
from penstock.capture.spec import Started
from penstock.config import StreamConfig
from penstock.core.errors import ConfigError
from penstock.core.selection import Selection
from penstock.core.stream import StreamId
from penstock.core.where import Condition, WhereError
from penstock.sources.tables import SourceTable
from penstock.sources.types import common_type
from penstock.streams.settings import StreamSettings


@dataclass(frozen=True, slots=True)
class FollowedStream:
    """`is_loaded`: the rows there are go first."""

    table: SourceTable
    selection: Selection
    full_identity: bool
    is_loaded: bool

    @property
    def id(self) -> StreamId:
        return self.table.stream


def followed_streams(settings: StreamSettings) -> dict[StreamId, FollowedStream]:
    """As the source has them now; an error that says what is wrong."""
    pipeline = settings.pipeline
    patterns = [stream.id for stream in pipeline.streams]
    tables = list(settings.source.tables(patterns))
    if pipeline.missing_streams([table.stream for table in tables]):
        tables += [table for table in settings.source.tables() if table not in tables]  # to name the nearest
    return chosen(settings, tables)


def join(capture: RemoteCapture, streams: Mapping[StreamId, FollowedStream]) -> Started:
    """Have capture read these for the lane."""
    return capture.join(list(streams), {name for name, stream in streams.items() if stream.full_identity})


def chosen(settings: StreamSettings, tables: Sequence[SourceTable]) -> dict[StreamId, FollowedStream]:
    by_name = {table.stream: table for table in tables}
    found = {
        stream.id: _followed(settings, stream, by_name[stream.id])
        for stream in settings.pipeline.resolve_streams(list(by_name))
        if stream.mode in ("cdc", "strict_cdc")
        and by_name[stream.id].can_be_captured
        and settings.wants(stream.id)
    }
    if not found:
        raise ConfigError(
            f"The lane {settings.lane} has no stream: none of the pipeline's that is read from the log "
            "matches its list.",
            remedy=f"Correct `lanes.{settings.lane}.streams`, or give a stream `mode: cdc`.",
        )
    _require_masks(settings, found)
    if missing := settings.outbox_tables - found.keys():
        raise ConfigError(
            f"The outbox table {min(missing)} is no stream of the lane {settings.lane}.",
            remedy="Have it among `streams`, with `mode: cdc`, and in the lane's own list if there is one.",
        )
    _require_outboxes(settings, found)
    return found


def _require_masks(settings: StreamSettings, streams: dict[StreamId, FollowedStream]) -> None:
    """A mask that is misspelt would send what it is to hide."""
    known = {
        f"{stream.id}.{column}": stream for stream in streams.values() for column in stream.table.schema.names
    }
    for place, kind in settings.section.mask.items():
        stream = known.get(place)
        if stream is None:
            raise ConfigError(
                f"`lanes.{settings.lane}.mask` names {place}, and no stream of the lane has that column.",
                remedy="Write schema.table.column as the source spells them; `penstock discover` lists them.",
            )
        if rest := _unmasked_rest(settings, stream):
            raise ConfigError(
                f"{rest} holds values that do not fit into their columns: what {place} is to hide could be "
                "there.",
                remedy=f"Mask {rest} too, or list the stream's `columns` without it.",
            )
        if kind != "sha256" and place.removeprefix(f"{stream.id}.") in stream.table.primary_key:
            raise ConfigError(
                f"{place} is part of the key: without it rows could not be told from each other.",
                remedy="Mask it by `sha256`, or not at all.",
            )


def _unmasked_rest(settings: StreamSettings, stream: FollowedStream) -> str:
    """The column of a stream, if it is sent as it is, into which values of all others may come."""
    held = stream.selection.columns or stream.table.schema.names
    rests = [each.name for each in stream.table.schema.columns if common_type(each).is_rest]
    sent = [f"{stream.id}.{name}" for name in rests if name in held]
    return next((place for place in sent if place not in settings.section.mask), "")


def _require_outboxes(settings: StreamSettings, streams: dict[StreamId, FollowedStream]) -> None:
    """Rows of an outbox table are sent as they are: they need their columns, and nothing hides a value."""
    for outbox in settings.routes.outbox:
        lacking = [name for name in outbox.columns if name not in streams[outbox.table].table.schema.names]
        if lacking:
            raise ConfigError(
                f"The outbox table {outbox.table} has no column {lacking[0]}.",
                remedy=f"Correct `lanes.{settings.lane}.outbox`.",
            )
        if settings.masks(outbox.table):
            raise ConfigError(
                f"`lanes.{settings.lane}.mask` names {outbox.table}, an outbox table, whose rows are sent as "
                "they are.",
                remedy="Take it out of `mask`, or do not send the table as an outbox.",
            )


def _followed(settings: StreamSettings, stream: StreamConfig, table: SourceTable) -> FollowedStream:
    try:
        condition = None if stream.where is None else Condition.compile(stream.where, table.schema.columns)
    except WhereError as error:
        raise ConfigError(
            "The stream's `where` does not fit the table.",
            stream=stream.table,
            detail=str(error),
            remedy="Change `where` in the pipeline file.",
        ) from error
    return FollowedStream(
        table,
        Selection(tuple(stream.columns or ()), condition),
        stream.replica_identity == "full",
        stream.mode == "cdc"
        and settings.section.snapshot == "initial"
        and stream.id not in settings.outbox_tables,
    )

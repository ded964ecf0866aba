"""From the pipeline file and the catalog to the streams a sync works on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from penstock.config import Config, StreamConfig
from penstock.core.errors import SourceError
from penstock.core.selection import Selection
from penstock.core.where import Condition
from penstock.lake.lane_state import LaneStream
from penstock.sources.base import Catalog
from penstock.sources.cursor import CursorChoice
from penstock.sources.finding import Finding, StreamNeed
from penstock.sources.open import open_source
from penstock.sources.tables import SourceTable


def resolve_from_source(
    config: Config, *, at_replica: bool = False, some_may_be_gone: bool = False
) -> list[LaneStream]:
    """The configured streams with their tables as they are now; an error that names all that is wrong.

    `at_replica`: as they are where tables are read, if that is another server. `some_may_be_gone`: without
    tables that the file names and that are not there, for work in the midst of which one is dropped.
    """
    patterns = [stream.id for stream in config.streams]
    catalog = open_source(config.source).catalog(patterns, at_replica=at_replica)
    return resolve(config, catalog, some_may_be_gone=some_may_be_gone)


def resolve(config: Config, catalog: Catalog, *, some_may_be_gone: bool = False) -> list[LaneStream]:
    named = {stream.id for stream in config.streams if not stream.id.is_pattern}
    by_name = {table.stream: table for table in catalog.tables}
    # What a wildcard brings in and the log cannot carry (foreign, unlogged) is left out; `check` says so.
    chosen = [
        stream
        for stream in config.resolve_streams(list(by_name), some_may_be_gone=some_may_be_gone)
        if stream.id in named or not _reads_log(stream) or by_name[stream.id].can_be_captured
    ]
    findings = catalog.check(stream_needs(config, chosen))
    if errors := [each for each in findings if each.level == "error" and not each.is_waited_for]:
        raise _unfit(errors)
    return [_lane_stream(each, by_name[each.id]) for each in chosen]


def _lane_stream(stream: StreamConfig, table: SourceTable) -> LaneStream:
    if stream.mode == "incremental" and not table.schema.key:
        # Without a log it does not matter by which columns that would name a row.
        table = replace(table, schema=replace(table.schema, key=table.primary_key))
    where = stream.where
    condition = None if where is None else Condition.compile(where, table.schema.columns)
    selection = Selection(tuple(stream.columns or ()), condition)
    return LaneStream(
        replace(table, schema=selection.of(table.schema)),
        stream.mode,
        stream.write,
        dict(stream.rename),
        stream.replica_identity == "full",
        dict(stream.types),
        selection,
        _cursor(stream),
        stream.on_schema_change,
        stream.deletes == "soft",
        stream.iceberg.options,
        stream.resume == "per_chunk",
    )


def _reads_log(stream: StreamConfig) -> bool:
    return stream.mode in ("cdc", "strict_cdc")


def _cursor(stream: StreamConfig) -> CursorChoice | None:
    return None if stream.cursor is None else CursorChoice(stream.cursor, stream.lookback or ())


def stream_needs(config: Config, streams: Iterable[StreamConfig]) -> list[StreamNeed]:
    """What these streams need of the source; whether they are named themselves, the file says."""
    named = {stream.id for stream in config.streams if not stream.id.is_pattern}
    source = config.source
    at_replica = source.type == "postgres" and source.replica_url is not None
    return [_need(stream, by_pattern=stream.id not in named, at_replica=at_replica) for stream in streams]


def _need(stream: StreamConfig, *, by_pattern: bool, at_replica: bool) -> StreamNeed:
    identity = "full" if stream.replica_identity == "full" else "default"
    return StreamNeed(
        stream.id,
        stream.mode,
        stream.write,
        identity,
        stream.deletes,
        rename=dict(stream.rename),
        types=dict(stream.types),
        by_pattern=by_pattern,
        at_replica=at_replica,
        columns=tuple(stream.columns or ()),
        where=stream.where,
        cursor=_cursor(stream),
        options=stream.iceberg.options,
    )


def _unfit(findings: Sequence[Finding]) -> SourceError:
    if len(findings) == 1:
        [only] = findings
        return SourceError(only.message, remedy=only.remedy, stream=only.stream)
    # Each remedy under its own stream: they are seldom the same.
    detail = "\n".join(f"{each.stream}: {each.message}\n  What to do: {each.remedy}" for each in findings)
    count = len({each.stream for each in findings})
    what = f"{count} streams" if count > 1 else "A stream"
    return SourceError(
        f"{what} cannot be synced as the source is now.",
        detail=detail,
        remedy="Mend each as said above, or leave it out of `streams`; `penstock check` shows all at once.",
    )

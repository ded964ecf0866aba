"""From the pipeline file and the catalog to the streams a sync works on."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.config import Config, StreamConfig
from penstock.core.errors import SourceError
from penstock.lake.lane_state import LaneStream
from penstock.sources.postgres.catalog import TableInfo, discover
from penstock.sources.postgres.check_streams import check_streams
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.finding import Finding, StreamNeed
from penstock.sources.postgres.publication import PublicationInfo, read_publication


def resolve_from_source(config: Config) -> list[LaneStream]:
    """The configured streams with their tables as they are now; an error that names all that is wrong."""
    with connect(config.source.url.get_secret_value()) as connection:
        patterns = [stream.id for stream in config.streams]
        tables = discover(connection, patterns)
        if not {name for name in patterns if not name.is_pattern} <= {table.stream for table in tables}:
            tables += [table for table in discover(connection) if table not in tables]  # to name the nearest
        publication = read_publication(connection, config.source.publication)
        return resolve(config, tables, publication, connection.info.user)


def resolve(
    config: Config, tables: Sequence[TableInfo], publication: PublicationInfo | None, role: str
) -> list[LaneStream]:
    named = {stream.id for stream in config.streams if not stream.id.is_pattern}
    by_name = {table.stream: table for table in tables}
    # What a wildcard brings in and the log cannot carry (foreign, unlogged) is left out; `check` says so.
    chosen = [
        stream
        for stream in config.resolve_streams(list(by_name))
        if stream.id in named or stream.mode == "full_refresh" or by_name[stream.id].can_be_captured
    ]
    findings = check_streams(
        [stream_need(stream) for stream in chosen],
        tables,
        config.source.publication,
        publication,
        mode=config.source.publication_mode,
        role=role,
    )
    if errors := [finding for finding in findings if finding.level == "error"]:
        raise _unfit(errors)
    return [
        LaneStream(
            by_name[each.id], each.mode, each.write, dict(each.rename), each.replica_identity == "full"
        )
        for each in chosen
    ]


def stream_need(stream: StreamConfig) -> StreamNeed:
    identity = "full" if stream.replica_identity == "full" else "default"
    return StreamNeed(stream.id, stream.mode, stream.write, identity, rename=dict(stream.rename))


def _unfit(findings: Sequence[Finding]) -> SourceError:
    first, *others = findings
    detail = "\n".join(f"{each.stream}: {each.message} {each.remedy}" for each in others)
    return SourceError(first.message, remedy=first.remedy, stream=first.stream, detail=detail)

"""What capture is told: the one place where keys of the pipeline file become a `CaptureSpec`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from penstock.capture.source_spec import MongoSpec, MysqlSpec, PostgresSpec, SourceSpec
from penstock.capture.spec import LAKE_LANE, SYNC_HEARTBEAT_S, CaptureSpec, ServiceSpec
from penstock.config import Config
from penstock.config.shapes import SHAPES_LANE
from penstock.core.errors import ConfigError
from penstock.core.stream import StreamId
from penstock.ledger.lanes import LANES_FILE


def spec_of(
    config: Config,
    streams: Sequence[StreamId] = (),
    full_identity: Collection[StreamId] = (),
    *,
    service: ServiceSpec | None = None,
) -> CaptureSpec:
    """For a bounded sync, which is the lake's, the streams are given; with a `service`, lanes name theirs
    when they join."""
    return CaptureSpec(
        source=_source(config),
        log_directory=config.state / "log",
        checkpoint_path=config.checkpoint.path or config.state / "checkpoint.json",
        streams=tuple(streams),
        full_identity=frozenset(full_identity),
        step_bytes_max=int(config.log.step_bytes_max),
        lanes=dict.fromkeys([LAKE_LANE] if service is None else lanes_of(config)),
        renewable=frozenset({SHAPES_LANE}),
        service=service,
        heartbeat_s=SYNC_HEARTBEAT_S if service is None else config.run.heartbeat.total_seconds(),
        seal_every_s=config.log.seal_every.total_seconds(),
        tail_bytes_max=int(config.log.tail_bytes_max),
        log_retention_s=config.log.retention.total_seconds(),
        acknowledge_at=config.wal.acknowledge,
        wal_max_retained=int(config.wal.max_retained),
        on_wal_pressure=config.wal.on_wal_pressure,
        checkpoint_interval_s=config.checkpoint.interval.total_seconds(),
        checkpoint_history=config.checkpoint.history,
        lanes_path=config.state / LANES_FILE,
    )


def require_postgres(config: Config, what: str) -> None:
    """That the source is one for which there is all of it: before anything is begun."""
    if config.source.type != "postgres":
        raise ConfigError(
            f"{what} is not available yet for a source of type {config.source.type}.",
            remedy="`penstock sync` is; for the rest wait for the version that brings it, CHANGELOG.md says "
            "what there is today.",
        )


def _source(config: Config) -> SourceSpec:
    source = config.source
    if source.type == "mysql":
        return MysqlSpec(source.url.get_secret_value(), source.name, source.replica_id)
    if source.type == "mongodb":
        path = source.fields_path
        return MongoSpec(
            source.url.get_secret_value(),
            source.name,
            source.database_read,
            source.layout,
            None if path is None else str(path),
            source.new_fields,
            tuple(sorted({name for stream in config.streams for name in stream.rename.values()})),
        )
    replica = source.replica_url
    return PostgresSpec(
        source.url.get_secret_value(),
        source.slot,
        source.publication,
        source.publication_mode,
        failover=source.failover,
        replica_url=None if replica is None else replica.get_secret_value(),
        replica_wait_s=config.loading.replica_wait.total_seconds(),
        messages=_messages(config),
    )


def _messages(config: Config) -> tuple[str, ...]:
    """Which emitted messages some lane wants; a bounded sync keeps them for lanes that run later."""
    wanted = (lane.messages for lane in config.lanes.streams.values())
    return tuple(sorted({prefix for each in wanted if each is not None for prefix in each.prefixes}))


def lanes_of(config: Config) -> tuple[str, ...]:
    """The lanes that the pipeline file has."""
    shapes = () if config.lanes.shapes is None else (SHAPES_LANE,)
    return LAKE_LANE, *shapes, *config.lanes.streams


def service_of(config: Config, socket_directory: Path) -> ServiceSpec:
    """Where capture answers: a socket in `socket_directory`, which is this user's alone, or as configured."""
    tail = config.tail
    if tail.listen == "unix":
        return ServiceSpec(f"grpc+unix://{socket_directory / 'capture'}")
    assert tail.certificate is not None
    assert tail.key is not None
    assert tail.token is not None
    return ServiceSpec(
        f"grpc+tls://{tail.listen}",
        token=tail.token.get_secret_value(),
        certificate=str(tail.certificate),
        key=str(tail.key),
    )

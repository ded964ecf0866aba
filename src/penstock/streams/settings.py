"""What a stream lane is told: its section of the pipeline file, and where it lives.

The process reads the pipeline file itself, so that no secret travels.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from penstock.config import Config
from penstock.config.streams import KafkaLaneConfig, StreamLaneConfig
from penstock.core.stream import MESSAGES, StreamId
from penstock.sources.base import Source
from penstock.sources.open import open_source
from penstock.streams.encoding.encoder import EncodingSettings, RegistrySettings
from penstock.streams.encoding.view import MaskKind
from penstock.streams.loading import LoadSettings
from penstock.streams.messages import EmittedRoute
from penstock.streams.notices import SCHEMA_CHANGES, TRANSACTIONS
from penstock.streams.orders import lane_directory
from penstock.streams.routing import DEFAULT_TOPIC, Outbox, Routes

LOAD_CONNECTIONS = 2
_STOP_PART, _STOP_S_MAX = 0.25, 10.0


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """`directory`: this lane's own, for dead letters, orders and checkpoints. `path`: the pipeline file."""

    lane: str
    pipeline: Config
    section: StreamLaneConfig
    path: Path | None = None

    @classmethod
    def of_pipeline(cls, pipeline: Config, lane: str, path: Path | None = None) -> StreamSettings:
        return cls(lane, pipeline, pipeline.lanes.streams[lane], path)

    def with_streams_of_now(self) -> StreamSettings:
        """With the streams that the file has now; whatever else it says counts from the next start on."""
        if self.path is None:
            return self
        now = Config.load(self.path)
        lane = now.lanes.streams.get(self.lane, self.section)
        return replace(
            self,
            pipeline=self.pipeline.model_copy(update={"streams": now.streams, "exclude": now.exclude}),
            section=self.section.model_copy(update={"streams": lane.streams}),
        )

    @property
    def source(self) -> Source:
        return open_source(self.pipeline.source, f"penstock {self.lane}")

    @property
    def log_directory(self) -> Path:
        return self.pipeline.state / "log"

    @property
    def directory(self) -> Path:
        return lane_directory(self.pipeline.state, self.lane)

    @property
    def prefix(self) -> str:
        return self.section.prefix or self.source.name

    @property
    def identity(self) -> str:
        return self.section.identity or self.source.name

    @property
    def drain_s(self) -> float:
        """How long the end may take for what is under way to the target."""
        return min(_STOP_PART * self.pipeline.run.stop_timeout.total_seconds(), _STOP_S_MAX)

    @property
    def encoding(self) -> EncodingSettings:
        section = self.section
        registry = section.schema_registry if isinstance(section, KafkaLaneConfig) else None
        salt, choices = section.mask_salt, section.debezium
        return EncodingSettings(
            format=section.format,
            registry=None
            if registry is None
            else RegistrySettings(
                registry.url,
                registry.username or "",
                "" if registry.password is None else registry.password.get_secret_value(),
                "" if registry.ca is None else str(registry.ca),
            ),
            decimals=choices.decimals,
            times=choices.times,
            intervals=choices.intervals,
            binary=choices.binary,
            schemas=choices.schemas,
            mask_salt="" if salt is None else salt.get_secret_value(),
        )

    def key_form(self, stream: str) -> str:
        """What keys of a stream's events are made by: others are other bytes for the same key."""
        of, encoding = StreamId.parse(stream), self.encoding
        if of in (MESSAGES, SCHEMA_CHANGES, TRANSACTIONS):
            return ""  # names, in every format
        form: list[object] = [encoding.format]
        if encoding.format != "json":
            form += [self.prefix, encoding.schemas, *astuple(encoding.modes)]
            form += [] if encoding.registry is None else [encoding.registry.url]
        # A column of the key can be hashed only.
        if hashed := [name for name, kind in self.masks(of) if kind == "sha256"]:
            form += [hashed, encoding.mask_salt]
        return hashlib.sha256(json.dumps(form).encode()).hexdigest()

    @property
    def loading(self) -> LoadSettings:
        load = self.pipeline.loading
        connections = load.parallel or LOAD_CONNECTIONS
        source = open_source(self.pipeline.source, "penstock load")
        return LoadSettings(
            source,
            source.reading(),
            connections=connections,
            rows_per_second=load.rows_per_second,
        )

    @property
    def routes(self) -> Routes:
        section = self.section
        outbox = tuple(
            Outbox(
                StreamId.parse(each.table),
                each.topic,
                each.payload,
                each.key,
                (*([("type", each.type)] if each.type else []), *((name, name) for name in each.headers)),
            )
            for each in section.outbox
        )
        wanted = section.messages
        emitted = None if wanted is None else EmittedRoute(tuple(wanted.prefixes), wanted.topic)
        topic = section.topic if isinstance(section, KafkaLaneConfig) else DEFAULT_TOPIC
        return Routes(self.prefix, topic, outbox, emitted)

    @property
    def outbox_tables(self) -> frozenset[StreamId]:
        return frozenset(StreamId.parse(each.table) for each in self.section.outbox)

    def wants(self, stream: StreamId) -> bool:
        """Whether the lane's own list has the stream."""
        patterns = self.section.streams
        return patterns is None or any(StreamId.parse(pattern).matches(stream) for pattern in patterns)

    def masks(self, stream: StreamId) -> tuple[tuple[str, MaskKind], ...]:
        """The stream's columns that are not sent as they are."""
        before = f"{stream}."
        return tuple(
            (name.removeprefix(before), kind)
            for name, kind in sorted(self.section.mask.items())
            if name.startswith(before)
        )

"""`lanes`: who is given every change, a section for each."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field, field_validator

from penstock.config.base import Section
from penstock.config.shapes import ShapesConfig
from penstock.config.streams import (
    STREAM_LANES,
    FileLaneConfig,
    KafkaLaneConfig,
    KinesisLaneConfig,
    StreamLaneConfig,
)
from penstock.config.values import ByteSize, Pause

_MIB = 1024 * 1024


class LakeLaneConfig(Section):
    """How `penstock run` keeps the tables up."""

    every: Pause = timedelta(seconds=10)
    """Changes are committed to the tables about so often."""
    max_bytes: ByteSize = Field(default=ByteSize(64 * _MIB), ge=_MIB)
    """Sooner, if so many bytes of the change log wait."""
    refresh_every: Pause = timedelta(hours=1)
    """How often streams that do not read the log are read: `full_refresh` anew, `incremental` on."""


class LanesConfig(Section):
    """Who is given every change."""

    lake: LakeLaneConfig = LakeLaneConfig()
    shapes: ShapesConfig | None = None
    kafka: KafkaLaneConfig | None = None
    kinesis: KinesisLaneConfig | None = None
    file: FileLaneConfig | None = None

    @property
    def streams(self) -> dict[str, StreamLaneConfig]:
        """The stream lanes that the pipeline file has, by name."""
        lanes = {name: getattr(self, name) for name in STREAM_LANES}
        return {name: lane for name, lane in lanes.items() if lane is not None}

    @field_validator("shapes", *STREAM_LANES, mode="before")
    @classmethod
    def _named_is_wanted(cls, lane: object) -> object:
        # A lane whose lines are all commented out reads as null; its name stands there all the same.
        return {} if lane is None else lane

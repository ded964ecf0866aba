"""The pipeline file as models: what each key means, its default, and which streams it names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, field_validator

from penstock.config.document import Document, read_document
from penstock.config.problems import Problem, config_error, problems_of
from penstock.config.selection import choose, unmatched
from penstock.config.substitution import substitute_all
from penstock.config.unavailable import REMEDY, unavailable
from penstock.config.values import (
    ByteSize,
    Duration,
    Identifier,
    LocalPath,
    PostgresUrl,
    SlotName,
    SparkValue,
    StreamPattern,
)
from penstock.core.stream import StreamId

_MIB = 1024 * 1024


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class SourceConfig(_Section):
    type: Literal["postgres"]
    url: PostgresUrl
    slot: SlotName = "penstock"
    publication: Identifier = "penstock"
    #: manual: Penstock neither creates nor changes the publication, and says what is missing in it.
    publication_mode: Literal["auto", "manual"] = "auto"


class DestinationConfig(_Section):
    type: Literal["parquet"]
    path: LocalPath


class StreamConfig(_Section):
    """One stream, or a pattern that stands for several."""

    table: StreamPattern
    mode: Literal["cdc", "full_refresh"] = "cdc"
    write: Literal["upsert", "append"] = "upsert"
    #: full: have the source send whole old rows (REPLICA IDENTITY FULL is set on the table).
    replica_identity: Literal["none", "full"] = "none"
    #: source column → name in the destination
    rename: dict[str, Annotated[str, Field(min_length=1)]] = {}

    @property
    def id(self) -> StreamId:
        return StreamId.parse(self.table)

    @field_validator("rename")
    @classmethod
    def _renames_are_distinct(cls, rename: dict[str, str]) -> dict[str, str]:
        if len(set(rename.values())) != len(rename):
            raise ValueError("gives the same new name to two columns")
        return rename


class SparkConfig(_Section):
    master: str = "local[*]"
    conf: dict[str, SparkValue] = {}


class LogConfig(_Section):
    """The change log. A step is kept until every lane holds it, then for `retention`."""

    retention: Duration = timedelta(days=7)
    step_bytes_max: ByteSize = Field(default=ByteSize(64 * _MIB), ge=_MIB)


class ReadersConfig(_Section):
    #: How long a superseded version of a table stays for readers that have opened it.
    grace: Duration = timedelta(hours=1)


class LoadConfig(_Section):
    method: Literal["ctid", "key"] = "ctid"
    rows_per_chunk: PositiveInt = 500_000
    #: Chunks read at the same time, each on a connection of its own; None: as many as Spark has cores.
    parallel: PositiveInt | None = None


class Config(_Section):
    source: SourceConfig
    destination: DestinationConfig
    state: LocalPath
    streams: Annotated[list[StreamConfig], Field(min_length=1)]
    exclude: list[StreamPattern] = []
    spark: SparkConfig = SparkConfig()
    log: LogConfig = LogConfig()
    readers: ReadersConfig = ReadersConfig()
    #: `load:` in the file; the name is taken by the function below.
    loading: LoadConfig = Field(default=LoadConfig(), alias="load")
    #: Always empty: see `unavailable`.
    lanes: dict[str, Any] = {}

    @classmethod
    def load(cls, path: str | Path, environment: Mapping[str, str] | None = None) -> Config:
        """Read the pipeline file; a `ConfigError` names all that is wrong with it."""
        return cls.from_document(read_document(Path(path)), environment)

    @classmethod
    def from_document(cls, document: Document, environment: Mapping[str, str] | None = None) -> Config:
        directory = document.path.resolve().parent
        variables = os.environ if environment is None else environment
        values, unfilled = substitute_all(document.values, variables, directory)
        if unfilled:
            remedy = "Set the variable or create the file, or give a default: ${VARIABLE:-default}."
            raise config_error(document, unfilled, remedy)
        if too_early := unavailable(values):
            raise config_error(document, too_early, REMEDY)
        try:
            config = cls.model_validate(_spelled_out(values), context={"directory": directory})
        except ValidationError as error:
            raise config_error(document, problems_of(error, cls)) from None
        if contradictions := _contradictions(config):
            raise config_error(document, contradictions)
        return config

    def resolve_streams(self, available: Sequence[StreamId]) -> list[StreamConfig]:
        """The streams this pipeline has, given the tables there are; patterns replaced by names."""
        exclude = [StreamId.parse(pattern) for pattern in self.exclude]
        chosen = choose([stream.id for stream in self.streams], exclude, available)
        return [
            self.streams[index].model_copy(update={"table": str(stream)}) for stream, index in chosen.items()
        ]

    def unmatched_patterns(self, available: Sequence[StreamId]) -> list[StreamId]:
        """Patterns of `streams` that match no table."""
        return unmatched([stream.id for stream in self.streams], available)


def _spelled_out(values: dict[str, Any]) -> dict[str, Any]:
    """The file with its short forms written long: a stream as a mapping, an empty section left out."""
    # A section whose lines are all commented out reads as null.
    spelled_out = {key: value for key, value in values.items() if value is not None}
    streams = spelled_out.get("streams")
    if isinstance(streams, list):
        spelled_out["streams"] = [{"table": item} if isinstance(item, str) else item for item in streams]
    return spelled_out


def _contradictions(config: Config) -> list[Problem]:
    problems: list[Problem] = []
    seen: set[str] = set()
    for index, stream in enumerate(config.streams):
        if stream.table in seen:
            problems.append((("streams", index), f"{stream.table} is listed twice."))
        if stream.table in config.exclude:
            problems.append((("streams", index), f"{stream.table} is also in `exclude`."))
        seen.add(stream.table)
    if config.state.is_relative_to(config.destination.path):
        # Whoever reads all Parquet files below the destination would read the change log too.
        problems.append((("state",), "lies inside `destination.path`; give it a directory beside it."))
    return problems

"""The pipeline file as one model: its sections, which streams they name, and what contradicts itself."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from penstock.config.base import Section
from penstock.config.console import ConsoleConfig
from penstock.config.destination import DestinationConfig
from penstock.config.document import Document, Location, read_document
from penstock.config.lanes import LanesConfig
from penstock.config.problems import Problem, config_error, problems_of
from penstock.config.sections import (
    CheckpointConfig,
    LoadConfig,
    LogConfig,
    MaintenanceConfig,
    ReadersConfig,
    RunConfig,
    SparkConfig,
    StreamConfig,
    TailConfig,
    VerifyConfig,
    WalConfig,
)
from penstock.config.selection import choose, choose_of_those_there, not_there, unmatched
from penstock.config.source import SourceConfig
from penstock.config.substitution import substitute_all
from penstock.config.unavailable import REMEDY, unavailable
from penstock.config.values import LocalPath, StreamPattern
from penstock.core.errors import ConfigError
from penstock.core.stream import StreamId


class Config(Section):
    source: Annotated[SourceConfig, Field(discriminator="type")]
    """Where changes come from, by its `type`."""
    destination: DestinationConfig
    state: LocalPath
    """A directory for the state file, checkpoints and the change log; not inside the destination's."""
    streams: Annotated[list[StreamConfig], Field(min_length=1)]
    """Stream ids, or mappings as below. A table named exactly is governed by that entry, else by the last
    pattern that matches it."""
    exclude: list[StreamPattern] = Field(default=[])
    """Taken out of what patterns match; never what `streams` names exactly."""
    spark: SparkConfig = SparkConfig()
    log: LogConfig = LogConfig()
    readers: ReadersConfig = ReadersConfig()
    maintenance: MaintenanceConfig = MaintenanceConfig()
    # `load:` in the file; the name is taken by the function below.
    loading: LoadConfig = Field(default=LoadConfig(), alias="load")
    wal: WalConfig = WalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    lanes: LanesConfig = LanesConfig()
    tail: TailConfig = TailConfig()
    run: RunConfig = RunConfig()
    console: ConsoleConfig = ConsoleConfig()
    verify: VerifyConfig = VerifyConfig()

    @model_validator(mode="after")
    def _source_has_its_file(self) -> Config:
        if self.source.type == "mongodb":
            self.source.remembering_at(self.state)
        return self

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

    def resolve_streams(
        self, available: Sequence[StreamId], *, some_may_be_gone: bool = False
    ) -> list[StreamConfig]:
        """The streams this pipeline has, given the tables there are; patterns replaced by names.

        An error if one that is named is not there, or if none is, unless `some_may_be_gone`.
        """
        exclude = [StreamId.parse(pattern) for pattern in self.exclude]
        found = choose_of_those_there if some_may_be_gone else choose
        chosen = found([stream.id for stream in self.streams], exclude, available)
        return [
            self.streams[index].model_copy(update={"table": str(stream)}) for stream, index in chosen.items()
        ]

    def missing_streams(self, available: Sequence[StreamId]) -> list[ConfigError]:
        """An error for each stream that `streams` names exactly and that is not there."""
        named = [stream.id for stream in self.streams if not stream.id.is_pattern]
        return [not_there(stream, available) for stream in named if stream not in set(available)]

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
        problems += _mode_contradictions(stream, index)
        if stream.table in config.exclude:
            problems.append((("streams", index), f"{stream.table} is also in `exclude`."))
        problems += _table_contradictions(config, index)
        seen.add(stream.table)
    for lane, section in config.lanes.streams.items():
        if section.messages is not None and config.source.type != "postgres":
            wrong = "is for messages that applications emit at Postgres (`pg_logical_emit_message`)."
            problems.append((("lanes", lane, "messages"), wrong))
    if config.destination.type == "parquet" and "maintenance" in config.model_fields_set:
        problems.append((("maintenance",), "is for Iceberg tables: Parquet tables need none."))
    if config.state.is_relative_to(config.destination.directory):
        # Whoever reads all Parquet files below the destination would read the change log too.
        problems.append((("state",), "lies inside the destination's directory; give it one beside it."))
    return problems


def _mode_contradictions(stream: StreamConfig, index: int) -> list[Problem]:
    """What does not go with the stream's mode, or with how it is written."""
    problems: list[Problem] = []
    if stream.mode == "incremental" and stream.cursor is None:
        problems.append((("streams", index), "`mode: incremental` needs a `cursor`: a column that rises."))
    for key in ("cursor", "lookback"):
        if stream.mode != "incremental" and getattr(stream, key) is not None:
            problems.append((("streams", index, key), f"`{key}` is for `mode: incremental` alone."))
    if stream.mode != "full_refresh" and stream.resume == "per_chunk":
        problems.append((("streams", index, "resume"), "`per_chunk` is for `mode: full_refresh` alone."))
    if stream.deletes == "soft" and stream.write == "append":
        problems.append(
            (("streams", index, "deletes"), "`soft` is for `write: upsert`: `append` keeps every delete.")
        )
    if stream.deletes == "soft" and stream.mode in ("full_refresh", "incremental"):
        message = f"`soft` needs `mode: cdc` or `strict_cdc`: `{stream.mode}` does not see deletes."
        problems.append((("streams", index, "deletes"), message))
    return problems


def _table_contradictions(config: Config, index: int) -> list[Problem]:
    stream, destination = config.streams[index], config.destination
    place: Location = ("streams", index, "iceberg")
    if destination.type == "parquet" and "iceberg" in stream.model_fields_set:
        return [(place, "has no meaning for parquet tables.")]
    location = stream.iceberg.location
    if location is None:
        return []
    place = (*place, "location")
    if stream.id.is_pattern:
        return [(place, "is for a stream that is named exactly: two tables cannot share a directory.")]
    if destination.catalog.type == "hadoop":
        return [(place, "cannot be chosen: a catalog of type hadoop is its directories.")]
    others = [other.iceberg.location for other in config.streams[:index]]
    taken = [other for other in (config.state, destination.directory, *others) if other is not None]
    if any(_overlap(location, other) for other in taken):
        # What nobody refers to is removed from a table's directory: it must hold nothing but the table.
        wrong = "lies in or holds the warehouse, or overlaps with the state or another table's location."
        return [(place, wrong)]
    return []


def _overlap(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)

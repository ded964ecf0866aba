"""The pipeline file as models: what each key means, its default, and which streams it names.

The docstring below a key is its line in docs/reference/configuration.md.
"""

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
    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )


class SourceConfig(_Section):
    """Where changes come from."""

    type: Literal["postgres"]
    """The kind of database."""
    url: PostgresUrl
    """`postgresql://user:${PGPASSWORD}@host:5432/database`, straight to the server and not to a pooler."""
    slot: SlotName = "penstock"
    """The replication slot, created at the first sync. One pipeline, one slot."""
    publication: Identifier = "penstock"
    """The publication, created at the first sync; tables are added to it as streams are."""
    publication_mode: Literal["auto", "manual"] = "auto"
    """`manual`: Penstock neither creates nor changes the publication, and says what is missing in it."""


class DestinationConfig(_Section):
    """Where tables go."""

    type: Literal["parquet"]
    """The kind of table."""
    path: LocalPath
    """A directory; a table is `<path>/<schema>/<table>`."""


class StreamConfig(_Section):
    """One stream, or a pattern that stands for several."""

    table: StreamPattern
    """`schema.table` as the source spells it, without quotes; the first dot separates, `*` matches."""
    mode: Literal["cdc", "full_refresh"] = "cdc"
    """`cdc`: loaded once, then followed through the log. `full_refresh`: read whole at every sync."""
    write: Literal["upsert", "append"] = "upsert"
    """`upsert`: the last state of every row. `append`: every change as a row of its own."""
    replica_identity: Literal["none", "full"] = "none"
    """`full`: have the source send whole old rows; Penstock sets `REPLICA IDENTITY FULL` on the table."""
    rename: dict[str, Annotated[str, Field(min_length=1)]] = {}
    """Source column: name in the table."""

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
    """The Spark session that loads and applies."""

    master: str = "local[*]"
    """Spark's master URL."""
    conf: dict[str, SparkValue] = {}
    """Further Spark settings, by their own names."""


class LogConfig(_Section):
    """The change log. A step is kept until every lane holds it, then for `retention`."""

    retention: Duration = timedelta(days=7)
    """How long changes stay readable after every table holds them."""
    step_bytes_max: ByteSize = Field(default=ByteSize(16 * _MIB), ge=_MIB)
    """A step is sealed at the first end of a transaction after this many bytes of files."""


class ReadersConfig(_Section):
    """What readers of the tables may count on."""

    grace: Duration = timedelta(hours=1)
    """How long a replaced version of a table stays for readers that have opened it."""


class LoadConfig(_Section):
    """How whole tables are read."""

    method: Literal["ctid", "key"] = "ctid"
    """`ctid`: by ranges of pages, no index needed. `key`: by ranges of the key's first column."""
    rows_per_chunk: PositiveInt = 500_000
    """About so many rows are read by one task into one file."""
    parallel: PositiveInt | None = None
    """Chunks read at the same time, each on a connection of its own; by default one per core of Spark."""


class Config(_Section):
    source: SourceConfig
    destination: DestinationConfig
    state: LocalPath
    """A directory for the state file, checkpoints and the change log; not inside `destination.path`."""
    streams: Annotated[list[StreamConfig], Field(min_length=1)]
    """Stream ids, or mappings as below. A table named exactly is governed by that entry, else by the last
    pattern that matches it."""
    exclude: list[StreamPattern] = []
    """Taken out of what patterns match; never what `streams` names exactly."""
    spark: SparkConfig = SparkConfig()
    log: LogConfig = LogConfig()
    readers: ReadersConfig = ReadersConfig()
    # `load:` in the file; the name is taken by the function below.
    loading: LoadConfig = Field(default=LoadConfig(), alias="load")
    lanes: dict[str, Any] = {}
    """Nothing yet: every lane is refused by name."""

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

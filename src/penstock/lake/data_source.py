"""The change log for everybody's queries: `spark.read.format("penstock")`, and `readStream`.

A batch query reads a fixed range: its end is noted when the query is made, so that it gives the same rows
however often it runs, and however the log grows. A streaming query goes on from place to place; Spark keeps
the places in the query's checkpoint, a range of places always holds the same changes, and so each change is
in exactly one batch, also when a batch is run again after a crash. Nothing here acknowledges anything: the
log is kept by `log.retention`, and a query that comes too late is told so instead of reading less. One that
does not say where to begin begins with what the log holds when it is planned, also if retention takes some
just then.

How batches are bounded: Spark 4.1 does not say from where it wants the latest offset. But it plans every
batch, and on a restart the empty range behind the last one, before it asks for the next; the end of what was
planned last is where the next batch begins.

Columns are those of the newest schema version when the query is made (see `log_rows`). A streaming query
that meets a newer one stops and says so; started again, it goes on from there with the new columns. Where a
batch's columns were settled is written into the schema's metadata, since Spark makes the reader elsewhere.

Options: `state` (the pipeline's state directory) or `config` (its file); `stream`; `after` or `from`, and
`to`; `typed` (true); `batch_bytes` (256 MiB of log files; 0: no limit).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.config import Config
from penstock.core.errors import ConfigError, LogGoneError, PositionGoneError, StateError
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId
from penstock.lake.evolve import ColumnSource
from penstock.lake.log_range import (
    END,
    Part,
    Place,
    batch_end,
    first_place,
    gone,
    option_place,
    parts,
)
from penstock.lake.log_rows import LogShape, between, column_sources
from penstock.log.reader import ChangeLog, LogFile, read_rows

BATCH_BYTES = 256 * 1024 * 1024
ROWS_PER_BATCH = 64 * 1024
_BEGINNING = Place(0)  # of the log, wherever that is
_OPTIONS = ("state", "config", "stream", "after", "from", "to", "typed", "batch_bytes")
_SCHEMA_ID, _END = "penstock.schema_id", "penstock.end"


@dataclass(frozen=True, slots=True)
class Request:
    """The options, understood."""

    directory: Path
    stream: StreamId
    first: Place | None
    end: Place
    typed: bool
    batch_bytes: int

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Request:
        given = {name: value for name in _OPTIONS if (value := options.get(name)) is not None}
        if "after" in given and "from" in given:
            raise ConfigError("The options `after` and `from` exclude each other.", remedy="Give one only.")
        first = None
        if "after" in given or "from" in given:
            name = "after" if "after" in given else "from"
            first = option_place(name, given[name], behind=name == "after")
        return cls(
            directory=_state(given) / "log",
            stream=_stream(given),
            first=first,
            end=option_place("to", given["to"], behind=True) if "to" in given else END,
            typed=_truth(given.get("typed", "true")),
            batch_bytes=_bytes(given.get("batch_bytes", str(BATCH_BYTES))),
        )


@dataclass(frozen=True, slots=True)
class LogPartition(InputPartition):
    part: Part
    first: Place
    end: Place
    columns: Mapping[str, tuple[ColumnSource, ...]]  # by schema id of the files


class LogRows:
    """The rows of partitions; sent to the executors, and the same on each."""

    def __init__(self, stream: StreamId, shape: LogShape, names: list[str]) -> None:
        self.stream = stream
        self.shape = shape
        self.names = names

    def read(self, partition: LogPartition) -> Iterator[pa.RecordBatch]:
        for file in partition.part.files:
            for rows in self._rows(file, partition):
                yield from rows.select(self.names).to_batches(max_chunksize=ROWS_PER_BATCH)

    def _rows(self, file: LogFile, partition: LogPartition) -> Iterator[pa.Table]:
        first, end = partition.first, partition.end
        tables = read_rows([file], first.first_transaction, end.transactions_end, share=partition.part.share)
        try:
            for log in tables:
                inside = between(log, first, end)
                if inside.num_rows:
                    yield self.shape.rows(inside, partition.columns[file.schema_id], file.leaf)
        except FileNotFoundError as error:
            raise gone(self.stream, first, None) from error


@dataclass(frozen=True, slots=True)
class Accepted:
    """The newest of the schema versions before `end`, all of which a query's rows can be read in."""

    end: Place
    newest: TableSchema


class LogReader(DataSourceReader):
    def __init__(self, request: Request, schema: StructType) -> None:
        log = ChangeLog(request.directory)
        self._request = request
        self._end = _noted_end(schema) or _end(log, request)
        self._rows = _log_rows(log, request, schema)

    def partitions(self) -> list[InputPartition]:
        log, end, request = ChangeLog(self._request.directory), self._end, self._request
        while True:
            first = first_place(log, request.stream, request.first)
            try:
                # Spark calls `read` even if there is nothing to read.
                return _plan(log, self._rows, first, end) or [LogPartition(Part(()), first, end, {})]
            except PositionGoneError:
                if request.first is not None:
                    raise

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogPartition)
        return self._rows.read(partition)


class LogStreamReader(DataSourceStreamReader):
    def __init__(self, request: Request, schema: StructType) -> None:
        self._request = request
        self._log = ChangeLog(request.directory)
        self._rows = _log_rows(self._log, request, schema)
        self._planned: Place | None = None
        self._accepted: Accepted | None = None

    def initialOffset(self) -> dict[str, str]:  # noqa: N802 (Spark's name)
        return _to_json(first_place(self._log, self._request.stream, self._request.first))

    def latestOffset(self) -> dict[str, str]:  # noqa: N802 (Spark's name)
        first = self._planned or _from_json(self.initialOffset())
        request = self._request
        return _to_json(batch_end(self._log, request.stream, first, request.end, request.batch_bytes))

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        first, last = _from_json(start), _from_json(end)
        self._planned = last
        if first == last:
            return []
        first_place(self._log, self._request.stream, first)
        self._accepted = _accept_columns(self._log, self._rows, last, self._accepted)
        return _plan(self._log, self._rows, first, last)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogPartition)
        return self._rows.read(partition)

    def __getstate__(self) -> dict[str, Any]:
        # Executors read rows; manifests, of which there may be many, stay here.
        return {**self.__dict__, "_log": ChangeLog(self._request.directory)}


class PenstockSource(DataSource):
    """The data source `penstock`."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        request = Request.of(self.options)
        log = ChangeLog(request.directory)
        end = _end(log, request)
        table = _newest_schema(log, request.stream, end)
        struct = _struct(LogShape(table, request.typed))
        struct["_tx"].metadata = {_SCHEMA_ID: table.id, _END: str(end)}
        return struct

    def reader(self, schema: StructType) -> LogReader:
        return LogReader(Request.of(self.options), schema)

    def streamReader(self, schema: StructType) -> LogStreamReader:  # noqa: N802 (Spark's name)
        return LogStreamReader(Request.of(self.options), schema)


def _log_rows(log: ChangeLog, request: Request, schema: StructType) -> LogRows:
    noted = _noted(schema, _SCHEMA_ID)
    table = log.schema(noted) if noted else _newest_schema(log, request.stream, _end(log, request))
    shape = LogShape(table, request.typed)
    offered = _struct(shape)
    unknown = [
        field.name
        for field in schema
        if field.name not in offered.names or offered[field.name].dataType != field.dataType
    ]
    if unknown:
        raise ConfigError(
            f"The log does not have these columns in these types: {', '.join(unknown)}.",
            stream=str(request.stream),
            remedy="Leave out the schema, or name columns as `printSchema` shows them without one.",
        )
    return LogRows(request.stream, shape, schema.names)


def _plan(log: ChangeLog, rows: LogRows, first: Place, end: Place) -> list[InputPartition]:
    try:
        files = log.files(rows.stream, first.first_transaction, end.transactions_end).files
    except LogGoneError as error:  # since it was looked where the log begins
        raise gone(rows.stream, first, log.start()) from error
    columns = {
        schema_id: column_sources(log.schema(schema_id), rows.shape.schema)
        for schema_id in {file.schema_id for file in files}
    }
    return [LogPartition(part, first, end, columns) for part in parts(files)]


def _end(log: ChangeLog, request: Request) -> Place:
    return min(request.end, Place(log.end() or 0))


def _versions(log: ChangeLog, stream: StreamId, first: Place, end: Place) -> list[TableSchema]:
    """The schema versions of the stream's files from `first` to `end`, in the order of the log."""
    files = log.files(stream, first.first_transaction, end.transactions_end).files
    return [log.schema(file.schema_id) for file in files]


def _newest_schema(log: ChangeLog, stream: StreamId, end: Place) -> TableSchema:
    versions = _versions(log, stream, _BEGINNING, end) or _versions(log, stream, _BEGINNING, END)
    if not versions:
        raise StateError(
            f"The change log in {log.directory} holds no change of this stream yet.",
            stream=str(stream),
            remedy="Check the stream's name, or try again after the next `penstock sync` that has a change.",
        )
    return _newest_of(versions)


def _newest_of(versions: Sequence[TableSchema]) -> TableSchema:
    # A version that was read when the catalog had moved on does not know which column is which.
    known = [version for version in versions if all(each.attribute_number for each in version.columns)]
    return (known or versions)[-1]


def _accept_columns(log: ChangeLog, rows: LogRows, end: Place, before: Accepted | None) -> Accepted | None:
    """What is known after a batch that ends here; an error if it has newer columns than the query.

    What was accepted before is not looked at again: a query goes on through a log of any length.
    """
    if before is not None and end < before.end:
        before = None
    versions = _versions(log, rows.stream, before.end if before is not None else _BEGINNING, end)
    if before is not None:
        if all(version.id == before.newest.id for version in versions):
            return Accepted(end, before.newest)
        versions = [before.newest, *versions]
    newest = _newest_of(versions) if versions else _newest_schema(log, rows.stream, END)
    _refuse_newer_columns(log, rows, newest)
    return Accepted(end, newest) if versions else None


def _refuse_newer_columns(log: ChangeLog, rows: LogRows, newest: TableSchema) -> None:
    mine = rows.shape.schema
    if newest.id == mine.id or _struct(LogShape(newest, rows.shape.typed)) == _struct(rows.shape):
        return
    ids = [version.id for version in _versions(log, rows.stream, _BEGINNING, END)]
    if mine.id in ids and ids[::-1].index(mine.id) < ids[::-1].index(newest.id):
        return  # a batch from before the query was made: its rows are conformed
    raise StateError(
        "The columns of this stream have changed since the query was started.",
        stream=str(rows.stream),
        remedy="Start the query again with the same checkpoint: it goes on from here with the new columns.",
    )


def _struct(shape: LogShape) -> StructType:
    return from_arrow_schema(shape.arrow_schema(), prefer_timestamp_ntz=True)


def _noted(schema: StructType, name: str) -> str | None:
    return schema["_tx"].metadata.get(name) if "_tx" in schema.names else None


def _noted_end(schema: StructType) -> Place | None:
    noted = _noted(schema, _END)
    return Place.parse(noted, behind=False) if noted else None


def _to_json(place: Place) -> dict[str, str]:
    return {"place": str(place)}


def _from_json(offset: Mapping[str, str]) -> Place:
    return Place.parse(offset["place"], behind=False)


def _state(given: Mapping[str, str]) -> Path:
    if ("state" in given) == ("config" in given):
        raise ConfigError(
            "The data source needs the option `state` or the option `config`, and one of them only.",
            remedy='Add .option("config", "penstock.yaml"), or the state directory as "state".',
        )
    if "config" in given:
        return Config.load(given["config"]).state
    state = Path(given["state"]).absolute()
    if not (state / "log").is_dir():
        raise ConfigError(
            f"There is no change log in {state}.",
            remedy="Give the directory that `state` names in the pipeline file, as this machine sees it.",
        )
    return state


def _stream(given: Mapping[str, str]) -> StreamId:
    try:
        return StreamId.parse(given.get("stream", ""))
    except ValueError as error:
        raise ConfigError(
            "The option `stream` is missing or is not a stream id.",
            remedy='Add .option("stream", "public.orders").',
        ) from error


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError("The option `typed` is neither true nor false.", remedy="Write true or false.")
    return text.lower() == "true"


def _bytes(text: str) -> int:
    if not text.isdigit():
        raise ConfigError(
            "The option `batch_bytes` is not a number of bytes.",
            remedy="Write a whole number; 0: no limit.",
        )
    return int(text)

"""The sections of the pipeline file that have no module of their own: what each key means, and its default.

`source`, `destination` and `console` have one; so do `lanes`, and in it `shapes` and `streams`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, field_validator, model_validator

from penstock.config.base import Section
from penstock.config.destination import TableConfig
from penstock.config.values import (
    Address,
    ByteSize,
    ColumnType,
    CursorColumns,
    Duration,
    Interval,
    LocalPath,
    Lookbacks,
    PathOrObject,
    Pause,
    SecretValue,
    Share,
    SocketOrAddress,
    StreamPattern,
    Token,
)
from penstock.core.stream import StreamId
from penstock.core.where import check_syntax

_MIB = 1024 * 1024


class StreamConfig(Section):
    """One stream, or a pattern that stands for several."""

    table: StreamPattern
    """`schema.table` as the source spells it, without quotes; the first dot separates, `*` matches."""
    mode: Literal["cdc", "strict_cdc", "full_refresh", "incremental"] = "cdc"
    """`cdc`: loaded once, then followed through the log. `strict_cdc`: followed from where it joins the
    publication, without its rows. `full_refresh`: read whole at every sync. `incremental`: loaded once,
    then [read on by its cursor](../guides/incremental.md), which needs no log and does not see deletes."""
    cursor: CursorColumns | None = None
    """For `mode: incremental`: a column that rises with every change of a row, `updated_at`; with a second
    one for rows in which the first is null, `"updated_at:id"`. Another cursor means that the table is loaded
    again."""
    lookback: Lookbacks | None = None
    """How far behind the last cursor each sync reads again, for rows that were committed late: a duration
    (`15m`) for a time or date, a number for a number, `0` for none; for a pair of cursors a list of two. By
    default 10 minutes, or 1000."""
    resume: Literal["exact", "per_chunk"] = "exact"
    """For `mode: full_refresh`, when a load was cut short and its snapshot is gone. `exact`: it starts again.
    `per_chunk`: chunks that were read stay, the others are read under a new snapshot, and the table shows
    [more than one moment](../guides/recover.md#a-full-refresh-that-was-cut-short)."""
    write: Literal["upsert", "append"] = "upsert"
    """`upsert`: the last state of every row. `append`: every change as a row of its own."""
    deletes: Literal["hard", "soft"] = "hard"
    """For `write: upsert`. `hard`: a row that is deleted at the source is gone. `soft`: it stays, with its
    last values and the time in [`_deleted_at`](../guides/deletes.md), which is null in all others. Another
    choice means that the table is loaded again."""
    replica_identity: Literal["none", "full"] = "none"
    """`full`: have the source send whole old rows; Penstock sets `REPLICA IDENTITY FULL` on the table."""
    columns: Annotated[list[str], Field(min_length=1)] | None = None
    """The columns the table holds, by the source's names; the key must be among them. All by default; another
    list means that the table is loaded again."""
    where: str | None = None
    """Only rows for which this SQL condition is true: see [filters](../guides/filter.md). Another condition
    means that the table is loaded again."""
    rename: dict[str, Annotated[str, Field(min_length=1)]] = Field(default={})
    """Source column: name in the table."""
    types: dict[str, ColumnType] = Field(default={})
    """Source column: what it is held as in the table, where it is not to be the type of
    [this table](types.md): `text` (any column), `decimal(p,s)` (a `numeric`), `time` (a `time`), `list` (an
    array of one dimension). Quote it if it has a comma. What does not fit is a dead letter; another choice
    means that the table is loaded again."""
    on_schema_change: Literal["evolve", "pause", "fail"] = "evolve"
    """What happens when the source's table gets other columns, another key, or partitions that bring or take
    rows. `evolve`: the table follows, and is loaded again where that is the only exact way. `pause`: the
    stream stands still before the change until `penstock resume`, while the others go on. `fail`: the sync
    ends with an error."""
    iceberg: TableConfig = TableConfig()

    @property
    def id(self) -> StreamId:
        return StreamId.parse(self.table)

    @field_validator("columns")
    @classmethod
    def _columns_are_distinct(cls, columns: list[str] | None) -> list[str] | None:
        if columns is not None and len(set(columns)) != len(columns):
            raise ValueError("names a column twice")
        return columns

    @field_validator("where")
    @classmethod
    def _condition_can_be_read(cls, where: str | None) -> str | None:
        if where is not None:
            check_syntax(where)
        return where

    @field_validator("rename")
    @classmethod
    def _renames_are_distinct(cls, rename: dict[str, str]) -> dict[str, str]:
        if len(set(rename.values())) != len(rename):
            raise ValueError("gives the same new name to two columns")
        return rename


class SparkConfig(Section):
    """The Spark session that loads and applies."""

    master: str = "local[*]"
    """Spark's master URL."""
    conf: dict[str, SecretValue] = Field(default={})
    """Further Spark settings, by their own names. No error, log or check of ours shows their values."""


class LogConfig(Section):
    """The change log. A step is kept until every lane holds it, then for `retention`."""

    retention: Duration = timedelta(days=7)
    """How long changes stay readable after every table holds them."""
    step_bytes_max: ByteSize = Field(default=ByteSize(16 * _MIB), ge=_MIB)
    """A step is sealed at the first end of a transaction after this many bytes of files."""
    seal_every: Pause = timedelta(seconds=10)
    """While `penstock run` reads: a step is sealed when it has been open for so long."""
    tail_bytes_max: ByteSize = Field(default=ByteSize(64 * _MIB), ge=_MIB)
    """What waits in memory for lanes that follow the newest changes; a lane that is further behind reads the
    log."""


class WalConfig(Section):
    """What the source must keep for us."""

    acknowledge: Literal["lanes", "log"] = "lanes"
    """When the source may forget a change: when every lane holds it, or as soon as the change log does."""
    max_retained: ByteSize = Field(default=ByteSize(10 * 1024 * _MIB), ge=16 * _MIB)
    """Log that the source keeps for the slot. Warned about from half of it on; when it is reached, or the
    server is about to give the slot up, `on_wal_pressure` decides."""
    on_wal_pressure: Literal["hold", "acknowledge_log"] = "hold"
    """`hold`: the slot stays where the slowest lane is, and may be lost if the server limits it.
    `acknowledge_log`: the source may forget what the change log holds; the lane catches up from there."""


class CheckpointConfig(Section):
    """`checkpoint.json`: how far capture is, for people."""

    interval: Pause = timedelta(seconds=10)
    """How often it is saved."""
    history: PositiveInt = 20
    """How many are kept."""
    path: PathOrObject | None = None
    """Another place than `checkpoint.json` in the state directory: a path, `s3://bucket/key` or
    `gs://bucket/key`. Credentials are found where the store's own tools find them; `?region=eu-west-1` and
    `?endpoint_override=https://host:port` may follow."""


class TailConfig(Section):
    """Where capture serves changes to lanes, over Arrow Flight."""

    listen: SocketOrAddress = "unix"
    """`unix`: a socket that only this user can open. `host:port`: over TCP, with TLS and a token."""
    certificate: LocalPath | None = None
    """PEM file of the server's certificate; needed for TCP."""
    key: LocalPath | None = None
    """PEM file of its key."""
    token: Token | None = None
    """What a reader must show; needed for TCP. `${file:/path}` or an environment variable."""

    @model_validator(mode="after")
    def _is_guarded(self) -> TailConfig:
        if self.listen != "unix" and None in (self.certificate, self.key, self.token):
            raise ValueError("over TCP needs `certificate`, `key` and `token`")
        return self


class VerifyConfig(Section):
    """Comparing tables with their source while `penstock run` is at work, as `penstock verify` does."""

    every: Interval = None
    """How often; `never` unless it is set."""
    sample: Share = 1.0
    """Which part of the rows, drawn anew each time: `5%`."""


class RunConfig(Section):
    """`penstock run`: the processes and what they tell."""

    listen: Address = "127.0.0.1:9780"
    """Where `/metrics`, `/health` and `/status` are served; port 0 takes a free one."""
    standby: Literal["cold", "warm"] = "cold"
    """What an instance does while another one leads: `warm` keeps a Spark session ready."""
    heartbeat: Pause = timedelta(seconds=1)
    """How often the leader shows that it lives; after three that are missing another one may lead."""
    stop_timeout: Duration = timedelta(seconds=60)
    """How long all may take to end in order. A quarter of it, 10 s at most, is kept for capture, which ends
    after the lanes; they have the rest."""
    restarts_max: PositiveInt = 5
    """A process that fails more often than that within ten minutes is parked."""
    parked_retry: Interval = timedelta(minutes=10)
    """A parked process is tried again after so long, and again after that, until it lives; or `never`. One
    that finds fault with its configuration, or misses a part of the source's log, is tried again by SIGHUP
    alone."""

    @field_validator("parked_retry")
    @classmethod
    def _can_be_waited_for(cls, value: timedelta | None) -> timedelta | None:
        if value is not None and not timedelta(seconds=1) <= value <= timedelta(days=365):
            raise ValueError("should be between 1s and 365d, or never")
        return value


class ReadersConfig(Section):
    """What readers of the tables may count on."""

    grace: Duration = timedelta(hours=1)
    """How long a replaced version of a table stays for readers that have opened it. Files that no version
    has, as a comparison's own, stay as long, and for an hour at least."""


class LoadConfig(Section):
    """How whole tables are read."""

    method: Literal["ctid", "key"] = "ctid"
    """`ctid`: by ranges of pages, no index needed. `key`: by ranges of the key's first column; tables that
    have none to cut by, as with a text key in Postgres, are read as with `ctid`."""
    rows_per_chunk: PositiveInt = 500_000
    """About so many rows are read by one task into one file."""
    parallel: PositiveInt | None = None
    """Chunks read at the same time, each on a connection of its own; by default one per core of Spark."""
    rows_per_second: PositiveInt | None = None
    """No more rows than that are read from tables in a second, over all connections; by default no limit."""
    snapshot_age_max: Duration | None = None
    """A snapshot that is older is let go, so that the source can vacuum; the load goes on under a new one
    where that is exact (`method: key`, or `write: upsert`). Other loads keep theirs to the end."""
    replica_wait: Duration = timedelta(minutes=10)
    """How long a load waits for the replica (`source.replica_url`) to come to where the source is."""


class MaintenanceConfig(Section):
    """How [Iceberg tables are kept in order](../guides/iceberg.md#maintenance), by `penstock compact`,
    after syncs and beside the rounds of a run."""

    every: Interval = timedelta(hours=1)
    """A sync that is done, or a run beside its rounds, looks after each table that often, and does what is
    due; or `never`."""
    target_file_bytes: ByteSize = Field(default=ByteSize(256 * _MIB), ge=_MIB)
    """The size of file that small ones are merged into."""
    small_file_ratio: Annotated[float, Field(ge=0, le=1)] = 0.3
    """Files are merged when merging would spare this part of them, and five at least."""
    delete_ratio: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Files are written again without their deleted rows when this part of the table's rows is deleted, by
    five files of deletes at least, or a quarter of `target_file_bytes`."""
    snapshot_age_max: Duration = timedelta(days=5)
    """Older snapshots go, and with them the files that only they have; not before `readers.grace`."""
    snapshots_min: PositiveInt = 10
    """So many of the newest snapshots stay, however old they are."""
    snapshots_max: PositiveInt = 1000
    """Of more than that the oldest go, however young they are; not before `readers.grace`. Every commit
    writes all of them down again: 50,000 are about 90 MB."""
    orphan_age: Annotated[Duration, Field(ge=timedelta(days=1))] = timedelta(days=3)
    """Files in a table's directory, and of its dead letters, that no snapshot has and that are older go. Work
    that lasts longer than that between writing a file and committing it would lose it."""

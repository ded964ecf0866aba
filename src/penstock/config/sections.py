"""The sections of the pipeline file: what each key means, and its default.

The docstring below a key is its line in docs/reference/configuration.md.
"""

from __future__ import annotations

import re
import zlib
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import unquote

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    PrivateAttr,
    SecretStr,
    field_validator,
    model_validator,
)

from penstock.config.values import (
    Address,
    ByteSize,
    ColumnType,
    CursorColumns,
    Duration,
    Identifier,
    Interval,
    LocalPath,
    Lookbacks,
    MongoUrl,
    MysqlUrl,
    PartitionBy,
    PathOrObject,
    Pause,
    PostgresUrl,
    Share,
    SlotName,
    SocketOrAddress,
    SortBy,
    SparkValue,
    StreamPattern,
    Token,
)
from penstock.core.stream import StreamId
from penstock.core.table_options import PartitionField, SortField, TableOptions, check_partitions
from penstock.core.where import check_syntax

FIELDS_FILE = "collections.json"
_MIB = 1024 * 1024


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )


class PostgresSourceConfig(Section):
    """A Postgres server."""

    type: Literal["postgres"]
    """The kind of database."""
    url: PostgresUrl
    """`postgresql://user:${PGPASSWORD}@host:5432/database`, straight to the server and not to a pooler."""
    replica_url: PostgresUrl | None = None
    """Of a streaming standby of that server: [tables are read there](../guides/replica.md), changes still
    come from `url`."""
    slot: SlotName = "penstock"
    """The replication slot, created at the first sync. One pipeline, one slot."""
    publication: Identifier = "penstock"
    """The publication, created at the first sync; tables are added to it as streams are."""
    publication_mode: Literal["auto", "manual"] = "auto"
    """`manual`: Penstock neither creates nor changes the publication, and says what is missing in it."""
    failover: bool = False
    """Have the slot copied to standbys of the server (Postgres 17 and later), so that it is there when one of
    them is promoted. Holds for a slot that Penstock creates."""


class MysqlSourceConfig(Section):
    """A MySQL or MariaDB server. Its tables are synced to Parquet; see [what is not there
    yet](#not-there-yet)."""

    type: Literal["mysql"]
    """The kind of database; MariaDB too."""
    url: MysqlUrl
    """`mysql://user:${MYSQL_PWD}@host:3306/database`, straight to the server. `?ssl_mode=` is `preferred`,
    `required`, `verify_ca`, `verify_identity` or `disabled`, with `ssl_ca`, `ssl_cert` and `ssl_key`."""
    name: Identifier = "penstock"
    """Tells this pipeline from others that read the same server: no two of them share it."""
    server_id: Annotated[int, Field(ge=1, le=2**32 - 1)] | None = None
    """As which replica the binary log is read: a number that no server and no other pipeline has. By default
    it is made of `name`."""

    @property
    def replica_id(self) -> int:
        """Ids of the upper half are seldom given by people."""
        return self.server_id or 2**31 | zlib.crc32(self.name.encode()) & 0x7FFFFFFF


class MongoSourceConfig(Section):
    """A MongoDB replica set or sharded cluster. See [what is not there yet](#not-there-yet)."""

    type: Literal["mongodb"]
    """The kind of database."""
    url: MongoUrl
    """`mongodb://user:${MONGODB_PASSWORD}@host:27017/database?replicaSet=rs0`, or `mongodb+srv://…`. It is
    read at the primary and as a majority has it, whatever the url says of that."""
    name: Identifier = "penstock"
    """Tells this pipeline from others that read the same cluster: no two of them share it."""
    database: str | None = None
    """The one database that streams are of; by default that of `url`. `""`, and a url without one: streams
    are of the whole cluster, whose changes the user must be allowed to read."""
    layout: Literal["document", "fields"] = "document"
    """What a collection is as a table. `document`: `_id`, and the whole document as JSON. `fields`: `_id`, a
    column for each top-level field that a sample had when the collection was first seen, and `_rest`."""
    _fields_path: Path | None = PrivateAttr(None)

    @property
    def database_read(self) -> str:
        """Empty: the whole cluster."""
        if self.database is not None:
            return self.database
        rest = self.url.get_secret_value().partition("://")[2].partition("?")[0]
        return unquote(rest.partition("/")[2])

    @property
    def fields_path(self) -> Path | None:
        """Where the fields that collections were found to have are remembered."""
        return self._fields_path

    def remembering_at(self, state: Path) -> None:
        self._fields_path = state / FIELDS_FILE


#: One model for each `type`.
SourceConfig = PostgresSourceConfig | MysqlSourceConfig | MongoSourceConfig


_ICEBERG_ONLY = ("catalog", "upserts", "format_version", "properties", "jars_dir")


class CatalogConfig(Section):
    """The Iceberg catalog, which knows each table's newest metadata."""

    type: Literal["sqlite", "hadoop", "postgres", "rest", "hive", "glue"] = "sqlite"
    """`sqlite`: a file in the warehouse. `hadoop`: the directories themselves, for one writer on a file
    system with atomic renames."""
    name: Annotated[str, Field(min_length=1)] = "penstock"
    """Readers of a SQL catalog give the same name."""
    uri: SecretStr | None = None
    """Where it is: `postgresql://…`, `http://…` (REST) or `thrift://…` (Hive)."""
    properties: dict[str, SparkValue] = {}
    """Further settings, by Iceberg's own names."""

    @model_validator(mode="after")
    def _says_where(self) -> CatalogConfig:
        if self.type in ("postgres", "rest", "hive") and self.uri is None:
            raise ValueError(f"a catalog of type {self.type} needs `uri`")
        return self


#: What Penstock keeps in a table's properties, and what Iceberg does not take for some.
_OWN_PROPERTIES = re.compile(
    r"penstock\..*|format-version|uuid|snapshot-count|current-(schema|snapshot-.*)"
    r"|default-(partition-spec|sort-order)"
)


def _free(properties: dict[str, str]) -> dict[str, str]:
    for key in properties:
        if _OWN_PROPERTIES.fullmatch(key):
            own = "set `format_version`" if key == "format-version" else "Penstock or Iceberg sets it itself"
            raise ValueError(f"`{key}` is no property to choose: {own}")
    return properties


class DestinationConfig(Section):
    """Where tables go."""

    type: Literal["parquet", "iceberg"]
    """The kind of table."""
    path: LocalPath | None = None
    """Parquet: a directory; a table is `<path>/<schema>/<table>`."""
    warehouse: LocalPath | None = None
    """Iceberg: a directory; a table is `<warehouse>/<schema>/<table>` unless the catalog decides."""
    catalog: CatalogConfig = CatalogConfig()
    upserts: Literal["merge_on_read", "copy_on_write"] = "merge_on_read"
    """Iceberg: changed rows are marked as deleted in their files, or the files are written again without
    them, for readers that cannot apply deletes."""
    format_version: Literal[2, 3] | None = None
    """Iceberg: `3` for [deletion vectors](../guides/iceberg.md#format-version-3); a table of version 2 is
    upgraded at the next sync, for good. By default new tables have 2, and others keep theirs."""
    properties: dict[str, SparkValue] = {}
    """Iceberg: table properties, by Iceberg's own names; those of a stream's own come over them."""
    jars_dir: LocalPath | None = None
    """Iceberg: a directory with the jars, for machines that cannot download them."""

    @property
    def directory(self) -> Path:
        """Where the tables lie."""
        directory = self.path if self.type == "parquet" else self.warehouse
        assert directory is not None
        return directory

    @model_validator(mode="after")
    def _says_where(self) -> DestinationConfig:
        needed, other = ("path", "warehouse") if self.type == "parquet" else ("warehouse", "path")
        if getattr(self, needed) is None:
            raise ValueError(f"needs `{needed}`")
        foreign = {other, *(_ICEBERG_ONLY if self.type == "parquet" else ())} & self.model_fields_set
        if foreign:
            raise ValueError(f"`{min(foreign)}` has no meaning for {self.type} tables")
        return self

    @field_validator("properties")
    @classmethod
    def _properties_are_free(cls, properties: dict[str, str]) -> dict[str, str]:
        return _free(properties)


class TableConfig(Section):
    """What is chosen for [one Iceberg table](../guides/iceberg.md#partitions-order-properties-place). Columns
    have the table's names. What is not named stays as it is in the table; what is changed holds from the next
    sync on, for files that are written then."""

    partition_by: list[PartitionBy] | None = None
    """Columns, or `year(c)`, `month(c)`, `day(c)`, `hour(c)`, `bucket(16, c)`, `truncate(4, c)` of them; `[]`
    for none."""
    sort_by: list[SortBy] | None = None
    """The order of rows in each file: `created_at desc`, `id`, `name asc nulls last`; `[]` for none."""
    location: LocalPath | None = None
    """A directory of its own, for catalogs that let it be chosen. It cannot be changed later."""
    properties: dict[str, SparkValue] = {}
    """Table properties by Iceberg's own names, over those of the destination."""
    format_version: Literal[2, 3] | None = None
    """Over that of the destination."""

    @property
    def options(self) -> TableOptions:
        partitions, order = self.partition_by, self.sort_by
        return TableOptions(
            None if partitions is None else tuple(map(PartitionField.parse, partitions)),
            None if order is None else tuple(map(SortField.parse, order)),
            self.location,
            dict(self.properties),
            self.format_version,
        )

    @field_validator("partition_by")
    @classmethod
    def _partitions_are_distinct(cls, fields: list[str] | None) -> list[str] | None:
        check_partitions(list(map(PartitionField.parse, fields or ())))
        return fields

    @field_validator("sort_by")
    @classmethod
    def _order_names_a_column_once(cls, fields: list[str] | None) -> list[str] | None:
        columns = [SortField.parse(field).column for field in fields or ()]
        if len(set(columns)) != len(columns):
            raise ValueError("names a column twice")
        return fields

    @field_validator("properties")
    @classmethod
    def _properties_are_free(cls, properties: dict[str, str]) -> dict[str, str]:
        return _free(properties)


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
    rename: dict[str, Annotated[str, Field(min_length=1)]] = {}
    """Source column: name in the table."""
    types: dict[str, ColumnType] = {}
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
    conf: dict[str, SparkValue] = {}
    """Further Spark settings, by their own names."""


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


class AccessConfig(Section):
    """Somebody who may use the console."""

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[!-9;-~]+$")]
    """Who it is, as the audit log says it; the user name, if there is a password."""
    role: Literal["look", "act"] = "look"
    """`look`: sees everything but values of rows. `act`: may also do things, and ask for values."""
    token: Token | None = None
    """What this person or program shows; `${file:/path}` or an environment variable."""
    password: Token | None = None
    """Instead of a token."""

    @model_validator(mode="after")
    def _shows_one_thing(self) -> AccessConfig:
        if (self.token is None) == (self.password is None):
            raise ValueError("needs a `token` or a `password`, and not both")
        return self


class ConsoleConfig(Section):
    """[The console](../guides/console.md): a page that shows the pipeline, as a part of `penstock run`."""

    enabled: bool = True
    """Whether `penstock run` has one."""
    listen: Address = "127.0.0.1:9781"
    """Where it is served; port 0 takes a free one. An address that others can reach needs `access`."""
    access: list[AccessConfig] = []
    """Who may use it. By default one person, by a token that is made in the state directory: `penstock
    console` prints the link with it."""
    read_only: bool = False
    """Nobody can do anything, whatever their role."""
    hosts: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]+$")]] = []
    """Further names by which browsers reach it, for instance that of a proxy. Addresses and this machine's
    own name need not be named."""
    certificate: LocalPath | None = None
    """PEM file of a certificate: served over TLS."""
    key: LocalPath | None = None
    """PEM file of its key."""
    history: Annotated[Duration, Field(ge=timedelta(hours=1), le=timedelta(days=31))] = timedelta(hours=24)
    """How far back the plots reach, over restarts too."""
    history_bytes_max: ByteSize = Field(default=ByteSize(200 * _MIB), ge=8 * _MIB)
    """What the history may take on disk; the oldest goes first."""

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        host = self.listen.rpartition(":")[0]
        return host == "localhost" or host.startswith("127.")

    @model_validator(mode="after")
    def _is_guarded(self) -> ConsoleConfig:
        if not self.is_local and not self.access:
            raise ValueError("`listen` is an address that others can reach: say in `access` who may use it")
        if (self.certificate is None) != (self.key is None):
            raise ValueError("needs both `certificate` and `key`, or neither")
        names = [each.name for each in self.access]
        if len(set(names)) != len(names):
            raise ValueError("`access` has a name twice")
        return self


class ReadersConfig(Section):
    """What readers of the tables may count on."""

    grace: Duration = timedelta(hours=1)
    """How long a replaced version of a table stays for readers that have opened it."""


class LoadConfig(Section):
    """How whole tables are read."""

    method: Literal["ctid", "key"] = "ctid"
    """`ctid`: by ranges of pages, no index needed. `key`: by ranges of the key's first column."""
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
    orphan_age: Annotated[Duration, Field(ge=timedelta(days=1))] = timedelta(days=3)
    """Files in a table's directory that no snapshot has and that are older go. Work that lasts longer than
    that between writing a file and committing it would lose it."""

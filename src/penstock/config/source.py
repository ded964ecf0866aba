"""`source`: the database that changes come from, one model for each `type`."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import unquote

from pydantic import Field, PrivateAttr

from penstock.config.base import Section
from penstock.config.values import Identifier, MongoUrl, MysqlUrl, PostgresUrl, SlotName

FIELDS_FILE = "collections.json"


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
    """A MySQL or MariaDB server, for Parquet and Iceberg tables and stream lanes. See [what is not there
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
    column for each top-level field that a sample had when the collection was first seen, `_rest`, and a
    column for each field that changes show later."""
    new_fields: Annotated[int, Field(ge=0, le=2_000)] = 100
    """With `layout: fields`, how many fields of a collection may become columns after it was first seen.
    Further ones stay in `_rest`, as all do with `0`."""
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

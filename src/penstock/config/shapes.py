"""`lanes.shapes`: the live lane's own keys, the same for `penstock run` and `penstock shapes serve`."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import Field, PositiveInt, SecretStr

from penstock.config.base import Section
from penstock.config.values import ByteSize, Duration, Interval, LocalPath, Pause, PostgresUrl

SHAPES_LANE = "shapes"
_MIB = 1024 * 1024


class RequestLimits(Section):
    """How many requests are answered at the same time; more are told to come again."""

    initial: PositiveInt = 300
    """That may have to make a shape: without a handle."""
    existing: PositiveInt = 10_000
    """Of shapes that the client has a handle of, waiting ones included."""


class ShapesConfig(Section):
    """[Shapes](../guides/shapes.md): filtered copies of tables, served over HTTP and kept in sync."""

    port: Annotated[int, Field(ge=0, le=65535)] = 3000
    """Where shapes are served; 0 takes a free port."""
    host: str = "0.0.0.0"  # noqa: S104 - apps and proxies come from elsewhere; `secret` guards it
    """The address to listen on; `::` for IPv6."""
    secret: SecretStr | None = Field(default=None, min_length=1)
    """What each request must bring as the parameter `secret`. It can read every table: a proxy of yours adds
    it, a browser never sees it."""
    insecure: bool = False
    """Serve without a secret, to whoever can reach the port."""
    allow_shape_deletion: bool = False
    """Answer `DELETE /v1/shape`."""
    storage_dir: LocalPath | None = None
    """Where shapes are kept, by default `shapes` in the state directory. They can be made again from the
    source: clients then fetch anew."""
    max_shapes: PositiveInt = 100_000
    """When there are more, those go that were not read for the longest time."""
    expire_after: Interval = timedelta(days=14)
    """A shape that nobody has read for so long goes; or `never`."""
    max_disk_bytes: ByteSize = Field(default=ByteSize(64 * 1024 * _MIB), ge=16 * _MIB)
    """When shapes take more on disk, those go that were not read for the longest time."""
    chunk_bytes_threshold: ByteSize = Field(default=ByteSize(10 * _MIB), ge=1000)
    """An answer ends after about so many bytes of JSON; about 1 MB suits a CDN."""
    cache_max_age: Duration = timedelta(seconds=60)
    """For how long caches may keep an answer that is not live."""
    cache_stale_age: Duration = timedelta(seconds=300)
    """And for how long they may serve it while they ask for a newer one."""
    long_poll_timeout: Pause = timedelta(seconds=20)
    """A live request is answered after so long, if nothing has changed."""
    sse_timeout: Annotated[Duration, Field(ge=timedelta(seconds=2))] = timedelta(seconds=60)
    """A stream of server-sent events ends after so long; clients come again."""
    sse_keep_alive: Pause = timedelta(seconds=21)
    """A stream in which nothing happens says so this often."""
    send_timeout: Pause = timedelta(seconds=30)
    """A client that takes nothing for so long is sent away."""
    max_concurrent_requests: RequestLimits = RequestLimits()
    max_connections: PositiveInt = 20_000
    """So many clients may be connected, idle ones included; fewer if the process may not have that many files
    open, and 2048 besides. More are told to come again."""
    body_bytes_max: ByteSize = Field(default=ByteSize(8 * _MIB), ge=1024)
    """The largest request body."""
    pooled_url: PostgresUrl | None = None
    """Of a pooler (in transaction mode) in front of the source: rows are read there. Changes still come from
    `source.url`."""
    db_pool_size: Annotated[int, Field(ge=3, le=1000)] = 20
    """Connections to the source for reading rows and catalogs, at most."""
    snapshot_first_data_timeout: Pause = timedelta(seconds=30)
    """The query of a new shape must give its first row within that."""
    snapshot_lock_timeout: Pause = timedelta(seconds=5)
    """So long a new shape waits for its table's lock, and for transactions that were writing to it."""
    snapshot_queue_timeout: Pause = timedelta(seconds=5)
    """So long it waits for a free connection."""
    snapshot_started_timeout: Pause = timedelta(seconds=45)
    """So long a request waits for a new shape's first rows."""
    snapshot_chunk_timeout: Pause = timedelta(seconds=60)
    """So long a request waits for the next rows of a shape that is being read."""
    ready_timeout: Pause = timedelta(seconds=5)
    """So long a request waits for a service that starts."""
    schema_check_every: Pause = timedelta(seconds=60)
    """How often tables are compared with what their shapes know of them; changes in the log say so sooner."""
    stuck_after: Pause = timedelta(seconds=60)
    """A shape whose files make no progress for so long is dropped, so that the source can forget its log."""
    subquery_buffer_max_transactions: PositiveInt = 1000
    """So many transactions of a shape's table may come while rows are asked for that a subquery brings in; if
    there are more, its clients fetch it anew."""

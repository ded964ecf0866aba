"""`lanes.kafka`, `lanes.kinesis`, `lanes.file`: the stream lanes' own keys, and what they have in common.

Credentials are taken from the environment or from files (`${VARIABLE}`, `${file:/path}`), and are shown by
no error, log or `repr`. A key that would break what a lane promises is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, SecretStr, field_validator, model_validator

from penstock.config.base import Section
from penstock.config.values import (
    ByteSize,
    Duration,
    LocalPath,
    Pause,
    SecretValue,
    SparkValue,
    StreamPattern,
)

KAFKA_LANE, KINESIS_LANE, FILE_LANE = "kafka", "kinesis", "file"
STREAM_LANES = (KAFKA_LANE, KINESIS_LANE, FILE_LANE)
_MIB = 1024 * 1024
_IDENTITY = re.compile(r"\A[A-Za-z0-9_.-]{1,100}\Z")
_PLACE_IN_TEMPLATE = re.compile(r"\{([^{}]*)\}")
_MASKED_COLUMN = re.compile(r"\A[^.]+\.[^.]+\.[^.].*\Z", re.DOTALL)
#: What decides over loss, doubles or order, and what has a key of its own here.
_OWN_PROPERTIES = frozenset(
    {
        "acks",
        "request.required.acks",
        "allow.auto.create.topics",
        "auto.offset.reset",
        "bootstrap.servers",
        "metadata.broker.list",
        "compression.codec",
        "compression.type",
        "delivery.report.only.error",
        "delivery.timeout.ms",
        "message.timeout.ms",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.gapless.guarantee",
        "enable.idempotence",
        "enable.partition.eof",
        "error_cb",
        "group.id",
        "isolation.level",
        "linger.ms",
        "queue.buffering.max.ms",
        "logger",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "oauth_cb",
        "on_commit",
        "on_delivery",
        "partitioner",
        "plugin.library.paths",
        "queuing.strategy",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.oauthbearer.client.secret",
        "sasl.password",
        "sasl.username",
        "security.protocol",
        "ssl.key.password",
        "stats_cb",
        "throttle_cb",
        "transaction.timeout.ms",
        "transactional.id",
    }
)


def _template(text: str) -> str:
    known = {"prefix", "schema", "table"}
    names = set(_PLACE_IN_TEMPLATE.findall(text))
    if names - known or "{" in (rest := _PLACE_IN_TEMPLATE.sub("", text)) or "}" in rest or not text:
        raise ValueError("may have {prefix}, {schema} and {table} in it, and no other braces")
    return text


class DeadLetterConfig(Section):
    """Events that a target will never take are kept as [dead letters](../guides/streams.md#dead-letters)."""

    order: Literal["block_key", "skip"] = "block_key"
    """`block_key`: later events of the same key join them, so that a replay keeps their order. `skip`: later
    ones go on to the target."""
    max_share: Annotated[float, Field(gt=0, le=1)] = 0.01
    """The lane stops when more than this part of its last 10,000 events are dead letters."""
    max_count: PositiveInt = 100_000
    """It stops when there are more of them, without those that are there for an earlier one of their key."""
    max_bytes: ByteSize = Field(default=ByteSize(4096 * _MIB), ge=_MIB)
    """It stops before their file would be larger: later events of a key that has dead letters join them, with
    all that they hold."""


class QueueConfig(Section):
    """What may be under way to the target at the same time; then reading waits."""

    count: PositiveInt = 100_000
    """Events."""
    bytes: ByteSize = Field(default=ByteSize(16 * _MIB), ge=_MIB)
    """Of keys and values."""


class OutboxConfig(Section):
    """A table whose inserted rows are messages, not changes; its updates and deletes are left out."""

    table: StreamPattern
    """`schema.table`, one of the pipeline's streams."""
    topic: Annotated[str, Field(min_length=1)]
    """Where messages go: a name, in which `{column}` stands for a value of the row."""
    key: str | None = None
    """The column that holds the key; by default the table's primary key."""
    payload: Annotated[str, Field(min_length=1)] = "payload"
    """The column that holds the message, sent as it is."""
    type: str | None = None
    """A column that holds the message's type: the header `type`."""
    headers: list[str] = Field(default=[])
    """Further columns that become headers of their name."""


class MessagesConfig(Section):
    """What applications emit at Postgres by `pg_logical_emit_message`."""

    prefixes: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
    """Messages with these prefixes are sent; a `*` at the end of one matches more."""
    topic: Annotated[str, Field(min_length=1)] = "messages"
    """Where they go; `{prefix}` is the message's own prefix."""


class DebeziumConfig(Section):
    """How `format: debezium` says values for which Debezium leaves the choice, by its own names."""

    decimals: Literal["precise", "string", "double"] = "precise"
    """`decimal.handling.mode`."""
    times: Literal["adaptive", "adaptive_time_microseconds", "connect", "isostring"] = "adaptive"
    """`time.precision.mode`."""
    intervals: Literal["numeric", "string"] = "numeric"
    """`interval.handling.mode`."""
    binary: Literal["bytes", "base64", "base64-url-safe", "hex"] = "bytes"
    """`binary.handling.mode`."""
    schemas: bool = False
    """Put the schema into every event, as `schemas.enable` does."""


class StreamLaneConfig(Section):
    """What every stream lane has."""

    streams: list[StreamPattern] | None = None
    """Which streams of the pipeline: ids or patterns. By default all that are read from the log (`mode: cdc`
    or `strict_cdc`); others cannot be sent. Filters and columns are those of the stream."""
    format: Literal["json", "debezium", "avro", "protobuf"] = "json"
    """How events are [written](../guides/streams.md#formats)."""
    debezium: DebeziumConfig = DebeziumConfig()
    snapshot: Literal["initial", "never"] = "initial"
    """`initial`: the rows there are go first, as events with `op` `r`. `never`: only what changes from now
    on. Streams with `mode: strict_cdc` have no initial rows."""
    mask: dict[str, Literal["sha256", "redact", "null"]] = Field(default={})
    """`schema.table.column`: what is sent instead of the value. `sha256`: its hash, in hexadecimal; `redact`:
    `***`; `null`: null. A column of the key can be hashed only."""
    mask_salt: SecretStr | None = None
    """Put before each value that is hashed, so that nobody can look it up."""
    before: bool = True
    """Send the row as it was, as far as the source tells it: at Postgres by `replica_identity`, at MySQL by
    `binlog_row_image`, at MongoDB by pre-images."""
    prefix: str | None = None
    """`{prefix}` of topics, and the server's name in events; by default the source's `slot` or `name`."""
    identity: str | None = None
    """Under which name the target remembers this lane: two lanes that write to the same target need two. By
    default the source's `slot` or `name`. Another one means that the lane begins anew."""
    dead_letter: DeadLetterConfig = DeadLetterConfig()
    queue: QueueConfig = QueueConfig()
    execution: Literal["auto", "spark", "inline"] = "auto"
    """Where events are made: `inline`, in the lane's process; `spark`, by Spark tasks while more than
    `spark_bytes_min` of the log wait; `auto` is `spark` on machines with more than four cores."""
    spark_bytes_min: ByteSize = Field(default=ByteSize(1024 * _MIB), ge=_MIB)
    """A backlog of so many bytes of the log is worth a Spark session."""
    outbox: list[OutboxConfig] = Field(default=[])
    messages: MessagesConfig | None = None
    schema_changes: str | None = None
    """A topic that is told when columns of a stream change; by default none is."""
    transactions: str | None = None
    """A topic that is told where each transaction ends, with its events counted; by default none is."""

    @field_validator("identity")
    @classmethod
    def _identity_fits_everywhere(cls, identity: str | None) -> str | None:
        if identity is not None and not _IDENTITY.match(identity):
            raise ValueError("should have 1 to 100 of A-Z, a-z, 0-9, _, . and -")
        return identity

    @field_validator("mask")
    @classmethod
    def _masks_name_columns(cls, mask: dict[str, str]) -> dict[str, str]:
        for column in mask:
            if not _MASKED_COLUMN.match(column):
                raise ValueError(f"`{column}` is not schema.table.column")
        return mask


class KafkaOAuthConfig(Section):
    """Where `mechanism: OAUTHBEARER` gets its tokens, by OAuth's client credentials."""

    token_endpoint: Annotated[str, Field(min_length=1)]
    """`https://host/path`, where tokens are given out."""
    client_id: Annotated[str, Field(min_length=1)]
    """Who asks for them."""
    client_secret: SecretStr
    """`${VARIABLE}` or `${file:/path}`."""
    scope: str | None = None
    """What is asked for, if the endpoint wants to be told."""


class KafkaSecurityConfig(Section):
    """How the brokers are reached and who asks."""

    protocol: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = "plaintext"
    """With or without TLS, with or without SASL."""
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = None
    """For SASL. `GSSAPI` (Kerberos) is not in the client library."""
    username: str | None = None
    """For SASL."""
    password: SecretStr | None = None
    """`${VARIABLE}` or `${file:/path}`."""
    oauth: KafkaOAuthConfig | None = None
    ca: LocalPath | None = None
    """PEM file of the authorities that brokers' certificates are checked against; by default the system's."""
    certificate: LocalPath | None = None
    """PEM file of our own certificate, for TLS on both sides."""
    key: LocalPath | None = None
    """PEM file of its key."""
    key_password: SecretStr | None = None
    """Of the key's file, if it has one."""

    @field_validator("mechanism", mode="before")
    @classmethod
    def _mechanism_is_there(cls, mechanism: object) -> object:
        if mechanism == "GSSAPI":
            raise ValueError(
                "`GSSAPI` (Kerberos) is not in the Kafka client that Penstock comes with: use "
                "`SCRAM-SHA-512`, or `OAUTHBEARER`, at a listener of the brokers that has it"
            )
        return mechanism

    @model_validator(mode="after")
    def _is_whole(self) -> KafkaSecurityConfig:
        if self.protocol.startswith("sasl") and self.mechanism is None:
            raise ValueError(f"`protocol: {self.protocol}` needs `mechanism`")
        if (self.mechanism or "").startswith(("PLAIN", "SCRAM")) and None in (self.username, self.password):
            raise ValueError(f"`mechanism: {self.mechanism}` needs `username` and `password`")
        if self.oauth is not None and self.mechanism != "OAUTHBEARER":
            raise ValueError("`oauth` is for `mechanism: OAUTHBEARER`")
        if (self.certificate is None) != (self.key is None):
            raise ValueError("`certificate` and `key` go together")
        return self


class SchemaRegistryConfig(Section):
    """Where schemas of `format: avro` and `protobuf` are registered."""

    url: Annotated[str, Field(min_length=1)]
    """`http://host:8081`."""
    username: str | None = None
    """If it asks for one."""
    password: SecretStr | None = None
    """`${VARIABLE}` or `${file:/path}`."""
    ca: LocalPath | None = None
    """PEM file of the authorities that its certificate is checked against; by default the system's."""


class KafkaLaneConfig(StreamLaneConfig):
    """[Every change to Kafka](../guides/streams.md#kafka), in transactions."""

    bootstrap: Annotated[str, Field(min_length=1)]
    """`host:port` of some brokers, with commas between."""
    topic: str = "{prefix}.{schema}.{table}"
    """The topic of a stream."""
    create_topics: bool = True
    """Create topics that are not there. Otherwise they must be."""
    partitions: PositiveInt = 1
    """Of topics that are created."""
    replication_factor: PositiveInt | None = None
    """Of topics that are created; by default the broker's own."""
    topic_config: dict[str, SparkValue] = Field(default={})
    """Settings of topics that are created, by Kafka's names, such as `cleanup.policy: compact`."""
    on_partition_change: Literal["stop", "accept"] = "stop"
    """A topic that has another number of partitions than before sends keys elsewhere, and their order is lost
    at that point. `stop`: the lane stops before it; `accept`: it goes on, and says so."""
    buckets: Annotated[int, Field(ge=1, le=64)] = 1
    """How many producers write at the same time, each with the keys of its own. With more than one, the order
    is kept for each key, and no longer whole transactions. Fixed when the lane begins."""
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "lz4"
    """Of record batches."""
    linger: Duration = timedelta(milliseconds=5)
    """How long a producer waits for more before it sends."""
    transaction_timeout: Pause = timedelta(minutes=15)
    """The broker aborts a transaction that is open for longer; one of the source's is one of Kafka's. At most
    the broker's `transaction.max.timeout.ms`, which is as long by default."""
    commit_bytes: ByteSize = Field(default=ByteSize(16 * _MIB), ge=_MIB)
    """A transaction ends after about so many bytes, at the end of one of the source's."""
    tombstones: bool = True
    """After a delete, an event of the same key without a value, so that compaction forgets the key."""
    security: KafkaSecurityConfig = KafkaSecurityConfig()
    schema_registry: SchemaRegistryConfig | None = None
    properties: dict[str, SecretValue] = Field(default={})
    """Further settings of librdkafka, by its own names; not those that decide over loss, doubles or order. No
    error, log or check shows their values."""

    @field_validator("topic")
    @classmethod
    def _topic_is_a_template(cls, topic: str) -> str:
        return _template(topic)

    @field_validator("properties")
    @classmethod
    def _properties_are_free(cls, properties: Mapping[str, SecretStr]) -> Mapping[str, SecretStr]:
        for name in properties:
            if name in _OWN_PROPERTIES:
                raise ValueError(f"`{name}` is no property to choose: Penstock sets it itself")
        return properties

    @model_validator(mode="after")
    def _has_a_registry(self) -> KafkaLaneConfig:
        if self.format in ("avro", "protobuf") and self.schema_registry is None:
            raise ValueError(f"`format: {self.format}` needs `schema_registry`")
        return self

    @model_validator(mode="after")
    def _has_tokens(self) -> KafkaLaneConfig:
        is_told = any(name.startswith("sasl.oauthbearer.") for name in self.properties)
        if self.security.mechanism == "OAUTHBEARER" and self.security.oauth is None and not is_told:
            raise ValueError("`security.mechanism: OAUTHBEARER` needs `security.oauth`")
        return self


class KinesisLaneConfig(StreamLaneConfig):
    """[Every change to a Kinesis stream](../guides/streams.md#kinesis). Credentials are found where the AWS
    tools find them: the environment, files, the instance's role."""

    stream: Annotated[str, Field(min_length=1)]
    """Its name; records say which table they are of."""
    region: str | None = None
    """By default what the AWS tools are set to."""
    endpoint: str | None = None
    """Another address than AWS's own."""
    format: Literal["json", "debezium"] = "json"
    """How events are [written](../guides/streams.md#formats)."""
    aggregation: bool = False
    """Put many events into one record, in the format of the Kinesis Producer Library: fewer records to pay
    for, and consumers must take them apart."""
    on_unproven: Literal["publish", "stop"] = "publish"
    """What happens with events of which nobody can tell whether they are in the stream (they would be older
    than what it keeps): `publish` sends them, and they may be there twice: they are counted, in
    `penstock_stream_unproven_events_total`. `stop` stops the lane, with the error `unproven`."""
    take_over_wait: Duration = timedelta(seconds=35)
    """So long a new leader waits for what its predecessor has sent to arrive: longer than a request may
    last."""
    retry_max_attempts: PositiveInt = 10
    """A record that Kinesis refuses by an error of its own (`InternalFailure`) is tried so often before it
    becomes a dead letter, while others are taken. A stream that takes nothing at all, or throttles, is tried
    without end."""
    linger: Duration = timedelta(0)
    """How long an event waits for others before it is sent, while a call is not full: fewer calls, later
    events."""
    per_shard_in_flight: PositiveInt = 4
    """Calls at the same time for each shard."""
    checkpoint_every: Pause = timedelta(seconds=5)
    """How often it is noted up to where everything is in the stream: less is read back after a crash."""

    @model_validator(mode="after")
    def _has_one_stream(self) -> KinesisLaneConfig:
        for key in ("schema_changes", "transactions"):
            if getattr(self, key) is not None:
                raise ValueError(f"`{key}` has no meaning for Kinesis: there is one stream")
        return self


class FileLaneConfig(StreamLaneConfig):
    """[Every change as a line of JSON](../guides/streams-target.md) in one file."""

    path: LocalPath
    """The file. It grows; to begin another, stop the lane and take it away with `penstock resync --lane`."""
    format: Literal["json", "debezium"] = "json"
    """How events are [written](../guides/streams.md#formats)."""

"""Where events go: the topic of a stream, and the topics of messages.

A stream's changes go to one topic, named by the lane's template. Two kinds of rows are messages instead:

- *outbox tables*: a row that is inserted is a message, once. Where it goes, its key, its content and its
  headers are values of the row, sent as they are. Rows that are updated or deleted afterwards say nothing, so
  an application may tidy up as it likes; rows that were there before the lane are not messages of its time.
- *emitted messages* (`messages`).

Two streams whose topics would be equal only because of characters that topics cannot have are an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.capture.transactions import INSERT, ChangeRows
from penstock.core.errors import ConfigError
from penstock.core.stream import MESSAGES, StreamId
from penstock.sources.types import common_type
from penstock.streams.events import CREATE, MESSAGE, Bytes, Events
from penstock.streams.messages import EmittedRoute, message_events
from penstock.streams.topics import filled, legal_topic, rendered, template_columns

DEFAULT_TOPIC = "{prefix}.{schema}.{table}"
NO_TOPIC = "no_topic"

Keys = Callable[[ChangeRows], pa.BinaryArray]


@dataclass(frozen=True, slots=True)
class Outbox:
    """A table of messages: which columns say what. `topic` has `{column}` in it."""

    table: StreamId
    topic: str
    payload: str
    key: str | None = None  # None: the primary key
    headers: tuple[tuple[str, str], ...] = ()  # name, column

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that it needs."""
        key = () if self.key is None else (self.key,)
        return (self.payload, *key, *(column for _, column in self.headers), *template_columns(self.topic))


@dataclass(frozen=True, slots=True)
class Routes:
    """`emitted`: None, if nobody wants emitted messages."""

    prefix: str
    topic: str = DEFAULT_TOPIC
    outbox: tuple[Outbox, ...] = ()
    emitted: EmittedRoute | None = None


class Router:
    """Not for several threads."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._outbox = {each.table: each for each in routes.outbox}
        self._names: dict[str, str] = {}  # of topics, as the template gave them

    def route(self, stream: StreamId) -> str:
        """The topic of a stream's changes."""
        values = {"prefix": self._routes.prefix, "schema": stream.namespace, "table": stream.name}
        name = filled(self._routes.topic, values)
        topic = legal_topic(name)
        if self._names.setdefault(topic, name) != name:
            raise ConfigError(
                f"The changes of {stream} would go to the topic {topic}, as those of another stream do.",
                remedy="Give the lane another `topic`, or send the stream by a lane of its own.",
            )
        return topic

    def sends_messages(self, stream: StreamId) -> bool:
        """Whether its rows are messages, not changes of a table."""
        return stream == MESSAGES or stream in self._outbox

    def messages(self, changes: ChangeRows, actions: Bytes | None, keys: Keys) -> list[Events]:
        """The messages among rows of such a stream, in their order for each topic.

        `actions` is what the stream's selection says of each row; `keys` gives rows' keys as the lane's
        format has them.
        """
        if changes.stream == MESSAGES:
            return [] if self._routes.emitted is None else message_events(changes, self._routes.emitted)
        inserted = changes.op == INSERT
        if actions is not None:
            inserted &= actions == CREATE
        rows = np.flatnonzero(inserted)
        return (
            list(self._outbox_events(changes, self._outbox[changes.stream], rows, keys)) if len(rows) else []
        )

    def _outbox_events(
        self, changes: ChangeRows, outbox: Outbox, rows: npt.NDArray[np.intp], keys: Keys
    ) -> Iterator[Events]:
        inserted = ChangeRows(
            changes.stream, changes.leaf, changes.schema_id, changes.rows.take(pa.array(rows))
        )
        _require_columns(inserted, outbox)
        key = keys(inserted) if outbox.key is None else _content(inserted, outbox.key)
        value = _content(inserted, outbox.payload)
        headers = {name: inserted.new(column) for name, column in outbox.headers}
        topics = rendered(outbox.topic, inserted.new, len(inserted)).dictionary_encode()
        refused = {
            int(row): (NO_TOPIC, "a column that its topic is named by is null")
            for row in np.flatnonzero(topics.is_null().to_numpy(zero_copy_only=False))
        }
        whole = Events(
            changes.stream,
            legal_topic(outbox.topic),
            inserted.tx,
            inserted.op_index,
            np.full(len(inserted), MESSAGE, np.uint8),
            inserted.xid.astype(np.int64),
            key,
            value,
            refused=refused,
            headers=headers,
        )
        codes = topics.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        for code in np.unique(codes):
            part = whole.take(np.flatnonzero(codes == code))
            yield part if code < 0 else _sent_to(legal_topic(topics.dictionary[int(code)].as_py()), part)


def bytes_of_hex(texts: pa.StringArray) -> pa.BinaryArray:
    """Values of type bytea, which are printed as hexadecimal digits behind `\\x`."""
    texts = pa.concat_arrays([texts])  # without an offset
    _, offset_buffer, data_buffer = texts.buffers()
    rows = len(texts)
    offsets = np.frombuffer(offset_buffer, np.int32, rows + 1)
    data = (
        np.frombuffer(data_buffer, np.uint8, int(offsets[-1]))
        if rows and data_buffer
        else np.empty(0, np.uint8)
    )
    lengths = np.diff(offsets)
    digits = np.ones(len(data), np.bool_)
    begins = offsets[:-1][lengths > 0]
    digits[begins] = digits[begins + 1] = False
    nibbles = _NIBBLE[data[digits]]
    ends = np.cumsum(np.maximum(lengths - 2, 0) // 2)
    found = pa.py_buffer((nibbles[0::2] << 4) | nibbles[1::2])
    where = pa.py_buffer(np.concatenate([[0], ends]).astype(np.int32))
    validity = texts.buffers()[0]
    return pa.Array.from_buffers(pa.binary(), rows, [validity, where, found], texts.null_count)


_NIBBLE = np.zeros(256, np.uint8)
for _value, _digit in enumerate(b"0123456789abcdef"):
    _NIBBLE[_digit] = _value


def _content(changes: ChangeRows, column: str) -> pa.BinaryArray:
    """As the column has it: bytes, or the text of anything else."""
    values, kind = changes.new(column), common_type(changes.version.columns[column])
    if kind.text is not None:
        values = kind.text(values).values
    if kind.name == "bytea":
        return bytes_of_hex(values)
    return pa.concat_arrays([values]).cast(pa.binary())


def _require_columns(changes: ChangeRows, outbox: Outbox) -> None:
    for column in outbox.columns:
        if column not in changes.version.types:
            raise ConfigError(
                f"The outbox table {outbox.table} has no column {column}.",
                remedy="Name its columns in the lane's `outbox`.",
            )


def _sent_to(route: str, events: Events) -> Events:
    return Events(
        events.stream,
        route,
        events.tx,
        events.op,
        events.kind,
        events.xid,
        events.key,
        events.value,
        events.chunk,
        events.refused,
        events.headers,
    )

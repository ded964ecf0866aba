"""`python -m tests.prepared_encoders`: what the stream lanes do to events, in every format, once.

In a process of its own, so that a test can say where its compiled code is kept.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.streams.encoding.encoder import EncodingSettings, RegistrySettings, encoder
from penstock.streams.encoding.view import StreamView
from penstock.streams.events import Events
from penstock.streams.kafka.partitions import partitions_of
from penstock.streams.kinesis.aggregation import aggregated
from penstock.streams.kinesis.records import RecordMaker
from tests.schema_registry import schema_registry
from tests.stream_changes import Change, changes_of, column, numeric_modifier

STREAM = StreamId("public", "orders")
#: Values of every class of types, twice: a row and the same one changed.
VALUES = {
    "int4": ("1", "2"),
    "int8": ("3", "-9223372036854775808"),
    "float8": ("0.1", "1e+300"),
    "numeric": ("12.50", "99.99"),
    "bool": ("t", "f"),
    "text": ("a", 'b "c"'),
    "jsonb": ('{"a": 1}', "[]"),
    "bytea": ("\\x00ff", "\\x"),
    "date": ("2026-01-31", "1999-12-31"),
    "timestamp": ("2026-01-31 12:00:00.123456", "2026-01-31 12:00:00"),
    "timestamptz": ("2026-01-31 12:00:00.5+00", "2026-01-31 12:00:00+00"),
    "time": ("12:00:00", "12:00:00.5"),
    "uuid": ("8f14e45f-ceea-467f-ab26-8bd6b6a51f43", "8f14e45f-ceea-467f-ab26-8bd6b6a51f44"),
    "interval": ("P1Y2M3DT4H5M6.7S", "PT0S"),
}
COLUMNS = [column(f"c_{name}", name, numeric_modifier(12, 2) if name == "numeric" else -1) for name in VALUES]


def main() -> None:
    before = {f"c_{name}": pair[0] for name, pair in VALUES.items()}
    after = {f"c_{name}": pair[1] for name, pair in VALUES.items()} | {"c_int4": "1"}
    changes = [
        Change("i", before),
        Change("u", after, before),
        Change("d", None, before),
    ]
    rows = changes_of(STREAM, COLUMNS, changes)
    loaded = changes_of(STREAM, COLUMNS, [Change("r", {**before, "c_text": None})])
    names = tuple(each.name for each in COLUMNS)
    views = [
        StreamView(STREAM, "topic", names, ("c_int4",), masks=(("c_text", "sha256"),)),
        StreamView(STREAM, "topic", names, row_keys=True),
    ]
    with schema_registry() as registry:
        for settings in _settings(RegistrySettings(registry.url)):
            for view in views:
                made = encoder(settings)
                _deliver(made.encode(rows, view))
                _deliver(made.encode(loaded, view, chunk="0"))


def _settings(registry: RegistrySettings) -> Iterator[EncodingSettings]:
    yield EncodingSettings("json", mask_salt="salt")
    for schemas in (False, True):
        yield EncodingSettings("debezium", schemas=schemas, mask_salt="salt")
    yield EncodingSettings("debezium", decimals="string", times="connect", binary="base64", mask_salt="salt")
    yield EncodingSettings("avro", registry, mask_salt="salt")
    yield EncodingSettings("protobuf", registry, mask_salt="salt")


def _deliver(events: Events) -> None:
    assert len(events)
    partitions_of(events.key, 12)
    maker = RecordMaker("lane", Lsn(1))
    maker.sizes(events)
    records = maker.records(events)
    chosen = np.arange(len(events))
    assert records.body("stream", chosen)
    assert list(aggregated(records, chosen, chosen % 2, 1 << 20))


if __name__ == "__main__":
    main()

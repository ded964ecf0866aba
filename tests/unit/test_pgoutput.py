"""The scan of raw pgoutput messages against a decoder that reads one message at a time, in plain Python."""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.capture.postgres.rows import TransactionIds, change_rows
from penstock.core.errors import SourceError
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.log.columns import log_schema, stored_name
from penstock.sources.postgres.pgoutput import (
    POSTGRES_EPOCH_US,
    Carry,
    MessageBatch,
    decode_rows,
    parse_relation,
    parse_truncate,
    scan,
)

pytestmark = pytest.mark.unit

UNCHANGED = object()
COLUMNS = {1: ("id", "name", "_odd"), 2: ("id",), 3: tuple(f"c{i}" for i in range(9))}
Value = str | None | object


@dataclass(frozen=True)
class Change:
    letter: str
    oid: int
    new: tuple[Value, ...] | None
    old: tuple[Value, ...] | None
    old_marker: str


def wal(payload: bytes) -> bytes:
    return b"w" + bytes(24) + payload


def keepalive(position: int) -> bytes:
    return b"k" + struct.pack(">QqB", position, 0, 0)


def begin(tx: int, commit_ts: int, xid: int) -> bytes:
    return wal(b"B" + struct.pack(">QqI", tx, commit_ts, xid))


def commit(start: int, end: int) -> bytes:
    return wal(b"C\0" + struct.pack(">QQq", start, end, 0))


def relation(oid: int, columns: tuple[str, ...], identity: bytes = b"d") -> bytes:
    described = b"".join(b"\1" + name.encode() + b"\0" + struct.pack(">Ii", 25, -1) for name in columns)
    head = b"R" + struct.pack(">I", oid) + b"public\0" + f"t{oid}".encode() + b"\0" + identity
    return wal(head + struct.pack(">H", len(columns)) + described)


def truncate(*oids: int) -> bytes:
    return wal(b"T" + struct.pack(">IB", len(oids), 0) + b"".join(struct.pack(">I", oid) for oid in oids))


def tuple_bytes(values: tuple[Value, ...]) -> bytes:
    parts = [struct.pack(">H", len(values))]
    for value in values:
        if isinstance(value, str):
            encoded = value.encode()
            parts.append(b"t" + struct.pack(">I", len(encoded)) + encoded)
        else:
            parts.append(b"n" if value is None else b"u")
    return b"".join(parts)


def change_bytes(change: Change) -> bytes:
    message = change.letter.encode() + struct.pack(">I", change.oid)
    if change.old is not None:
        message += change.old_marker.encode() + tuple_bytes(change.old)
    if change.new is not None:
        message += b"N" + tuple_bytes(change.new)
    return wal(message)


text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
plain = st.one_of(st.none(), text)


@st.composite
def changes(draw: st.DrawFn) -> Change:
    oid = draw(st.sampled_from(sorted(COLUMNS)))
    width = len(COLUMNS[oid])

    def row(values: st.SearchStrategy[Any]) -> tuple[Value, ...]:
        return tuple(draw(st.lists(values, min_size=width, max_size=width)))

    letter = draw(st.sampled_from("IUD"))
    marker = draw(st.sampled_from("KO"))
    if letter == "I":
        return Change("I", oid, row(plain), None, "")
    if letter == "D":
        return Change("D", oid, None, row(plain), marker)
    old = row(plain) if draw(st.booleans()) else None
    return Change("U", oid, row(st.one_of(plain, st.just(UNCHANGED))), old, marker if old else "")


@st.composite
def transactions(draw: st.DrawFn) -> list[tuple[int, list[Change | tuple[int, ...]]]]:
    count = draw(st.integers(1, 4))
    steps = draw(st.lists(st.integers(100, 1000), min_size=count, max_size=count))
    item = st.one_of(changes(), changes(), changes(), st.just((1, 2)))
    return [(sum(steps[: i + 1]), draw(st.lists(item, max_size=8))) for i in range(count)]


def expected_row(change: Change, tx: int, ordinal: int) -> dict[str, Any]:
    """What one change must look like in the log, decided value by value."""
    names = COLUMNS[change.oid]
    key_only = change.old_marker == "K"
    row: dict[str, Any] = {"_tx": tx, "_op_index": 2 * ordinal, "_op": change.letter.lower()}
    row["_old_kind"] = "n" if change.old is None else ("k" if key_only else "f")
    row["_old"] = None if change.old is None else dict(zip(map(stored_name, names), change.old, strict=True))
    unchanged = []
    for index, name in enumerate(names):
        value = None if change.new is None else change.new[index]
        if value is UNCHANGED:
            old = None if change.old is None else change.old[index]
            value = old
            if change.old is None or (key_only and old is None):
                unchanged.append(name)
        row[stored_name(name)] = value
    row["_unchanged"] = unchanged or None
    return row


def table(oid: int) -> TableSchema:
    columns = tuple(SourceColumn(name, 25, -1, "text", "text") for name in COLUMNS[oid])
    return TableSchema(StreamId("public", f"t{oid}"), columns, relation_oid=oid)


def decode(frames: list[bytes], cuts: list[int], skip_below: int = 0) -> dict[int, list[dict[str, Any]]]:
    """All rows by table, read in batches that end at `cuts`."""
    rows: dict[int, list[dict[str, Any]]] = {oid: [] for oid in COLUMNS}
    carry, ids = Carry(), TransactionIds(1000)
    bounds = [0, *sorted({cut % (len(frames) + 1) for cut in cuts}), len(frames)]
    for first, last in itertools.pairwise(bounds):
        batch = MessageBatch.join(frames[first:last])
        found = scan(batch, 0, len(batch), carry, skip_below)
        wide = ids.widen(found.xid)
        for oid in COLUMNS:
            chosen = np.flatnonzero(found.relation == oid)
            if len(chosen):
                arrow_schema = log_schema(table(oid), f"public.t{oid}")
                decoded, operations = change_rows(batch, found, wide, chosen, table(oid), arrow_schema)
                decoded.validate(full=True)
                assert sum(operations.values()) == len(chosen)
                rows[oid].extend(decoded.to_pylist())
    return rows


@settings(deadline=None, max_examples=150)
@given(transactions(), st.lists(st.integers(0, 200), max_size=5), st.booleans())
def test_batches_cut_anywhere_give_the_same_rows_as_reading_message_by_message(
    history: list[tuple[int, list[Change | tuple[int, ...]]]], cuts: list[int], with_keepalives: bool
) -> None:
    frames = [relation(oid, names) for oid, names in COLUMNS.items()]
    expected: dict[int, list[dict[str, Any]]] = {oid: [] for oid in COLUMNS}
    for number, (tx, items) in enumerate(history):
        frames.append(begin(tx, number, 900 + number))
        ordinal = 0
        for item in items:
            if isinstance(item, Change):
                frames.append(change_bytes(item))
                expected[item.oid].append({**expected_row(item, tx, ordinal), "_xid": 900 + number})
                ordinal += 1
            else:
                frames.append(truncate(*item))
                ordinal += len(item)
            if with_keepalives:
                frames.append(keepalive(5))
        frames.append(commit(tx, tx + 50))
    rows = decode(frames, cuts)
    for oid, wanted in expected.items():
        without_time = [{k: v for k, v in row.items() if k != "_commit_ts"} for row in rows[oid]]
        assert without_time == wanted


def test_a_scan_reports_commits_keepalives_and_the_open_transaction() -> None:
    frames = [begin(100, 7, 3), commit(100, 150), keepalive(180), begin(200, 8, 4), keepalive(190)]
    carry = Carry()
    found = scan(MessageBatch.join(frames), 0, len(frames), carry)
    assert found.commit_end.tolist() == [150]
    assert found.commit_message.tolist() == [1]
    assert found.keepalive == 180, "a keepalive inside a transaction says nothing about whole transactions"
    assert carry.in_transaction
    assert found.commit_ts_us.tolist()[1:] == [POSTGRES_EPOCH_US + 7, POSTGRES_EPOCH_US + 8]


def test_changes_below_the_logs_end_are_left_out_and_later_ones_keep_their_ordinals() -> None:
    insert = change_bytes(Change("I", 2, ("x",), None, ""))
    frames = [relation(2, COLUMNS[2]), begin(100, 0, 1), insert, commit(100, 150)]
    frames += [begin(200, 0, 2), insert, insert, commit(200, 250)]
    rows = decode(frames, [], skip_below=150)[2]
    assert [(row["_tx"], row["_op_index"]) for row in rows] == [(200, 0), (200, 2)]


def test_a_truncate_takes_an_ordinal_per_relation() -> None:
    insert = change_bytes(Change("I", 2, ("x",), None, ""))
    frames = [relation(2, COLUMNS[2]), begin(100, 0, 1), insert, truncate(1, 2, 3), insert, commit(100, 150)]
    found = scan(batch := MessageBatch.join(frames), 0, len(frames), Carry())
    assert len(batch) == len(frames)
    assert found.ordinal.tolist() == [0, 4]
    message = found.rare[1]
    assert (message.ordinal, message.changes_before) == (1, 1)
    assert parse_truncate(message.payload).relations == (1, 2, 3)


def test_a_relation_message_is_read_with_its_identity_and_key() -> None:
    message = parse_relation(relation(77, ("id", "naïve name"), b"f")[25:])
    assert (message.oid, message.namespace, message.name, message.replica_identity) == (
        77,
        "public",
        "t77",
        "f",
    )
    assert [column.name for column in message.columns] == ["id", "naïve name"]
    assert all(column.part_of_key and column.type_modifier == -1 for column in message.columns)


def test_a_row_that_does_not_fit_its_description_is_an_error() -> None:
    batch = MessageBatch.join([begin(1, 0, 1), change_bytes(Change("I", 2, ("x", "y"), None, ""))])
    found = scan(batch, 0, 2, Carry())
    with pytest.raises(SourceError, match="does not fit"):
        decode_rows(batch, found.kind, found.tuple_at, 1)


def test_transaction_ids_become_the_nearest_64_bit_value() -> None:
    ids = TransactionIds((5 << 32) + 10)
    wide = ids.widen(np.array([9, 0xFFFFFFFF, 11], np.int64))
    assert wide.tolist() == [(5 << 32) + 9, (4 << 32) + 0xFFFFFFFF, (5 << 32) + 11]
    late = TransactionIds((5 << 32) + 0xFFFFFFF0)
    assert late.widen(np.array([3], np.int64)).tolist() == [(6 << 32) + 3], "the server went on counting"


def test_transaction_ids_are_not_led_astray_by_a_value_from_no_transaction() -> None:
    ids = TransactionIds((5 << 32) + 0xF0000000)
    assert ids.widen(np.array([], np.int64)).tolist() == []
    assert ids.widen(np.array([0x70000001], np.int64)).tolist() == [(5 << 32) + 0x70000001]

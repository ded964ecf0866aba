"""Events as records of Kinesis, alone and aggregated: others can read what is sent."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.streams.events import CREATE, READ, TOMBSTONE, Events
from penstock.streams.kinesis.aggregation import aggregated, taken_apart
from penstock.streams.kinesis.records import RecordMaker, Records, group_of, identities, name_of
from penstock.streams.kinesis.shards import ShardMap
from tests.kinesis_server import Record, taken_apart_as_consumers_do
from tests.unit.test_kinesis_shards import even_shards

_EPOCH = Lsn(77)
_keys = st.one_of(
    st.none(),
    st.integers().map(lambda number: json.dumps([number])),
    st.text(max_size=300).map(lambda text: json.dumps([text], ensure_ascii=False)),
    st.just('["' + "é" * 254 + '"]'),
)
_objects = st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.text(max_size=20)), max_size=3)
_values = st.one_of(st.none(), st.binary(max_size=70), _objects.map(lambda it: json.dumps(it).encode()))
_rows = st.lists(st.tuples(_keys, _values, st.booleans()), min_size=1, max_size=20)


def _events(rows: list[tuple[str | None, bytes | None, bool]], chunk: str = "") -> Events:
    count = len(rows)
    kinds = [READ if chunk else TOMBSTONE if is_tombstone else CREATE for _, _, is_tombstone in rows]
    keys = [None if key is None else key.encode() for key, _, _ in rows]
    return Events(
        StreamId('we"ird', "naïve"),
        "a.route",
        np.zeros(count, np.int64) if chunk else np.arange(count, dtype=np.int64) + 2**40,
        np.arange(count, dtype=np.int64),
        np.array(kinds, np.uint8),
        np.zeros(count, np.int64),
        pa.array(keys, pa.binary()),
        pa.array([value for _, value, _ in rows], pa.binary()),
        chunk,
    )


@given(_rows, st.sampled_from(["", 'chunk "1"']), st.integers(0, 3))
def test_what_is_sent_says_key_value_and_name(
    rows: list[tuple[str | None, bytes | None, bool]], chunk: str, skipped: int
) -> None:
    rows = rows[skipped:] or rows
    events = _events([("[0]", b"{}", False), *rows], chunk).slice(1, 1 + len(rows))
    maker = RecordMaker("shop", _EPOCH)
    records = maker.records(events)
    assert (maker.sizes(events) == records.sizes).all()
    body = json.loads(records.body("s", np.arange(len(rows))))
    assert body["StreamName"] == "s"
    for number, (key, value, _) in enumerate(rows):
        entry = body["Records"][number]
        hashed = (value or b"") if key is None else key.encode()
        is_short = key is not None and len(key) <= 256
        assert entry["PartitionKey"] == (key if is_short else hashlib.md5(hashed).hexdigest())
        high, low = map(int, records.hashes[number])
        assert high << 64 | low == int(hashlib.md5(entry["PartitionKey"].encode()).hexdigest(), 16)
        data = base64.b64decode(entry["Data"])
        assert len(data) + len(entry["PartitionKey"].encode()) == records.sizes[number]
        _assert_says(json.loads(data), value, events, number)
        name = name_of(data, "shop")
        assert name is not None
        assert (name.group, name.epoch) == (group_of(events), _EPOCH)
        assert name.identity == tuple(map(int, identities(events)[number]))
        assert name_of(data, "another") is None


def _assert_says(said: dict[str, Any], value: bytes | None, events: Events, number: int) -> None:
    told = said.pop("penstock")
    assert (told["stream"], told["route"]) == ('we"ird.naïve', "a.route")
    if not events.chunk:
        ending = "_n" if events.kind[number] == TOMBSTONE else ""
        assert told["id"] == f"{events.tx[number]}_{events.op[number]}{ending}"
    if value is None:
        assert said == {"value": None}
    elif value[:1] == b"{" and value[-1:] == b"}":
        assert said == json.loads(value)
    else:
        assert base64.b64decode(said["value"]) == value


@given(
    st.lists(
        st.tuples(_values, st.one_of(st.none(), st.text()), st.one_of(st.none(), st.text())),
        min_size=1,
        max_size=5,
    )
)
def test_headers_are_in_the_envelope_and_change_nothing_else(
    rows: list[tuple[bytes | None, str | None, str | None]],
) -> None:
    plain = _events([("[1]", value, False) for value, _, _ in rows])
    headers = {
        "type": pa.array([first for _, first, _ in rows], pa.string()),
        'od"d': pa.array([second for _, _, second in rows], pa.string()),
    }
    events = replace(plain, headers=headers)
    maker = RecordMaker("shop", _EPOCH)
    records, without = maker.records(events), maker.records(plain)
    assert (maker.sizes(events) == records.sizes).all()
    assert (records.hashes == without.hashes).all()
    for number, (_, first, second) in enumerate(rows):
        data, bare = (_data(each, number) for each in (records, without))
        said = json.loads(data)
        expected = {name: text for name, text in (("type", first), ('od"d', second)) if text is not None}
        assert said["penstock"].pop("headers", {}) == expected
        assert said == json.loads(bare)
        assert name_of(data, "shop") == name_of(bare, "shop")


def _data(records: Records, row: int) -> bytes:
    return base64.b64decode(json.loads(records.body("s", np.array([row])))["Records"][0]["Data"])


@given(st.integers(0, 2**40), st.integers(0, 2**20), st.booleans())
def test_events_of_one_group_have_different_names(tx: int, op: int, is_loaded: bool) -> None:
    chunk = "a" if is_loaded else ""
    rows: list[tuple[str | None, bytes | None, bool]] = [
        ("[1]", b"{}", False),
        ("[2]", b"{}", False),
        (None, b"{}", False),
        (None, b"{}", False),
        ("0" * 32, b"{}", False),  # the hash of a row without a key
        ("0" * 32, b"{}", False),
    ]
    names = {tuple(map(int, name)) for name in identities(_events(rows, chunk))}
    assert len(names) == len(rows)


def test_a_row_that_is_loaded_again_has_its_name_again() -> None:
    first = identities(_events([("[1]", b"{}", False), ("[2]", b"{}", False)], "a"))
    again = identities(_events([("[2]", b'{"later": 1}', False), ("[1]", b"{}", False)], "a"))
    assert (first == again[::-1]).all()


def test_records_of_others_have_no_name() -> None:
    for data in (b"", b"{}", b"\x00\xff", b'{"penstock":{"identity":"shop"}}', b'"penstock":{"identity":1'):
        assert name_of(data, "shop") is None


@given(_rows, st.integers(1, 4), st.integers(100, 1000))
def test_aggregates_are_taken_apart_by_consumers_and_by_us(
    rows: list[tuple[str | None, bytes | None, bool]], shards: int, bytes_max: int
) -> None:
    records = RecordMaker("shop", _EPOCH).records(_events(rows))
    shard_map = ShardMap(even_shards(shards))
    chosen = np.arange(len(rows))
    places = shard_map.places(records.hashes)
    parts = list(aggregated(records, chosen, places, bytes_max))
    assert sorted(row for part in parts for row in part.rows) == list(chosen)
    for part in parts:
        assert len(part.rows) == 1 or len(part.data) <= bytes_max
        shard = shard_map.open[places[part.rows[0]]]
        assert shard.first <= part.hash <= shard.last
        expected = [
            (records.key(row), records.data[records.data_ends[row] : records.data_ends[row + 1]].tobytes())
            for row in part.rows
        ]
        assert taken_apart(part.data) == expected
        shard_range = {"StartingHashKey": shard.first, "EndingHashKey": shard.last}
        whole = Record(shard.id, 1, part.key.decode(), part.data)
        read = taken_apart_as_consumers_do(whole, {"HashKeyRange": shard_range})
        assert [(each.partition_key.encode(), each.data) for each in read] == expected


@given(st.binary(max_size=50))
def test_what_is_no_aggregate_is_not_taken_apart(data: bytes) -> None:
    assert taken_apart(data) is None
    assert taken_apart(b"\xf3\x89\x9a\xc2" + data) is None

"""What a bucket of a comparison shows, against a model that goes through it one record at a time."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.streams.comparison.judging import Judged, Rules, judge
from penstock.streams.comparison.ranges import NotComparable, Range, Wanted, begun_at, ranges_of
from penstock.streams.comparison.spilled import Rows, Spilled
from penstock.streams.encoding.encoder import EncodingSettings
from penstock.streams.encoding.sent_time import without_time
from penstock.streams.events import TOMBSTONE
from penstock.streams.publisher import Standing
from penstock.streams.rewinds import Rewind

Row = dict[str, Any]
KINDS = ("missing", "gone", "dead", "extra", "doubled", "out_of_order", "different")
NUMBERS = (
    ("stream", np.int32),
    ("route", np.int32),
    ("tx", np.int64),
    ("op", np.int64),
    ("kind", np.uint8),
    ("high", np.uint64),
    ("low", np.uint64),
    ("place", np.int32),
    ("at", np.int64),
)


def rows_of(rows: list[Row]) -> Rows:
    columns: dict[str, Any] = {name: np.array([row[name] for row in rows], kind) for name, kind in NUMBERS}
    return Rows(key=pa.array([row["key"] for row in rows], pa.binary()), **columns)


def row(tx: int, op: int = 0, key: bytes | None = b"a", **more: int) -> Row:
    usual = {"stream": 0, "route": 0, "kind": ord("u"), "high": 1, "low": 1, "place": 0, "at": 0}
    return {**usual, "tx": tx, "op": op, "key": key, **more}


def name(each: Row) -> tuple[int, int, int, bool]:
    return each["stream"], each["tx"], each["op"], each["kind"] == TOMBSTONE


def whole(**changed: Any) -> Rules:
    return Rules(np.zeros(2, np.int64), np.full(2, 1 << 40, np.int64), **changed)


def shown(judged: Judged) -> dict[str, int]:
    return {kind: count for kind in KINDS if (count := len(getattr(judged, kind)))}


def model(expected: list[Row], found: list[Row], rules: Rules) -> Counter[str]:
    counts: Counter[str] = Counter()
    there = defaultdict(list)
    for each in sorted(found, key=lambda one: one["at"]):
        there[name(each)].append(each)
    wanted = {name(each): each for each in expected}
    for called, each in wanted.items():
        copies = there.get(called, [])
        if not copies:
            bound = rules.gone_to.get((each["route"], each["place"]), -1)
            kind = "dead" if called in rules.letters else "gone" if each["tx"] <= bound else "missing"
            counts[kind] += 1
        sent = 1 + sum(rewind.to <= each["tx"] < rewind.held for rewind in rules.rewinds)
        counts["doubled"] += max(0, len(copies) - sent)
        counts["different"] += sum(
            any(copy[part] != each[part] for part in ("high", "low", "kind", "key", "route"))
            for copy in copies
        )
    counts["extra"] = sum(len(copies) for called, copies in there.items() if called not in wanted)
    before: dict[tuple[bytes, int, int], Row] = {}
    for called in sorted(wanted, key=lambda each: each[1:]):
        if called in there and there[called][0]["key"] is not None:
            first = there[called][0]
            last = before.get((first["key"], first["stream"], first["route"]))
            if last is not None and (last["place"] != first["place"] or last["at"] > first["at"]):
                counts["out_of_order"] += 1
            before[first["key"], first["stream"], first["route"]] = first
    return +counts


@pytest.mark.parametrize("seed", range(30))
def test_a_bucket_shows_what_a_model_finds(seed: int) -> None:
    draw = random.Random(seed)
    expected = []
    for tx in range(1, 60):
        for op in range(0, 2 * draw.randrange(3), 2):
            key = draw.choice([b"a", b"b", b"c", None])
            stream = draw.randrange(2)
            made = row(tx, op, key, stream=stream, place=-1 if key is None else key[0] % 2, high=tx, low=op)
            expected.append(made)
            if draw.random() < 0.2:
                expected.append({**made, "kind": TOMBSTONE})
    found = [{**each, "place": max(each["place"], 0)} for each in expected]
    for _ in range(draw.randrange(8)):
        at = draw.randrange(len(found))
        action = draw.choice(["remove", "double", "swap", "alter", "invent", "move"])
        if action == "remove":
            del found[at]
        elif action == "double":
            found.insert(draw.randrange(len(found)), found[at])
        elif action == "swap":
            other = draw.randrange(len(found))
            found[at], found[other] = found[other], found[at]
        elif action == "alter":
            found[at] = {**found[at], draw.choice(["high", "low"]): 999}
        elif action == "invent":
            found.append({**found[at], "op": found[at]["op"] + 101})
        else:
            found[at] = {**found[at], "place": 1 - found[at]["place"]}
    found = [{**each, "at": at} for at, each in enumerate(found)]
    letters = frozenset(name(each) for each in draw.sample(expected, 3))
    rewinds = [Rewind(Lsn(20), Lsn(30))] if draw.random() < 0.5 else []
    gone = {(0, 0): draw.randrange(20), (0, -1): 9} if draw.random() < 0.5 else {}
    rules = whole(letters=letters, rewinds=rewinds, gone_to=gone)
    assert Counter(shown(judge(rows_of(expected), rows_of(found), rules))) == model(expected, found, rules)


def test_nothing_beyond_the_range_of_a_stream_counts() -> None:
    rules = Rules(np.array([10, 0], np.int64), np.array([20, 0], np.int64))
    expected = [row(tx) for tx in (5, 10, 19, 25)]
    found = [row(4, at=1), row(10, at=2), row(30, at=3), row(12, stream=1, at=4)]
    judged = judge(rows_of(expected), rows_of(found), rules)
    assert shown(judged) == {"missing": 1}
    assert judged.expected.tx[judged.missing].tolist() == [19]


def test_a_key_may_be_in_two_partitions_only_if_that_was_accepted() -> None:
    expected, found = [row(1), row(2)], [row(1, at=7, place=0), row(2, at=3, place=1)]
    assert shown(judge(rows_of(expected), rows_of(found), whole())) == {"out_of_order": 1}
    assert shown(judge(rows_of(expected), rows_of(found), whole(keys_may_move=True))) == {}


def test_nothing_on_either_side_is_no_difference() -> None:
    assert shown(judge(rows_of([]), rows_of([]), whole())) == {}


def test_spilled_rows_come_back_with_all_of_a_key_in_one_bucket(tmp_path: Any) -> None:
    side = Spilled(tmp_path, "found", 4, (1, 2))
    keys = [None if number % 7 == 0 else b"k%d" % (number % 5) for number in range(1000)]
    count = np.arange(1000)
    for start in range(0, 1000, 100):
        part = slice(start, start + 100)
        key = pa.array(keys[part], pa.binary())
        side.add(0, 0, count[part], count[part], np.full(100, ord("u"), np.uint8), key, key,
                 np.zeros(100, np.int32), count[part])  # fmt: skip
    side.done()
    buckets = [side.bucket(number) for number in range(4)]
    assert sorted(tx for each in buckets for tx in each.tx.tolist()) == list(range(1000))
    where = [set(each.key.drop_null().to_pylist()) for each in buckets]
    assert sum(map(len, where)) == len(set.union(*where)) == 5
    assert side.rows == 1000


def test_the_range_of_a_stream_is_what_the_lane_has_told_of_it_and_the_log_still_has() -> None:
    a, b, c, d = (StreamId("public", each) for each in "abcd")
    loads = {
        "public.a": {"since": "0/10"},
        "public.b": {"since": "0/50", "load": "x", "point": "0/60", "behind": True},
        "public.c": {},
    }
    standing = Standing(Lsn(0x100), Lsn(1), "s", 1, loads)
    found = ranges_of([a, b, c, d], standing, Lsn(0x20), Lsn(0xF0), Wanted())
    assert found[a] == Range(Lsn(0x20), Lsn(0xF0))
    assert found[b] == Range(Lsn(0x50), Lsn(0x60)), "it loads: told up to its own point"
    assert found[c] == Range(Lsn(0x20), Lsn(0xF0), is_certain=False)
    assert isinstance(found[d], NotComparable)
    asked = ranges_of([a], standing, Lsn(0x20), Lsn(0xF0), Wanted(Lsn(0x80), Lsn(0x90)))
    assert asked[a] == Range(Lsn(0x80), Lsn(0x90))
    late = ranges_of([a], standing, Lsn(0x20), Lsn(0xF0), Wanted(Lsn(0x180)))
    assert isinstance(late[a], NotComparable)


def test_a_beginning_that_nobody_wrote_down_is_taken_from_the_topic() -> None:
    within = Range(Lsn(0x20), Lsn(0xF0), is_certain=False)
    assert begun_at(within, Lsn(0x40), 0x30).start == 0x40, "the newest load"
    assert begun_at(within, None, 0x30).start == 0x30, "or the first change"
    assert begun_at(within, None, None).start == 0xF0, "or nothing is compared"
    assert begun_at(Range(Lsn(0x20), Lsn(0xF0)), Lsn(0x40), 0x30).start == 0x20


@pytest.mark.parametrize(
    ("format", "one", "other", "apart"),
    [
        (
            "json",
            b'{"a":"ts_ms\\":1}","ts_ms":17}',
            b'{"a":"ts_ms\\":1}","ts_ms":18}',
            b'{"a":"b","ts_ms":17}',
        ),
        (
            "debezium",
            b'{"after":1,"source":{"version":"1","x":"y"},"ts_ms":1,"ts_us":2,"ts_ns":3}',
            b'{"after":1,"source":{"version":"2","x":"y"},"ts_ms":4,"ts_us":5,"ts_ns":6}',
            b'{"after":2,"source":{"version":"1","x":"y"},"ts_ms":1,"ts_us":2,"ts_ns":3}',
        ),
        ("avro", b"\x00row" + b"\x81" * 6, b"\x00row" + b"\x82" * 6, b"\x00raw" + b"\x81" * 6),
        ("protobuf", b"\x00row" + b"\x81" * 6, b"\x00row" + b"\x82" * 6, b"\x00raw" + b"\x81" * 6),
    ],
)
def test_when_an_event_was_made_does_not_count_and_all_else_does(
    format: Any, one: bytes, other: bytes, apart: bytes
) -> None:
    values = pa.array([one, other, apart, None], pa.binary())
    compared = without_time(values, EncodingSettings(format=format)).to_pylist()
    assert compared[0] == compared[1] != compared[2]
    assert compared[3] is None

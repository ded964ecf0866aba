"""Pairing rows of two sides: against a plain model, for any multisets of rows."""

from __future__ import annotations

import pickle
import tracemalloc
from collections import Counter
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.failure import DIFFERENT, NOT_COMPARED, exit_codes
from penstock.cli.verify import exit_code, parse_part
from penstock.cli.verify_page import page
from penstock.core.errors import ConfigError
from penstock.core.verify_report import ColumnDifference, Difference, VerifiedStream, VerifyReport
from penstock.verify import drill, outcome
from penstock.verify.canonical import RowHashes, hash_rows
from penstock.verify.digest import Digest, bucket_of
from penstock.verify.mending import mend, why_it_still_differs
from penstock.verify.outcome import Drilled
from penstock.verify.sides import Block
from penstock.verify.tasks import Hashing

if TYPE_CHECKING:
    from penstock.lake.light import Stages
    from penstock.verify.comparison import Comparison

SECRET = (3, 5)
Rows = list[tuple[int, str]]
ROWS = st.lists(st.tuples(st.integers(0, 6), st.sampled_from("abc")), max_size=20)


def side(rows: Rows) -> drill.Picked:
    ids = pa.array([row[0] for row in rows], pa.int64())
    texts = pa.array([row[1] for row in rows], pa.string())
    hashes = hash_rows([ids, texts], 1, SECRET)
    return drill.Picked(pa.table([ids, texts], names=["id", "v"]), hashes)


@given(ROWS, ROWS)
def test_rows_are_paired_as_a_plain_model_does(source_rows: Rows, table_rows: Rows) -> None:
    source, table = side(source_rows), side(table_rows)
    found = drill.pair(source.hashes, table.hashes)
    left, right = Counter(source_rows), Counter(table_rows)
    here, there = left - right, right - left  # what is left when equal rows have cancelled each other
    keys_here = Counter(key for key, _ in here.elements())
    keys_there = Counter(key for key, _ in there.elements())
    different = keys_here & keys_there
    assert Counter(source_rows[i][0] for i in found.missing) == keys_here - different
    assert Counter(table_rows[i][0] for i in found.extra) == keys_there - different
    assert Counter(source_rows[i][0] for i in found.different[0]) == different
    for i, j in zip(*found.different, strict=True):
        assert source_rows[i][0] == table_rows[j][0]
        assert source_rows[i] != table_rows[j]


@given(ROWS, ROWS)
def test_a_repair_leaves_what_the_source_has_whatever_the_table_held(
    source_rows: Rows, table_rows: Rows
) -> None:
    source_rows = list(dict(source_rows).items())  # a source has each key once, a table that is wrong may not
    source, table = side(source_rows), side(table_rows)
    found = drill.pair(source.hashes, table.hashes)
    stream = VerifiedStream("public.orders", "different", against="source")
    repair = mend(Drilled(stream, found, source, table, ("id",), is_whole=True))
    if repair is None:
        assert sorted(source_rows) == sorted(table_rows)
        return
    taken = set(repair.keys.column("id").to_pylist())
    names = repair.rows.table.column_names
    written = list(zip(*repair.rows.select(names).to_pydict().values(), strict=True))
    assert sorted([row for row in table_rows if row[0] not in taken] + written) == sorted(source_rows)
    gone = repair.gone.select(["id"]).column("id").to_pylist()
    assert sorted(gone) == sorted({key for key, _ in table_rows} - {key for key, _ in source_rows})


@given(ROWS, ROWS, st.integers(0, 10))
def test_what_is_told_is_bounded_and_has_some_of_each_kind(
    source_rows: Rows, table_rows: Rows, limit: int
) -> None:
    source, table = side(source_rows), side(table_rows)
    found = drill.pair(source.hashes, table.hashes)
    masks = drill.columns_in_which(source, table, found.different, 1, SECRET)
    told = drill.describe(source, table, found, masks, ["id"], limit)
    total = found.missing.size + found.extra.size + found.different[0].size
    assert len(told) == min(limit, total)
    assert all(each.columns for each in told if each.kind == "different")
    if limit >= 3:
        kinds = {each.kind for each in told}
        there = {"missing": found.missing, "extra": found.extra, "different": found.different[0]}
        assert kinds == {kind for kind, places in there.items() if places.size}


def test_known_keys_are_taken_out() -> None:
    source = side([(1, "a"), (2, "b"), (3, "c")])
    known = side([(2, "whatever")]).hashes
    left = drill.without_keys(np.array([0, 1, 2]), source.hashes, (known.key_high, known.key_low))
    assert left.tolist() == [0, 2]


def test_known_keys_that_share_a_word_with_another_are_told_apart() -> None:
    words = np.arange(4, dtype=np.uint64)
    hashes = RowHashes(words, words, words, words)
    known = (np.array([9, 2], np.uint64), np.array([1, 2], np.uint64))
    assert drill.without_keys(np.array([3, 2, 1]), hashes, known).tolist() == [3, 1]


def test_known_keys_take_some_bytes_each_however_many_there_are() -> None:
    rows = side([(number, "a") for number in range(10)])
    count = 200_000
    known = np.random.default_rng(7).integers(0, 2**63, (2, count), np.uint64)
    tracemalloc.start()
    try:
        drill.without_keys(np.arange(10), rows.hashes, (known[0], known[1]))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 * count, f"{peak / count:.0f} bytes for each known key"


@pytest.mark.parametrize(
    ("told", "repaired", "words"),
    [
        (VerifiedStream("a.b", "different", against="change log", missing=1), None, "`write: append`"),
        (
            VerifiedStream("a.b", "different", missing=1, columns_not_compared=("note", "size")),
            None,
            "not known whole: note, size",
        ),
        (VerifiedStream("a.b", "different", buckets_differing=3), None, "no row that differs was found"),
        (VerifiedStream("a.b", "different", missing=1), None, "was not repaired: it is paused"),
        (VerifiedStream("a.b", "different", missing=1), 7, "after 7 rows of it were repaired"),
    ],
)
def test_why_a_stream_still_differs_is_said_of_each(
    told: VerifiedStream, repaired: int | None, words: str
) -> None:
    assert words in why_it_still_differs(told, repaired, "it is paused")


class _Stages:
    """Runs tasks here, as they come out of being sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def run(self, function: Any, tasks: list[Any], *_: Any, **__: Any) -> list[Any]:
        self.sent += [pickle.dumps(task) for task in tasks]
        return [function(pickle.loads(each)) for each in self.sent]


@dataclass
class _Side:
    """Rows with these ids."""

    ids: list[int]
    columns: tuple[str, ...] = ("id",)
    key_width: int = 1

    def blocks(self) -> list[Block]:
        return [Block([pa.array(self.ids, pa.int64())], len(self.ids), 0)]


def test_tasks_are_sent_no_keys_and_pick_the_rows_of_those_in_their_buckets(tmp_path: Path) -> None:
    dead = hash_rows([pa.array(range(50_000), pa.int64())], 1, SECRET)
    hashing = Hashing(SECRET, 64)
    sides = [_Side([*range(10), *range(60_000, 60_100)]), _Side([70_000])]
    comparison = SimpleNamespace(hashing=hashing, sides=sides, weights=[1, 1])
    places = bucket_of(dead.key_high, 64)
    buckets = np.unique(places[:5])
    stages = _Stages()
    results = outcome._pick(
        cast("Stages", stages),
        cast("Comparison", comparison),
        buckets,
        tmp_path,
        light=True,
        keys=(dead.key_high, dead.key_low),
    )
    assert max(map(len, stages.sent)) < 10_000
    picked = drill.Picked.read([each.path for each in results if each.path is not None], (), ()).hashes
    expected = [number for number in range(10) if places[number] in buckets]
    assert sorted(picked.key_low.tolist()) == sorted(dead.key_low[expected].tolist())
    others = np.setdiff1d(np.arange(64), places).astype(buckets.dtype)
    for none_there in (buckets[:0], others):
        assert (
            outcome._pick(
                cast("Stages", stages),
                cast("Comparison", comparison),
                none_there,
                tmp_path,
                light=True,
                keys=(dead.key_high[:0], dead.key_low[:0]),
            )
            == []
        )


def test_at_least_one_bucket_is_looked_into_and_no_more_than_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drill, "ROWS_MAX", 10)
    source, table = Digest.empty(64), Digest.empty(64)
    source.rows[:] = 4
    buckets = np.array([1, 5, 9, 20])
    assert drill.to_look_into(source, table, buckets).tolist() == [1, 5]
    source.rows[:] = 1000
    assert drill.to_look_into(source, table, buckets).tolist() == [1]


def test_no_rows_at_all_are_equal() -> None:
    nothing = drill.Picked.read([], ["id"], [pa.int64()])
    assert isinstance(nothing.hashes, RowHashes)
    found = drill.pair(nothing.hashes, nothing.hashes)
    assert not found.missing.size + found.extra.size + found.different[0].size


def report(*streams: VerifiedStream, shows_values: bool = False) -> VerifyReport:
    return VerifyReport(streams, "2026-11-16T13:00:00+00:00", 1.5, shows_values=shows_values)


EVIL = "<script>alert(1)</script>\"'&"
DIFFERS = VerifiedStream(
    f"public.{EVIL}",
    "different",
    position="0/1",
    different=1,
    left_out=3,
    buckets=64,
    buckets_differing=2,
    buckets_looked_into=1,
    differences=(
        Difference("different", {EVIL: EVIL}, (ColumnDifference(EVIL, EVIL, None),)),
        Difference("missing", {"id": "7"}),
    ),
)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]


@pytest.mark.parametrize("shown", [False, True])
def test_the_page_has_no_script_and_fetches_nothing_whatever_a_table_holds(shown: bool) -> None:
    text = page(report(DIFFERS, VerifiedStream("public.b", "equal"), shows_values=shown))
    parser = _Tags()
    parser.feed(text)
    assert not {"script", "img", "link", "iframe", "object"} & set(parser.tags)
    assert not {"src", "href", "onload", "onclick", "style"} & set(parser.attributes)
    assert "<script" not in text
    assert "default-src 'none'" in text


def test_values_are_in_no_form_of_the_result_unless_they_are_asked_for() -> None:
    secret = "4711-secret"
    row = Difference("different", {"id": "1"}, (ColumnDifference("v", secret, secret),))
    stream = VerifiedStream("public.a", "different", different=1, differences=(row,))
    assert secret not in page(report(stream))
    assert secret not in str(report(stream).to_json())
    assert secret in page(report(stream, shows_values=True))
    assert secret in str(report(stream, shows_values=True).to_json())


def test_the_page_of_a_lane_tells_of_records_and_changes() -> None:
    record = Difference("out of order", {"id": "7", "change": "26_4", "record": "<b>[0]@3"})
    sent = VerifiedStream(
        "public.a", "different", lane="kafka", compared_from="0/1", position="0/2", out_of_order=1,
        notes=("3 records are gone",), differences=(record,),
    )  # fmt: skip
    text = page(VerifyReport((sent,), "2026-11-16T10:00:00+00:00", 1.0, of="kafka"))
    for words in ("The lane kafka and the change log differ.", "out of order", "3 records are gone", "26_4"):
        assert words in text
    assert "<b>" not in text


def test_exit_codes_tell_equal_different_and_not_compared_apart() -> None:
    equal = VerifiedStream("public.a", "equal")
    by_mode = VerifiedStream("public.b", "not compared", "why", "by its mode")
    for_now = VerifiedStream("public.c", "not compared", "why", "for now")
    assert exit_code(report(equal, by_mode)) == 0
    assert exit_code(report(equal, for_now)) == NOT_COMPARED
    assert exit_code(report(equal, for_now, DIFFERS)) == DIFFERENT
    assert {DIFFERENT, NOT_COMPARED} <= set(exit_codes())


def test_a_part_is_a_percentage_or_a_fraction() -> None:
    assert [parse_part(text) for text in ("5%", "0.05", "100%", "1")] == [0.05, 0.05, 1.0, 1.0]
    for wrong in ("0", "101%", "-1", "all"):
        with pytest.raises(ConfigError):
            parse_part(wrong)

"""What MySQL is asked for, and what is made of its answers, without a server: cursors' windows, places."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from penstock import metrics
from penstock.capture.mysql.monitor import BinlogMonitor, LogHealth
from penstock.core.binlog_place import BinlogPlace, Numbering
from penstock.core.errors import StateError
from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.core.where import Condition, WhereError
from penstock.lake.places import position_at
from penstock.ledger.load_record import LoadChunk, LoadPoint, LoadRecord
from penstock.sources.cursor import Cursor, Noted, Window
from penstock.sources.mysql import cursor_windows
from penstock.sources.mysql.server import LogFiles
from penstock.sources.mysql.types import FAMILY

pytestmark = pytest.mark.unit


def column(name: str, kind: str) -> SourceColumn:
    return SourceColumn(name, 0, -1, kind, kind, family=FAMILY)


def cursor(kind: str, lookback: timedelta | Decimal = Decimal(0)) -> Cursor:
    return Cursor(column("at`", kind), lookback)


def test_a_window_is_a_range_of_the_column_in_its_own_order() -> None:
    number = cursor("bigint unsigned")
    assert cursor_windows.within(Window(number, None, "5", "18446744073709551615")) == (
        "(`at``` >= 5 AND `at``` <= 18446744073709551615)"
    )
    assert cursor_windows.within(Window(cursor("datetime"), "first", None, "2026-01-01 00:00:00.5")) == (
        "(`first` IS NULL AND `at``` <= CAST('2026-01-01 00:00:00.5' AS DATETIME(6)))"
    )
    assert cursor_windows.within(Window(cursor("varchar"), None, None, "ä'")) == (
        "(CAST(CONVERT(`at``` USING utf8mb4) AS BINARY) <= x'c3a427')"
    )
    empty = Window(number, None, None, None)
    assert cursor_windows.within(empty) == "FALSE"
    assert cursor_windows.within_any(Noted((empty, empty), {})) == "(FALSE OR FALSE)"


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [("int", "1 OR 1=1"), ("datetime", "2026-01-01' OR '1"), ("date", "yesterday"), ("decimal", "1e5")],
)
def test_a_value_of_the_state_that_is_none_comes_into_no_query(kind: str, wrong: str) -> None:
    with pytest.raises(StateError, match="cannot be read"):
        cursor_windows.within(Window(cursor(kind), None, None, wrong))


@pytest.mark.parametrize(
    ("kind", "lookback", "last", "low"),
    [
        ("int", Decimal("2.5"), "10", "7"),
        ("bigint unsigned", Decimal(1000), "5", "-995"),
        ("decimal", Decimal("0.25"), "1.5", "1.25"),
        ("datetime", timedelta(minutes=10), "2026-01-01 00:05:00.000001", "2025-12-31 23:55:00.000001"),
        ("datetime", timedelta(days=400), "0001-03-01 00:00:00", None),
        ("date", timedelta(hours=1), "2026-01-01", "2025-12-31"),
        ("varchar", Decimal(0), "word", "word"),
    ],
)
def test_a_round_begins_as_far_behind_as_its_lookback_says(
    kind: str, lookback: timedelta | Decimal, last: str, low: str | None
) -> None:
    assert cursor_windows._low(cursor(kind, lookback), last) == low


def test_a_place_has_its_number_by_another_of_the_same_counting() -> None:
    known = LoadPoint(Lsn((7 << 32) + 1000), "", Place("binlog.000003:400", "", "one"))
    assert position_at(Place("binlog.000003:500", "", "one"), known) == (7 << 32) + 1100
    assert position_at(Place("binlog.000004:4", "", "one"), known) == (8 << 32) + 604
    for other in (
        Place("binlog.000003:500", "", "two"),
        Place("other.000003:500", "", "one"),
        Place("binlog.000003:399", "", "one"),
    ):
        assert position_at(other, known) is None, "another server, or one that began to count anew"


def test_a_load_of_one_chunk_is_as_old_as_the_snapshot_that_it_took() -> None:
    stream = StreamId("shop", "events")
    noted, taken = (LoadPoint(Lsn(at), "", Place(f"binlog.000001:{at}", "", "one")) for at in (100, 250))
    record = LoadRecord(
        "l",
        "g",
        stream,
        "ctid",
        None,
        TableSchema(stream, ()),
        {},
        (noted,),
        (LoadChunk(str(stream), None, None, 0),),
    )
    seen = record.seen_at(taken)
    assert (seen.oldest_point, seen.newest_point, seen.newest_read) == (250, 250, 250)
    resumed = seen.resumed(LoadPoint(Lsn(300), ""), frozenset(seen.chunks)).seen_at(LoadPoint(Lsn(400), ""))
    assert (resumed.oldest_point, resumed.newest_point) == (400, 400)
    assert record.read_until(LoadPoint(Lsn(900), "")).newest_read == 100


def test_a_condition_reads_columns_of_mysql_by_what_they_print() -> None:
    columns = [column("n", "bigint unsigned"), column("word", "varchar"), column("day", "date")]
    texts = {
        "n": pa.array(["18446744073709551615", "3", None]),
        "word": pa.array(["A", "a", "a"]),
        "day": pa.array(["2026-02-01", "0000-00-00", "2026-01-01"]),
    }

    def answer(where: str) -> list[bool | None]:
        found: list[bool | None] = Condition.compile(where, columns).evaluate(texts, 3).to_pylist()
        return found

    assert answer("n > 9223372036854775807") == [True, False, None]
    assert answer("word = 'a'") == [False, True, True]
    assert answer("day > '2026-01-15'") == [True, None, False]
    with pytest.raises(WhereError):
        Condition.compile("j = 'x'", [column("j", "json")])


def test_lag_is_counted_in_bytes_of_files_and_not_in_their_numbers() -> None:
    last = BinlogPlace("binlog.000005", 300)
    sizes = (("binlog.000003", 1000), ("binlog.000004", 2000), ("binlog.000005", 300))
    health = LogHealth(LogFiles(sizes, last), Numbering.going_on(Lsn(99), BinlogPlace("binlog.000003", 4)))
    at = health.numbering.position
    assert health.lag_bytes(at(last)) == 0
    assert health.lag_bytes(at(BinlogPlace("binlog.000005", 100))) == 200
    assert health.lag_bytes(at(BinlogPlace("binlog.000003", 900))) == 100 + 2000 + 300
    assert health.lag_bytes(Lsn(5)) == 1000 + 2000 + 300, "from before this server took over"
    later = LogHealth(health.files, Numbering.going_on(Lsn(99), BinlogPlace("binlog.000004", 4)))
    assert later.lag_bytes(later.numbering.position(BinlogPlace("binlog.000004", 4))) == 1996 + 300


def test_lag_is_counted_where_files_have_come_to_seven_digits() -> None:
    last = BinlogPlace("binlog.1000001", 300)
    sizes = (("binlog.999999", 1000), ("binlog.1000000", 2000), ("binlog.1000001", 300))
    health = LogHealth(LogFiles(sizes, last), Numbering("binlog"))
    at = health.numbering.position
    assert health.lag_bytes(at(BinlogPlace("binlog.999999", 900))) == 100 + 2000 + 300
    assert health.lag_bytes(at(BinlogPlace("binlog.1000000", 500))) == 1500 + 300


def test_whoever_reads_what_the_server_has_removed_is_not_healthy_and_one_who_nearly_does_is_told() -> None:
    """Where files are not removed, the oldest may be read without a word."""
    notes: list[str] = []
    numbering = Numbering("binlog")
    monitor = BinlogMonitor("mysql://root@localhost", lambda: numbering, notes.append)

    def healthy(first: int, last: int, read: int) -> float | None:
        sizes = tuple((f"binlog.{number:06d}", 1000) for number in range(first, last + 1))
        monitor._latest = LogHealth(LogFiles(sizes, BinlogPlace(sizes[-1][0], 300)), numbering)
        samples = monitor.samples(numbering.position(BinlogPlace(f"binlog.{read:06d}", 500)))
        return {name: value for name, _, value in samples}.get(metrics.SLOT_HEALTHY.name)

    assert monitor.samples(Lsn(5)) == [], "before the server was looked at"
    assert healthy(3, 6, read=3) == 1.0
    assert healthy(4, 7, read=7) == 1.0
    assert healthy(7, 7, read=7) == 1.0
    assert notes == []
    assert [healthy(7, 9, read=7) for _ in range(2)] == [1.0, 1.0]
    assert len(notes) == 1
    assert "binlog.000007" in notes[0]
    assert healthy(8, 9, read=7) == 0.0
    assert healthy(8, 9, read=9) == 1.0
    assert healthy(9, 11, read=9) == 1.0
    assert len(notes) == 2, "once each time"

"""The words that the state of a MySQL pipeline has for its positions, and what its log says beside rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core.binlog_place import BinlogPlace
from penstock.core.errors import StateError
from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId
from penstock.lake.places import BinlogPlaces
from penstock.ledger.load_record import LoadChunk, LoadPoint, LoadRecord, LoadRecords
from penstock.log.manifest import Manifest, read_manifest
from penstock.log.reader import ChangeLog
from penstock.log.writer import LogWriter

ORDERS = StreamId("shop", "orders")
OFFSET = 7 << 40  # of a pipeline that went on at another server


def position(place: str) -> Lsn:
    return Lsn(BinlogPlace.parse(place).number + OFFSET)


def places(directory: Path, *ends: str) -> BinlogPlaces:
    """Of a log whose steps end there."""
    start = position("binlog.000003:4")
    writer = LogWriter(directory / "log", system_id="s", timeline=1, epoch=Lsn(1), end=start)
    for number, end in enumerate(ends):
        writer.seal(position(end), Place(end, f"set {number}", "server"))
    return BinlogPlaces(ChangeLog(directory / "log"), LoadRecords(directory / "load"))


def record(point: LoadPoint) -> LoadRecord:
    chunk = LoadChunk(str(ORDERS), None, None, 0)
    return LoadRecord("1", "g", ORDERS, "key", "id", TableSchema(ORDERS, ()), {}, (point,), (chunk,))


def test_the_end_of_a_step_has_the_words_of_its_manifest(tmp_path: Path) -> None:
    place_of = places(tmp_path, "binlog.000003:100", "binlog.000004:50")
    assert place_of(position("binlog.000003:100")) == Place("binlog.000003:100", "set 0", "server")
    assert place_of(position("binlog.000004:50")) == Place("binlog.000004:50", "set 1", "server")


def test_a_loads_point_has_the_words_that_it_was_noted_with(tmp_path: Path) -> None:
    place_of = places(tmp_path)
    noted = LoadPoint(position("binlog.000003:70"), "", Place("binlog.000003:70", "", "server"))
    records = LoadRecords(tmp_path / "load")
    records.save(record(noted).read_until(LoadPoint(position("binlog.000003:90"), "")))
    assert place_of(position("binlog.000003:70")) == noted.place
    found = records.load(ORDERS)
    assert found is not None
    assert (found.oldest_point, found.newest_point) == tuple(
        map(position, ("binlog.000003:70", "binlog.000003:90"))
    )


def test_any_other_position_is_counted_from_one_that_is_known(tmp_path: Path) -> None:
    place_of = places(tmp_path, "binlog.000003:100", "binlog.000004:50")
    assert place_of(position("binlog.000003:60")) == Place("binlog.000003:60", "", "server")
    with pytest.raises(StateError, match="Nothing says where"):
        places(tmp_path / "empty")(Lsn(5))


def test_what_altered_a_table_is_part_of_the_range_that_it_lies_in(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, system_id="s", timeline=1, epoch=Lsn(1), end=Lsn(10))
    writer.alter(ORDERS, 12, 2)
    writer.seal(Lsn(20))
    [entry] = read_manifest(tmp_path, 1).tables
    assert entry.altered == ((12, 2),)
    log = ChangeLog(tmp_path)
    assert log.files(ORDERS, Lsn(10), Lsn(20)).altered == ((12, 2),)
    assert not log.files(ORDERS, Lsn(13), Lsn(20))
    assert ORDERS in log.streams_with_changes(Lsn(10), Lsn(20))


def test_a_log_says_where_a_server_was_left(tmp_path: Path) -> None:
    ends, log = (Lsn(20), Lsn(30), Lsn(40)), ChangeLog(tmp_path)
    for number, end in enumerate(ends):
        timeline = 1 if number == 0 else 2
        start = ends[number - 1] if number else Lsn(10)
        writer = LogWriter(
            tmp_path, system_id="s", timeline=timeline, epoch=Lsn(1), end=start, last_seq=number
        )
        writer.seal(end)
    assert (log.left(1), log.left(2)) == (Lsn(20), None)


def test_where_a_server_was_left_is_found_by_a_few_of_many_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(200):
        LogWriter(
            tmp_path,
            system_id="s",
            timeline=1 + (number >= 170),
            epoch=Lsn(1),
            end=Lsn(10 + number),
            last_seq=number,
        ).seal(Lsn(11 + number))
    read: list[int] = []

    def counted(directory: Path, seq: int) -> Manifest:
        read.append(seq)
        return read_manifest(directory, seq)

    monkeypatch.setattr("penstock.log.reader.read_manifest", counted)
    assert ChangeLog(tmp_path).left(1) == Lsn(180)
    assert len(read) <= 10

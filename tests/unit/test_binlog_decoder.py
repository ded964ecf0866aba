"""What capture makes of a binary log without a server: steps of recorded events, what it keeps in mind."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.capture.log_reading import CapturedTable
from penstock.capture.mysql import setup
from penstock.capture.mysql.alter_clauses import ColumnChanges
from penstock.capture.mysql.decoder import BinlogDecoder
from penstock.capture.mysql.gtids import SeenGtids
from penstock.capture.mysql.tables import MappedTable, MappedTables, UnreadTable, column_of_map, mapped_table
from penstock.capture.steps import StepBuilder
from penstock.core.alteration import Alteration
from penstock.core.binlog_place import BinlogPlace, Numbering
from penstock.core.errors import PositionGoneError, SourceError
from penstock.core.gtid import GtidSet
from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.log.manifest import Manifest, list_sequence, read_manifest
from penstock.log.reader import ChangeLog, read_rows
from penstock.log.writer import LogWriter
from penstock.sources.mysql.binlog import table_map as codes
from penstock.sources.mysql.binlog.events import Tables
from penstock.sources.mysql.binlog.packets import EventBatch
from penstock.sources.mysql.binlog.rows import RowLayout
from penstock.sources.mysql.binlog.stream import FilePosition, GtidPosition
from penstock.sources.mysql.binlog.table_map import Column, TableMap
from penstock.sources.mysql.catalog import MysqlTable
from penstock.sources.mysql.types import FAMILY, decimal_modifier
from penstock.sources.tables import SourceLeaf
from tests.record_binlog import FIXTURES

UUIDS = ("3e11fa47-71ca-11e1-9e33-c80aa9429562", "3e11fa47-71ca-11e1-9e33-c80aa9429563")
COLLATIONS = {45: "utf8mb4", 63: "binary"}
ORDERS = StreamId("shop", "orders")


@given(st.lists(st.tuples(st.integers(-1, 1), st.integers(1, 30)), max_size=40))
def test_a_set_holds_every_transaction_that_was_added(added: list[tuple[int, int]]) -> None:
    seen = SeenGtids("mysql", f"{UUIDS[0]}:100-105")
    source, number = (np.array([pair[index] for pair in added], np.int64) for index in (0, 1))
    seen.add(UUIDS, source, number)
    expected = GtidSet.parse(f"{UUIDS[0]}:100-105")
    for index, value in added:
        if index >= 0:
            expected |= GtidSet({(UUIDS[index], ""): [(value, value)]})
    assert str(seen) == str(expected)


def test_a_position_of_mariadb_is_the_last_of_each_domain() -> None:
    seen = SeenGtids("mariadb", "0-1-7,3-7-2")
    seen.add(["3-7", "0-2"], np.array([0, 0, 1, -1]), np.array([3, 4, 8, 9]))
    assert str(seen) == "0-2-8,3-7-4"


def _logged(code: int, name: str = "c", length: int = 0, scale: int = 0, **more: object) -> Column:
    return Column(code, length, scale, 4, True, name=name, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("column", "type_name", "modifier"),
    [
        (_logged(codes.LONGLONG, unsigned=True), "bigint unsigned", -1),
        (_logged(codes.TINY, unsigned=False), "tinyint", -1),
        (_logged(codes.NEWDECIMAL, length=9, scale=2, unsigned=False), "decimal", decimal_modifier(9, 2)),
        (_logged(codes.VARCHAR, length=80, collation=45), "varchar", -1),
        (_logged(codes.VARCHAR, length=80, collation=63), "varbinary", -1),
        (_logged(codes.BLOB, length=2, collation=45), "text", -1),
        (_logged(codes.BLOB, length=4, collation=63), "longblob", -1),
        (_logged(codes.STRING, length=16, collation=63), "binary", -1),
        (_logged(codes.DATETIME2, length=6), "datetime", 6),
        (_logged(codes.BIT, length=1), "bit", 1),
        (_logged(codes.JSON, length=4), "json", -1),
        (_logged(codes.GEOMETRY, length=4), "geometry", -1),
    ],
)
def test_a_table_map_names_types_as_the_catalog_does(column: Column, type_name: str, modifier: int) -> None:
    made = column_of_map(column, COLLATIONS)
    assert (made.type_name, made.type_modifier, made.family) == (type_name, modifier, FAMILY)


def test_members_of_an_enumeration_are_part_of_its_type() -> None:
    column = _logged(codes.ENUM, length=1, collation=45, values=(b"a", b"it's"))
    assert column_of_map(column, COLLATIONS).type_text == "enum('a','it''s')"


def _catalog(*columns: SourceColumn, generated: tuple[str, ...] = ()) -> MysqlTable:
    leaf = SourceLeaf(stream=ORDERS, oid=1, filenode=0, bytes=0, estimated_rows=0)
    return MysqlTable(
        stream=ORDERS, oid=1, kind="table", schema=TableSchema(ORDERS, columns, ("id",)), leaves=(leaf,),
        primary_key=("id",), engine="InnoDB", range_key=(), generated_columns=generated,
        invisible_columns=(), compressed_columns=(), charsets=frozenset(),
    )  # fmt: skip


def _known(name: str, type_name: str, modifier: int = -1) -> SourceColumn:
    return SourceColumn(
        name, 0, modifier, type_name, type_name, attribute_number=5, missing_value="0", family=FAMILY
    )


def test_a_table_is_the_catalogs_as_far_as_that_is_what_was_logged() -> None:
    layout = RowLayout.of(
        TableMap(
            "shop",
            "orders",
            (
                _logged(codes.LONG, "id", unsigned=False),
                _logged(codes.LONG, "twice", unsigned=False),
                _logged(codes.VARCHAR, "name", length=80, collation=45),
                _logged(codes.LONG, "size", unsigned=False),
            ),
        ),
        COLLATIONS,
    )
    catalog = _catalog(
        _known("id", "int"), _known("name", "varchar", 20), _known("size", "bigint"), generated=("twice",)
    )
    found = mapped_table(ORDERS, layout, COLLATIONS, catalog)
    schema = found.table.schema
    assert schema.names == ("id", "name", "size")
    assert schema.key == ("id",)
    assert [column.missing_value for column in schema.columns] == ["0", "0", None]
    assert schema.column("size").type_name == "int", "as it was logged, not as it is now"
    assert schema.column("name").type_modifier == 20
    assert {column.attribute_number for column in schema.columns} == {0}
    assert (found.columns, found.numbers.tolist()) == ((0, 2, 3), [0, -1, 1, 2])


def test_a_table_that_is_gone_is_what_the_log_says_of_it() -> None:
    described = TableMap("shop", "orders", (_logged(codes.LONG, "id", unsigned=False),), key=(0,))
    found = mapped_table(ORDERS, RowLayout.of(described, COLLATIONS), COLLATIONS, None)
    assert (found.table.schema.names, found.table.schema.key) == (("id",), ("id",))


MIXED = StreamId("shop", "mixed")


class MapsAlone(MappedTables):
    """Tables as their maps describe them: there is no catalog to ask."""

    def __init__(self, collations: Mapping[int, str]) -> None:
        super().__init__([MIXED], lambda: pytest.fail("there is no server"))
        self._known_collations = collations

    def current(self, stream: StreamId) -> CapturedTable | None:
        return None

    def alteration(self, stream: StreamId, changes: ColumnChanges) -> Alteration | None:
        return None

    def _mapped(self, stream: StreamId, described: TableMap) -> MappedTable:
        layout = RowLayout.of(described, self._known_collations)
        return mapped_table(stream, layout, self._known_collations, None)


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def recording(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FIXTURES / f"{request.param}.json").read_text())
    found["events"] = [bytes.fromhex(event) for event in found["events"]]
    found["collations"] = {int(number): name for number, name in found["collations"].items()}
    found["flavor"] = request.param
    return found


@pytest.fixture(autouse=True)
def partial_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recordings have inserts with `binlog_row_image = MINIMAL`, which capture leaves out."""
    monkeypatch.setattr("penstock.capture.mysql.decoder._lacks_defaults", lambda *_: None)


def _begins(recording: dict[str, Any]) -> BinlogPlace:
    body = recording["events"][0][19:]
    return BinlogPlace(body[8:].decode(), int.from_bytes(body[:8], "little"))


def _builder(
    recording: dict[str, Any], log: Path, newest: Manifest | None = None, gtid_set: str = ""
) -> StepBuilder[EventBatch]:
    """Reading begins where the recording does, whatever the log has."""
    begins = _begins(recording)
    numbering = Numbering.beginning_at(begins)
    writer = LogWriter(
        log,
        system_id="s",
        timeline=1,
        epoch=Lsn(1),
        end=numbering.position(begins) if newest is None else newest.end,
        last_seq=0 if newest is None else newest.seq,
    )
    decoder = BinlogDecoder(
        MapsAlone(recording["collations"]),
        numbering,
        SeenGtids(recording["flavor"], gtid_set, gtid_set),  # MariaDB: as if none of it was passed yet
        begins.name,
        "server",
        mariadb=recording["flavor"] == "mariadb",
    )
    return StepBuilder(writer, decoder, 1)  # a step ends as soon as it may


def _fed(builder: StepBuilder[EventBatch], batches: Sequence[list[bytes]]) -> None:
    builder.demand(Lsn(2**62))
    for batch in batches:
        builder.take(EventBatch.join(batch))


def _manifests(log: Path) -> list[Manifest]:
    return [read_manifest(log, seq) for seq in list_sequence(log)]


def _rows_of(log: Path) -> list[dict[str, Any]]:
    found = ChangeLog(log)
    start, end = found.start(), found.end()
    assert start is not None
    assert end is not None
    parts = read_rows(found.files(MIXED, start, end).files, start, end)
    return [row for part in parts for row in part.to_pylist()]


def test_steps_are_whole_transactions_wherever_batches_are_cut(recording: dict[str, Any]) -> None:
    events = recording["events"]
    cuts = [[events], [[event] for event in events]]
    cuts += [[events[:at], events[at:]] for at in range(1, len(events), 5)]
    found = []
    for batches in cuts:
        with TemporaryDirectory() as directory:
            _fed(_builder(recording, Path(directory)), batches)
            manifests, rows = _manifests(Path(directory)), _rows_of(Path(directory))
        found.append([(row["_tx"], row["_op_index"], row["_op"], row["id"]) for row in rows])
        for manifest in manifests:
            place = manifest.place
            assert place is not None
            assert BinlogPlace.parse(place.text).number == int(manifest.end)
        offsets = [each[:2] for each in found[-1]]
        assert offsets == sorted(set(offsets))
    assert len(found[0]) == 8
    assert all(each == found[0] for each in found)


def test_reading_may_begin_before_the_logs_end(recording: dict[str, Any], tmp_path: Path) -> None:
    events = recording["events"]
    _fed(_builder(recording, tmp_path / "whole"), [events])
    whole = _rows_of(tmp_path / "whole")
    for at in range(1, len(events), 3):
        log = tmp_path / str(at)
        _fed(_builder(recording, log), [[event] for event in events[:at]])
        manifests = _manifests(log)
        if manifests:
            _fed(_builder(recording, log, manifests[-1]), [events])
            assert _rows_of(log) == whole


def test_what_was_read_on_another_server_is_left_out(recording: dict[str, Any], tmp_path: Path) -> None:
    events = recording["events"]
    _fed(_builder(recording, tmp_path / "whole"), [[event] for event in events])
    manifests, whole = _manifests(tmp_path / "whole"), _rows_of(tmp_path / "whole")
    for before in manifests:
        assert before.place is not None
        log = tmp_path / f"from {before.seq}"
        _fed(_builder(recording, log, gtid_set=before.place.gtid_set), [events])
        later = [row for row in whole if row["_tx"] >= before.end]
        if not later:  # a step without rows is not sealed for its size
            assert _manifests(log) == []
            continue
        assert _rows_of(log) == later
        last = _manifests(log)[-1].place
        assert last is not None
        assert last.gtid_set == (manifests[-1].place or last).gtid_set


def _transaction(recording: dict[str, Any]) -> list[bytes]:
    """The first one with rows that are kept, from its id to its end."""
    events: list[bytes] = recording["events"]
    rows = next(at for at, event in enumerate(events) if event[4] in (23, 30) and b"mixed" in events[at - 1])
    begin = max(at for at in range(rows) if events[at][4] in (33, 42, 162))
    end = next(at for at in range(rows, len(events)) if events[at][4] == 16)
    return events[begin : end + 1]


def _ending_at(event: bytes, offset: int) -> bytes:
    """The same event elsewhere in its file; a place has four bytes."""
    return event[:13] + (offset % 2**32).to_bytes(4, "little") + event[17:]


@pytest.mark.parametrize("has_places", [True, False], ids=["", "as newer servers of MariaDB"])
@pytest.mark.parametrize("size", [3_000_000_000, 2**32 - 2000, 2**32 + 500, 5_000_000_000, 6_000_000_000])
def test_a_transaction_beyond_the_places_of_its_file_is_refused(
    recording: dict[str, Any], tmp_path: Path, size: int, has_places: bool
) -> None:
    events = _transaction(recording)
    begins = 1000
    step = (size - begins) // (len(events) - 1)
    moved = [_ending_at(event, begins + number * step) for number, event in enumerate(events)]
    if not has_places:
        moved[1:-1] = [
            each[:9] + (step % 2**32).to_bytes(4, "little") + bytes(4) + each[17:] for each in moved[1:-1]
        ]
    builder = _builder(recording, tmp_path)
    builder.demand(Lsn(2**62))
    if size < 2**32:
        _fed(builder, [recording["events"][:1], *([event] for event in moved)])
        assert len(_rows_of(tmp_path)) == 1
    else:
        with pytest.raises(SourceError, match="4 GiB"):
            _fed(builder, [recording["events"][:1], *([event] for event in moved)])


def _statement(like: bytes, text: str) -> bytes:
    """A statement where another event is."""
    body = bytes(8) + bytes([4]) + bytes(4) + b"shop\0" + text.encode()
    return like[:4] + bytes([2]) + like[5:9] + (19 + len(body)).to_bytes(4, "little") + like[13:19] + body


@pytest.mark.parametrize("is_ours", [True, False])
@pytest.mark.parametrize("is_cut", [True, False])
@pytest.mark.parametrize("ends_with", [["ROLLBACK"], ["ROLLBACK TO `s`", "COMMIT"]])
def test_rows_that_are_taken_back_are_refused_wherever_batches_are_cut(
    recording: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ends_with: list[str],
    is_cut: bool,
    is_ours: bool,
) -> None:
    *events, last = _transaction(recording)
    events += [_statement(last, text) for text in ends_with]
    if not is_ours:
        monkeypatch.setattr(MapsAlone, "wants", lambda *_: False)
    batches = [[event] for event in events] if is_cut else [events]
    with pytest.raises(SourceError, match="rolled back") if is_ours else nullcontext():
        _fed(_builder(recording, tmp_path), [recording["events"][:1], *batches])
    assert _manifests(tmp_path) == []


def _untold(log: Path) -> list[tuple[int, int]]:
    return [each for one in _manifests(log) for table in one.tables for each in table.untold]


def test_of_rows_that_are_not_told_the_first_and_the_last_of_a_part_are_noted(
    recording: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fed(_builder(recording, tmp_path / "whole"), [recording["events"]])
    rows = _rows_of(tmp_path / "whole")
    inserts = [(row["_tx"], row["_op_index"]) for row in rows if row["_op"] == "i"]
    between = [row for row in rows if row["_op"] == "u" and inserts[0][0] < row["_tx"] < inserts[-1][0]]
    assert between, "a stream must stop before them, at the first"
    monkeypatch.setattr(
        "penstock.capture.mysql.decoder._lacks_defaults", lambda kind, *_: np.asarray(kind == ord("i"))
    )
    _fed(_builder(recording, tmp_path / "lacking"), [recording["events"]])
    assert _untold(tmp_path / "lacking") == [inserts[0], inserts[-1]]
    assert {row["_op"] for row in _rows_of(tmp_path / "lacking")} == {"u", "d"}

    def unread(self: MapsAlone, stream: StreamId, described: TableMap) -> UnreadTable:
        return UnreadTable(stream, SourceError("not known", remedy=""))

    monkeypatch.setattr(MapsAlone, "_mapped", unread)
    builder = _builder(recording, tmp_path / "unread")
    _fed(builder, [recording["events"]])
    builder.demand(builder.position)  # a step without rows ends when somebody asks for it
    offsets = [(row["_tx"], row["_op_index"]) for row in rows]
    assert _untold(tmp_path / "unread") == [offsets[0], offsets[-1]]


@pytest.mark.parametrize("next_begins_with", ["its id", "another file"])
@pytest.mark.parametrize("kept", [1, 2, 3])
def test_a_transaction_that_was_cut_by_a_crash_never_counts(
    recording: dict[str, Any], tmp_path: Path, kept: int, next_begins_with: str
) -> None:
    if recording["flavor"] == "mysql":
        pytest.skip("MySQL takes what was cut off its log before it goes on")
    events = recording["events"]
    whole = _transaction(recording)
    assert kept < len(whole)
    at = events.index(whole[0])
    start = [] if next_begins_with == "its id" else [next(each for each in events if each[4] == 15)]
    cut = [*events[:at], *whole[:kept], *start, *events[at:]]
    _fed(_builder(recording, tmp_path / "whole"), [events])
    told = _rows_of(tmp_path / "whole")
    expected = [(row["_op"], row["id"]) for row in told]
    assert _untold(tmp_path / "whole") == []
    for name, batches in {"at once": [cut], "one by one": [[event] for event in cut]}.items():
        _fed(_builder(recording, tmp_path / name), batches)
        rows, last = _rows_of(tmp_path / name), _manifests(tmp_path / name)[-1]
        found = [(row["_op"], row["id"]) for row in rows]
        untold = _untold(tmp_path / name)
        has_rows = any(each[4] in (23, 30) for each in whole[:kept])
        if name == "at once" or not has_rows:
            assert (found, untold) == (expected, [])
        else:
            assert len(untold) == 1, "what was written of it before its end came has the table loaded again"
            others = [[row for row in each if row["_tx"] != untold[0][0]] for each in (rows, told)]
            assert others[0] == others[1] != []
        before = _manifests(tmp_path / "whole")[-1].place
        assert before is not None
        assert last.place is not None
        assert last.place.gtid_set == before.gtid_set


def test_maps_are_forgotten_between_transactions_and_what_the_catalog_said_is_not(
    recording: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fed(_builder(recording, tmp_path / "known"), [[event] for event in recording["events"]])
    monkeypatch.setattr("penstock.capture.mysql.decoder.MAPS_MAX", 0)
    forgotten: list[int] = []
    asked: list[TableMap] = []
    forget, ask = Tables.forget_maps, MapsAlone._mapped

    def note_forgotten(tables: Tables) -> None:
        forgotten.append(len(getattr(tables, "maps", ())))
        forget(tables)

    def note_asked(tables: MapsAlone, stream: StreamId, described: TableMap) -> MappedTable:
        asked.append(described)
        return ask(tables, stream, described)

    monkeypatch.setattr(Tables, "forget_maps", note_forgotten)
    monkeypatch.setattr(MapsAlone, "_mapped", note_asked)
    _fed(_builder(recording, tmp_path / "forgotten"), [[event] for event in recording["events"]])
    assert _rows_of(tmp_path / "forgotten") == _rows_of(tmp_path / "known")
    assert sum(forgotten) > len(set(asked)), "they were made known again"
    assert len(asked) == len(set(asked)), "once of each version of the table"


def test_a_set_says_what_was_read_before() -> None:
    seen = SeenGtids("mysql", f"{UUIDS[0]}:3-5:9")
    numbers = np.arange(1, 11)
    had = seen.had(UUIDS, np.zeros(10, np.int64), numbers)
    assert numbers[had].tolist() == [3, 4, 5, 9]
    assert not seen.had(UUIDS, np.ones(10, np.int64), numbers).any()
    assert not seen.had(UUIDS, np.full(10, -1), numbers).any()


def test_a_position_of_mariadb_says_nothing_of_numbers_that_come_out_of_order() -> None:
    """Servers of one domain write at the same time: what the other wrote comes later, by lower numbers."""
    seen = SeenGtids("mariadb", "0-2-20")
    source, number = np.array([1, 1, 0]), np.array([11, 12, 21])
    assert not seen.had(["0-2", "0-1"], source, number).any()
    seen.add(["0-2", "0-1"], source[:2], number[:2])
    assert str(seen) == "0-1-12", "the last in the order of the log"


def test_domains_of_mariadb_are_awaited_that_a_server_which_took_over_has_in_another_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = FilePosition("binlog.000002", 400)
    numbering = Numbering("binlog")
    asked: list[tuple[object, ...]] = []

    def position(*place: object) -> str:
        asked.append(place[1:])
        return "1-7-1,2-7-2,3-7-2"

    monkeypatch.setattr(setup, "gtid_position", position)
    connection: Any = None
    read = "1-7-2,2-7-2,3-7-2"
    took_over = setup._Start(numbering, at, BinlogPlace(at.file, at.offset), 2)
    assert setup._awaited(connection, took_over, read) == "1-7-2"
    assert asked == [("binlog.000002", 400)]
    assert setup._awaited(connection, replace(took_over, timeline=1), read) == "", "it is the first server"
    by_ids = replace(took_over, place=GtidPosition(read))
    assert setup._awaited(connection, by_ids, read) == "", "the server leaves them out itself"


def test_a_domain_of_mariadb_that_is_awaited_was_read_up_to_its_last() -> None:
    names = ["1-7", "2-7", "1-8"]
    source, number = np.array([1, 0, 2, 0, 1, 2, -1]), np.array([4, 5, 6, 6, 5, 3, 0])
    for cut in range(len(source)):  # wherever batches end
        seen = SeenGtids("mariadb", "1-7-6,2-7-3", awaited="1-7-6")
        found = []
        for part in (slice(0, cut), slice(cut, None)):
            found += seen.had(names, source[part], number[part]).tolist()
            seen.add(names, source[part], number[part])
            if part.stop is not None and cut < 5:
                assert str(seen).startswith("1-7-6"), "what comes again moves nothing"
        assert found == [False, True, True, True, False, False, False]
        assert str(seen) == "1-8-3,2-7-5"
    seen = SeenGtids("mariadb", "1-7-6", awaited="1-7-6")
    with pytest.raises(PositionGoneError, match="1-7-6"):
        seen.had(names, np.array([2]), np.array([7]))

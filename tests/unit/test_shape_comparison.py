"""What a comparison of shapes makes of items: those count that the snapshot shows, and no others."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from penstock.core.position import Lsn
from penstock.core.verify_report import VerifiedStream, VerifyReport
from penstock.shapes.admin import serve_admin
from penstock.shapes.comparison.held import BothSides
from penstock.shapes.comparison.parts import definitions
from penstock.shapes.comparison.reading import BehindError, ServedShape, ShapeGoneError, shapes_there
from penstock.shapes.comparison.run import _reached_at
from penstock.shapes.comparison.visible import MixedError, Visible
from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.shape import SnapshotPoint
from penstock.verify import reports
from tests.shape_wire import Wire

_EPOCH = 3 << 32


def test_a_change_counts_if_the_snapshot_shows_its_transaction() -> None:
    """Numbers of transactions have 64 bits at the source and 32 in a shape."""
    visible = Visible(SnapshotPoint(_EPOCH + 90, _EPOCH + 100, (_EPOCH + 90, _EPOCH + 95), 5000))
    assert visible.shows(4000, [80])
    assert visible.shows(4000, [94])
    assert not visible.shows(4000, [95]), "it was running"
    assert not visible.shows(4000, [100]), "it began later"
    assert not visible.shows(5000, [80]), "it commits at the position, or beyond"
    assert visible.shows(4000, [2**32 - 5]), "of the epoch before"


def test_numbers_that_begin_anew_are_told_apart() -> None:
    visible = Visible(SnapshotPoint(_EPOCH - 2, _EPOCH + 1, (_EPOCH - 2,), 5000))
    assert not visible.shows(4000, [2**32 - 2])
    assert visible.shows(4000, [2**32 - 1])
    assert visible.shows(4000, [0])
    assert not visible.shows(4000, [1])


def test_an_update_of_which_the_snapshot_shows_a_part_is_not_taken_for_either() -> None:
    visible = Visible(SnapshotPoint(90, 100, (95,), 5000))
    assert visible.shows(4000, [80, 94])
    assert not visible.shows(4000, [95, 101])
    with pytest.raises(MixedError):
        visible.shows(4000, [80, 95])
    with pytest.raises(MixedError):
        visible.shows(5000, [80, 94])


def test_the_header_of_a_page_is_not_waited_for() -> None:
    """Nothing is written there, so nobody who reads the log would come to it."""
    assert _reached_at(8192 * 5 + 24) == 8192 * 5
    assert _reached_at(8192 * 5) == 8192 * 5
    assert _reached_at(8192 * 5 + 48) == 8192 * 5 + 48


def item(operation: str, row: str, value: dict[str, Any], xid: int = 1, lsn: int = 10) -> dict[str, Any]:
    headers = {"operation": operation, "txids": [xid], "lsn": str(lsn)}
    return {"key": f'"public"."items"/"{row}"', "value": {"id": row, **value}, "headers": headers}


def compared(
    path: Path, definition: ShapeDefinition, source: list[Any], first: list[Any], changes: list[Any]
) -> list[tuple[str, str | None, list[str]]]:
    with closing(BothSides(path / "sides", definition)) as sides:
        sides.put_source(source)
        sides.put_first_rows([*first, {"headers": {"control": "snapshot-end"}}])
        sides.apply(changes, Visible(SnapshotPoint(50, 50, (), 5000)))
        found = sides.differences(20, show_values=False)
        assert not found.not_compared
        return [
            (each.kind, each.key["id"], [column.name for column in each.columns]) for each in found.told()
        ]


def test_rows_are_what_a_client_makes_of_the_items_that_count(tmp_path: Path) -> None:
    with Wire(tmp_path / "shapes") as wire:
        definition = wire.synced().definition
    (other,) = (name for name in definition.columns if name != "id")
    source = [item("insert", "1", {other: "new"}), item("insert", "2", {other: None})]
    first = [item("insert", "1", {other: "old"}), item("insert", "3", {other: "x"})]
    changes = [
        item("update", "1", {other: "new"}),
        item("insert", "2", {other: None}),
        item("delete", "3", {}),
        item("update", "9", {other: "of a row that nobody has"}),
        item("update", "1", {other: "later"}, xid=60),
        item("delete", "2", {}, xid=50),
        item("insert", "4", {other: "beyond"}, lsn=5000),
        {"headers": {"control": "up-to-date"}},
    ]
    assert compared(tmp_path, definition, source, first, changes) == []


@pytest.mark.parametrize(
    ("left_out", "told"),
    [
        (0, [("different", "1", ["value"])]),
        (1, [("missing", "2", [])]),
        (2, [("extra", "3", [])]),
    ],
)
def test_a_change_that_is_not_there_is_a_difference_of_its_row(
    tmp_path: Path, left_out: int, told: list[Any]
) -> None:
    with Wire(tmp_path / "shapes") as wire:
        definition = wire.synced().definition
    (other,) = (name for name in definition.columns if name != "id")
    source = [item("insert", "1", {other: "new"}), item("insert", "2", {other: None})]
    first = [item("insert", "1", {other: "old"}), item("insert", "3", {other: "x"})]
    changes = [
        item("update", "1", {other: "new"}),
        item("insert", "2", {other: None}),
        item("delete", "3", {}),
    ]
    del changes[left_out]
    named = [(kind, key, [other] * len(columns)) for kind, key, columns in told]
    assert compared(tmp_path, definition, source, first, changes) == named


@pytest.mark.parametrize(
    ("asked", "told"), [(True, ("new", "old")), (False, (None, None))], ids=["asked for", "not asked for"]
)
def test_values_that_differ_are_kept_where_they_are_asked_for_alone(
    tmp_path: Path, *, asked: bool, told: tuple[str | None, str | None]
) -> None:
    """What comes of a comparison may be printed, saved and sent on by whoever made it."""
    with Wire(tmp_path / "shapes") as wire:
        definition = wire.synced().definition
    (other,) = (name for name in definition.columns if name != "id")
    with closing(BothSides(tmp_path / "sides", definition)) as sides:
        sides.put_source([item("insert", "1", {other: "new"}), item("insert", "2", {other: "secret"})])
        sides.put_first_rows([item("insert", "1", {other: "old"})])
        found = sides.differences(20, show_values=asked)
    missing, different = found.told()
    [column] = different.columns
    assert (column.name, column.source, column.table) == (other, *told)
    assert different.key == {"id": "1"}, "which row it is, is told"
    assert "secret" not in repr(missing)


def test_a_column_that_is_younger_than_a_row_is_named_and_not_compared(tmp_path: Path) -> None:
    with Wire(tmp_path / "shapes") as wire:
        definition = wire.synced().definition
    (other,) = (name for name in definition.columns if name != "id")
    with closing(BothSides(tmp_path / "sides", definition)) as sides:
        sides.put_source([item("insert", "1", {other: "its default"})])
        sides.put_first_rows([item("insert", "1", {})])
        found = sides.differences(20, show_values=False)
    assert (found.told(), found.not_compared) == ((), {other})


def test_a_shape_is_read_in_chunks_until_it_has_all_that_was_committed_before(tmp_path: Path) -> None:
    """And not before: nothing may be there yet of what the source shows already."""
    with Wire(tmp_path / "shapes") as wire:
        shape = wire.synced()
        wanted: list[Lsn] = []

        def want(position: Lsn) -> None:
            wanted.append(position)
            wire.shapes.append(shape, 100, [item("insert", "8", {})])
            wire.shapes.global_last_seen_lsn = 119

        path = tmp_path / "admin"
        server = wire.run(serve_admin(path, wire.shapes, want))
        try:
            assert [each["handle"] for each in shapes_there(path)] == [shape.handle]
            served = ServedShape(path, shape.handle)
            wire.shapes.global_last_seen_lsn = 99
            items = [each for part in served.changes(120, 30) for each in part]
            assert wanted == [Lsn(120)]
            assert [each["value"]["id"] for each in items][-1:] == ["8"]
            with pytest.raises(BehindError):
                list(ServedShape(path, shape.handle).changes(121 + 1, 0.2))
            wire.shapes.forget(shape)
            with pytest.raises(ShapeGoneError):
                list(served.first_rows())
        finally:
            wire.run(_closed(server))


def test_a_shape_whose_first_rows_are_being_written_is_not_ready_to_be_compared() -> None:
    """It is ready for clients when it is known what they show."""
    definition = MagicMock(to_json=dict)
    shapes = [
        SimpleNamespace(
            handle=state,
            state="ready",
            hidden=False,
            definition=definition,
            storage=MagicMock(snapshot_state=state),
        )
        for state in ("writing", "complete")
    ]
    told = definitions(MagicMock(all=lambda: shapes))["shapes"]
    assert [each["state"] for each in told] == ["creating", "ready"]


async def _closed(server: asyncio.Server) -> None:
    server.close()
    await server.wait_closed()


def test_a_difference_of_a_shape_that_is_gone_is_forgotten_when_all_were_compared(tmp_path: Path) -> None:
    """Nobody can settle it; but a comparison of some shapes says nothing of the others."""

    def told(second: int, *streams: VerifiedStream, is_all: bool) -> None:
        began = f"2026-01-01T00:00:0{second}+00:00"
        reports.save(tmp_path, VerifyReport(streams, began, 1.0, of="shapes", is_all_of_lane=is_all))

    first = VerifiedStream("public.items 1-1", "different", lane="shapes", missing=1)
    second = VerifiedStream("public.items 2-2", "equal", lane="shapes")
    told(1, first, second, is_all=True)
    told(2, second, is_all=False)
    assert set(reports.newest_known(tmp_path)) == {first.name, second.name}
    told(3, second, is_all=True)
    assert set(reports.newest_known(tmp_path)) == {second.name}

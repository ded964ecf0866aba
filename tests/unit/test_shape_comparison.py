"""What a comparison of shapes makes of items: those count that the snapshot shows, and no others."""

from __future__ import annotations

import asyncio
import math
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import orjson
import pytest

from penstock.core.offset import LogOffset
from penstock.core.position import Lsn
from penstock.core.verify_report import VerifiedStream, VerifyReport
from penstock.shapes.admin import serve_admin
from penstock.shapes.comparison.at_cuts import ranges
from penstock.shapes.comparison.held import BothSides
from penstock.shapes.comparison.parts import definitions
from penstock.shapes.comparison.pending import pending_condition
from penstock.shapes.comparison.reading import (
    BehindError,
    NotReadyError,
    ServedShape,
    ShapeGoneError,
    shapes_there,
)
from penstock.shapes.comparison.tagged import TaggedSides
from penstock.shapes.comparison.visible import MixedError, Visible, reached_at
from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.shape import SnapshotPoint
from penstock.shapes.subquery.members import form_of
from penstock.shapes.subquery.tags import Tags
from penstock.shapes.subquery.watch import Cut, Unsettled, cut_between
from penstock.verify import reports
from tests.shape_wire import Wire
from tests.subquery_model import defined

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
    assert reached_at(8192 * 5 + 24) == 8192 * 5
    assert reached_at(8192 * 5) == 8192 * 5
    assert reached_at(8192 * 5 + 48) == 8192 * 5 + 48


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


def test_a_cut_is_the_last_moment_before_the_first_transaction_that_a_snapshot_does_not_show() -> None:
    point = SnapshotPoint(90, 100, (92,), 5000)
    assert cut_between({4000: 80, 4100: 91, 4200: 92, 4300: 101}, point, 6000) == 4199
    assert cut_between({4000: 80, 4100: 91}, point, 6000) == 5999, "its tables are the same up to there"
    assert cut_between({4000: 80, 5000: 91}, point, 6000) == 4999, "it commits at the position, or beyond"
    assert cut_between({}, point, 6000) == 5999


def test_a_snapshot_that_shows_a_transaction_and_not_an_earlier_one_has_no_cut() -> None:
    assert cut_between({4000: 92, 4100: 91}, SnapshotPoint(90, 100, (92,), 5000), 6000) is None


def test_what_was_spliced_in_later_as_of_before_the_cut_is_left_out_of_the_log() -> None:
    def told(cut: Cut) -> list[str]:
        return [f"{after} {until}" for after, until in ranges(cut)]

    end = 1 << 60
    assert told(Cut(500, LogOffset(400, 2), (), None)) == ["0_inf 400_2"]
    assert told(Cut(500, LogOffset(700, 2), (), None)) == [f"0_inf 500_{end}"]
    assert told(Cut(500, LogOffset(700, 2), (402, 302), None)) == [
        f"0_inf 301_{end}", f"302_{end} 401_{end}", f"402_{end} 500_{end}",
    ]  # fmt: skip
    assert told(Cut(500, LogOffset(202, 4), (202,), None)) == [f"0_inf 201_{end}", f"202_{end} 202_4"]


FLAGGED = "owner IN (SELECT id FROM users WHERE flag = 'y')"


class Tagged:
    """Items of a shape with a subquery, and its sides."""

    def __init__(self, path: Path) -> None:
        self.definition = defined("items", FLAGGED)
        form = form_of(self.definition)
        assert form is not None
        self.tags = Tags(form, "salt")
        self.sides = TaggedSides(path / "sides", self.definition, 20)

    def row(self, row: str, owner: str, operation: str = "insert", note: str = "") -> dict[str, Any]:
        value = {"id": row, "owner": owner, "other": None, "note": note}
        headers = orjson.loads(
            b'{"operation":"%s"%s}'
            % (operation.encode(), self.tags.headers(self.tags.slots([(owner,)]), [True]))
        )
        return {"key": f'"public"."items"/"{row}"', "value": value, "headers": headers}

    def source(self, row: str, owner: str, *, inside: bool = True, pending: bool = False) -> dict[str, Any]:
        return {**self.row(row, owner), "headers": {"inside": inside, "pending": pending}}

    def event(self, name: str, *owners: str) -> dict[str, Any]:
        patterns = [{"pos": 0, "value": self.tags.slot(0, (owner,))} for owner in owners]
        return {"headers": {"event": name, "patterns": patterns, "txids": [1]}}

    def look(self, source: list[Any], first: list[Any], changes: list[Any]) -> list[str]:
        """What is told by now, and how much is open."""
        self.sides.begin()
        self.sides.put_rows(source)
        self.sides.put_first_rows([*first, {"headers": {"control": "snapshot-end"}}])
        self.sides.take(changes)
        self.sides.judge(show_values=False)
        return [f"{each.kind} {each.key['id']}" for each in self.sides.found.told()] + [
            f"open {self.sides.open}"
        ]


def test_events_move_the_rows_that_have_their_values(tmp_path: Path) -> None:
    made = Tagged(tmp_path)
    with closing(made.sides):
        first = [made.row("1", "7"), made.row("2", "7"), made.row("3", "8"), made.row("4", "8")]
        changes = [
            made.row("2", "8", "update"),
            made.event("move-out", "7"),
            made.event("move-out", "9"),
            {"key": made.row("4", "8")["key"], "value": {"id": "4"}, "headers": {"operation": "delete"}},
            made.event("move-in", "7"),
            made.row("5", "7"),
        ]
        source = [made.source("2", "8"), made.source("3", "8"), made.source("5", "7")]
        assert made.look(source, first, changes) == ["open 0"]


def test_a_row_that_is_missing_one_too_many_and_a_wrong_one_are_told_if_they_are_not_pending(
    tmp_path: Path,
) -> None:
    made = Tagged(tmp_path)
    with closing(made.sides):
        source = [
            made.source("1", "7"), made.source("2", "7"), made.source("3", "8", pending=True),
            made.source("4", "8", inside=False, pending=True),
        ]  # fmt: skip
        first = [made.row("2", "7", note="wrong"), made.row("4", "8"), made.row("5", "7")]
        assert made.look(source, first, []) == ["missing 1", "extra 5", "different 2", "open 2"]


def test_rows_that_are_pending_are_judged_when_they_are_not_any_more(tmp_path: Path) -> None:
    made = Tagged(tmp_path)
    with closing(made.sides):
        pending = [made.source(row, "7", pending=True) for row in "123"]
        assert made.look(pending, [], []) == ["open 3"]
        settled = [made.source("1", "7"), made.source("2", "7"), made.source("3", "7", pending=True)]
        assert made.look([*settled, made.source("4", "7")], [made.row("1", "7")], []) == [
            "missing 2",
            "open 1",
        ]
        assert made.look([made.source("3", "7"), made.source("1", "7")], [], []) == [
            "missing 2", "missing 3", "open 0",
        ], "what was equal once is not looked at again"  # fmt: skip


def test_a_value_that_is_held_concerns_rows_that_have_it_and_those_of_what_is_inside() -> None:
    two_levels = defined("items", "owner IN (SELECT id FROM users WHERE team IN (SELECT id FROM teams))")

    def asked(unsettled: Unsettled | None) -> str | None:
        condition = pending_condition(two_levels, unsettled)
        return None if condition is None else condition.as_string()

    inside = Unsettled(((("3",),),), (), (None,))
    assert asked(None) is None
    assert asked(Unsettled(((),), (0,), (None,))) == "TRUE"
    own = asked(Unsettled(((("1",), ("2",)),), (), (None,)))
    assert own is not None
    assert """"owner" = ANY ('{1,2}'::pg_catalog."int4"[])""" in own
    of_inner = asked(Unsettled(((),), (), (inside,)))
    assert of_inner is not None
    assert 'FROM ONLY "public"."users" WHERE' in of_inner
    assert """"team" = ANY ('{3}'::pg_catalog."int4"[])""" in of_inner


def test_a_watch_and_a_cut_are_had_from_the_service_and_the_log_up_to_any_offset(tmp_path: Path) -> None:
    with Wire(tmp_path / "shapes") as wire:
        shape = wire.synced()
        path = tmp_path / "admin"
        server = wire.run(serve_admin(path, wire.shapes))
        cut = Cut(120, LogOffset(100, 2), (90,), Unsettled(((("1",), (None,)),), (0,), (None,)))
        try:
            served = ServedShape(path, shape.handle)
            assert served.watch(after=served.watch()) == "watch 2"
            assert wire.shapes.watches == [None, "watch 1"]
            point = SnapshotPoint(1, 9, (3,), 200)
            wire.shapes.cuts = ["behind", "behind", cut, "out of order", "behind"]
            assert served.cut("watch 2", point, 30) == cut
            assert served.cut("watch 2", point, 30) == "out of order"
            with pytest.raises(BehindError):
                served.cut("watch 2", point, 0)
            for tx in (100, 110, 120):
                wire.shapes.append(shape, tx, [item("insert", str(tx), {}), item("insert", f"{tx}1", {})])
            found = [
                each["value"]["id"]
                for after, until in (
                    (LogOffset(0, math.inf), LogOffset(100, 0)),
                    (LogOffset(109, 9), LogOffset(115, 0)),
                )
                for part in served.changes_between(after, until, 30)
                for each in part
            ]
            assert found == ["100", "110", "1101"]
            with pytest.raises(BehindError):
                list(served.changes_between(LogOffset(110, 0), LogOffset(130, 0), 0))
            wire.shapes.watching = False
            with pytest.raises(NotReadyError):
                served.watch()
            wire.shapes.forget(shape)
            with pytest.raises(ShapeGoneError):
                served.watch()
        finally:
            wire.run(_closed(server))

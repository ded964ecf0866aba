"""The list of lanes: who is on it stays on it, and its positions are never ahead of the lanes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.core.errors import SourceError, StateError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.ledger.lanes import LaneRegistry, notes_of_left_lanes

pytestmark = pytest.mark.unit


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lanes.json"


def test_a_lane_that_joined_is_on_the_list_after_a_crash(path: Path) -> None:
    LaneRegistry(path).join("lake")
    assert LaneRegistry(path).positions() == {"lake": None}
    since = LaneRegistry(path).lanes()["lake"].since
    LaneRegistry(path).join("lake", [StreamId("public", "orders")])
    assert LaneRegistry(path).lanes()["lake"].since == since
    assert LaneRegistry(path).lanes()["lake"].streams == (StreamId("public", "orders"),)


def test_positions_are_kept_from_the_last_save_and_never_go_back(path: Path) -> None:
    registry = LaneRegistry(path)
    registry.join("lake")
    registry.flushed("lake", Lsn(100))
    registry.save()
    registry.flushed("lake", Lsn(90))
    registry.flushed("lake", Lsn(200))
    registry.flushed("unknown", Lsn(7))
    assert LaneRegistry(path).positions() == {"lake": Lsn(100)}
    registry.save()
    assert LaneRegistry(path).positions() == {"lake": Lsn(200)}


def test_a_lane_goes_only_when_it_is_dropped(path: Path) -> None:
    registry = LaneRegistry(path)
    registry.join("lake")
    registry.join("kafka")
    assert registry.drop("kafka", is_configured=False)
    assert not registry.drop("kafka", is_configured=False)
    assert LaneRegistry(path).positions() == {"lake": None}
    assert LaneRegistry(path).lanes().keys() == {"lake"}
    assert not registry.drop("nobody", is_configured=False)


def test_a_configured_lane_that_was_dropped_is_given_up_until_it_joins_again(path: Path) -> None:
    orders = StreamId("public", "orders")
    registry = LaneRegistry(path)
    registry.join("lake")
    registry.join("kafka", [orders], [orders])
    assert registry.drop("kafka", is_configured=True)
    assert not registry.drop("kafka", is_configured=True)
    registry.flushed("kafka", Lsn(7))  # it runs, and has not heard of it
    registry.heard("kafka")
    registry.save()
    registry.forget_positions()
    for each in (registry, LaneRegistry(path)):
        assert each.positions() == {"lake": None}
        assert each.dropped() == {"kafka"}
    assert notes_of_left_lanes(path, ["lake"]) == []
    assert LaneRegistry(path).join("kafka", [orders]) == (orders,)
    assert LaneRegistry(path).positions() == {"kafka": None, "lake": None}
    assert not LaneRegistry(path).dropped()
    assert registry.drop("shapes", is_configured=True), "one that never joined"
    assert LaneRegistry(path).dropped() >= {"shapes"}


@pytest.mark.parametrize("is_configured", [True, False], ids=["in the pipeline file", "not in it"])
def test_a_lane_that_was_dropped_is_told_when_it_comes_again_that_all_its_streams_may_lack_changes(
    path: Path, is_configured: bool
) -> None:
    orders, items, late = (StreamId("public", name) for name in ("orders", "items", "late"))
    registry = LaneRegistry(path)
    registry.join("kafka", [orders, items], [orders])
    registry.heard("kafka")
    assert registry.join("kafka", [orders, items]) == ()
    assert registry.drop("kafka", is_configured=is_configured)
    registry.heard("kafka")  # it runs, and has not heard of it
    LaneRegistry(path).join("lake", [orders])  # a term without it
    assert LaneRegistry(path).join("kafka", [orders]) == (orders, items), (
        "one it does not ask for at once, too"
    )
    registry = LaneRegistry(path)  # the lane died before it noted that, and so did capture
    assert registry.join("kafka", [orders, items, late], [late]) == (orders, items, late)
    registry.heard("kafka", [orders])
    assert registry.drop("kafka", is_configured=is_configured), (
        "dropped once more, before it has heard of all"
    )
    assert set(LaneRegistry(path).join("kafka", [late])) == {orders, items, late}
    registry = LaneRegistry(path)
    registry.heard("kafka")
    assert LaneRegistry(path).join("kafka", [orders, items, late]) == ()


def test_of_a_lane_that_never_joined_before_it_was_dropped_every_stream_may_lack_changes(path: Path) -> None:
    orders = StreamId("public", "orders")
    assert LaneRegistry(path).drop("kafka", is_configured=True)
    assert LaneRegistry(path).join("kafka", [orders]) == (orders,)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format_version": 1, "lanes": {"lake": {}}}'])
def test_a_list_that_cannot_be_read_is_an_error_and_not_an_empty_one(path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(StateError, match="cannot be read"):
        LaneRegistry(path)


def test_a_newer_format_is_refused(path: Path) -> None:
    path.write_text(json.dumps({"format_version": 2, "lanes": {}}))
    with pytest.raises(StateError, match="newer Penstock"):
        LaneRegistry(path)


def test_a_lane_that_joins_again_may_have_less_than_it_had(path: Path) -> None:
    registry = LaneRegistry(path)
    registry.join("lake")
    registry.flushed("lake", Lsn(500))
    registry.save()
    registry.join("lake")
    registry.flushed("lake", Lsn(400))
    registry.flushed("lake", Lsn(300))
    registry.save()
    assert LaneRegistry(path).positions() == {"lake": Lsn(400)}
    registry.forget_positions()
    assert LaneRegistry(path).positions() == {"lake": None}


def test_what_was_published_for_a_lane_is_told_until_it_has_heard(path: Path) -> None:
    orders, items = StreamId("public", "orders"), StreamId("public", "items")
    assert LaneRegistry(path).join("lake", [orders], [orders]) == (orders,)
    registry = LaneRegistry(path)  # the lane died before it noted that, and so did capture
    assert registry.join("lake", [orders, items], [items]) == (orders, items)
    registry.heard("lake", [items])
    registry.heard("nobody", [orders])
    assert LaneRegistry(path).join("lake", [orders, items]) == (orders,)
    registry.heard("lake")
    assert LaneRegistry(path).join("lake", [orders, items]) == ()


def test_who_may_not_lead_any_more_writes_nothing_over_what_the_successor_has_written(path: Path) -> None:
    leads = True

    def may_write() -> None:
        if not leads:
            raise SourceError("The lock was lost.", remedy="None.")

    registry, orders = LaneRegistry(path, may_write), StreamId("public", "orders")
    registry.join("lake", [orders], [orders])
    registry.flushed("lake", Lsn(100))
    leads = False
    successor = LaneRegistry(path)
    successor.join("kafka")
    successor.flushed("lake", Lsn(200))
    successor.save()
    written = path.read_bytes()
    for write in (
        registry.save,
        registry.forget_positions,
        lambda: registry.heard("lake"),
        lambda: registry.drop("lake", is_configured=True),
        lambda: registry.join("lake"),
    ):
        with pytest.raises(SourceError):
            write()
    assert path.read_bytes() == written
    leads = True  # it was not taken away, only near it: what could not be written then is written now
    registry.heard("lake")
    registry.join("lake", [orders])
    registry.save()
    lane = LaneRegistry(path).lanes()["lake"]
    assert (lane.position, lane.streams, lane.published) == (Lsn(100), (orders,), ())

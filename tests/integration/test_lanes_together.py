"""Two lanes of one capture: what one follows is not lost because the other was there first."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.capture.client import CaptureProcess
from penstock.capture.remote import RemoteCapture
from penstock.core.errors import CaptureAwayError, PositionGoneError, SourceError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.lake.superseded import set_aside
from penstock.ledger.lanes import LANES_FILE, LaneRegistry
from penstock.log.reader import ChangeLog
from tests.always import QUICK_HEARTBEAT_S, AlwaysOn, always_spec, ids
from tests.capture_specs import slot_of
from tests.captured import log_rows
from tests.conftest import WAIT_S, Database, wait_until

pytestmark = pytest.mark.integration

ORDERS, ITEMS = StreamId("public", "orders"), StreamId("public", "items")


@pytest.fixture
def shop(database: Database) -> Database:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    database.execute("CREATE TABLE items (id int PRIMARY KEY, note text)")
    return database


def test_the_first_lane_of_a_term_has_the_tables_of_all_lanes_read(shop: Database, tmp_path: Path) -> None:
    spec = always_spec(shop, tmp_path, lanes={"lake": None, "shapes": None})
    with AlwaysOn(spec) as capture, RemoteCapture(capture.capture.address, "shapes") as shapes:
        capture.join("public.orders")
        assert shapes.join([ITEMS], {ITEMS}).published == (ITEMS,)
        shapes.heard()
        shop.execute("INSERT INTO items VALUES (1)")
        capture.read_now()
        capture.process.kill()
    shop.execute("INSERT INTO items VALUES (2)")
    with AlwaysOn(spec) as capture, RemoteCapture(capture.capture.address, "shapes") as shapes:
        capture.join("public.orders")
        shop.execute("INSERT INTO items VALUES (3)")
        shop.execute("INSERT INTO orders VALUES (1)")
        capture.read_now()
        assert ids(log_rows(tmp_path, "public.items")) == [1, 2, 3]
        assert shapes.join([ITEMS], {ITEMS}).published == ()
        assert ids(log_rows(tmp_path)) == [1]


@pytest.mark.slow
def test_a_sync_in_between_keeps_what_the_other_lane_follows(shop: Database, tmp_path: Path) -> None:
    spec = always_spec(shop, tmp_path, lanes={"lake": None, "shapes": None})
    with AlwaysOn(spec) as capture, RemoteCapture(capture.capture.address, "shapes") as shapes:
        capture.join("public.orders")
        shapes.join([ITEMS], {ITEMS})
        shop.execute("INSERT INTO items VALUES (1)")
        capture.read_now()
        assert capture.stop() == 0
    bounded = replace(spec, streams=(ORDERS,), lanes={"lake": None})
    with CaptureProcess(bounded) as sync:
        sync.start()
        shop.execute("INSERT INTO items VALUES (2)")
        sync.read_to(sync.note_target())
        sync.wait_reached(WAIT_S)
    assert ids(log_rows(tmp_path, "public.items")) == [1, 2]


def test_a_lane_may_join_without_tables_and_the_source_waits_for_it(shop: Database, tmp_path: Path) -> None:
    spec = always_spec(shop, tmp_path, lanes={"shapes": None})
    with AlwaysOn(spec, lane="shapes") as capture:
        wait_until(capture.leads, "capture to lead")
        started = capture.capture.join([])
        assert started.published == ()
        before = capture.capture.progress().acknowledged
        shop.execute("INSERT INTO items VALUES (1)")  # of no lane: it moves the position all the same
        end = capture.read_now()
        assert capture.capture.progress().acknowledged == before
        capture.capture.acknowledge("shapes", end)
        wait_until(lambda: capture.capture.progress().acknowledged >= end, "the source to be told")
        assert capture.capture.join([ITEMS], {ITEMS}).published == (ITEMS,)
        shop.execute("INSERT INTO items VALUES (2)")
        capture.read_now()
        assert ids(log_rows(tmp_path, "public.items")) == [2]
        assert shop.query("SELECT relreplident FROM pg_class WHERE relname = 'items'") == [("f",)]
        assert shop.query("SELECT relreplident FROM pg_class WHERE relname = 'orders'") == [("d",)]


def test_what_is_written_down_of_each_lane_says_what_it_follows(shop: Database, tmp_path: Path) -> None:
    with AlwaysOn(always_spec(shop, tmp_path)) as capture:
        capture.join("public.orders")
        with RemoteCapture(capture.capture.address, "shapes") as shapes:
            shapes.join([ITEMS], {ITEMS})
        lanes = LaneRegistry(tmp_path / LANES_FILE).lanes()
        assert {name: lane.streams for name, lane in lanes.items()} == {"lake": (ORDERS,), "shapes": (ITEMS,)}
        assert lanes["shapes"].position in (None, Lsn(0))


def past_the_log(database: Database, slot: str) -> None:
    """As another instance leaves the slot that has led meanwhile, with a log of its own."""
    database.execute("INSERT INTO items SELECT max(id) + 1 FROM items")
    database.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_flush_lsn())", (slot,))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["moved", "dropped"])
def test_a_log_that_only_renewable_lanes_need_is_begun_anew_when_the_slot_is_not_where_it_was(
    shop: Database, tmp_path: Path, what: str
) -> None:
    spec = always_spec(shop, tmp_path, lanes={"shapes": None}, renewable=frozenset({"shapes"}))
    with AlwaysOn(spec, lane="shapes") as capture:
        capture.join("public.items")
        shop.execute("INSERT INTO items VALUES (1)")
        before = capture.read_now()
        capture.capture.acknowledge("shapes", before)
        assert capture.stop() == 0
    if what == "moved":
        past_the_log(shop, slot_of(spec))
    else:
        shop.execute("SELECT pg_drop_replication_slot(%s)", (slot_of(spec),))
    with AlwaysOn(spec, lane="shapes") as capture:
        started = capture.join("public.items")
        assert started.slot_created == (what == "dropped")
        shop.execute("INSERT INTO items VALUES (10)")
        capture.read_now()
        assert ids(log_rows(tmp_path, "public.items")) == [10]
        start = ChangeLog(tmp_path / "log").start()
        assert start is not None
        assert start > before, "what is missing can be seen to be missing"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shapes", "kafka"])
def test_other_lanes_wait_for_the_lake_to_decide(shop: Database, tmp_path: Path, name: str) -> None:
    lanes: dict[str, Lsn | None] = {"lake": None, name: None}
    spec = always_spec(
        shop, tmp_path, lanes=lanes, renewable=frozenset({"shapes"}), heartbeat_s=QUICK_HEARTBEAT_S
    )
    with AlwaysOn(spec) as capture:
        capture.join("public.orders", "public.items")
        shop.execute("INSERT INTO items VALUES (1)")
        capture.read_now()
        assert capture.stop() == 0
    past_the_log(shop, slot_of(spec))
    with AlwaysOn(spec) as capture, RemoteCapture(capture.capture.address, name) as other:
        wait_until(capture.leads, "capture to lead")
        with pytest.raises(CaptureAwayError, match="another lane decides"):
            other.join([ITEMS], {ITEMS})
        assert capture.leads()
        assert ids(log_rows(tmp_path, "public.items")) == [1], "the log is as it was"
        with pytest.raises(SourceError):  # its own words, or those of a connection that is gone
            capture.capture.join([ORDERS])
        wait_until(lambda: capture.process.poll() is not None, "capture to end: somebody must look")
        assert capture.process.returncode == PositionGoneError.exit_code


@pytest.mark.parametrize("name", ["shapes", "kafka"])
def test_other_lanes_join_a_term_after_the_lake(shop: Database, tmp_path: Path, name: str) -> None:
    lanes: dict[str, Lsn | None] = {"lake": None, name: None}
    spec = always_spec(shop, tmp_path, lanes=lanes, renewable=frozenset({"shapes"}))
    with (
        AlwaysOn(spec) as capture,
        RemoteCapture(capture.capture.address, name) as other,
        ThreadPoolExecutor(1) as executor,
    ):
        wait_until(capture.leads, "capture to lead")
        joined = executor.submit(other.join, [ITEMS], {ITEMS})
        assert not other.hello().turn
        for _ in range(20):  # it waits, while capture answers others
            assert not capture.capture.hello().reading
        assert not joined.done()
        capture.join("public.orders")
        assert joined.result(WAIT_S).published == (ITEMS,)
        assert other.hello().turn


@pytest.mark.parametrize("name", ["shapes", "kafka"])
def test_the_lake_can_set_a_log_aside_that_was_left_behind_whoever_joins_first(
    shop: Database, tmp_path: Path, name: str
) -> None:
    """Another instance with a state of its own has led meanwhile: the log ends before the slot."""
    spec = always_spec(shop, tmp_path, lanes={"lake": None, name: None}, renewable=frozenset({"shapes"}))
    with AlwaysOn(spec) as capture:
        capture.join("public.orders", "public.items")
        shop.execute("INSERT INTO items VALUES (1)")
        capture.read_now()
        assert capture.stop() == 0
    past_the_log(shop, slot_of(spec))
    with (
        AlwaysOn(spec) as capture,
        RemoteCapture(capture.capture.address, name) as other,
        ThreadPoolExecutor(1) as executor,
    ):
        wait_until(capture.leads, "capture to lead")
        assert not other.hello().turn
        joined = executor.submit(other.join, [ITEMS])
        for _ in range(20):
            assert not capture.capture.hello().reading
        set_aside(tmp_path)
        epoch = capture.join("public.orders", "public.items").epoch
        assert joined.result(WAIT_S).epoch == epoch, "it was one term"
        shop.execute("INSERT INTO items VALUES (10)")
        capture.read_now()
        assert ids(log_rows(tmp_path, "public.items")) == [10]

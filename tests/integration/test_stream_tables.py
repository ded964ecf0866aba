"""Tables that come, go and leave the publication while a stream lane runs: it begins with those that came by
itself, and what cannot be had any more is never passed over in silence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock import metrics
from penstock.streams import table_watch
from tests.always import AlwaysOn, always_spec
from tests.conftest import WAIT_S, Database, wait_until
from tests.stream_lane import LaneThread, events_of, position_of, standing_of
from tests.stream_shop import SHOP, Shop, opened

CUSTOMERS = "CREATE TABLE customers (id bigint PRIMARY KEY); INSERT INTO customers VALUES (1);"


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done seldom is done often."""
    monkeypatch.setattr(table_watch, "LOOK_EVERY_S", 0.3)


@pytest.fixture
def shop(database: Database, tmp_path: Path) -> Iterator[Shop]:
    with opened(database, tmp_path) as made:
        yield made


@pytest.fixture(params=["initial", "never"])
def two_tables(request: pytest.FixtureRequest, database: Database, tmp_path: Path) -> Iterator[Shop]:
    """A lane that sends the rows there are, or changes alone."""
    with opened(database, tmp_path, SHOP + CUSTOMERS, snapshot=request.param) as made:
        yield made


def _edit(path: Path, **changed: Any) -> None:
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changed}))


def _leave_publication(shop: Shop) -> None:
    """For a while: nobody ever sees what is written meanwhile."""
    with shop.database.connect(autocommit=False) as connection:
        connection.execute("ALTER PUBLICATION penstock DROP TABLE orders")
        connection.execute("INSERT INTO orders VALUES (60)")
        connection.commit()


def _wait_until_standing_still(lane: LaneThread) -> str:
    def stands() -> bool:
        assert lane.error is None
        return lane.state[0] == "running" and "public.orders stands still" in lane.state[1]

    wait_until(stands, "the lane to say that a stream stands still", WAIT_S)
    return lane.state[1]


def test_a_table_that_comes_while_the_lane_runs_is_loaded_and_followed(shop: Shop) -> None:
    with shop.lane() as lane:
        shop.wait_for(50)
        shop.execute("CREATE TABLE late (id bigint PRIMARY KEY); INSERT INTO late VALUES (7)")
        shop.execute("INSERT INTO orders VALUES (60)")
        shop.wait_for(1, "public.late")
        shop.execute("INSERT INTO late VALUES (8)")
        shop.execute("INSERT INTO orders VALUES (61)")
        shop.wait_for(2, "public.late")
        shop.wait_for(52)
        assert (shop.ops("public.late"), shop.ops()) == ("rc", "r" * 50 + "cc")
        assert lane.state == ("running", "")
    shop.require_once()


def test_a_stream_that_the_pipeline_file_gets_meanwhile_is_loaded_and_followed(
    database: Database, tmp_path: Path
) -> None:
    database.execute(SHOP + CUSTOMERS)
    shop = Shop(tmp_path, database)
    _edit(shop.path, streams=["public.orders"])
    with shop.captured(), shop.lane() as lane:
        shop.wait_for(50)
        before = shop.path.read_text()
        shop.path.write_text("streams: [")  # as an editor may leave it for a moment
        wait_until(
            lambda: any("Could not look" in each for each in lane.notes), "the file to be read", WAIT_S
        )
        shop.path.write_text(before)
        _edit(shop.path, streams=["public.orders", "public.customers"])
        shop.execute("INSERT INTO orders VALUES (60)")
        shop.wait_for(51)
        shop.wait_for(1, "public.customers")
        shop.execute("INSERT INTO customers VALUES (2)")
        shop.wait_for(2, "public.customers")
        assert shop.ops("public.customers") == "rc"


def test_changes_of_a_table_that_is_gone_are_sent_before_the_lane_begins_anew(shop: Shop) -> None:
    shop.execute("CREATE TABLE passing (id bigint PRIMARY KEY)")
    with shop.lane():
        shop.wait_for(50)
        with shop.database.connect(autocommit=False) as connection:
            connection.execute("INSERT INTO passing SELECT generate_series(1, 200)")
            connection.execute("CREATE TABLE late (id bigint PRIMARY KEY)")
            connection.execute("INSERT INTO late VALUES (7)")
            connection.commit()
        shop.execute("DROP TABLE passing")
        shop.wait_for(1, "public.late")
        assert shop.ops("public.passing") == "c" * 200


def test_a_table_that_cannot_be_published_is_told_and_holds_nobody_up(shop: Shop) -> None:
    with shop.lane() as lane:
        shop.wait_for(50)
        shop.execute("CREATE TABLE nameless (word text)")
        wait_until(lambda: any("nameless" in note for note in lane.notes), "the note", WAIT_S)
        shop.execute("INSERT INTO orders VALUES (60)")
        shop.wait_for(51)
        assert lane.state == ("running", "")
        assert len([note for note in lane.notes if "nameless" in note]) == 1


def test_a_stream_that_lacks_changes_stands_still_until_somebody_decides(two_tables: Shop) -> None:
    shop, rows = two_tables, 50 if two_tables.config.lanes.streams["file"].snapshot == "initial" else 0
    with shop.lane() as lane:
        lane.wait_until_running()
        shop.execute("INSERT INTO orders VALUES (51)")
        shop.wait_for(rows + 1)
        _leave_publication(shop)
        said = _wait_until_standing_still(lane)
        assert "penstock resync --lane file public.orders --yes" in said
        assert (metrics.STREAM_LANE_GAPS.name, {"lane": "file"}, 1.0) in lane.measures.samples()
        others = len(shop.events("public.customers"))
        shop.execute("INSERT INTO orders VALUES (61)")
        shop.execute("INSERT INTO customers VALUES (2)")
        shop.wait_for(others + 1, "public.customers")
        assert len(shop.events()) == rows + 1, "nothing of it is told behind the gap"
    with shop.lane() as lane:
        _wait_until_standing_still(lane)
        held = standing_of(shop.out)["loads"]["public.orders"]["point"]
        shop.orders.write(shop.orders.read().load_anew(("public.orders",)))
        if rows:
            shop.wait_for(2 * rows + 4)
            assert shop.ops()[rows:] == "c" + "r" * (rows + 3)
        else:
            shop.wait_for(2)
            assert [event["key"] for event in shop.events()] == [[51], [61]], (
                "only what nobody has is missing"
            )
        shop.execute("DELETE FROM orders WHERE id = 61")
        wait_until(lambda: shop.ops().endswith("d"), "it to follow again", WAIT_S)
        wait_until(lambda: lane.state == ("running", ""), "the lane to say so", WAIT_S)
    assert str(position_of(shop.out)) != held
    shop.require_once()


@pytest.mark.slow
def test_a_gap_is_not_forgotten_by_a_lane_that_is_killed_as_it_finds_it(two_tables: Shop) -> None:
    shop = two_tables
    with shop.lane() as lane:
        lane.wait_until_running()
        shop.execute("INSERT INTO customers VALUES (2)")
        wait_until(lambda: "c" in shop.ops("public.customers"), "the lane to follow", WAIT_S)
    _leave_publication(shop)
    for place in ("streams.opened", "streams.begun"):
        with shop.process(PENSTOCK_FAILPOINT=f"{place}=kill") as process:
            assert process.process.wait(WAIT_S) == -9
    with shop.lane() as lane:
        _wait_until_standing_still(lane)


def test_a_lane_that_was_dropped_and_comes_again_passes_over_nothing(
    database: Database, tmp_path: Path
) -> None:
    """Nobody read its table meanwhile: the log goes on without a gap, and lacks the changes."""
    database.execute(SHOP + CUSTOMERS)
    shop = Shop(tmp_path, database)
    with shop.captured() as capture:
        with shop.lane():
            shop.wait_for(50)
            shop.execute("INSERT INTO orders VALUES (51)")
            shop.wait_for(51)
        capture.capture.drop_lane("file")
        assert capture.stop() == 0
    without_it = always_spec(database, shop.config.state, lanes={"file": None, "other": None})
    with AlwaysOn(without_it, "other") as capture:
        capture.join("public.customers")
        shop.execute("INSERT INTO orders VALUES (60, 'placed', 'nobody reads it')")
        shop.execute("UPDATE orders SET status = 'sent' WHERE id = 1")
        shop.execute("DELETE FROM orders WHERE id = 2")
        shop.execute("INSERT INTO customers VALUES (2)")
        capture.capture.acknowledge("other", capture.read_now())
        capture.capture.drop_lane("other")
        assert capture.stop() == 0
    with shop.captured():
        with shop.process(PENSTOCK_FAILPOINT="streams.opened=kill") as process:
            assert process.process.wait(WAIT_S) == -9
        with shop.lane() as lane:
            told = "public.customers, public.orders stand still"
            wait_until(lambda: told in lane.state[1] or lane.error is not None, "the lane to say so", WAIT_S)
            shop.execute("INSERT INTO orders VALUES (61)")
            sent = len(events_of(shop.out))
            shop.orders.write(shop.orders.read().load_anew(()))

            def is_level() -> bool:
                return shop.held(resumed=True, since=sent) == shop.source()

            wait_until(is_level, "the rows to be sent again", WAIT_S)
            wait_until(lambda: lane.state == ("running", ""), "the lane to follow again", WAIT_S)
            shop.execute("UPDATE orders SET note = 'after it' WHERE id = 60")
            wait_until(is_level, "the lane to be level", WAIT_S)


def test_rows_that_were_not_wanted_are_loaded_when_they_are(database: Database, tmp_path: Path) -> None:
    database.execute(SHOP)
    shop = Shop(tmp_path, database, snapshot="never")
    with shop.captured():
        with shop.lane() as lane:
            lane.wait_until_running()
            shop.execute("INSERT INTO orders VALUES (60)")
            shop.wait_for(1)
        _edit(shop.path, lanes={"file": {"path": str(shop.out), "snapshot": "initial"}})
        with shop.lane():
            shop.wait_for(52)
            assert shop.ops() == "c" + "r" * 51

"""Whether a state was left behind by another instance's, and what becomes of it then."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.lake.superseded import KEPT, Leaders, is_superseded, set_aside
from penstock.ledger import two_phase
from penstock.ledger.lanes import LANES_FILE, LaneRegistry
from penstock.ledger.state import StateDocument
from penstock.ledger.store import StateStore

ORDERS = StreamId("public", "orders")


def document(epoch: int) -> StateDocument:
    known = two_phase.take_up(
        StateDocument.new(),
        ORDERS,
        sync_mode="cdc",
        generation="g",
        committed_to=Lsn(10),
        cdc_from=Lsn(10),
    )
    return known.identified(system_id="1", timeline=1, epoch=Lsn(epoch))


@pytest.mark.parametrize(
    ("table_epochs", "expected"),
    [([], False), ([Lsn(100), Lsn(90)], False), ([Lsn(101)], True), ([Lsn(90), Lsn(101)], True)],
)
def test_a_table_of_a_newer_leader_says_that_a_state_was_left_behind(
    table_epochs: list[Lsn], expected: bool
) -> None:
    assert is_superseded(document(100).epoch, table_epochs) is expected


def test_a_state_that_nobody_has_led_with_is_not_left_behind_but_new() -> None:
    assert not is_superseded(None, [Lsn(5)])


@pytest.mark.parametrize(
    ("of_state", "of_tables", "expected"),
    [
        (None, None, True),
        (100, 90, True),
        (100, 101, True),
        (110, 110, True),  # the lane begins anew in the term whose state this is
        (111, 90, False),
        (100, 111, False),
        (None, 111, False),
        (100, 110, False),  # another leader, whose clock said the same
    ],
)
def test_a_term_works_with_what_was_left_if_it_is_later(
    of_state: int | None, of_tables: int | None, expected: bool
) -> None:
    epochs = (None if each is None else Lsn(each) for each in (of_state, of_tables))
    assert Leaders(*epochs).precede(Lsn(110)) is expected


def test_what_is_set_aside_is_whole_and_what_is_left_is_as_if_it_had_never_been(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    saved = store.save(document(100))
    for name in ("log", "load"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    for name in ("checkpoint.json", "lock"):
        (tmp_path / name).touch()
    place = set_aside(tmp_path)
    assert store.load() is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", place.name]
    assert StateStore(place).load() == saved
    assert (place / "log" / "file").exists()


def test_lanes_still_hold_the_source_after_the_state_was_set_aside(tmp_path: Path) -> None:
    """Where they were may be before the slot by now; nothing is acknowledged until they say it anew."""
    lanes = LaneRegistry(tmp_path / LANES_FILE)
    for name in ("lake", "search"):
        lanes.join(name, [ORDERS])
        lanes.flushed(name, Lsn(100))
    lanes.save()
    set_aside(tmp_path)
    left = LaneRegistry(tmp_path / LANES_FILE)
    assert left.positions() == {"lake": None, "search": None}
    assert left.lanes()["search"].streams == (ORDERS,)


def test_of_what_was_set_aside_the_newest_stay(tmp_path: Path) -> None:
    places = []
    for number in range(KEPT + 2):
        (tmp_path / "log").mkdir()
        (tmp_path / "log" / f"{number}.json").touch()
        places.append(set_aside(tmp_path))
    assert sorted(tmp_path.iterdir()) == places[-KEPT:]
    assert (places[-1] / "log" / f"{KEPT + 1}.json").exists()


def test_a_state_that_was_set_aside_in_part_still_says_so(tmp_path: Path) -> None:
    """The process may die between any two moves; the file of the state goes last."""
    store = StateStore(tmp_path)
    store.save(document(100))
    (tmp_path / "state.history").rename(tmp_path / "moved")
    half = store.load()
    assert half is not None
    assert is_superseded(half.epoch, [Lsn(101)])

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.capture import continuity
from penstock.capture.continuity import Followed
from penstock.capture.position_reporter import PositionReporter
from penstock.capture.spec import Started
from penstock.core.errors import CaptureAwayError
from penstock.core.position import Lsn
from penstock.shapes.engine.lsn_tracker import LsnTracker
from penstock.shapes.engine.replication_client import ReplicationClient


def started(**changed: Any) -> Started:
    values: dict[str, Any] = {
        "system_id": "7411",
        "timeline": 1,
        "server_version": 150000,
        "slot_created": False,
        "slot_position": Lsn(5),
        "log_end": Lsn(5),
        "epoch": Lsn(1),
    }
    return Started(**values | changed)


@pytest.mark.parametrize(
    ("before", "found", "switch", "reason"),
    [
        (Followed("7411", 1), started(), None, ""),
        (None, started(slot_created=True), None, ""),
        (Followed("7000", 1), started(), None, "another server"),
        (Followed("7411", 1), started(slot_created=True), None, "a new slot"),
        (Followed("7411", 1), started(timeline=2), Lsn(100), ""),
        (Followed("7411", 1), started(timeline=2), Lsn(99), "another timeline"),
        (Followed("7411", 2), started(timeline=1), None, "another timeline"),
    ],
)
def test_changes_are_followed_on_only_if_they_go_on_from_ours(
    tmp_path: Path,
    before: Followed | None,
    found: Started,
    switch: Lsn | None,
    reason: str,
) -> None:
    assert continuity.why_not_on(found, before, Lsn(100), lambda *_: switch, tmp_path) == reason


class Told:
    """Capture as it is told of positions."""

    lane = "shapes"

    def __init__(self) -> None:
        self.epoch = Lsn(1)
        self.positions: list[Lsn] = []
        self.away = False

    def acknowledge(self, _lane: str, position: Lsn) -> Lsn:
        if self.away:
            raise CaptureAwayError("away")
        self.positions.append(position)
        return position


def test_a_position_is_told_once_and_again_after_each_join() -> None:
    capture, position = Told(), Lsn(10)
    reporter = PositionReporter(cast(Any, capture), lambda: position)
    reporter.followed(capture.epoch)
    reporter.report()
    reporter.report()
    assert capture.positions == [10]

    reporter.joined()
    capture.away = True
    reporter.report()
    capture.away = False
    reporter.report()
    reporter.report()

    assert capture.positions == [10, 10]


def test_a_position_is_told_in_a_term_only_once_its_changes_are_known_to_go_on_from_ours() -> None:
    capture, position = Told(), Lsn(10)
    reporter = PositionReporter(cast(Any, capture), lambda: position)
    reporter.joined()
    reporter.report()
    assert capture.positions == []
    reporter.followed(Lsn(1))
    reporter.report()
    assert capture.positions == [10]

    capture.epoch = Lsn(2)  # a shape's table was joined in a term that the lane does not follow yet
    reporter.joined()
    reporter.report()
    assert capture.positions == [10]
    position = Lsn(3)  # it was another server
    reporter.followed(Lsn(2))
    reporter.report()
    assert capture.positions == [10, 3]


def test_a_term_of_another_server_is_followed_after_everything_has_begun_anew() -> None:
    order: list[str] = []

    class Handler:
        stack = Followed("7000", 1)

        def __getattr__(self, name: str) -> Any:
            def asked(*_: object) -> object:
                order.append(name)
                return results.get(name)

            return asked

    results = {"begin_term": Lsn(100), "join": started(epoch=Lsn(7)), "hand_in": False}
    stop = threading.Event()
    capture = SimpleNamespace(
        wait_until_leading=lambda *_: True, progress=lambda: SimpleNamespace(position=Lsn(5))
    )

    def followed(epoch: Lsn) -> None:
        order.append(f"followed {int(epoch)}")
        stop.set()
        raise CaptureAwayError("enough")

    client = ReplicationClient(
        cast(Any, capture), cast(Any, None), "", cast(Any, Handler()), lambda *_: None, followed
    )
    client.run(stop)
    assert order == ["begin_term", "join", "start_over", "read_from", "followed 7"]


def test_what_clients_are_told_to_have_never_goes_back_and_never_runs_ahead() -> None:
    lsn = LsnTracker(Lsn(1000))
    assert lsn.last_processed == 999  # a transaction whose commit begins at 1000 may come

    lsn.transaction(1000)
    lsn.nothing_up_to(Lsn(1000))
    assert lsn.last_processed == 1000

    lsn.nothing_up_to(Lsn(1050))
    assert lsn.last_processed == 1049

"""How a term of capture's ends, and what it leaves."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from penstock.capture import server
from penstock.capture.leadership import Leadership
from penstock.capture.server import CaptureServer
from penstock.capture.spec import ServiceSpec
from penstock.core.errors import SourceError
from penstock.core.position import Lsn
from penstock.ledger.lanes import LaneRegistry
from tests.capture_specs import capture_spec

pytestmark = pytest.mark.unit

LONG_S = 3600.0


@pytest.fixture
def leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CaptureServer:
    """One that leads and reads, from nowhere."""
    monkeypatch.setattr(server, "Reading", lambda *_, **__: MagicMock())
    spec = capture_spec(
        url="postgresql://",
        slot="s",
        publication="p",
        log_directory=tmp_path / "log",
        checkpoint_path=tmp_path / "checkpoint",
        lanes_path=tmp_path / "lanes.json",
        service=ServiceSpec("grpc://127.0.0.1:0", None),
    )
    found = CaptureServer(spec, lambda _: None)
    found.source = MagicMock()
    lock: Any = SimpleNamespace(
        take=lambda: True, release=lambda: None, lost=lambda: SourceError("The lock was lost.")
    )
    found.leadership = Leadership(lambda _: lock, found.fail, LONG_S)
    found.leadership.acquire()
    found._set_up(lambda: Lsn(1), (), ())
    assert found.lanes is not None
    found.lanes.join("lake")
    found.lanes.flushed("lake", Lsn(100))
    return found


def test_who_ends_in_order_writes_down_how_far_its_lanes_are(leader: CaptureServer, tmp_path: Path) -> None:
    leader.stop_in_order(LONG_S)
    assert LaneRegistry(tmp_path / "lanes.json").positions() == {"lake": Lsn(100)}


def test_who_was_stopped_and_wakes_up_to_end_leaves_its_successors_lanes_alone(
    leader: CaptureServer, tmp_path: Path
) -> None:
    assert leader.leadership is not None
    leader.leadership._asked_at -= 4 * LONG_S  # it slept for longer than its lease
    successor = LaneRegistry(tmp_path / "lanes.json")
    successor.join("kafka")
    successor.flushed("lake", Lsn(200))
    successor.save()
    leader.stop_in_order(LONG_S)
    assert LaneRegistry(tmp_path / "lanes.json").positions() == {"kafka": None, "lake": Lsn(200)}

"""When the lake lane begins anew by itself, and when its process ends."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import lake_process
from penstock.core import backoff
from penstock.core.errors import (
    CaptureAwayError,
    CommitConflictError,
    DestinationError,
    PenstockError,
    SourceError,
    StaleLookupError,
)
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.lake_process import AWAY_BACKOFF_S, FAILURES_MAX, LakeProcess
from penstock.ledger.state import StateDocument
from penstock.ledger.store import StateStore

pytestmark = pytest.mark.unit


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Any:
    """One of which only the deciding is there."""
    monkeypatch.setattr(lake_process, "BACKOFF_S", (0.0, 0.0))
    process: Any = LakeProcess.__new__(LakeProcess)
    process._measures = SimpleNamespace(begun_anew=lambda: None)
    process._spark = SimpleNamespace(has_died=lambda: False)
    process._channel = SimpleNamespace(state=lambda *_: None)
    process._stop, process._failures, process._aways = threading.Event(), 0, 0
    return process


@pytest.mark.parametrize("kind", [DestinationError, CommitConflictError])
def test_what_fails_again_and_again_ends_the_process(process: Any, kind: type[PenstockError]) -> None:
    for _ in range(FAILURES_MAX - 1):
        process._begin_anew_after(kind("It failed.", remedy="None."))
    with pytest.raises(kind):
        process._begin_anew_after(kind("It failed.", remedy="None."))


def test_files_that_somebody_merges_again_and_again_do_not_end_the_process(process: Any) -> None:
    for _ in range(2 * FAILURES_MAX):
        process._begin_anew_after(StaleLookupError("Files were merged.", remedy="None."))
    for _ in range(FAILURES_MAX):
        process._begin_anew_after(SourceError("It is away.", remedy="None."))
    process._begin_anew_after(StaleLookupError("Files were merged.", remedy="None."))


def test_terms_of_captures_that_end_soon_are_joined_more_and_more_seldom(
    process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first time at once: that is what a failover is."""
    now, pauses = 0.0, list[float]()
    monkeypatch.setattr(backoff, "random", SimpleNamespace(uniform=lambda _, most: most))
    monkeypatch.setattr(lake_process, "time", SimpleNamespace(monotonic=lambda: now))
    process._stop = SimpleNamespace(is_set=lambda: False, wait=pauses.append)
    lasted_s = 1.0

    def term(*, warm: bool) -> None:
        nonlocal now
        now += lasted_s
        raise CaptureAwayError("Capture's term is over.", remedy="None.")

    process._term = term
    for _ in range(10):
        process._next_term(warm=False)
    assert pauses[:4] == [0.2, 0.4, 0.8, 1.6]
    assert pauses[-1] == AWAY_BACKOFF_S[1]
    lasted_s = 60.0
    process._next_term(warm=False)
    assert pauses[-1] == 0.2, "one that lasted is no reason to wait"


STREAM = StreamId("shop", "orders")


class FakeCapture:
    """Leads, in terms of these epochs, one after the other."""

    def __init__(self, *epochs: int) -> None:
        self._epochs = [Lsn(epoch) for epoch in epochs]
        self.above: list[Lsn | None] = []

    def hello(self) -> Any:
        return SimpleNamespace(leading=True, epoch=self._epochs[0], reading=False)

    def start_over(self, epoch_above: Lsn | None = None) -> None:
        self.above.append(epoch_above)
        del self._epochs[0]


@pytest.mark.parametrize("state_epoch", [None, 100, 300], ids=["no state", "an older one", "a newer one"])
def test_a_term_that_is_earlier_than_the_tables_destroys_nothing_and_asks_for_a_later_one(
    process: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state_epoch: int | None
) -> None:
    """The source's clock was set back, and another instance has written the tables meanwhile."""
    if state_epoch is not None:
        document = StateDocument.new(source="mysql")
        StateStore(tmp_path).save(document.identified(system_id="1", timeline=1, epoch=Lsn(state_epoch)))
    newest = max(300, state_epoch or 0)
    marker = SimpleNamespace(generation="1.shop/load")
    record = SimpleNamespace(epoch=Lsn(300), marker=marker)
    monkeypatch.setattr(lake_process, "destination_of", lambda _: _Tables(record))
    process._config = SimpleNamespace(state=tmp_path, source=SimpleNamespace(type="mysql"))
    process._source = SimpleNamespace(name="shop")
    process._channel.note = lambda _: None
    process._capture = capture = FakeCapture(200, 250, newest + 1)
    streams = [SimpleNamespace(info=SimpleNamespace(stream=STREAM))]
    before = StateStore(tmp_path).load()
    for tried in range(1, 3):
        with pytest.raises(SourceError, match="not later than"):
            process._set_aside_if_superseded(streams)
        assert capture.above == [Lsn(newest)] * tried
        assert StateStore(tmp_path).load() == before
        assert not list(tmp_path.glob("superseded-*"))
    process._set_aside_if_superseded(streams)
    assert len(list(tmp_path.glob("superseded-*"))) == (state_epoch == 100), "not before a later term"


def test_a_source_whose_log_is_behind_the_tables_is_left_to_capture_to_tell(
    process: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older copy of it, or another one: no later term would have a greater position."""
    document = StateDocument.new(source="postgres")
    StateStore(tmp_path).save(document.identified(system_id="1", timeline=1, epoch=Lsn(300)))
    record = SimpleNamespace(epoch=Lsn(300), marker=SimpleNamespace(generation="1.shop/load"))
    monkeypatch.setattr(lake_process, "destination_of", lambda _: _Tables(record))
    process._config = SimpleNamespace(state=tmp_path, source=SimpleNamespace(type="postgres"))
    process._source = SimpleNamespace(name="shop")
    process._capture = capture = FakeCapture(200)
    process._set_aside_if_superseded([SimpleNamespace(info=SimpleNamespace(stream=STREAM))])
    assert capture.above == [], "it joins"
    assert not list(tmp_path.glob("superseded-*"))


class _Tables:
    def __init__(self, record: Any) -> None:
        self._record = record

    def table(self, _: StreamId) -> Any:
        return SimpleNamespace(record=lambda: self._record)

"""How an always-on capture goes from one term to the next."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.capture import always
from penstock.capture.always import AlwaysCapture
from penstock.capture.spec import ServiceSpec
from penstock.core import backoff
from penstock.core.errors import CaptureAwayError, SourceError
from penstock.core.position import Lsn
from tests.capture_specs import capture_spec

pytestmark = pytest.mark.unit

MOST_S, MOST_AFTER_LEADING_S = always._PAUSE_MAX_S, always._PAUSE_AFTER_LEADING_MAX_S
#: of the pauses that follow each other, while nothing gets anywhere
GROWING_S = [0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, MOST_S, MOST_S]


class FakeTerm:
    """Leads, if it is to, and fails after so many seconds; by then it has sealed what there was."""

    def __init__(self, leads: bool = True, changes: bool = False, lasts_s: float = 1.0) -> None:
        self.leads, self.has_sealed, self.has_sealed_changes = leads, leads, changes
        self._lasts_s = lasts_s
        self.server = SimpleNamespace(reading=None, source=None)
        self.was_lost = False
        self.clock: Clock

    def lead(self, *_: Any) -> bool:
        if not self.leads:
            self._fail()
        return True

    def attend(self) -> None:
        self._fail()

    def counted(self) -> dict[str, float]:
        return {}

    def stop(self, *, in_order: bool) -> None:
        assert not in_order

    def _fail(self) -> None:
        self.clock.now_s += self._lasts_s
        raise SourceError("The stream was lost.", remedy="None.")


class Clock:
    """Also the event by which the end is asked for: nobody waits for it."""

    def __init__(self, terms: list[FakeTerm]) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []
        self._terms, self._pauses_max = terms, len(terms)

    def next_term(self, *_: Any) -> FakeTerm:
        term = self._terms.pop(0)
        term.clock = self
        return term

    def is_set(self) -> bool:
        return len(self.pauses) == self._pauses_max

    def wait(self, pause_s: float) -> None:
        self.pauses.append(pause_s)


@pytest.fixture
def pauses_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The pauses that were made after each of these terms."""

    def run(*terms: FakeTerm) -> list[float]:
        clock = Clock(list(terms))
        monkeypatch.setattr(always, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
        monkeypatch.setattr(always, "Term", clock.next_term)
        service = SimpleNamespace(start=lambda: None, stop=lambda: None, readers=0)
        monkeypatch.setattr(always, "CaptureService", lambda *_: service)
        channel: Any = SimpleNamespace(stop_asked=clock, state=lambda *_: None, note=None, failed=None)
        spec = capture_spec(
            url="postgresql://",
            slot="s",
            publication="p",
            log_directory=tmp_path / "log",
            checkpoint_path=tmp_path / "checkpoint",
            service=ServiceSpec("grpc://127.0.0.1:0", None),
        )
        assert AlwaysCapture(spec, channel).run() == 0
        return clock.pauses

    return run


@pytest.fixture
def no_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a pause, all of it is waited."""
    monkeypatch.setattr(backoff, "random", SimpleNamespace(uniform=lambda _, most: most))


@pytest.mark.usefixtures("no_chance")
@pytest.mark.parametrize("leads", [True, False])
def test_terms_that_get_nowhere_come_more_and_more_seldom(pauses_after: Any, leads: bool) -> None:
    """Each costs sessions, a message in the source's log, and a commit of every table."""
    most = MOST_AFTER_LEADING_S if leads else MOST_S
    assert pauses_after(*(FakeTerm(leads) for _ in GROWING_S)) == [min(each, most) for each in GROWING_S]


@pytest.mark.usefixtures("no_chance")
def test_who_leads_after_a_long_outage_and_is_cut_off_once_more_comes_back_soon(pauses_after: Any) -> None:
    outage = [FakeTerm(leads=False) for _ in range(7)]
    assert pauses_after(*outage, FakeTerm(), FakeTerm(leads=False)) == [*GROWING_S[:7], 0.4, 0.4]


def test_of_a_pause_a_random_part_is_waited(pauses_after: Any) -> None:
    found = pauses_after(*(FakeTerm() for _ in range(50)))
    assert all(0 <= pause <= MOST_S for pause in found)
    assert len(set(found)) > 1


@pytest.mark.usefixtures("no_chance")
@pytest.mark.parametrize(
    ("good", "then_s"),
    [
        (FakeTerm(changes=True), 0.8),
        (FakeTerm(lasts_s=always._GOOD_TERM_S), 0.8),
        (FakeTerm(leads=False, lasts_s=always._GOOD_TERM_S), 0.4),
    ],
    ids=["sealed changes", "lasted", "stood by"],
)
def test_after_a_term_that_got_somewhere_the_next_one_comes_soon(
    pauses_after: Any, good: FakeTerm, then_s: float
) -> None:
    before = [FakeTerm() for _ in range(5)]
    assert pauses_after(*before, good, FakeTerm()) == [*GROWING_S[:5], 0.4, then_s]


def test_who_asks_for_a_later_term_says_what_it_is_to_be_later_than(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables know of leaders that this instance has never heard of."""
    monkeypatch.setattr(always, "CaptureService", lambda *_: None)
    spec = capture_spec(
        url="postgresql://",
        slot="s",
        publication="p",
        log_directory=tmp_path / "log",
        checkpoint_path=tmp_path / "checkpoint",
        service=ServiceSpec("grpc://127.0.0.1:0", None),
    )
    channel: Any = None
    capture, failures = AlwaysCapture(spec, channel), list[Any]()
    term: Any = SimpleNamespace(server=SimpleNamespace(fail=failures.append))
    capture._term = term
    capture._answer("start_over", {"epoch_above": str(Lsn(77))})
    capture._answer("start_over", {"epoch_above": None})
    assert [type(failure) for failure in failures] == [CaptureAwayError] * 2
    assert capture._spec.epoch_above == Lsn(77)

"""Two leaders of one stream, of whom each may believe for a while that it is the only one."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.core.position import Lsn
from penstock.streams import lease as lease_module
from penstock.streams.events import CREATE
from penstock.streams.kinesis.settings import KinesisSettings
from penstock.streams.kinesis.target import KinesisTarget
from penstock.streams.lease import Lease
from penstock.streams.publisher import Standing, StoppedError
from tests.kinesis_service import Service
from tests.publishing import START, STREAMS, events, term

pytestmark = pytest.mark.unit
_EVENTS = events(STREAMS[0], 1000, [(op, CREATE, b"[%d]" % op, b'{"a":1}') for op in range(3)])


class _Lead:
    """At the source: whose term it is."""

    def __init__(self) -> None:
        self.epoch = 0

    def lease(self, epoch: int, target: KinesisTarget) -> Lease:
        def leads() -> bool:
            if self.epoch != epoch:
                target.stop()  # as the lane does that learns of it
            return self.epoch == epoch

        return Lease(leads)


class _Leader:
    """Of one term: it opens the target, and writes down where it begins, as a publisher does."""

    def __init__(self, directory: Path, lead: _Lead, epoch: int) -> None:
        self.target = KinesisTarget(KinesisSettings("shop", "eu-west-1"), directory)
        self.lease = lead.lease(epoch, self.target)
        self._epoch = epoch

    def begin(self) -> Standing:
        standing = self.target.open(replace(term(self._epoch), lease=self.lease))
        standing = replace(standing or START, epoch=Lsn(self._epoch))
        self.target.note(standing, -1)
        return standing

    def put(self) -> None:
        assert not self.target.send(_EVENTS, 2).failed


@pytest.mark.parametrize("is_first", [False, True])
def test_a_leader_whose_successor_found_nobody_at_work_puts_nothing_by_an_earlier_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_first: bool
) -> None:
    """Nobody at work: there is no checkpoint, or that of a term that ended in order. So nobody waits."""
    service = Service()
    monkeypatch.setattr("penstock.streams.kinesis.target.KinesisClient", service)
    now = 100.0
    monkeypatch.setattr(lease_module, "_now", lambda: now)
    lead = _Lead()
    with ExitStack() as opened:

        def leader(epoch: int) -> _Leader:
            made = _Leader(tmp_path, lead, epoch)
            opened.enter_context(closing(made.target))
            return made

        if not is_first:
            lead.epoch = 1
            earlier = leader(1)
            earlier.begin()
            earlier.target.close()
        former, successor = leader(2), leader(3)
        lead.epoch = 2
        assert former.lease.renew()
        lead.epoch, now = 3, now + 1

        def asking(operation: str) -> None:
            """The successor has just read what checkpoint there is."""
            if operation == "ListTagsForStream":
                service.asking = lambda _: None
                former.begin()

        service.asking = asking
        successor.begin()
        successor.put()
        with suppress(StoppedError):
            former.put()
    told = Counter(json.loads(content)["penstock"]["id"] for content in service.contents)
    assert told == {"1000_0": 1, "1000_1": 1, "1000_2": 1}

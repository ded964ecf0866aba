"""A lease: how long a leader may rest on a proof that it leads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from penstock.streams import lease as lease_module
from penstock.streams.lease import Lease

pytestmark = pytest.mark.unit


class _Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(lease_module, "_now", lambda: self.now)


def test_a_proof_counts_from_when_it_was_asked_for_and_is_not_asked_for_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, asked = _Clock(monkeypatch), [0]

    def leads() -> bool:
        asked[0] += 1
        clock.now += 2  # so long the answer takes
        return True

    lease = Lease(leads)
    assert not lease.is_proved(5)
    assert lease.prove(5)
    clock.now += 2.9
    assert lease.prove(5)
    assert asked == [1]
    clock.now += 0.1
    assert not lease.is_proved(5)
    assert lease.prove(5)
    assert asked == [2]


def test_an_answer_that_took_too_long_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock(monkeypatch)

    def leads() -> bool:
        clock.now += 6
        return True

    assert not Lease(leads).prove(5)


def test_who_does_not_lead_any_more_has_its_proof_until_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, answers = _Clock(monkeypatch), iter([True, False, False])
    lease = Lease(lambda: next(answers))
    assert lease.renew()
    assert not lease.renew()
    assert lease.is_proved(5)
    clock.now += 5
    assert not lease.prove(5)


def test_what_was_proved_or_asked_for_before_may_be_made_to_count_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = _Clock(monkeypatch)

    def leads() -> bool:
        clock.now += 1
        if clock.now < 103:
            lease.forget()  # while the answer is awaited
        return True

    lease = Lease(leads)
    assert lease.renew()
    assert not lease.is_proved(5)
    assert not lease.prove(5)
    assert lease.prove(5)
    lease.forget()
    assert not lease.is_proved(5)
    assert lease.prove(5)


def test_the_clock_goes_on_while_the_process_is_stopped() -> None:
    code = """
import sys
from penstock.streams.lease import Lease
lease = Lease(lambda: True)
lease.renew()
print(lease.is_proved(1.0), flush=True)
sys.stdin.readline()
print(lease.is_proved(1.0), flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.2)
        os.kill(process.pid, signal.SIGCONT)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "False\n"

"""What a person is told of a target that does not take something."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from penstock.core.errors import TargetError
from penstock.streams import trouble
from penstock.streams.kafka.patience import Patience
from penstock.streams.publisher import StoppedError
from penstock.streams.trouble import TOLD_AFTER_S, Trouble, TroubleMet, TroubleWatch
from tests.conftest import wait_until

pytestmark = pytest.mark.unit


def test_it_is_told_since_when_of_which_stream_and_what_the_target_said() -> None:
    held = Trouble("ProvisionedThroughputExceededException", 0.0, "public.orders")
    assert held.told(TOLD_AFTER_S) == (
        "since 1970-01-01T00:00:00+00:00 the target does not take an event of public.orders "
        "(ProvisionedThroughputExceededException): it is tried again; others go past it"
    )
    full = Trouble("ProvisionedThroughputExceededException", 0.0, "public.orders", is_full=True)
    assert full.told(TOLD_AFTER_S).endswith("; as many others as may are past it")
    assert Trouble("It is away.", 0.0).told(TOLD_AFTER_S) == (
        "since 1970-01-01T00:00:00+00:00 the target does not take what is sent (It is away.): "
        "it is tried again"
    )


def test_what_passes_soon_is_not_told() -> None:
    assert Trouble("It is away.", 100.0).told(100.0 + TOLD_AFTER_S / 2) == ""


def test_it_lasts_since_it_was_met_first() -> None:
    now = [10.0]
    met = TroubleMet(lambda: now[0])
    met.is_full(True)  # of what
    met.met("It is away.")
    now[0] = 20.0
    met.met("slow", "public.orders")
    met.is_full(True)
    assert met.trouble == Trouble("slow", 10.0, "public.orders", is_full=True)
    met.over()
    met.met("slow")
    assert met.trouble == Trouble("slow", 20.0)


def test_what_is_waited_for_is_over_with_the_answer_unless_something_has_failed() -> None:
    now = [10.0]
    met = TroubleMet(lambda: now[0])
    met.waits("no answer yet")
    now[0] = 20.0
    met.waits("still none")
    assert met.trouble == Trouble("still none", 10.0, is_wait=True)
    met.met("It is away.")
    met.waits("no answer yet")
    met.answered()
    assert met.trouble == Trouble("It is away.", 10.0), "the next try has yet to succeed"
    met.over()
    met.waits("no answer yet")
    met.answered()
    assert met.trouble is None


@pytest.mark.parametrize("is_given_up", [False, True])
def test_whoever_asks_brokers_in_vain_says_so_until_they_answer(is_given_up: bool) -> None:
    patience = Patience(answer_s=0.0 if is_given_up else 600.0)
    seen: list[str] = []

    def ask(_: float) -> str:
        seen.append(patience.trouble.trouble.said if patience.trouble.trouble else "")
        if len(seen) < 3:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, retriable=True))
        return "here"

    if is_given_up:
        with pytest.raises(TargetError, match="asking failed"):
            patience.ask("asking", ask)
    else:
        assert patience.ask("asking", ask) == "here"
        assert seen == ["", *["Kafka: asking has no answer yet (_TIMED_OUT)."] * 2]
    assert patience.trouble.trouble is None


def test_a_large_transaction_that_moves_on_is_no_trouble() -> None:
    patience = Patience()
    patience.waits("sending events")
    patience.waits("sending events", is_moving=True)
    assert patience.trouble.trouble is None
    patience.stop()
    with pytest.raises(StoppedError):
        patience.waits("sending events")


def test_it_is_told_once_and_again_when_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trouble, "_LOOK_EVERY_S", 0.001)
    met, told, orders, given_up = TroubleMet(lambda: 0.0), list[str](), [False], list[bool]()
    with TroubleWatch(
        lambda: met.trouble, told.append, lambda: orders[0], lambda: given_up.append(True)
    ) as watch:
        met.met("It is away.")
        wait_until(lambda: len(told) == 1, "it is told")
        met.over()
        wait_until(lambda: len(told) == 2, "it is told that it is over")
        orders[0] = True
        met.met("It is away.")
        wait_until(lambda: bool(given_up), "orders are heard")
        watch._thread.join(60)
    assert ["It is away." in each for each in told] == [True, False, True]
    assert told[1] == ""

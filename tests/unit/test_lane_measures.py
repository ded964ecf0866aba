"""What the lake lane says in numbers, and for how long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from penstock import metrics
from penstock.core.position import Lsn
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId
from penstock.destinations.records import TableRecord
from penstock.lake.lane import LakeLane
from penstock.lake.measures import LaneMeasures
from penstock.metrics import Sample
from tests.conftest import wait_until

ORDERS = StreamId("public", "orders")
OF_A_MOMENT = {
    metric.name
    for metric in (
        metrics.STREAM_LAG_SECONDS,
        metrics.STREAM_LAG_BYTES,
        metrics.DEAD_LETTERS,
        metrics.FRESHNESS_SECONDS,
    )
}


class Lane:
    """What measures ask of a lane."""

    streams = (ORDERS,)

    def tell_of_rounds(self, listener: object) -> None: ...

    def record(self, stream: StreamId) -> TableRecord:
        schema = TableSchema(stream, (), ())
        return TableRecord(1, "changes", "2026-01-01T00:00:00Z", Lsn(1), "upsert", schema, "v1")

    def positions(self) -> dict[StreamId, Lsn]:
        return {ORDERS: Lsn(100)}


@pytest.fixture
def measures(tmp_path: Path) -> LaneMeasures:
    return LaneMeasures(tmp_path, lambda _message: None)


def names(samples: list[Sample]) -> set[str]:
    return {name for name, _, _ in samples}


def test_after_a_term_nothing_is_said_of_how_far_the_tables_are(
    measures: LaneMeasures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measures._freshness, "_of_newest_round", {ORDERS: 1.0})
    measures.stream_finished(str(ORDERS), "load", 7)
    measures.round_done(1.0)
    measures.watch(cast(LakeLane, Lane()))
    assert names(measures.samples()) >= OF_A_MOMENT
    measures.begun_anew()
    said = measures.samples()
    assert not names(said) & OF_A_MOMENT
    assert (metrics.ROWS_LOADED.name, {"stream": "public.orders"}, 7.0) in said, "what was counted stays"
    assert (metrics.ROUNDS.name, {}, 1.0) in said
    assert (metrics.ROUND_RETRIES.name, {"lane": "lake"}, 1.0) in said


@pytest.mark.parametrize("error", [RuntimeError("a row"), OSError("gone"), KeyError("a row")])
def test_whatever_fails_the_numbers_go_on(
    measures: LaneMeasures, error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    sent: list[list[Sample]] = []
    times = iter(range(1_000_000))

    def send(samples: list[Sample]) -> None:
        if next(times) < 3:
            raise error
        sent.append(samples)

    ended = threading.Event()
    sending: Callable[[], None] = lambda: measures.send(send, ended, every_s=0.001)  # noqa: E731
    thread = threading.Thread(target=sending)
    thread.start()
    wait_until(lambda: len(sent) > 0, "numbers after failures")
    ended.set()
    thread.join()
    said = capsys.readouterr().out
    assert said.count("no metrics of the lake lane") == 1
    assert type(error).__name__ in said
    assert "a row" not in said

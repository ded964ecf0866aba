"""What the page shows of now: letters and retries of every lane, how fresh tables really are, and that it is
old when the console cannot look."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import metrics
from penstock.config import Config
from penstock.console.history import History
from penstock.console.rates import Rates, counters_of
from penstock.console.view import Found, view_of
from penstock.console.watching import Watching
from penstock.core.stream import StreamId
from penstock.ledger.state import StateDocument
from penstock.metrics import Sample
from penstock.supervisor.health import health
from penstock.supervisor.status import ProcessStatus, run_status
from tests.idle_pipeline import idle_pipeline

pytestmark = pytest.mark.unit

LANES: list[Sample] = [
    (metric.name, {"lane": lane}, value)
    for lane in ("lake", "kafka")
    for metric, value in (
        (metrics.LANE_KNOWN, 1.0),
        (metrics.LANE_LAG_BYTES, 0.0),
        (metrics.LANE_LAG_SECONDS, 7200.0),
    )
]


def status(samples: list[Sample], lake: str = "running") -> dict[str, Any]:
    processes = [
        ProcessStatus(name, state, "", "then", 0, 0)
        for name, state in (("capture", "leading"), ("lake", lake), ("kafka", "running"))
    ]
    found = run_status("here", 1, "then", processes, [*LANES, *samples], live=True, stopping=False)
    return found.to_json() | {"health": health(found).to_json()}


def view(tmp_path: Path, said: dict[str, Any] | None) -> dict[str, Any]:
    config = Config.load(idle_pipeline(tmp_path))
    return view_of(config, Found("now", said, StateDocument.new(), {}, {}), Rates())


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    found = History(tmp_path / "history.sqlite", 3600.0, 1 << 20)
    yield found
    found.close()


def test_what_a_target_refused_is_counted_beside_what_tables_could_not_hold(tmp_path: Path) -> None:
    refused = {"lane": "kafka", "stream": "public.orders"}
    found = view(
        tmp_path,
        status(
            [
                (metrics.STREAM_DEAD_LETTERS.name, {**refused, "code": "TOO_LARGE"}, 990.0),
                (metrics.STREAM_DEAD_LETTERS.name, {**refused, "code": "BLOCKED"}, 10.0),
                (metrics.DEAD_LETTERS.name, {"stream": "public.orders"}, 2.0),
                (metrics.STREAM_RETRIES.name, {"lane": "kafka"}, 7.0),
                (metrics.ROUND_RETRIES.name, {"lane": "lake"}, 3.0),
                (metrics.VERIFY_DIFFERENCES.name, {"stream": "public.orders"}, 4.0),
            ]
        ),
    )
    lanes = {each["lane"]: each for each in found["lanes"]}
    assert (lanes["kafka"]["dead_letters"], lanes["kafka"]["retries"]) == (1000, 7)
    assert (lanes["lake"]["dead_letters"], lanes["lake"]["retries"]) == (0, 3)
    assert found["totals"]["dead_letters"] == 1002
    assert found["totals"]["differences"] == found["streams"][0]["differences"] == 4
    assert found["instance"]["reasons"] == []


def test_the_lane_of_shapes_has_a_rate(tmp_path: Path) -> None:
    """What it counts is in the status as the events of its lane; rates are made of those."""
    samples: list[Sample] = [
        (metrics.LANE_KNOWN.name, {"lane": "shapes"}, 1.0),
        (metrics.SHAPE_CHANGES.name, {}, 500.0),
    ]
    rates = Rates()
    said: dict[str, Any] = {}
    for at in (0.0, 5.0):
        samples[1] = (metrics.SHAPE_CHANGES.name, {}, 500.0 + 10 * at)
        said = json.loads(json.dumps(status(samples)))
        rates.add(at, counters_of(said))
    config = Config.load(idle_pipeline(tmp_path))
    found = view_of(config, Found("now", said, StateDocument.new(), {}, {}), rates)
    lanes = {each["lane"]: each for each in found["lanes"]}
    assert lanes["shapes"]["rate"] == 10.0
    assert lanes["lake"]["rate"] is None


def test_how_many_letters_there_are_is_not_known_while_nothing_runs(tmp_path: Path) -> None:
    assert view(tmp_path, None)["totals"]["dead_letters"] is None


def test_what_was_known_of_tables_stays_while_nobody_says_it_and_is_marked_as_old(
    tmp_path: Path, history: History
) -> None:
    """As while the source is away: then neither capture nor the lanes say anything of them."""
    labels = {"stream": "public.orders"}
    samples: list[Sample] = [
        (metrics.TABLE_ROWS.name, labels, 1200.0),
        (metrics.DEAD_LETTERS.name, labels, 2.0),
        (metrics.STREAM_DEAD_LETTERS.name, {"lane": "kafka", "stream": "public.orders", "code": "X"}, 5.0),
    ]
    silent = status([]) | {"lanes": [], "streams": []}
    for process in silent["processes"]:
        process["state"] = "waiting"
    answers = iter([status(samples), silent, silent, status(samples[:1])])
    watching = Watching(Config.load(idle_pipeline(tmp_path)), history, lambda: next(answers))
    nobody = watching.view["totals"]
    assert (nobody["rows"], nobody["dead_letters"]) == (None, None), "0 would be a claim"
    said = watching._look(ask=True)
    assert (said["totals"]["rows"], said["totals"]["dead_letters"]) == (1200, 7)
    assert said["totals"]["known_at"] is None
    for _ in range(2):
        away = watching._look(ask=True)
        assert (away["totals"]["rows"], away["totals"]["dead_letters"]) == (1200, 7)
        assert away["totals"]["known_at"] == away["streams"][0]["known_at"] == said["at"]
    back = watching._look(ask=True)
    assert (back["totals"]["rows"], back["totals"]["dead_letters"]) == (1200, 0), "what is said counts"
    assert back["totals"]["known_at"] is None


def test_letters_are_not_said_to_be_none_before_anybody_has_counted_them(tmp_path: Path) -> None:
    silent = status([], lake="starting") | {"streams": []}
    assert view(tmp_path, silent)["totals"]["dead_letters"] is None
    assert view(tmp_path, status([]))["totals"]["dead_letters"] == 0


def test_tables_that_stand_still_are_as_old_as_what_waits_for_them(tmp_path: Path) -> None:
    fresh: list[Sample] = [(metrics.FRESHNESS_SECONDS.name, {"stream": "public.orders"}, 0.8)]
    waits: Sample = (metrics.STREAM_LAG_SECONDS.name, {"stream": "public.orders"}, 5400.0)
    assert view(tmp_path, status(fresh))["totals"]["freshness_p99"] == 0.8
    assert view(tmp_path, status([*fresh, waits]))["totals"]["freshness_p99"] == 5400.0
    parked = view(tmp_path, status(fresh, "parked"))
    assert parked["totals"]["freshness_p99"] == 7200.0, "what a lane said before it ended is old"
    assert "lake is parked" in parked["instance"]["reasons"][0]


def test_a_load_says_how_far_it_is_and_when_it_may_be_done(tmp_path: Path) -> None:
    config = Config.load(idle_pipeline(tmp_path))
    chunks = [{"min": 10, "max": 20, "status": "preparing"}, {"min": 20, "max": None}]
    entry = {"stream": "orders", "namespace": "public", "sync_mode": "cdc", "state": {"chunks": chunks}}
    document = StateDocument({**StateDocument.new().to_json(), "streams": [entry]})
    rates = Rates()

    def load(*samples: Sample, at: float = 0.0) -> dict[str, Any]:
        said = json.loads(json.dumps(status([*samples])))  # as it comes from an instance
        rates.add(at, counters_of(said))
        found = Found("now", said, document, {StreamId("public", "orders"): 8}, {})
        [stream] = view_of(config, found, rates)["streams"]
        assert stream["load"] is not None
        return dict(stream["load"])

    def rows(read: float, estimated: float) -> list[Sample]:
        labels = {"stream": "public.orders"}
        return [
            (metrics.LOAD_ROWS.name, labels, read),
            (metrics.LOAD_ROWS_ESTIMATED.name, labels, estimated),
        ]

    begun = load()
    assert (begun["chunks_left"], begun["chunks"], begun["part"], begun["eta_s"]) == (2, 8, 0.75, None)
    assert load(*rows(1000, 10_000), at=1.0)["part"] == 0.1
    on = load(*rows(4000, 10_000), at=2.0)
    assert (on["part"], on["rate"], on["eta_s"]) == (0.4, 3000.0, 2.0)
    beyond = load(*rows(12_000, 10_000), at=3.0)  # an estimate is one
    assert (beyond["part"], beyond["eta_s"]) == (0.99, None)


def test_browsers_are_told_when_the_console_cannot_look(tmp_path: Path, history: History) -> None:
    fails = threading.Event()

    def ask() -> dict[str, Any] | None:
        if fails.is_set():
            raise OSError("no such luck")
        return status([])

    watching = Watching(Config.load(idle_pipeline(tmp_path)), history, ask)
    stop = threading.Event()
    thread = threading.Thread(target=watching.run, args=(stop,))
    thread.start()
    try:
        events = _views(watching.events(lambda: True))
        seen = next(each for each in events if each["instance"])
        assert not seen["is_stale"]
        fails.set()
        stale = next(each for each in events if each["is_stale"])
        assert "cannot see the pipeline (OSError)" in stale["problem"]
        assert stale["instance"] is not None, "what was seen last stays"
        again = next(each for each in events if each["is_stale"])
        assert again["at"] == stale["at"], "and stays as old as it is"
        fails.clear()
        live = next(each for each in events if not each["is_stale"])
        assert live["problem"] == ""
        assert live["at"] > stale["at"]
    finally:
        stop.set()
        thread.join()


def _views(events: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    for event in events:
        if event.startswith(b"event: view"):
            yield json.loads(event.partition(b"data: ")[2])

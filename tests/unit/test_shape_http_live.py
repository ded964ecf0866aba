"""Live requests, over sockets: long polls, offsets beyond the shape, server-sent events."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import brotli
import pytest

from penstock.shapes.http.compression import Body
from penstock.shapes.http.connection import Connection
from tests.conftest import wait_until
from tests.serving import Answer
from tests.shape_wire import Wire, acquaint, item, live, up_to_date, waits

MUST_REFETCH = [{"headers": {"control": "must-refetch"}}]
#: No more is asked of the server than that its patience ends.
HASTY = pytest.mark.parametrize("wire", [{"long_poll_timeout": "300ms"}], indirect=True, ids=[""])
LIVE = "public, max-age=5, stale-while-revalidate=5"


def test_a_shape_that_goes_while_a_client_waits_is_refetched(
    wire: Wire, meanwhile: Callable[[Callable[[], Answer]], Future[Answer]]
) -> None:
    for replacement in ("5-5", None):
        shape = wire.synced()
        waiting = meanwhile(lambda shape=shape: live(wire, shape, "0_inf"))  # type: ignore[misc]
        waits(wire)
        wire.shapes.forget(shape, replacement)
        answer = waiting.result()
        assert (answer.status, answer.json()) == (409, MUST_REFETCH)
        assert answer.headers.get("electric-handle") == replacement
        if replacement is None:
            assert answer.headers["cache-control"] == "max-age=1"


# Live.


def test_a_live_request_is_answered_by_the_next_change(
    wire: Wire, meanwhile: Callable[[Callable[[], Answer]], Future[Answer]]
) -> None:
    shape = wire.synced()
    acquaint(wire, shape)
    waiting = [meanwhile(lambda: live(wire, shape, "0_inf", cursor="0")) for _ in range(20)]
    waits(wire, 20)
    wire.shapes.global_last_seen_lsn = 90
    wire.append(shape, 100, [item(7), item(8)])
    wire.shapes.global_last_seen_lsn = 140
    for each in waiting:
        answer = each.result()
        assert answer.json() == [item(7), item(8), up_to_date(100)]
        assert answer.offset == "100_2"
        assert answer.headers["cache-control"] == LIVE
        assert answer.headers["electric-has-data"] == "true"
        assert int(answer.headers["electric-cursor"]) > 0
        assert "electric-schema" not in answer.headers
        assert "electric-up-to-date" in answer.headers
        assert answer.headers["etag"] == f'"{shape.handle}:0_inf:100_2"'
    at_once = live(wire, shape, "0_inf")
    assert at_once.json() == [item(7), item(8), up_to_date(100)]
    assert wire.app.waiting == 0
    assert wire.app.admission.present == {"initial": 0, "existing": 0}


def test_those_who_wait_get_it_in_the_encoding_they_take(
    wire: Wire, meanwhile: Callable[[Callable[[], Answer]], Future[Answer]]
) -> None:
    shape = wire.synced()
    acquaint(wire, shape)
    parameters = {"table": "items", "offset": "0_inf", "handle": shape.handle, "live": "true"}

    def ask(encoding: str) -> Answer:
        return wire.ask("GET", "/v1/shape", parameters, headers={"accept-encoding": encoding})

    decoders = {"identity": bytes, "gzip": gzip.decompress, "br": brotli.decompress}
    waiting = [(name, meanwhile(lambda name=name: ask(name))) for name in decoders for _ in range(3)]  # type: ignore[misc]
    waits(wire, len(waiting))
    sent = [item(number) for number in range(300)]  # too much to be compressed in the loop
    wire.append(shape, 100, sent)
    for name, each in waiting:
        answer = each.result()
        assert json.loads(decoders[name](answer.body)) == [*sent, up_to_date(100)]
        assert answer.headers.get("content-encoding", "identity") == name
    assert wire.app.admission.present["existing"] == 0


@HASTY
def test_a_live_request_without_news_is_answered_in_time(wire: Wire) -> None:
    shape = wire.synced()
    wire.append(shape, 100, [item(1)])
    wire.shapes.global_last_seen_lsn = 130
    for _ in range(2):
        answer = live(wire, shape, "100_0")
        assert (answer.status, answer.json()) == (200, [up_to_date(130)])
        assert answer.offset == "100_0"
        assert answer.headers["electric-has-data"] == "false"
        assert "electric-up-to-date" in answer.headers
        assert answer.headers["electric-cursor"]
        assert answer.headers["etag"].startswith(f'"{shape.handle}:100_0:100_0:')


def test_a_client_that_goes_away_waits_no_more(wire: Wire) -> None:
    shape = wire.synced()
    for _ in range(2):  # as a task at first, then without one
        acquaint(wire, shape)
    assert shape.waiting == 0


def test_a_long_answer_to_those_who_wait_is_whole(
    wire: Wire, meanwhile: Callable[[Callable[[], Answer]], Future[Answer]]
) -> None:
    shape = wire.synced()
    acquaint(wire, shape)
    waiting = [meanwhile(lambda: live(wire, shape, "0_inf")) for _ in range(4)]
    waits(wire, 4)
    sent = [item(number) for number in range(4000)]
    wire.append(shape, 100, sent)
    for each in waiting:
        assert each.result().json() == [*sent, up_to_date(100)]
    wait_until(lambda: wire.app.admission.present["existing"] == 0, "nobody is counted any more")


def test_an_answer_that_cannot_be_made_is_told_to_all_who_wait_for_it(
    wire: Wire, meanwhile: Callable[[Callable[[], Answer]], Future[Answer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = wire.synced()
    acquaint(wire, shape)

    def fail(*_: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr(Body, "encoded", fail)
    parameters = {"table": "items", "offset": "0_inf", "handle": shape.handle, "live": "true"}
    waiting = [
        meanwhile(lambda: wire.ask("GET", "/v1/shape", parameters, headers={"accept-encoding": "br"}))
        for _ in range(3)
    ]
    waits(wire, 3)
    wire.append(shape, 100, [item(number) for number in range(300)])  # too much to be compressed in the loop
    assert [each.result().status for each in waiting] == [500, 500, 500]
    wait_until(lambda: wire.app.admission.present["existing"] == 0, "nobody is counted any more")


def test_waiting_clients_are_answered_when_the_server_stops(
    wire: Wire, meanwhile: Callable[[Callable[[], Answer]], Future[Answer]]
) -> None:
    shape = wire.synced()
    waiting = meanwhile(lambda: live(wire, shape, "0_inf"))
    waits(wire)
    wire.stop_serving()
    assert waiting.result().json() == [up_to_date(0)]


# Offsets beyond the shape.


@HASTY
def test_an_offset_that_is_not_there_is_out_of_bounds_after_a_while(wire: Wire) -> None:
    shape = wire.synced()
    for parameters in ({}, {"live": "true"}):
        answer = wire.get(table="items", offset="5000_0", handle=shape.handle, **parameters)
        assert answer.status == 400
        assert answer.json() == {
            "message": "Invalid request",
            "errors": {"offset": ["out of bounds for this shape"]},
        }


def test_an_offset_that_appears_is_served(
    wire: Wire, meanwhile: Callable[[Callable[[], Answer]], Future[Answer]]
) -> None:
    shape = wire.synced()
    asked = meanwhile(lambda: wire.get(table="items", offset="100_0", handle=shape.handle))
    wait_until(lambda: shape.waiting == 1, "the request is held")
    wire.append(shape, 100, [item(1), item(2)])
    assert asked.result().json() == [item(2), up_to_date(100)]


@HASTY
def test_until_the_log_is_replayed_an_offset_beyond_it_is_only_too_early(wire: Wire) -> None:
    shape = wire.synced()
    wire.shapes.replayed = False
    answer = wire.get(table="items", offset="5000_0", handle=shape.handle)
    assert answer.status == 503
    assert int(answer.headers["retry-after"]) > 0


@HASTY
def test_one_above_the_last_transaction_is_not_out_of_bounds(wire: Wire) -> None:
    shape = wire.synced()
    wire.append(shape, 100, [item(1), item(2)])
    answer = wire.get(table="items", offset="101_0", handle=shape.handle)
    assert (answer.status, answer.offset, answer.json()) == (200, "101_0", [up_to_date(100)])


def test_one_above_the_last_transaction_of_any_table_waits_for_the_next(
    wire: Wire, meanwhile: Callable[[Callable[[], Answer]], Future[Answer]]
) -> None:
    shape = wire.synced()
    wire.append(shape, 100, [item(1), item(2)])
    wire.shapes.global_last_seen_lsn = 300  # of other tables
    waiting = meanwhile(lambda: live(wire, shape, "301_0"))
    waits(wire)
    wire.append(shape, 400, [item(3)])
    assert waiting.result().json() == [item(3), up_to_date(400)]


# Server-sent events.


def events(body: bytes) -> list[Any]:
    parts = body.decode().split("\n\n")
    assert parts[-1] == ""
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-1] if not part.startswith(":")]


def test_events_follow_the_log_and_resume_without_repeating(tmp_path: Path) -> None:
    with Wire(tmp_path, sse_timeout="20s", sse_keep_alive="200ms") as wire:
        shape = wire.synced()
        connection = http.client.HTTPConnection("127.0.0.1", wire.port, timeout=120)
        parameters = f"table=items&handle={shape.handle}&live=true&live_sse=true&experimental_live_sse=true"
        connection.request("GET", f"/v1/shape?{parameters}&offset=0_inf")
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.headers["cache-control"] == "public, max-age=19"
        assert answer.headers["electric-cursor"]
        assert answer.headers["connection"] == "keep-alive"
        assert answer.headers["electric-has-data"] == "false"
        wait_until(lambda: shape.waiting == 1, "the stream waits")
        assert set(answer.read1().split(b"\n\n")) == {b": keep-alive", b""}
        five = [item(number) for number in range(5)]
        wire.append(shape, 100, five)
        body = b""
        while b"up-to-date" not in body or not body.endswith(b"\n\n"):
            body += answer.read1()
        assert events(body) == [*five, up_to_date(101)]
        connection.close()

        wire.append(shape, 200, [item(9)])
        pending = wire.get(table="items", handle=shape.handle, live="true", live_sse="true", offset="101_0")
        assert events(pending.body) == [item(9), up_to_date(201)]
        assert pending.headers["electric-has-data"] == "true"


def test_a_stream_ends_after_its_time(tmp_path: Path) -> None:
    with Wire(tmp_path, sse_timeout="2s", sse_keep_alive="200ms") as wire:
        answer = live(wire, wire.synced(), "0_inf", live_sse="true")
        assert set(answer.body.split(b"\n\n")) <= {b": keep-alive", b""}


def test_a_stream_ends_when_its_shape_goes(
    wire: Wire, meanwhile: Callable[[Callable[[], Answer]], Future[Answer]]
) -> None:
    shape = wire.synced()
    stream = meanwhile(lambda: live(wire, shape, "0_inf", live_sse="true"))
    wait_until(lambda: shape.waiting == 1, "the stream waits")
    wire.shapes.forget(shape)
    assert stream.result().body == b""


def test_pending_events_of_several_chunks_come_until_they_are_up_to_date(tmp_path: Path) -> None:
    with Wire(tmp_path, chunk_bytes_threshold=1000) as wire:
        shape = wire.synced()
        sent = [item(number) for number in range(5000)]
        wire.append(shape, 100, sent)
        answer = live(wire, shape, "0_inf", live_sse="true")
        assert events(answer.body) == [*sent, up_to_date(101)]


def test_what_is_answered_or_left_is_not_kept_until_its_time_is_over(
    wire: Wire, meanwhile: Callable[[Callable[[], Answer]], Future[Answer]]
) -> None:
    """What it asked may be large, and so may what its connection has."""
    shape = wire.synced()
    acquaint(wire, shape)
    polls = wire.app._logs.polls
    assert not polls._by_deadline
    waiting = meanwhile(lambda: live(wire, shape, "0_inf"))
    waits(wire)
    assert len(polls._by_deadline) == 1
    wire.append(shape, 100, [item(7)])
    assert waiting.result().status == 200
    assert not polls._by_deadline

    waiting = meanwhile(lambda: live(wire, shape, "100_0"))
    waits(wire)
    connection = next(each for each in wire._served.connections if each._current is not None)
    wire.run(_aborted(connection))
    with pytest.raises((OSError, http.client.HTTPException)):
        waiting.result()
    assert connection._current is None
    assert not polls._by_deadline


async def _aborted(connection: Connection) -> None:
    connection.abort()
    while connection in connection._all:
        await asyncio.sleep(0)


def test_events_that_are_asked_for_by_post_are_cached_by_nobody(wire: Wire) -> None:
    shape = wire.synced()
    wire.append(shape, 100, [item(7)])
    asked = {"table": "items", "handle": shape.handle, "live": "true", "live_sse": "true", "offset": "0_inf"}
    assert wire.ask("GET", "/v1/shape", asked).headers["cache-control"] == "public, max-age=59"
    assert wire.ask("POST", "/v1/shape", asked).headers["cache-control"] == "no-cache"

"""The wire, over sockets: routes, paging, headers for each case, errors, deletion, subsets.

Shapes are in real storage; the test takes the engine's part (`tests/shape_wire.py`).
"""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import brotli
import pytest

from penstock.shapes.http import app, log_serving, snapshot_serving, subsets
from penstock.shapes.http.message import PIECE_BYTES_MAX
from penstock.shapes.shape import SnapshotProblem
from tests.conftest import wait_until
from tests.serving import Answer
from tests.shape_wire import END, Snapshot, Wire, item, up_to_date

MUST_REFETCH = [{"headers": {"control": "must-refetch"}}]
FIRST = "public, max-age=604800, s-maxage=3600, stale-while-revalidate=2629746"
NOT_LIVE = "public, max-age=60, stale-while-revalidate=300"


# Routes.


def test_routes_and_their_headers(wire: Wire) -> None:
    for path, method, status, methods in [
        ("/", "GET", 200, "GET, HEAD"),
        ("/", "HEAD", 200, "GET, HEAD"),
        ("/v1/health", "GET", 200, "GET, HEAD"),
        ("/nope", "GET", 404, "GET, HEAD"),
        ("/v1/shape", "PATCH", 404, "GET, HEAD"),
        ("/v1/shape?table=items&offset=-1", "GET", 200, "GET, POST, HEAD, DELETE, OPTIONS"),
        ("/v1/shape", "GET", 400, "GET, POST, HEAD, DELETE, OPTIONS"),
    ]:
        answer = wire.ask(method, path)
        assert (answer.status, path) == (status, path)
        assert answer.headers["access-control-allow-methods"] == methods
        assert answer.headers["access-control-allow-origin"] == "*"
        assert answer.headers["electric-server"].startswith("penstock/")
        assert answer.headers["x-request-id"]
        assert answer.headers["access-control-expose-headers"].startswith("electric-cursor,electric-handle,")
    assert wire.ask("GET", "/nope").body == b"Not found"
    assert wire.ask("GET", "/").body == b""


def test_answers_name_the_origin_that_asked(wire: Wire) -> None:
    answer = wire.ask("GET", "/v1/shape", headers={"Origin": "https://app.example"})
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    ids = {wire.ask("GET", "/").headers["x-request-id"] for _ in range(5)}
    assert len(ids) == 5
    given = "a-request-id-of-20-or-more"
    assert wire.ask("GET", "/", headers={"x-request-id": given}).headers["x-request-id"] == given


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/v1/health"),
        ("GET", "/nothing"),
        ("OPTIONS", "/v1/shape"),
        ("GET", "/v1/shape"),
        ("DELETE", "/v1/shape"),
        ("GET", "/v1/shape?table=items&offset=-1"),
        ("GET", "/v1/shape?table=items&offset=0_inf&handle=1-1"),
    ],
)
def test_a_cache_keeps_answers_apart_by_origin(wire: Wire, method: str, path: str) -> None:
    answer = wire.ask(method, path, headers={"Origin": "https://app.example"})
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert "origin" in answer.headers["vary"]


def test_health_says_what_the_service_does(wire: Wire) -> None:
    for status, code in (("active", 200), ("waiting", 202), ("starting", 202)):
        wire.shapes.status = status  # type: ignore[assignment]
        answer = wire.ask("GET", "/v1/health")
        assert (answer.status, answer.json()) == (code, {"status": status})
        assert answer.headers["cache-control"] == "no-cache, no-store, must-revalidate"


def test_options_need_no_secret_and_echo_two_headers(tmp_path: Path) -> None:
    with Wire(tmp_path, secret="s3cret") as wire:
        asked = {"access-control-request-headers": "X-Other, If-None-Match,traceparent"}
        connection = http.client.HTTPConnection("127.0.0.1", wire.port)
        connection.request("OPTIONS", "/v1/shape", headers=asked)
        answer = connection.getresponse()
        assert answer.status == 204
        assert answer.headers["access-control-allow-headers"] == "if-none-match, traceparent"
        assert answer.headers["access-control-max-age"] == "86400"
        assert answer.headers["connection"] == "keep-alive"
        assert "cache-control" not in answer.headers
        connection.close()


@pytest.mark.parametrize(
    "path",
    ["/v1/shape", "/v1/shape/", "/v1//shape", "/v1/shape//", "/v1/%73hape", "//v1/shape", "/v1%2Fshape"],
)
def test_no_spelling_of_the_route_passes_without_the_secret(tmp_path: Path, path: str) -> None:
    with Wire(tmp_path, secret="s3cret") as wire:
        for parameters in (
            {},
            {"secret": "wrong"},
            {"secret": ""},
            {"api_secret": "x"},
            {"secret[x]": "s3cret"},
        ):
            wire.secret = None
            for method in ("GET", "HEAD", "POST", "DELETE"):
                answer = wire.ask(method, path, {"table": "items", "offset": "-1", **parameters})
                assert answer.status == 401
                assert answer.headers["cache-control"] == "no-store"
                if method != "HEAD":
                    assert answer.json() == {"message": "Unauthorized - Invalid API secret"}
        for name in ("secret", "api_secret"):
            assert wire.ask("GET", path, {"table": "items", "offset": "-1", name: "s3cret"}).status == 200
        assert wire.ask("GET", "/v1/health").status == 200


def test_head_is_get_without_its_body(wire: Wire) -> None:
    wire.synced()
    parameters = {"table": "items", "offset": "-1"}
    get, head = (wire.ask(method, "/v1/shape", parameters) for method in ("GET", "HEAD"))
    assert head.body == b""
    assert get.body
    differ = ("x-request-id",)
    assert {name: value for name, value in get.headers.items() if name not in differ} == {
        name: value for name, value in head.headers.items() if name not in differ
    }


# The snapshot.


def test_a_sync_begins_with_the_snapshot_and_is_then_up_to_date(wire: Wire) -> None:
    first = wire.get(table="items", offset="-1")
    assert first.status == 200
    assert first.offset == "0_0"
    assert first.json() == [*(item(number) for number in range(3)), END]
    assert first.headers["cache-control"] == FIRST
    assert first.headers["etag"] == f'"{first.handle}:-1:0_0"'
    assert first.headers["electric-has-data"] == "true"
    assert json.loads(first.headers["electric-schema"])["id"]["pk_index"] == 0
    assert "electric-up-to-date" not in first.headers
    assert "electric-cursor" not in first.headers

    wire.shapes.global_last_seen_lsn = 77
    second = wire.get(table="items", offset="0_0", handle=first.handle)
    assert second.json() == [up_to_date(77)]
    assert second.offset == "0_inf"
    assert second.headers["electric-up-to-date"] == ""
    assert second.headers["electric-has-data"] == "false"
    assert second.headers["cache-control"] == NOT_LIVE
    assert "electric-schema" in second.headers


def test_chunks_come_one_by_one_and_their_answers_never_change(tmp_path: Path) -> None:
    with Wire(tmp_path, chunk_bytes_threshold=1000) as wire:
        rows = [item(number) for number in range(50)]
        wire.shapes.snapshot = Snapshot(rows)
        answer = wire.get(table="items", offset="-1")
        wait_until(lambda: wire.shape(answer.handle).state == "ready", "the snapshot is complete")
        found, handle = answer.json(), answer.handle
        for number in range(1, 100):
            answer = wire.get(table="items", offset=answer.offset, handle=handle)
            if answer.offset == "0_inf":
                break
            assert answer.offset == f"0_{number}"
            assert answer.headers["etag"] == f'"{handle}:0_{number - 1}:0_{number}"'
            found += answer.json()
        assert found == [*rows, END]
        assert answer.json() == [up_to_date(0)]


def test_a_chunk_is_read_while_it_is_written(
    wire: Wire, meanwhile: Callable[[Callable[[], Any]], Future[Any]]
) -> None:
    gate = threading.Event()
    rows = [item(number) for number in range(6)]
    wire.shapes.snapshot = Snapshot(rows, gate)
    connection = http.client.HTTPConnection("127.0.0.1", wire.port, timeout=120)
    connection.request("GET", "/v1/shape?table=items&offset=-1")
    answer = connection.getresponse()
    assert answer.headers["electric-offset"] == "0_0"
    begun = answer.read1()
    assert begun.startswith(b"[")
    assert begun.count(b'"key"') == 3
    following = meanwhile(
        lambda: wire.get(table="items", offset="0_0", handle=answer.headers["electric-handle"])
    )
    gate.set()
    assert json.loads(begun + answer.read()) == [*rows, END]
    assert following.result().offset == "0_inf"
    connection.close()


def test_a_first_request_waits_until_its_snapshot_has_begun(tmp_path: Path) -> None:
    with Wire(tmp_path, snapshot_started_timeout="300ms") as wire:
        wire.shapes.snapshot = Snapshot(never_starts=True)
        answer = wire.get(table="items", offset="-1")
        assert answer.status == 503
        assert answer.headers["retry-after"] == "10"
        now = wire.get(table="items", offset="now")
        assert now.status == 200
        assert now.offset == "0_inf"


def test_problems_with_a_snapshot_are_told_as_they_are_mapped(wire: Wire) -> None:
    wire.shapes.snapshot = Snapshot(problem=SnapshotProblem(503, "Snapshot timed out", 10))
    answer = wire.get(table="items", offset="-1")
    assert (answer.status, answer.json()) == (503, {"message": "Snapshot timed out"})
    assert answer.headers["retry-after"] == "10"
    assert answer.headers["electric-internal-known-error"] == "true"
    assert answer.headers["cache-control"] == answer.headers["surrogate-control"] == "no-store"
    assert "electric-has-data" not in answer.headers
    gone = SnapshotProblem(503, "Database is unreachable", 10, code="database_unreachable")
    wire.shapes.snapshot = Snapshot(problem=gone, never_starts=True)
    answer = wire.get(table="items", offset="-1")
    assert answer.json() == {"code": "database_unreachable", "error": "Database is unreachable"}


# The log.


def test_the_log_is_served_up_to_its_newest_transaction(wire: Wire) -> None:
    shape = wire.synced()
    wire.append(shape, 100, [item(10), item(11)])
    wire.append(shape, 200, [item(12)])
    wire.shapes.global_last_seen_lsn = 250
    answer = wire.get(table="items", offset="0_0", handle=shape.handle)
    assert answer.json() == [item(10), item(11), item(12), up_to_date(250)]
    assert answer.offset == "200_0"
    assert answer.headers["etag"] == f'"{shape.handle}:0_0:200_0"'
    assert "electric-up-to-date" in answer.headers
    middle = wire.get(table="items", offset="100_0", handle=shape.handle)
    assert middle.json() == [item(11), item(12), up_to_date(250)]
    end = wire.get(table="items", offset="200_0", handle=shape.handle)
    assert (end.offset, end.json()) == ("200_0", [up_to_date(250)])


def test_what_must_be_durable_first_is_neither_served_nor_counted_as_seen(wire: Wire) -> None:
    shape = wire.synced()
    wire.append(shape, 100, [item(10)])
    wire.shapes.append(shape, 200, [item(11)], waits=True)
    for offset, expected in (("0_0", [item(10), up_to_date(100)]), ("100_0", [up_to_date(100)])):
        answer = wire.get(table="items", offset=offset, handle=shape.handle)
        assert (answer.offset, answer.json()) == ("100_0", expected)
    assert wire.get(table="items", offset="now").json() == [up_to_date(100)]


def test_an_answer_ends_with_a_chunk_of_the_log(tmp_path: Path) -> None:
    with Wire(tmp_path, chunk_bytes_threshold=1000) as wire:
        shape = wire.synced()
        sent = [item(number) for number in range(40)]
        for number, each in enumerate(sent, 1):
            wire.append(shape, 100 * number, [each])
        found, offset, answers = [], "0_inf", 0
        while True:
            answer = wire.get(table="items", offset=offset, handle=shape.handle)
            found += [each for each in answer.json() if "key" in each]
            offset, answers = answer.offset, answers + 1
            if "electric-up-to-date" in answer.headers:
                break
            assert "up-to-date" not in answer.body.decode()
        assert found == sent
        assert offset == "4000_0"
        assert 4 < answers < 12


def test_now_gives_no_rows_and_waits_for_no_snapshot(wire: Wire) -> None:
    wire.shapes.global_last_seen_lsn = 55
    new = wire.get(table="items", offset="now")
    assert (new.status, new.offset, new.json()) == (200, "0_inf", [up_to_date(55)])
    assert new.headers["electric-has-data"] == "false"
    assert "electric-up-to-date" in new.headers
    assert "electric-schema" in new.headers
    wire.append(wire.shape(new.handle), 100, [item(1)])
    later = wire.get(table="items", offset="now", handle="anything")
    assert (later.handle, later.offset, later.json()) == (new.handle, "100_0", [up_to_date(100)])


def test_an_answer_that_a_client_has_is_not_sent_again(wire: Wire) -> None:
    first = wire.get(table="items", offset="-1")
    again = wire.ask(
        "GET",
        "/v1/shape",
        {"table": "items", "offset": "-1"},
        headers={"If-None-Match": f'"other", {first.headers["etag"]}'},
    )
    assert (again.status, again.body) == (304, b"")
    for name in ("etag", "cache-control", "electric-handle", "electric-offset"):
        assert again.headers[name] == first.headers[name]
    assert "electric-schema" not in again.headers
    shape = wire.shape(first.handle)
    unchanged = wire.get(table="items", offset="0_inf", handle=shape.handle)
    parameters = {"table": "items", "offset": "0_inf", "handle": shape.handle}
    headers = {"If-None-Match": unchanged.headers["etag"]}
    assert wire.ask("GET", "/v1/shape", parameters, headers=headers).status == 200


@pytest.mark.parametrize(("encoding", "decode"), [("gzip", gzip.decompress), ("br", brotli.decompress)])
def test_bodies_are_compressed_for_those_who_take_it(
    wire: Wire, encoding: str, decode: Callable[[bytes], bytes]
) -> None:
    rows = [item(number) for number in range(2000)]  # more than one piece
    wire.shapes.snapshot = Snapshot(rows)
    shape = wire.synced()
    wire.append(shape, 100, rows[:50])
    wire.append(shape, 200, [*rows, *rows])

    def get(offset: str, encoding: str, tag: str = "") -> Answer:
        parameters = {"table": "items", "offset": offset, "handle": shape.handle}
        headers = {"accept-encoding": encoding, **({"if-none-match": tag} if tag else {})}
        return wire.ask("GET", "/v1/shape", parameters, headers=headers)

    for offset in ("-1", "0_inf", "100_98"):
        plain, small = get(offset, "identity"), get(offset, encoding)
        assert small.headers["content-encoding"] == encoding
        assert small.headers["vary"] == plain.headers["vary"] == "accept-encoding, origin"
        assert small.headers["etag"] != plain.headers["etag"]  # other bytes
        known = get(offset, encoding, small.headers["etag"])
        assert known.status == 304
        for name in ("electric-has-data", "electric-up-to-date"):
            assert known.headers.get(name) == small.headers.get(name)
        assert len(small.body) < len(plain.body) / 4
        assert decode(small.body) == plain.body
    assert len(get("100_98", "identity").body) > 2 * PIECE_BYTES_MAX
    assert "content-encoding" not in get("200_7998", encoding).headers


# Handles.


def test_another_handle_than_the_shape_s_is_told_to_refetch(wire: Wire) -> None:
    shape = wire.synced()
    other = wire.synced(columns="id")
    assert other is not shape
    for handle in ("1-1", other.handle, "nonsense"):
        answer = wire.get(table="items", offset="0_0", handle=handle)
        assert (answer.status, answer.handle, answer.json()) == (409, shape.handle, MUST_REFETCH)
        assert answer.headers["cache-control"] == "public, max-age=60, must-revalidate"
    new = wire.get(table="items", offset="0_0", handle="1-1", where="id = 5")
    assert new.status == 409
    assert wire.shape(new.handle).definition.where is not None


def test_a_hidden_shape_is_nobody_s(wire: Wire) -> None:
    shape = wire.synced()
    shape.hidden = True
    assert wire.get(table="items", offset="0_0", handle=shape.handle).status == 409


# Errors.


def test_what_is_wrong_with_a_request_is_said_by_field(wire: Wire) -> None:
    answer = wire.get(table="items", offset="x")
    assert answer.status == 400
    assert answer.json() == {"message": "Invalid request", "errors": {"offset": ["has invalid format"]}}
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-type"].startswith("application/json")


def test_nothing_of_the_inside_is_shown(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("a row's value")

    monkeypatch.setattr(wire.shapes, "existing", fail)
    answer = wire.get(table="items", offset="-1")
    assert (answer.status, answer.json()) == (500, {"error": "Internal server error"})
    monkeypatch.setattr(wire.shapes, "find", fail)
    answer = wire.get(table="items", offset="0_inf", handle="x", live="true")
    assert (answer.status, answer.json()) == (500, {"error": "Internal server error"})
    assert wire.app.admission.present == {"initial": 0, "existing": 0}


def test_a_service_that_starts_is_waited_for(tmp_path: Path) -> None:
    with Wire(tmp_path, ready_timeout="200ms") as wire:
        wire.shapes.status = "starting"
        answer = wire.get(table="items", offset="-1")
        assert answer.status == 503
        assert answer.json()["message"].startswith("Timeout waiting for")
        assert answer.headers["retry-after"] == "5"
        wire.shapes.status = "waiting"
        assert wire.get(table="items", offset="-1").status == 200


# DELETE.


def test_a_shape_is_deleted_by_definition_or_handle(tmp_path: Path) -> None:
    with Wire(tmp_path, allow_shape_deletion=True) as wire:
        shape = wire.synced()

        def delete(**parameters: str) -> Answer:
            return wire.ask("DELETE", "/v1/shape", parameters)

        assert delete().json()["errors"] == {"handle": ["can't be blank when shape definition is missing"]}
        assert delete(handle="x").json() == {"message": "No existing shape found"}
        assert delete(handle="x").status == 404
        for mismatch in (
            delete(table="items", handle="x"),
            delete(table="items", columns="id", handle=shape.handle),  # of which there is no shape
        ):
            assert mismatch.status == 400
            assert mismatch.json()["message"].startswith(
                "The specified shape definition and handle do not match."
            )
        assert delete(table="items", columns="id").status == 404
        assert delete(table="items", columns="id", handle="x").status == 404
        gone = delete(table="items")
        assert (gone.status, gone.body, gone.headers["cache-control"]) == (202, b"", "no-cache")
        assert shape.state == "gone"
        assert delete(handle=wire.synced().handle).status == 202


def test_shapes_are_not_deleted_unless_that_is_allowed(wire: Wire) -> None:
    answer = wire.ask("DELETE", "/v1/shape", {"table": "items"})
    assert (answer.status, answer.json()) == (405, {"message": "DELETE not allowed"})


# Subsets.


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_subset_is_answered_beside_the_shape(wire: Wire, method: str) -> None:
    shape = wire.synced(log="changes_only")
    wire.append(shape, 100, [item(1)])
    parameters = {"table": "items", "log": "changes_only", "handle": shape.handle}
    body = None
    if method == "GET":
        parameters |= {"subset__where": "id > $1", "subset__params": '{"1":"5"}'}
    else:
        body = b'{"where":"id > $1","params":{"1":"5"}}'
    for asked, resumed in (("100_0", "100_0"), ("now", "100_0"), ("-1", "0_0"), ("0_inf", "0_inf")):
        answer = wire.ask(method, "/v1/shape", {**parameters, "offset": asked}, body)
        assert answer.status == 200
        assert answer.json() == {"metadata": {}, "data": []}
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["electric-snapshot"] == "true"
        assert (answer.handle, answer.offset) == (shape.handle, resumed)
        assert "electric-schema" in answer.headers
        for name in ("etag", "electric-cursor", "electric-up-to-date"):
            assert name not in answer.headers
    assert len(wire.subsets.asked) == 4


def test_subsets_and_large_bodies_are_understood_in_a_thread(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others wait for the loop."""
    threads: list[str] = []
    for module, name in (subsets, "define_subset"), (app, "with_body"):
        original = getattr(module, name)

        def noted(*given: Any, original: Callable[..., Any] = original) -> Any:
            threads.append(threading.current_thread().name)
            return original(*given)

        monkeypatch.setattr(module, name, noted)
    parameters = {"table": "items", "offset": "-1", "subset__where": "id > 5"}
    assert wire.get(**parameters).status == 200
    body = json.dumps({"where": "value = $1", "params": {"1": "x" * 100_000}}).encode()
    assert wire.ask("POST", "/v1/shape", {"table": "items", "offset": "-1"}, body).status == 200
    assert len(threads) == 3
    assert all(name.startswith("shape-defining") for name in threads)


@pytest.mark.parametrize("offset", ["-1", "0_inf"])
def test_a_shape_that_goes_while_its_files_are_read_is_refetched(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, offset: str
) -> None:
    shape = wire.synced()
    wire.append(shape, 100, [item(1)])

    def gone(*_: object) -> None:
        wire.shapes.forget(shape, "5-5")
        raise FileNotFoundError

    for module, name in (log_serving, "read_small"), (snapshot_serving, "_small_chunk"):
        monkeypatch.setattr(module, name, gone)
    monkeypatch.setattr(wire.app._bodies, "made", lambda _key: None)
    answer = wire.get(table="items", offset=offset, handle=shape.handle)
    assert answer.status == 409
    assert answer.headers["electric-handle"] == "5-5"


def test_who_asks_for_a_shape_that_cannot_be_made_in_time_is_told_to_come_again(tmp_path: Path) -> None:
    with Wire(tmp_path, snapshot_started_timeout="200ms") as wire:

        async def never(_: object) -> None:
            await asyncio.Event().wait()

        wire.shapes.resolve = never  # type: ignore[assignment, method-assign]
        answer = wire.get(table="items", offset="-1")
        assert answer.status == 503
        assert answer.json() == {"message": "Timeout waiting for the shape to be made"}
        assert answer.headers["retry-after"] == "10"

"""A port without shapes behind it: those are another instance's, or are not there yet."""

from __future__ import annotations

import asyncio
import http.client
import socket
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from penstock.core.errors import AddressError
from penstock.shapes import service
from penstock.shapes.http.door import Door
from penstock.shapes.storage.place import Place
from tests.serving import Answer
from tests.shape_wire import Wire, item, live, waits

_SECRET = {"secret": "hidden"}


@pytest.mark.parametrize("wire", [_SECRET], indirect=True, ids=[""])
def test_who_asks_for_a_shape_that_another_instance_has_is_told_to_come_again(wire: Wire) -> None:
    wire.shut_door()
    assert wire.ask("GET", "/").status == 200
    assert wire.health() == (202, "waiting")
    for method in ("GET", "POST", "DELETE"):
        refused = wire.ask(method, "/v1/shape", {"table": "items", "offset": "-1"})
        assert refused.status == 503
        assert refused.json() == {"message": "Timeout waiting for another instance to let go of the shapes"}
        assert refused.headers["retry-after"] == "5"
        assert refused.headers["cache-control"] == refused.headers["surrogate-control"] == "no-store"
        assert refused.headers["access-control-allow-origin"] == "*"
        assert refused.headers["access-control-allow-methods"] == "GET, POST, HEAD, DELETE, OPTIONS"
        assert "retry-after" in refused.headers["access-control-expose-headers"]
        assert refused.headers["electric-server"].startswith("penstock/")
    assert wire.ask("GET", "/v1/shape", {"secret": "guess"}).status == 401
    assert wire.ask("OPTIONS", "/v1/shape").status == 204
    assert wire.ask("GET", "/nope").status == 404


def test_a_connection_made_while_there_were_no_shapes_gets_them_when_there_are(wire: Wire) -> None:
    wire.shut_door()
    client = http.client.HTTPConnection("127.0.0.1", wire.port, timeout=120)
    client.connect()
    made, statuses = client.sock, []
    for _ in range(2):
        client.request("GET", "/v1/shape?table=items&offset=-1")
        with client.getresponse() as answer:
            statuses.append(answer.status)
            answer.read()
        if len(statuses) == 1:
            wire.open_door()
    assert statuses == [503, 200]
    assert client.sock is made, "it was not closed in between"
    client.close()
    assert wire.health() == (200, "active")


def test_who_waits_when_the_shapes_are_let_go_of_is_answered_and_the_port_stays(
    wire: Wire, meanwhile: Callable[[Callable[[], Answer]], Future[Answer]]
) -> None:
    shape = wire.synced()
    waiting = meanwhile(lambda: live(wire, shape, "0_inf"))
    waits(wire)
    wire.shut_door()
    answer = waiting.result()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert live(wire, shape, "0_inf").status == 503
    wire.open_door()
    wire.append(shape, 100, [item(1)])
    assert live(wire, shape, "0_inf").status == 200


def test_a_port_that_a_predecessor_has_is_waited_for_and_one_that_others_have_is_not(wire: Wire) -> None:
    """The predecessor has our shapes open, too."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = {"host": "127.0.0.1", "port": taken.getsockname()[1]}
        settings = wire.settings.model_copy(update={**address, "directory": wire.settings.directory / "ours"})
        settings.directory.mkdir()
        place = Place(settings.directory)

        async def listen(has_place: bool) -> int | None:
            async def waited() -> bool:
                place.close()
                if has_place:
                    taken.close()
                return has_place

            served = await service.listen(Door(settings), settings, waited)
            if served is None:
                return None
            await served.close()
            return served.port

        assert asyncio.run(listen(False)) is None
        with pytest.raises(AddressError):
            asyncio.run(listen(True))
        place = Place(settings.directory)
        assert asyncio.run(listen(True)) == address["port"]


def test_who_asks_before_the_shapes_are_open_is_told_so(tmp_path: Path) -> None:
    with Wire(tmp_path) as wire:
        wire.shut_door()
        wire.door.status = "starting"
        assert wire.health() == (202, "starting")
        assert "ready" in wire.get(table="items", offset="-1").json()["message"]

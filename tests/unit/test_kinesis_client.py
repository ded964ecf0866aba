"""What is on its way to Kinesis when the lead is lost is not carried out, however slowly it goes; and what an
answer, or none, says of what was carried out.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from botocore.exceptions import CredentialRetrievalError, NoCredentialsError, ReadTimeoutError, SSLError

from penstock.core.errors import TargetError
from penstock.streams.kinesis.client import KinesisClient
from penstock.streams.kinesis.errors import CallError
from penstock.streams.kinesis.settings import KinesisSettings
from tests.kinesis_server import CREDENTIALS, REGION

pytestmark = pytest.mark.unit
_BODY = b"x" * (16 << 20)  # more than the system takes at once, for somebody who does not read it
_ANSWER = b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"Records":1}'


class _SlowServer:
    """Takes one request. All but the beginning of its body is read when `reads` is set."""

    def __init__(self) -> None:
        self.reads, self.has_begun = threading.Event(), threading.Event()
        self.expected = self.arrived = 0
        self.answer: bytes = _ANSWER
        self._listening = socket.socket()
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        self._listening.bind(("127.0.0.1", 0))
        self._listening.listen()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def close(self) -> None:
        self._listening.close()

    def _serve(self) -> None:
        connection, _ = self._listening.accept()
        with connection:
            head = b""
            while not head.partition(b"\r\n\r\n")[2]:
                head += connection.recv(1024)
            length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            assert length is not None
            self.expected = int(length[1])
            self.arrived = len(head.partition(b"\r\n\r\n")[2])
            self.has_begun.set()
            self.reads.wait(60)
            while self.arrived < self.expected and (piece := connection.recv(1 << 20)):
                self.arrived += len(piece)
            if self.arrived == self.expected:
                connection.sendall(self.answer)


@pytest.fixture
def server() -> Iterator[_SlowServer]:
    with closing(_SlowServer()) as made:
        yield made


@pytest.fixture
def client(server: _SlowServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[KinesisClient]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with closing(KinesisClient(KinesisSettings("shop", REGION, server.endpoint))) as made:
        yield made


def test_a_request_of_which_a_part_is_sent_when_the_lead_is_lost_is_never_whole(
    server: _SlowServer, client: KinesisClient
) -> None:
    leads = [True]

    def lose_the_lead() -> None:
        server.has_begun.wait(60)
        leads[0] = False
        server.reads.set()

    losing = threading.Thread(target=lose_the_lead)
    losing.start()
    with pytest.raises(TargetError, match="not proved any more"):
        client.call("PutRecords", _BODY, lambda: leads[0])
    losing.join()
    server.thread.join(60)
    assert server.expected == len(_BODY)
    assert 0 < server.arrived < server.expected


def test_a_request_arrives_whole_as_long_as_the_lead_is_proved(
    server: _SlowServer, client: KinesisClient
) -> None:
    server.reads.set()
    assert client.call("PutRecords", _BODY, lambda: True) == {"Records": 1}
    assert server.arrived == server.expected == len(_BODY)


@pytest.mark.parametrize("content", [b'{"Tags": [{"Ke', b"", b"[]"])
def test_an_answer_that_is_cut_off_is_none(
    server: _SlowServer, client: KinesisClient, content: bytes
) -> None:
    server.reads.set()
    server.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n" + content
    with pytest.raises(CallError) as failed:
        client.call("ListTagsForStream", b"{}")
    assert (failed.value.code, failed.value.is_lost) == ("InvalidAnswer", True)


def test_an_answer_may_be_empty_where_there_is_nothing_to_say(
    server: _SlowServer, client: KinesisClient
) -> None:
    server.reads.set()
    server.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    assert client.call("AddTagsToStream", b"{}") == {}


@pytest.mark.parametrize(
    "error",
    [
        SSLError(endpoint_url="https://kinesis", error="bad record mac"),
        ReadTimeoutError(endpoint_url="https://kinesis"),
    ],
)
def test_a_connection_that_breaks_may_have_carried_out_the_call(
    client: KinesisClient, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken(_: object) -> None:
        raise error

    monkeypatch.setattr(client._http, "send", broken)
    with pytest.raises(CallError) as failed:
        client.call("PutRecords", b"{}")
    assert (failed.value.code, failed.value.is_lost) == (type(error).__name__, True)


@pytest.mark.parametrize(
    "error", [NoCredentialsError(), CredentialRetrievalError(provider="a role", error_msg="away")]
)
def test_without_credentials_nothing_is_sent(
    client: KinesisClient, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def none() -> None:
        raise error

    monkeypatch.setattr(client, "_current_credentials", none)
    with pytest.raises(TargetError, match="no AWS credentials"):
        client.call("PutRecords", b"{}")

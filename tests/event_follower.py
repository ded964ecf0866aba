"""A client of the HTTP API in a thread: it follows one shape, events and all, through whatever happens."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from tests.event_client import EventClient, Row

_ANSWER_S = 60.0
_PAUSE_S = 0.1


class EventFollower:
    """By long polls, or with `sse` by server-sent events. `refetches` counts how often it had to begin anew.

    What it makes of the answers is in `rows`; `problem` is what it found wrong, after which it has ended.
    """

    def __init__(self, port: int, parameters: Mapping[str, str], *, sse: bool = False) -> None:
        self._port = port
        self._parameters = dict(parameters)
        self._sse = sse
        self._handle = ""
        self._offset = "-1"
        self._cursor = ""
        self._client = EventClient()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.refetches = 0
        self.refused: str | None = None
        self.is_up_to_date = False
        self.problem: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self.cut()

    def cut(self) -> None:
        """Its connection breaks, as it may; it comes again with what it has."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        self._thread.join(_ANSWER_S)

    @property
    def rows(self) -> dict[str, Row]:
        with self._lock:
            return dict(self._client.rows)

    def _run(self) -> None:
        try:
            while not self._stop.is_set() and self.refused is None:
                try:
                    self._ask()
                except (OSError, http.client.HTTPException, ValueError):
                    self._stop.wait(_PAUSE_S)  # it is being killed, or starts
        except BaseException as error:
            if not self._stop.is_set():
                self.problem = error

    def _ask(self) -> None:
        given = {**self._parameters, "offset": self._offset}
        if self._handle:
            given["handle"] = self._handle
        if self.is_up_to_date:
            given |= {"live": "true", "cursor": self._cursor}
            if self._sse:
                given["live_sse"] = "true"
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_ANSWER_S)
        try:
            connection.connect()
            self._socket = connection.sock
            if self._stop.is_set():
                return
            connection.request("GET", f"/v1/shape?{urlencode(given)}")
            answer = connection.getresponse()
            if answer.status != 200:
                self._not_served(answer.status, answer.read())
            elif answer.getheader("content-type", "").startswith("text/event-stream"):
                self._take_events(answer)
            else:
                self._take(answer, json.loads(answer.read()))
        finally:
            connection.close()

    def _not_served(self, status: int, body: bytes) -> None:
        if status == 409:
            self.refetches += 1
            self._handle, self._offset, self._cursor, self.is_up_to_date = "", "-1", "", False
            with self._lock:
                self._client = EventClient()
        elif status == 400:
            self.refused = body.decode()
        else:
            assert status in (429, 503), (status, body)
            self._stop.wait(_PAUSE_S)

    def _take(self, answer: http.client.HTTPResponse, messages: list[dict[str, Any]]) -> None:
        with self._lock:
            self._client.take(messages)
        self._handle = answer.headers["electric-handle"]
        self._offset = answer.headers["electric-offset"]
        self._cursor = answer.headers.get("electric-cursor", self._cursor)
        self.is_up_to_date = "electric-up-to-date" in answer.headers or (
            bool(messages) and messages[-1]["headers"].get("control") == "up-to-date"
        )

    def _take_events(self, answer: http.client.HTTPResponse) -> None:
        """A batch counts when it is known to be whole: the published client resumes behind the last one."""
        self._cursor = answer.headers.get("electric-cursor", self._cursor)
        batch: list[dict[str, Any]] = []
        for message in _messages(answer):
            batch.append(message)
            if message["headers"].get("control") == "up-to-date":
                with self._lock:
                    self._client.take(batch)
                batch = []
                self._offset = f"{message['headers']['global_last_seen_lsn']}_0"


def _messages(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    while line := answer.readline():
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))

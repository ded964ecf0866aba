"""Instances of `penstock shapes serve` for tests: started, asked over HTTP, stopped and killed.

with ShapeServer(database.url, tmp_path / "shapes") as server:
    server.wait_until_active()
    answer = server.get(table="items", offset="-1")
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import urlencode

import psutil

from tests.conftest import wait_until
from tests.ports import free_port
from tests.running import LOG_SHOWN_BYTES, MARK, all_gone, marked

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 90.0
#: Longer than a long poll, so that an answer that never comes is the server's fault.
ANSWER_TIMEOUT_S = 60.0
_COMMAND = "from penstock.cli.main import main; main()"

Process = Literal["capture", "shapes"]


@dataclass(frozen=True)
class Answer:
    """`headers` by lower-case names."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def handle(self) -> str:
        return self.headers["electric-handle"]

    @property
    def offset(self) -> str:
        return self.headers["electric-offset"]


class Endpoint:
    """Where shapes are served on this machine."""

    port: int
    secret: str | None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def shape_url(self) -> str:
        return f"{self.url}/v1/shape"

    def get(self, **parameters: str) -> Answer:
        """`GET /v1/shape`."""
        return self.ask("GET", "/v1/shape", parameters)

    def ask(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request on a connection of its own; the secret goes along."""
        given = dict(parameters or {})
        if self.secret is not None:
            given.setdefault("secret", self.secret)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_TIMEOUT_S)
        try:
            target = f"{path}?{urlencode(given)}" if given else path
            connection.request(method, target, body, dict(headers or {}))
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def health(self) -> tuple[int, str]:
        """Status and word; (0, "") if nobody answers."""
        try:
            answer = self.ask("GET", "/v1/health")
            return answer.status, str(answer.json()["status"])
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            return 0, ""


@dataclass
class ShapeServer(Endpoint):
    """One instance; without a `secret` it is started as insecure. `environment` has Electric's variables,
    `options` what else the command line says."""

    database_url: str
    directory: Path
    secret: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    stream_id: str = field(default_factory=lambda: secrets.token_hex(4))
    _process: subprocess.Popen[bytes] | None = None
    _mark: str = field(default_factory=lambda: secrets.token_hex(8))

    # -- life -------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        if error is not None:
            print(self.said())

    def start(self) -> Self:
        guard = {"ELECTRIC_INSECURE": "true"} if self.secret is None else {"ELECTRIC_SECRET": self.secret}
        self.directory.mkdir(parents=True, exist_ok=True)
        own = {"--port": self.port, "--host": "127.0.0.1", "--storage-dir": self.storage}
        options = {**own, **self.options}
        arguments = [str(part) for option in options.items() for part in option]
        with open(self.log, "ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _COMMAND, "shapes", "serve", *arguments],
                env={
                    **os.environ,
                    "DATABASE_URL": self.database_url,
                    "ELECTRIC_REPLICATION_STREAM_ID": self.stream_id,
                    **guard,
                    **self.environment,
                    MARK: self._mark,
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return self

    def stop(self) -> int:
        """Ask for an end in order and wait for it; the exit status."""
        ending = marked(self._mark)
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(STOP_TIMEOUT_S)
        wait_until(partial(all_gone, ending), f"these to end: {ending}")
        return status

    def end(self) -> None:
        """Leave nothing running, whatever state it is in."""
        while ending := marked(self._mark):
            for process in ending:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            wait_until(partial(all_gone, ending), f"these to be gone: {ending}")
        if self._process is not None:
            self._process.wait()

    def kill(self, name: Process) -> int:
        """End one of its processes as a machine may do it; its id."""
        (process,) = self.running(name)
        process.kill()
        wait_until(partial(all_gone, [process]), f"{name} to be gone")
        return process.pid

    def kill_and_await(self, name: Process) -> None:
        """The same, and wait until it was started again. Killed as often as one likes: SIGHUP tells the
        supervisor that somebody looks after it."""
        killed = self.kill(name)

        def started() -> bool:
            self.process.send_signal(signal.SIGHUP)
            return any(process.pid != killed for process in self.running(name))

        wait_until(started, f"{name} to be started again", START_TIMEOUT_S)

    def failures(self) -> list[str]:
        """What it said of processes that ended by themselves."""
        text = self.log.read_text(errors="replace")
        return [line for line in text.splitlines() if "ended with exit code" in line]

    def running(self, name: Process) -> list[psutil.Process]:
        """The processes of that name: none while one is started again."""
        found = []
        for process in marked(self._mark):
            with contextlib.suppress(psutil.Error):
                if f"penstock.{name}" in process.cmdline():
                    found.append(process)
        return found

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "it was not started"
        return self._process

    @property
    def storage(self) -> Path:
        return self.directory / "persistent"

    @property
    def log(self) -> Path:
        return self.directory / "output.log"

    def said(self) -> str:
        """The end of what it printed."""
        text = self.log.read_bytes()[-LOG_SHOWN_BYTES:].decode(errors="replace") if self.log.exists() else ""
        return f"--- the end of its output\n{text}"

    # -- what it answers --------------------------------------------------------------------------

    def wait_until_active(self, timeout_s: float = START_TIMEOUT_S) -> None:
        self.wait_for_health("active", timeout_s)

    def wait_for_health(self, word: str, timeout_s: float = START_TIMEOUT_S) -> None:
        def come() -> bool:
            assert self.process.poll() is None, f"it ended while waited for `{word}`\n{self.said()}"
            return self.health()[1] == word

        wait_until(come, f"health to be `{word}`", timeout_s)


def rows(messages: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """What a client holds after these messages."""
    held: dict[str, dict[str, str]] = {}
    for message in messages:
        operation = message["headers"].get("operation")
        if operation == "delete":
            del held[message["key"]]
        elif operation is not None:
            assert operation == "update" or message["key"] not in held, "no row is inserted twice"
            held[message["key"]] = held.get(message["key"], {}) | message["value"]
    return held


def synced(server: Endpoint, **shape: str) -> tuple[Answer, list[dict[str, Any]]]:
    """From the beginning to up-to-date: the last answer and all messages."""
    answer = server.get(**shape, offset="-1")
    messages: list[dict[str, Any]] = []
    while True:
        assert answer.status == 200, answer.body
        messages += answer.json()
        if "electric-up-to-date" in answer.headers:
            return answer, messages
        answer = server.get(**shape, offset=answer.offset, handle=answer.handle)


def followed(server: Endpoint, last: Answer, until_id: str, **shape: str) -> list[dict[str, Any]]:
    """Live from `last` on until a change of that row has come."""
    messages: list[dict[str, Any]] = []
    while not any(message.get("value", {}).get("id") == until_id for message in messages):
        last = server.get(**shape, offset=last.offset, handle=last.handle, live="true")
        assert last.status == 200, last.body
        messages += last.json()
    return messages

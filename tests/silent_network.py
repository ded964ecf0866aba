"""A network in front of a TCP server that can fall silent: nothing is passed on, and nobody is told.

While it is silent, bytes and ends of both sides are held back, and connections are taken but lead nowhere: no
reset, no end, no refusal. When it is restored, what was held back arrives, late, as it would from a network
that sends again. One thing differs from a cable that is pulled out: the kernel here confirms what it has
received, so neither side's keepalives find out. Only a limit on silence itself does, which is what a test
through this network shows.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Self
from urllib.parse import urlsplit, urlunsplit

_HOST = "127.0.0.1"
_PART_BYTES = 1 << 16


class SilentNetwork:
    """Passes everything on to the port `behind` of this machine while it is entered, unless silent."""

    def __init__(self, behind: int) -> None:
        self._behind = behind
        self._passing = threading.Event()
        self._passing.set()
        self._ended = False
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server((_HOST, 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._passing.set()
        with self._lock:
            ending = [self._listener, *self._sockets]
        for each in ending:
            _end(each)
        while self._threads:
            self._threads.pop().join()

    def url(self, url: str) -> str:
        """The same, through this network."""
        parts = urlsplit(url)
        login, _, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{login}@{_HOST}:{self.port}"))

    def fall_silent(self) -> None:
        self._passing.clear()

    def restore(self) -> None:
        self._passing.set()

    @property
    def connections(self) -> int:
        with self._lock:
            return len(self._sockets) // 2

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._passing.wait()
            try:
                server = socket.create_connection((_HOST, self._behind))
            except OSError:
                _end(client)
                continue
            with self._lock:
                self._sockets |= {client, server}
                ended = self._ended
            if ended:
                _end(client)
                _end(server)
            self._start(self._pass_on, client, server)
            self._start(self._pass_on, server, client)

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        part = b"\0"  # anything: only an empty part ends it
        while part:
            try:
                part = source.recv(_PART_BYTES)
            except OSError:
                part = b""
            self._passing.wait()
            try:
                target.sendall(part)
            except OSError:
                part = b""
        _end(target)
        _end(source)
        with self._lock:
            self._sockets -= {source, target}

    def _start(self, work: Callable[..., None], *given: socket.socket) -> None:
        thread = threading.Thread(target=work, args=given, name="silent-network", daemon=True)
        self._threads.append(thread)
        thread.start()


def _end(connection: socket.socket) -> None:
    """Whoever waits in it is let go."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()

"""Serves lanes over Arrow Flight: requests as actions, the newest changes as a stream.

One service lives as long as its process; terms come and go behind `dispatch` and `tail_of`. An action's body
is the request's arguments as JSON, its one result `{"result": …}` or `{"error": …}`; what is read with
`do_get` is described in `capture.tail_items`. The ticket is `{"after": position, "epoch": of the term}`.

On a Unix socket the directory's mode keeps others out. Over TCP there is TLS, and every call must bring the
token. Calls and readers are limited in number, each reader is a thread that holds at most one item; a reader
that has left is noticed by the next write, or within `_LOOK_EVERY_S` when there is nothing to write.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight

from penstock.capture.server import error_to_json, log_unexpected
from penstock.capture.tail import Served, Tail
from penstock.capture.tail_items import SCHEMA
from penstock.core.errors import AddressError, CaptureAwayError, ConfigError, SourceBusyError
from penstock.core.position import Lsn

READERS_MAX = 16
CALLS_MAX = 64
UNIX_SCHEME = "grpc+unix://"
SIGN_OF_LIFE_S = 1.0
_LOOK_EVERY_S = 0.25
_SOCKET_PATH_MAX = 100  # of 107 bytes that the system allows
_STOP_WAIT_S = 5.0

Dispatch = Callable[[str, dict[str, Any]], Any]


class CaptureService:
    """`dispatch` answers a request and may be called by many threads; `tail_of` gives the term's tail."""

    def __init__(
        self,
        address: str,
        dispatch: Dispatch,
        tail_of: Callable[[], Tail | None],
        token: str | None = None,
        certificate: str | Path | None = None,
        key: str | Path | None = None,
    ) -> None:
        self.address = address
        self._dispatch = dispatch
        self._tail_of = tail_of
        self._token = token
        self._certificate, self._key = certificate, key
        self._server: _Server | None = None

    def start(self) -> None:
        """Listen. Afterwards `address` has the port, if it was left to the system."""
        if self.address.startswith(UNIX_SCHEME):
            _guard_socket(Path(self.address.removeprefix(UNIX_SCHEME)))
        middleware = {} if self._token is None else {"token": _TokenCheck(self._token)}
        try:
            self._server = _Server(
                self.address,
                self._dispatch,
                self._tail_of,
                middleware=middleware,
                tls_certificates=self._certificates(),
            )
        except (OSError, pa.ArrowException) as error:
            raise AddressError(
                f"Capture cannot listen at {self.address}.",
                remedy="Give another address with `tail.listen`, or end what uses this one.",
            ) from error
        if not self.address.startswith(UNIX_SCHEME):
            self.address = f"{self.address.rpartition(':')[0]}:{self._server.port}"

    def stop(self) -> None:
        """Send readers away and listen no more. A call that does not end is not waited for for long."""
        server, self._server = self._server, None
        if server is None:
            return
        server.stopping.set()
        ending = threading.Thread(target=server.shutdown, name="capture-service-stop", daemon=True)
        ending.start()
        ending.join(_STOP_WAIT_S)

    @property
    def readers(self) -> int:
        """Those that follow the tail now."""
        return 0 if self._server is None else self._server.readers

    def _certificates(self) -> list[tuple[bytes, bytes]] | None:
        if self._certificate is None or self._key is None:
            return None
        try:
            return [(Path(self._certificate).read_bytes(), Path(self._key).read_bytes())]
        except OSError as error:
            raise ConfigError(
                f"The certificate {self._certificate} or its key {self._key} cannot be read.",
                remedy="Correct `tail.certificate` and `tail.key`.",
            ) from error


class _Server(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    def __init__(
        self, address: str, dispatch: Dispatch, tail_of: Callable[[], Tail | None], **settings: Any
    ) -> None:
        # Calls may come before the constructor of the base has returned.
        self._dispatch = dispatch
        self._tail_of = tail_of
        self._calls = threading.BoundedSemaphore(CALLS_MAX)
        self._seats = threading.Lock()
        self.readers = 0
        self.stopping = threading.Event()
        super().__init__(address, **settings)

    def do_action(self, context: Any, action: flight.Action) -> list[bytes]:
        if not self._calls.acquire(blocking=False):
            return [_answer_error(_too_many("calls", CALLS_MAX))]
        try:
            arguments = json.loads(action.body.to_pybytes() or b"{}")
            return [json.dumps({"result": self._dispatch(action.type, arguments)}).encode()]
        except Exception as error:
            log_unexpected(error)
            return [_answer_error(error)]
        finally:
            self._calls.release()

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.GeneratorStream:
        try:
            wanted = json.loads(ticket.ticket)
            tail = self._tail_of()
            if tail is None or wanted.get("epoch", str(tail.epoch)) != str(tail.epoch):
                raise _away()
            items = self._items(tail, Lsn.parse(wanted["after"]), context)
        except Exception as error:
            raise _flight_error(error) from error
        return flight.GeneratorStream(SCHEMA, items)

    def _items(self, tail: Tail, after: Lsn, context: Any) -> Iterator[tuple[pa.RecordBatch, pa.Buffer]]:
        try:
            with self._seat():
                yield _sent(tail.hello())
                while True:
                    served = self._next(tail, after, context)
                    if served is None:
                        return
                    after = max(after, served.end)
                    yield _sent(served)
        except Exception as error:
            log_unexpected(error)
            raise _flight_error(error) from error

    def _next(self, tail: Tail, after: Lsn, context: Any) -> Served | None:
        """The next item, or a sign of life; None if the reader has left."""
        deadline = time.monotonic() + SIGN_OF_LIFE_S
        while time.monotonic() < deadline:
            if (served := tail.read(after, _LOOK_EVERY_S)) is not None:
                return served
            if context.is_cancelled():
                return None
            if self.stopping.is_set() or self._tail_of() is not tail:
                raise _away()
        return tail.nothing_to(after)

    @contextlib.contextmanager
    def _seat(self) -> Iterator[None]:
        with self._seats:
            if self.readers >= READERS_MAX:
                raise _too_many("readers", READERS_MAX)
            self.readers += 1
        try:
            yield
        finally:
            with self._seats:
                self.readers -= 1


class _TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    def start_call(self, info: Any, headers: dict[str, list[str | bytes]]) -> None:
        shown = next(iter(headers.get("authorization", [])), b"")
        shown = shown.encode() if isinstance(shown, str) else shown
        if not hmac.compare_digest(shown, self._expected):
            raise flight.FlightUnauthenticatedError("The token is not the right one.")


def _sent(served: Served) -> tuple[pa.RecordBatch, pa.Buffer]:
    return served.batch, pa.py_buffer(served.line)


def _answer_error(error: BaseException) -> bytes:
    return json.dumps({"error": error_to_json(error)}).encode()


def _flight_error(error: BaseException) -> flight.FlightError:
    """An error that ends a stream, with what the reader makes the same error of."""
    return flight.FlightInternalError("see the details", json.dumps(error_to_json(error)).encode())


def _away() -> CaptureAwayError:
    return CaptureAwayError(
        "Capture does not lead, or has begun another term.", remedy="Ask again with the next term."
    )


def _too_many(what: str, limit: int) -> SourceBusyError:
    return SourceBusyError(
        f"Capture has {limit} {what} at a time already.", remedy="Let fewer lanes follow it, or try again."
    )


def _guard_socket(path: Path) -> None:
    """The socket's directory is ours alone, and nothing is left of a predecessor's socket."""
    if len(os.fsencode(path)) > _SOCKET_PATH_MAX:
        raise ConfigError(
            f"The path of the socket {path} is longer than {_SOCKET_PATH_MAX} bytes.",
            remedy="Set TMPDIR to a directory with a shorter path.",
        )
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.parent.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ConfigError(
            f"Others may enter {path.parent}, where capture would listen.",
            remedy=f"Make it yours alone: chmod 700 {path.parent}",
        )
    path.unlink(missing_ok=True)

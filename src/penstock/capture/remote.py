"""A lane's side of capture's service.

`join` begins a term for the lane; every request after it carries the term's epoch, and once that term is over
each of them fails with `CaptureAwayError`, whatever the reason: the process is gone, the connection broke, or
another term has begun. The lane then starts over with `wait_until_leading` and `join`. Other errors of
capture come back as the classes they had there.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from pyarrow import flight

from penstock.capture.base import Hello, LaneStanding, Progress
from penstock.capture.client import error_from_json
from penstock.capture.spec import ExportedSnapshot, Started
from penstock.capture.tail_items import TailItem, item_of
from penstock.core.errors import CaptureAwayError, ConfigError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId

_ANSWER_S = 60.0  # for what needs no waiting at capture
_SEALED_S = 10.0  # capture answers `sealed` within that, and is asked again
_ASK_EVERY_S = 0.2
_SILENCE_TICKS_MAX = 10  # seconds; a tail has a sign of life every second
_SAY_AWAY_AFTER_S = 5.0
# A capture that was restarted is found at once, not after a pause that has grown meanwhile; one that stands
# still is noticed by calls that may last without end. gRPC sends few pings, and only during calls: the server
# takes no more (it closes the connection), and Flight has no setting for that.
_CHANNEL = [
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 20_000),
]


class RemoteCapture:
    """Capture as `lane` sees it. Several threads may ask at the same time."""

    def __init__(
        self, address: str, lane: str, token: str | None = None, certificate: str | Path | None = None
    ) -> None:
        self.lane = lane
        self.epoch: Lsn | None = None
        self.address = address
        self._headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        roots = {} if certificate is None else {"tls_root_certs": _certificate(Path(certificate))}
        self._client = flight.connect(address, generic_options=_CHANNEL, **roots)
        self._target: Lsn | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def hello(self, within_s: float = _ANSWER_S) -> Hello:
        found = self._ask("hello", within_s, lane=self.lane)
        epoch = found.get("epoch")
        return Hello(
            leading=found["leading"],
            epoch=None if not epoch else Lsn.parse(epoch),
            reason=found.get("reason", ""),
            reading=found.get("reading", False),
            turn=found.get("turn", True),
        )

    def start_over(self, epoch_above: Lsn | None = None) -> None:
        """Have the term end that there is now; the next one opens the log when a lane has joined.

        `epoch_above`: one that others have led under, as tables say.
        """
        self._ask("start_over", epoch_above=None if epoch_above is None else str(epoch_above))

    def wait_until_leading(
        self, stop: threading.Event, on_away: Callable[[str], None] = lambda _reason: None
    ) -> bool:
        """Whether capture leads now and this lane may join; False if `stop` was set before.

        If capture cannot be asked for a while, `on_away` is told why, and once it answers again, told "".
        """
        away_since: float | None = None
        said = ""
        while not stop.is_set():
            reason = ""
            try:
                hello = self.hello()
                if hello.leading and hello.turn:
                    return True
                away_since = None
            except CaptureAwayError as error:
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since > _SAY_AWAY_AFTER_S:
                    reason = error.message
            if reason != said:
                said = reason
                on_away(reason)
            stop.wait(_ASK_EVERY_S)
        return False

    def join(self, streams: Sequence[StreamId], full_identity: Collection[StreamId] = ()) -> Started:
        """Have these streams captured. What was held for this lane before is released."""
        started = Started.from_json(
            self._ask(
                "join",
                None,
                lane=self.lane,
                streams=[[stream.namespace, stream.name] for stream in streams],
                full_identity=[[stream.namespace, stream.name] for stream in sorted(full_identity)],
            )
        )
        self.epoch = started.epoch
        return started

    def heard(self, streams: Collection[StreamId] | None = None) -> None:
        """What a join said of streams that were published is noted, durably: of these, or of all."""
        named = None if streams is None else [[stream.namespace, stream.name] for stream in streams]
        self._ask_of_term("heard", lane=self.lane, streams=named)

    def snapshot(self) -> ExportedSnapshot:
        # A slot is made when all transactions that run now have ended: nobody knows when that is.
        return ExportedSnapshot.from_json(self._ask_of_term("snapshot", None, lane=self.lane))

    def plain_snapshot(self) -> ExportedSnapshot:
        return ExportedSnapshot.from_json(self._ask_of_term("plain_snapshot", None, lane=self.lane))

    def release_snapshot(self) -> None:
        self._ask_of_term("release_snapshot", lane=self.lane)

    def note_target(self) -> Lsn:
        return Lsn.parse(self._ask_of_term("note_target"))

    def read_to(self, target: Lsn) -> None:
        self._target = target
        self._ask_of_term("demand", target=str(target))

    def reached(self, within_s: float | None = None) -> Lsn | None:
        assert self._target is not None, "read_to says what is to be reached"
        deadline = None if within_s is None else time.monotonic() + within_s
        while True:
            left = _SEALED_S if deadline is None else min(_SEALED_S, max(0.0, deadline - time.monotonic()))
            end = self._ask_of_term("sealed", target=str(self._target), within_s=left)
            if end is not None:
                return Lsn.parse(end)
            if deadline is not None and time.monotonic() >= deadline:
                return None

    def acknowledge(self, lane: str, position: Lsn) -> Lsn:
        return Lsn.parse(self._ask_of_term("flushed", lane=lane, position=str(position)))

    def progress(self) -> Progress:
        return Progress.from_json(self._ask_of_term("progress"))

    def lanes(self) -> list[LaneStanding]:
        """Every lane that capture knows, joined or not."""
        return [
            LaneStanding(
                lane["lane"],
                None if lane["position"] is None else Lsn.parse(lane["position"]),
                lane["configured"],
                lane["lag_bytes"],
                lane["since"],
                lane["dropped"],
            )
            for lane in self._ask("lanes")
        ]

    def drop_lane(self, lane: str) -> None:
        """Have capture wait for `lane` no more."""
        self._ask("drop_lane", lane=lane)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self._ask("status")
        return found

    def tail(self, after: Lsn) -> Iterator[TailItem]:
        """What comes after `after`, for ever; ends with an error. Close it (`close()`) to leave earlier."""
        ticket: dict[str, Any] = {"after": str(after)}
        if self.epoch is not None:
            ticket["epoch"] = str(self.epoch)
        with self._errors():
            options = flight.FlightCallOptions(headers=self._headers)
            reader = self._client.do_get(flight.Ticket(json.dumps(ticket).encode()), options)
            watch = _SilenceWatch(reader)
            try:
                while True:
                    with watch:
                        chunk = reader.read_chunk()
                    yield item_of(chunk.data, chunk.app_metadata.to_pybytes())
            except StopIteration:
                raise _away("Capture has ended the stream of its newest changes.") from None
            finally:
                watch.end()
                reader.cancel()

    def _ask_of_term(self, request: str, timeout_s: float | None = _ANSWER_S, **arguments: Any) -> Any:
        if self.epoch is None:
            raise _away("This lane has not joined capture.")
        return self._ask(request, timeout_s, epoch=str(self.epoch), **arguments)

    def _ask(self, request: str, timeout_s: float | None = _ANSWER_S, **arguments: Any) -> Any:
        with self._errors():
            options = flight.FlightCallOptions(timeout=timeout_s, headers=self._headers)
            action = flight.Action(request, json.dumps(arguments).encode())
            (result,) = self._client.do_action(action, options)
        answer = json.loads(result.body.to_pybytes())
        if "error" in answer:
            raise error_from_json(answer["error"])
        return answer["result"]

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except flight.FlightUnauthenticatedError as error:
            raise ConfigError(
                f"Capture at {self.address} does not accept this token.",
                remedy="Give this lane the token that `tail.token` of the running pipeline has.",
            ) from error
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            details = getattr(error, "extra_info", b"")
            if details:
                raise error_from_json(json.loads(details)) from error
            raise _away(f"Capture at {self.address} cannot be reached, or does not answer.") from error


class _SilenceWatch:
    """Ends a stream whose other side neither says anything nor goes away while a block of it waits: a stopped
    process, a cut cable."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._waiting: object | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._watch, name="tail-watch", daemon=True).start()

    def __enter__(self) -> None:
        self._waiting = object()

    def __exit__(self, *_: object) -> None:
        self._waiting = None

    def end(self) -> None:
        self._ended.set()

    def _watch(self) -> None:
        """By ticks of its own, not by the clock: where all stood still, the other side did too."""
        before, ticks = None, 0
        while not self._ended.wait(1.0):
            now = self._waiting
            ticks = ticks + 1 if now is not None and now is before else 0
            before = now
            if ticks >= _SILENCE_TICKS_MAX:
                self._reader.cancel()


def _certificate(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"The certificate {path} of capture cannot be read.",
            remedy="Give this lane the file that `tail.certificate` of the running pipeline names.",
        ) from error


def _away(message: str) -> CaptureAwayError:
    return CaptureAwayError(message, remedy="`penstock status` says whether an instance runs and leads.")

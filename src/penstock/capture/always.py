"""An always-on capture: term after term, until it is told to stop or somebody must look.

A term ends when the lock or the stream is lost. What time can heal (the server restarts, a session is ended,
another instance was faster, a full disk) leads to the next term, after a pause that doubles, of which a
random part is waited. It begins anew after a term that got somewhere: to lead is not enough, since each term
costs the source sessions and a message in its log, and tables a commit that fences them off. But who has led
knows that the source is there, and does not wait as long as one whom it does not answer. What time cannot
heal (the slot is gone, the log belongs to another server) ends the process.

The service lives through all terms. A lane is answered by the term that it joined or not at all: an old
epoch, a term that ends meanwhile, no term, all are `CaptureAwayError`, and the lane starts over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock import metrics
from penstock.capture.anew import decides
from penstock.capture.server import error_to_json, log_unexpected
from penstock.capture.service import CaptureService
from penstock.capture.source import CaptureSource
from penstock.capture.spec import CaptureSpec
from penstock.capture.tail import Tail
from penstock.capture.term import Term
from penstock.channel import Channel
from penstock.core.backoff import pause_s
from penstock.core.errors import (
    CaptureAwayError,
    ConfigError,
    PenstockError,
    PositionGoneError,
    SourceError,
    StateError,
    StorageError,
)
from penstock.core.position import Lsn
from penstock.metrics import Sample

_PAUSE_MIN_S, _PAUSE_MAX_S = 0.2, 30.0
_PAUSE_AFTER_LEADING_MAX_S = 10.0
_GOOD_TERM_S = 30.0  # of one in which nothing was there to be sealed, or that another one led
_STORAGE_TRIES_MAX = 10


@dataclass(frozen=True, slots=True)
class _Ended:
    led: bool
    got_somewhere: bool
    error: Exception


class AlwaysCapture:
    def __init__(self, spec: CaptureSpec, channel: Channel) -> None:
        assert spec.service is not None
        self._spec = spec
        self._channel = channel
        service = spec.service
        self._service = CaptureService(
            service.address, self._answer, self._tail, service.token, service.certificate, service.key
        )
        self._term: Term | None = None  # the one that leads
        self._reason = "Capture is starting."
        self._counted: dict[str, float] = {}  # in the terms before
        self._reconnects = 0
        self._storage_failures = 0

    def run(self) -> int:
        """The process's exit code; it must end then, which closes what lanes have open here."""
        stop, unreached, in_vain = self._channel.stop_asked, 0, 0
        try:
            self._service.start()
            while not stop.is_set():
                ended = self._serve_a_term(stop)
                if ended is None:
                    continue
                if ended.got_somewhere:
                    unreached = in_vain = 0
                if ended.led:
                    unreached, in_vain = 0, in_vain + 1
                    pause = pause_s(in_vain, _PAUSE_MIN_S, _PAUSE_AFTER_LEADING_MAX_S)
                else:
                    unreached += 1
                    pause = pause_s(unreached, _PAUSE_MIN_S, _PAUSE_MAX_S)
                self._reason = _words(ended.error)
                self._channel.state("reconnecting", self._reason)
                stop.wait(pause)
        except Exception as error:
            log_unexpected(error)
            self._channel.failed(error_to_json(error))
            self._service.stop()  # not before the lane that met the error has its answer
            return error.exit_code if isinstance(error, PenstockError) else 1
        return 0

    def _serve_a_term(self, stop: threading.Event) -> _Ended | None:
        """How the term failed, if time can heal that; None: it ended as it was to."""
        term, led, in_order = Term(self._spec, self._channel.note), False, False
        began = time.monotonic()
        try:
            self._reason = "Another instance leads."
            led = term.lead(stop, lambda: self._channel.state("standby"))
            if led:
                self._lead(term, stop)
            in_order = led
            return None
        except Exception as error:
            self._reconnects += led
            if not self._heals(error, term.server.source) and not (led and term.was_lost):
                raise
            lasted = time.monotonic() - began >= _GOOD_TERM_S
            return _Ended(led, term.has_sealed_changes or lasted, error)
        finally:
            self._term = None
            self._counted = summed(self._counted, term.counted())
            if in_order:
                self._channel.state("stopping")
            term.stop(in_order=in_order)

    def _lead(self, term: Term, stop: threading.Event) -> None:
        self._channel.state("leading", "waiting for a lane to join")
        self._reason, self._term = "", term
        joined = False
        while not stop.is_set():
            term.attend()
            if not joined and term.server.reading is not None:
                joined = True
                self._channel.state("leading")
            if term.has_sealed:
                self._storage_failures = 0
            self._channel.metrics(self._samples(term))

    def _heals(self, error: Exception, source: CaptureSource) -> bool:
        if isinstance(error, PositionGoneError | StateError | ConfigError):
            return False
        if isinstance(error, StorageError):
            self._storage_failures += 1
            return self._storage_failures < _STORAGE_TRIES_MAX
        return isinstance(error, SourceError) or source.heals(error)

    def _answer(self, request: str, arguments: dict[str, Any]) -> Any:
        term = self._term
        if request == "hello":
            epoch = "" if term is None else str(term.epoch)
            reading = term is not None and term.server.reading is not None
            # A lane may rest on it (`streams.lease`): not on a lead that was lost while nobody looked.
            leading = term is not None and not term.was_lost
            turn = term is not None and term.is_turn_of(arguments.get("lane", ""))
            return {
                "leading": leading,
                "epoch": epoch,
                "reason": self._reason,
                "reading": reading,
                "turn": turn,
            }
        if request == "status":
            found = {} if term is None else term.status()
            return {"leading": term is not None, "reason": self._reason, **found}
        if term is None:
            raise CaptureAwayError(
                f"Capture does not lead. {self._reason}",
                remedy="Wait until it does, or ask the instance that leads.",
            )
        if request == "lanes":
            return term.lanes()
        if request == "drop_lane":
            return term.drop_lane(arguments["lane"])
        if request == "start_over":
            if arguments["epoch_above"] is not None:
                self._spec = replace(self._spec, epoch_above=Lsn.parse(arguments["epoch_above"]))
            return term.server.fail(CaptureAwayError("A lane asked for another term."))
        try:
            return term.carry_out(request, arguments)
        except Exception as error:
            if term.server.failure is not None or term.was_lost or term is not self._term:
                raise CaptureAwayError("Capture's term is over.", remedy="Join the next one.") from error
            if request == "join" and isinstance(error, PositionGoneError | StateError | StorageError):
                if not decides(self._spec, arguments["lane"]) and not isinstance(error, StorageError):
                    raise CaptureAwayError(
                        "Capture cannot go on from its log, and another lane decides what becomes of it.",
                        remedy="See what that lane says.",
                    ) from error
                term.server.fail(error)
            raise

    def _tail(self) -> Tail | None:
        term = self._term
        return None if term is None or term.server.reading is None else term.server.reading.tail

    def _samples(self, term: Term) -> list[Sample]:
        return [
            *((name, {}, value) for name, value in summed(self._counted, term.counted()).items()),
            (metrics.RECONNECTS.name, {}, self._reconnects),
            (metrics.TAIL_READERS.name, {}, self._service.readers),
            *term.samples(),
        ]


def summed(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """What was counted under each name; a name that counted nothing stays, so that its first count shows."""
    return {name: before.get(name, 0.0) + now.get(name, 0.0) for name in {**before, **now}}


def _words(error: Exception) -> str:
    if isinstance(error, PenstockError):
        return error.message
    return f"The source failed ({type(error).__name__})."

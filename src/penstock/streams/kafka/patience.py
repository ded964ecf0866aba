"""Waiting for brokers so that a stop is heard: every call is made in short pieces.

What is waited for is said (`trouble`) as long as nothing comes, since a commit may have no answer for minutes
before it fails, or may not fail at all: whether it has happened is asked without end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from penstock.streams.kafka.errors import code_of, target_error
from penstock.streams.publisher import StoppedError
from penstock.streams.trouble import TroubleMet

_PIECE_S = 0.5
ANSWER_S = 30.0
#: That nobody answers; why not is said by what the client heard meanwhile.
_SILENCE = frozenset({"_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN"})

_Answer = TypeVar("_Answer")


class Patience:
    """Shared by whatever talks to the brokers for one target."""

    def __init__(self, answer_s: float = ANSWER_S, trouble: TroubleMet | None = None) -> None:
        self.trouble = trouble or TroubleMet()
        self._answer_s = answer_s
        self._stopped = threading.Event()
        self._heard: str | None = None

    def stop(self) -> None:
        self._stopped.set()

    def go_on(self) -> None:
        if self._stopped.is_set():
            raise StoppedError

    def pause(self, seconds: float) -> None:
        if self._stopped.wait(seconds):
            raise StoppedError

    def hear(self, error: KafkaError) -> None:
        """What a client complains about while it goes on trying."""
        if (code := code_of(error)) not in _SILENCE:
            self._heard = code

    def waits(self, doing: str, code: str = "_TIMED_OUT", *, is_moving: bool = False) -> None:
        """Between two pieces. `is_moving`: something has come of it since the last one."""
        if is_moving:
            self.answered()
        else:
            self.trouble.waits(f"Kafka: {doing} has no answer yet ({self._why(code)}).")
        self.go_on()

    def answered(self) -> None:
        self._heard = None
        self.trouble.answered()

    def ask(
        self,
        doing: str,
        call: Callable[[float], _Answer],
        within_s: float | None = None,
        *,
        is_retried: bool = False,
    ) -> _Answer:
        """Of a call that goes on where it was when it is made again; a `TargetError` if it does not end."""
        deadline = time.monotonic() + (self._answer_s if within_s is None else within_s)
        self._heard = None
        self.go_on()
        while True:
            try:
                answer = call(_PIECE_S)
            except KafkaException as error:
                code = self._why(code_of(error))
                may_pass = error.args[0].retriable() or (is_retried and code in _SILENCE)
                is_explained = code != code_of(error)
                if is_explained or not may_pass or time.monotonic() > deadline:
                    raise target_error(doing, code) from error
                self.waits(doing, code)
            else:
                self.answered()
                return answer

    def _why(self, code: str) -> str:
        return self._heard or code if code in _SILENCE else code

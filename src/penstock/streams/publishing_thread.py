"""What both publishers are: a thread that takes what was handed over, in order, until it fails or is stopped.

What has failed is raised to whoever hands something over or waits for the end; nothing is sent after that.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from penstock.streams.dead_letters import DeadLetters
from penstock.streams.inflight import InflightEventQueue, QueueLimits
from penstock.streams.publish_measures import publish_measures
from penstock.streams.publisher import Standing, StoppedError
from penstock.streams.trouble import Trouble, TroubleMet


class Stoppable(Protocol):
    """Of a target, what ends its use."""

    def stop(self) -> None: ...

    def close(self) -> None: ...


_Target = TypeVar("_Target", bound=Stoppable)
_Item = TypeVar("_Item")


class PublishingThread(ABC, Generic[_Target, _Item]):
    """See `Publisher` for what is public. `_turn` is called again and again, from `begin` to `close`."""

    def __init__(
        self,
        target: _Target,
        letters: DeadLetters,
        queue: QueueLimits | None,
        trouble: TroubleMet | None = None,
    ) -> None:
        self._target = target
        self._letters = letters
        self._queue: InflightEventQueue[_Item] = InflightEventQueue(queue or QueueLimits())
        self._measures = publish_measures(letters.lane)
        self._trouble = trouble or TroubleMet()
        self._stopped = threading.Event()
        self._standing: Standing | None = None  # what the target holds
        self._begun_at = 0  # so many batches there were when the term began
        self._is_draining = False
        self._taken = 0
        self._moved = threading.Condition()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def standing(self) -> Standing:
        assert self._standing is not None, "not begun"
        return self._standing

    @property
    def trouble(self) -> Trouble | None:
        return self._trouble.trouble

    def begin(self, standing: Standing) -> None:
        replays = 0 if self._standing is None else self._standing.replays
        standing = replace(standing, batches=self._begun_at, replays=replays)
        if standing != self._standing:
            self._write_down(standing)
        self._letters.follow(standing)
        self._standing = standing
        self._prepare(standing)
        self._thread = threading.Thread(target=self._run, name=f"publish-{self._letters.lane}", daemon=True)
        self._thread.start()

    def drain(self, within_s: float) -> bool:
        with self._moved:
            self._is_draining = True
            self._queue.poke()
            self._moved.wait_for(lambda: self._is_drained() or self._stopped.is_set(), within_s)
            self._is_draining = False
        self._raise_error()
        return self._is_drained()

    def stop(self) -> None:
        self._stopped.set()
        self._queue.stop()
        self._target.stop()
        with self._moved:
            self._moved.notify_all()

    def close(self) -> None:
        self.stop()
        if self._thread is not None:
            self._thread.join()
        self._wind_up()
        self._target.close()

    @abstractmethod
    def _write_down(self, standing: Standing) -> None:
        """Before the thread runs: the target holds it when this returns."""

    @abstractmethod
    def _prepare(self, standing: Standing) -> None:
        """The thread is about to run, from there on."""

    @abstractmethod
    def _turn(self) -> None:
        """Do what is to be done now, or wait for it a while."""

    def _wind_up(self) -> None:
        """The thread has ended, the target is still there."""

    def _hand_over(self, item: _Item, count: int, size: int) -> None:
        try:
            self._queue.put(item, count, size)
        except StoppedError:
            self._raise_error()
            raise
        self._taken += 1

    def _moved_to(self, standing: Standing) -> None:
        with self._moved:
            self._standing = standing
            self._moved.notify_all()

    def _is_drained(self) -> bool:
        return self.standing.batches >= self._begun_at + self._taken

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while True:
                self._turn()
        except StoppedError:
            pass
        except BaseException as error:
            self._error = error
            self.stop()

"""Looks at the pipeline once a second, and tells everybody who watches.

One thread asks, however many browsers look. What it finds is kept as one document; a browser is sent the
whole of it first, and then what is new: streams that changed, and all that is not a stream. A browser that
is slow misses moments, never the newest one. When we cannot look, browsers are told that what they have is
old."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog

from penstock.config import Config
from penstock.console.history import FINE_S, History
from penstock.console.rates import Rates, counters_of
from penstock.console.remembered import Remembered
from penstock.console.view import Found, view_of
from penstock.core.errors import PenstockError
from penstock.core.stream import StreamId
from penstock.ledger import orders
from penstock.ledger.load_record import LoadRecords
from penstock.ledger.state import StateDocument
from penstock.ledger.store import StateStore
from penstock.operations.lanes import orders_of

EVERY_S = 1.0
_QUIET_S = 15.0
_logger = structlog.get_logger("penstock.console")


class Watching:
    """`ask`: what the instance says of itself, or None; asked by our own thread alone."""

    def __init__(self, config: Config, history: History, ask: Callable[[], dict[str, Any] | None]) -> None:
        self._config = config
        self._history = history
        self._ask = ask
        self._rates = Rates()
        self._remembered = Remembered()
        self._state = _StateFile(config.state)
        self._changed = threading.Condition()
        self._serial = 0
        self._ended = False
        self._kept_at = 0
        self._view = self._look(ask=False)

    def run(self, stop: threading.Event) -> None:
        while True:
            begun = time.monotonic()
            try:
                view = self._look(ask=True)
            except Exception as error:  # a disk that fails for a while, a file in the midst of a change
                _logger.warning("nothing new to show", kind=type(error).__name__)
                self._say_stale(type(error).__name__)
            else:
                self._show(view)
                self._try_to_keep(view)
            if stop.wait(max(0.05, EVERY_S - (time.monotonic() - begun))):
                break
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _show(self, view: dict[str, Any]) -> None:
        with self._changed:
            self._view, self._serial = view, self._serial + 1
            self._changed.notify_all()

    def _say_stale(self, why: str) -> None:
        """What was seen last stays, and is said to be old; the words stay the same while it lasts."""
        view = self.view
        problem = f"The console cannot see the pipeline ({why}): what is shown is as it was seen last."
        self._show(view | {"is_stale": True, "problem": problem})

    @property
    def view(self) -> dict[str, Any]:
        with self._changed:
            return self._view

    def events(self, may_stay: Callable[[], bool]) -> Iterator[bytes]:
        """For one browser, for as long as it stays and may."""
        yield b"retry: 2000\n\n"
        sent: dict[str, Any] | None = None
        serial = -1
        while may_stay():
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._serial != serial, _QUIET_S)  # noqa: B023
                if self._ended:
                    return
                is_new, serial, view = self._serial != serial, self._serial, self._view
            if not is_new:
                yield b": nothing new\n\n"
                continue
            message = view if sent is None else _news(sent, view)
            sent = view
            yield b"event: view\ndata: " + json.dumps(message, default=str).encode() + b"\n\n"

    def _look(self, *, ask: bool) -> dict[str, Any]:
        status = self._ask() if ask else None
        if status is None:
            self._rates.forget()
        else:
            self._rates.add(time.monotonic(), counters_of(status))
        document, problem = self._state.read()
        return view_of(self._config, self._found(status, document, problem), self._rates)

    def _found(self, status: dict[str, Any] | None, document: StateDocument, problem: str) -> Found:
        try:
            lane_orders = orders_of(self._config)
            waiting: list[tuple[str, str]] = [
                (str(order.stream), order.action) for _, order in orders.waiting(self._config.state)
            ]
            problem = problem or _set_aside(orders.unreadable(self._config.state))
        except (PenstockError, OSError) as error:
            lane_orders, waiting = {}, []
            problem = problem or str(error)
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        if status is not None:
            self._remembered.note(status, at)
        return Found(
            at=at,
            status=status,
            document=document,
            chunks=self._state.chunks(document),
            lane_orders=lane_orders,
            orders_waiting=waiting,
            problem=problem,
            tables=self._remembered.streams,
            letters=self._remembered.letters,
        )

    def _try_to_keep(self, view: dict[str, Any]) -> None:
        try:
            self._keep(view)
        except Exception as error:  # a disk that is full for a while: plots have a hole then
            _logger.warning("history not kept", kind=type(error).__name__)

    def _keep(self, view: dict[str, Any]) -> None:
        now = time.time()
        if view["instance"] is None or int(now) // FINE_S == self._kept_at:
            return
        self._kept_at = int(now) // FINE_S
        self._history.add(now, numbers_of(view))


def numbers_of(view: dict[str, Any]) -> dict[str, float]:
    """The series of the history, of one moment."""
    found: dict[str, float | None] = {
        "captured_rows_rate": view["capture"].get("rows_rate"),
        "captured_bytes_rate": view["capture"].get("bytes_rate"),
        "captured_transactions_rate": view["capture"].get("transactions_rate"),
        "log_bytes": view["capture"].get("log_bytes"),
        "applied_rate": view["totals"]["applied_rate"],
        "freshness_p50": view["totals"]["freshness_p50"],
        "freshness_p99": view["totals"]["freshness_p99"],
        "retained_wal_bytes": view["source"].get("retained_wal_bytes"),
        "capture_lag_bytes": view["source"].get("capture_lag_bytes"),
        "dead_letters": view["totals"]["dead_letters"],
    }
    for process in view["processes"]:
        found[f"process:{process['name']}/memory_bytes"] = process["memory_bytes"] or None
    for lane in view["lanes"]:
        for name in ("lag_bytes", "lag_seconds"):
            found[f"lane:{lane['lane']}/{name}"] = lane[name]
        if lane["kind"] == "stream":
            found[f"lane:{lane['lane']}/events_rate"] = lane["rate"]
            found[f"lane:{lane['lane']}/freshness_s"] = lane["freshness_s"]
    for stream in view["streams"]:
        found[f"stream:{stream['stream']}/applied_rate"] = stream["rate"]
        found[f"stream:{stream['stream']}/freshness_s"] = stream["freshness_s"]
        found[f"stream:{stream['stream']}/lag_s"] = stream["lag_s"]
    return {name: float(value) for name, value in found.items() if value is not None}


class _StateFile:
    """The state document, read again when the file is another one."""

    def __init__(self, directory: Path) -> None:
        self._store = StateStore(directory)
        self._records = LoadRecords(directory / "load")
        self._seen: tuple[int, int] | None = None
        self._document = StateDocument.new()
        self._problem = ""
        self._chunks: dict[tuple[StreamId, str | None], int] = {}

    def read(self) -> tuple[StateDocument, str]:
        try:
            found = self._store.path.stat()
            seen = (found.st_mtime_ns, found.st_ino)
        except FileNotFoundError:
            seen = None
        if seen != self._seen or seen is None:
            try:
                self._document, self._problem = self._store.load() or StateDocument.new(), ""
                self._seen = seen
            except PenstockError as error:
                self._problem = str(error)
        return self._document, self._problem

    def chunks(self, document: StateDocument) -> dict[StreamId, int]:
        found: dict[StreamId, int] = {}
        loading = [state for state in document.stream_states if state.is_loading]
        for state in loading:
            key = (state.stream, state.load_id)
            if key not in self._chunks:
                try:
                    record = self._records.load(state.stream)
                except (PenstockError, OSError):
                    record = None
                if record is None or record.load_id != state.load_id:
                    continue
                self._chunks[key] = len(record.chunks)
            found[state.stream] = self._chunks[key]
        known = {(state.stream, state.load_id) for state in loading}
        self._chunks = {key: count for key, count in self._chunks.items() if key in known}
        return found


def _set_aside(unreadable: list[Path]) -> str:
    if not unreadable:
        return ""
    others = f" and {len(unreadable) - 1} more" if len(unreadable) > 1 else ""
    newest = unreadable[-1]
    return (
        f"An order could not be read and was not carried out: {newest.parent.name}/{newest.name}{others} in "
        "the state directory. Give it again, and remove the file."
    )


def _news(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """What a browser that has `before` needs to have `now`."""
    known = {each["stream"]: each for each in before["streams"]}
    names = {each["stream"] for each in now["streams"]}
    changed = [each for each in now["streams"] if known.get(each["stream"]) != each]
    message = {name: value for name, value in now.items() if name != "streams"}
    return message | {"changed": changed, "gone": [name for name in known if name not in names]}

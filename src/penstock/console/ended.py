"""`console/ended.json`: sessions that people ended before their time, so that a cookie somebody kept stays
without use, over restarts and for every console of the state directory.

A cookie is believed by its signature, without a list of sessions; so the list is of those that are not to be
believed any more, each until it would have ended by itself. It is bounded: when it is full, the oldest goes,
and with it ends every session that is no younger. The same when the file cannot be read: sessions that were
begun before end, and people log in again.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

from penstock import durable
from penstock.file_lock import held

SESSIONS_MAX = 4096
_LOCKED_S = 2.0
_FORMAT_VERSION = 1


class EndedSessions:
    """`lasts_s`: how long a session lasts by itself; all last equally long."""

    def __init__(self, path: Path, lasts_s: int, clock: Callable[[], float]) -> None:
        self._path = path
        self._lasts_s = lasts_s
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: tuple[int, int] | None = None
        self._until = 0  # sessions that last until then, and no longer, are over
        self._sessions: dict[str, int] = {}

    def add(self, session: str, expires: int) -> None:
        """Ended for this process when it is called; for all others, and for good, when it returns."""
        with self._lock:
            self._sessions[session] = expires
            with held(self._path.with_suffix(".lock"), _LOCKED_S):
                self._read_again()
                self._sessions[session] = expires
                self._write()

    def has(self, session: str, expires: int) -> bool:
        with self._lock:
            self._read_again()
            return expires <= self._until or session in self._sessions

    def _read_again(self) -> None:
        """What other processes wrote since."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return
        if (seen := (found.st_mtime_ns, found.st_ino)) == self._seen:
            return
        try:
            fields = json.loads(self._path.read_bytes())
            if fields["format_version"] > _FORMAT_VERSION:
                raise ValueError("written by a newer version")
            until = int(fields["until"])
            sessions = {str(name): int(expires) for name, expires in fields["sessions"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            until, sessions = int(self._clock()) + self._lasts_s - 1, {}
        self._until = max(self._until, until)
        self._sessions |= sessions
        self._seen = seen

    def _write(self) -> None:
        now = self._clock()
        left = sorted(
            (expires, session)
            for session, expires in self._sessions.items()
            if expires > self._until and expires > now
        )
        if len(left) > SESSIONS_MAX:
            self._until = left[-SESSIONS_MAX - 1][0]
        self._sessions = {session: expires for expires, session in left if expires > self._until}
        fields = {"format_version": _FORMAT_VERSION, "until": self._until, "sessions": self._sessions}
        durable.replace(self._path, durable.to_json_bytes(fields))

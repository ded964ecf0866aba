"""`console/ended.json`: sessions that people ended before their time, so that a cookie somebody kept stays
without use, over restarts and for every console of the state directory.

A cookie is believed by its signature, without a list of sessions; so the list is of those that are not to be
believed any more, each until it would have ended by itself. It is bounded for each person: when a person's is
full, the oldest goes, and with it ends every session of theirs that is no younger. Nobody else's sessions end
by that, and none that was ended is believed again. When the file cannot be read, all sessions that were begun
before end, and people log in again.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock import durable
from penstock.file_lock import held

SESSIONS_MAX = 256  # of one person
_LOCKED_S = 2.0
_FORMAT_VERSION = 2
_ANYBODY = ""  # of whom a file of version 1 does not say whose sessions they are


@dataclass(slots=True)
class _Ended:
    """Of one person. `until`: sessions that last until then, and no longer, are over."""

    until: int = 0
    sessions: dict[str, int] = field(default_factory=dict)

    def has(self, session: str, expires: int) -> bool:
        return expires <= self.until or session in self.sessions

    def add(self, other: _Ended) -> None:
        self.until = max(self.until, other.until)
        self.sessions |= other.sessions

    def tidy(self, now: float, sessions_max: int | None) -> None:
        left = sorted(
            (expires, session)
            for session, expires in self.sessions.items()
            if expires > self.until and expires > now
        )
        if sessions_max is not None and len(left) > sessions_max:
            self.until = left[-sessions_max - 1][0]
        self.sessions = {session: expires for expires, session in left if expires > self.until}

    def to_json(self) -> dict[str, Any]:
        return {"until": self.until, "sessions": self.sessions}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> _Ended:
        sessions = {str(name): int(expires) for name, expires in fields["sessions"].items()}
        return cls(int(fields["until"]), sessions)


class EndedSessions:
    """`lasts_s`: how long a session lasts by itself; all last equally long."""

    def __init__(self, path: Path, lasts_s: int, clock: Callable[[], float]) -> None:
        self._path = path
        self._lasts_s = lasts_s
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: tuple[int, int] | None = None
        self._people: dict[str, _Ended] = {}

    def add(self, person: str, session: str, expires: int) -> None:
        """Ended for this process when it is called; for all others, and for good, when it returns."""
        with self._lock:
            self._of(person).sessions[session] = expires
            with held(self._path.with_suffix(".lock"), _LOCKED_S):
                self._read_again()
                self._of(person).sessions[session] = expires
                self._write()

    def has(self, person: str, session: str, expires: int) -> bool:
        with self._lock:
            self._read_again()
            return self._of(person).has(session, expires) or self._of(_ANYBODY).has(session, expires)

    def _of(self, person: str) -> _Ended:
        return self._people.setdefault(person, _Ended())

    def _read_again(self) -> None:
        """What other processes wrote since."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return
        if (seen := (found.st_mtime_ns, found.st_ino)) == self._seen:
            return
        try:
            people = _people(json.loads(self._path.read_bytes()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            people = {_ANYBODY: _Ended(int(self._clock()) + self._lasts_s - 1)}
        for person, ended in people.items():
            self._of(person).add(ended)
        self._seen = seen

    def _write(self) -> None:
        now = self._clock()
        for person, ended in self._people.items():
            # Those of anybody are an earlier version's, which had a bound of its own; none are added.
            ended.tidy(now, None if person == _ANYBODY else SESSIONS_MAX)
        self._people = {
            person: ended
            for person, ended in self._people.items()
            if ended.sessions or ended.until > now  # of those who have left the pipeline file nothing stays
        }
        people = {person: ended.to_json() for person, ended in self._people.items()}
        durable.replace(
            self._path, durable.to_json_bytes({"format_version": _FORMAT_VERSION, "people": people})
        )


def _people(fields: dict[str, Any]) -> dict[str, _Ended]:
    if fields["format_version"] > _FORMAT_VERSION:
        raise ValueError("written by a newer version")
    if "people" not in fields:
        return {_ANYBODY: _Ended.from_json(fields)}
    return {str(person): _Ended.from_json(ended) for person, ended in fields["people"].items()}

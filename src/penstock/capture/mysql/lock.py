"""A named lock of the server (GET_LOCK), on a session of its own: a `Lock`.

The server ends the session when it has been silent for the lease (`wait_timeout`, whole seconds: never less
than the lease), and the lock goes with it. Each question is whether this very session holds the lock, so a
proxy in between, or a session that was ended and opened again, is noticed. An answer that takes longer than
the lease is not waited for, so that in a silent network the session ends with its term. Locks are of one
server: those who read one pipeline from two servers at a time are told apart by the epoch alone.
"""

from __future__ import annotations

import hashlib
import math

from penstock.core.errors import SourceBusyError, SourceError
from penstock.sources.mysql.connection import Connection, connect, rows

LOCK_PROGRAM = "penstock lock"
_TAKING = "taking the pipeline's lock"
_HOLDER = "SELECT ID, USER, HOST FROM information_schema.PROCESSLIST WHERE ID = IS_USED_LOCK(%s)"


class NamedLock:
    def __init__(self, url: str, name: str, lease_s: float) -> None:
        self._name = name
        # Names of locks are limited, and those of pipelines may be long.
        self._key = f"penstock:{hashlib.sha256(name.encode()).hexdigest()[:32]}"
        lease = max(1, math.ceil(lease_s))
        self._connection: Connection = connect(url, program_name=LOCK_PROGRAM, answers_within_s=lease)
        rows(self._connection, f"SET SESSION wait_timeout = {lease}", doing=_TAKING)

    def take(self) -> bool:
        [(taken,)] = rows(self._connection, "SELECT GET_LOCK(%s, 0)", (self._key,), doing=_TAKING)
        return bool(taken == 1)

    def is_held(self) -> bool:
        try:
            query = "SELECT IS_USED_LOCK(%s) = CONNECTION_ID()"
            [(held,)] = rows(self._connection, query, (self._key,), doing=_TAKING)
        except SourceError:
            return False
        return bool(held == 1)

    def busy(self) -> SourceBusyError:
        found = rows(self._connection, _HOLDER, (self._key,), doing=_TAKING)
        by = f"session {found[0][0]} of {found[0][1]} from {found[0][2]}" if found else "another session"
        return SourceBusyError(
            f"Another Penstock reads this server as {self._name}: the lock is held by {by}.",
            remedy="Wait until it has ended, or give this pipeline a name of its own (source.name).",
        )

    def lost(self) -> SourceError:
        return SourceError(
            f"The session that holds the lock of {self._name} was lost.",
            remedy="Run the same command again; it goes on where it stopped.",
        )

    def release(self) -> None:
        self._connection.close()

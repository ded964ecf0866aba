"""A lease in the pipeline's document of `penstock.control`: a `Lock`.

The document says who holds it and until when, by the clock of the primary. Taking, renewing and letting go
are single updates with the concern of a majority: an election takes none of them back, and of two that take
it at a time one changes nothing. A holder renews it by each question whether it is still its own. One that
was silent for a lease is free for others; until one has come, it may still be renewed.

A process that was killed lets nothing go. On the machine where it ran that can be seen, and its lease is
taken at once: where the document names this boot of this machine and a process id of ours that is gone.

A new primary's clock may be ahead of the last one's, so that a lease ends sooner than its holder counts: then
two may believe to lead for as long. They do no harm: steps of the log are created exclusively, and the epoch
of the one that came later is greater (`control.Control.mark`).
"""

from __future__ import annotations

import os
import platform
import secrets
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pymongo
from pymongo.errors import PyMongoError

from penstock.core.errors import SourceBusyError, SourceError
from penstock.sources.mongodb.connection import connect, query_errors
from penstock.sources.mongodb.control import Control, document_id

LOCK_APPLICATION = "penstock lock"
_TAKING = "taking the pipeline's lease"
_HOLDER, _UNTIL, _BY, _AT = "holder", "until", "held_by", "at"


class LeaseLock:
    def __init__(self, url: str, name: str, lease_s: float) -> None:
        self._name = name
        self._lease_s = lease_s
        self._me = secrets.token_hex(8)
        self._client = connect(url, application_name=LOCK_APPLICATION)
        self._control = Control(self._client)

    def take(self) -> bool:
        found = self._control.made(document_id(self._name), {})
        holders = [None, self._me]
        if _was_left(found.get(_AT)):
            holders.append(found[_HOLDER])
        free = {"$or": [{_HOLDER: {"$in": holders}}, {"$expr": {"$lt": [f"${_UNTIL}", "$$NOW"]}}]}
        with query_errors(_TAKING):
            return self._renew(free)

    def is_held(self) -> bool:
        try:
            return self._renew({_HOLDER: self._me})
        except PyMongoError:
            return False

    def busy(self) -> SourceBusyError:
        with query_errors(_TAKING):
            found = self._control.documents.find_one({"_id": document_id(self._name)})
        by = (found or {}).get(_BY) or "another one"
        return SourceBusyError(
            f"Another Penstock works with the pipeline {self._name} of this cluster: the lease is held by "
            f"{by}.",
            remedy="Wait until it has ended, or give this pipeline a name of its own.",
        )

    def lost(self) -> SourceError:
        return SourceError(
            f"The lease of the pipeline {self._name} was lost.",
            remedy="Run the same command again; it goes on where it stopped.",
        )

    def release(self) -> None:
        """One that cannot be let go ends by itself."""
        with suppress(PyMongoError), pymongo.timeout(self._lease_s):
            let_go = {"$unset": dict.fromkeys((_HOLDER, _UNTIL, _BY, _AT), "")}
            self._control.documents.update_one({"_id": document_id(self._name), _HOLDER: self._me}, let_go)
        self._client.close()

    def _renew(self, condition: dict[str, Any]) -> bool:
        """No answer within the lease is an error: it would come too late."""
        fields = {
            _HOLDER: self._me,
            _UNTIL: {"$add": ["$$NOW", max(1, int(self._lease_s * 1000))]},
            _BY: {"$literal": f"process {os.getpid()} on {platform.node()}"},
            _AT: {"$literal": {"machine": _machine(), "pid": os.getpid()}},
        }
        with pymongo.timeout(self._lease_s):
            result = self._control.documents.update_one(
                {"_id": document_id(self._name), **condition}, [{"$set": fields}]
            )
        return result.matched_count == 1


@cache
def _machine() -> str:
    """This boot of this machine, and whose process ids these are; empty: a system that does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _was_left(at: Mapping[str, Any] | None) -> bool:
    """Whether the holder was a process of this machine, and is gone."""
    if at is None or not at["machine"] or at["machine"] != _machine():
        return False
    return not Path(f"/proc/{at['pid']}").exists()

"""`rewinds.json`: how often a lane was told to send changes again, and which.

A target that was sent something twice by order has it twice, and rightly so: whoever compares a target with
the log (`comparison`) must know. A rewind is written down before the target is told where the lane goes on
from, so that nothing is ever sent again that is not written here; after a crash in between one is written
that sent nothing, or less, which only means that a record which is there twice may be excused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from penstock import durable
from penstock.core.position import Lsn

_FILE = "rewinds.json"
_FORMAT_VERSION = 1
KEPT = 100


@dataclass(frozen=True, slots=True)
class Rewind:
    """Changes with `to <= tx < held` were at the target, and are sent again."""

    to: Lsn
    held: Lsn
    at: str = ""


def note(directory: Path, to: Lsn, held: Lsn) -> None:
    """Durable when it returns. The same as the last one is no other: its term was begun again."""
    known = read(directory)
    if known and (known[-1].to, known[-1].held) == (to, held):
        return
    at = datetime.now(UTC).isoformat(timespec="seconds")
    kept = [*known, Rewind(to, held, at)][-KEPT:]
    rewinds = [{"to": str(each.to), "held": str(each.held), "at": each.at} for each in kept]
    document = {"format_version": _FORMAT_VERSION, "rewinds": rewinds}
    durable.replace(directory / _FILE, durable.to_json_bytes(document))


def read(directory: Path) -> list[Rewind]:
    """Those that are known; a file that cannot be read knows none."""
    try:
        found = json.loads((directory / _FILE).read_bytes())["rewinds"]
        return [Rewind(Lsn.parse(each["to"]), Lsn.parse(each["held"]), each["at"]) for each in found]
    except (OSError, ValueError, KeyError, TypeError):
        return []

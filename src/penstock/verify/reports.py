"""Results of comparisons, kept in the state directory for people: the newest so many, without values.

Nothing rests on them but when the next comparison is due.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from penstock import durable
from penstock.core.verify_report import VerifyReport

KEPT = 50
_DIRECTORY = "verify"


def save(state: Path, report: VerifyReport) -> Path:
    directory = state / _DIRECTORY
    directory.mkdir(parents=True, exist_ok=True)
    moment = report.began_at.replace(":", "").replace("+0000", "Z")
    path = directory / f"{moment}.json"
    document = {"format_version": 1, **report.without_values().to_json()}
    durable.replace(path, durable.to_json_bytes(document))
    for old in sorted(directory.glob("*.json"))[:-KEPT]:
        old.unlink(missing_ok=True)
    return path


def newest(state: Path) -> dict[str, Any] | None:
    """What the newest comparison came to; None if there is none that can be read."""
    for path in sorted((state / _DIRECTORY).glob("*.json"), reverse=True):
        with suppress(OSError, ValueError):
            document: dict[str, Any] = json.loads(path.read_bytes())
            return document
    return None


def began_at_s(document: dict[str, Any]) -> float:
    """When a comparison was begun, as seconds of the epoch."""
    return datetime.fromisoformat(document["began_at"]).timestamp()

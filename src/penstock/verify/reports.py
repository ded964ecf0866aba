"""Results of comparisons, kept in the state directory for people: the newest so many of tables, and of each
lane, without values.

An instance that starts knows from them when the next comparison is due, and which differences are known.
What somebody compares by hand puts no comparison off; a sample, or an earlier version of a table, that is
equal does not make a known difference forgotten.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from penstock import durable
from penstock.core.verify_report import TABLES, VerifiedStream, VerifyReport

KEPT = 50
ROWS_KEPT = 100  # of each stream, whatever was asked to be told
_DIRECTORY = "verify"


def save(state: Path, report: VerifyReport) -> Path:
    directory = state / _DIRECTORY
    directory.mkdir(parents=True, exist_ok=True)
    moment = report.began_at.replace(":", "").replace("+0000", "Z")
    path = directory / (f"{moment}.json" if report.of == TABLES else f"{moment}-{report.of}.json")
    document = {"format_version": 1, **report.without_values().to_json()}
    for stream in document["streams"]:
        more = stream["differences"][ROWS_KEPT:]
        stream["differences"] = stream["differences"][:ROWS_KEPT]
        stream["left_out"] += len(more)
    durable.replace(path, durable.to_json_bytes(document))
    for old in sorted(each for each in directory.glob("*.json") if _kind(each) == _kind(path))[:-KEPT]:
        old.unlink(missing_ok=True)
    return path


def _kind(path: Path) -> str:
    """What was compared: what follows the moment in a result's name."""
    return path.stem.partition("Z")[2]


def kept(state: Path, name: str | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Results by their names, the newest first; one that is none, or cannot be read, is passed over.

    `name`: only that one's.
    """
    for path in sorted((state / _DIRECTORY).glob("*.json"), reverse=True):
        if name in (None, path.stem):
            with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                document = json.loads(path.read_bytes())
                began_at_s(document["began_at"])
                for each in document["streams"]:
                    VerifiedStream.from_json(each)
                yield path.stem, document


def last_began_s(state: Path) -> float | None:
    """When the newest comparison by schedule was begun, as seconds of the epoch; None if there was none."""
    tables = (document for _, document in kept(state) if _is_of_tables(document))
    scheduled = (document for document in tables if document.get("by_schedule", True))
    return next((began_at_s(document["began_at"]) for document in scheduled), None)


def _is_of_tables(document: dict[str, Any]) -> bool:
    return bool(document.get("of", TABLES) == TABLES)


def began_at_s(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def known(state: Path) -> dict[str, VerifiedStream]:
    """What is known of each stream's table, by the results that are kept."""
    results: dict[str, VerifiedStream] = {}
    for document in [each for _, each in kept(state) if _is_of_tables(each)][::-1]:
        is_whole = document.get("sample", 1.0) >= 1.0 and document.get("at") is None
        streams = map(VerifiedStream.from_json, document["streams"])
        results |= together(results, streams, is_whole=is_whole)
    return results


def together(
    before: Mapping[str, VerifiedStream], now: Iterable[VerifiedStream], *, is_whole: bool = True
) -> dict[str, VerifiedStream]:
    """What is known of streams that were to be compared now; of one that could not be, what was before.

    `is_whole`: every row was compared. Of a part that is equal, a difference that was known before still is.
    """
    results = {}
    for stream in now:
        earlier = before.get(stream.stream)
        tells_nothing = stream.verdict == "not compared"
        if earlier is not None and earlier.verdict == "different" and not is_whole:
            tells_nothing |= stream.verdict == "equal"
        results[stream.stream] = (
            replace(earlier, reason=stream.reason, why_not=stream.why_not)
            if tells_nothing and earlier is not None
            else stream
        )
    return results

"""Results of comparisons, kept in the state directory for people: the newest so many of tables, and of each
lane, without values.

An instance that starts knows from them when the next comparison is due, and which differences are known.
What somebody compares by hand puts no comparison off; a sample that is equal does not make a known difference
forgotten, and what an earlier version of a table was changes nothing that is known of it now. Nor do results
that come after it, however many: the one that tells of it is kept beside the newest, and those that say what
else is known of the streams in it, so that nothing that was settled since comes back with it. That is no more
than one for each stream.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from penstock import durable
from penstock.config import Config
from penstock.core.stream import StreamId
from penstock.core.verify_report import TABLES, VerifiedStream, VerifyReport

KEPT = 50
ROWS_KEPT = 100  # of each stream, whatever was asked to be told
_DIRECTORY = "verify"


def changed_at(state: Path) -> int:
    """Another number whenever a result came or went."""
    try:
        return (state / _DIRECTORY).stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def save(state: Path, report: VerifyReport) -> Path:
    directory = state / _DIRECTORY
    directory.mkdir(parents=True, exist_ok=True)
    document = {"format_version": 1, **report.without_values().to_json()}
    for stream in document["streams"]:
        more = stream["differences"][ROWS_KEPT:]
        stream["differences"] = stream["differences"][:ROWS_KEPT]
        stream["left_out"] += len(more)
    path = _created(directory, report, durable.to_json_bytes(document))
    old = sorted(each for each in directory.glob("*.json") if _kind(each) == _kind(path))[:-KEPT]
    needed = _needed(state) if old else frozenset()
    for each in old:
        if each.stem not in needed:
            each.unlink(missing_ok=True)
    return path


def _created(directory: Path, report: VerifyReport, content: bytes) -> Path:
    """Under the moment and, since several may begin in one second, a number above those that are there."""
    moment = report.began_at.replace(":", "").removesuffix("+0000")
    kind = "" if report.of == TABLES else f"-{report.of}"
    while True:
        taken = [_number(each) for each in directory.glob(f"{moment}.*Z{kind}.json")]
        path = directory / f"{moment}.{max(taken, default=-1) + 1:03}Z{kind}.json"
        if durable.create_exclusively(path, content):
            return path


def _number(result: Path) -> int:
    """Of a result among those of its second."""
    number = result.stem.partition("Z")[0].rpartition(".")[2]
    return int(number) if number.isdecimal() else -1


def _needed(state: Path) -> frozenset[str]:
    """Results without which a difference would be forgotten, or one come back that was settled."""
    documents = dict(kept(state))
    found = _known_by(documents)
    needed: set[str] = set()
    new = {each.run for each in found.values() if each.stream.verdict == "different"}
    while new := new - needed:
        needed |= new
        streams = (each for run in new for each in _streams(documents[run]))
        new = {found[each.name].run for each in streams if each.name in found}
    return frozenset(needed)


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


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a stream by the run that told it. `since`: what a later run said of it that changes
    nothing: why it could not be compared, or that a part of it is equal."""

    stream: VerifiedStream
    run: str
    began_at: str
    since: str = ""


def newest_known(state: Path) -> dict[str, Known]:
    """Of each stream's table, and of what lanes have sent of it, by the results that are kept."""
    return _known_by(dict(kept(state)))


def _known_by(documents: Mapping[str, dict[str, Any]]) -> dict[str, Known]:
    """`documents`: by the names of their runs, the newest first."""
    results: dict[str, Known] = {}
    for run, document in reversed(list(documents.items())):
        if document.get("at") is not None:
            continue
        is_whole = document.get("sample", 1.0) >= 1.0
        before = {name: each.stream for name, each in results.items()}
        now = {each.name: each for each in _streams(document)}
        if document.get(
            "is_all_of_lane"
        ):  # shapes come and go: no one can settle a difference of one that went
            results = {
                name: each
                for name, each in results.items()
                if each.stream.lane != document["of"] or name in now
            }
        for name, known in together(before, now.values(), is_whole=is_whole).items():
            if known is now[name] or before[name].verdict == "not compared":
                results[name] = Known(now[name], run, document["began_at"])
            else:
                since = now[name].reason or "a part of its rows was found equal"
                results[name] = replace(results[name], stream=known, since=since)
    return results


def known(state: Path) -> dict[str, VerifiedStream]:
    """What is known of each stream's table."""
    return {name: each.stream for name, each in newest_known(state).items() if not each.stream.lane}


def of_pipeline(config: Config, streams: Iterable[str]) -> frozenset[str]:
    """Those that are streams of the pipeline by its file. Results of others are kept and are no trouble."""
    ids = [StreamId.parse(name) for name in streams]
    return frozenset(each.table for each in config.resolve_streams(ids, some_may_be_gone=True))


def _streams(document: dict[str, Any]) -> list[VerifiedStream]:
    return [VerifiedStream.from_json(each) for each in document["streams"]]


def together(
    before: Mapping[str, VerifiedStream], now: Iterable[VerifiedStream], *, is_whole: bool = True
) -> dict[str, VerifiedStream]:
    """What is known of streams that were to be compared now; of one that could not be, what was before.

    `is_whole`: every row was compared. Of a part that is equal, a difference that was known before still is.
    """
    results = {}
    for stream in now:
        earlier = before.get(stream.name)
        # A table that is compared no more has no difference that anybody could settle.
        is_settled = stream.why_not == "by its mode" and not stream.lane
        tells_nothing = stream.verdict == "not compared" and not is_settled
        if earlier is not None and earlier.verdict == "different" and not is_whole:
            tells_nothing |= stream.verdict == "equal"
        results[stream.name] = (
            replace(earlier, reason=stream.reason, why_not=stream.why_not)
            if tells_nothing and earlier is not None
            else stream
        )
    return results

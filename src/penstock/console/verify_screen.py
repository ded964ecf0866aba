"""Comparisons of tables with their source, and of what lanes have sent with the log, on the screen: what is
known of each stream, and every run that is kept (`verify/` of the state directory).

A key is a value of a row: which rows differ is told to who may act, and how many, and in which columns, to
all. Results are bounded where they are made: so many runs are kept, each with so many rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.config import Config
from penstock.core.errors import ConfigError
from penstock.core.verify_report import TABLES, VerifiedStream
from penstock.verify import reports


def runs(config: Config) -> dict[str, Any]:
    """The runs, newest first, and what is known of each stream: a difference until all rows are equal."""
    found = reports.newest_known(config.state)
    there = reports.of_pipeline(
        config, [each.stream.stream for each in found.values() if not each.stream.lane]
    )
    streams = []
    for _, known in sorted(found.items()):
        if not known.stream.lane and known.stream.stream not in there:
            continue
        # Why a later run could not compare it is told as such, and not as what the run that did has to say.
        told = {**_told(known.stream), "run": known.run, "at": known.began_at}
        streams.append({**told, "reason": "", "since": known.since} if known.since else told)
    return {
        "runs": [_described(name, document) for name, document in reports.kept(config.state)],
        "streams": streams,
    }


def run(state: Path, name: str) -> dict[str, Any]:
    document = _document(state, name)
    return {**_described(name, document), "shown": [_told(each) for each in _streams(document)]}


def rows(state: Path, name: str, stream: str) -> dict[str, Any]:
    """The rows of a stream that were told one by one: keys, and the columns that differ."""
    for each in _document(state, name)["streams"]:
        if each["stream"] == stream:
            shown = [
                {**row, "columns": [column["name"] for column in row["columns"]]}
                for row in each["differences"]
            ]
            lane = each.get("lane", "")
            return {"stream": stream, "lane": lane, "shown": shown, "left_out": each["left_out"]}
    raise ConfigError("That run did not compare this stream.", stream=stream)


def _document(state: Path, name: str) -> dict[str, Any]:
    for _, document in reports.kept(state, name):
        return document
    raise ConfigError("This run is not kept any more.", remedy="Look at the list of runs again.")


def _streams(document: dict[str, Any]) -> list[VerifiedStream]:
    return [VerifiedStream.from_json(each) for each in document["streams"]]


def _described(name: str, document: dict[str, Any]) -> dict[str, Any]:
    streams = _streams(document)
    verdicts = [each.verdict for each in streams]
    return {
        "run": name,
        "at": document["began_at"],
        "seconds": document["seconds"],
        "sample": document["sample"],
        "of": document.get("of", TABLES),
        "streams": len(streams),
        **{verdict: verdicts.count(verdict) for verdict in ("equal", "different", "not compared")},
        "rows": sum(each.source_rows for each in streams),
    }


def _told(stream: VerifiedStream) -> dict[str, Any]:
    names = (
        "stream", "verdict", "reason", "position", "against", "source_rows", "table_rows", "dead_letters",
        "missing", "extra", "different", "doubled", "out_of_order", "gone", "lane", "name", "notes",
        "columns", "columns_not_compared", "repaired",
    )  # fmt: skip
    told = {name: getattr(stream, name) for name in names}
    return {**told, "more": stream.differing_at_least - stream.found if stream.verdict == "different" else 0}

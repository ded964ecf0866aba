"""Which snapshots of an Iceberg table may go, and what must be written down before they do.

Kept are: what any reference names, the newest ones of `main`, whatever is young enough, and all of a branch
that is not on `main` as well: a pending load, or somebody's own. Of those that are no more than young there
may be `Most`, since every commit writes all of them down again. Everything else is named to Iceberg one by
one, so that a commit in between makes no difference to what goes.

Which of our commits a snapshot holds is told by the nearest one among its ancestors (`iceberg_history`). So
before the ancestors of a kept snapshot go, its answer is written into a table property, as long as it is not
a commit of ours itself. Such an answer never changes, because the ancestors of a snapshot do not; it may be
written at any time and by anybody, and a crash before or after the expiry leaves it true. Hence for every
kept snapshot, the head and whatever the table may be rolled back to, the answer after the expiry is the one
before. Two that do this at once (a leader that was replaced in the midst of it, and its successor) take
nothing from each other: each answer is a property of its own, which is removed when its snapshot is gone and
not before. So it makes no difference that a REST catalog, which compares the references that a commit moves
(`iceberg_staging`), takes both: this one moves none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from penstock.destinations import iceberg_record as text
from penstock.destinations.iceberg import IcebergTable
from penstock.destinations.iceberg_history import HistoryGapError, newest_commit
from penstock.destinations.iceberg_java import Attempt, Metadata, StaleMetadataError, commit_outcomes
from penstock.destinations.iceberg_staging import MAIN

TRIES_MAX = 10  # rounds may commit in between


@dataclass(frozen=True, slots=True)
class Version:
    """A snapshot."""

    snapshot_id: int
    parent_id: int | None
    at_ms: int
    is_ours: bool


@dataclass(frozen=True, slots=True)
class Reference:
    snapshot_id: int
    is_branch: bool


@dataclass(frozen=True, slots=True)
class Most:
    """So many of the newest stay for being young, and all that readers may have opened."""

    snapshots: int
    older_than_ms: int  # younger ones may be being read


@dataclass(frozen=True, slots=True)
class History:
    versions: Mapping[int, Version]
    references: Mapping[str, Reference]

    @classmethod
    def from_json(cls, metadata: Mapping[str, Any], now_ms: int) -> History:
        """As a metadata file has it, without references that Iceberg drops at the next expiry."""
        versions = {
            each["snapshot-id"]: Version(
                each["snapshot-id"],
                each.get("parent-snapshot-id"),
                each["timestamp-ms"],
                text.SUMMARY in each.get("summary", {}),
            )
            for each in metadata.get("snapshots", ())
        }
        references = {
            name: Reference(each["snapshot-id"], each["type"] == "branch")
            for name, each in metadata.get("refs", {}).items()
            if each["snapshot-id"] in versions
            and not _has_lapsed(each, versions[each["snapshot-id"]].at_ms, now_ms, name)
        }
        return cls(versions, references)

    def ancestors(self, snapshot_id: int | None) -> Iterator[int]:
        """The snapshot and those it was made on top of, as far as they are there."""
        while snapshot_id in self.versions:
            assert snapshot_id is not None
            yield snapshot_id
            snapshot_id = self.versions[snapshot_id].parent_id


def _has_lapsed(reference: Mapping[str, Any], at_ms: int, now_ms: int, name: str) -> bool:
    age_max = reference.get("max-ref-age-ms")
    return name != MAIN and age_max is not None and now_ms - at_ms > age_max


def to_expire(history: History, older_than_ms: int, snapshots_min: int, most: Most | None = None) -> set[int]:
    main = history.references.get(MAIN)
    line = list(history.ancestors(main.snapshot_id if main is not None else None))
    by_age = sorted(history.versions.values(), key=lambda each: each.at_ms)
    kept = {each.snapshot_id for each in by_age if each.at_ms >= older_than_ms}
    if most is not None:
        # When: until then whoever began to read read that one. What a branch puts on top of a snapshot of
        # `main` makes no difference to that; of one that `main` has left, its last successor is taken.
        superseded = {each.parent_id: each.at_ms for each in by_age}
        superseded |= {each.parent_id: each.at_ms for each in map(history.versions.__getitem__, line)}
        kept -= {
            each.snapshot_id
            for each in by_age[: -most.snapshots]
            if superseded.get(each.snapshot_id, each.at_ms) < most.older_than_ms
        }
    kept |= set(line[:snapshots_min])
    for reference in history.references.values():
        kept.add(reference.snapshot_id)
        if reference.is_branch and reference is not main:
            kept |= set(history.ancestors(reference.snapshot_id)) - set(line)
    return set(history.versions) - kept


def cut_off(history: History, expired: set[int]) -> list[int]:
    """Kept snapshots of others whose ancestors will not be there to be asked, the oldest first."""
    kept = [version for version in history.versions.values() if version.snapshot_id not in expired]
    there = {version.snapshot_id for version in kept}
    found = [each for each in kept if not each.is_ours and each.parent_id not in (None, *there)]
    return [each.snapshot_id for each in sorted(found, key=lambda each: each.at_ms)]


def prepare_expiry(
    table: IcebergTable, older_than_ms: int, snapshots_min: int, now_ms: int, most: Most | None = None
) -> list[int]:
    """The snapshots that may go; what they tell of those that stay is durable when this returns."""
    if table.handle.metadata() is None:
        return []
    for _ in range(TRIES_MAX):
        attempt = Attempt(table.catalog.java, str(table.stream), table.handle.table.operations())
        parser = table.catalog.java.iceberg("TableMetadataParser")
        document = json.loads(str(parser.toJson(attempt.base.java)))
        history = History.from_json(document, now_ms)
        expired = to_expire(history, older_than_ms, snapshots_min, most)
        answers = _not_written_down(attempt.base, history, expired)
        if not answers:
            break
        outlived = text.outlived(document.get("properties", {}), history.versions.keys())
        attempt.set_properties({**text.cut_off_properties(answers), **dict.fromkeys(outlived)})
        with suppress(StaleMetadataError), commit_outcomes(table.stream):
            attempt.commit()
            break
    else:
        raise StaleMetadataError
    return sorted(expired)


def _not_written_down(metadata: Metadata, history: History, expired: set[int]) -> dict[int, str | None]:
    """The answers for all that will be cut off. What is known of one was written down by an expiry before:
    of commits of ours, whose records are known for a while only, none is cut off."""
    known = text.Known(metadata.property)
    answers: dict[int, str | None] = {}
    for snapshot_id in cut_off(history, expired) if expired else ():
        if snapshot_id not in known:
            with suppress(HistoryGapError):  # somebody else's expiry has made it unknowable before
                answers[snapshot_id] = newest_commit(snapshot_id, metadata.find(text.SUMMARY), known)
    return answers

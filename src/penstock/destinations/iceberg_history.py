"""Which of our commits a table holds: the newest one among the ancestors of its head.

Every commit of ours leaves its record in the summary of the snapshot it makes. The table holds what the
nearest such ancestor of the branch's head says, whoever committed after it:

    S1 (ours) ── S2 (ours) ── S3 (compaction by someone)      head S3: the table holds S2's commit
           └──── S4 (foreign)                                 rolled back to S1, head S4: it holds S1's

So a commit that was rolled back counts as not made, and compaction changes nothing. Snapshots may have
expired between the head and our commit. Then the answer is in `known`, what table properties say of single
snapshots (our latest commits, and what our own expiry left without ancestors), or in older metadata files,
where the expired ones still stand. What a snapshot holds never changes, so `known` is right whenever it has
an answer. If none has, nobody can tell whether the table was rolled back, and `HistoryGapError` says so
instead of guessing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Ancestor:
    snapshot_id: int
    parent_id: int | None
    commit: str | None  # our record in its summary, if the commit was ours


class Answers(Protocol):
    """Of snapshots, by their ids: the record of the newest commit of ours that each contains, or None."""

    def __contains__(self, snapshot_id: object, /) -> bool: ...

    def __getitem__(self, snapshot_id: int, /) -> str | None: ...


class HistoryGapError(Exception):
    """Snapshots between the head and our newest commit are gone without a trace."""


def newest_commit(head: int | None, find: Callable[[int], Ancestor | None], known: Answers) -> str | None:
    """The record of the newest commit of ours that the head contains; None if it contains none.

    `find` gives a snapshot, from the table's metadata or from older ones; None: it is not known any more.
    """
    at = head
    while at is not None:
        if at in known:
            return known[at]
        snapshot = find(at)
        if snapshot is None:
            raise HistoryGapError
        if snapshot.commit is not None:
            return snapshot.commit
        at = snapshot.parent_id
    return None

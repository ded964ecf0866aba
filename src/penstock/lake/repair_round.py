"""Rounds that put rows right which were found wrong at a position of the source's log (`penstock.verify`).

The tables are taken to just before the position by rounds as ever, and over the last number by one that is of
repairs alone: `repair` says why that is exact, and what a crash leaves. Where streams share a position, that
round is of all of them, and none may have a change in that number; where each has its own, it is a round of
each by itself, for which changes of others are no matter.

A log that may be ahead of its positions (MongoDB) is no other case. Nothing was found in the keys for which
it is (`verify.moved`): they stay as the log up to the position has them, and what it has behind that writes
them whole. Of all other keys the log has up to there what the source has, and what is later comes behind it.
"""

from __future__ import annotations

from penstock import failpoints
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.lake.apply import Outcome, StreamWork, merge
from penstock.lake.following import Following
from penstock.lake.lane_state import LaneState
from penstock.lake.repair import Repairs, just_before, repaired
from penstock.ledger import rewinding, two_phase
from penstock.ledger.state import StateDocument
from penstock.log.columns import TX
from penstock.log.reader import LogRange, read_rows

_AGAIN = "Run the same command again"
_CHANGED = f"something was committed right before the position at which it was compared. {_AGAIN}."
_AT_THE_END = (
    "its table stands where the source's log ends. "
    f"{_AGAIN} after a sync, when something was committed at the source."
)
_NOT_THERE = f"its table could not be taken to the position at which it was compared. {_AGAIN} after a sync."


class RepairRounds:
    def __init__(self, lane: LaneState, following: Following) -> None:
        self._lane = lane
        self._following = following

    def carry_out(self, position: Lsn, repairs: Repairs) -> dict[StreamId, str]:
        """Put rows right that were found wrong at `position`, beyond which no table is. Of streams that are
        left as they are, why: what is said behind "was not repaired:"."""
        before = just_before(position)
        left = dict.fromkeys(self._changed_right_before(position, repairs), _CHANGED)
        if len(left) < len(repairs):
            self._following.take_to(before)
        with self._lane.rounds:
            for stream in sorted(repairs.keys() - left):
                if (why := self._why_not_at(stream, before)) is not None:
                    left[stream] = why
            streams = sorted(repairs.keys() - left)
            if streams:
                self._round(before, position, {stream: repairs[stream] for stream in streams})
        return left

    def _changed_right_before(self, position: Lsn, repairs: Repairs) -> set[StreamId]:
        before = just_before(position)
        nearby = self._lane.log.streams_with_changes(before, position)
        changed = {stream for stream, found in nearby.items() if _has_any(found, before, position)}
        if self._lane.ledger.document.dialect.shares_position:
            return set(repairs) if changed else set()
        return changed & repairs.keys()

    def _why_not_at(self, stream: StreamId, position: Lsn) -> str | None:
        """Why no round of this stream can begin there; None: one can."""
        if self._lane.is_paused(stream):
            return f"it is paused. `penstock resume {stream}` lets it go on; then run the same command again."
        if self._following.is_at(stream, position):
            return None
        document = self._lane.ledger.document
        is_beyond = stream in document.global_streams and (document.lsn or position) > position
        return _AT_THE_END if is_beyond else _NOT_THERE

    def _round(self, start: Lsn, to: Lsn, repairs: Repairs) -> None:
        document = self._lane.ledger.document
        is_shared, streams = document.dialect.shares_position, sorted(repairs)
        prepared = _prepared(document, to, streams)
        for stream in streams:  # with it, since recovery does not know that the round was a repair
            prepared = rewinding.mended(prepared, stream, to)
        self._lane.ledger.write(prepared)
        failpoints.reach("cdc.prepared")

        def make(work: StreamWork) -> Outcome:
            return self._made(work, repairs)

        for stream in streams:
            work = self._following.work(stream, start, to)
            self._following.commit(work, make(work), make)
            failpoints.reach("cdc.committed")
            document = self._lane.ledger.document
            self._lane.ledger.write(
                two_phase.stream_committed(document, stream, to)
                if is_shared
                else two_phase.finish_stream_round(document, stream)
            )
        if is_shared:
            self._lane.ledger.write(two_phase.finish_round(self._lane.ledger.document))

    def _made(self, work: StreamWork, repairs: Repairs) -> Outcome:
        stream = work.stream
        for file in work.files:  # rows may be elsewhere in it than its index has them
            work.table.index_path(file).unlink(missing_ok=True)
        return merge(
            self._following.stages,
            [work],
            lambda staging: {stream: [repaired(work, repairs[stream], staging[stream])]},
        )[stream]


def _prepared(document: StateDocument, to: Lsn, streams: list[StreamId]) -> StateDocument:
    """Step (1) of a round of these streams, or of each of them."""
    if document.dialect.shares_position:
        return two_phase.prepare_round(document, to, streams)
    for stream in streams:
        document = two_phase.prepare_stream_round(document, stream, to)
    return document


def _has_any(found: LogRange, after: Lsn, to: Lsn) -> bool:
    if found.truncates or found.leaf_truncates or found.altered:
        return True
    return any(True for _ in read_rows(found.files, after, to, [TX]))

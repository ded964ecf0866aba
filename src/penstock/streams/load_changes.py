"""Changes of a stream that loads, which its lane has passed: read again from the log, up to where that is.

Items of the tail are small while much is written; they are told in batches of some size, so that a stream
gains on its lane.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from penstock.capture.tail_reader import TailReader
from penstock.capture.transactions import UPDATE, ChangeRows, MessageConverter
from penstock.core.position import Lsn
from penstock.log import columns as log_columns
from penstock.streams.events import Events
from penstock.streams.undecided import FindUndecided, Undecided

_OLD_KEY = ord("k")
_BATCH_BYTES = 1 << 20

Encode = Callable[[ChangeRows], Sequence[Events]]


@dataclass(frozen=True, slots=True)
class ChangesAgain:
    """`point`: all whole transactions up to there are told by this one or before; `is_whole`: and no more.

    `lacks`: an update among them does not carry all values of a row that may not have been told. `untold`: a
    transaction behind them of which the log does not tell what it changed; then nothing comes behind.
    """

    events: Sequence[Events]
    point: Lsn
    is_whole: bool
    lacks: bool
    untold: int | None = None


def changes_again(
    reader: TailReader,
    encode: Encode,
    point: Lsn,
    to: Lsn,
    *,
    by_pages: bool,
    undecided: FindUndecided = lambda _: (),
) -> Generator[ChangesAgain | None]:
    """Those with `point` <= tx < `to`; None is a sign of life. `by_pages`: how the rows were read."""
    start = point
    converter, noting = MessageConverter(), Undecided(undecided)
    events: list[Events] = []
    lacks = False
    with contextlib.closing(reader.follow(point)) as items:  # type: ignore[type-var]  # a generator
        for item in items:
            if item.end <= point:
                yield None
                continue
            for fragment in map(noting.noted, converter.fragments(item)):
                missing = (tx for txs in fragment.untold.values() for tx in txs)
                untold = min((tx for tx in missing if start <= tx < to), default=None)
                until = to if untold is None else Lsn(untold)
                found = (changes.between(start, until) for changes in fragment.changes)
                part = [each for each in found if each is not None]
                events += [made for each in part for made in encode(each)]
                lacks |= any(_is_lacking(each, by_pages=by_pages) for each in part)
                if fragment.is_last:
                    point = min(item.end, to)
                is_end = fragment.is_last and item.end >= to
                if fragment.is_last and untold is not None:
                    yield ChangesAgain(events, Lsn(untold), True, lacks, untold)
                    return
                if is_end or sum(each.bytes for each in events) >= _BATCH_BYTES:
                    yield ChangesAgain(events, point, fragment.is_last, lacks)
                    events, lacks = [], False
            if item.end >= to:
                return


def _is_lacking(changes: ChangeRows, *, by_pages: bool) -> bool:
    lists = changes.rows.column(log_columns.UNCHANGED)
    if lists.null_count == len(lists):
        return False
    if by_pages:
        return True
    lacking = lists.is_valid().to_numpy(zero_copy_only=False)
    return bool((lacking & (changes.op == UPDATE) & (changes.old_kind == _OLD_KEY)).any())

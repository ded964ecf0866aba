"""What a bucket shows: which records are missing, there too often, out of order, different, or nobody's.

A function of values. Rows of both sides are put side by side by their names; of each name there is one that
is expected, and should be one that was found.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.streams.comparison.spilled import Rows
from penstock.streams.events import Int64s
from penstock.streams.rewinds import Rewind

Places = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]
LetterName = tuple[int, int, int, bool]  # stream, tx, op, whether it is a tombstone


@dataclass(frozen=True, slots=True)
class Rules:
    """What is compared, and what is excused.

    `start` and `end`: of each stream's range, by its number. `gone_to`: of (route, partition), up to which tx
    records were deleted; -1 as a partition: anywhere in the topic.
    """

    start: Int64s
    end: Int64s
    letters: Collection[LetterName] = frozenset()
    rewinds: Collection[Rewind] = ()
    gone_to: Mapping[tuple[int, int], int] = field(default_factory=dict)
    keeps_order: bool = True
    keys_may_move: bool = False

    def inside(self, rows: Rows) -> Rows:
        return rows.take(
            np.flatnonzero((rows.tx >= self.start[rows.stream]) & (rows.tx < self.end[rows.stream]))
        )


@dataclass(frozen=True, slots=True)
class Judged:
    """Places of rows: `missing`, `gone` and `dead` among those expected, the others among those found."""

    expected: Rows
    found: Rows
    missing: Places
    gone: Places
    dead: Places
    extra: Places
    doubled: Places
    out_of_order: Places
    different: Places


def judge(expected: Rows, found: Rows, rules: Rules) -> Judged:
    expected, found = rules.inside(expected), rules.inside(found)
    count = len(expected)
    columns = [
        np.concatenate([getattr(expected, name), getattr(found, name)])
        for name in ("stream", "tx", "op", "is_tombstone")
    ]
    is_found = np.arange(count + len(found)) >= count
    at = np.concatenate([np.zeros(count, np.int64), found.at])
    order = np.lexsort((at, is_found, *reversed(columns)))
    group = np.zeros(len(order), np.int64)
    if len(order):
        news = [column[order][1:] != column[order][:-1] for column in columns]
        group[1:] = np.cumsum(np.logical_or.reduce(news))
    groups = int(group[-1]) + 1 if len(group) else 0
    first = np.searchsorted(group, np.arange(groups))
    wanted = np.bincount(group[~is_found[order]], minlength=groups)
    there = np.bincount(group[is_found[order]], minlength=groups)
    nth = np.arange(len(order)) - first[group]  # in its group, those expected first
    ours, theirs = ~is_found[order], is_found[order]

    lacking = order[ours & (nth >= there[group])]
    missing, gone, dead = _excused(expected, lacking, rules)
    copy = nth - wanted[group]
    known = theirs & (wanted[group] > 0)
    allowed = wanted[group] * _times_sent(np.concatenate([expected.tx, found.tx])[order], rules)
    doubled = order[known & (copy >= allowed)] - count
    extra = order[theirs & (wanted[group] == 0)] - count
    partner = order[first[group]]
    pairs = np.flatnonzero(known)
    same = _same(expected, found, partner[pairs], order[pairs] - count)
    different = order[pairs[~same]] - count
    firsts = np.sort(order[known & (copy == 0)] - count)
    disordered = _out_of_order(found, firsts, rules) if rules.keeps_order else firsts[:0]
    return Judged(expected, found, missing, gone, dead, extra, doubled, disordered, different)


def _excused(expected: Rows, lacking: Places, rules: Rules) -> tuple[Places, Places, Places]:
    """What is missing of what was not found, what Kafka has deleted, and what is a dead letter."""
    is_dead = expected.at[lacking] > 0
    if rules.letters and len(lacking):
        transactions = np.array(sorted({name[1] for name in rules.letters}), np.int64)
        for row in np.flatnonzero(np.isin(expected.tx[lacking], transactions)).tolist():
            each = lacking[row]
            name = (
                int(expected.stream[each]),
                int(expected.tx[each]),
                int(expected.op[each]),
                bool(expected.is_tombstone[each]),
            )
            is_dead[row] |= name in rules.letters
    is_gone = np.zeros(len(lacking), np.bool_)
    if rules.gone_to:
        bounds = np.full(len(lacking), -1, np.int64)
        for (route, place), bound in rules.gone_to.items():
            where = (expected.route[lacking] == route) & (expected.place[lacking] == place)
            bounds[where] = bound
        is_gone = ~is_dead & (expected.tx[lacking] <= bounds)
    return lacking[~is_dead & ~is_gone], lacking[is_gone], lacking[is_dead]


def _times_sent(tx: Int64s, rules: Rules) -> Int64s:
    times = np.ones(len(tx), np.int64)
    for rewind in rules.rewinds:
        times += (tx >= int(rewind.to)) & (tx < int(rewind.held))
    return times


def _same(expected: Rows, found: Rows, here: Places, there: Places) -> Flags:
    same = np.ones(len(here), np.bool_)
    for name in ("high", "low", "kind", "route"):
        same &= getattr(expected, name)[here] == getattr(found, name)[there]
    ours, theirs = _keys(expected, found)
    equal: Flags = same & (ours[here] == theirs[there])
    return equal


def _keys(expected: Rows, found: Rows) -> tuple[Int64s, Int64s]:
    """Keys as numbers, equal for equal keys on both sides; -1: it has none."""
    numbers = pa.concat_arrays([expected.key, found.key]).dictionary_encode().indices
    whole = numbers.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return whole[: len(expected)], whole[len(expected) :]


def _out_of_order(found: Rows, rows: Places, rules: Rules) -> Places:
    """Records that do not lie behind the one before them in the log, of those with the same key."""
    keys = found.key.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    rows = rows[keys[rows] >= 0]
    names = (found.is_tombstone[rows], found.op[rows], found.tx[rows])
    rows = rows[np.lexsort((*names, found.route[rows], found.stream[rows], keys[rows]))]
    before, after = rows[:-1], rows[1:]
    same = keys[before] == keys[after]
    for column in (found.stream, found.route):
        same &= column[before] == column[after]
    stays = found.place[before] == found.place[after]
    wrong = stays & (found.at[before] > found.at[after])
    if not rules.keys_may_move:
        wrong |= ~stays
    disordered: Places = after[same & wrong]
    return disordered

"""Folding a batch of changes for a table that keeps deleted rows, with the time they ended (`deletes: soft`).

The table has for each key the newest version that the source ever showed us, and `_deleted_at`: null if the
row is there, else when the transaction that deleted it was committed. With the words of `fold`:

    after  =  before (each live row ended at the first truncate)  −  rows with a key in `keys`
                                                                  +  `rows`  +  completed

Why it holds, beyond what `fold` proves:

1. A delete changes nothing of a row but its end, and only the first one does: a row that has ended keeps its
   time. So if the batch has the version that was deleted, the row is that one with its end; if it has not
   (the source sends no more than the key), it is the row that the target holds, `as_held`, with the time it
   has already or else the batch's. If the target has none, there is nothing to keep.
2. A key that is given away (an update of the key) ends under the old key like a deleted one; a row under a
   key that had ended lives again with its own values alone.
3. A truncate is a delete of every live row. Keys that the batch names are in `keys` with what their history
   came to; all other rows of the target are ended where its files are written again: `truncated_at_us`.
4. A value that was not sent is the one of the live version that the update replaced. A row that has ended is
   never asked: it left the stream's sight (a filter, say), and may have changed meanwhile.
5. A row whose newest version does not fit the table (`bad`, a dead letter) is not there, neither live nor
   ended: any older version would pass for the newest. So it is with a row that ended lacking a value: it was
   never whole in the table.

Where the existence of a deferrable key cannot be told, the whole history waits for the target's keys.

*Again* (see `fold`): a row that the batch ends lies in the target as ended, by that very change; so rows that
have ended are asked for values too. Not where a deferrable key was truncated: which rows a key had then is
told by nothing any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.compiling import read_only
from penstock.lake import replay, soft_replay
from penstock.lake.change_set import TRUNCATE, Changes, Numbers
from penstock.lake.coded import Coded, encode, with_column
from penstock.lake.fold import Completed, Folded, assemble, complete, only_whole_inserts
from penstock.lake.keys import KeySet, flat
from penstock.lake.pending import NAMES, Pending
from penstock.lake.replay import TARGET, UNKNOWN
from penstock.lake.soft_replay import History
from penstock.lake.target import DELETED_AT


def fold_softly(changes: Changes, key: Sequence[str], deferrable_key: bool) -> Folded:
    """`changes.commit_ts` is given."""
    if only_whole_inserts(changes):
        return Folded(False, changes.rows.select(list(key)), as_live(changes.rows))
    batch = _Batch.of(changes, key)
    at = batch.first_truncate_us
    if not deferrable_key:
        return replace(batch.assemble(batch.replay_last()), truncated_at_us=at)
    existed = batch.infer_existence()
    if (existed == UNKNOWN).any():
        pending = Pending.of_changes(changes, batch.coded.keys)
        return Folded(False, batch.coded.keys, as_live(pending.rows), pending, at)
    return replace(batch.assemble(batch.replay_queues(existed)), truncated_at_us=at)


def complete_softly(pending: Pending, target_rows: pa.Table, *, again: bool = False) -> Completed:
    """As `complete`; `target_rows` have `_deleted_at`."""
    if pending.changes is not None:
        return _complete_changes(pending.changes, pending.lookup.column_names, target_rows, again=again)
    assert pending.as_held is not None
    rest = ~pending.as_held
    is_live = flat(target_rows.column(DELETED_AT.name)).is_null()
    done = complete(_filter(pending, rest), target_rows if again else target_rows.filter(is_live))
    held = _ended(_filter(pending, pending.as_held), target_rows)
    return replace(done, rows=pa.concat_tables([done.rows, held.cast(done.rows.schema)]))


def as_live(rows: pa.Table) -> pa.Table:
    """Rows of the source's columns as rows that have not ended."""
    return rows.append_column(DELETED_AT, pa.nulls(rows.num_rows, DELETED_AT.type))


def end_live_rows(rows: pa.Table, at_us: int | None) -> pa.Table:
    """The rows of a table that a truncate took (None: none did); those that had ended keep their time."""
    if at_us is None:
        return rows
    at = pa.scalar(at_us, DELETED_AT.type)
    return with_column(rows, DELETED_AT.name, pc.coalesce(flat(rows.column(DELETED_AT.name)), at))


@dataclass(frozen=True, slots=True)
class _Batch:
    """The changes of rows, coded, and the truncates between them."""

    coded: Coded
    truncates: Numbers  # how many changes precede each
    first_truncate_tx: int  # -1: there is none
    ends: pa.Array  # the commit time of each change, then of each truncate

    @classmethod
    def of(cls, changes: Changes, key: Sequence[str]) -> _Batch:
        is_truncate = changes.op == TRUNCATE
        at = np.flatnonzero(is_truncate)
        events = changes.filter(~is_truncate)
        assert changes.commit_ts is not None
        ends = pa.concat_arrays([events.commit_ts, changes.commit_ts.take(pa.array(at))])
        first_tx = int(changes.tx[at[0]]) if at.size else -1
        return cls(encode(events, key), read_only(at - np.arange(at.size)), first_tx, ends)

    @property
    def first_truncate_us(self) -> int | None:
        if not self.truncates.size:
            return None
        return int(self.ends[len(self.coded.changes)].cast(pa.int64()).as_py())

    def replay_last(self) -> History:
        coded, coming = self.coded, self._coming_truncates()
        history: History = soft_replay.replay_last(
            coded.changes.op, coded.old, coded.new, coded.bad, coded.keys.num_rows, self.truncates, coming
        )
        return history

    def replay_queues(self, existed: NDArray[np.int8]) -> History:
        coded, coming = self.coded, self._coming_truncates()
        history: History = soft_replay.replay_queues(
            coded.changes.op, coded.old, coded.new, coded.bad, existed, self.truncates, coming
        )
        return history

    def _coming_truncates(self) -> Numbers:
        coming: Numbers = read_only(soft_replay.coming_truncates(self.truncates, len(self.coded.changes)))
        return coming

    def infer_existence(self) -> NDArray[np.int8]:
        """What the changes before the first truncate tell; a key they do not name may as well have had a row.

        In either case the truncate leaves that key without one, and `as_held` asks the target.
        """
        coded, changes, keys = self.coded, self.coded.changes, self.coded.keys.num_rows
        first = int(self.truncates[0]) if self.truncates.size else len(changes)
        existed: NDArray[np.int8] = replay.infer_existence(
            changes.op[:first],
            coded.old[:first],
            coded.new[:first],
            changes.tx[:first],
            keys,
            self.first_truncate_tx,
        )
        named = np.zeros(keys, np.bool_)
        named[coded.old[:first]] = named[coded.new[:first]] = True
        return np.where(named, existed, 1).astype(np.int8)

    def assemble(self, history: History) -> Folded:
        version, end, predecessor = history
        coded = self.coded
        of_key = self.ends.take(pa.array(end, mask=end < 0))
        # Of the rows of a key only the one that it shows is taken.
        rows = coded.changes.rows.append_column(DELETED_AT, of_key.take(pa.array(coded.new)))
        folded = assemble(replace(coded, changes=replace(coded.changes, rows=rows)), version, predecessor)
        held = version == TARGET
        pending = folded.pending
        if held.any() or pending is not None:
            has_ended = pa.array(held)
            kept = _as_held(coded.keys.filter(has_ended), of_key.filter(has_ended), rows.schema)
            pending = kept if pending is None else _joined(pending, kept)
        return replace(folded, keys=coded.keys, pending=pending)


def _complete_changes(
    changes: Changes, key: Sequence[str], target_rows: pa.Table, *, again: bool
) -> Completed:
    """A deferrable key, now that it is known which keys had a live row."""
    batch = _Batch.of(changes, key)
    live = target_rows.filter(flat(target_rows.column(DELETED_AT.name)).is_null())
    held = KeySet(live.select(list(key))).contains(batch.coded.keys)
    existed = batch.infer_existence()
    folded = batch.assemble(batch.replay_queues(np.where(existed == UNKNOWN, held, existed).astype(np.int8)))
    if folded.pending is None:
        return Completed(folded.rows, folded.rows.slice(0, 0).append_column("_missing", pa.array([], NAMES)))
    pending = folded.pending.at_own_keys() if again else folded.pending
    rest = complete_softly(pending, target_rows, again=again)
    return replace(rest, rows=pa.concat_tables([folded.rows, rest.rows]))


def _as_held(keys: pa.Table, ends: pa.Array, schema: pa.Schema) -> Pending:
    count = keys.num_rows
    columns = {name: keys.column(name) for name in keys.column_names} | {DELETED_AT.name: ends}
    rows = pa.table([columns.get(each.name, pa.nulls(count, each.type)) for each in schema], schema=schema)
    every = np.ones(count, np.bool_)
    return Pending(rows, keys, pa.nulls(count, NAMES), only_if_exists=every, as_held=every)


def _joined(pending: Pending, kept: Pending) -> Pending:
    """Rows that lack values and rows that are as held; a row that ended is not worth an unresolved one."""
    has_ended = flat(pending.rows.column(DELETED_AT.name)).is_valid().to_numpy(zero_copy_only=False)
    count = pending.rows.num_rows
    assert kept.as_held is not None
    return Pending(
        rows=pa.concat_tables([pending.rows, kept.rows]),
        lookup=pa.concat_tables([pending.lookup, kept.lookup]),
        missing=pa.concat_arrays([pending.missing, kept.missing]),
        only_if_exists=np.concatenate([has_ended, kept.only_if_exists]),
        as_held=np.concatenate([np.zeros(count, np.bool_), kept.as_held]),
    )


def _filter(pending: Pending, keep: NDArray[np.bool_]) -> Pending:
    mask = pa.array(keep)
    return Pending(
        pending.rows.filter(mask),
        pending.lookup.filter(mask),
        pending.missing.filter(mask),
        pending.only_if_exists[keep],
    )


def _ended(pending: Pending, target_rows: pa.Table) -> pa.Table:
    """The target's own rows, those that are live with the end that the batch gives them."""
    at = KeySet(target_rows.select(pending.lookup.column_names)).index(pending.lookup)
    found = at >= 0
    rows = target_rows.take(pa.array(at[found]))
    ends = flat(pending.rows.column(DELETED_AT.name)).filter(pa.array(found))
    held = flat(rows.column(DELETED_AT.name))
    return with_column(rows, DELETED_AT.name, pc.coalesce(held, ends)).select(pending.rows.column_names)

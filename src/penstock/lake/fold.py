"""Folding a batch of changes to the last state of each key: what an upsert table must become.

A batch is a range of whole transactions of one stream, in commit order. Let *before* be the table as the
source had it when the range began, which is what the target holds. `fold` says how to reach *after*:

    after  =  before  −  (everything, if truncated)  −  rows with a key in `keys`  +  `rows`  +  completed

    K1  i ─── u ─── u (K1→K2) ┐                   keys  K1, K2
    K2                        └─ i ─── u          rows  the last version, under K2

Why it holds:

1. A truncate removes every row, so nothing up to the last one matters, nor does the target.
2. An update whose key differs from its old key is a delete of the old and an insert of the new. So every
   event has one key, and events of different keys do not touch each other.
3. With an immediate key a key has one row or none at any moment: its last event decides. With a deferrable
   key that holds between transactions only, so rows are counted: the rows of a key form a queue, a delete
   takes the oldest, and what is left when the batch ends (one row or none) is the newest. Where the batch
   cannot tell whether the table had the key (each insert of it precedes its delete, in balance), the row
   survives exactly if it had: `only_if_exists`.
4. A value that the source did not send (unchanged TOAST) is by definition the one in the row version that
   the update replaced: the version its *old* key had just before. Following versions backwards ends at one
   that has the value, or at the row that the target holds under the key where the chain began: `pending`,
   completed from that row alone. A chain that ends elsewhere has no value: the row becomes unresolved, and
   never null.

A key whose only changes are marked `bad` is not among `keys`: its row in the target stays.

*Again* (`rewinding`): the same changes, all of them, onto the target that holds them already, *after*. (1) to
(3) do not depend on what the target holds, but for keys of which the batch cannot tell whether they were
there; each such key has as many rows after it as before. What (4) asks *before* for, the row under the key
where the chain began, *after* has under the key where it ended: a value that nothing in the batch tells is
one that nothing in it changed. So rows are completed from the target's row of their own key
(`Pending.at_own_keys`), and *after* comes out once more.

Cost of a million changes with one 64-bit key: about 0.1 CPU-seconds, and 0 for a batch of inserts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.lake import replay
from penstock.lake.append import append_rows
from penstock.lake.change_set import INSERT, TRUNCATE, Changes, Flags, Numbers, Operations
from penstock.lake.coded import Coded, encode, with_column
from penstock.lake.keys import KeySet, flat
from penstock.lake.pending import NAMES, Pending, missing_by_column
from penstock.lake.replay import NOTHING, TARGET, UNKNOWN

__all__ = ["Changes", "Completed", "Folded", "Pending", "append_rows", "complete", "fold"]


@dataclass(frozen=True, slots=True)
class Folded:
    truncated: bool  # every row of the target that is older than this batch goes
    keys: pa.Table  # distinct keys whose rows in the target go
    rows: pa.Table  # final rows that the batch alone gives
    pending: Pending | None = None
    #: Of a table that keeps deleted rows (`soft_fold`): when all others of the target were deleted.
    truncated_at_us: int | None = None


@dataclass(frozen=True, slots=True)
class Completed:
    rows: pa.Table
    #: Rows whose values are nowhere, with `_missing` (list<string>): ask the source, or make dead letters.
    unresolved: pa.Table


def fold(changes: Changes, key: Sequence[str], deferrable_key: bool) -> Folded:
    start = _after_last_truncate(changes.op)
    if start:
        changes = changes.after(start)
    if only_whole_inserts(changes):
        # Each key at most once: a second insert of it needs a delete in between.
        return Folded(start > 0, changes.rows.select(list(key)), changes.rows)
    coded = encode(changes, key, start > 0)
    if not deferrable_key:
        history = replay.replay_last(
            coded.changes.op, coded.old, coded.new, coded.bad, coded.keys.num_rows, coded.truncated
        )
        return assemble(coded, *history)
    existed = _infer_existence(coded)
    unknown = existed == UNKNOWN
    if unknown.any() and coded.missing:
        pending = Pending.of_changes(changes, coded.keys)
        return Folded(coded.truncated, coded.keys, pending.rows, pending)
    history = _replay_queues(coded, np.where(unknown, 1, existed).astype(np.int8))
    return assemble(coded, *history, conditional=unknown if unknown.any() else None)


def complete(pending: Pending, target_rows: pa.Table, *, again: bool = False) -> Completed:
    """`target_rows`: the target's rows from before the batch, at least those with keys in `lookup_keys`.

    `again`: from after it.
    """
    if pending.changes is not None:
        return _complete_changes(pending.changes, pending.lookup.column_names, target_rows, again=again)
    at = KeySet(target_rows.select(pending.lookup.column_names)).index(pending.lookup)
    found = at >= 0
    from_target = pa.array(at, mask=~found)
    rows = pending.rows
    lacking = np.zeros(rows.num_rows, np.bool_)
    for name, mask in missing_by_column(pending.missing, rows.column_names).items():
        given = flat(target_rows.column(name)).cast(rows.column(name).type).take(from_target)
        rows = with_column(rows, name, pc.if_else(pa.array(mask), given, flat(rows.column(name))))
        lacking |= mask
    alive = found | ~pending.only_if_exists
    unresolved = pa.array(alive & lacking & ~found)
    return Completed(
        rows.filter(pa.array(alive & (found | ~lacking))),
        pending.rows.append_column("_missing", pending.missing).filter(unresolved),
    )


def _complete_changes(
    changes: Changes, key: Sequence[str], target_rows: pa.Table, *, again: bool
) -> Completed:
    """A deferrable key with missing values, now that it is known which keys the target had."""
    coded = encode(changes, key, truncated=False)
    held = KeySet(target_rows.select(list(key))).index(coded.keys)
    existed = _infer_existence(coded)
    existed = np.where(existed == UNKNOWN, held >= 0, existed).astype(np.int8)
    state, predecessor = _replay_queues(coded, existed)
    folded = assemble(coded, state, predecessor)
    # `Folded.keys` had to name every key; rows that turn out untouched come back as they were.
    kept = target_rows.take(pa.array(held[(state == TARGET) & (held >= 0)])).select(folded.rows.column_names)
    pending = folded.pending or _nothing_pending(folded)
    rest = complete(pending.at_own_keys() if again else pending, target_rows)
    rows = pa.concat_tables([folded.rows, kept.cast(folded.rows.schema), rest.rows])
    return replace(rest, rows=rows)


def _nothing_pending(folded: Folded) -> Pending:
    none = pa.array([], NAMES)
    return Pending(folded.rows.slice(0, 0), folded.keys.slice(0, 0), none, np.zeros(0, np.bool_))


def only_whole_inserts(changes: Changes) -> bool:
    """An insert lacks a value only if it is the second half of an update whose first half was skipped."""
    whole = changes.unchanged is None or changes.unchanged.null_count == len(changes)
    return whole and changes.bad is None and bool((changes.op == INSERT).all())


def _after_last_truncate(op: Operations) -> int:
    truncates = np.flatnonzero(op == TRUNCATE)
    return int(truncates[-1]) + 1 if truncates.size else 0


def _infer_existence(coded: Coded) -> NDArray[np.int8]:
    keys = coded.keys.num_rows
    if coded.truncated:
        return np.zeros(keys, np.int8)
    changes = coded.changes
    existed: NDArray[np.int8] = replay.infer_existence(changes.op, coded.old, coded.new, changes.tx, keys, -1)
    return existed


def _replay_queues(coded: Coded, existed: NDArray[np.int8]) -> tuple[Numbers, Numbers]:
    history: tuple[Numbers, Numbers] = replay.replay_queues(
        coded.changes.op, coded.old, coded.new, coded.bad, existed
    )
    return history


def assemble(coded: Coded, state: Numbers, predecessor: Numbers, conditional: Flags | None = None) -> Folded:
    """`state` of each key at the end; `conditional`: keys whose row survives only if the target has it."""
    rows = coded.changes.rows
    surviving = np.sort(state[state >= 0])
    touched = state != TARGET
    keys = coded.keys if touched.all() else coded.keys.filter(pa.array(touched))
    sources = {
        name: replay.trace_values(mask, predecessor, coded.bad)[surviving]
        for name, mask in coded.missing.items()
        if mask[surviving].any()
    }
    final = _take(rows, surviving, sources)
    only_if_exists = np.zeros(surviving.size, np.bool_)
    if conditional is not None:
        only_if_exists = conditional[coded.new[surviving]]
    incomplete = only_if_exists.copy()
    for source in sources.values():
        incomplete |= source < 0
    if not incomplete.any():
        return Folded(coded.truncated, keys, final)
    waiting = surviving[incomplete]
    lookup = coded.new[waiting].copy()
    if sources:
        origin = replay.trace_origins(coded.old, predecessor)[waiting]
        hopeless = np.any([source[incomplete] == NOTHING for source in sources.values()], axis=0)
        lookup = np.where(only_if_exists[incomplete], lookup, np.where(hopeless, NOTHING, origin))
    pending = Pending(
        final.filter(pa.array(incomplete)),
        coded.keys.take(pa.array(lookup, mask=lookup < 0)),
        _lists({name: source[incomplete] < 0 for name, source in sources.items()}, waiting.size),
        only_if_exists[incomplete],
    )
    return Folded(coded.truncated, keys, final.filter(pa.array(~incomplete)), pending)


def _take(rows: pa.Table, positions: Numbers, sources: Mapping[str, Numbers]) -> pa.Table:
    """Rows at `positions`, but columns in `sources` from the rows named there (null where negative)."""
    if positions.size == rows.num_rows and not sources:
        return rows
    plain = pa.array(positions)
    columns = [
        flat(column).take(pa.array(sources[name], mask=sources[name] < 0) if name in sources else plain)
        for name, column in zip(rows.column_names, rows.columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=rows.schema)


def _lists(masks: Mapping[str, Flags], size: int) -> pa.Array:
    """For each row the names whose mask is set."""
    if not masks:
        return pa.nulls(size, pa.list_(pa.string()))
    rows, columns = np.nonzero(np.stack(list(masks.values()), axis=1))
    offsets = np.searchsorted(rows, np.arange(size + 1)).astype(np.int32)
    names = pa.array(list(masks), pa.string()).take(pa.array(columns))
    return pa.ListArray.from_arrays(pa.array(offsets), names)

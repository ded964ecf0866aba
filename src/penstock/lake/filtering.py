"""A stream's filter on its changes: what a change is to a table that holds only some of the rows.

With both row versions known, a change is what it does to the part:

    old → new       becomes
    out → in        an insert of the new row
    in  → out       a delete of the old row
    in  → in        what it is
    out → out       nothing

An insert counts as coming from out, a delete as going there; a truncate empties the part too. Unknown, as in
a WHERE clause, is out.

The old version is known if the source sent it whole, or if the filter reads only key columns: a key is sent
whenever it changes. Otherwise the old row may have been in, so an update to in stays an update and one to out
is a delete, of the old key if that changed. An upsert table is right with both, since it counts only what the
row is in the end; append tables get whole old rows (`check` sees to it).

The log may be applied to rows that are newer than it, where a load was resumed (`lake/load.py`). That ends
right as well: of the changes of a row that is out in the end, the last one kept is a delete, or none is kept
and the row was never in.

A value of the filter's own that was not sent (unchanged TOAST) and is in no old row would have to be guessed:
that is an error. `check` demands whole old rows for filters on columns that can be so large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import SourceError
from penstock.core.where import Condition
from penstock.lake.change_set import DELETE, INSERT, UPDATE, Flags, Operations
from penstock.lake.changes import ConformedChanges
from penstock.lake.keys import flat
from penstock.lake.pending import missing_by_column

_FULL = ord("f")


def only_inside(
    changes: ConformedChanges, condition: Condition, key: Sequence[str], stream: str
) -> ConformedChanges:
    """What the changes do to the rows for which the condition is true."""
    op = changes.op
    new_inside = _inside(condition, changes.text) & ((op == INSERT) | (op == UPDATE))
    _check_nothing_is_missing(changes, condition, stream)
    old_known, old_inside = _old_rows(changes, condition, key)
    maybe_before = old_inside | ~old_known

    comes_in = (op == UPDATE) & new_inside & ~maybe_before
    goes_out = (op == UPDATE) & ~new_inside & maybe_before
    nothing = (op == UPDATE) & ~new_inside & ~maybe_before
    nothing |= (op == INSERT) & ~new_inside
    nothing |= (op == DELETE) & ~maybe_before
    becomes = np.where(comes_in, INSERT, np.where(goes_out, DELETE, op)).astype(np.uint8)
    return _with_operations(changes, becomes, goes_out, key).filter(~nothing)


def _inside(condition: Condition, rows: pa.Table) -> Flags:
    columns = {name: flat(rows.column(name)) for name in condition.columns}
    answers: Flags = (
        condition.evaluate(columns, rows.num_rows).fill_null(False).to_numpy(zero_copy_only=False)
    )
    return answers


def _old_rows(changes: ConformedChanges, condition: Condition, key: Sequence[str]) -> tuple[Flags, Flags]:
    """For which changes the old row can be judged, and for which of them it was inside."""
    if condition.columns <= set(key):
        before = pa.table(
            {name: pc.coalesce(changes.old.column(name), changes.text.column(name)) for name in key}
        )
        return np.ones(len(changes.op), np.bool_), _inside(condition, before)
    known = changes.old_kind == _FULL
    if not known.any():
        return known, known
    return known, known & _inside(condition, changes.old)


def _check_nothing_is_missing(changes: ConformedChanges, condition: Condition, stream: str) -> None:
    lists = changes.log.column("_unchanged").combine_chunks()
    if lists.null_count == len(lists):
        return
    for logged, mask in missing_by_column(lists, list(changes.names)).items():
        name = changes.names[logged]
        if name in condition.columns and mask.any():
            raise SourceError(
                f"An update did not carry the value of {name}, which the stream's `where` reads: "
                "it is large and did not change.",
                stream=stream,
                remedy=f"Set `replica_identity: full` for the stream, then run `penstock resync {stream}`.",
            )


def _with_operations(
    changes: ConformedChanges, op: Operations, goes_out: Flags, key: Sequence[str]
) -> ConformedChanges:
    """Rows that go out are deletes of the old key, which was sent only if it changed."""
    letters = pa.array(op.view("S1")).cast(pa.string())
    log = changes.log.set_column(changes.log.column_names.index("_op"), "_op", letters)
    if not goes_out.any():
        return replace(changes, log=log)
    lists = flat(log.column("_unchanged"))
    kept = lists.take(pa.array(np.arange(len(lists)), mask=goes_out))
    log = log.set_column(log.column_names.index("_unchanged"), "_unchanged", kept)
    old = changes.old
    # Not a null scalar: beside a slice of texts Arrow would take bytes from elsewhere (GH-49410).
    nulls = pa.nulls(len(op), pa.string())
    for name in key:
        place = old.column_names.index(name)
        own = pc.if_else(pa.array(goes_out), flat(changes.text.column(name)), nulls)
        old = old.set_column(place, name, pc.coalesce(flat(old.column(name)), own))
    return replace(changes, old=old, log=log)

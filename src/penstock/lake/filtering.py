"""A stream's filter on its changes: what a change is to a table that holds only some of the rows.

`core.row_filter` says what each change becomes. An upsert table is right where the old row is not known, too,
since it counts only what the row is in the end; append tables get whole old rows (`check` sees to it).

The log may be applied to rows that are newer than it, where a load was resumed (`lake/load.py`). That ends
right as well: of the changes of a row that is out in the end, the last one kept is a delete, or none is kept
and the row was never in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import row_filter
from penstock.core.schema import TableSchema
from penstock.core.where import Condition
from penstock.destinations.records import WriteMode
from penstock.lake.change_set import DELETE, INSERT, UPDATE, Flags, Operations
from penstock.lake.changes import ConformedChanges
from penstock.lake.keys import flat
from penstock.log.undecided import with_unsent

_FULL = ord("f")


def only_inside(
    changes: ConformedChanges, condition: Condition, schema: TableSchema, write: WriteMode
) -> ConformedChanges:
    """What the changes do to the rows for which the condition is true."""
    op, key = changes.op, schema.key
    new_inside = _inside(condition, changes.text) & ((op == INSERT) | (op == UPDATE))
    old_known, old_inside = _old_rows(changes, condition, key)
    found = row_filter.becomes(op, new_inside, old_known, old_inside)
    found = with_unsent(
        found,
        old_known & old_inside,
        changes.log.column("_unchanged"),
        schema.columns,
        condition,
        str(schema.stream),
        by_key=write == "upsert",
        names=changes.names,
    )
    goes_out = (op == UPDATE) & (found == DELETE)
    kept = found != row_filter.NOTHING
    return _with_operations(changes, np.where(kept, found, op), goes_out, key).filter(kept)


def _inside(condition: Condition, rows: pa.Table) -> Flags:
    return row_filter.inside(condition, lambda name: flat(rows.column(name)), rows.num_rows)


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

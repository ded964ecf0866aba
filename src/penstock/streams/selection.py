"""The part of a table that a stream holds, as changes of the whole table show it.

Columns are chosen by name; a column that the table gets later is held if the stream lists none. Rows are
those for which the stream's condition is true: a change becomes what it does to them (`core.row_filter`), so
an update that leaves them is a delete, with the old key, and one that enters them a create. Rows of a load
are chosen by the query that reads them and are all inside.

A row that enters by an update has the values the update carried: of a column that was not sent (unchanged
TOAST, under a replica identity that is not `full`) the event says so in `unchanged`. So it does of a document
of MongoDB that was gone when its update was read; that is told if the document before is known to be inside.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.capture.transactions import INSERT, OLD_FULL, UPDATE, ChangeRows
from penstock.core import row_filter
from penstock.core.errors import SourceError
from penstock.core.row_filter import Flags, Unsent
from penstock.core.selection import Selection
from penstock.core.stream import StreamId
from penstock.core.where import Condition, WhereError
from penstock.log import columns as log_columns
from penstock.streams.events import Bytes

_CONDITIONS_KEPT = 64
#: What becomes of an operation of the log: nothing, or an event of that kind.
_ACTIONS = np.zeros(256, np.uint8)
for _operation, _kind in zip(b"iudtr", b"cudtr", strict=True):
    _ACTIONS[_operation] = _kind


class StreamSelection:
    """`key` are the columns by which the log names a row. Not for several threads."""

    def __init__(self, stream: StreamId, selection: Selection, key: Sequence[str]) -> None:
        self._stream = stream
        self._selection = selection
        self._key = frozenset(key)
        self._conditions: dict[str, Condition] = {}

    def columns(self, changes: ChangeRows) -> tuple[str, ...]:
        """Those the stream holds of the columns that these changes have, in the table's order."""
        return tuple(
            name for name in changes.version.types if self._selection.holds(changes.version.columns[name])
        )

    def actions(self, changes: ChangeRows) -> Bytes | None:
        """What each change is to the stream: 0, or the kind of its event; None: what its operation says."""
        if self._selection.condition is None:
            return None
        condition = self._condition_for(changes)
        carries_row = (changes.op == INSERT) | (changes.op == UPDATE)
        new_inside = carries_row & row_filter.inside(condition, changes.new, len(changes))
        old_known, old_inside = self._old_rows(changes, condition)
        found = row_filter.becomes(changes.op, new_inside, old_known, old_inside)
        if _has_missing(changes):
            why = row_filter.unsent(changes.version.columns.values())
            if why == Unsent.GONE:
                gone = log_columns.lacking(changes.rows.column(log_columns.UNCHANGED))
                found = row_filter.of_gone_rows(found, gone, old_known & old_inside, by_key=False)
            else:
                row_filter.require_sent(_missing(changes), condition, str(self._stream), why)
        actions: Bytes = _ACTIONS[found]
        return actions

    def undecided(self, changes: ChangeRows) -> tuple[int, ...]:
        """Transactions with an update of which nobody can tell whether it is inside: the session that wrote
        it left out a value that the condition reads."""
        condition = self._selection.condition
        if condition is None or not _has_missing(changes):
            return ()
        if row_filter.unsent(changes.version.columns.values()) != Unsent.LEFT_OUT:
            return ()
        found = log_columns.lacking(changes.rows.column(log_columns.UNCHANGED), condition.columns)
        return tuple(np.unique(changes.tx[found]).tolist())

    def _old_rows(self, changes: ChangeRows, condition: Condition) -> tuple[Flags, Flags]:
        """For which changes the old row can be judged, and for which of them it was inside."""
        rows = len(changes)
        if condition.columns <= self._key:

            def before(name: str) -> pa.StringArray:
                return pc.coalesce(changes.old(name), changes.new(name))

            return np.ones(rows, np.bool_), row_filter.inside(condition, before, rows)
        known = changes.old_kind == OLD_FULL
        return known, known & row_filter.inside(condition, changes.old, rows) if known.any() else known

    def _condition_for(self, changes: ChangeRows) -> Condition:
        """The condition with the types that its columns have in these changes."""
        found = self._conditions.get(changes.schema_id)
        if found is None:
            assert self._selection.condition is not None
            text = self._selection.condition.text
            try:
                found = Condition.compile(text, tuple(changes.version.columns.values()))
            except WhereError as error:
                raise SourceError(
                    "The stream's `where` does not fit the table any more.",
                    stream=str(self._stream),
                    detail=str(error),
                    remedy="Change `where` in the pipeline file, then resync the stream's lanes.",
                ) from error
            while len(self._conditions) >= _CONDITIONS_KEPT:
                del self._conditions[next(iter(self._conditions))]
            self._conditions[changes.schema_id] = found
        return found


def _has_missing(changes: ChangeRows) -> bool:
    lists = changes.rows.column(log_columns.UNCHANGED)
    return bool(lists.null_count < len(lists))


def _missing(changes: ChangeRows) -> set[str]:
    """Columns whose value some change did not carry, by the source's names."""
    lists = changes.rows.column(log_columns.UNCHANGED)
    return set(lists.flatten().unique().to_pylist())

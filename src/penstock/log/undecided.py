"""Changes in the log that lack values: of which a filter cannot be asked, and what the others are to it.

What that means depends on the source: `core.row_filter` has the rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import row_filter
from penstock.core.errors import LogGoneError
from penstock.core.position import Lsn
from penstock.core.row_filter import Flags, Operations, Unsent
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.where import Condition
from penstock.log import columns as log_columns
from penstock.log.reader import LogFile, read_rows


def can_be_undecided(columns: Iterable[SourceColumn], condition: Condition | None) -> bool:
    """Whether there is a filter, on a table of a source whose sessions leave values out."""
    return condition is not None and row_filter.unsent(columns) == Unsent.LEFT_OUT


def undecided(
    unchanged: pa.Array | pa.ChunkedArray, columns: Iterable[SourceColumn], condition: Condition | None
) -> Flags:
    """The changes that lack a value which a session left out and the condition reads: nobody can tell whether
    they are inside. `unchanged`: what each lacks."""
    if condition is None or not can_be_undecided(columns, condition):
        return np.zeros(len(unchanged), np.bool_)
    return log_columns.lacking(unchanged, condition.columns)


def has_undecided(
    files: Sequence[LogFile], after: Lsn, to: Lsn, schema: TableSchema, condition: Condition | None
) -> bool:
    """Whether there is such an update in the range.

    It costs one column, in which most rows have nothing. `LogGoneError` if files of the range are gone.
    """
    if not can_be_undecided(schema.columns, condition):
        return False
    updated = [file for file in files if "u" in file.ops]
    try:
        return any(
            undecided(rows.column(log_columns.UNCHANGED), schema.columns, condition).any()
            for rows in read_rows(updated, after, to, [log_columns.UNCHANGED])
        )
    except FileNotFoundError as error:
        raise LogGoneError(
            "Changes were taken from the change log while they were read.",
            stream=str(schema.stream),
            remedy="Try again; `log.retention` says how long changes stay.",
        ) from error


def with_unsent(
    found: Operations,
    known_inside: Flags,
    unchanged: pa.Array | pa.ChunkedArray,
    columns: Iterable[SourceColumn],
    condition: Condition,
    stream: str,
    *,
    by_key: bool,
    names: Mapping[str, str] | None = None,
) -> Operations:
    """`found`, what changes become, with what those are that do not carry all values.

    An error if the condition reads such a value of a row that is there. `known_inside`: the row before is
    known to have been in; `names`: what the condition calls the log's columns, where that is another name;
    `by_key`: who asks keeps rows by key.
    """
    why = row_filter.unsent(columns)
    if why == Unsent.GONE:
        return row_filter.of_gone_rows(found, log_columns.lacking(unchanged), known_inside, by_key=by_key)
    row_filter.require_sent(_missing(unchanged, names), condition, stream, why)
    return found


def _missing(unchanged: pa.Array | pa.ChunkedArray, names: Mapping[str, str] | None) -> Collection[str]:
    """Columns whose value some change does not carry."""
    logged: list[str] = pc.list_flatten(unchanged).unique().to_pylist()
    return logged if names is None else {names[name] for name in logged if name in names}

"""Whether a filter can be asked of all updates in the log: some may lack values that it reads."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core import row_filter
from penstock.core.errors import LogGoneError
from penstock.core.position import Lsn
from penstock.core.row_filter import Unsent
from penstock.core.schema import TableSchema
from penstock.core.where import Condition
from penstock.log import columns as log_columns
from penstock.log.reader import LogFile, read_rows


def can_be_undecided(schema: TableSchema, condition: Condition | None) -> bool:
    """Whether there is a filter, on a table of a source whose sessions leave values out."""
    return condition is not None and row_filter.unsent(schema.columns) == Unsent.LEFT_OUT


def has_undecided(
    files: Sequence[LogFile], after: Lsn, to: Lsn, schema: TableSchema, condition: Condition | None
) -> bool:
    """Whether an update of the range lacks a value that a session left out and the condition reads.

    It costs one column, in which most rows have nothing. `LogGoneError` if files of the range are gone.
    """
    if condition is None or not can_be_undecided(schema, condition):
        return False
    updated = [file for file in files if "u" in file.ops]
    try:
        return any(
            log_columns.lacking(rows.column(log_columns.UNCHANGED), condition.columns).any()
            for rows in read_rows(updated, after, to, [log_columns.UNCHANGED])
        )
    except FileNotFoundError as error:
        raise LogGoneError(
            "Changes were taken from the change log while they were read.",
            stream=str(schema.stream),
            remedy="Try again; `log.retention` says how long changes stay.",
        ) from error

"""What a client is told when rows cannot be read: the status, a sentence, and when to come again.

No value, no query and nothing that a driver says gets into it; what is not foreseen is told by its kind.
"""

from __future__ import annotations

import psycopg
import structlog
from psycopg import errors

from penstock.core.errors import CaptureAwayError, PenstockError
from penstock.core.stream import StreamId
from penstock.shapes.shape import SnapshotProblem
from penstock.sources.postgres.publication import quoted

RETRY_AFTER_S = 10
_SCHEMA_CHANGED = (
    errors.UndefinedTable,
    errors.UndefinedColumn,
    errors.UndefinedObject,
    errors.UndefinedFunction,
    errors.InvalidSchemaName,
    errors.WrongObjectType,
    errors.DatatypeMismatch,
)
_logger = structlog.get_logger("penstock.shapes")


def problem_of(error: BaseException, table: StreamId | None = None) -> SnapshotProblem:
    """An error that came up while rows of `table` were read, as its clients may know it."""
    match error:
        case SnapshotProblem():
            return error
        case CaptureAwayError():
            return _temporary("Changes of the database are not followed at the moment, please retry", 5)
        case PenstockError():
            return _temporary(" ".join(filter(None, (error.message, error.remedy))))
        case errors.LockNotAvailable():
            return locked()
        case errors.InsufficientPrivilege():
            return _temporary(
                f"The role that Penstock connects as may not read {_name(table)} in full. "
                f"Run as its owner: GRANT SELECT ON {_name(table)} TO that role; if the table has row-level "
                "security, the role needs BYPASSRLS too."
            )
        case psycopg.Error() if isinstance(error, _SCHEMA_CHANGED):
            return schema_changed(table)
        case errors.QueryCanceled():
            return _temporary("The query for the snapshot was cancelled at the database")
        case psycopg.Error() if (error.sqlstate or "").startswith("53") and error.sqlstate != "53300":
            return _temporary("The database has run out of memory or disk space")
        case psycopg.Error() if (error.sqlstate or "").startswith("40"):
            return _temporary("The database ended the snapshot's transaction")
        case psycopg.OperationalError() | psycopg.InterfaceError():
            return unreachable()
        case psycopg.Error() if (error.sqlstate or "").startswith("57P"):
            return unreachable()
        case OSError():
            return _temporary("The snapshot could not be written to disk")
    _logger.warning("snapshot failed", kind=type(error).__name__, stream=str(table))
    return SnapshotProblem(
        500, f"Unexpected error while creating snapshot: {type(error).__name__}", known=False
    )


def not_made() -> SnapshotProblem:
    return _temporary("Failed to create shape, please retry", 1)


def unreachable() -> SnapshotProblem:
    return SnapshotProblem(503, "Database is unreachable", RETRY_AFTER_S, code="database_unreachable")


def locked() -> SnapshotProblem:
    return _temporary("Snapshot timed out while waiting for a table lock")


def slow(limit_s: float) -> SnapshotProblem:
    return _temporary(
        f"Snapshot query took too long to return data (cancelled after {limit_s * 1000:.0f}ms). "
        "An index on the columns of the where clause may help."
    )


def no_connection(waited_s: float) -> SnapshotProblem:
    return _temporary(
        f"Snapshot timed out while waiting for a database connection ({waited_s * 1000:.0f}ms): "
        "all of them are in use"
    )


def schema_changed(table: StreamId | None = None) -> SnapshotProblem:
    return SnapshotProblem(409, f"The table {_name(table)} was changed while its snapshot was made")


def _temporary(message: str, retry_after_s: int = RETRY_AFTER_S) -> SnapshotProblem:
    return SnapshotProblem(503, message, retry_after_s)


def _name(table: StreamId | None) -> str:
    return "the table" if table is None else quoted(table)

"""Whether a range of the log can be applied to a table that holds it: what the log alone says of that. Pure.

So whoever asks for it hears so at once; the lane, which has the table, looks again (`rewinding`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.core.schema import TableSchema
from penstock.core.selection import SelectionError
from penstock.lake.evolve import plan_evolution
from penstock.lake.work import MustReload, is_certain, plan_schema
from penstock.log.reader import LogRange

#: All of a range is one round, of which the driver and the tasks hold keys and rows; a round that follows the
#: log takes a sixteenth of it.
RANGE_BYTES_MAX = 4 * 1024 * 1024 * 1024


def why_not(
    changes: LogRange,
    schema_of: Callable[[str], TableSchema],
    *,
    keeps_older_rows: bool,
    keeps_deleted: bool,
    bytes_max: int = RANGE_BYTES_MAX,
) -> str | None:
    """Why an upsert table cannot take these changes again; None if nothing is known against it.

    `schema_of` gives the part of a version that the stream holds; `keeps_deleted`: its deletes are soft.
    """
    if changes.bytes > bytes_max:
        return f"it has {changes.bytes:,} bytes of changes, of which {bytes_max:,} at most are applied again"
    if changes.altered:
        return "a statement at the source altered it in a way that its rows do not tell"
    last = max(changes.truncates, default=(-1, -1))
    if any((tx, op) > last for tx, op, _ in changes.leaf_truncates):
        return "a single partition was truncated"
    # The table is as the last of them left it.
    try:
        schemas = [schema_of(schema_id) for schema_id in dict.fromkeys(_schema_ids(changes))]
    except SelectionError as error:
        return str(error)
    latest = next(filter(is_certain, schemas), None)
    if latest is None:
        return None
    if keeps_deleted and changes.truncates and latest.deferrable_key:
        # Which of two rows with one key came first, the table no longer tells: both have ended.
        return "it was truncated, and its key is deferrable"
    if _some_may_be_mistaken(schemas):
        return "its columns changed, and the catalog had moved on before some of its changes were read"
    plan = plan_schema(latest, changes.files, schema_of, keeps_older_rows=keeps_older_rows)
    if isinstance(plan, MustReload):
        return plan.reason
    return _why_not_at_once(schemas, plan.schema, keeps_older_rows=keeps_older_rows)


def _why_not_at_once(
    schemas: Sequence[TableSchema], latest: TableSchema, *, keeps_older_rows: bool
) -> str | None:
    """Why rows of one of these versions cannot be given the latest columns.

    Rows that followed the log went from version to version, each with what the catalog said then: a default
    that a later rewrite of the table cleared is in those rows, and in the latest version no more. Applied
    again they go there in one step.
    """
    for schema in filter(is_certain, schemas):
        evolution = plan_evolution(schema, latest, keeps_older_rows=keeps_older_rows)
        if evolution.kind in ("resync", "unsure"):
            return evolution.reason
    return None


def _some_may_be_mistaken(schemas: Sequence[TableSchema]) -> bool:
    """Whether a version is told by its names alone, among others whose names were of different columns.

    Where the log is followed it can only be the version before it; the first of a range has none.
    """
    certain = [schema for schema in schemas if is_certain(schema)]
    columns = {
        tuple((column.name, column.attribute_number) for column in (*schema.columns, *schema.hidden))
        for schema in certain
    }
    return len(certain) < len(schemas) and len(columns) > 1


def _schema_ids(changes: LogRange) -> list[str]:
    """The newest first."""
    return [file.schema_id for file in reversed(changes.files)]

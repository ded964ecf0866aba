"""What a batch of changes says of its table, beyond its rows: which of its shapes cannot go on.

A shape knows the rows of its snapshot and what was appended since. It cannot go on from a truncate (no row is
named), from an update or delete without the old row (nobody can say whether it was in the shape, or under
which key; correctness 37), or with columns that are no longer those it was made with.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.capture.transactions import INSERT, OLD_FULL, TRUNCATE, ChangeRows, TableVersion
from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.source.reconciler import columns_used


def truncates(changes: ChangeRows) -> npt.NDArray[np.intp]:
    return np.flatnonzero(changes.op == TRUNCATE)


def without_old_row(changes: ChangeRows) -> npt.NDArray[np.intp]:
    """Updates and deletes that did not bring the whole row as it was."""
    is_missing = (changes.op != INSERT) & (changes.op != TRUNCATE) & (changes.old_kind != OLD_FULL)
    return np.flatnonzero(is_missing)


def can_read(definition: ShapeDefinition, version: TableVersion) -> bool:
    """Whether rows of that version have the columns that the shape uses, as it knows them.

    Columns that came since make no difference if older rows have null in them and no key is made of them.
    """
    sources = {column.name: column.source for column in definition.card.columns}
    if any(
        version.types.get(name) != (sources[name].type_oid, sources[name].type_modifier)
        for name in columns_used(definition)
    ):
        return False
    if definition.selected_explicitly and definition.key:
        return True
    came = [column for name, column in version.columns.items() if name not in sources]
    return not came or (
        bool(definition.key)
        and all(column.nullable and column.missing_value is None and not column.generated for column in came)
    )


def shown_columns(definition: ShapeDefinition, version: TableVersion) -> tuple[str, ...]:
    """What the shape shows of rows of that version: without a choice of columns, those that came as well.

    They must be shown from their first row on: whoever compares catalogs learns of them too late.
    """
    if definition.selected_explicitly:
        return definition.columns
    known = set(definition.card.names)
    return (*definition.columns, *(name for name in version.columns if name not in known))

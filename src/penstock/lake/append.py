"""Changes as rows of an append table: every change once, with where it stands in the log.

One row per change, in order, with the source's columns and `_op`, `_tx`, `_op_index`, `_commit_ts`,
`_unchanged`. An update that changes the key becomes two: a `d` with the old key at its `_op_index` and an
`i` with the new row at the index after it, which nobody else has (indexes go in steps of two). A delete
carries what the source sent of the old row; a truncate is one row of nulls.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.lake.change_set import DELETE, INSERT, Changes, Flags, Numbers, Operations
from penstock.lake.keys import flat

_OPERATIONS = pa.array(["i", "u", "d", "t"])


def append_rows(changes: Changes, key: Sequence[str]) -> pa.Table:
    """Deletes carry `changes.old` where it is given (as far as it was sent), else the key alone."""
    size = len(changes)
    is_move = np.zeros(size, np.bool_)
    is_move[changes.moved_positions(key)] = True

    # Every change once, and a move twice: first as the delete of its old key.
    origin = np.repeat(np.arange(size), 1 + is_move)
    departs = is_move[origin]
    departs[1:] &= origin[1:] != origin[:-1]
    arrives = is_move[origin] & ~departs

    operation = changes.op[origin]
    is_delete = operation == DELETE
    operation[departs] = DELETE
    operation[arrives] = INSERT
    columns = {
        name: _column(changes, name, key, origin, departs, is_delete) for name in changes.rows.column_names
    }
    columns["_op"] = _letters(operation)
    columns["_tx"] = pa.array(changes.tx[origin])
    columns["_op_index"] = pa.array(changes.op_index[origin] + arrives)
    columns["_commit_ts"] = _repeated(changes.commit_ts, pa.timestamp("us", "UTC"), origin, None)
    columns["_unchanged"] = _repeated(changes.unchanged, pa.list_(pa.string()), origin, departs)
    return pa.table(columns)


def _letters(operation: Operations) -> pa.Array:
    numbers = np.zeros(256, np.int8)
    for number, letter in enumerate(_OPERATIONS.to_pylist()):
        numbers[ord(letter)] = number
    return _OPERATIONS.take(pa.array(numbers[operation]))


def _repeated(values: pa.Array | None, kind: pa.DataType, origin: Numbers, null: Flags | None) -> pa.Array:
    if values is None:
        return pa.nulls(len(origin), kind)
    return values if len(values) == len(origin) else values.take(pa.array(origin, mask=null))


def _column(
    changes: Changes, name: str, key: Sequence[str], origin: Numbers, departs: Flags, is_delete: Flags
) -> pa.Array:
    rows = flat(changes.rows.column(name))
    if not departs.any() and not is_delete.any():
        return rows
    size = len(rows)
    old_key = flat(changes.old_key.column(name)) if name in key else pa.nulls(size, rows.type)
    has_old = changes.old is not None and name in changes.old.column_names
    old = flat(changes.old.column(name)) if changes.old is not None and has_old else old_key
    index = origin.copy()
    index[is_delete] += size
    index[departs] += 2 * size
    return pa.concat_arrays([rows, old, old_key]).take(pa.array(index))

"""`Pending`: final rows of a fold that need rows of the target before they are complete.

It goes from one task to another as an Arrow table (`to_table`, `from_table`), in one of two layouts: rows
that lack values or may not survive, or (deferrable key with missing values, whose history cannot be told
without the target's keys) the changes themselves, to be replayed when those are known.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import feather

from penstock.lake.change_set import Changes, Flags
from penstock.lake.keys import distinct
from penstock.log.columns import entries_of

NAMES = pa.list_(pa.string())
_TIMESTAMP = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True)
class Pending:
    """Fetch the target's rows with `lookup_keys`, then `complete`."""

    rows: pa.Table  # null in the missing columns
    lookup: pa.Table  # per row, the key whose row in the target is asked; null: there is none
    missing: pa.Array  # list<string> per row
    only_if_exists: Flags  # per row: it survives only if the target has its key
    changes: Changes | None = field(default=None, repr=False)  # the other layout; `lookup`: every key
    #: Per row, of a table that keeps deleted rows: it is the target's own, with nothing new but that it ends.
    as_held: Flags | None = None

    @property
    def lookup_keys(self) -> pa.Table:
        return distinct(self.lookup)

    def at_own_keys(self) -> Pending:
        """Of changes that the target holds already: what a row lacks is in the target under its last key."""
        if self.changes is not None:
            return self
        return replace(self, lookup=self.rows.select(self.lookup.column_names))

    @classmethod
    def of_changes(cls, changes: Changes, keys: pa.Table) -> Pending:
        return cls(changes.rows.slice(0, 0), keys, pa.array([], NAMES), np.zeros(0, np.bool_), changes)

    @classmethod
    def read(cls, path: Path) -> Pending:
        return cls.from_table(feather.read_table(path))

    def write(self, path: Path) -> None:
        feather.write_feather(self.to_table(), str(path), compression="uncompressed")

    def to_table(self) -> pa.Table:
        if self.changes is None:
            columns = {
                "rows": self.rows.to_struct_array(),
                "lookup": self.lookup.to_struct_array(),
                "missing": self.missing,
                "only_if_exists": pa.array(self.only_if_exists),
            }
            if self.as_held is not None:
                columns["as_held"] = pa.array(self.as_held)
            return pa.table(columns)
        changes = self.changes
        return pa.table(
            {
                "rows": changes.rows.to_struct_array(),
                "old_key": changes.old_key.to_struct_array(),
                "op": pa.array(changes.op),
                "tx": pa.array(changes.tx),
                "op_index": pa.array(changes.op_index),
                "unchanged": pa.nulls(len(changes), NAMES)
                if changes.unchanged is None
                else changes.unchanged,
                "bad": pa.array(np.zeros(len(changes), np.bool_) if changes.bad is None else changes.bad),
                "commit_ts": pa.nulls(len(changes), _TIMESTAMP)
                if changes.commit_ts is None
                else changes.commit_ts,
            }
        )

    @classmethod
    def from_table(cls, table: pa.Table) -> Pending:
        if "op" not in table.column_names:
            return cls(
                rows=_unpacked(table, "rows"),
                lookup=_unpacked(table, "lookup"),
                missing=_array(table, "missing"),
                only_if_exists=_flags(table, "only_if_exists"),
                as_held=_flags(table, "as_held") if "as_held" in table.column_names else None,
            )
        changes = Changes(
            rows=_unpacked(table, "rows"),
            old_key=_unpacked(table, "old_key"),
            op=_array(table, "op").to_numpy(),
            tx=_array(table, "tx").to_numpy(),
            op_index=_array(table, "op_index").to_numpy(),
            unchanged=_array(table, "unchanged"),
            commit_ts=_array(table, "commit_ts"),
            bad=_flags(table, "bad"),
        )
        return cls.of_changes(changes, touched_keys(changes))


def touched_keys(changes: Changes) -> pa.Table:
    """Every key that the changes name, old or new, once."""
    names = changes.old_key.column_names
    return distinct(pa.concat_tables([changes.rows.select(names), changes.old_key]))


def missing_by_column(lists: pa.Array | None, columns: list[str]) -> dict[str, Flags]:
    """For each of `columns` named in any list, the rows whose list names it."""
    if lists is None or lists.null_count == len(lists):
        return {}
    rows, entries = entries_of(lists)
    names = entries.dictionary_encode()
    codes = names.indices.to_numpy()
    masks = {}
    for code, name in enumerate(names.dictionary.to_pylist()):
        if name in columns:
            masks[name] = np.zeros(len(lists), np.bool_)
            masks[name][rows[codes == code]] = True
    return masks


def _array(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _flags(table: pa.Table, name: str) -> Flags:
    flags: Flags = _array(table, name).to_numpy(zero_copy_only=False)
    return flags


def _unpacked(table: pa.Table, name: str) -> pa.Table:
    return pa.Table.from_struct_array(table.column(name))

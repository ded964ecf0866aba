"""Tables of a source, as all that reads them needs to know them; a source may know more of its own.

A *leaf* holds rows itself: of a plain table that is the table, of a partitioned one the partitions at the
bottom of its tree. Loads and the log both work leaf by leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeVar

from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLeaf:
    """`oid` is its own for as long as it lives; `filenode` changes when its rows are moved to another file
    (correctness 11), and is 0 at a source that has no such number."""

    stream: StreamId
    oid: int
    filenode: int
    bytes: int
    estimated_rows: int
    attached: str = ""  # which attachment to its parent this is; empty for a table of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """`schema.key` is what the log names a row by, which need not be the primary key."""

    stream: StreamId
    oid: int
    kind: str  # table, partitioned, or what else the source has
    schema: TableSchema
    leaves: tuple[SourceLeaf, ...]
    primary_key: tuple[str, ...]
    publications: frozenset[str] = frozenset()  # names under which the source sends its changes

    @property
    def estimated_rows(self) -> int:
        return sum(leaf.estimated_rows for leaf in self.leaves)

    @property
    def bytes(self) -> int:
        return sum(leaf.bytes for leaf in self.leaves)

    def read_as(self, schema: TableSchema) -> Self:
        """The same table, to be read in the columns that it had when `schema` was noted: of those that come
        while a table is in use (`TableSchema.lasting`), no others."""
        return replace(self, schema=schema)

    @property
    def can_be_captured(self) -> bool:
        """Whether the source logs this table's changes, and a wildcard brings it in."""
        return True


Table = TypeVar("Table", bound=SourceTable)


def found_or_all(
    discover: Callable[[Sequence[StreamId] | None], list[Table]], patterns: Sequence[StreamId] | None
) -> list[Table]:
    """Tables that match; a name that is not there brings in all others, so that the nearest can be said."""
    tables = discover(patterns)
    named = {name for name in patterns or () if not name.is_pattern}
    if not named <= {table.stream for table in tables}:
        tables += [table for table in discover(None) if table not in tables]
    return tables

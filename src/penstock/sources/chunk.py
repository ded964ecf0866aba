"""A chunk of a table: what one reader reads of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from penstock.core.place import Place
from penstock.values.parse import Flags

#: Instead of a snapshot's name, where readers cannot share one: the chunk takes one of its own, and its
#: blocks, of which there is one at least, say where in the source's log that is.
OWN_SNAPSHOT = "own"

#: By place in the table's files, in the source's own order; or by ranges of the key's first column.
ChunkMethod = Literal["ctid", "key"]


@dataclass(frozen=True, slots=True)
class PlannedChunk:
    """The rows of a leaf from `min` on (None: from its beginning) to before `max` (None: to its end)."""

    leaf: str  # stream id of what holds the rows
    min: str | None
    max: str | None
    filenode: int
    estimated_rows: int


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of a chunk: the columns in their Arrow types, and for each column with bad values its mask.

    `printed` gives the source's own words; None: only a reading as text has them. `place`: where in the
    source's log the moment is that all blocks of the chunk show; None: whoever asked for them knows.
    """

    rows: int
    values: list[pa.Array]
    bad: dict[str, Flags] | None
    printed: Callable[[], pa.RecordBatch] | None
    place: Place | None = None


class TableRewrittenError(Exception):
    """The source moved a table's rows to another file: it must be read anew, under a new snapshot."""

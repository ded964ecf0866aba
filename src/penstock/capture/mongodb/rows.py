"""Events of one collection to rows of the change log, a batch at a time.

| event | `_op` | the row | the old row |
|---|---|---|---|
| insert | i | the document | none |
| replace | u | the document | where the collection keeps pre-images, the document before |
| update | u | the document, as it was looked up later or, on demand, as it was | the same |
| update of a document that is gone by now | u | its `_id`; all else was not sent | the same |
| delete | d | nothing | its `_id`, or the document before |

The last but one says of its other columns that they are not known (`_unchanged`), and a delete of the same
document follows. An update whose document was looked up has none such, and a list all the same, `[]`: so
that a history tells rows that may show a later state from those that show their own (correctness 55). The
text of a value is that which a load prints (`sources.mongodb.rows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.capture.rows import Absent, Changes, log_rows
from penstock.core.schema import SourceColumn, TableSchema
from penstock.sources.mongodb.documents import Documents
from penstock.sources.mongodb.events import Events, Images, Operation
from penstock.sources.mongodb.rows import RowReader
from penstock.sources.mongodb.types import ID
from penstock.text_kernels import Flags, Ints

_LETTERS = np.zeros(len(Operation), np.uint8)
for _operation, _letter in (
    (Operation.INSERT, "i"),
    (Operation.UPDATE, "u"),
    (Operation.REPLACE, "u"),
    (Operation.DELETE, "d"),
):
    _LETTERS[_operation] = ord(_letter)
_READERS_KEPT = 256


@dataclass(frozen=True, slots=True)
class _Texts:
    """Text of some columns for some of the chosen events: `has` says which, `columns` are of all of them."""

    has: Flags
    columns: list[pa.Array]
    has_unknown: bool = False


class Changed(NamedTuple):
    """Log rows, how many of each kind there are, and whether documents have fields without a column."""

    rows: pa.RecordBatch
    operations: dict[str, int]
    has_unknown: bool


def change_rows(
    events: Events, chosen: Ints, ordinal: Ints, schema: TableSchema, arrow_schema: pa.Schema
) -> Changed:
    """The chosen events, which change documents of one collection, as log rows."""
    op = _LETTERS[events.operations[chosen]]
    numbers = events.transactions[chosen]
    key_at = schema.names.index(ID)
    keys = _texts(events.document_keys, chosen, (schema.columns[key_at],)).columns[0]
    after = _texts(events.after, chosen, schema.columns)
    before = _texts(events.before, chosen, schema.columns)
    is_delete = op == ord("d")
    columns = list(after.columns)
    columns[key_at] = pc.if_else(pa.array(is_delete), pa.scalar(None, pa.string()), keys)
    old_kind = np.where(before.has, ord("f"), np.where(is_delete, ord("k"), ord("n"))).astype(np.uint8)
    changes = Changes(
        op=op,
        tx=events.times[chosen].astype(np.int64),
        ordinal=ordinal,
        xid=np.maximum(numbers, 0).astype(np.uint64),
        commit_ts_us=events.committed_us[chosen],
        columns=columns,
        old=_old(before, keys, key_at, old_kind),
        old_kind=old_kind,
        unchanged=_absent(~is_delete & ~after.has, _looked_up(events, chosen), len(columns), key_at),
    )
    return Changed(*log_rows(changes, schema, arrow_schema), after.has_unknown)


def documents_after(events: Events, chosen: Ints) -> Documents:
    """The documents that the chosen events tell of, as the rows have them."""
    return _found(events.after, chosen)[1]


def _old(before: _Texts, keys: pa.Array, key_at: int, old_kind: npt.NDArray[np.uint8]) -> list[pa.Array]:
    told = old_kind != ord("n")
    if not told.any():
        return []
    columns = list(before.columns)
    columns[key_at] = pc.if_else(pa.array(told), keys, pa.scalar(None, pa.string()))
    return columns


def _looked_up(events: Events, chosen: Ints) -> Flags:
    is_update: Flags = events.operations[chosen] == Operation.UPDATE
    return np.zeros(len(chosen), np.bool_) if events.exact else is_update


def _absent(gone: Flags, looked_up: Flags, columns: int, key_at: int) -> Absent | None:
    """All columns but the key's, where there is no document; of one that was looked up none."""
    told = gone | looked_up
    if not told.any():
        return None
    others = np.array([number for number in range(columns) if number != key_at], np.int32)
    offsets = np.concatenate([[0], np.cumsum(gone * len(others))]).astype(np.int32)
    return offsets, np.tile(others, int(gone.sum())), np.packbits(told, bitorder="little")


def _texts(images: Images, chosen: Ints, columns: tuple[SourceColumn, ...]) -> _Texts:
    has, documents = _found(images, chosen)
    texts, has_unknown = _read(documents, columns)
    if has.all():
        return _Texts(has, texts, has_unknown)
    at = np.cumsum(has) - 1
    scattered = pa.array(np.where(has, at, 0), mask=~has)
    return _Texts(has, [text.take(scattered) for text in texts], has_unknown)


def _found(images: Images, chosen: Ints) -> tuple[Flags, Documents]:
    """Which of the chosen events have an image, and those."""
    places = np.searchsorted(images.rows, chosen)
    found = np.minimum(places, max(len(images.rows) - 1, 0))
    has: Flags = images.rows[found] == chosen if len(images.rows) else np.zeros(len(chosen), np.bool_)
    wanted = places[has]
    documents = images.documents
    return has, Documents(documents.raw, documents.starts[wanted], documents.ends[wanted])


def _read(documents: Documents, columns: tuple[SourceColumn, ...]) -> tuple[list[pa.Array], bool]:
    parts: list[Sequence[pa.Array]] = []
    has_unknown = False
    for rows in _reader(columns).read(documents):
        parts.append([rows.text(column) for column in columns])
        has_unknown |= rows.has_unknown
    if len(parts) == 1:
        return list(parts[0]), has_unknown
    texts = [
        pa.concat_arrays([part[number] for part in parts]) if parts else pa.array([], pa.string())
        for number in range(len(columns))
    ]
    return texts, has_unknown


@lru_cache(_READERS_KEPT)
def _reader(columns: tuple[SourceColumn, ...]) -> RowReader:
    return RowReader(columns)

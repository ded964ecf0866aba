"""Changes as the JSON items that clients read: one rendering for all shapes that look at a table alike.

A `View` is what the bytes depend on: table, columns, key, replica mode. Shapes with equal views share what
is rendered of a batch; only which items a shape gets, and which of them is its transaction's last, is its
own. An item is therefore written without its end, and `assembly` adds it.

What a (row, action) gives, the action being the router's verdict on the shape's condition:

    insert   the new row in full: an insert, or an update that moved the row into the shape
    delete   the old row's key columns; all its columns with replica=full or without a primary key
    update   nothing if no selected column differs;
             delete at op and insert at op + 1, each naming the other's key, if the key differs;
             else key and changed columns, or with replica=full the whole row and `old_value`, what changed

Without a primary key all columns the table had when the shape was made form the key, the unselected ones
too. An update of those alone changes the key, so it is told, though the selected values are equal: a later
delete would otherwise name a row the client does not know.

Values are the texts of the log, strings or null. Keys are what the snapshot's SQL builds (`sql.py`).

Measured per million rows of 11 columns in batches of 1,000: updates of one column 0.7, inserts 1.1, updates
with replica=full 1.4 CPU-seconds. A batch of one row takes 0.15 ms, nearly all of it to find the buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from json import dumps
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.capture.transactions import ChangeRows
from penstock.core.stream import StreamId
from penstock.shapes.rendering import renderer_kernels as kernels
from penstock.shapes.rendering.assembly_kernels import choose_items, distinct_changes
from penstock.text_kernels import Addresses, addresses

if TYPE_CHECKING:
    from penstock.shapes.definition import ShapeDefinition

INSERT, UPDATE, DELETE = kernels.ACTION_INSERT, kernels.ACTION_UPDATE, kernels.ACTION_DELETE

Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]

_TXID_MASK = 0xFFFFFFFF  # clients know the 32 bits that replication sends


@dataclass(frozen=True, slots=True)
class View:
    """`columns` are the selected ones, in the table's order; `key` in its index's order."""

    stream: StreamId
    columns: tuple[str, ...]
    key: tuple[str, ...]
    replica: Literal["default", "full"] = "default"
    has_primary_key: bool = True

    @classmethod
    def of(cls, definition: ShapeDefinition) -> View:
        key = definition.key or definition.card.selectable
        return cls(definition.table, definition.columns, key, definition.replica, bool(definition.key))


@dataclass(frozen=True, slots=True)
class Rendered:
    """Items in the order of the rows they were made of; the items of row n are `first[n]:first[n + 1]`."""

    first: Int32s
    tx: Int64s
    op: Int64s
    kind: Bytes  # ord of i, u, d
    source: Int32s  # index into the rows given
    key_ends: Int64s
    keys: Bytes
    json_ends: Int64s
    json: Bytes  # each item without its closing

    def choose(self, slots: Int32s, positions: Int32s) -> Chosen:
        """The items of row `positions[n]` for shape `slots[n]`, for every n."""
        return Chosen(self, *choose_items(self.first, slots, positions))


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which items go to which shapes, item by item; `choices` says by which entry each was chosen."""

    rendered: Rendered
    slots: Int32s
    items: Int32s
    choices: Int32s
    extra: Bytes = field(default_factory=lambda: np.empty(0, np.uint8))
    extra_ends: Int64s = field(default_factory=lambda: np.empty(0, np.int64))  # empty: nothing is extra

    def where(self, kept: npt.NDArray[np.bool_]) -> Chosen:
        """These items alone, before they have more headers."""
        assert not len(self.extra_ends)
        return Chosen(self.rendered, self.slots[kept], self.items[kept], self.choices[kept])

    def with_extra(self, headers: pa.BinaryArray) -> Chosen:
        """The same, with more headers for each item, such as `,"tags":["…"]`."""
        assert len(headers) == len(self.items)
        _, offsets, data = headers.buffers()
        ends = np.frombuffer(offsets, np.int32)[headers.offset : headers.offset + len(headers) + 1]
        extra = np.frombuffer(data, np.uint8).copy() if data is not None else np.empty(0, np.uint8)
        return Chosen(self.rendered, self.slots, self.items, self.choices, extra, ends.astype(np.int64))


def distinct(rows: Int32s, actions: Bytes) -> tuple[Int32s, Bytes, Int32s]:
    """Each (row, action) once, for rendering; and the position there of each that was given."""
    return distinct_changes(rows, actions)


class Renderer:
    """Renders changes of one batch for any number of views."""

    def __init__(self, changes: ChangeRows) -> None:
        self._changes = changes
        self._txid = (changes.xid & np.uint64(_TXID_MASK)).astype(np.int64)
        self._cells: dict[str, tuple[Addresses, Addresses]] = {}
        self._alive: list[pa.Array] = []  # the kernel reads their buffers by address

    def render(self, view: View, rows: Int32s, actions: Bytes, *, keep_unchanged: bool = False) -> Rendered:
        """The items of these rows. `keep_unchanged`: tell of updates of no selected column as well."""
        layout = _layout(view)
        cells = [self._column(name) for name in layout.names]
        return Rendered(
            *kernels.render_items(
                np.array([new for new, _ in cells], np.int64),
                np.array([old for _, old in cells], np.int64),
                layout.key,
                layout.is_key,
                view.has_primary_key,
                view.replica == "full",
                keep_unchanged,
                rows,
                actions,
                self._changes.tx[rows],
                self._changes.op_index[rows],
                self._txid[rows],
                layout.text,
                layout.ends,
            )
        )

    def _column(self, name: str) -> tuple[Addresses, Addresses]:
        cells = self._cells.get(name)
        if cells is None:
            new, old = self._changes.new(name), self._changes.old(name)
            self._alive += (new, old)
            cells = self._cells[name] = (addresses(new), addresses(old))
        return cells


def render(
    changes: ChangeRows, view: View, rows: Int32s, actions: Bytes, *, keep_unchanged: bool = False
) -> Rendered:
    """As `Renderer.render`, for one view."""
    return Renderer(changes).render(view, rows, actions, keep_unchanged=keep_unchanged)


def render_keys(stream: StreamId, columns: Sequence[pa.StringArray]) -> pa.BinaryArray:
    """The keys of rows whose key is these columns."""
    count = len(columns[0])
    cells = np.array([addresses(column) for column in columns], np.int64)
    ends, keys = kernels.render_key_column(
        cells, count, np.frombuffer(key_prefix(stream).encode(), np.uint8).copy()
    )
    offsets = np.concatenate((np.zeros(1, np.int32), ends.astype(np.int32)))
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(keys)])


@dataclass(frozen=True, slots=True)
class _Layout:
    """What of a view the kernel needs: the columns to read, selected ones first, and the constant text."""

    names: tuple[str, ...]
    key: Int64s
    is_key: npt.NDArray[np.bool_]
    text: Bytes
    ends: Int64s


@lru_cache(maxsize=1_000)
def _layout(view: View) -> _Layout:
    names = view.columns + tuple(name for name in view.key if name not in view.columns)
    relation = f"[{_json(view.stream.namespace)},{_json(view.stream.name)}]"
    parts = {
        kernels.RELATION: key_prefix(view.stream),
        kernels.OPEN: '{"key":"',
        kernels.VALUE: '","value":{',
        kernels.OLD_VALUE: '},"old_value":{',
        kernels.HEADERS_INSERT: f'}},"headers":{{"operation":"insert","relation":{relation},"txids":[',
        kernels.HEADERS_UPDATE: f'}},"headers":{{"operation":"update","relation":{relation},"txids":[',
        kernels.HEADERS_DELETE: f'}},"headers":{{"operation":"delete","relation":{relation},"txids":[',
        kernels.LSN: '],"lsn":"',
        kernels.OP_POSITION: '","op_position":',
        kernels.KEY_CHANGE_TO: ',"key_change_to":"',
        kernels.KEY_CHANGE_FROM: ',"key_change_from":"',
    } | {kernels.COLUMNS + index: f"{_json(name)}:" for index, name in enumerate(view.columns)}
    texts = [parts[number].encode() for number in range(len(parts))]
    return _Layout(
        names,
        np.array([names.index(name) for name in view.key], np.int64),
        np.array([name in view.key for name in view.columns], np.bool_),
        np.frombuffer(b"".join(texts), np.uint8).copy(),
        np.cumsum([len(text) for text in texts], dtype=np.int64),
    )


def _json(name: str) -> str:
    return dumps(name, ensure_ascii=False)


def key_prefix(stream: StreamId) -> str:
    """The part of a key that names the table."""
    parts = (name.replace("/", "//").replace(".", "..") for name in (stream.namespace, stream.name))
    return ".".join(f'"{part}"' for part in parts)

"""Changes of tables as the live lane passes them on: columns of a batch, never an object per row.

An item of the tail becomes one `TransactionFragment` if it is small: whole transactions. A larger one
becomes several, and the last alone says that it is the last: what comes before is no
whole transaction to anybody. Of each table the changes come in the order of (tx, op) over all fragments.

Why that holds: the changes of a piece are in their order, and pieces are taken stream by stream, in the order
of their first changes. The log gives them so (`capture.tail_reader`); those in memory come as capture wrote
them, leaf by leaf, and are put in that order (`MessageConverter`). So once another piece begins, whatever
lies before its first change is complete. Rows of the leaves of a partitioned table are rows of its root: they
are merged by (tx, op) (`Partitions`). They are rows of the leaves as well: `partitions` has them as those of
tables by themselves, each leaf's in their order, since they are cut where those of the root are.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.capture.tail_items import Piece, Transactions
from penstock.capture.tail_reader import first_change
from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn
from penstock.core.stream import StreamId
from penstock.log import columns as log_columns

INSERT, UPDATE, DELETE, TRUNCATE = (ord(letter) for letter in "iudt")
OLD_FULL = ord("f")
FRAGMENT_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class TableVersion:
    """The columns of a table at some time, by the source's names and in the table's order.

    Equal if they have the same types; `columns` says more of each, which may differ between leaves.
    """

    types: Mapping[str, tuple[int, int]]
    columns: Mapping[str, SourceColumn] = field(compare=False, repr=False)

    @classmethod
    def of(cls, schema: pa.Schema) -> TableVersion:
        columns = {column.name: column for column in filter(None, map(log_columns.source_column, schema))}
        types = {name: (_type_number(column), column.type_modifier) for name, column in columns.items()}
        return cls(types, columns)


def _type_number(column: SourceColumn) -> int:
    """Of a source whose types have no numbers, one that is made of the type's name."""
    return column.type_oid or -1 - zlib.crc32(column.type_text.encode())


_VERSIONS: dict[str, TableVersion] = {}
_VERSIONS_MAX = 100_000


class ChangeRows:
    """Changes of one table, in the order of (tx, op), with the columns they had when they were made.

    Values are the source's text; a column that the row's version does not have reads as null.
    """

    def __init__(self, stream: StreamId, leaf: StreamId, schema_id: str, rows: pa.RecordBatch) -> None:
        self.stream = stream
        self.leaf = leaf
        self.schema_id = schema_id
        self.rows = rows

    def __len__(self) -> int:
        count: int = self.rows.num_rows
        return count

    @cached_property
    def tx(self) -> npt.NDArray[np.int64]:
        return _numbers(self.rows, log_columns.TX)

    @cached_property
    def op_index(self) -> npt.NDArray[np.int64]:
        return _numbers(self.rows, log_columns.OP_INDEX)

    @cached_property
    def memory(self) -> tuple[int, int]:
        """What it keeps in memory: the same for all slices of the same rows, and how many bytes it takes."""
        _, numbers = self.rows.column(log_columns.TX).buffers()
        return numbers.address, self.rows.get_total_buffer_size()

    @cached_property
    def xid(self) -> npt.NDArray[np.uint64]:
        found: npt.NDArray[np.uint64] = self.rows.column(log_columns.XID).to_numpy()
        return found

    @cached_property
    def op(self) -> npt.NDArray[np.uint8]:
        """`INSERT`, `UPDATE`, `DELETE` or `TRUNCATE`."""
        return _letters(self.rows.column(log_columns.OP))

    @cached_property
    def old_kind(self) -> npt.NDArray[np.uint8]:
        """What the source sent of the row as it was: `f` all of it, `k` its key, `n` nothing."""
        return _letters(self.rows.column(log_columns.OLD_KIND))

    @cached_property
    def version(self) -> TableVersion:
        """The columns there are. Equal objects for equal schema ids, as long as those are in use."""
        found = _VERSIONS.get(self.schema_id)
        if found is None:
            while len(_VERSIONS) >= _VERSIONS_MAX:
                del _VERSIONS[next(iter(_VERSIONS))]
            found = _VERSIONS[self.schema_id] = TableVersion.of(self.rows.schema)
        return found

    def new(self, name: str) -> pa.StringArray:
        """A column after the change; of a deleted row null."""
        if name not in self.version.types:
            return pa.nulls(len(self), pa.string())
        return self.rows.column(log_columns.stored_name(name))

    def old(self, name: str) -> pa.StringArray:
        """A column before the change; of an inserted row null."""
        if name not in self.version.types:
            return pa.nulls(len(self), pa.string())
        return pc.struct_field(self.rows.column(log_columns.OLD), log_columns.stored_name(name))

    def between(self, start: Lsn, end: Lsn | None = None) -> ChangeRows | None:
        """Those with `start <= tx < end`; None, if there are none."""
        first = int(np.searchsorted(self.tx, int(start)))
        stop = len(self) if end is None else int(np.searchsorted(self.tx, int(end)))
        if first >= stop:
            return None
        return self if stop - first == len(self) else self.slice(first, stop)

    def slice(self, start: int, stop: int) -> ChangeRows:
        return ChangeRows(self.stream, self.leaf, self.schema_id, self.rows.slice(start, stop - start))


@dataclass(frozen=True, slots=True)
class TransactionFragment:
    """Changes up to `end`; without `is_last` others up to there are to come.

    Without changes `first_tx` and `last_tx` are 0. `at`: when capture had them; None: they are from the log.
    `partitions`: of `changes`, those that came from partitions, once more, under the partitions' names.
    `untold`: as its item says (`Transactions`), each part of it.
    """

    first_tx: int
    last_tx: int
    end: Lsn
    changes: list[ChangeRows]
    is_last: bool = True
    at: float | None = None
    partitions: list[ChangeRows] = field(default_factory=list)
    untold: Mapping[StreamId, tuple[int, ...]] = field(default_factory=dict)


class Taken(NamedTuple):
    """`changes` and `partitions` of a fragment."""

    changes: list[ChangeRows]
    partitions: list[ChangeRows]


class Partitions:
    """Pieces of one table; of a partitioned one those of its leaves, whose changes are its own and theirs."""

    def __init__(self, pieces: Iterable[ChangeRows]) -> None:
        self._pieces = sorted((piece for piece in pieces if len(piece)), key=_first)

    def of_root(self) -> list[ChangeRows]:
        """All changes, in the order of (tx, op). Neighbours of one version become one."""
        found: list[ChangeRows] = []
        for _, same in itertools.groupby(self._pieces, key=lambda piece: piece.version):
            group = list(same)
            found.append(group[0] if len(group) == 1 else _merged_alike(group))
        return found

    def of_leaves(self) -> list[ChangeRows]:
        """The changes of leaves as those of tables by themselves; none, if it has no partitions."""
        return [
            ChangeRows(piece.leaf, piece.leaf, piece.schema_id, piece.rows)
            for piece in self._pieces
            if piece.leaf != piece.stream
        ]


class TransactionBuilder:
    """Collects pieces, and gives the changes of each table in their order."""

    def __init__(self) -> None:
        self._pieces: dict[StreamId, list[ChangeRows]] = {}
        self.bytes = 0

    def add(self, piece: Piece) -> None:
        changes = ChangeRows(piece.stream, piece.leaf, piece.schema_id, piece.rows)
        self._pieces.setdefault(piece.stream, []).append(changes)
        self.bytes += piece.rows.get_total_buffer_size()

    def take(self, open_stream: StreamId | None = None) -> Taken:
        """All there is; of `open_stream`, only what lies before the last piece, since more may come."""
        taken = Taken([], [])
        kept: dict[StreamId, list[ChangeRows]] = {}
        for stream, pieces in self._pieces.items():
            whole = pieces
            if stream == open_stream:
                whole, kept[stream] = _before_last(pieces)
            partitions = Partitions(whole)
            taken.changes.extend(partitions.of_root())
            taken.partitions.extend(partitions.of_leaves())
        self._pieces = kept
        self.bytes = sum(each.rows.get_total_buffer_size() for pieces in kept.values() for each in pieces)
        return taken


class MessageConverter:
    """Items of the tail to fragments of at most about `bytes_max`."""

    def __init__(self, bytes_max: int = FRAGMENT_BYTES) -> None:
        self._bytes_max = bytes_max

    def fragments(self, item: Transactions) -> Iterator[TransactionFragment]:
        """At least one, so that it is known that nothing happened up to its end."""
        builder = TransactionBuilder()
        for piece in _by_stream(item.pieces):
            builder.add(piece)
            if builder.bytes > self._bytes_max and (taken := builder.take(piece.stream)).changes:
                yield _fragment(item, taken, is_last=False)
        yield _fragment(item, builder.take(), is_last=True)


def _by_stream(pieces: Iterable[Piece]) -> Iterable[Piece]:
    """Stream by stream, in the order of their first changes. What is read as it is asked for, comes so."""
    if not isinstance(pieces, Sequence):
        return pieces
    filled = [piece for piece in pieces if piece.rows.num_rows]
    return sorted(filled, key=lambda piece: (piece.stream, *first_change(piece)))


def _merged_alike(pieces: Sequence[ChangeRows]) -> ChangeRows:
    first = pieces[0]
    rows = pa.concat_batches([_with_columns_of(first, piece) for piece in pieces])
    if any(_last(before) > _first(after) for before, after in itertools.pairwise(pieces)):
        order = np.lexsort((_numbers(rows, log_columns.OP_INDEX), _numbers(rows, log_columns.TX)))
        rows = rows.take(pa.array(order))
    return ChangeRows(first.stream, first.leaf, first.schema_id, rows)


def _with_columns_of(model: ChangeRows, piece: ChangeRows) -> pa.RecordBatch:
    """The same rows in the order of `model`'s columns: a leaf may have been made with another."""
    schema = model.rows.schema
    if piece.rows.schema.equals(schema, check_metadata=True):
        return piece.rows
    arrays = [piece.rows.column(name) for name in schema.names]
    at = schema.get_field_index(log_columns.OLD)
    fields = list(schema.field(at).type)
    old = piece.rows.column(log_columns.OLD)
    values = [pc.struct_field(old, field.name) for field in fields]
    arrays[at] = pa.StructArray.from_arrays(values, fields=fields, mask=old.is_null())
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _before_last(pieces: Sequence[ChangeRows]) -> tuple[list[ChangeRows], list[ChangeRows]]:
    """What lies before the first change of the last piece, and the rest."""
    *earlier, last = pieces
    tx, op = _first(last)
    before, rest = [], []
    for piece in earlier:
        below = int(np.searchsorted(piece.tx, tx))
        through = int(np.searchsorted(piece.tx, tx, side="right"))
        cut = below + int(np.searchsorted(piece.op_index[below:through], op))
        if cut:
            before.append(piece.slice(0, cut))
        if cut < len(piece):
            rest.append(piece.slice(cut, len(piece)))
    return before, [*rest, last]


def _fragment(item: Transactions, taken: Taken, *, is_last: bool) -> TransactionFragment:
    first = min((_first(each)[0] for each in taken.changes), default=0)
    last = max((_last(each)[0] for each in taken.changes), default=0)
    return TransactionFragment(
        first, last, item.end, taken.changes, is_last, item.at, taken.partitions, item.untold
    )


def _first(changes: ChangeRows) -> tuple[int, int]:
    return int(changes.tx[0]), int(changes.op_index[0])


def _last(changes: ChangeRows) -> tuple[int, int]:
    return int(changes.tx[-1]), int(changes.op_index[-1])


def _numbers(rows: pa.RecordBatch, name: str) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = rows.column(name).to_numpy()
    return found


def _letters(texts: pa.StringArray) -> npt.NDArray[np.uint8]:
    """Texts of one letter each."""
    _, offsets, letters = texts.buffers()
    start = int(np.frombuffer(offsets, np.int32)[texts.offset])
    return np.frombuffer(letters, np.uint8)[start : start + len(texts)]

"""Documents as rows of a table: a batch in, columns out, as Arrow values and as the log's text.

Promise: whichever way it is read, a row is the same: what `TYPES.cast_text` makes of `texts` is `values`. And
every value of a document is in one of the table's columns, exactly; but for a key of another kind than its
column's, which is bad. (In the layout `fields`, of a name that occurs twice in a document, the last value.)

It holds because both come from the same located values: those that fit their column's form fill an Arrow
array, from which the text is printed; all others, and fields without a column, are copied into the document
of `_rest`. Where a column is held otherwise than by its type, its values are cast from the text: there is one
cast to be exact, not two.

No Python object is made per row or value. Limits: `fields.CELLS_MAX` rows × columns at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.schema import SourceColumn
from penstock.sources.mongodb import bson_kernels, fitting_kernels, printing_kernels
from penstock.sources.mongodb import column_kernels as kernels
from penstock.sources.mongodb.documents import Documents, Values, json_texts, json_values, malformed
from penstock.sources.mongodb.fields import CELLS_MAX, DECIMAL_DIGITS, Column, Form, fill
from penstock.sources.mongodb.names import Names
from penstock.sources.mongodb.types import TYPES, Whole, content_of, scale_of
from penstock.text_kernels import Bytes, Flags, Indices
from penstock.values.text_casts import CastResult, one_nan

_INTEGERS = kernels.IS_INT32 | kernels.IS_INT64 | kernels.IS_WIDE
_FITTING = {
    Form.INT32: kernels.IS_INT32,
    Form.INT64: _INTEGERS,
    Form.DOUBLE: kernels.IS_INT32 | kernels.IS_INT64 | kernels.IS_DOUBLE,
    Form.BOOLEAN: kernels.IS_BOOLEAN,
    Form.DATE: kernels.IS_DATE,
    Form.STRING: kernels.IS_STRING,
    Form.OBJECT_ID: kernels.IS_OBJECT_ID,
    Form.UUID: kernels.IS_UUID,
    Form.BINARY: kernels.IS_BINARY,
}
_INTEGER_DIGITS = {kernels.IS_INT32: 10, kernels.IS_INT64: 16, kernels.IS_WIDE: 19}


class RowReader:
    """Of a table with these columns, perhaps more than are asked for: `_rest` is what none of them has."""

    def __init__(self, columns: Sequence[SourceColumn]) -> None:
        self.columns = tuple(columns)
        self._fields = [column for column in columns if _is_field(column)]
        self._names = Names(column.name for column in self._fields)
        self._has_rest = any(content_of(column) is Whole.REST for column in columns)

    def read(self, documents: Documents) -> Iterator[Rows]:
        """All documents, in order, in parts that are not too large."""
        rows_max = max(1, CELLS_MAX // max(1, len(self._fields)))
        for first in range(0, documents.rows, rows_max):
            yield self._locate(documents.part(first, first + rows_max), first)

    def _locate(self, part: Documents, first: int) -> Rows:
        kinds = np.empty((len(self._fields), part.rows), np.uint8)
        positions = np.empty((len(self._fields), part.rows), np.int32)
        arguments = part.raw, part.starts, part.ends
        row, why, skip, rest = 0, kernels.NEW_NAME, not self._has_rest, False
        while why == kernels.NEW_NAME:
            row, why, _, _ = kernels.locate(*arguments, row, *self._names.arrays, skip, kinds, positions)
            if why == kernels.NEW_NAME:  # from here on there is something for `_rest`
                skip = rest = True
        if why == kernels.BROKEN:
            raise malformed(first + row, bson_kernels.MALFORMED)
        found = [
            _Located(column, Values(part.raw, kinds[number], positions[number], part.ends - 1))
            for number, column in enumerate(self._fields)
        ]
        return Rows(part, self.columns, found, self._names, rest)


class Rows:
    def __init__(
        self,
        documents: Documents,
        columns: Sequence[SourceColumn],
        located: Sequence[_Located],
        names: Names,
        has_unknown: bool,
    ) -> None:
        self._documents = documents
        self._columns = columns
        self._located = located
        self._by_name = {each.column.name: each for each in located}
        self._names = names
        self.has_unknown = has_unknown  # fields that no column has, of a table that has a `_rest`

    @property
    def count(self) -> int:
        return self._documents.rows

    def values(self, column: SourceColumn) -> CastResult:
        """The column in its Arrow type. Only of a key something can be bad, and of what is held otherwise."""
        if column.held_as:
            return TYPES.cast_text(self._text(column), column)
        located = self._by_name.get(column.name)
        if located is None:
            return CastResult(self._text(column))
        bad = located.unfit if column.name in self._keys and located.unfit.any() else None
        return CastResult(located.values, None if bad is None else pa.array(bad))

    def text(self, column: SourceColumn) -> pa.Array:
        """As the log has it; a key that is bad as JSON."""
        text = self._text(column)
        located = self._by_name.get(column.name)
        if located is None or column.name not in self._keys or not located.unfit.any():
            return text
        return pc.if_else(pa.array(located.unfit), json_values(located.found, as_key=True), text)

    def _text(self, column: SourceColumn) -> pa.Array:
        located = self._by_name.get(column.name)
        if located is not None:
            return located.text
        return self._rest if content_of(column) is Whole.REST else self._whole

    @property
    def _keys(self) -> frozenset[str]:
        return frozenset({"_id"})

    @cached_property
    def _whole(self) -> pa.Array:
        return json_texts(self._documents)

    @cached_property
    def _rest(self) -> pa.Array:
        beside_key = [each for each in self._located if each.column.name not in self._keys]
        if not self.has_unknown and not any(each.unfit.any() for each in beside_key):
            return pa.nulls(self.count, pa.string())
        unfit = np.zeros((len(self._located), self.count), np.bool_)
        for number, each in enumerate(self._located):
            if each.column.name not in self._keys:
                unfit[number] = each.unfit
        documents = self._documents
        raw, kinds, positions, limits = fitting_kernels.gather_rest(
            documents.raw, documents.starts, documents.ends, *self._names.arrays, unfit
        )
        raw.flags.writeable = False  # compiled functions are specialised by this flag
        return json_values(Values(raw, kinds, positions, limits))


@dataclass
class _Located:
    """A field's column, and where its values are."""

    column: SourceColumn
    found: Values

    @cached_property
    def unfit(self) -> Flags:
        """Values that the column has no place for."""
        unfit = np.zeros(len(self.found.kinds), np.bool_)
        content = content_of(self.column)
        if content not in (Form.JSON, Whole.KEY):
            fitting, scale = _fitting(self.column), scale_of(self.column)
            located = self.found.raw, self.found.kinds, self.found.positions
            digits = np.zeros(2, np.int64)
            seen = kernels.survey(*located, digits) & ~kernels.IS_NULL
            all_fit = seen & ~fitting == 0 and digits[0] <= DECIMAL_DIGITS - scale and digits[1] <= scale
            if not all_fit or seen & kernels.IS_DATE:
                fitting_kernels.mark_unfit(*located, fitting, DECIMAL_DIGITS - scale, scale, unfit)
        return unfit

    @cached_property
    def filled(self) -> pa.Array:
        """The values that fit; dates in milliseconds."""
        content = content_of(self.column)
        if content is Whole.KEY:
            return json_values(self.found, as_key=True)
        found = self.found
        if self.unfit.any():
            kinds = np.where(self.unfit, np.uint8(0), found.kinds)
            found = Values(found.raw, kinds, found.positions, found.limits)
        assert isinstance(content, Form)
        return fill(Column(self.column.name, content, scale_of(self.column)), found)

    @property
    def values(self) -> pa.Array:
        content = content_of(self.column)
        if content is Form.DATE:
            return self.filled.cast(pa.timestamp("us", "UTC"))
        return one_nan(self.filled) if content is Form.DOUBLE else self.filled

    @cached_property
    def text(self) -> pa.Array:
        return _print(self.filled, content_of(self.column), scale_of(self.column))


def _is_field(column: SourceColumn) -> bool:
    return content_of(column) not in (Whole.DOCUMENT, Whole.REST)


def _fitting(column: SourceColumn) -> int:
    content = content_of(column)
    if content is not Form.DECIMAL:
        assert isinstance(content, Form)
        return _FITTING[content]
    room = DECIMAL_DIGITS - scale_of(column)
    return kernels.IS_DECIMAL | sum(kind for kind, digits in _INTEGER_DIGITS.items() if digits <= room)


def _print(filled: pa.Array, content: Form | Whole, scale: int) -> pa.Array:
    if pa.types.is_string(filled.type):
        return filled
    if pa.types.is_boolean(filled.type):
        return pc.if_else(filled, pa.scalar("t"), pa.scalar("f"))
    if pa.types.is_integer(filled.type):
        return filled.cast(pa.string())
    valid = filled.is_valid().to_numpy(zero_copy_only=False)
    buffers = filled.buffers()
    assert filled.offset == 0, "it was just filled"
    printers: dict[Form | Whole, Callable[[], tuple[Indices, Bytes]]] = {
        Form.DATE: lambda: printing_kernels.print_dates(_numbers(buffers[1], np.int64), valid),
        Form.DOUBLE: lambda: printing_kernels.print_doubles(_numbers(buffers[1], np.uint64), valid),
        Form.DECIMAL: lambda: printing_kernels.print_decimals(
            _numbers(buffers[1], np.uint64).reshape(-1, 2), scale, valid
        ),
        Form.BINARY: lambda: printing_kernels.print_bytes(
            _numbers(buffers[1], np.int32), _numbers(buffers[2], np.uint8), valid
        ),
    }
    offsets, text = printers[content]()
    bits = buffers[0] if filled.null_count else None
    return pa.Array.from_buffers(
        pa.string(), len(filled), [bits, pa.py_buffer(offsets), pa.py_buffer(text)], null_count=-1
    )


def _numbers(buffer: pa.Buffer | None, dtype: Any) -> Any:
    values = np.frombuffer(buffer, dtype) if buffer is not None and buffer.size else np.empty(0, dtype)
    values.flags.writeable = False
    return values

"""Top-level fields as columns, with types that widen as values of more kinds appear.

Promise: a column holds every value of its field exactly, or the column is JSON text. Which type it has
follows from all kinds of values seen so far, and only from them, so types widen and never go back:

| kinds of values | column |
|---|---|
| int32 | int32 |
| integers | int64 |
| doubles, with integers of at most 2^53 if any | double |
| Decimal128, with integers if any, that fit 38 digits with one scale | decimal(38, scale) |
| boolean, date, string | boolean, timestamp in milliseconds (UTC), string |
| ObjectId, UUID (binary of subtype 4) | string: 24 hex digits, 8-4-4-4-12 |
| binary of subtype 0 | binary |
| all else, and all mixtures | JSON text (`json_kernels`), each value with its type |

A field that is missing and one that is null are both null. Decimals keep their value, not the number of
zeros at their end; NaN, infinities and -0 have no place in a decimal column and make it JSON. A string that
is not UTF-8 makes its column JSON. Limits: `FIELDS_MAX` fields, and `CELLS_MAX` rows × fields at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.errors import TooManyFieldsError
from penstock.sources.mongodb import bson_kernels
from penstock.sources.mongodb import column_kernels as kernels
from penstock.sources.mongodb.documents import Documents, Values, json_values, malformed
from penstock.sources.mongodb.names import Names
from penstock.text_kernels import Bytes, Ints

FIELDS_MAX = 2_000
CELLS_MAX = 4 * 1024 * 1024
DECIMAL_DIGITS = 38
#: Metadata of an Arrow field: what a text is the text of.
FORM_KEY = b"penstock:bson"


class Form(StrEnum):
    """How a column holds its values."""

    NOTHING = "null"
    INT32 = "int32"
    INT64 = "int64"
    DOUBLE = "double"
    DECIMAL = "decimal"
    BOOLEAN = "boolean"
    DATE = "date"
    STRING = "string"
    OBJECT_ID = "objectId"
    UUID = "uuid"
    BINARY = "binary"
    JSON = "json"


_INTEGERS = kernels.IS_INT32 | kernels.IS_INT64 | kernels.IS_WIDE
#: The first that covers all kinds seen is the form.
_FORMS = (
    (0, Form.NOTHING),
    (kernels.IS_INT32, Form.INT32),
    (_INTEGERS, Form.INT64),
    (kernels.IS_INT32 | kernels.IS_INT64 | kernels.IS_DOUBLE, Form.DOUBLE),
    (_INTEGERS | kernels.IS_DECIMAL, Form.DECIMAL),
    (kernels.IS_BOOLEAN, Form.BOOLEAN),
    (kernels.IS_DATE, Form.DATE),
    (kernels.IS_STRING, Form.STRING),
    (kernels.IS_OBJECT_ID, Form.OBJECT_ID),
    (kernels.IS_UUID, Form.UUID),
    (kernels.IS_BINARY, Form.BINARY),
)
_INTEGER_DIGITS = ((kernels.IS_WIDE, 19), (kernels.IS_INT64, 16), (kernels.IS_INT32, 10))


@dataclass(frozen=True, slots=True)
class Column:
    """`later`: the field came when the collection's columns were known already."""

    name: str
    form: Form
    scale: int = 0
    later: bool = False

    def field(self) -> pa.Field:
        return pa.field(self.name, arrow_type(self), metadata={FORM_KEY: self.form.encode()})


def decide_form(seen: int, whole: int, scale: int) -> tuple[Form, int]:
    """Form and scale of a column with values of these kinds; of decimals, the most digits there were."""
    values = seen & ~kernels.IS_NULL
    form = next((form for kinds, form in _FORMS if values & ~kinds == 0), Form.JSON)
    if form is not Form.DECIMAL:
        return form, 0
    whole = max([whole, *(digits for kind, digits in _INTEGER_DIGITS if values & kind)])
    return (form, int(scale)) if whole + scale <= DECIMAL_DIGITS else (Form.JSON, 0)


def with_room(columns: Iterable[Column]) -> tuple[Column, ...]:
    """As a table has them that values are still to come for: integers in 64 bits.

    Drivers write an integer in 32 bits where it fits, so a field has both sooner or later; a table's column
    that was too narrow would have to be made anew. All other types a table keeps as they were found.
    """
    return tuple(replace(each, form=Form.INT64) if each.form is Form.INT32 else each for each in columns)


def arrow_type(column: Column) -> pa.DataType:
    match column.form:
        case Form.NOTHING:
            return pa.null()
        case Form.INT32:
            return pa.int32()
        case Form.INT64:
            return pa.int64()
        case Form.DOUBLE:
            return pa.float64()
        case Form.DECIMAL:
            return pa.decimal128(DECIMAL_DIGITS, column.scale)
        case Form.BOOLEAN:
            return pa.bool_()
        case Form.DATE:
            return pa.timestamp("ms", "UTC")
        case Form.BINARY:
            return pa.binary()
        case _:
            return pa.string()


class Fields:
    """The fields of a collection that were seen so far, in the order they came in."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._known: set[str] = set()
        self._lookup = Names()
        self._seen: list[int] = []
        self._digits: list[Ints] = []

    def columns(self) -> list[Column]:
        decided = (decide_form(seen, *digits) for seen, digits in zip(self._seen, self._digits, strict=True))
        return [Column(name, *form) for name, form in zip(self._names, decided, strict=True)]

    def schema(self) -> pa.Schema:
        return pa.schema([column.field() for column in self.columns()])

    def read(self, documents: Documents) -> Iterator[pa.RecordBatch]:
        """All fields seen so far, of all documents, in order. A later batch may have more and wider ones."""
        for part, kinds, positions in self._parts(documents):
            yield self._fill(part, kinds, positions)

    def see(self, documents: Documents) -> None:
        """Take in what fields and kinds of values there are."""
        for _ in self._parts(documents):
            pass

    def _parts(self, documents: Documents) -> Iterator[tuple[Documents, Any, Any]]:
        first = 0
        while first < documents.rows:
            part, kinds, positions = self._locate(documents.part(first, first + self._rows_max()), first)
            self._survey(part, kinds, positions)
            yield part, kinds, positions
            first += part.rows

    def _rows_max(self) -> int:
        return max(1, CELLS_MAX // max(len(self._names), 1))

    def _locate(self, part: Documents, first: int) -> tuple[Documents, Any, Any]:
        """Matrices (column, row) for a part of the documents: as many as new fields leave room for."""
        room = max(16, len(self._names))
        kinds = np.empty((room, part.rows), np.uint8)
        positions = np.empty((room, part.rows), np.int32)
        row = 0
        while True:
            row, why, at, size = kernels.locate(
                part.raw, part.starts, part.ends, row, *self._lookup.arrays, False, kinds, positions
            )
            if why == kernels.BROKEN:
                raise malformed(first + row, bson_kernels.MALFORMED)
            if why != kernels.NEW_NAME:
                return part, kinds, positions
            column = len(self._names)
            self._add(part.raw[at : at + size])
            rows = max(row, self._rows_max())
            if column == len(kinds):
                kinds = np.concatenate([kinds[:, :rows], np.empty_like(kinds[:, :rows])])
                positions = np.concatenate([positions[:, :rows], np.empty_like(positions[:, :rows])])
                part = part.part(0, rows)
            kinds[column, :row] = 0

    def _add(self, name: Bytes) -> None:
        if len(self._names) == FIELDS_MAX:
            raise TooManyFieldsError(
                f"The collection's documents have more than {FIELDS_MAX:,} different fields.",
                remedy="Names that carry data make no columns: take each document as one JSON column.",
            )
        self._names.append(self._distinct(name.tobytes().decode(errors="backslashreplace")))
        self._seen.append(0)
        self._digits.append(np.zeros(2, np.int64))
        self._lookup.add(name)

    def _distinct(self, name: str) -> str:
        while name in self._known:  # two names that are not UTF-8 and look alike
            name += "_"
        self._known.add(name)
        return name

    def _survey(self, part: Documents, kinds: Any, positions: Any) -> None:
        for column, digits in enumerate(self._digits):
            self._seen[column] |= kernels.survey(part.raw, kinds[column], positions[column], digits)

    def _fill(self, part: Documents, kinds: Any, positions: Any) -> pa.RecordBatch:
        columns = self.columns()
        limits = part.ends - 1
        arrays = [
            fill(column, Values(part.raw, kinds[number], positions[number], limits))
            for number, column in enumerate(columns)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([column.field() for column in columns]))


def fill(column: Column, values: Values) -> pa.Array:
    """Values as an Arrow array. They are of kinds that the column's form covers."""
    rows = len(values.kinds)
    if column.form is Form.NOTHING:
        return pa.nulls(rows)
    if column.form is Form.JSON:
        return json_values(values)
    validity, nulls = kernels.valid_bits(values.kinds, True)
    bits = pa.py_buffer(validity) if nulls else None
    located = values.raw, values.kinds, values.positions
    if column.form in _TEXTS:
        offsets, text = kernels.fill_texts(*located)
        buffers = [bits, pa.py_buffer(offsets), pa.py_buffer(text)]
    elif column.form is Form.DECIMAL:
        halves = np.empty((rows, 2), np.uint64)
        kernels.fill_decimals(*located, column.scale, halves)
        buffers = [bits, pa.py_buffer(halves)]
    else:
        numbers, kernel = _NUMBERS[column.form]
        out = numbers(rows)
        kernel(*located, out)
        buffers = [bits, pa.py_buffer(out)]
    return pa.Array.from_buffers(arrow_type(column), rows, buffers, null_count=nulls)


_TEXTS = (Form.STRING, Form.OBJECT_ID, Form.UUID, Form.BINARY)
_NUMBERS: dict[Form, tuple[Callable[[int], Any], Callable[..., None]]] = {
    Form.INT32: (lambda rows: np.empty(rows, np.int32), kernels.fill_integers),
    Form.INT64: (lambda rows: np.empty(rows, np.int64), kernels.fill_integers),
    Form.DATE: (lambda rows: np.empty(rows, np.int64), kernels.fill_integers),
    Form.DOUBLE: (lambda rows: np.empty(rows, np.float64), kernels.fill_doubles),
    Form.BOOLEAN: (lambda rows: np.zeros((rows + 7) // 8, np.uint8), kernels.fill_booleans),
}

"""What a MongoDB value becomes in Arrow, and the columns of a collection.

A collection is a table in one of two layouts:

- `document`: `_id`, and `document`, the whole document as canonical Extended JSON (`json_kernels`).
- `fields`: `_id`, a column for each top-level field that was seen, in the form that holds all its values
  exactly (`fields`; integers in 64 bits, whatever was seen of them), and `_rest`: a JSON document of all that
  has no place in those, fields that were not seen before and values of another kind than their column's, null
  if there is none. Behind `_rest` stand the columns of fields that came later (`remembered`).

A row has a field that came later in `_rest`, if it was written before the field had a column, and in that
column, if it was written after: in one of both, and never in none. So such a column says of itself that it
took over values of `_rest` (`SourceColumn.moved_from`), and who reads versions with and without it together
holds on to it (`lake.work`).

So in neither of them a value is lost, rounded, or able to stop a stream. `_id` is the key. In the layout
`document`, and where ids are of several kinds or doubles and decimals, it is the text that is the same
exactly where MongoDB holds ids for equal (`documents.key_texts`); ids of one kind are held as such. Only an
id that comes later and is of another kind has no place: that value is *bad* (`values.rules`).

Dates are held in microseconds, as everywhere; what 64 bits of them do not reach (the year 294247) is in
`_rest`. NaN of a double is held, with one bit pattern for all.

The change log has text: for each type that which Postgres prints for its own of the same name, so conditions
and encoders need no second way to read it. `type_name` is that name, `type_text` MongoDB's, `type_oid` BSON's
number of the type.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

import pyarrow as pa

from penstock.core.schema import SourceColumn
from penstock.sources.mongodb.fields import DECIMAL_DIGITS, Column, Form
from penstock.sources.types import CursorKind
from penstock.values import text_casts
from penstock.values.common_types import CommonType
from penstock.values.rules import TEXT, Rule, TypeRules, always

FAMILY = "mongodb"
ID, DOCUMENT, REST = "_id", "document", "_rest"
Layout = Literal["document", "fields"]


class Whole(StrEnum):
    """What a column has besides the values of a field."""

    KEY = "id"
    DOCUMENT = "document"
    REST = "rest"


@dataclass(frozen=True, slots=True)
class _Type:
    code: int
    name: str
    text: str


_TYPES: dict[Form | Whole, _Type] = {
    Form.INT32: _Type(16, "int4", "int"),
    Form.INT64: _Type(18, "int8", "long"),
    Form.DOUBLE: _Type(1, "float8", "double"),
    Form.DECIMAL: _Type(19, "numeric", "decimal"),
    Form.BOOLEAN: _Type(8, "bool", "bool"),
    Form.DATE: _Type(9, "timestamptz", "date"),
    Form.STRING: _Type(2, "text", "string"),
    Form.OBJECT_ID: _Type(7, "text", "objectId"),
    Form.UUID: _Type(0x405, "uuid", "uuid"),
    Form.BINARY: _Type(5, "bytea", "binData"),
    Form.JSON: _Type(3, "json", "json"),
    Whole.KEY: _Type(0x103, "text", "id"),
    Whole.DOCUMENT: _Type(0x203, "json", "document"),
    Whole.REST: _Type(0x303, "json", "rest"),
}
_CONTENT = {each.code: content for content, each in _TYPES.items()}
#: Ids of these kinds have one text for all that are equal; 1.0 and 1 would have two.
_PLAIN_IDS = frozenset({Form.INT64, Form.STRING, Form.OBJECT_ID, Form.UUID, Form.DATE, Form.BINARY})
_HEADER = 4  # what a modifier of Postgres' numeric has added


def content_of(column: SourceColumn) -> Form | Whole:
    """What the column holds of a document."""
    return _CONTENT[column.type_oid]


def scale_of(column: SourceColumn) -> int:
    """Digits behind the point of a decimal column."""
    return (column.type_modifier - _HEADER) & 0xFFFF if column.type_name == "numeric" else 0


def document_columns() -> tuple[SourceColumn, ...]:
    return _column(ID, Whole.KEY), _column(DOCUMENT, Whole.DOCUMENT)


def field_columns(fields: Sequence[Column]) -> tuple[SourceColumn, ...]:
    """`_id`, the fields in their order, `_rest`, those that came later. A field without a name, or named
    `_rest`, is in that."""
    key = next((_id_content(field.form) for field in fields if field.name == ID), Whole.KEY)
    named = [field for field in fields if field.name not in (ID, REST, "")]
    return (
        _column(ID, key),
        *(_field_column(field) for field in named if not field.later),
        _column(REST, Whole.REST),
        *(replace(_field_column(field), moved_from=REST) for field in named if field.later),
    )


def _field_column(field: Column) -> SourceColumn:
    return _column(field.name, Form.JSON if field.form is Form.NOTHING else field.form, field.scale)


def _id_content(form: Form) -> Form | Whole:
    widened = Form.INT64 if form is Form.INT32 else form
    return widened if widened in _PLAIN_IDS else Whole.KEY


def _column(name: str, content: Form | Whole, scale: int = 0) -> SourceColumn:
    known = _TYPES[content]
    is_decimal = content is Form.DECIMAL
    return SourceColumn(
        name,
        known.code,
        (DECIMAL_DIGITS << 16 | scale) + _HEADER if is_decimal else -1,
        known.name,
        f"decimal({DECIMAL_DIGITS},{scale})" if is_decimal else known.text,
        attribute_number=_number_of(name),
        nullable=name != ID,
        family=FAMILY,
    )


def _number_of(name: str) -> int:
    """A field is known by its name alone: the same number wherever and whenever it is seen."""
    digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=6).digest()
    return int.from_bytes(digest, "big") or 1


def _decimal(column: SourceColumn) -> pa.DataType:
    return pa.decimal128(DECIMAL_DIGITS, scale_of(column))


#: By `type_name`. What is not here is text.
RULES: dict[str, Rule] = {
    "bool": Rule(always(pa.bool_()), text_casts.booleans),
    "int4": Rule(always(pa.int32()), text_casts.integers),
    "int8": Rule(always(pa.int64()), text_casts.integers),
    "float8": Rule(always(pa.float64()), text_casts.floats),
    "numeric": Rule(_decimal, text_casts.decimals),
    "timestamptz": Rule(always(pa.timestamp("us", "UTC")), text_casts.timestamps),
    "bytea": Rule(always(pa.binary()), text_casts.byte_strings),
    "uuid": TEXT,
    "text": TEXT,
    "json": TEXT,
}
_DECIMALS = ("decimal(precision,scale)",)
_CURSOR_KINDS: dict[Form | Whole, CursorKind] = {
    Form.INT32: "integer",
    Form.INT64: "integer",
    Form.DECIMAL: "number",
    Form.DATE: "time",
    Form.STRING: "text",
    Form.OBJECT_ID: "text",
}


class MongoTypes(TypeRules):
    def common(self, column: SourceColumn) -> CommonType:
        is_rest = content_of(column) is Whole.REST
        return CommonType(column.type_name, column.type_modifier, is_rest=is_rest)

    def keeps_values(self, before: SourceColumn, now: SourceColumn) -> bool:
        """A column that widens holds its values in another type, or as another text."""
        return (before.type_oid, before.type_modifier) == (now.type_oid, now.type_modifier)

    def orders_as_held(self, column: SourceColumn) -> bool:
        """Never: bounds of chunks are ids as the server has them, over all their types, and no text."""
        return False

    def cursor_kind(self, column: SourceColumn) -> CursorKind | None:
        """A name with a dot would mean a field inside of another to the server, one with a dollar sign
        something else."""
        if "." in column.name or "$" in column.name:
            return None
        return _CURSOR_KINDS.get(content_of(column))

    def cursor_types(self) -> tuple[str, ...]:
        return tuple(_TYPES[content].text for content in _CURSOR_KINDS)


def _name_of(column: SourceColumn) -> str:
    return column.type_name


TYPES = MongoTypes(RULES, _name_of, {"int4": _DECIMALS, "int8": _DECIMALS, "numeric": _DECIMALS})

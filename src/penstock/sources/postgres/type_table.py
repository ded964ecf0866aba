"""The table of types, for people: every type of Postgres, what it becomes, and its rule for extremes.

The types of the lake are computed from the rules of `types`, so that the printed table cannot say otherwise
than the code. A test against a real server looks for built-in types that are not listed.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.core.iceberg_names import iceberg_name
from penstock.core.schema import SourceColumn
from penstock.sources.postgres.types import arrow_type, load_expression, possible_types

_TEXT_HOLDS_ALL = "every value, as Postgres prints it"


@dataclass(frozen=True, slots=True)
class TypeEntry:
    """Types with one rule. `names` as in pg_type; `shown` what people call them, if not that."""

    names: tuple[str, ...]
    extremes: str = _TEXT_HOLDS_ALL
    shown: str = ""
    modifier: int = -1
    element: str = ""
    held_as: str = ""

    @property
    def column(self) -> SourceColumn:
        name = self.names[0] if self.names else "a type of yours"
        return SourceColumn(
            name, 0, self.modifier, name, self.shown or name, element=self.element, held_as=self.held_as
        )

    @property
    def label(self) -> str:
        return self.shown or ", ".join(f"`{name}`" for name in self.names)

    @property
    def parquet(self) -> str:
        return parquet_name(arrow_type(self.column))

    @property
    def iceberg(self) -> str:
        return _iceberg_name(arrow_type(self.column))

    @property
    def loaded_as(self) -> str:
        return load_expression(self.column)

    @property
    def choices(self) -> str:
        own = self.iceberg == "string" and not self.held_as
        return ", ".join(f"`{each}`" for each in possible_types(self.column) if not (own and each == "text"))


_DECIMAL_12_2 = (12 << 16 | 2) + 4

#: Every type that a column of a table can have.
TYPE_TABLE: tuple[TypeEntry, ...] = (
    TypeEntry(("bool",), "none"),
    TypeEntry(("int2",), "none"),
    TypeEntry(("int4",), "none"),
    TypeEntry(("int8",), "the whole range, −2^63 to 2^63 − 1"),
    TypeEntry(("float4",), "NaN (one bit pattern for all), ±Infinity and −0 are held"),
    TypeEntry(("float8",), "NaN (one bit pattern for all), ±Infinity and −0 are held"),
    TypeEntry(("numeric",), "NaN: dead letter", "`numeric(12,2)`, to 38 digits", _DECIMAL_12_2),
    TypeEntry(
        ("numeric",), "every value, NaN and ±Infinity too", "`numeric` without scale, or wider than 38 digits"
    ),
    TypeEntry(
        ("numeric",),
        "NaN, ±Infinity, more digits before or behind the point than there is room for: dead letter. "
        "Nothing is rounded; zeros at the end need no room",
        '`numeric` with `types: {…: "decimal(38,9)"}`',
        held_as="decimal(38,9)",
    ),
    TypeEntry(("date",), "±infinity: dead letter. BC, and years to 5874897, are held"),
    TypeEntry(("timestamp",), "±infinity, and after 294247-01-10 04:00:54.775807: dead letter. BC is held"),
    TypeEntry(
        ("timestamptz",), "±infinity, and after 294247-01-10 04:00:54.775807 UTC: dead letter. BC is held"
    ),
    TypeEntry(
        ("date", "timestamp", "timestamptz"),
        "every value; ±infinity is `infinity`, `-infinity`, BC ends with ` BC`, instants are in UTC",
        "`date`, `timestamp`, `timestamptz` with `types: {…: text}`",
        held_as="text",
    ),
    TypeEntry(("time",), "every value, `24:00:00` too"),
    TypeEntry(("time",), "24:00:00: dead letter", "`time` with `types: {…: time}`", held_as="time"),
    TypeEntry(("timetz",), "every value with its offset, `24:00:00+00` too"),
    TypeEntry(("interval",), "every value in ISO 8601 (`P1Y2M3DT4H5M6S`), `infinity` too"),
    TypeEntry(("bytea",), "none"),
    TypeEntry(("uuid",), "none; 36 characters, lower case"),
    TypeEntry(("text", "varchar", "name"), "none"),
    TypeEntry(("bpchar",), "blanks at the end stay", "`char(n)`"),
    TypeEntry(("char",), "one byte, or `\\ooo`", '`"char"`'),
    TypeEntry(("json", "jsonb"), "the text itself: numbers of any size, keys given twice (`json`)"),
    TypeEntry(("xml", "jsonpath")),
    TypeEntry(("money",), "every value, as under `lc_monetary = C`: `-$92,233,720,368,547,758.08`"),
    TypeEntry(("bit", "varbit"), "every length, as zeros and ones"),
    TypeEntry(("inet", "cidr", "macaddr", "macaddr8"), "every value; a host is without `/32`"),
    TypeEntry(
        ("_int4",),
        "every array: any dimensions and bounds, NULL elements",
        "arrays of any type: `int4[]`, `text[]`, …",
        element="int4",
    ),
    TypeEntry(
        ("_int4",),
        "several dimensions, bounds of its own (`[0:1]={5,6}`), an element that does not fit: dead letter. "
        "NULL elements and empty arrays are held",
        "arrays with `types: {…: list}`",
        element="int4",
        held_as="list",
    ),
    TypeEntry(
        ("int4range", "int8range", "numrange", "daterange", "tsrange", "tstzrange"),
        "every value; infinite, open and empty ranges",
    ),
    TypeEntry(
        (
            "int4multirange",
            "int8multirange",
            "nummultirange",
            "datemultirange",
            "tsmultirange",
            "tstzmultirange",
        ),
    ),
    TypeEntry(("oid", "xid", "cid", "xid8"), "every value, to 2^32 − 1 or 2^64 − 1"),
    TypeEntry(
        (
            "regproc",
            "regprocedure",
            "regoper",
            "regoperator",
            "regclass",
            "regtype",
            "regrole",
            "regnamespace",
            "regconfig",
            "regdictionary",
            "regcollation",
            "regdatabase",
        ),
        "the name as the source prints it at the time of reading; a rename shows in rows read after it",
    ),
    TypeEntry(("pg_lsn", "tid", "txid_snapshot", "pg_snapshot", "refcursor", "aclitem")),
    TypeEntry(("int2vector", "oidvector")),
    TypeEntry(("tsvector", "tsquery", "gtsvector")),
    TypeEntry(
        ("point", "line", "lseg", "box", "path", "polygon", "circle"),
        "every value, with the shortest digits that are exact",
    ),
    TypeEntry((), "every value", "enums"),
    TypeEntry((), "every value, fields in parentheses", "composite types"),
    TypeEntry((), _TEXT_HOLDS_ALL, "`hstore`, `citext`, `vector`, PostGIS, every other type of an extension"),
)


def parquet_name(arrow: pa.DataType) -> str:
    """A type in Parquet's words."""
    if isinstance(arrow, pa.Decimal128Type):
        return f"DECIMAL({arrow.precision},{arrow.scale})"
    if isinstance(arrow, pa.ListType):
        return f"LIST of {parquet_name(arrow.value_type)}"
    if isinstance(arrow, pa.TimestampType):
        return f"TIMESTAMP(MICROS, {'UTC' if arrow.tz else 'local'})"
    names = {
        pa.bool_(): "BOOLEAN",
        pa.int16(): "INT32 (INT 16)",
        pa.int32(): "INT32",
        pa.int64(): "INT64",
        pa.float32(): "FLOAT",
        pa.float64(): "DOUBLE",
        pa.date32(): "DATE",
        pa.time64("us"): "TIME(MICROS)",
        pa.binary(): "BYTE_ARRAY",
        pa.string(): "STRING",
    }
    return names[arrow]


def _iceberg_name(arrow: pa.DataType) -> str:
    if isinstance(arrow, pa.ListType):
        return f"list<{_iceberg_name(arrow.value_type)}>"
    name = iceberg_name(arrow)
    assert name is not None, "every type that Penstock reads has one"
    return name

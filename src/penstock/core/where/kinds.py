"""The kinds of values a condition knows, and which of the source's types are of which kind.

A kind is what decides a comparison: `int2` and `int8` compare alike, `float4` and `float8` do not convert
alike. Values reach the evaluator as the text that Postgres prints, so a type belongs to a kind only where
that text says everything about its order and equality.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from penstock.core.schema import SourceColumn


class Kind(StrEnum):
    BOOLEAN = "bool"
    INTEGER = "int8"
    NUMERIC = "numeric"
    REAL = "float4"
    DOUBLE = "float8"
    TEXT = "text"
    NAME = "name"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    UUID = "uuid"
    BYTEA = "bytea"
    INTERVAL = "interval"
    JSON = "jsonb"
    PRINTED = "printed"  # of a type that people defined: only its text can be used
    UNKNOWN = "unknown"  # a literal in quotes, or NULL, before something says what it is


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """Arrays, of any dimensions; `element_type` is the name of a base type in `KIND_OF_TYPE`."""

    element_type: str

    @property
    def element(self) -> Kind:
        return KIND_OF_TYPE[self.element_type]

    @property
    def value(self) -> str:
        return f"{self.element_type}[]"


@dataclass(frozen=True, slots=True)
class EnumOf:
    """An enumeration: its labels in their order. A label that is not among them has no place in it."""

    value: str
    labels: tuple[str, ...]


ValueKind = Kind | ArrayOf | EnumOf

FLOATS = frozenset({Kind.REAL, Kind.DOUBLE})
EXACT_NUMBERS = frozenset({Kind.INTEGER, Kind.NUMERIC})
MOMENTS = frozenset({Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ})

#: By the name of the base type in pg_type.
KIND_OF_TYPE = {
    "bool": Kind.BOOLEAN,
    "int2": Kind.INTEGER,
    "int4": Kind.INTEGER,
    "int8": Kind.INTEGER,
    "numeric": Kind.NUMERIC,
    "float4": Kind.REAL,
    "float8": Kind.DOUBLE,
    "text": Kind.TEXT,
    "varchar": Kind.TEXT,
    "date": Kind.DATE,
    "time": Kind.TIME,
    "timestamp": Kind.TIMESTAMP,
    "timestamptz": Kind.TIMESTAMPTZ,
    "uuid": Kind.UUID,
    "bytea": Kind.BYTEA,
}
#: Types with values that the evaluator does not read, with operators that fail for some, or that cut a text.
_PARTIAL = {"interval": Kind.INTERVAL, "jsonb": Kind.JSON, "name": Kind.NAME}
#: What `::` may name.
KIND_OF_CAST = KIND_OF_TYPE | _PARTIAL
#: Built-in types whose comparisons the evaluator does not repeat, and whose cast to text may not be what they
#: print. A domain over one of them has its name and an identifier of its own.
# fmt: off
_BUILT_IN_OTHERS = frozenset(
    {
        "aclitem", "bit", "box", "bpchar", "char", "cid", "cidr", "circle", "datemultirange", "daterange",
        "inet", "int4multirange", "int4range", "int8multirange", "int8range", "interval", "json", "jsonb",
        "jsonpath", "line", "lseg", "macaddr", "macaddr8", "money", "name", "nummultirange", "numrange",
        "oid", "path", "pg_lsn", "pg_snapshot", "point", "polygon", "tid", "timetz", "tsmultirange",
        "tsquery", "tsrange", "tstzmultirange", "tstzrange", "tsvector", "txid_snapshot", "varbit", "xid",
        "xid8", "xml",
    }
)
# fmt: on
_FIRST_USER_OID = 16384
#: By family and type of a column that is not Postgres': the type whose values print and compare like its own.
#: Columns of families that are not here have types of Postgres' names.
#: Texts compare by their characters, whatever collation the source has; moments of MySQL are in UTC.
_LIKE = {
    "mysql": {
        **dict.fromkeys(("tinyint", "tinyint unsigned", "smallint", "year"), "int2"),
        **dict.fromkeys(("smallint unsigned", "mediumint", "mediumint unsigned", "int"), "int4"),
        **dict.fromkeys(("int unsigned", "bigint"), "int8"),
        **dict.fromkeys(("bigint unsigned", "decimal"), "numeric"),
        "float": "float4",
        "double": "float8",
        **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum"), "text"),
        "date": "date",
        **dict.fromkeys(("datetime", "timestamp"), "timestamp"),
    }
}


def type_like(column: SourceColumn) -> str:
    """The type, by its name in pg_type, that the column's values are compared as; empty: as none."""
    others = _LIKE.get(column.family)
    return column.type_name if others is None else others.get(column.type_name, "")


def kind_of(column: SourceColumn, labels: Sequence[str] = (), *, total: bool = True) -> ValueKind | None:
    """None: a condition cannot use the column at all. `total`: only kinds whose every value is read."""
    kind = KIND_OF_TYPE.get(type_like(column))
    if kind is not None or column.family:
        return kind
    if labels:
        return EnumOf(column.type_name, tuple(labels))
    if not total and column.type_name in _PARTIAL:
        return _PARTIAL[column.type_name]
    if not total and column.type_name.startswith("_"):
        return array_of(column.type_name[1:])
    user_defined = column.type_oid >= _FIRST_USER_OID and not column.type_name.startswith("_")
    return Kind.PRINTED if user_defined and column.type_name not in _BUILT_IN_OTHERS else None


def array_of(element_type: str) -> ArrayOf | None:
    """Texts of a limited length are texts in an array as well."""
    if element_type not in KIND_OF_TYPE:
        return None
    return ArrayOf("text" if element_type == "varchar" else element_type)

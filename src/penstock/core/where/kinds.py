"""The kinds of values a condition knows, and which of the source's types are of which kind.

A kind is what decides a comparison: `int2` and `int8` compare alike, `float4` and `float8` do not convert
alike. Values reach the evaluator as the text that Postgres prints, so a type belongs to a kind only where
that text says everything about its order and equality.
"""

from __future__ import annotations

from enum import StrEnum

from penstock.core.schema import SourceColumn


class Kind(StrEnum):
    BOOLEAN = "bool"
    INTEGER = "int8"
    NUMERIC = "numeric"
    REAL = "float4"
    DOUBLE = "float8"
    TEXT = "text"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    UUID = "uuid"
    BYTEA = "bytea"
    PRINTED = "printed"  # of a type that people defined: only its text can be used
    UNKNOWN = "unknown"  # a literal in quotes, or NULL, before something says what it is


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


def kind_of(column: SourceColumn) -> Kind | None:
    """None: a condition cannot use the column at all."""
    kind = KIND_OF_TYPE.get(column.type_name)
    if kind is not None:
        return kind
    user_defined = column.type_oid >= _FIRST_USER_OID and not column.type_name.startswith("_")
    return Kind.PRINTED if user_defined and column.type_name not in _BUILT_IN_OTHERS else None

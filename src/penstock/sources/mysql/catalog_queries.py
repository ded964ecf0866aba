"""What is asked of information_schema: names of its columns differ little between servers and versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.sources.mysql.connection import Connection
from penstock.sources.mysql.connection import rows as answer

Row = dict[str, Any]

_TABLES = """
    SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, ENGINE, TABLE_ROWS, DATA_LENGTH, CREATE_OPTIONS
    FROM information_schema.TABLES {where} ORDER BY TABLE_SCHEMA, TABLE_NAME
"""
_COLUMNS = """
    SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, CHARACTER_MAXIMUM_LENGTH,
        NUMERIC_PRECISION, NUMERIC_SCALE, DATETIME_PRECISION, CHARACTER_SET_NAME, COLLATION_NAME,
        IS_NULLABLE = 'YES', COLUMN_DEFAULT, EXTRA, COALESCE(GENERATION_EXPRESSION, '') <> '',
        COALESCE(GENERATION_EXPRESSION, '')
    FROM information_schema.COLUMNS {where} ORDER BY TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION
"""
_INDEXES = """
    SELECT TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, COLUMN_NAME, SUB_PART, NULLABLE = 'YES', COLLATION
    FROM information_schema.STATISTICS {where} AND NON_UNIQUE = 0
    ORDER BY TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX
"""
_RULES_THAT_CHANGE = (
    "(UPDATE_RULE NOT IN ('RESTRICT', 'NO ACTION') OR DELETE_RULE NOT IN ('RESTRICT', 'NO ACTION'))"
)
_CASCADES = f"""
    SELECT CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME, UNIQUE_CONSTRAINT_SCHEMA, REFERENCED_TABLE_NAME,
        UPDATE_RULE, DELETE_RULE
    FROM information_schema.REFERENTIAL_CONSTRAINTS {{where}} AND {_RULES_THAT_CHANGE}
    ORDER BY CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME
"""
_CASCADES_FROM = f"""
    SELECT COUNT(*) FROM information_schema.REFERENTIAL_CONSTRAINTS
    WHERE UNIQUE_CONSTRAINT_SCHEMA = %s AND REFERENCED_TABLE_NAME = %s AND {_RULES_THAT_CHANGE}
"""
_TRIGGERS = """
    SELECT COUNT(*) FROM information_schema.TRIGGERS
    WHERE EVENT_OBJECT_SCHEMA = %s AND EVENT_OBJECT_TABLE = %s
"""


def tables(connection: Connection, databases: Sequence[str] | None, named: Sequence[str] = ()) -> list[Row]:
    """None: of all databases. `named`, here and below: only of tables that are called so in any of them."""
    names = ("database", "table", "type", "engine", "rows", "bytes", "options")
    return _asked(connection, _TABLES, names, databases, named)


def columns(connection: Connection, databases: Sequence[str], named: Sequence[str] = ()) -> list[Row]:
    names = (
        "database", "table", "name", "type", "type_text", "length", "precision", "scale", "time_digits",
        "charset", "collation", "nullable", "default", "extra", "is_generated", "generation",
    )  # fmt: skip
    found = _asked(connection, _COLUMNS, names, databases, named)
    for row in found:
        row["nullable"], row["is_generated"] = bool(row["nullable"]), bool(row["is_generated"])
    return found


def indexes(connection: Connection, databases: Sequence[str], named: Sequence[str] = ()) -> list[Row]:
    """Parts of unique indexes. MySQL has no column for a part that is an expression."""
    names = ("database", "table", "index", "column", "prefix", "nullable", "direction")
    return _asked(connection, _INDEXES, names, databases, named)


def cascades(connection: Connection, databases: Sequence[str], named: Sequence[str] = ()) -> list[Row]:
    """Foreign keys that change rows of their own table."""
    names = ("database", "table", "name", "parent_database", "parent", "update", "delete")
    return _asked(connection, _CASCADES, names, databases, named, "CONSTRAINT_SCHEMA")


def count_cascades_from(connection: Connection, database: str, table: str) -> int:
    """Foreign keys by which a change of this table's rows changes those of another."""
    [(count,)] = answer(connection, _CASCADES_FROM, (database, table), doing="reading the catalog")
    return int(count)


def count_triggers(connection: Connection, database: str, table: str) -> int:
    """Those that the user may see: for that it needs the privilege TRIGGER."""
    [(count,)] = answer(connection, _TRIGGERS, (database, table), doing="reading the catalog")
    return int(count)


def grants(connection: Connection) -> list[str]:
    """What the user was given, as the server words it."""
    return [str(grant) for (grant,) in answer(connection, "SHOW GRANTS", doing="reading privileges")]


def _asked(
    connection: Connection,
    query: str,
    names: Sequence[str],
    databases: Sequence[str] | None,
    named: Sequence[str],
    column: str = "TABLE_SCHEMA",
) -> list[Row]:
    given = "" if databases is None else f"WHERE {column} IN ({_places(databases)})"
    asked = list(databases or ())
    if databases is not None and named:
        given += f" AND TABLE_NAME IN ({_places(named)})"
        asked += named
    found = answer(connection, query.format(where=given), asked or None, doing="reading the catalog")
    return [dict(zip(names, row, strict=True)) for row in found]


def _places(values: Sequence[str]) -> str:
    return ", ".join(["%s"] * len(values))

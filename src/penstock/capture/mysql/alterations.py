"""Which ALTER TABLE statements a table can follow without a new load, and what becomes of its columns.

Two witnesses must agree. The statement says what was done, and belongs to its place in the log; but what it
says is not all: settings of the session and the table count too. The catalog says what came of it, and may
have moved on. So a statement is followed only if every word of it is known (`alter_clauses`), and the catalog
has each column that it names just as it says: type, whether it may be null, constant default. Else the table
is loaded again.

If the catalog has moved on, it still says what the statement says of its columns, or the two differ. What
later statements did to other columns is theirs to tell: whoever follows compares types and nulls of all
columns with what it has, so that a change which may alter values is met at the first version that shows it.

Texts of a column that is written anew may be converted to another character set. Under strict mode the server
refuses that if one cannot be held; without it they would be cut in silence, and the table is loaded again.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

from penstock.capture.mysql.alter_clauses import ColumnChanges, DefinedColumn
from penstock.core.alteration import Alteration
from penstock.core.schema import SourceColumn
from penstock.sources.mysql.catalog import MysqlTable
from penstock.sources.mysql.types import TEXTS

_NUMBERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "float", "double"})


def alteration(changes: ColumnChanges, table: MysqlTable) -> Alteration | None:
    """What the statement made of the table, which is as the catalog has it since; None: they differ."""
    names = table.schema.names
    if table.kind not in ("table", "partitioned") or not table.is_transactional:
        return None
    if changes.has_indexes and not table.primary_key:
        return None  # rows may be known by one of those
    origins: dict[str, str | None] = {name: name for name in names}
    for before, after in changes.renamed:
        if after not in names or (before in names and before != after):
            return None
        origins[after] = before
    there = {name.casefold() for name in (*names, *table.generated_columns)}
    if any(name.casefold() in there for name in changes.dropped):
        return None
    for told in changes.defined:
        if told.name not in names or (told.was not in (None, told.name) and told.was in names):
            return None
        column = table.schema.column(told.name)
        if not _is_of_type(told, column):
            return None
        if told.was is None:
            if not _is_filled_as_told(told, column):
                return None
        elif not _keeps_nulls(told, column, table) or (_is_text(column) and not changes.is_strict):
            return None
        origins[told.name] = told.was
    return Alteration(table.schema, origins, changes.dropped)


def _is_of_type(told: DefinedColumn, column: SourceColumn) -> bool:
    if told.type_name != column.type_name:
        return False
    if told.members:
        listed = ",".join("'" + member.replace("'", "''") + "'" for member in told.members)
        return column.type_text == f"{told.type_name}({listed})"
    return told.type_modifier is None or told.type_modifier == column.type_modifier


def _is_text(column: SourceColumn) -> bool:
    return column.type_name in (*TEXTS, "enum", "set")


def _keeps_nulls(told: DefinedColumn, column: SourceColumn, table: MysqlTable) -> bool:
    """Whether the catalog has the column as null or not as the statement says; a key's never is."""
    if column.type_name == "timestamp" and told.nullable is None:
        return False  # which the server's settings decide
    return column.nullable == (told.nullable is not False) or column.name in table.primary_key


def _is_filled_as_told(told: DefinedColumn, column: SourceColumn) -> bool:
    """Whether older rows hold the catalog's `missing_value`: it is the statement's constant, or what the
    server takes without one."""
    if column.nullable == (told.nullable is False):
        return False
    if told.default is None and column.nullable:
        return column.missing_value is None and (column.type_name != "timestamp" or told.nullable is True)
    expected, filled = _expected(told), column.missing_value
    if expected is None or filled is None:
        return False
    if column.type_name.removesuffix(" unsigned") in _NUMBERS:
        return _number(expected) is not None and _number(expected) == _number(filled)
    if column.type_name == "enum" and expected not in told.members:
        return False
    # Spaces at the end of CHAR are no part of its value.
    return expected == filled and not (column.type_name == "char" and expected.endswith(" "))


def _expected(told: DefinedColumn) -> str | None:
    is_number = told.type_name.removesuffix(" unsigned") in _NUMBERS
    if not is_number and told.type_name not in (*TEXTS, "enum"):
        return None
    if told.default is not None:
        return told.default
    if told.type_name == "enum":
        return told.members[0]
    return "0" if is_number else ""


def _number(text: str) -> Decimal | None:
    try:
        return Decimal(text)
    except InvalidOperation:
        return None

"""From the text of a condition to Postgres' own parse tree of it.

The text is parsed as the WHERE clause of a query, by Postgres' grammar. That it stayed one (no second
statement, no ORDER BY at its end) is checked on the tree.
"""

from __future__ import annotations

from typing import Any

from penstock.core.where.errors import WhereError

PREFIX = "SELECT 1 WHERE "
BYTES_MAX = 64 * 1024
_PARTS_OF_PREFIX = frozenset({"target_list", "where_clause", "limit_option", "op"})


def parse(text: str) -> Any:
    """The parse tree's node of the condition."""
    from google.protobuf.message import DecodeError
    from postgast import PgQueryError
    from postgast import parse as parse_statement

    if len(text.encode()) > BYTES_MAX:
        raise WhereError(f"the condition is longer than {BYTES_MAX // 1024} KiB", 0)
    if "\0" in text:
        raise WhereError("a condition cannot hold a null character", text.index("\0"))
    try:
        statements = parse_statement(PREFIX + text).stmts
    except PgQueryError as error:
        # Postgres counts the characters of the whole statement, from 1.
        position = max((error.cursorpos or 0) - 1 - len(PREFIX), 0)
        raise WhereError(error.message, min(position, len(text))) from None
    except (DecodeError, RecursionError):
        raise WhereError("the condition is nested too deeply", 0) from None
    if len(statements) != 1:
        end = statements[0].stmt_len - len(PREFIX) if statements else 0
        raise WhereError("a condition ends at the semicolon", character_position(text, end))
    select = statements[0].stmt.select_stmt
    if not select.HasField("where_clause"):
        raise WhereError("there is no condition", 0)
    parts = {field.name for field, _ in select.ListFields()}
    if parts - _PARTS_OF_PREFIX or len(select.target_list) != 1:
        raise WhereError("only a condition is allowed, and no further clauses of a query", 0)
    return select.where_clause


def position_of(text: str, location: int) -> int:
    """A node's location, in bytes of the whole statement, as characters of `text`."""
    return character_position(text, max(location - len(PREFIX), 0))


def character_position(text: str, byte_position: int) -> int:
    return len(text.encode()[:byte_position].decode(errors="ignore"))

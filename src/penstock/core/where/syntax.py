"""From the text of a condition to Postgres' own parse tree of it.

The text is parsed as the WHERE clause of a query, by Postgres' grammar. That it stayed one (no second
statement, no ORDER BY at its end) is checked on the tree.

Postgres' parser goes as deep as a tree is nested, in native code, where too deep ends the process. So the
words that could nest it are counted first: what holds a few thousand of them is refused without being parsed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.core.where.errors import WhereError
from penstock.core.where.wording import RefusedError, Wording, refused

PREFIX = "SELECT 1 WHERE "
BYTES_MAX = 64 * 1024
NESTING_MAX = 5_000  # a tree of four times that depth was read, one of five times ended the process
_PARTS_OF_PREFIX = frozenset({"target_list", "where_clause", "limit_option", "op"})
#: Lists of any length are made of these; every other word may make a tree deeper.
_FLAT_WORDS = frozenset({"ICONST", "FCONST", "SCONST", "BCONST", "XCONST", "PARAM", "IDENT", "ASCII_44"})


def parse(text: str, wording: Wording = "penstock") -> Any:
    """The parse tree's node of the condition."""
    from google.protobuf.message import DecodeError
    from postgast import PgQueryError
    from postgast import parse as parse_statement

    def wrong(error: RefusedError, position: int = 0) -> WhereError:
        return WhereError(error.said(wording), position, wording)

    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise wrong(RefusedError("a condition is Unicode text"), error.start) from None
    if size > BYTES_MAX:
        raise wrong(refused("long", kib=BYTES_MAX // 1024))
    if "\0" in text:
        raise wrong(RefusedError("a condition cannot hold a null character"), text.index("\0"))
    if may_nest_too_deeply(text):
        raise wrong(RefusedError("the condition is nested too deeply"))
    try:
        statements = parse_statement(PREFIX + text).stmts
    except PgQueryError as error:
        # Postgres counts the characters of the whole statement, from 1.
        location = max((error.cursorpos or 0) - 1, 0)
        position = min(max(location - len(PREFIX), 0), len(text))
        raise WhereError(error.message, position, wording, location) from None
    except (DecodeError, RecursionError):
        raise wrong(RefusedError("the condition is nested too deeply")) from None
    if len(statements) != 1:
        end = statements[0].stmt_len - len(PREFIX) if statements else 0
        raise wrong(refused("semicolon"), character_position(text, end))
    select = statements[0].stmt.select_stmt
    if not select.HasField("where_clause"):
        raise wrong(RefusedError("there is no condition"))
    parts = {field.name for field, _ in select.ListFields()}
    if parts - _PARTS_OF_PREFIX or len(select.target_list) != 1:
        raise wrong(refused("clauses"))
    return select.where_clause


def may_nest_too_deeply(text: str) -> bool:
    """Whether the text has more words that could nest a tree than the parser surely stands."""
    from postgast import PgQueryError, scan

    if len(text) <= NESTING_MAX:
        return False
    try:
        tokens = scan(text).tokens
    except PgQueryError:
        return False  # then it is no SQL, and the parser says why before it makes a tree
    names = tokens[0].DESCRIPTOR.fields_by_name["token"].enum_type.values_by_number if tokens else {}
    flat = {number for number, value in names.items() if value.name in _FLAT_WORDS}
    return sum(token.token not in flat for token in tokens) > NESTING_MAX


def position_of(text: str, location: int) -> int:
    """A node's location, in bytes of the whole statement, as characters of `text`."""
    return character_position(text, max(location - len(PREFIX), 0))


def character_position(text: str, byte_position: int) -> int:
    return len(text.encode()[:byte_position].decode(errors="ignore"))


def text_of(condition: Any) -> str:
    """The SQL of a node of a parse tree, as a condition of its own.

    Parameters keep their numbers; columns lose the name of their table.
    """
    from postgast import deparse
    from postgast import parse as parse_statement

    statement = parse_statement(PREFIX + "true")
    node = statement.stmts[0].stmt.select_stmt.where_clause
    node.CopyFrom(condition)
    _unqualify(node)
    text: str = deparse(statement).removeprefix(PREFIX)
    return text


def _unqualify(message: Any) -> None:
    if message.DESCRIPTOR.name == "ColumnRef":
        del message.fields[:-1]
        return
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.name == "SelectStmt":
            continue  # a subquery further inside has names of its own
        for each in value if isinstance(value, Iterable) else (value,):
            _unqualify(each)

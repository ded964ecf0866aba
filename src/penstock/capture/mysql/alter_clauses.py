"""ALTER TABLE statements of which every word is known, as what they say of columns.

Promise: what is read here is all that the statement does, if it means what the catalog shows of it
(`alterations`). Anything else is None: expressions, ON UPDATE, generated columns, keys, partitions, comments
that are carried out, quotes and escapes whose meaning a session may set, a column that is named twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from penstock.sources.mysql.types import BYTES, TEXTS, decimal_modifier

#: A comment up to the end of its line, which may itself be what makes two hyphens one: the next line counts.
TO_LINE_END = r"(?:#|--(?=[\x00-\x20]|\Z))[^\n]*"
#: Spaces, and comments that are not carried out.
PASSED_OVER = re.compile(rf"(?:\s+|{TO_LINE_END}(?:\n|\Z)|/\*(?!M?!).*?\*/)+", re.DOTALL)
_TOKEN = re.compile(
    r"(?:`(?P<name>(?:[^`]|``)+)`|'(?P<text>(?:[^'\\]|'')*)'|(?P<number>[+-]?\d+(?:\.\d+)?)(?![\w.$])"
    r"|(?P<word>[A-Za-z_][\w$]*)|(?P<sign>[(),=]))"
)
_INTEGERS = {
    "TINYINT": "tinyint", "SMALLINT": "smallint", "MEDIUMINT": "mediumint", "INT": "int", "INTEGER": "int",
    "BIGINT": "bigint", "BOOL": "tinyint", "BOOLEAN": "tinyint",
}  # fmt: skip
_DECIMALS = ("DECIMAL", "NUMERIC", "DEC")
#: With how long it is if that is not said.
_SIZED = {
    "CHAR": 1,
    "VARCHAR": None,
    "BINARY": 1,
    "VARBINARY": None,
}
_TIMES = ("TIME", "DATETIME", "TIMESTAMP")
_PLAIN = frozenset({"FLOAT", "DOUBLE", "DATE", "JSON", *(name.upper() for name in (*TEXTS[2:], *BYTES[2:]))})
_INDEXES = frozenset({"INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL"})
_CONSTANTS = {"TRUE": "1", "FALSE": "0"}
_Token = tuple[str, str]  # kind and content


@dataclass(frozen=True, slots=True)
class DefinedColumn:
    """A column as a statement has it. `was`: the one that it is written over; None: it is added."""

    name: str
    was: str | None
    type_name: str
    type_modifier: int | None = None  # None: the type says it
    members: tuple[str, ...] = ()
    nullable: bool | None = None  # None: not said
    default: str | None = None


@dataclass(frozen=True, slots=True)
class ColumnChanges:
    """What a statement says of a table's columns, and whether it makes or drops indexes."""

    defined: tuple[DefinedColumn, ...] = ()
    dropped: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    has_indexes: bool = False
    is_strict: bool = False


def read_changes(text: str, *, is_strict: bool) -> ColumnChanges | None:
    """What stands behind the table's name; None: it is not known for certain what it does."""
    tokens = _tokens(text)
    found = [_change(_Clause(clause)) for clause in _clauses(tokens)] if tokens is not None else [None]
    told = [change for change in found if change is not None]
    if len(told) != len(found):
        return None
    changes = ColumnChanges(
        tuple(each for change in told for each in change.defined),
        tuple(each for change in told for each in change.dropped),
        tuple(each for change in told for each in change.renamed),
        any(change.has_indexes for change in told),
        is_strict,
    )
    named = [name.casefold() for name in _named(changes)]
    return changes if len(set(named)) == len(named) else None  # letters of either case are one to the server


def _named(changes: ColumnChanges) -> Iterator[str]:
    for column in changes.defined:
        yield from {column.name, column.was or column.name}
    yield from changes.dropped
    for pair in changes.renamed:
        yield from set(pair)


def _change(parts: _Clause) -> ColumnChanges | None:
    verb = parts.word()
    if verb in ("ADD", "DROP", "RENAME") and parts.next_word in _INDEXES:
        is_key = any(content.upper() == "PRIMARY" for _, content in parts.tokens)
        return None if is_key else ColumnChanges(has_indexes=True)
    if verb in ("ADD", "MODIFY", "CHANGE"):
        parts.pass_word("COLUMN")
        column = _definition(parts, added=verb == "ADD", renames=verb == "CHANGE")
        return ColumnChanges(defined=(column,)) if column is not None else None
    if verb == "DROP":
        parts.pass_word("COLUMN")
        name = parts.name()
        return ColumnChanges(dropped=(name,)) if name is not None and parts.ended() else None
    if verb == "RENAME":
        is_column = parts.pass_word("COLUMN")
        before, is_to, after = parts.name(), parts.pass_word("TO"), parts.name()
        is_whole = is_column and is_to and parts.ended()
        return (
            ColumnChanges(renamed=((before, after),))
            if is_whole and before is not None and after is not None
            else None
        )
    return ColumnChanges() if _is_harmless(verb, parts) else None


def _tokens(text: str) -> list[_Token] | None:
    found: list[_Token] = []
    at = 0
    while at < len(text):
        if (passed := PASSED_OVER.match(text, at)) is not None:
            at = passed.end()
            continue
        token = _TOKEN.match(text, at)
        if token is None:
            return found if not text[at:].strip("; \t\r\n\0") else None
        kind = token.lastgroup or ""
        content = token[kind]
        if kind == "word":
            found.append((kind, content))
        else:
            quote = {"name": "`", "text": "'"}.get(kind, "")
            found.append((kind, content.replace(2 * quote, quote) if quote else content))
        at = token.end()
    return found


def _clauses(tokens: Sequence[_Token]) -> Iterator[list[_Token]]:
    """What stands between commas that are in no brackets."""
    clause: list[_Token] = []
    depth = 0
    for token in tokens:
        depth += {("sign", "("): 1, ("sign", ")"): -1}.get(token, 0)
        if token == ("sign", ",") and not depth:
            yield clause
            clause = []
        else:
            clause.append(token)
    yield clause


@dataclass(slots=True)
class _Clause:
    tokens: list[_Token]
    at: int = field(default=0)

    def ended(self) -> bool:
        return self.at >= len(self.tokens)

    @property
    def next_word(self) -> str:
        kind, content = self._next
        return content.upper() if kind == "word" else ""

    @property
    def _next(self) -> _Token:
        return self.tokens[self.at] if not self.ended() else ("", "")

    def word(self) -> str:
        found = self.next_word
        self.at += bool(found)
        return found

    def pass_word(self, word: str) -> bool:
        is_there = self.next_word == word
        self.at += is_there
        return is_there

    def sign(self, sign: str) -> bool:
        is_there = self._next == ("sign", sign)
        self.at += is_there
        return is_there

    def name(self) -> str | None:
        return self._taken("name", "word")

    def constant(self) -> str | None:
        if self.next_word in _CONSTANTS:
            return _CONSTANTS[self.word()]
        return self._taken("text", "number")

    def brackets(self) -> list[_Token] | None:
        """What is in brackets that come next, with commas between; None: it is more than constants."""
        found: list[_Token] = []
        if not self.sign("("):
            return found
        while (token := self._next)[0] in ("text", "number"):
            found.append(token)
            self.at += 1
            if self.sign(")"):
                return found
            if not self.sign(","):
                return None
        return None

    def _taken(self, *kinds: str) -> str | None:
        kind, content = self._next
        if kind not in kinds:
            return None
        self.at += 1
        return content


def _is_harmless(verb: str, parts: _Clause) -> bool:
    """Whether a clause says nothing of the rows there are."""
    if verb in ("ALGORITHM", "LOCK", "COMMENT"):
        parts.sign("=")
        is_said = (parts.constant() if verb == "COMMENT" else parts.name()) is not None
        return is_said and parts.ended()
    if verb != "ALTER":
        return False
    parts.pass_word("COLUMN")
    if parts.name() is None:
        return False
    if parts.pass_word("SET"):
        is_said = parts.pass_word("DEFAULT") and (parts.pass_word("NULL") or parts.constant() is not None)
    else:
        is_said = parts.pass_word("DROP") and parts.pass_word("DEFAULT")
    return is_said and parts.ended()


def _definition(parts: _Clause, *, added: bool, renames: bool = False) -> DefinedColumn | None:
    was = None if added else parts.name()
    name = parts.name() if added or renames else was
    column = _typed(parts, name, was) if name is not None and (added or was is not None) else None
    while column is not None and not parts.ended():
        match parts.word():
            case "NOT" if parts.pass_word("NULL"):
                column = replace(column, nullable=False)
            case "NULL":
                column = replace(column, nullable=True)
            case "DEFAULT" if parts.pass_word("NULL"):
                continue
            case "DEFAULT" if (default := parts.constant()) is not None:
                column = replace(column, default=default)
            case "COMMENT" if parts.constant() is not None:
                continue
            case "CHARACTER" if added and parts.pass_word("SET") and parts.name() is not None:
                continue
            case "CHARSET" | "COLLATE" if added and parts.name() is not None:
                continue
            case "FIRST" if parts.ended():
                continue
            case "AFTER" if parts.name() is not None and parts.ended():
                continue
            case _:
                return None
    return column


def _typed(parts: _Clause, name: str, was: str | None) -> DefinedColumn | None:
    word = parts.word()
    brackets = parts.brackets()
    if brackets is None:
        return None
    if word in ("ENUM", "SET"):
        members = tuple(content for kind, content in brackets if kind == "text")
        return DefinedColumn(name, was, word.lower(), members=members) if members else None
    if any(kind != "number" or not content.isdigit() for kind, content in brackets):
        return None
    sizes = [int(content) for _, content in brackets]
    if word in _INTEGERS and len(sizes) <= 1:
        unsigned = " unsigned" if parts.pass_word("UNSIGNED") else ""
        return DefinedColumn(name, was, f"{_INTEGERS[word]}{unsigned}")
    if word in _DECIMALS and len(sizes) <= 2:
        precision, scale = ([*sizes, 0] if sizes else [10, 0])[:2]
        return DefinedColumn(name, was, "decimal", decimal_modifier(precision, scale))
    if word in _SIZED and len(sizes) <= 1:
        size = sizes[0] if sizes else _SIZED[word]
        return DefinedColumn(name, was, word.lower(), size) if size is not None else None
    if word in _TIMES and len(sizes) <= 1:
        return DefinedColumn(name, was, word.lower(), sizes[0] if sizes else 0)
    return DefinedColumn(name, was, word.lower()) if word in _PLAIN and not sizes else None

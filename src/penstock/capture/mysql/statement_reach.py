"""What a statement that changes rows of one table reads and calls, by its text alone.

A stored function may change rows of any table, and so may one that is called by a view. So a statement is
known to change no more than its table only if everything that it calls is a function of the server's own,
and everything that it reads is a table, which the catalog must say. What is not understood here counts as
something that is called: none of this is a parser, and `None` is always a right answer.

A name before a parenthesis is a call unless it is a word that no function can be called without quotes.
Built-in functions come before stored ones of the same name only if no space is between them and their
parenthesis and no database is named. Whether a backslash in a text is a letter or hides the next one is the
session's (`NO_BACKSLASH_ESCAPES`), so the text is read in both ways, and so is what stands in double quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.capture.mysql.alter_clauses import TO_LINE_END
from penstock.core.stream import StreamId


def _tokens_of(quoted: str, double_quoted: str) -> re.Pattern[str]:
    return re.compile(
        rf"(?P<passed>[ \t\r\n\v\f\0;]+|{TO_LINE_END}(?:\n|\Z)|/\*(?!M?!).*?\*/|\*/)"
        r"|(?P<carried_out>/\*M?!\d*)"
        rf"|(?P<text>{quoted})"
        rf"|(?P<quoted>`(?:[^`]++|``)++`|{double_quoted})"
        r"|(?P<word>[\w$]++)"
        r"|(?P<sign>.)",
        re.DOTALL,
    )


_WAYS_OF_READING = (
    _tokens_of(r"'(?:[^'\\]++|''|\\.)*+'", r"\"(?:[^\"\\]++|\"\"|\\.)*+\""),
    _tokens_of(r"'(?:[^']++|'')*+'", r"\"(?:[^\"]++|\"\")*+\""),
)
#: Reserved at MySQL and at MariaDB, and no functions.
_BEFORE_PARENTHESES = frozenset({
    "ALL", "AND", "BETWEEN", "BINARY", "BY", "CASE", "CHAR", "DECIMAL", "DISTINCT", "DIV", "ELSE",
    "EXISTS", "FROM", "HAVING", "IN", "INDEX", "INTERVAL", "IS", "JOIN", "KEY", "LIKE", "LINES", "NOT",
    "ON", "OR", "PARTITION", "REGEXP", "RLIKE", "SELECT", "SET", "THEN", "UNION", "USING", "VALUES",
    "WHEN", "WHERE", "XOR",
})  # fmt: skip
#: Of both servers, in all versions that are read.
_BUILT_IN = frozenset({
    "ABS", "AVG", "BIT_AND", "BIT_OR", "BIT_XOR", "CAST", "CEIL", "CEILING", "CHAR", "CHAR_LENGTH",
    "COALESCE", "CONCAT", "CONCAT_WS", "CONV", "CONVERT", "COUNT", "CRC32", "CURDATE", "CURRENT_DATE",
    "CURRENT_TIME", "CURRENT_TIMESTAMP", "CURTIME", "DATE", "DATEDIFF", "DATE_ADD", "DATE_FORMAT",
    "DATE_SUB", "DAY", "FLOOR", "FROM_UNIXTIME", "GREATEST", "GROUP_CONCAT", "HEX", "HOUR", "IF",
    "IFNULL", "INSTR", "ISNULL", "LAST_INSERT_ID", "LEAST", "LEFT", "LENGTH", "LOCATE", "LOWER", "LPAD",
    "LTRIM", "MAX", "MD5", "MIN", "MINUTE", "MOD", "MONTH", "NOW", "NULLIF", "POW", "POWER", "RAND",
    "REPEAT", "REPLACE", "RIGHT", "ROUND", "RPAD", "RTRIM", "SECOND", "SHA1", "SHA2", "SIGN",
    "STR_TO_DATE", "SUBSTR", "SUBSTRING", "SUM", "SYSDATE", "TIMESTAMPDIFF", "TRIM", "TRUNCATE", "UNHEX",
    "UNIX_TIMESTAMP", "UPPER", "UTC_DATE", "UTC_TIME", "UTC_TIMESTAMP", "UUID", "YEAR",
})  # fmt: skip
_READS = frozenset({"FROM", "JOIN", "STRAIGHT_JOIN"})
_AFTER_TABLES = frozenset({"WHERE", "GROUP", "ORDER", "HAVING", "LIMIT", "UNION", "SELECT"})


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int

    @property
    def is_name(self) -> bool:
        return self.kind in ("word", "quoted")

    @property
    def word(self) -> str:
        """In capitals; empty if it is none."""
        return self.text.upper() if self.kind == "word" else ""

    @property
    def name(self) -> str:
        quote = self.text[0]
        return self.text if self.kind == "word" else self.text[1:-1].replace(quote * 2, quote)


_END = _Token("end", "", -1, -1)


class _NotUnderstoodError(Exception):
    pass


def tables_read(text: str, schema: str, *, verb_end: int, target_end: int) -> frozenset[StreamId] | None:
    """What the statement reads beside its table; None: it may call functions that somebody wrote.

    `verb_end`, `target_end`: where these end in the text, or the spaces behind them.
    """
    try:
        return frozenset(
            stream
            for pattern in _WAYS_OF_READING
            for stream in _Reading(text, schema, pattern, verb_end, target_end).tables()
        )
    except _NotUnderstoodError:
        return None


class _Reading:
    def __init__(
        self, text: str, schema: str, pattern: re.Pattern[str], verb_end: int, target_end: int
    ) -> None:
        self._schema = schema
        self._tokens = [
            _Token(found.lastgroup or "", found[0], found.start(), found.end())
            for found in pattern.finditer(text)
            if found.lastgroup != "passed"
            and not (found.lastgroup == "carried_out" and found.start() < verb_end)
        ]
        self._target_end = max((each.end for each in self._tokens if each.end <= target_end), default=0)

    def _at(self, place: int) -> _Token:
        return self._tokens[place] if 0 <= place < len(self._tokens) else _END

    def tables(self) -> Iterator[StreamId]:
        among_tables = [False]  # for each parenthesis that is open
        for place, token in enumerate(self._tokens):
            if token.kind == "carried_out" or token.text in ("'", '"', "`", "{"):
                raise _NotUnderstoodError
            if token.text == "(":
                self._require_no_call(place)
                among_tables.append(False)
            elif token.text == ")":
                among_tables.pop()
                if not among_tables:
                    raise _NotUnderstoodError
            elif token.text == "," and among_tables[-1]:
                raise _NotUnderstoodError  # tables that are listed
            elif token.word in _AFTER_TABLES:
                among_tables[-1] = False
            elif token.word in _READS or token.word == "TABLE":
                read = self._table(place)
                among_tables[-1] = among_tables[-1] or token.word != "TABLE"
                if read is not None:
                    yield read

    def _require_no_call(self, place: int) -> None:
        before = self._at(place - 1)
        if not before.is_name or before.end == self._target_end:
            return
        is_plain = self._at(place - 2).text not in (".", "@")
        is_built_in = before.word in _BUILT_IN and before.end == self._at(place).start
        if not (is_plain and (before.word in _BEFORE_PARENTHESES or is_built_in)):
            raise _NotUnderstoodError

    def _table(self, place: int) -> StreamId | None:
        """What is named behind; None: it is the statement's own table, or rows that are selected."""
        if self._at(place - 1).text in (".", "@"):
            raise _NotUnderstoodError
        first, last = self._at(place + 1), self._at(place + 1)
        if first.text == "(" and self._at(place + 2).word == "SELECT" and self._at(place).word != "TABLE":
            return None
        if not first.is_name:
            raise _NotUnderstoodError
        if self._at(place + 2).text == ".":
            last = self._at(place + 3)
            if not last.is_name:
                raise _NotUnderstoodError
        if last.end == self._target_end or (first is last and first.word == "DUAL"):
            return None
        if self._at(place).word == "TABLE":
            raise _NotUnderstoodError  # all rows of it are read, without FROM
        return StreamId(self._schema, first.name) if first is last else StreamId(first.name, last.name)

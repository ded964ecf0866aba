"""Statements in the log that concern tables: which ones are emptied, and which are made, altered or gone.

Promise: a statement that says nothing to this reader concerns no rows. Rows come as rows, so what would be a
change of rows as a statement is told apart (`changes_rows`): a server, or one session, does not log rows. If
it is of one table that stands where it can be read without the rest of the language, the table is named; a
statement over several tables, or one that may call what somebody wrote (`statement_reach`), names none.

What stands before the first word (spaces, comments) is passed over; `/*!40000 … */` is what MySQL carries
out, so its content counts. Names may be quoted, and say their database or leave it to the session's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.capture.mysql.alter_clauses import PASSED_OVER, TO_LINE_END, ColumnChanges, read_changes
from penstock.capture.mysql.statement_reach import tables_read
from penstock.core.stream import StreamId
from penstock.sources.mysql.binlog.events import Statement

_CARRIED_OUT = re.compile(r"/\*M?!\d*")
_WORD = re.compile(r"[A-Za-z_]++(?![\w$])")
_NAME = re.compile(r"`((?:[^`]|``)+)`|\"((?:[^\"]|\"\")+)\"|([\w$]+)")
_ROWS = frozenset(
    {"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "CALL", "DO", "EXECUTE", "SELECT"}
)
#: What stands between the verb and the table whose rows it changes.
_BEFORE_TARGET = frozenset({"LOW_PRIORITY", "HIGH_PRIORITY", "DELAYED", "IGNORE"})
_AFTER_DELETED = frozenset({"WHERE", "ORDER", "LIMIT", "RETURNING", ""})
_LOADED = re.compile(r"\bINTO\s+TABLE\b", re.IGNORECASE)
_SELECTS = re.compile(r"\bSELECT\b", re.IGNORECASE)
_LISTS = {"DROP": True, "RENAME": True, "ALTER": False, "CREATE": False, "TRUNCATE": False}
_FILLERS = frozenset({"TEMPORARY", "OR", "REPLACE", "ONLINE", "IGNORE", "IF", "NOT", "EXISTS"})
#: What CREATE and DROP have where they are of an index.
_OF_INDEXES = frozenset({"INDEX", "UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR"})
#: Where an ALTER names a second table: one that it renames to, or that partitions come from or go to.
_SECOND_TABLE = re.compile(r"\b(?:RENAME\s+(?:TO|AS|=)?|(?:WITH|TO|CONVERT)\s+TABLE\b)\s*", re.IGNORECASE)

#: Rows go, or come, with their partition or file, and no event tells them.
_MOVES_ROWS = re.compile(
    r"\b(?:(?:DROP|TRUNCATE|EXCHANGE|CONVERT|DISCARD|IMPORT)\s+PARTITION|CONVERT\s+TABLE"
    r"|(?:DISCARD|IMPORT)\s+TABLESPACE)\b",
    re.IGNORECASE,
)
#: What is no word of a statement: texts, quoted names, comments that are not carried out.
_NO_WORDS = re.compile(
    r"'(?:[^'\\]|''|\\.)*'|\"(?:[^\"\\]|\"\"|\\.)*\"|`(?:[^`]|``)*`|/\*(?!M?!).*?\*/|" + TO_LINE_END,
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class TableStatement:
    """`emptied`: a table that has no rows now. `changed`: tables that are not what they were, or all of a
    database (a pattern). `changes_rows`: of the table `target`, if that and all in `reads` are tables; None:
    of which ones is not known.
    `takes_back`: rows before it in its transaction, since some savepoint, do not count.
    `columns`: of a table that is altered, or its indexes, all that it does; None: that is not certain
    (`alterations`).
    `moves_rows`: rows of the tables went or came with it, of which the log has no change.
    """

    emptied: StreamId | None = None
    changed: tuple[StreamId, ...] = ()
    changes_rows: bool = False
    target: StreamId | None = None
    reads: frozenset[StreamId] = frozenset()
    takes_back: bool = False
    columns: ColumnChanges | None = None
    moves_rows: bool = False


_NOTHING = TableStatement()


def read_statement(statement: Statement) -> TableStatement:
    words = _Words(statement.text)
    verb = words.word()
    is_plain = verb == "ALTER"
    if verb == "SET":
        verb = _under_settings(words)
    if verb == "ROLLBACK":
        return TableStatement(takes_back="TO" in (words.word(), words.word()))
    if verb in _ROWS:
        return _change_of_rows(words, verb, statement.schema)
    if verb not in _LISTS:
        return _NOTHING
    words.passes_ends = True
    word = words.word()
    temporary = replaces = is_ignoring = False
    while word in _FILLERS:
        temporary = temporary or word == "TEMPORARY"
        replaces = replaces or word == "REPLACE"
        is_ignoring = is_ignoring or word == "IGNORE"
        word = words.word()
    if temporary:
        return _NOTHING
    if verb == "DROP" and word in ("DATABASE", "SCHEMA"):
        return TableStatement(changed=tuple(_dropped_database(words)))
    if word not in ("TABLE", "TABLES"):
        if verb != "TRUNCATE":
            return _of_index(words, verb, word, statement.schema, replaces=replaces)
        words.back()
    words.pass_fillers()
    names = tuple(_names(words, statement.schema, listed=_LISTS[verb]))
    # A table that can be created was not there: it was dropped or renamed before, which was told. What it is
    # filled with by the same statement comes as rows, with a statement that says nothing of it.
    if not names or (verb == "CREATE" and not replaces and not _SELECTS.search(statement.text, words.at)):
        return _NOTHING
    if verb == "TRUNCATE":
        return TableStatement(emptied=names[0])
    if verb == "ALTER":
        return _altered(statement, names, words.at, is_plain=is_plain, is_ignoring=is_ignoring)
    return TableStatement(changed=names)


def _of_index(words: _Words, verb: str, word: str, schema: str, *, replaces: bool) -> TableStatement:
    """What ALTER TABLE says of indexes may stand alone: rows may be known by one that is unique. One that is
    not says nothing, unless it takes the place of another; nor does what is of a view or a user."""
    if word not in _OF_INDEXES or (verb == "CREATE" and word != "UNIQUE" and not replaces):
        return _NOTHING
    if word != "INDEX":
        words.word()
    words.pass_fillers()
    index = words.name()
    while (between := words.word()) not in ("ON", ""):
        pass  # of which kind it is
    table = next(_names(words, schema, listed=False), None) if between else None
    if index is None or table is None:
        return _NOTHING
    is_key = index.upper() == "PRIMARY"
    return TableStatement(changed=(table,), columns=None if is_key else ColumnChanges(has_indexes=True))


def _altered(
    statement: Statement, names: tuple[StreamId, ...], at: int, *, is_plain: bool, is_ignoring: bool
) -> TableStatement:
    """`is_plain`: it ran under its session's settings. `is_ignoring`: rows that do not fit were removed."""
    is_known = is_plain and not is_ignoring and _CARRIED_OUT.search(statement.text, 0, at) is None
    columns = read_changes(statement.text[at:], is_strict=statement.is_strict) if is_known else None
    if columns is not None:
        return TableStatement(changed=names, columns=columns)
    moves_rows = is_ignoring or _MOVES_ROWS.search(_NO_WORDS.sub(" ", statement.text, 0)) is not None
    return TableStatement(changed=(*names, *_second_tables(statement)), moves_rows=moves_rows)


def _change_of_rows(words: _Words, verb: str, schema: str) -> TableStatement:
    verb_end = words.at
    word = words.word()
    if verb == "DELETE" and word == "HISTORY":
        past_end = _past_rows(words)
        is_past = (
            past_end is not None
            and tables_read(words.text, schema, verb_end=verb_end, target_end=past_end) == frozenset()
        )
        return _NOTHING if is_past else TableStatement(changes_rows=True)
    target, target_end = None, words.at
    if verb == "LOAD":
        target, target_end = _loaded(words, schema), words.at
    elif verb in ("INSERT", "REPLACE", "DELETE", "UPDATE"):
        while word in _BEFORE_TARGET or (word == "QUICK" and verb == "DELETE"):
            word = words.word()
        if word not in ("", "INTO", "FROM"):
            words.back()
        named, target_end = next(_names(words, schema, listed=False), None), words.at
        target = named if verb in ("INSERT", "REPLACE") or _is_of_one_table(words, verb) else None
    if target is None:
        return TableStatement(changes_rows=True)
    reads = tables_read(words.text, schema, verb_end=verb_end, target_end=target_end)
    if reads is None:
        return TableStatement(changes_rows=True)
    return TableStatement(changes_rows=True, target=target, reads=reads)


def _past_rows(words: _Words) -> int | None:
    """MariaDB's `DELETE HISTORY FROM a`, of rows that are not there any more: where the name ends. None: it
    is a table that is called `history`, as in `DELETE history FROM history JOIN b`."""
    if words.word() == "FROM" and (found := next(_names(words, "", listed=False), None)) is not None:
        end = words.at
        word = words.word()
        if word == "PARTITION" and words.sign("("):
            while words.name() is not None and words.sign(","):
                pass
            word = words.word() if words.sign(")") else "PARTITION"
        # Of one that is called so itself MySQL deletes all rows.
        if found.name.lower() != "history" and (word == "BEFORE" or (not word and words.is_done)):
            return end
    return None


def _is_of_one_table(words: _Words, verb: str) -> bool:
    """Whether behind the first table comes what can only come behind the last, by another name or without."""
    if words.sign(","):
        return False
    word = words.word()
    allowed = _AFTER_DELETED if verb == "DELETE" else ("SET",)
    if word in allowed:
        return bool(word) or words.is_done
    if word == "AS":
        words.name()
    elif not word:
        words.name()  # one that is quoted
    return not words.sign(",") and (found := words.word()) in allowed and (bool(found) or words.is_done)


def _loaded(words: _Words, schema: str) -> StreamId | None:
    """LOAD names its table behind a file, whose name may be anything: it is the last that is written so."""
    places = list(_LOADED.finditer(words.text, words.at))
    if len(places) != 1:
        return None
    words.at = places[0].end()
    return next(_names(words, schema, listed=False), None)


class _Words:
    def __init__(self, text: str) -> None:
        self.text = text
        self._before = self.at = 0
        self.passes_ends = False  #: also over ends of comments that are carried out

    def _pass_over(self) -> None:
        while True:
            found = PASSED_OVER.match(self.text, self.at) or _CARRIED_OUT.match(self.text, self.at)
            if found is not None:
                self.at = found.end()
            elif self.passes_ends and self.text.startswith("*/", self.at):
                self.at += 2
            else:
                return

    def word(self) -> str:
        """The next one in capitals; empty if what comes is none."""
        self._pass_over()
        self._before = self.at
        found = _WORD.match(self.text, self.at)
        if found is None:
            return ""
        self.at = found.end()
        return found[0].upper()

    def word_after_waiting(self) -> str:
        """The next one behind how long MariaDB is to wait for a lock."""
        word = self.word()
        if word == "WAIT":
            self.name()  # a number
        return self.word() if word in ("WAIT", "NOWAIT") else word

    def pass_fillers(self) -> None:
        while (word := self.word()) in ("IF", "NOT", "EXISTS"):
            pass
        if word:
            self.back()

    def back(self) -> None:
        """To before the last word."""
        self.at = self._before

    def name(self) -> str | None:
        self._pass_over()
        found = _NAME.match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        if found[1] is not None:
            return found[1].replace("``", "`")
        return found[2].replace('""', '"') if found[2] is not None else found[3]

    @property
    def is_done(self) -> bool:
        """Whether nothing comes but what ends statements, and comments of a kind that is carried out."""
        self._pass_over()
        return not self.text[self.at :].strip(";*/ \t\r\n\0")

    def sign(self, sign: str) -> bool:
        self._pass_over()
        is_there = self.text.startswith(sign, self.at)
        self.at += len(sign) * is_there
        return is_there


def _names(words: _Words, schema: str, *, listed: bool) -> Iterator[StreamId]:
    """`a`, `s.a`, and in lists `a, b` or `a TO b, c TO d`."""
    while (name := words.name()) is not None:
        if words.sign("."):
            inner = words.name()
            if inner is None:
                return
            yield StreamId(name, inner)
        else:
            yield StreamId(schema, name)
        if not listed:
            return
        if not words.sign(",") and words.word_after_waiting() != "TO":
            return


def _under_settings(words: _Words) -> str:
    """MariaDB's `SET STATEMENT x = 1 FOR TRUNCATE TABLE a`: the verb behind the settings, if any."""
    if words.word() != "STATEMENT":
        return ""
    for found in re.finditer(r"\bFOR\b", words.text[words.at :], re.IGNORECASE):
        inner = _Words(words.text)
        inner.at = words.at + found.end()
        if (verb := inner.word()) in _ROWS or verb in _LISTS:
            words.at = inner.at
            return verb
    return ""


def _second_tables(statement: Statement) -> Iterator[StreamId]:
    """`ALTER TABLE a …, RENAME TO b`: what `b` was is b's no more. Found wherever it stands; a column or key
    that is called so costs a second look and nothing else."""
    for found in _SECOND_TABLE.finditer(statement.text):
        words = _Words(statement.text)
        words.at = found.end()
        yield from _names(words, statement.schema, listed=False)


def _dropped_database(words: _Words) -> Iterator[StreamId]:
    words.pass_fillers()
    if (name := words.name()) is not None:
        yield StreamId(name, "*")

"""Conditions of shapes against the server: thousands of generated ones, over rows with odd values and nulls.

For every row, ours is the server's answer to what we print and to what was written, or both fail. A database
with `COLLATE "C"` makes what was written mean what Penstock makes of it. Some are the same in each run; `make
slow` draws thousands of others and prints their seed, and `PENSTOCK_WHERE_SEED` asks for those of a run
before. `PENSTOCK_WHERE_EXPRESSIONS` asks for more.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from penstock.core.schema import SourceColumn
from penstock.core.where import Condition, EvaluationError, Subquery, SubqueryTable, WhereError, tree
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.embedded import EmbeddedPostgres

pytestmark = pytest.mark.integration

SEED = 6
DRAWN_SEED = int(os.environ.get("PENSTOCK_WHERE_SEED") or random.SystemRandom().randrange(1 << 32))
EXPRESSIONS = 1500
DRAWN_EXPRESSIONS = int(os.environ.get("PENSTOCK_WHERE_EXPRESSIONS", "4000"))
ROWS = 60
LABELS = ("so so", "fine", "bad")

#: A column of each type, with values that sort, round, overflow or print in their own way; null is added.
VALUES: dict[str, tuple[str, ...]] = {
    "flag bool": ("t", "f"),
    "small int2": ("-32768", "-7", "0", "5", "32767"),
    "whole int4": ("-2147483648", "-1", "0", "1", "2", "42", "2147483647"),
    "big int8": ("-9223372036854775808", "-3", "0", "2", "9007199254740993", "9223372036854775807"),
    "amount numeric": ("0", "-0.5", "0.50", "2.5", "3.5", "1e80", "NaN", "Infinity", "42"),
    "ratio float4": ("0.1", "-0", "NaN", "Infinity", "16777217", "42", "1e-40", "3e38"),
    "measure float8": ("0.1", "-0", "NaN", "-Infinity", "9007199254740993", "2.5", "-2", "1e300"),
    "name text": ("", "a", "A", "ab", "Äb", "a%b", "a_b", "a\\b", "a\nb", "12", " 7 ", "true", "2.5"),
    "code varchar(8)": ("a", "A", "eu", "b", "%a", "a%"),
    "label name": ("", "a", "A", "a%", "12", "2024-02-29", "x" * 63, "ä" * 31 + "x", "ä" * 31),
    "long text": ("x" * 62, "x" * 63, "x" * 64, "ä" * 32, "ä" * 31 + "x", "ä" * 31 + "ß", "a", ""),
    "noted text": (
        "2024-02-29",
        " 2024-01-31 ",
        "2024-02-30",
        "2024-02-29 12:30:00.5",
        "2024-03-31T02:30Z",
        "2023-10-29 01:30:00+02",
        "infinity",
        "-Infinity",
        "12:30",
        "23:59:59.999999",
        "a",
    ),
    "lasted text": ("1 day", "24:00:00", "P1M", "1 mon -03:00:00.5", "1 day 1 day", "2 years", "a"),
    "day date": ("2024-02-29", "2024-01-31", "1969-12-31", "0044-03-15 BC", "infinity", "5874897-12-31"),
    "clock time": ("00:00:00", "12:30:00.5", "23:59:59.999999", "24:00:00"),
    "moment timestamp": (
        "2024-02-29 12:30:00.5",
        "2024-03-31 02:30:00",
        "2023-10-29 02:30:00",
        "1969-12-31 23:59:59.999999",
        "0044-03-15 01:02:03 BC",
        "infinity",
        "294276-12-31 00:00:00",
    ),
    "instant timestamptz": (
        "2024-02-29 12:30:00+02",
        "2024-03-31 01:00:00+00",
        "2023-10-29 01:30:00+00",
        "1950-06-01 00:00:00+00",
        "-infinity",
        "0001-06-01 00:00:00+00",
    ),
    "span interval": ("1 day", "24:00:00", "1 mon", "30 days", "-1 mon 40 days -03:00:00.5", "2 years", "0"),
    "id uuid": ("00000000-0000-0000-0000-000000000000", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "raw bytea": ("\\x", "\\x00", "\\x00ff", "\\xff"),
    "mood mood": LABELS,
    "numbers int4[]": ("{}", "{1}", "{1,2,2}", "{NULL,1}", "{{1,2},{3,4}}", "[0:1]={1,2}", "{42}"),
    "bigs int8[]": ("{}", "{1,2}", "{9223372036854775807,NULL}"),
    "words text[]": (
        "{}",
        "{a}",
        "{%a%,_}",
        "{NULL,Ä_}",
        '{"a b",NULL,"NULL"}',
        '{"a\\"b","{}",""}',
        "{{a,b},{c,d}}",
    ),
    "reals float8[]": ("{NaN,1}", "{0.1,-0}", "{}"),
    "days date[]": ("{2024-02-29,infinity}", "{}"),
    "document jsonb": (
        '{"a": 1, "b": [1, "x", null], "c": {"d": true}}',
        '{"a": "x", "b": {}}',
        '["a", 1.50, null]',
        '"a"',
        "1",
        "null",
        '{"a": 1.0, "k": "ä\\"\\n"}',
    ),
}
TYPES = {declared.split()[0]: declared.split()[1].partition("(")[0] for declared in VALUES}
LITERALS = {declared.split()[0]: values for declared, values in VALUES.items()}


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


#: Which columns are of which kind here.
COLUMNS = {
    "int": ("small", "whole", "big"),
    "numeric": ("amount",),
    "float": ("measure",),
    "real": ("ratio",),
    "text": ("name", "code", "long"),
    "label": ("label",),
    "noted": ("noted",),
    "lasted": ("lasted",),
    "date": ("day",),
    "time": ("clock",),
    "moment": ("moment",),
    "instant": ("instant",),
    "interval": ("span",),
    "uuid": ("id",),
    "bytea": ("raw",),
    "enum": ("mood",),
    "numbers": ("numbers",),
    "bigs": ("bigs",),
    "words": ("words",),
    "reals": ("reals",),
    "days": ("days",),
    "json": ("document",),
    "bool": ("flag",),
}


class Generator:
    """Conditions of every form, from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._makers: dict[str, Sequence[Callable[[int], str]]] = {
            "int": [
                self._operation("int", ("+", "-", "*", "/", "%", "&", "|", "#"), "int"),
                self._form("(- {})", "int"),
                self._form("(@ {})", "int"),
                self._form("(~ {})", "int"),
                self._form("({} - {})", "date", "date"),
                self._form("({})::int4", "float"),
                self._form("({})::int8", "numeric"),
                self._form("({})::int4", "text"),
                self._form("({})::int4", "label"),
                self._form("({})::int2", "int"),
                self._form("({})::int4", "bool"),
                self._form("array_ndims({})", "numbers"),
                self._form("({})[{}]", "numbers", "index"),
                self._form("({})[{}][{}]", "numbers", "index", "index"),
                self._form("coalesce({}, {})", "int", "int"),
                self._form("greatest({}, {}, {})", "int", "int", "int"),
            ],
            "numeric": [
                self._operation("numeric", ("+", "-", "*", "%"), "numeric"),
                self._form("(- {})", "numeric"),
                self._form("({})::numeric", "int"),
                self._form("({})::numeric", "float"),
                self._form("({})::numeric", "text"),
                self._form("least({}, {})", "numeric", "int"),
                self._form("coalesce({}, {})", "numeric", "int"),
            ],
            "float": [
                self._operation("float", ("+", "-", "*", "/", "^"), "float"),
                self._operation("float", ("+", "-", "*", "/"), "numeric"),
                self._operation("real", ("+", "-", "*", "/"), "real"),
                self._form("({} ^ {})", "int", "index"),
                self._form("(|/ {})", "float"),
                self._form("(|/ {})", "int"),
                self._form("(- {})", "float"),
                self._form("(@ {})", "real"),
                self._form("({})::float8", "numeric"),
                self._form("({})::float4", "float"),
                self._form("({})::float8", "text"),
                self._form("({})[{}]", "reals", "index"),
                self._form("greatest({}, {})", "float", "real"),
            ],
            "text": [
                self._form("lower({})", "text"),
                self._form("upper({})", "text"),
                self._form("({} || {})", "text", "text"),
                self._form("({} || {})", "text", "int"),
                self._form("concat({}, {}, {})", "text", "int", "text"),
                self._form("coalesce({}, {})", "text", "text"),
                self._form("least({}, {})", "text", "text"),
                self._form("({})[{}]", "words", "index"),
                self._form("({} ->> {})", "json", "member"),
                self._form("({})::text", "label"),
                self._form("lower({})", "label"),
                self._form("({} || {})", "label", "text"),
                self._form("mood::text"),
                self._form("day::text"),
                self._form("moment::text"),
                self._form("measure::text"),
                self._form("words::text"),
                self._form("({})::text", "int"),
                self._form("({})::text", "bool"),
                self._form("CAST(id AS text)"),
            ],
            "date": [
                self._form("({} + {})", "date", "index"),
                self._form("({} - {})", "date", "index"),
                self._form("({})::date", "moment"),
                self._form("({})::date", "instant"),
                self._form("coalesce({}, {})", "date", "date"),
                self._form("date('2024-02-29')"),
                self._form("({})::date", "noted"),
                self._form("date({})", "noted"),
                self._form("({})::date", "label"),
            ],
            "label": [
                self._form("({})::name", "text"),
                self._form("name({})", "text"),
                self._form("coalesce({}, {})", "label", "label"),
                self._form("greatest({}, {})", "label", "label"),
            ],
            "time": [
                self._form("({} + {})", "time", "interval"),
                self._form("({} - {})", "time", "interval"),
                self._form("({})::time", "moment"),
                self._form("({})::time", "interval"),
                self._form("({})::time", "noted"),
            ],
            "moment": [
                self._form("({} + {})", "moment", "interval"),
                self._form("({} - {})", "moment", "interval"),
                self._form("({} + {})", "date", "interval"),
                self._form("({} + {})", "date", "time"),
                self._form("({} AT TIME ZONE 'Europe/Berlin')", "instant"),
                self._form("timezone('UTC', {})", "instant"),
                self._form("({})::timestamp", "date"),
                self._form("({})::timestamp", "noted"),
                self._form("greatest({}, {})", "moment", "moment"),
            ],
            "instant": [
                self._form("({} + {})", "instant", "interval"),
                self._form("({} - {})", "instant", "interval"),
                self._form("({} AT TIME ZONE 'Europe/Berlin')", "moment"),
                self._form("({} AT TIME ZONE 'America/New_York')", "moment"),
                self._form("({})::timestamptz", "moment"),
                self._form("({})::timestamptz", "noted"),
            ],
            "interval": [
                self._form("({} - {})", "moment", "moment"),
                self._form("({} - {})", "instant", "instant"),
                self._form("({} - {})", "time", "time"),
                self._operation("interval", ("+", "-"), "interval"),
                self._form("({} * {})", "interval", "index"),
                self._form("(- {})", "interval"),
                self._form("justify_days({})", "interval"),
                self._form("justify_hours({})", "interval"),
                self._form("justify_interval({})", "interval"),
                self._form("({})::interval", "time"),
                self._form("({})::interval", "lasted"),
            ],
            "numbers": [
                self._form("({} || {})", "numbers", "numbers"),
                self._form("array_cat({}, {})", "numbers", "numbers"),
                self._form("array_append({}, {})", "numbers", "index"),
                self._form("array_prepend({}, {})", "index", "numbers"),
                self._form("({} || 5)", "numbers"),
                self._form("(5 || {})", "numbers"),
                self._form("({})[{}:{}]", "numbers", "index", "index"),
                self._form("({})[:{}]", "numbers", "index"),
                self._form("({})[{}:]", "numbers", "index"),
                self._form("({})[1][{}:{}]", "numbers", "index", "index"),
                self._form("ARRAY[whole, 1, {}]", "index"),
                self._form("coalesce({}, {})", "numbers", "numbers"),
            ],
            "words": [
                self._form("({} || {})", "words", "words"),
                self._form("array_append({}, {})", "words", "text"),
                self._form("array_prepend({}, {})", "text", "words"),
                self._form("ARRAY[name, {}]", "text"),
                self._form("({})[{}:{}]", "words", "index", "index"),
            ],
            "json": [self._form("({} -> {})", "json", "member")],
        }

    def _operation(self, left: str, symbols: Sequence[str], right: str) -> Callable[[int], str]:
        return lambda depth: (
            f"({self.value(left, depth)} {self._random.choice(symbols)} {self.value(right, depth)})"
        )

    def _form(self, form: str, *kinds: str) -> Callable[[int], str]:
        return lambda depth: form.format(*(self.value(kind, depth) for kind in kinds))

    def value(self, kind: str, depth: int) -> str:
        """Something of the kind that differs by row, or a literal with its type."""
        pick = self._random
        if kind == "index":
            return pick.choice(("0", "1", "2", "3", "small", "whole", "big"))
        if kind == "member":
            return pick.choice(("'a'", "'b'", "'k'", "'c'", "0", "1", "-1"))
        makers = self._makers.get(kind, ())
        if makers and depth > 0 and pick.random() < 0.6:
            return pick.choice(makers)(depth - 1)
        column = pick.choice(COLUMNS[kind])
        if pick.random() < 0.75 or kind == "enum":
            return column
        return f"{quoted(pick.choice(LITERALS[column]))}::{TYPES[column]}"

    def _literal(self, kind: str) -> str:
        """One that may stand beside a value of the kind: in quotes, typed, bare or NULL."""
        column = self._random.choice(COLUMNS[kind])
        text = self._random.choice(LITERALS[column])
        form = self._random.random()
        if form < 0.1:
            return "NULL"
        if kind == "enum" or form < 0.6:
            return quoted(text)
        if kind in ("int", "numeric", "float", "real") and form < 0.8:
            return self._random.choice(("0", "1", "2", "2.5", "-3", "42", "0.1", "3000000000"))
        return f"{quoted(text)}::{TYPES[column]}"

    def atom(self, depth: int) -> str:
        pick = self._random
        form = pick.choice(self._atoms)
        return form(self, depth)

    def _comparison(self, depth: int) -> str:
        kind = self._random.choice(list(COLUMNS))
        symbols = ("=", "<>") if kind in ("numbers", "words", "bigs", "reals", "json") else COMPARISONS
        symbol = self._random.choice(symbols)
        other = self._literal(kind) if self._random.random() < 0.5 else self.value(kind, depth)
        return f"({self.value(kind, depth)} {symbol} {other})"

    def _mixed(self, depth: int) -> str:
        pairs = (
            ("int", "float"),
            ("numeric", "float"),
            ("real", "numeric"),
            ("date", "moment"),
            ("int", "real"),
        )
        left, right = self._random.choice((*pairs, ("date", "instant"), ("moment", "instant")))
        symbol = self._random.choice(COMPARISONS)
        return f"({self.value(left, depth)} {symbol} {self.value(right, depth)})"

    def _tests(self, depth: int) -> str:
        kind = self._random.choice(list(COLUMNS))
        value = self.value(kind, depth)
        match self._random.randrange(5):
            case 0:
                return f"({value} IS {self._random.choice(('', 'NOT'))} NULL)"
            case 1:
                return f"({value} IS {self._random.choice(('', 'NOT'))} DISTINCT FROM {self._literal(kind)})"
            case 2 if kind not in ("numbers", "words", "bigs", "reals", "days", "json"):
                word = self._random.choice(("BETWEEN", "NOT BETWEEN", "BETWEEN SYMMETRIC"))
                return f"({value} {word} {self._literal(kind)} AND {self._literal(kind)})"
            case 3:
                listed = ", ".join(self._literal(kind) for _ in range(self._random.randint(1, 4)))
                return f"({value} {self._random.choice(('IN', 'NOT IN'))} ({listed}))"
        return f"({value} IS NOT DISTINCT FROM {self.value(kind, depth)})"

    def _patterns(self, depth: int) -> str:
        symbol = self._random.choice(("LIKE", "NOT LIKE", "ILIKE", "NOT ILIKE"))
        pattern = self._random.choice((quoted(self._pattern()), "code", "(code || '%')", "name", "label"))
        if self._random.random() < 0.2:
            word = self._random.choice(("ANY", "ALL"))
            text = self._random.choice(("text", "text", "label"))
            return f"({self.value(text, depth)} {symbol} {word} ({self.value('words', depth)}))"
        if self._random.random() < 0.2:
            return f"({self.value('text', depth)} LIKE ANY(ARRAY[{quoted(self._pattern())}, 'a%']))"
        return f"({self.value('text', depth)} {symbol} {pattern})"

    def _pattern(self) -> str:
        return "".join(self._random.choice(("a", "A", "b", "%", "_", "Ä", "\\\\", "\n")) for _ in range(3))

    def _quantified(self, depth: int) -> str:
        element, array = self._random.choice(
            (("int", "numbers"), ("text", "words"), ("int", "bigs"), ("float", "reals"), ("date", "days"))
        )
        symbol, word = self._random.choice(COMPARISONS), self._random.choice(("ANY", "ALL"))
        operand = self._literal(element) if self._random.random() < 0.3 else self.value(element, depth)
        if self._random.random() < 0.3:
            listed = ", ".join(self._literal(element) for _ in range(self._random.randint(1, 3)))
            return f"({self.value(element, depth)} {symbol} {word} (ARRAY[{listed}]))"
        return f"({operand} {symbol} {word} ({self.value(array, depth)}))"

    def _labels(self, _: int) -> str:
        labels = self._random.choice(("{}", "{fine}", '{"so so",bad}', "{bad,NULL}"))
        symbol, word = self._random.choice(COMPARISONS), self._random.choice(("ANY", "ALL"))
        return f"(mood {symbol} {word} ('{labels}'))"

    def _arrays(self, depth: int) -> str:
        array = self._random.choice(("numbers", "words", "bigs", "reals", "days"))
        symbol = self._random.choice(("@>", "<@", "&&"))
        other = self._literal(array) if self._random.random() < 0.5 else self.value(array, depth)
        return f"({self.value(array, depth)} {symbol} {other})"

    def _json(self, depth: int) -> str:
        value = self.value("json", depth)
        match self._random.randrange(4):
            case 0:
                return f"({value} ? {self._random.choice(('a', 'b', 'x'))!r})"
            case 1:
                return f"({value} {self._random.choice(('?|', '?&'))} ARRAY['a', 'b'])"
            case 2:
                return f"({value} <@ {self.value('json', depth)})"
        return f"({value} @> {self._literal('json')})"

    def condition(self, depth: int = 2) -> str:
        pick = self._random
        if depth == 0 or pick.random() < 0.55:
            return self.atom(pick.randint(0, 2))
        match pick.randrange(4):
            case 0:
                return f"(NOT {self.condition(depth - 1)})"
            case 1:
                truth = pick.choice(("TRUE", "NOT TRUE", "FALSE", "NOT FALSE", "UNKNOWN", "NOT UNKNOWN"))
                return f"({self.condition(depth - 1)} IS {truth})"
        return f"({self.condition(depth - 1)} {pick.choice(('AND', 'OR'))} {self.condition(depth - 1)})"

    _atoms = (
        _comparison,
        _comparison,
        _comparison,
        _mixed,
        _tests,
        _tests,
        _patterns,
        _quantified,
        _labels,
        _arrays,
        _json,
    )


COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")

#: Answers of a condition by row: t, f, null or the error's code; a condition that fails is asked row by row.
_ASK = """
CREATE FUNCTION ask(condition text) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE answers text[]; answer text; row int;
BEGIN
  BEGIN
    EXECUTE format('SELECT array_agg((%s)::text ORDER BY n) FROM things', condition) INTO answers;
    RETURN answers;
  EXCEPTION WHEN OTHERS THEN NULL;
  END;
  FOR row IN SELECT n FROM things ORDER BY n LOOP
    BEGIN
      EXECUTE format('SELECT (%s)::text FROM things WHERE n = %s', condition, row) INTO answer;
    EXCEPTION WHEN OTHERS THEN answer := SQLSTATE || ' ' || SQLERRM;
    END;
    answers := answers || answer;
  END LOOP;
  RETURN answers;
END $$
"""


class Server:
    """A table of odd values beside each other, and the answers about it."""

    def __init__(self, url: str) -> None:
        self._connection = connect(url)
        execute = self._connection.execute
        execute(f"CREATE TYPE mood AS ENUM ({', '.join(map(quoted, LABELS))})".encode())
        execute(f"CREATE TABLE things (n int, {', '.join(VALUES)})".encode())
        execute(_ASK.encode())
        mixed = random.Random(1)
        for row in range(ROWS):
            values = [mixed.choice([*values, None]) for values in VALUES.values()]
            execute(
                sql.SQL("INSERT INTO things VALUES ({}, {})").format(
                    sql.Literal(row), sql.SQL(", ").join(map(sql.Literal, values))
                )
            )
        execute("CREATE TABLE teams (id int4, title text, kind mood, since date)")
        execute(
            "INSERT INTO teams VALUES (1, 'a', 'fine', '2024-02-29'), (42, 'ab', 'bad', NULL), "
            "(NULL, 'A', 'so so', 'infinity'), (2, NULL, NULL, '1969-12-31'), (2, 'a', 'fine', NULL)"
        )
        self.columns, self.team_columns = self._columns_of("things")[1:], self._columns_of("teams")
        result = self._connection.pgconn.exec_(b"SELECT * FROM things ORDER BY n")
        self.text = {
            column.name: pa.array(
                [
                    None if (value := result.get_value(row, place + 1)) is None else value.decode()
                    for row in range(ROWS)
                ],
                pa.string(),
            )
            for place, column in enumerate(self.columns)
        }
        self._connection.commit()

    def _columns_of(self, table: str) -> list[SourceColumn]:
        found = self._connection.execute(
            "SELECT attname, t.oid::bigint, atttypmod, typname, format_type(t.oid, atttypmod), attnum "
            "FROM pg_attribute JOIN pg_type AS t ON t.oid = atttypid "
            "WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum",
            [table],
        ).fetchall()
        return [SourceColumn(*row) for row in found]

    def ask(self, conditions: Sequence[str]) -> list[list[str | None]]:
        found = self._connection.execute(
            "SELECT ask(condition) FROM unnest(%s::text[]) WITH ORDINALITY AS c (condition, place) "
            "ORDER BY place",
            [list(conditions)],
        ).fetchall()
        return [[{"true": "t", "false": "f"}.get(each, each) for each in row[0]] for row in found]

    def compile(self, text: str) -> Condition:
        return Condition.compile(
            text,
            self.columns,
            enums={"mood": LABELS},
            subqueries=lambda stream: SubqueryTable(stream, self.team_columns, {"kind": LABELS}),
            wording="electric",
        )

    def query(self, text: str) -> list[tuple[str | None, ...]]:
        return self._connection.execute(text.encode()).fetchall()

    def ours(self, condition: Condition) -> list[str | None]:
        try:
            answers = condition.evaluate(self.text, ROWS).to_pylist()
        except EvaluationError:
            answers = [self._one(condition, row) for row in range(ROWS)]
        return [{True: "t", False: "f"}.get(answer, answer) for answer in answers]

    def _one(self, condition: Condition, row: int) -> bool | str | None:
        try:
            columns = {name: column.slice(row, 1) for name, column in self.text.items()}
            answer: bool | None = condition.evaluate(columns, 1).to_pylist()[0]
            return answer
        except EvaluationError:
            return "error"

    def has_infinity(self, condition: Condition, row: int) -> bool:
        return any("infinity" in str(self.text[name][row]).lower() for name in condition.columns) or (
            "infinity" in condition.text.lower()
        )

    def close(self) -> None:
        self._connection.close()


@pytest.fixture(scope="module")
def source(server: EmbeddedPostgres) -> Iterator[Server]:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE differential TEMPLATE template0 LOCALE 'C' ENCODING 'UTF8'")
        made = Server(server.url("differential"))
        yield made
        made.close()
        connection.execute("DROP DATABASE differential WITH (FORCE)")


def differs(
    ours: str | None, servers: str | None, *, logic: bool, written: bool, excused: bool = False
) -> bool:
    """Of two answers for one row. An operand that settles AND or OR may be asked after one that fails.

    `excused`: ours may fail alone. Intervals can be infinite since Postgres 17 only, and fail here, as
    products of them do that doubles do not hold exactly; and the planner knows from a constant that is NULL
    that there is nothing to ask of a row. In turn it computes constants that no row would have asked for.
    """
    failed = servers is not None and len(servers) > 1
    if ours == "error":
        return not failed and not excused
    if not failed:
        return ours != servers
    # Our whole numbers do not overflow, and a type that the server asks for in a cast may be told here.
    lenient = written and str(servers).startswith(("22003", "42"))
    return not (logic or lenient)


def has_constants(condition: Condition) -> bool:
    """Operations without a column, which the planner computes once; a COALESCE that begins with a constant is
    that constant to it."""
    return any(
        not isinstance(node, tree.Literal) and not any(tree.columns_in(_first_of(node)))
        for node in tree.every_node(condition.expression)
    )


def _first_of(node: tree.Expression) -> tree.Expression:
    if isinstance(node, tree.Coalesce) or (isinstance(node, tree.Call) and node.function == "coalesce"):
        return node.operands[0]
    return node


SUBQUERIES = (
    "whole IN (SELECT id FROM teams)",
    "whole NOT IN (SELECT id FROM teams)",
    "whole NOT IN (SELECT id FROM teams WHERE id IS NOT NULL)",
    "whole NOT IN (SELECT id FROM teams WHERE false)",
    "NOT (flag OR big IN (SELECT id FROM teams WHERE title LIKE 'a%'))",
    "(whole, name) IN (SELECT id, title FROM teams)",
    "(whole, name) NOT IN (SELECT t.id, t.title FROM public.teams AS t WHERE t.title > 'A')",
    "code IN (SELECT title FROM teams WHERE id IN (SELECT id FROM teams WHERE kind = 'fine') OR title = 'a')",
    "mood IN (SELECT kind FROM teams) AND (flag IS TRUE OR day IN (SELECT since FROM teams))",
)


def rows_of(source: Server, subquery: Subquery) -> list[tuple[str | None, ...]]:
    columns = ", ".join(f'"{column.name}"::text' for column in subquery.columns)
    where = subquery.condition.sql() if subquery.condition is not None else "true"
    return source.query(f"SELECT {columns} FROM teams WHERE {where}")


def is_member(row: tuple[str | None, ...], rows: list[tuple[str | None, ...]]) -> bool | None:
    unknown = False
    for other in rows:
        pairs = list(zip(row, other, strict=True))
        if any(None not in pair and pair[0] != pair[1] for pair in pairs):
            continue
        if all(None not in pair for pair in pairs):
            return True
        unknown = True
    return None if unknown else False


@pytest.mark.parametrize("text", SUBQUERIES)
def test_membership_in_a_subquery_is_the_servers(source: Server, text: str) -> None:
    condition = source.compile(text)
    held = [rows_of(source, subquery) for subquery in condition.subqueries]

    def membership(node: tree.InSubquery, values: tuple[pa.StringArray, ...]) -> pa.BooleanArray:
        rows = zip(*(column.to_pylist() for column in values), strict=True)
        return pa.array([is_member(row, held[node.subquery]) for row in rows], pa.bool_())

    answers = condition.evaluate(source.text, ROWS, membership).to_pylist()
    ours = [{True: "t", False: "f"}.get(answer) for answer in answers]
    assert source.ask([condition.sql(), text]) == [ours, ours]


@pytest.mark.parametrize(
    ("seed", "expressions"),
    [(SEED, EXPRESSIONS), pytest.param(DRAWN_SEED, DRAWN_EXPRESSIONS, marks=pytest.mark.slow)],
    ids=["known", "drawn"],
)
def test_every_condition_of_a_shape_has_the_servers_answer_for_every_row(
    source: Server, seed: int, expressions: int
) -> None:
    print(f"PENSTOCK_WHERE_SEED={seed}")
    generator = Generator(seed)
    texts = [generator.condition() for _ in range(expressions)]
    conditions = {}
    for text in texts:
        try:
            conditions[text] = source.compile(text)
        except WhereError:
            continue
    print(f"{len(conditions)} of {len(texts)} are accepted")
    assert len(conditions) > len(texts) // 2, "most of what is generated must be accepted"
    printed = source.ask([condition.sql() for condition in conditions.values()])
    written = source.ask(list(conditions))
    wrong = []
    for (text, condition), by_print, by_text in zip(conditions.items(), printed, written, strict=True):
        words = (" AND ", " OR ", "BETWEEN", "ANY", "ALL")
        logic = any(word in text for word in words) or has_constants(condition)
        intervals = " - " in text or "+" in text
        products = " * " in text and ("span" in text or "interval" in text)
        constant_null = "NULL" in text or has_constants(condition)
        for row, ours in enumerate(source.ours(condition)):
            excused = constant_null or products or (intervals and source.has_infinity(condition, row))
            for servers, is_written in ((by_print[row], False), (by_text[row], True)):
                if differs(ours, servers, logic=logic, written=is_written, excused=excused):
                    wrong.append((text, row, ours, servers, "" if is_written else condition.sql()))
    assert not wrong, f"seed {seed}: {len(wrong)} answers differ, first {wrong[:5]}"

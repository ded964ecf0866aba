"""Conditions give Postgres' own answers: evaluated by us, printed for the source, and as people wrote them.

The judge is the server. A database with `COLLATE "C"` makes what people write mean what Penstock makes of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from psycopg import sql

from penstock.core.schema import SourceColumn
from penstock.core.where import Condition, WhereError
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.embedded import EmbeddedPostgres

pytestmark = pytest.mark.integration

#: A column of each type, with values that sort, round or print in their own way; null is added to each.
VALUES: dict[str, tuple[str, ...]] = {
    "flag bool": ("t", "f"),
    "small int2": ("-32768", "-7", "0", "5", "32767"),
    "whole int4": ("-2147483648", "-1", "0", "7", "42", "2147483647"),
    "big int8": ("-9223372036854775808", "-3", "0", "9007199254740993", "9223372036854775807"),
    "amount numeric": ("0", "-0.5", "0.50", "1e80", "-1e-90", "NaN", "Infinity", "-Infinity", "42"),
    "price numeric(10,2)": ("-1.10", "0.00", "42.00", "42.01", "99999999.99"),
    "ratio float4": ("0.1", "-0", "NaN", "Infinity", "16777217", "42", "1e-40"),
    "measure float8": ("0.1", "-0", "NaN", "-Infinity", "9007199254740993", "42", "1e300"),
    "name text": ("", "a", "A", "ab", "Äb", "äb", "a%b", "a_b", "a\\b", "a\nb", "ß", "Z", "z", "\U0001f600x"),
    "code varchar(8)": ("a", "A", "eu", "EU", "Eu "),
    "day date": ("2024-02-29", "1969-12-31", "0044-03-15 BC", "12024-01-01", "infinity", "-infinity"),
    "clock time": ("00:00:00", "12:30:00.5", "12:30:00.25", "23:59:59.999999", "24:00:00"),
    "moment timestamp": (
        "2024-02-29 12:30:00.5",
        "1969-12-31 23:59:59.999999",
        "0044-03-15 01:02:03 BC",
        "infinity",
        "-infinity",
        "294276-12-31 00:00:00",
        "2024-02-29 00:00:00",
    ),
    "instant timestamptz": (
        "2024-02-29 12:30:00+02",
        "1969-12-31 23:59:59.999999+00",
        "infinity",
        "0001-01-01 00:00:00+00",
        "20240-01-01 00:00:00+00",
        "2024-02-29 10:30:00+00",
    ),
    "id uuid": ("00000000-0000-0000-0000-000000000000", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"),
    "raw bytea": ("\\x", "\\x00", "\\x00ff", "\\xff"),
    "mood mood": ("fine", "so so"),
}
ROWS = 240
COLUMNS = [declared.split()[0] for declared in VALUES]


class Answers:
    """A table with every value beside every other, and the server's answers about it."""

    def __init__(self, url: str) -> None:
        self._connection = connect(url)
        self._connection.execute("CREATE TYPE mood AS ENUM ('so so', 'fine')")
        declared = ", ".join(VALUES)
        self._connection.execute(f"CREATE TABLE things (n int, {declared})".encode())
        for row in range(ROWS):
            # Strides that share no factor with the number of values bring each beside each.
            values = [
                [*values, None][(row * (place + 1) + row // (len(values) + 1)) % (len(values) + 1)]
                for place, values in enumerate(VALUES.values())
            ]
            self._connection.execute(
                sql.SQL("INSERT INTO things VALUES ({}, {})").format(
                    sql.Literal(row), sql.SQL(", ").join(map(sql.Literal, values))
                )
            )
        self._connection.commit()
        self.columns = self._catalog()
        rows = self._printed("SELECT * FROM things ORDER BY n")
        self.text = {
            column.name: pa.array([row[place + 1] for row in rows], pa.string())
            for place, column in enumerate(self.columns)
        }

    def _catalog(self) -> list[SourceColumn]:
        found = self._connection.execute(
            "SELECT attname, t.oid::bigint, atttypmod, typname, format_type(t.oid, atttypmod), attnum "
            "FROM pg_attribute JOIN pg_type AS t ON t.oid = atttypid "
            "WHERE attrelid = 'things'::regclass AND attnum > 1 ORDER BY attnum"
        ).fetchall()
        self._connection.commit()
        return [SourceColumn(*row) for row in found]

    def _printed(self, query: str) -> list[list[str | None]]:
        result = self._connection.pgconn.exec_(query.encode())
        if result.status != psycopg.pq.ExecStatus.TUPLES_OK:
            self._connection.rollback()
            if result.error_field(psycopg.pq.DiagnosticField.SQLSTATE) == b"22003":
                raise OverflowError
            raise AssertionError(f"{result.error_message.decode()}: {query}")
        return [
            [
                None if (value := result.get_value(row, column)) is None else value.decode()
                for column in range(result.nfields)
            ]
            for row in range(result.ntuples)
        ]

    def of_server(self, condition: str) -> list[bool | None]:
        printed = self._printed(f"SELECT ({condition}) FROM things ORDER BY n")
        return [None if answer is None else answer == "t" for (answer,) in printed]

    def ours(self, condition: Condition) -> list[bool | None]:
        answers: list[bool | None] = condition.evaluate(self.text, ROWS).to_pylist()
        return answers

    def compile(self, text: str) -> Condition:
        return Condition.compile(text, self.columns)

    def close(self) -> None:
        self._connection.close()


@pytest.fixture(scope="module")
def answers(server: EmbeddedPostgres) -> Iterator[Answers]:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE conditions TEMPLATE template0 LOCALE 'C' ENCODING 'UTF8'")
        made = Answers(server.url("conditions"))
        yield made
        made.close()
        connection.execute("DROP DATABASE conditions WITH (FORCE)")


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


KINDS = {declared.split()[0]: declared.split()[1].partition("(")[0] for declared in VALUES}
NUMBERS = ("small", "whole", "big", "amount", "price", "ratio", "measure")
TEXTS = ("name", "code")


def numbers() -> st.SearchStrategy[str]:
    arbitrary = st.one_of(
        st.integers(-(2**70), 2**70).map(str),
        st.integers(-50, 50).map(str),
        st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str),
    )
    return arbitrary.map(lambda text: f"({text})" if text.startswith("-") else text)


@st.composite
def literals(draw: st.DrawFn, column: str) -> str:
    """A literal that may stand beside the column: bare, in quotes, or with its type."""
    declared = next(each for each in VALUES if each.split()[0] == column)
    value = draw(st.sampled_from(VALUES[declared]))
    if column in NUMBERS and draw(st.booleans()):
        return draw(numbers())
    if column in TEXTS and draw(st.booleans()):
        value = draw(st.text(st.sampled_from("aAbzÄäß%_\\' \n"), max_size=4))
    written = draw(st.sampled_from(["plain", "typed", "null"]))
    if written == "null":
        return "NULL"
    return quoted(value) if written == "plain" else f"{quoted(value)}::{KINDS[column]}"


@st.composite
def operands(draw: st.DrawFn) -> tuple[str, str]:
    """Something to compare, and the column whose literals fit beside it."""
    column = draw(st.sampled_from([name for name in COLUMNS if name != "mood"]))
    if column in TEXTS and draw(st.booleans()):
        form = draw(st.sampled_from(["lower({})", "upper({})", "{} || 'x'", "coalesce({}, 'none')"]))
        return form.format(column), column
    if column in ("small", "whole", "big", "amount", "price") and draw(st.booleans()):
        exact = draw(st.sampled_from(["small", "whole", "big", "price", "amount"]))
        form = draw(
            st.sampled_from(["{0} + {1}", "{0} - {1}", "{0} * {1}", "-{0}", "@ {0}", "{0} * 3 - {1}"])
        )
        return f"({form.format(_unbounded(column), _unbounded(exact))})", "amount"
    if column in ("small", "whole", "big") and draw(st.booleans()):
        form = draw(
            st.sampled_from(["{} / 7", "{} % 7", "{} / -3", "{} % -3", "{} & 12", "{} | 3", "{} # 5", "~ {}"])
        )
        return f"({form.format(column)})", "big"
    if column in ("moment", "instant") and draw(st.booleans()):
        return f"({column}::date)", "day"
    if column in ("flag", "whole", "id", "amount") and draw(st.booleans()):
        return f"({column}::text)", "name"
    return column, column


def _unbounded(column: str) -> str:
    """Postgres' whole numbers overflow where ours do not; as numerics they mean the same."""
    return column if column in ("amount", "price") else f"{column}::numeric"


@st.composite
def comparisons(draw: st.DrawFn) -> str:
    left, column = draw(operands())
    fitting = literals(column)
    symbol = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
    form = draw(
        st.sampled_from(["compare", "between", "in", "null", "distinct", "column", "like", "any", "enum"])
    )
    match form:
        case "between":
            kind = draw(
                st.sampled_from(["BETWEEN", "NOT BETWEEN", "BETWEEN SYMMETRIC", "NOT BETWEEN SYMMETRIC"])
            )
            return f"{left} {kind} {draw(fitting)} AND {draw(fitting)}"
        case "in":
            listed = ", ".join(draw(st.lists(fitting, min_size=1, max_size=4)))
            return f"{left} {draw(st.sampled_from(['IN', 'NOT IN']))} ({listed})"
        case "null":
            return f"{left} IS {draw(st.sampled_from(['NULL', 'NOT NULL']))}"
        case "distinct":
            return f"{left} IS {draw(st.sampled_from(['', 'NOT']))} DISTINCT FROM {draw(fitting)}"
        case "column":
            right, _ = draw(operands())
            return f"{left} {symbol} {right}"
        case "any":
            listed = ", ".join(draw(st.lists(fitting, min_size=1, max_size=3)))
            return f"{left} {symbol} {draw(st.sampled_from(['ANY', 'ALL']))} (ARRAY[{listed}])"
        case "like" if column in TEXTS:
            symbol = draw(st.sampled_from(["LIKE", "NOT LIKE", "ILIKE", "NOT ILIKE"]))
            pattern = draw(st.text(st.sampled_from("aAbÄäz%_\\\n."), max_size=5))
            return f"{left} {symbol} {quoted(pattern)}"
        case "enum":
            return f"mood::text {symbol} {draw(literals('name'))}"
    return f"{left} {symbol} {draw(fitting)}"


def conditions() -> st.SearchStrategy[str]:
    leaves = st.one_of(comparisons(), comparisons(), st.sampled_from(["flag", "true", "false", "NULL::bool"]))
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
            inner.map(lambda text: f"NOT ({text})"),
            st.tuples(
                inner, st.sampled_from(["TRUE", "NOT TRUE", "FALSE", "NOT FALSE", "UNKNOWN", "NOT UNKNOWN"])
            ).map(lambda p: f"(({p[0]}) IS {p[1]})"),
        ),
        max_leaves=5,
    )


@given(text=conditions())
@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
def test_a_condition_has_the_servers_answer_for_every_row(answers: Answers, text: str) -> None:
    try:
        condition = answers.compile(text)
    except WhereError:
        reject()
    ours = answers.ours(condition)
    assert ours == answers.of_server(condition.sql()), condition.sql()
    with contextlib.suppress(OverflowError):  # which ours has not
        assert ours == answers.of_server(text), text

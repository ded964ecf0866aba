"""What comes from outside stays data: each attempt is refused, or is printed as one harmless condition.

What is printed is read again by Postgres' own parser: one WHERE, of columns, literals, and operators and
functions that are on the list. The list is written out here, not taken from the printer.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from postgast import parse

from penstock.core.schema import SourceColumn
from penstock.core.stream import StreamId
from penstock.core.where import Condition, SubqueryTable, WhereError, syntax
from penstock.core.where.print_sql import without_literals

TYPES = {
    "id": "int4",
    "amount": "numeric",
    "measure": "float8",
    "name": "text",
    "day": "date",
    "at": "timestamptz",
    "flag": "bool",
    "tags": "_text",
    "data": "jsonb",
    "mood": "mood",
}
COLUMNS = [
    SourceColumn(name, 20_000 if kind == "mood" else 23, -1, kind, kind) for name, kind in TYPES.items()
]
#: Parts of a parse tree that say nothing by themselves.
HARMLESS_NODES = {
    "Node", "A_Expr", "BoolExpr", "NullTest", "BooleanTest", "ColumnRef", "A_Const", "Integer", "Float",
    "Boolean", "String", "TypeCast", "TypeName", "FuncCall", "CollateClause", "CoalesceExpr", "MinMaxExpr",
    "A_ArrayExpr", "A_Indirection", "A_Indices", "CaseExpr", "CaseWhen", "List",
}  # fmt: skip
HARMLESS_FUNCTIONS = {
    "lower", "upper", "div", "mod", "abs", "concat", "format", "num_nonnulls", "timezone", "array_cat",
    "array_append", "array_prepend", "array_ndims", "justify_days", "justify_hours", "justify_interval",
}  # fmt: skip
HARMLESS_TYPES = {
    "bool", "int2", "int4", "int8", "numeric", "float4", "float8", "text", "date", "time", "timestamp",
    "timestamptz", "interval", "uuid", "bytea", "jsonb",
}  # fmt: skip
HARMLESS_OPERATORS = {
    "=", "<>", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "^", "|/", "&", "|", "#", "||", "@>", "&&",
    "~~", "~~*", "->", "->>", "?", "?|", "?&",
}  # fmt: skip

ATTEMPTS = [
    # A second statement, a clause more, a comment that hides the rest.
    "id = 1; DROP TABLE secrets",
    "id = 1; SELECT pg_sleep(10)",
    "id = 1) OR (1 = 1",
    "id = 1) UNION SELECT passwd FROM pg_shadow --",
    "id = 1 UNION SELECT 1",
    "id = 1 ORDER BY (SELECT 1)",
    "id = 1 LIMIT 0",
    "id = 1 FOR UPDATE",
    "id = 1 GROUP BY id",
    "id = 1 HAVING true",
    "id = 1 WINDOW w AS ()",
    "id = 1 INTO OUTFILE '/tmp/x'",
    "id = 1 -- AND flag",
    "id = 1 /* AND flag */",
    "id = 1 /* /* nested */",
    "flag --\n; DELETE FROM t",
    "",
    ";",
    "true; true",
    # Functions that read, wait, write or change the session.
    "pg_sleep(10) IS NULL",
    "pg_catalog.pg_sleep(10) IS NULL",
    "name = current_setting('data_directory')",
    "set_config('log_statement', 'all', false) = name",
    "name = pg_read_file('/etc/passwd')",
    "pg_terminate_backend(id)",
    "dblink('host=evil', 'SELECT 1') IS NULL",
    "lo_import('/etc/passwd') = id",
    "nextval('s') = id",
    "txid_current() = id",
    "name = version()",
    "name = current_user",
    "name = CURRENT_USER::text",
    "at < now()",
    "at < CURRENT_TIMESTAMP",
    "random() < 0.5",
    "name = session_user",
    "query_to_xml('SELECT 1', true, true, '') IS NULL",
    "has_table_privilege('x', 'select')",
    "pg_advisory_lock(1) IS NULL",
    "public.lower(name) = 'x'",
    "\"lower; DROP TABLE x\"(name) = 'x'",
    "lower(VARIADIC tags) = 'x'",
    "lower(DISTINCT name) = 'x'",
    "lower(name) OVER () = 'x'",
    "concat(name ORDER BY name) = 'x'",
    "count(*) > 1",
    "max(id) > 1",
    "xmlparse(document '<a/>') IS NULL",
    "GROUPING(id) = 1",
    # Other tables, system columns, casts with side effects or look-ups.
    "id = (SELECT 1)",
    "EXISTS (SELECT 1 FROM pg_shadow)",
    "id IN (SELECT usesysid FROM pg_shadow)",
    "id = ANY (SELECT 1)",
    "ARRAY(SELECT 1) @> ARRAY[id]",
    "id IN (VALUES (1), (2))",
    "ctid = '(0,1)'",
    "xmin = 1",
    "tableoid = 1",
    "pg_shadow.passwd = 'x'",
    "(t).id = 1",
    "t.* IS NULL",
    "* = 1",
    "'pg_shadow'::regclass = id",
    "name::regclass IS NULL",
    "name::regproc IS NULL",
    "name::xml IS NULL",
    "name::public.int4 = 1",
    "name::pg_temp.text = 'x'",
    "id::evil = 1",
    'CAST(id AS evil."int4") = 1',
    "name::text COLLATE \"evil\" = 'x'",
    "name OPERATOR(public.=) 'x'",
    "id OPERATOR(pg_catalog.=) 1",
    "name ~ '(a+)+$'",
    "name SIMILAR TO '(a|b)*'",
    "name !~* 'x'",
    "CASE WHEN pg_sleep(1) IS NULL THEN true END",
    "NULLIF(id, 1) = 2",
    "ROW(id, name) = ROW(1, 'x')",
    "(id, name) = (1, 'x')",
    "$1 = id",
    "B'101' = B'101'",
    "U&'\\0027' = name",
    "at AT TIME ZONE name > '2024-01-01'",
    "at AT TIME ZONE 'UTC''; DROP TABLE x' > '2024-01-01'",
    # Quotes, escapes and characters that look like them.
    "name = 'x''; DROP TABLE t; --'",
    "name = E'x\\'; DROP TABLE t; --'",
    "name = 'x\\'",
    "name = $$x'; DROP TABLE t$$",
    "name = $tag$'$tag$",
    "name = '\u02bc OR 1=1'",
    "name = '\uff07; DROP TABLE t'",
    "name = '\u202e'",
    "\"name\" = 'x'",
    '"na""me" = 1',
    "name = '%s' AND name = '{0}' AND name = '{all}'",
    "concat(name, '{1}', '{indexes}') = '{0}'",
    "tags @> '{\"}'",
    "tags @> '{a,b}; DROP TABLE t'",
    "tags @> '{\"\\''\"}'",
    "tags['1; DROP TABLE t'] = 'x'",
    'data @> \'{"a": "\\u0000"}\'',
    "data ->> 'a''; DROP TABLE t' = 'x'",
    "data #>> '{a}' = 'x'",
    "data @? '$'",
    "mood = 'fine'",
    "mood = 'x''; DROP TABLE t; --'",
    "mood::text = 'x''; --'",
    "interval '1 day; DROP TABLE t' > interval '1 day'",
    "day > 'now'",
    "day > 'today'::date",
    "at > 'epoch; DROP TABLE t'",
    "measure > 'inf'",
    "id = '1; DROP TABLE t'",
    "id = 0x41",
    "amount > 1e999999999",
    # Size and depth.
    "NOT " * 20_000 + "flag",
    "(" * 3_000 + "flag" + ")" * 3_000,
    " AND ".join(["flag"] * 5_000),
    "id = ANY('{" + ",".join("1" * 10_000) + "}')",
    "(" + "*".join(["1e9999"] * 40) + ") > amount",
    "name = '" + "x" * 70_000 + "'",
]


def messages(message: Any) -> Iterator[Any]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in value if isinstance(value, Iterable) else (value,):
                yield from messages(each)


def strings(nodes: Any) -> list[str]:
    return [node.string.sval for node in nodes]


def assert_harmless(sql: str) -> list[str]:
    """One condition of listed parts; gives its literals."""
    statements = parse(f"SELECT 1 WHERE {sql}").stmts
    assert len(statements) == 1
    select = statements[0].stmt.select_stmt
    assert {field.name for field, _ in select.ListFields()} == {
        "target_list", "where_clause", "limit_option", "op"
    }  # fmt: skip
    assert len(select.target_list) == 1
    literals = []
    for node in messages(select.where_clause):
        name = node.DESCRIPTOR.name
        assert name in HARMLESS_NODES, name
        match name:
            case "ColumnRef":
                assert len(node.fields) == 1
                assert node.fields[0].string.sval in TYPES
            case "FuncCall":
                names = strings(node.funcname)
                assert names[0] == "pg_catalog"
                assert names[1:] in [[known] for known in HARMLESS_FUNCTIONS]
            case "TypeName":
                names = strings(node.names)
                assert names[0] == "pg_catalog"
                assert names[1:] in [[known] for known in HARMLESS_TYPES]
            case "A_Expr":
                assert strings(node.name)[-1] in HARMLESS_OPERATORS | {"BETWEEN"}
            case "CollateClause":
                assert strings(node.collname) == ["C"]
            case "A_Const":
                literals.append(node.sval.sval)
    return literals


def compiled(text: str, **options: Any) -> Condition:
    return Condition.compile(text, COLUMNS, enums={"mood": ("fine", "x'; --")}, wording="electric", **options)


@pytest.mark.parametrize("text", ATTEMPTS, ids=range(len(ATTEMPTS)))
def test_every_attempt_is_refused_or_printed_as_one_harmless_condition(text: str) -> None:
    try:
        condition = compiled(text)
    except WhereError:
        return
    assert_harmless(condition.sql())


@pytest.mark.parametrize(
    "text",
    [
        "pg_sleep(10) IS NULL",
        "name = pg_read_file('/etc/passwd')",
        "EXISTS (SELECT 1 FROM pg_shadow)",
        "id IN (SELECT usesysid FROM pg_shadow)",
        "'pg_shadow'::regclass = id",
        "id = 1; DROP TABLE secrets",
        "id = 1 FOR UPDATE",
        "at < now()",
        "name OPERATOR(public.=) 'x'",
        "public.lower(name) = 'x'",
        "name::public.int4 = 1",
        "ctid = '(0,1)'",
        "count(*) > 1",
        "day > 'today'::date",
    ],
)
def test_what_does_something_or_hangs_on_the_moment_is_refused(text: str) -> None:
    for wording in ("penstock", "electric"):
        with pytest.raises(WhereError):
            Condition.compile(text, COLUMNS, wording=wording)


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


@given(TEXT)
def test_no_literal_is_left_in_what_is_shown_without_them(value: str) -> None:
    text = "name = $1 OR name LIKE 'x%' OR id IN (4711, 4712) OR day > '2026-01-31' OR tags @> '{a}'"
    shown = without_literals(compiled(text, params={1: value}).sql())
    assert assert_harmless(shown) == ["…"] * 6
    assert shown == without_literals(compiled(text, params={1: "another"}).sql())


@given(TEXT)
def test_a_parameter_is_one_literal_whatever_it_holds(value: str) -> None:
    assert assert_harmless(compiled("name = $1", params={1: value}).sql()) == [value]
    assert value in assert_harmless(compiled("name || 'a' = $1 || 'b'", params={1: value}).sql())
    for text in ("id = $1", "day > $1", "tags @> $1", "data = $1", "mood = $1", "flag = $1", "name LIKE $1"):
        try:
            condition = compiled(text, params={1: value})
        except WhereError:
            continue
        assert len(assert_harmless(condition.sql())) == 1


@given(TEXT)
def test_no_text_is_printed_as_anything_but_a_harmless_condition(text: str) -> None:
    for form in ("{}", "name = '{}'", "name = E'{}'", '"{}" = 1', "{}(id) = 1", "id = 1 {}", "id::{} = 1"):
        try:
            condition = compiled(form.replace("{}", text))
        except WhereError:
            continue
        assert_harmless(condition.sql())


def test_a_subquery_reads_only_tables_that_it_is_told_of() -> None:
    asked = []

    def tables(stream: StreamId) -> SubqueryTable | None:
        asked.append(stream)
        return SubqueryTable(stream, COLUMNS) if stream.name == "allowed" else None

    for text in (
        "id IN (SELECT usesysid FROM pg_catalog.pg_shadow)",
        "id IN (SELECT id FROM allowed, pg_shadow)",
        "id IN (SELECT id FROM allowed JOIN pg_shadow ON true)",
        "id IN (SELECT id FROM (SELECT * FROM pg_shadow) AS allowed)",
        "id IN (SELECT id FROM pg_ls_dir('/') AS allowed)",
        "id IN (SELECT pg_sleep(1) FROM allowed)",
        "id IN (SELECT id FROM allowed WHERE pg_sleep(1) IS NULL)",
        "id IN (SELECT id FROM allowed WHERE EXISTS (SELECT 1 FROM pg_shadow))",
        "id IN (SELECT id FROM allowed UNION SELECT usesysid FROM pg_shadow)",
        "id IN (WITH x AS (DELETE FROM t RETURNING id) SELECT id FROM allowed)",
        "id IN (SELECT id INTO stolen FROM allowed)",
        "id IN (SELECT id FROM allowed FOR UPDATE)",
        "id IN (SELECT id FROM allowed TABLESAMPLE system (1))",
        "id IN (SELECT id FROM ONLY allowed)",
        "id IN (SELECT id FROM other.public.allowed)",
        "EXISTS (SELECT 1 FROM allowed)",
        "id = (SELECT id FROM allowed)",
        "id > ANY (SELECT id FROM allowed)",
        "id IN (TABLE allowed)",
    ):
        with pytest.raises(WhereError):
            compiled(text, subqueries=tables)
    quoted = compiled('id IN (SELECT id FROM "a""; DROP TABLE x; --"."allowed")', subqueries=tables)
    assert 'FROM "a""; DROP TABLE x; --"."allowed"' in quoted.sql()
    assert StreamId('a"; DROP TABLE x; --', "allowed") in asked


@pytest.mark.parametrize(
    "text",
    [
        "id = 1" + "+1" * 30_000,
        "(" * 30_000 + "id = 1" + ")" * 30_000,
        "NOT " * 15_000 + "true",
        "id = " + "-" * 30_000 + "1",
        "id" + "::int" * 12_000 + " = 1",
        "id = 1" + " OR id = 1" * 6_000,
        "id = ANY(" + "ARRAY[" * 9_000 + "1" + "]" * 9_000 + ")",
        "CASE WHEN " * 6_000 + "true" + " THEN true END" * 4_000,
    ],
    ids=lambda text: text[:12],
)
def test_what_is_nested_too_deeply_is_refused_and_not_parsed(text: str) -> None:
    """In a process of its own: the parser would end it."""
    program = (
        "import sys, threading\n"
        "from penstock.core.where import WhereError\n"
        "from penstock.core.where.syntax import BYTES_MAX, parse\n"
        "text = sys.stdin.read()[:BYTES_MAX]\n"
        "def work():\n"
        "    try: parse(text)\n"
        "    except WhereError: return\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], input=text, text=True, capture_output=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_a_long_list_is_not_nested() -> None:
    syntax.parse("id IN (" + ", ".join(str(number) for number in range(9_000)) + ")")

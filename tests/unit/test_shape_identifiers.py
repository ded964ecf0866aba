"""Names of tables and columns: what is taken is a name, whatever it looks like; the rest is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.stream import StreamId
from penstock.shapes.identifiers import BYTES_MAX, IdentifierError, parse_columns, parse_table

_NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1).filter(
    lambda name: len(name.encode()) <= BYTES_MAX
)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@given(_NAMES, _NAMES)
def test_any_name_can_be_said_in_quotes(namespace: str, name: str) -> None:
    assert parse_table(f"{quoted(namespace)}.{quoted(name)}") == StreamId(namespace, name)


@given(st.lists(_NAMES, min_size=1, unique=True))
def test_any_columns_can_be_said_in_quotes(names: list[str]) -> None:
    assert parse_columns(",".join(map(quoted, names))) == names


@given(st.text())
def test_whatever_is_taken_means_the_same_when_it_is_quoted_anew(text: str) -> None:
    try:
        names = parse_columns(text)
    except IdentifierError:
        return
    assert parse_columns(",".join(map(quoted, names))) == names
    assert all(0 < len(name.encode()) <= BYTES_MAX for name in names)


@pytest.mark.parametrize(
    ("text", "stream"),
    [
        ("items", StreamId("public", "items")),
        ("Items", StreamId("public", "items")),
        ('"Items"', StreamId("public", "Items")),
        ("Shop.Items", StreamId("shop", "items")),
        ('shop."Weird Name"', StreamId("shop", "Weird Name")),
        ('"a.b"."c.d"', StreamId("a.b", "c.d")),
        ("ÄÖ", StreamId("public", "ÄÖ")),  # Postgres folds ASCII alone
        ("a$1_b", StreamId("public", "a$1_b")),
        ("x" * 63, StreamId("public", "x" * 63)),
    ],
)
def test_bare_names_are_folded_and_quoted_ones_are_not(text: str, stream: StreamId) -> None:
    assert parse_table(text) == stream


ATTACKS = [
    "items; DROP TABLE items",
    "items--",
    "items/**/",
    "items WHERE true",
    "(SELECT 1)",
    "items, users",
    "items AS x",
    "items'",
    "items\\",
    'items"',
    '"items',
    '"items"x',
    '"items""',
    '"items" "users"',
    "1items",
    "$items",
    " items",
    "items ",
    "items\n",
    "items\0",
    '"it\0ems"',
    "items\u200b ",
    "a.b.c",
    "pg_sleep(10)",
    "public.",
    ".items",
    ".",
    "",
    '""',
    'public.""',
    "x" * 64,
    "é" * 32,  # 64 bytes
    '"' + "x" * 64 + '"',
    "items%00",
    "public.items::regclass",
    "*",
    "items*",
]


@pytest.mark.parametrize("text", ATTACKS)
def test_what_is_no_name_of_a_table_is_refused(text: str) -> None:
    with pytest.raises(IdentifierError):
        parse_table(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,", "Invalid zero-length delimited identifier"),
        ("", "Invalid zero-length delimited identifier"),
        ('id,""', "Invalid zero-length delimited identifier"),
        ('i"d,v', 'Invalid unquoted identifier contains special characters: i"d'),
        ('"i"d",v', 'Invalid identifier with unescaped quote: "i"d",v'),
        ("id,(SELECT 1)", "Invalid unquoted identifier contains special characters: (SELECT 1)"),
        ("id,*", "Invalid unquoted identifier contains special characters: *"),
        ("id;--", "Invalid unquoted identifier contains special characters: id;--"),
    ],
)
def test_what_is_no_list_of_columns_is_refused_with_a_reason(text: str, message: str) -> None:
    with pytest.raises(IdentifierError) as caught:
        parse_columns(text)
    assert str(caught.value) == message


def test_commas_and_quotes_are_parts_of_quoted_columns() -> None:
    assert parse_columns('id,"has,comma","has""quote",ID') == ["id", "has,comma", 'has"quote']

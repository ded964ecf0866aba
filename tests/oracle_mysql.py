"""The judge of pipelines that read MySQL: what the server says, in the words of `tests.oracle`.

The server is asked by its driver; the audit is written by triggers, in the transaction that made the change.
Nothing of Penstock is used. TRUNCATE fires no trigger: an audited table is not truncated.
"""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tests.mysql_server import MysqlServer
from tests.oracle import Table, Value, assert_equal_rows, destination_rows, print_float
from tests.oracle_history import Change, Layout, assert_is_history, changes_of

_AUDIT = (
    "CREATE DATABASE IF NOT EXISTS oracle",
    "CREATE TABLE IF NOT EXISTS oracle.audit (seq BIGINT AUTO_INCREMENT PRIMARY KEY, relation VARCHAR(80), "
    "op CHAR(1), old_row JSON, new_row JSON, tx VARCHAR(40), at DATETIME(6))",
)


def columns_of(server: MysqlServer, table: str) -> tuple[str, ...]:
    return _names(
        server,
        "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE CONCAT(TABLE_SCHEMA, '.', TABLE_NAME) = "
        f"'{table}' AND COALESCE(GENERATION_EXPRESSION, '') = '' ORDER BY ORDINAL_POSITION",
    )


def key_of(server: MysqlServer, table: str) -> tuple[str, ...]:
    return _names(
        server,
        "SELECT COLUMN_NAME FROM information_schema.STATISTICS WHERE CONCAT(TABLE_SCHEMA, '.', TABLE_NAME) = "
        f"'{table}' AND INDEX_NAME = 'PRIMARY' ORDER BY SEQ_IN_INDEX",
    )


def _names(server: MysqlServer, query: str) -> tuple[str, ...]:
    return tuple(str(name) for (name,) in server.rows(query))


def source_rows(server: MysqlServer, table: str) -> Table:
    names = columns_of(server, table)
    found = server.rows(f"SELECT {', '.join(f'`{name}`' for name in names)} FROM {table}")
    return Table(names, [tuple(map(_printed, row)) for row in found], key_of(server, table))


def _printed(value: Any) -> Value:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float):
        return print_float(np.float64(value), 15)
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, datetime.datetime):
        text = f"{value:%Y-%m-%d %H:%M:%S}"
        return f"{text}.{value.microsecond:06}".rstrip("0") if value.microsecond else text
    assert isinstance(value, int | decimal.Decimal | datetime.date), f"the oracle has no rule for {value!r}"
    return str(value)


def assert_same(server: MysqlServer, table: str, path: Path) -> None:
    source = source_rows(server, table)
    destination = destination_rows(path)
    assert set(destination.columns) == set(source.columns), f"{table}: {destination.columns}"
    assert_equal_rows(table, source, destination_rows(path, source.columns))


def install_audit(server: MysqlServer, tables: Iterable[str]) -> None:
    """Have the server write down each change; a session says by `@tx` which transaction it is in."""
    server.execute(*_AUDIT)
    for table in tables:
        old, new = (
            "JSON_ARRAY("
            + ", ".join(f"CAST({row}.`{name}` AS CHAR)" for name in columns_of(server, table))
            + ")"
            for row in ("OLD", "NEW")
        )
        written = {"INSERT": ("i", "NULL", new), "UPDATE": ("u", old, new), "DELETE": ("d", old, "NULL")}
        for event, (letter, before, after) in written.items():
            server.execute(
                f"CREATE TRIGGER {table}_{event.lower()} AFTER {event} ON {table} FOR EACH ROW "
                "INSERT INTO oracle.audit (relation, op, old_row, new_row, tx, at) "
                f"VALUES ('{table}', '{letter}', {before}, {after}, @tx, SYSDATE(6))"
            )


def assert_history(server: MysqlServer, table: str, path: Path) -> None:
    """The append table has the rows of one moment, and each change since then once, in order per key."""
    layout = Layout(columns_of(server, table), key_of(server, table))
    assert_is_history(table, layout, _audited(server, table, layout), source_rows(server, table), path)


def _audited(server: MysqlServer, table: str, layout: Layout) -> list[Change]:
    rows = server.rows(
        f"SELECT op, old_row, new_row, tx, at, seq FROM oracle.audit WHERE relation = '{table}' ORDER BY seq"
    )
    return changes_of(
        layout,
        (
            (op, _values(old), _values(new), tx, at.replace(tzinfo=datetime.UTC), number)
            for op, old, new, tx, at, number in rows
        ),
    )


def _values(row: str | None) -> list[Value] | None:
    return None if row is None else json.loads(row)

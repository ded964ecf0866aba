"""What is known of MySQL tables without a server: types, chunks, findings, rows in the bytes of a socket."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import ConfigError, StateError
from penstock.core.held_as import HeldAs
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.sources.cursor import CursorChoice
from penstock.sources.finding import StreamNeed
from penstock.sources.mysql import result_kernels
from penstock.sources.mysql.catalog import Cascade, KeyPart, MysqlTable, is_working_table
from penstock.sources.mysql.check_streams import LogFacts, check_streams
from penstock.sources.mysql.chunks import beyond, integer_bounds, literal, literals_of, rows_of_chunk
from penstock.sources.mysql.connection import parse_url, safe_url
from penstock.sources.mysql.types import RULES, TYPES, decimal_modifier
from penstock.sources.tables import SourceLeaf
from penstock.sources.types import types_of


def _column(name: str, modifier: int = -1, text: str = "", **others: Any) -> SourceColumn:
    return SourceColumn("c", 0, modifier, name, text or name, family="mysql", **others)


def _cast(texts: list[str | None], column: SourceColumn) -> tuple[list[Any], list[bool]]:
    assert types_of(column) is TYPES
    result = TYPES.cast_text(pa.array(texts, pa.string()), column)
    result.values.validate(full=True)
    assert result.values.type == TYPES.arrow_type(column)
    bad = result.bad.to_pylist() if result.bad is not None else [False] * len(texts)
    return result.values.to_pylist(), bad


@settings(max_examples=50)
@given(st.lists(st.none() | st.integers(0, 2**64 - 1), min_size=1))
def test_unsigned_numbers_are_exact(numbers: list[int | None]) -> None:
    texts = [None if number is None else str(number) for number in numbers]
    values, bad = _cast(texts, _column("bigint unsigned"))
    assert values == [None if number is None else Decimal(number) for number in numbers]
    assert not any(bad)


@settings(max_examples=50)
@given(st.lists(st.none() | st.binary(max_size=40), min_size=1))
def test_bytes_are_exact(values: list[bytes | None]) -> None:
    texts = [None if value is None else value.hex() for value in values]
    assert _cast(texts, _column("varbinary", 40)) == (values, [False] * len(values))


@settings(max_examples=50)
@given(st.lists(st.none() | st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)), min_size=1))
def test_times_are_exact(values: list[datetime | None]) -> None:
    texts = [None if value is None else value.isoformat(" ", "microseconds") for value in values]
    assert _cast(texts, _column("datetime", 6)) == (values, [False] * len(values))


def test_dates_that_are_none_are_dead_letters() -> None:
    texts = ["0000-00-00", "2024-00-10", "2024-02-29", "2023-02-29", "1900-02-29", "2000-02-29", "2024-04-31"]
    values, bad = _cast([*texts, None], _column("date"))
    assert values == [None, None, date(2024, 2, 29), None, None, date(2000, 2, 29), None, None]
    assert bad == [True, True, False, True, True, False, True, False]
    values, bad = _cast([f"{text} 12:00:00.5" for text in texts], _column("timestamp", 1))
    assert bad == [True, True, False, True, True, False, True]
    assert _cast(list(texts), _column("date", held_as="text")) == (texts, [False] * len(texts))


def test_every_type_has_its_rule() -> None:
    assert _cast(["-838:59:59.5"], _column("time", 1)) == (["-838:59:59.5"], [False])
    values, bad = _cast(
        ["23:59:59.5", "-00:00:01", "24:00:00", "838:59:59"], _column("time", 1, held_as="time")
    )
    assert (str(values[0]), bad) == ("23:59:59.500000", [False, True, True, True])
    assert _cast(["1", "0", None], _column("bit", 1)) == ([True, False, None], [False] * 3)
    assert _cast(["101"], _column("bit", 3)) == (["101"], [False])
    assert _cast(["1.50"], _column("decimal", decimal_modifier(12, 2))) == ([Decimal("1.50")], [False])
    wide = _column("decimal", decimal_modifier(65, 30))
    assert _cast(["1" * 65], wide) == (["1" * 65], [False])
    assert TYPES.can_be_held_as(wide, HeldAs.parse("decimal(38,0)"))
    assert _cast(["255", "-1"], _column("tinyint")) == ([255, -1], [False, False])
    assert _cast(["0000", "2155"], _column("year")) == ([0, 2155], [False, False])
    assert _cast(["1e-38"], _column("float"))[0] == [float(np.float32("1e-38"))]
    assert _cast(["SRID=0;01"], _column("point")) == (["SRID=0;01"], [False])
    assert _cast(["abc"], _column("somethingnew")) == (["abc"], [False])
    for name in RULES:
        _cast([None], _column(name, decimal_modifier(9, 2)))
    with pytest.raises(ConfigError, match="cannot be held"):
        _cast(["1"], _column("int", held_as="time"))


@pytest.mark.parametrize(
    ("before", "now", "kept"),
    [
        (_column("tinyint"), _column("smallint"), True),
        (_column("smallint"), _column("tinyint"), False),
        (_column("int"), _column("bigint"), False),  # another Arrow type
        (_column("varchar", 10), _column("varchar", 20), True),
        (_column("varchar", 20), _column("varchar", 10), False),
        (_column("varchar", 20), _column("varchar"), True),  # of a table map
        (_column("text", 65_535), _column("text"), True),
        (_column("varchar", 20), _column("tinytext", 255), True),
        (_column("varchar", 200), _column("tinytext", 255), False),
        (_column("text", 65535), _column("longtext", 2**32 - 1), True),
        (_column("longtext", 2**32 - 1), _column("text", 65535), False),
        (_column("char", 9), _column("varchar", 9), False),
        (_column("enum", -1, "enum('a','b')"), _column("enum", -1, "enum('a','b','c')"), True),
        (_column("enum", -1, "enum('a','b')"), _column("enum", -1, "enum('b','a')"), False),
        (_column("datetime", 0), _column("datetime", 3), False),
        (_column("decimal", decimal_modifier(40, 2)), _column("decimal", decimal_modifier(50, 2)), True),
        (_column("decimal", decimal_modifier(40, 2)), _column("decimal", decimal_modifier(50, 3)), False),
    ],
)  # fmt: skip
def test_a_change_of_type_keeps_values_or_not(before: SourceColumn, now: SourceColumn, kept: bool) -> None:
    assert TYPES.keeps_values(before, now) is kept
    assert TYPES.keeps_values(before, before)


@given(st.integers(-(2**63), 2**64 - 1), st.integers(0, 2**40), st.integers(0, 10**7), st.integers(1, 10**6))
def test_integer_ranges_rise_and_lie_within(low: int, span: int, rows: int, per_chunk: int) -> None:
    bounds = integer_bounds(low, low + span, rows, per_chunk)
    if bounds is None:
        assert rows * 4 < span + 1
    else:
        assert bounds == sorted(set(bounds))
        assert all(low < bound <= low + span for bound in bounds)


def test_chunks_keep_to_rows_and_bytes() -> None:
    assert rows_of_chunk(1_000, 0, 500, 10**9) == 500
    assert rows_of_chunk(1_000, 1_000_000, 500, 100_000) == 100
    assert rows_of_chunk(0, 10**9, 500, 1) == 1
    assert rows_of_chunk(10**10, 0, 500, 10**9) == 10**6


_small = st.integers(0, 3)


@given(st.tuples(_small, _small, _small), st.tuples(_small, _small, _small), st.integers(1, 3))
def test_the_sides_of_a_bound_are_those_of_tuples(
    row: tuple[int, ...], bound: tuple[int, ...], columns: int
) -> None:
    """The condition's words mean the same in Python, but for `=`, AND and OR."""
    names = ["a", "b", "c"]
    for operator, expected in (
        (">=", row[:columns] >= bound[:columns]),
        (">", row[:columns] > bound[:columns]),
        ("<", row[:columns] < bound[:columns]),
    ):
        condition = beyond(names, [str(value) for value in bound[:columns]], operator)
        words = condition.replace(" = ", " == ").replace("AND", "and").replace("OR", "or")
        assert eval(words, {}, dict(zip(names, row, strict=True))) is expected


def test_bounds_are_literals_and_nothing_else() -> None:
    text = KeyPart("k", "text", "latin1", "latin1_swedish_ci")
    bound = json.dumps([literal(text, "61FF"), literal(KeyPart("n", "number"), "-1.50")])
    assert literals_of(bound) == ["_latin1 x'61FF' COLLATE latin1_swedish_ci", "-1.50"]
    times = [literal(KeyPart("t", "time"), "2024-01-01 00:00:00.5"), literal(KeyPart("b", "bytes"), "")]
    assert literals_of(json.dumps(times)) == times
    for wrong in ("", "5", "[]", '["1 OR 1=1"]', "[5]", "[\"x'zz'\"]", '["1;"]', '["SLEEP(1)"]'):
        with pytest.raises(StateError):
            literals_of(wrong)


def _packet(sequence: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "little") + bytes([sequence]) + payload


def _value(value: bytes | None) -> bytes:
    if value is None:
        return b"\xfb"
    prefix = bytes([len(value)]) if len(value) < 251 else b"\xfc" + len(value).to_bytes(2, "little")
    return prefix + value


_END = _packet(9, b"\xfe\x00\x00\x02\x00")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(*[st.none() | st.binary(max_size=5) | st.just(b"x" * 300)] * 3), max_size=8),
    st.integers(1, 9),
    st.integers(1, 40),
)
def test_rows_are_found_wherever_the_bytes_are_cut(
    rows: list[tuple[bytes | None, ...]], rows_max: int, step: int
) -> None:
    sent = b"".join(_packet(1, b"".join(map(_value, row))) for row in rows) + _END
    buffer = np.array(bytearray(sent), np.uint8)
    offsets, lengths = np.zeros((3, rows_max), np.int64), np.zeros((3, rows_max), np.int32)
    found: list[tuple[bytes | None, ...]] = []
    row = at = used = 0
    reason = result_kernels.MORE
    while reason != result_kernels.END:
        row, at, reason = result_kernels.locate_rows(buffer, at, used, row, offsets, lengths)
        if reason in (result_kernels.FULL, result_kernels.END):
            for index in range(row):
                found.append(tuple(
                    None if start < 0 else sent[start : start + length]
                    for start, length in zip(
                        offsets[:, index].tolist(), lengths[:, index].tolist(), strict=True
                    )
                ))  # fmt: skip
            row = 0
        else:
            assert reason == result_kernels.MORE
            used = min(len(sent), used + step)
    assert found == rows
    assert at == len(sent)


def test_what_is_no_row_is_refused() -> None:
    offsets, lengths = np.zeros((2, 4), np.int64), np.zeros((2, 4), np.int32)
    for payload, reason in (
        (b"\x01a", result_kernels.MALFORMED),
        (b"\x01a\x01b\x01c", result_kernels.MALFORMED),
        (b"\x01a\x09b", result_kernels.MALFORMED),
        (b"\x01a\xfc\x01", result_kernels.MALFORMED),
        (b"\xff\x15\x04", result_kernels.ERROR),
    ):
        buffer = np.array(bytearray(_packet(1, payload)), np.uint8)
        assert result_kernels.locate_rows(buffer, 0, len(buffer), 0, offsets, lengths)[2] == reason


def test_zeros_that_fill_a_number_are_left_out() -> None:
    buffer = np.array(bytearray(b"00042000000.50"), np.uint8)
    offsets, lengths = np.array([0, 5, 8, 0]), np.array([5, 3, 6, -1], np.int32)
    result_kernels.skip_zeros(buffer, offsets, lengths)
    texts = [
        bytes(buffer[at : at + size]).decode()
        for at, size in zip(offsets.tolist(), lengths.tolist(), strict=True)
        if size >= 0
    ]
    assert texts == ["42", "0", "0.50"]


def test_urls_say_what_to_connect_to_and_keep_their_secret() -> None:
    url = "mysql://app%40x:p%2Fw@db:3307/shop?ssl-mode=VERIFY_CA&ssl_ca=/ca.pem"
    address = parse_url(url)
    assert (address.user, address.password, address.host, address.port) == ("app@x", "p/w", "db", 3307)
    assert (address.database, address.ssl_mode, address.ssl_files) == (
        "shop",
        "verify_ca",
        {"ssl_ca": "/ca.pem"},
    )
    assert "p/w" not in repr(address)
    assert safe_url(url) == "mysql://app%40x:***@db:3307/shop"
    for wrong in (
        "postgresql://u:secret@h/d",
        "mysql://u:secret@h:port/d",
        "mysql://u:secret@h/d?ssl_mode=maybe",
        "mysql://u:secret@h/d?local_infile=1",
        "secret",
    ):
        with pytest.raises(ConfigError) as refused:
            parse_url(wrong)
        assert refused.value.remedy
        assert "secret" not in str(refused.value)


def _table(name: str = "t", **changes: Any) -> MysqlTable:
    stream = StreamId("shop", name)
    leaf = SourceLeaf(stream=stream, oid=1, filenode=0, bytes=0, estimated_rows=5)
    table = MysqlTable(
        stream=stream, oid=1, kind="table", schema=TableSchema(stream, (_column("int"),), ("c",)),
        leaves=(leaf,), primary_key=("c",), engine="InnoDB", range_key=(), generated_columns=(),
        invisible_columns=(), compressed_columns=(), charsets=frozenset(),
    )  # fmt: skip
    return replace(table, **changes)


def _found(table: MysqlTable, need: StreamNeed | None = None, **facts: Any) -> set[tuple[str, str]]:
    known: dict[str, Any] = {
        "logs_cascades": False, "readable": frozenset({table.stream}), "may_lock": True, "user": "'u'@'%'",
    }  # fmt: skip
    findings = check_streams([need or StreamNeed(table.stream)], [table], LogFacts(**{**known, **facts}))
    for finding in findings:
        assert finding.remedy or finding.level == "ok"
    return {(finding.name, finding.level) for finding in findings}


def test_what_is_wrong_with_a_table_is_said() -> None:
    table, fine = _table(), ("table", "ok")
    keyless = _table(schema=TableSchema(table.stream, (_column("int"),)), primary_key=())
    cascading = _table(cascades=(Cascade("f", StreamId("shop", "p"), "RESTRICT", "CASCADE"),))
    append = StreamNeed(table.stream, write="append")
    assert _found(table) == {fine}
    assert _found(keyless) == {("primary key", "error")}
    assert _found(keyless, append) == {fine}
    assert _found(keyless, append, may_lock=False) == {fine, ("lock privilege", "warning")}
    assert _found(table, append, may_lock=False) == {fine, ("lock privilege", "warning")}
    assert _found(table, may_lock=False) == {fine}
    assert _found(_table(engine="MyISAM"), append) == {("storage engine", "error")}
    assert _found(table, StreamNeed(table.stream, where="c > 1")) == {fine}
    assert _found(table, StreamNeed(table.stream, where="d > 1")) == {("selection", "error")}
    columns = (_column("int"), replace(_column("text"), name="d"), replace(_column("int"), name="n"))
    parts = _table(schema=TableSchema(table.stream, columns, ("c",)))
    by_key, by_text = StreamNeed(table.stream, where="c > 1"), StreamNeed(table.stream, where="d = 'x'")
    by_number, told = replace(by_text, where="n > 1"), {fine, ("selection", "warning")}
    numbers = _table(schema=TableSchema(table.stream, (columns[0], columns[2]), ("c",)))
    assert _found(parts, by_text, row_image="FULL_NODUP") == {fine}
    assert _found(parts, by_key, row_image="MINIMAL") == {fine}
    assert _found(parts, by_text, row_image="MINIMAL") == told
    assert _found(parts, by_text, row_image="NOBLOB") == told
    assert _found(parts, by_number, row_image="NOBLOB") == {fine}
    by_number_appended = replace(by_number, write="append")
    assert _found(parts, by_number_appended, row_image="NOBLOB") == told
    assert _found(numbers, by_number_appended, row_image="NOBLOB") == {fine}
    assert _found(numbers, by_number_appended, row_image="MINIMAL") == told
    assert _found(parts, replace(by_text, mode="full_refresh"), row_image="MINIMAL") == {fine}
    by_cursor = StreamNeed(table.stream, mode="incremental", cursor=CursorChoice(("c",)))
    assert _found(table, by_cursor) == {fine, ("cursor", "warning")}
    assert _found(table, replace(by_cursor, cursor=CursorChoice(("d",)))) == {("cursor", "error")}
    assert _found(cascading) == {fine, ("foreign key cascades", "warning")}
    assert _found(cascading, logs_cascades=True) == {fine}
    assert _found(_table(engine="MyISAM")) == {fine, ("storage engine", "warning")}
    assert _found(_table(kind="view")) == {("table kind", "error")}
    assert _found(_table(kind="versioned")) == {fine, ("table kind", "warning")}
    assert _found(_table(compressed_columns=("z",))) == {("compressed columns", "error")}
    assert _found(_table(charsets=frozenset({"utf8mb4", "geostd8"}))) == {("character set", "error")}
    uuids = TableSchema(table.stream, (_column("uuid"),), ("c",))
    assert _found(_table(schema=uuids)) == {("column types", "error")}
    assert _found(_table(schema=uuids), StreamNeed(table.stream, mode="full_refresh")) == {fine}
    assert _found(_table(generated_columns=("g",))) == {fine, ("generated columns", "warning")}
    assert _found(table, readable=frozenset()) == {("select privilege", "error")}
    assert _found(table, StreamNeed(StreamId("shop", "u"))) == {("table", "error")}
    assert _found(table, StreamNeed(StreamId("shop", "u*"))) == {("table", "warning")}
    assert _found(_table("_t_gho"), StreamNeed(StreamId("shop", "*"))) == {("table", "warning")}
    assert _found(table, StreamNeed(table.stream, types={"c": "time"})) == {("column types", "error")}
    renamed = StreamNeed(table.stream, write="append", rename={"c": "_op"})
    assert _found(table, renamed) == {("column names", "error")}


def test_working_tables_of_online_schema_changes_are_known_by_their_names() -> None:
    assert all(map(is_working_table, ("_orders_gho", "_orders_ghc", "_orders_del", "_orders_new", "_a_old")))
    assert not any(map(is_working_table, ("orders", "orders_new", "_orders", "__new")))

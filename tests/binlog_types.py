"""A table with a column of every type, values at the edges of each, and how the server shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.mysql_server import MARIADB, MYSQL, Kind


@dataclass(frozen=True)
class TypedColumn:
    """`values` are SQL; `shown` is how the server is asked, with `{}` for the column."""

    name: str
    type: str
    values: tuple[str, ...]
    shown: str = "CAST({} AS CHAR)"
    compared: str = "text"
    only: str = ""

    def exists_in(self, kind: Kind) -> bool:
        return self.only in ("", kind.name)


_HEX = "LOWER(HEX({}))"
_WKB = "CONCAT('SRID=', ST_SRID({0}), ';', LOWER(SUBSTRING(HEX({0}), 9)))"
_JSON_DOCUMENTS = (
    "'{}'", "'[]'", "'null'", "'\"text\"'", "'-1'", "'18446744073709551615'", "'-9223372036854775808'",
    "'1.5'",
    """'{"b": 1, "a": [1, 2.5, -0.0, 1e300, true, null], "ü\\\\n": {"x": "\\\\"\\\\\\\\ \\\\u0007 😀"}}'""",
    "JSON_ARRAY(CAST('12345678901234567890.0123456789' AS DECIMAL(40,10)), CAST(-0.5 AS DECIMAL(3,2)))",
    "JSON_ARRAY(CAST('2024-02-29 23:59:59.123456' AS DATETIME(6)), CAST('2024-02-29' AS DATE), "
    "CAST('-838:59:59' AS TIME), CAST('00:00:00.5' AS TIME(1)))",
    "JSON_ARRAY(x'00ff', REPEAT(x'01', 200), 32767, 32768, -32769, 65535, 65536, 4294967296)",
    "CONCAT('{\"k\": [1, {\"a\": 2}], \"long\": \"', REPEAT('x', 70000), '\", \"z\": 70000}')",
    "CONCAT(REPEAT('[', 90), REPEAT(']', 90))",
)  # fmt: skip

#: One row per index; a column with fewer values than rows has null in the others.
COLUMNS: Sequence[TypedColumn] = (
    TypedColumn("k_", "INT", ("1", "2", "3"), "CAST({} AS CHAR)"),
    TypedColumn("y", "YEAR", ("1901", "2155", "0")),
    TypedColumn(
        "g",
        "GEOMETRY",
        ("ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('POLYGON((0 0,1 0,1 1,0 0))', 3857)"),
        _WKB,
    ),
    TypedColumn("ti", "TINYINT", ("-128", "127", "0")),
    TypedColumn("tu", "TINYINT UNSIGNED", ("255", "0")),
    TypedColumn("si", "SMALLINT", ("-32768", "32767")),
    TypedColumn("su", "SMALLINT UNSIGNED", ("65535", "9")),
    TypedColumn("mi", "MEDIUMINT", ("-8388608", "8388607", "-1")),
    TypedColumn("mu", "MEDIUMINT UNSIGNED", ("16777215", "10")),
    TypedColumn("ii", "INT", ("-2147483648", "2147483647", "-1")),
    TypedColumn("iu", "INT UNSIGNED", ("4294967295", "99", "100")),
    TypedColumn("bi", "BIGINT", ("-9223372036854775808", "9223372036854775807", "-1")),
    TypedColumn(
        "bu", "BIGINT UNSIGNED", ("18446744073709551615", "9999999999999999999", "10000000000000000000", "0")
    ),
    TypedColumn(
        "d65",
        "DECIMAL(65,30)",
        (
            "-99999999999999999999999999999999999.999999999999999999999999999999",
            "0",
            "0.000000000000000000000000000001",
            "-1",
        ),
    ),
    TypedColumn("d50", "DECIMAL(5,0)", ("-99999", "7", "0")),
    TypedColumn("d55", "DECIMAL(5,5)", ("-0.00001", "0.99999")),
    TypedColumn("d20", "DECIMAL(20,2)", ("123456789012345678.90", "-0.05", "1000000000.00")),
    TypedColumn("f", "FLOAT", ("1.1", "-3.4e38", "0", "1e-38", "16777217"), "CAST({} AS DOUBLE)", "float"),
    TypedColumn(
        "d", "DOUBLE", ("1.1", "-1.7976931348623157e308", "5e-324", "0.1", "100", "1e22"), "{}", "double"
    ),
    TypedColumn("b1", "BIT(1)", ("b'1'", "b'0'"), "LPAD(BIN({}), 1, '0')"),
    TypedColumn("b17", "BIT(17)", ("b'10000000000000001'", "b'1'"), "LPAD(BIN({}), 17, '0')"),
    TypedColumn(
        "b64", "BIT(64)", ("18446744073709551615", "9223372036854775808", "5"), "LPAD(BIN({}), 64, '0')"
    ),
    TypedColumn("da", "DATE", ("'2024-02-29'", "'0000-00-00'", "'9999-12-31'", "'2024-00-00'")),
    TypedColumn(
        "dt", "DATETIME", ("'2024-12-31 23:59:59'", "'0000-00-00 00:00:00'", "'1000-01-01 00:00:00'")
    ),
    *(
        TypedColumn(
            f"dt{n}",
            f"DATETIME({n})",
            ("'2024-12-31 23:59:59.123456'", "'9999-12-31 00:00:00.000009'", "'0000-00-00'"),
        )
        for n in range(1, 7)
    ),
    *(
        TypedColumn(
            f"ts{n}",
            f"TIMESTAMP({n}) NULL",
            (
                "'2024-02-29 12:34:56.987654'",
                "'2038-01-19 03:14:07'",
                "'0000-00-00'",
                "'1970-01-01 00:00:01'",
                "'2000-03-01'",
            ),
        )
        for n in range(7)
    ),
    *(
        TypedColumn(
            f"tm{n}",
            f"TIME({n})",
            ("'-838:59:59'", "'838:59:59'", "'-00:00:00.100001'", "'12:34:56.654321'", "'-100:00:00.5'"),
        )
        for n in range(7)
    ),
    TypedColumn("e", "ENUM('a','b,c','ü')", ("'a'", "'ü'", "'no such'"), "CAST({} AS CHAR)"),
    TypedColumn("el", "ENUM('a','é') CHARACTER SET latin1", ("'é'", "'a'")),
    TypedColumn("eb", "ENUM('a','b') CHARACTER SET binary", ("'a'",)),
    TypedColumn("ej", "ENUM('日本','〜') CHARACTER SET cp932", ("'日本'",)),
    TypedColumn("e300", f"ENUM({','.join(repr(f'v{n}') for n in range(300))})", ("'v299'", "'v255'", "'v0'")),
    TypedColumn("s", "SET('x','ÿ','z')", ("'x,z'", "''", "'ÿ'")),
    TypedColumn(
        "s64", f"SET({','.join(repr(f'm{n}') for n in range(64))})", ("'m0,m63'", "18446744073709551615")
    ),
    TypedColumn("c", "CHAR(10)", ("'char  '", "''", "'中文😀'")),
    TypedColumn("c255", "CHAR(255)", ("REPEAT('é', 255)", "'x'")),
    TypedColumn("v", "VARCHAR(50)", ("'värchar€ '", "''", "REPEAT('x', 50)")),
    TypedColumn("v300", "VARCHAR(300)", ("REPEAT('ü', 300)", "'y'")),
    TypedColumn(
        "vl", "VARCHAR(300) CHARACTER SET latin1", ("'café€ÿ'", "CONVERT(x'818d8f909d' USING latin1)")
    ),
    TypedColumn("vr", "VARCHAR(30) CHARACTER SET cp1251", ("'Привет'",)),
    TypedColumn("vk", "CHAR(30) CHARACTER SET koi8r", ("'Привет'",)),
    TypedColumn("vg", "VARCHAR(30) CHARACTER SET greek", ("'αβγ'",)),
    TypedColumn("v16", "VARCHAR(30) CHARACTER SET utf16", ("'hé€😀'", "''")),
    TypedColumn("vle", "VARCHAR(30) CHARACTER SET utf16le", ("'hé€😀'",)),
    TypedColumn("vu", "VARCHAR(30) CHARACTER SET ucs2", ("'hé€'",)),
    TypedColumn("v32", "VARCHAR(30) CHARACTER SET utf32", ("'hé€😀'",)),
    TypedColumn("vgb", "VARCHAR(30) CHARACTER SET gbk", ("'中文'", "'x'")),
    TypedColumn("vsj", "VARCHAR(30) CHARACTER SET sjis", ("'日本'",)),
    TypedColumn("vej", "VARCHAR(30) CHARACTER SET ujis", ("'日本'",)),
    TypedColumn("vem", "VARCHAR(30) CHARACTER SET eucjpms", ("x'ada1a1c1'", "x'f5a18ff4fe'")),
    TypedColumn("vbg", "VARCHAR(30) CHARACTER SET big5", ("'中文'",)),
    TypedColumn("vkr", "VARCHAR(30) CHARACTER SET euckr", ("'한국'",)),
    TypedColumn("vas", "VARCHAR(30) CHARACTER SET ascii", ("'plain'",)),
    TypedColumn("vb3", "VARCHAR(30) CHARACTER SET utf8mb3", ("'é€'",)),
    TypedColumn("bn", "BINARY(6)", ("x'010200'", "''", "x'00'"), _HEX),
    TypedColumn("vb", "VARBINARY(20)", ("x'0001ff00'", "''"), _HEX),
    TypedColumn("tb", "TINYBLOB", ("x'00ff'", "''"), _HEX),
    TypedColumn("bl", "BLOB", ("REPEAT(x'ab', 300)", "x'00'"), _HEX),
    TypedColumn("mb", "MEDIUMBLOB", ("x'ff'", "REPEAT('z', 70000)"), _HEX),
    TypedColumn("lb", "LONGBLOB", ("x'ff'",), _HEX),
    TypedColumn("tt", "TINYTEXT", ("'é'",)),
    TypedColumn("tx", "TEXT CHARACTER SET latin1", ("REPEAT('é', 300)",)),
    TypedColumn("mt", "MEDIUMTEXT", ("'medium'", "REPEAT('ü', 70000)")),
    TypedColumn("lt", "LONGTEXT", ("'long'",)),
    TypedColumn("j", "JSON", _JSON_DOCUMENTS, "CAST({} AS CHAR)", "json", MYSQL.name),
    TypedColumn("jm", "JSON", ("'{\"a\": 1.50}'", "'[]'"), only=MARIADB.name),
    TypedColumn(
        "vec",
        "VECTOR(4)",
        ("STRING_TO_VECTOR('[1,0.1,-2.5,1e-20]')", "STRING_TO_VECTOR('[1]')"),
        _HEX,
        "vector",
        MYSQL.name,
    ),
    TypedColumn("gc", "INT GENERATED ALWAYS AS (k_ * 2) STORED", ()),
    TypedColumn("gv", "INT GENERATED ALWAYS AS (k_ * 3) VIRTUAL", ()),
)

ROWS = max(len(column.values) for column in COLUMNS)


def create_statement(columns: Sequence[TypedColumn]) -> str:
    described = ", ".join(f"`{column.name}` {column.type}" for column in columns)
    return f"CREATE TABLE typed (id_ INT PRIMARY KEY, {described})"


def insert_statement(columns: Sequence[TypedColumn], row: int) -> str:
    given = [(f"`{column.name}`", column.values[row]) for column in columns if row < len(column.values)]
    names, values = (", ".join(parts) for parts in zip(("id_", str(row)), *given, strict=True))
    return f"INSERT INTO typed ({names}) VALUES ({values})"


def shown_as(column: TypedColumn) -> str:
    return column.shown.format(f"`{column.name}`")

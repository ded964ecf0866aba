"""Tables of real MySQL and MariaDB servers: what there is, cut into chunks, and read as the log has it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from penstock.core.errors import SourceError
from penstock.core.stream import StreamId
from penstock.sources.chunk import PlannedChunk, TableRewrittenError
from penstock.sources.mysql.binlog.stream import FilePosition
from penstock.sources.mysql.binlog.warming import warm_up
from penstock.sources.mysql.catalog import Cascade, MysqlTable, discover
from penstock.sources.mysql.chunk_reading import MysqlChunk
from penstock.sources.mysql.chunks import bounds_after, plan_chunks
from penstock.sources.mysql.connection import connect
from penstock.sources.mysql.types import TYPES
from tests.binlog_reading import read_all
from tests.binlog_types import COLUMNS, ROWS, TypedColumn, create_statement, insert_statement
from tests.mysql_server import MARIADB, MYSQL, MysqlServer


@pytest.fixture(scope="module", params=[MYSQL, MARIADB], ids=lambda kind: str(kind.name))
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MysqlServer]:
    warm_up()  # no test waits for a compiler
    kind = request.param
    with MysqlServer(tmp_path_factory.mktemp(kind.name), kind, ["--max-allowed-packet=256M"]) as started:
        yield started


@pytest.fixture
def shop(server: MysqlServer) -> Iterator[MysqlServer]:
    """The server with an empty database `shop`."""
    server.execute("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop CHARACTER SET utf8mb4")
    yield server
    server.execute("DROP DATABASE IF EXISTS shop")


def _url(server: MysqlServer, options: str = "") -> str:
    return f"mysql://root@127.0.0.1:{server.port}/shop{options}"


def _run(server: MysqlServer, *statements: str) -> None:
    with server.connect("shop") as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def _table(server: MysqlServer, name: str) -> MysqlTable:
    with connect(_url(server)) as connection:
        [table] = discover(connection, [StreamId("shop", name)])
    return table


def _read(
    server: MysqlServer, table: MysqlTable, chunk: PlannedChunk, block_bytes: int = 8 << 20
) -> pa.Table:
    """A chunk's rows as text."""
    reading = MysqlChunk(_url(server, "?ssl_mode=disabled"), "penstock test", chunk, block_bytes=block_bytes)
    batches = []
    for block in reading.blocks(table.schema, as_text=True):
        assert block.printed is not None
        batches.append(block.printed())
        batches[-1].validate(full=True)
        assert block.rows == batches[-1].num_rows
    names = [(column.name, pa.string()) for column in table.schema.columns]
    return pa.Table.from_batches(batches, pa.schema(names))


def _whole(table: MysqlTable) -> PlannedChunk:
    return PlannedChunk(str(table.stream), None, None, 0, 0)


_DOUBLES = (
    "1e14, 1e15, 1e16, 123456789012345680.0, 1234567890123456.5, 1e-4, 1e-14, 1e-15, 1e-16, 1.5e-20, -0.0",
    "1e21, 1e22, 1.7976931348623157e308, 5e-324, 100.0, 4503599627370497.5, 0.30000000000000004, -12.5e-7",
)
#: Beside those of the log's own tests: what the server prints otherwise than the log has it.
_FURTHER = (
    TypedColumn("zf", "INT(8) ZEROFILL", ("42", "0", "123456789")),
    TypedColumn("zd", "DECIMAL(9,3) ZEROFILL", ("1.5", "0", "0.25")),
    TypedColumn("fd", "FLOAT(7,3)", ("1.1", "-3.333")),
    TypedColumn("dd", "DOUBLE(12,4)", ("1.23456", "-0.0001", "100")),
    TypedColumn("fl", "FLOAT", ("0.1", "16777216", "3.4028235e38", "1.17549435e-38", "-0.0", "123456.789")),
    TypedColumn("dz", "DOUBLE", ("-0.0", "1e15", "1e16", "123456789012345678")),
    TypedColumn("s16", "SET('a','é') CHARACTER SET utf16", ("'a,é'", "'é'")),
    TypedColumn("jd", "JSON", tuple(f"'[{numbers}]'" for numbers in _DOUBLES), only=MYSQL.name),
    TypedColumn("ml", "MULTIPOINT", ("ST_GeomFromText('MULTIPOINT(1 2, 3 4)')",)),
    TypedColumn("iv", "INT INVISIBLE DEFAULT 5", ("7",)),
    TypedColumn(
        "enum_bytes",
        "ENUM(x'ff41','é','b') CHARACTER SET binary",
        ("x'ff41'", "'é'", "'b'"),
        only=MARIADB.name,
    ),
    TypedColumn("set_bytes", "SET(x'c3','b') CHARACTER SET binary", ("3", "1"), only=MARIADB.name),
    TypedColumn("mv", "VECTOR(2)", ("VEC_FromText('[1,0.5]')",), only=MARIADB.name),
)


def test_every_type_has_the_text_that_the_log_has(shop: MysqlServer) -> None:
    columns = [column for column in (*COLUMNS, *_FURTHER) if column.exists_in(shop.kind)]
    start = FilePosition(*shop.position())
    inserts = [insert_statement(columns, row) for row in range(ROWS)]
    _run(shop, create_statement(columns), "SET sql_mode = 'ALLOW_INVALID_DATES'", *inserts)
    _run(shop, "SET sql_mode = 'ALLOW_INVALID_DATES'", "UPDATE typed SET da = '2023-02-31' WHERE id_ = 5")
    logged = {change.new["id_"]: change.new for change in read_all(shop, start).of("shop.typed")[:ROWS]}
    logged["5"] = {**logged["5"], "da": "2023-02-31"}
    table = _table(shop, "typed")
    assert table.generated_columns == ("gc", "gv")
    assert set(table.schema.names) == {"id_", *(column.name for column in columns)} - {"gc", "gv"}
    loaded = _read(shop, table, _whole(table)).to_pylist()
    assert len(loaded) == ROWS
    differing = [
        (name, text, logged[row["id_"]][name])
        for row in loaded
        for name, text in row.items()
        if text != logged[row["id_"]][name]
    ]
    assert differing == []


def test_rows_of_any_size_come_whole_in_blocks_of_any_size(shop: MysqlServer) -> None:
    """Also one of several packets, and one larger than a block."""
    _run(
        shop,
        "CREATE TABLE sizes (id INT PRIMARY KEY, text LONGTEXT, data LONGBLOB)",
        "INSERT INTO sizes VALUES (1, REPEAT('ü', 99), NULL), (2, '', ''), (3, NULL, REPEAT('x', 17000001)), "
        "(4, 'last', x'00')",
        "INSERT INTO sizes SELECT id + 10, text, data FROM sizes WHERE id <> 3",
    )
    table = _table(shop, "sizes")
    for block_bytes in (100, 8 << 20):
        read = _read(shop, table, _whole(table), block_bytes).sort_by("id").to_pydict()
        assert read["id"] == ["1", "11", "12", "14", "2", "3", "4"]
        assert read["text"] == ["ü" * 99, "ü" * 99, "", "last", "", None, "last"]
        assert [data and len(data) for data in read["data"]] == [None, None, "", 2, "", 34000002, 2]


_SERIES = "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 999) SELECT {} FROM n"
#: key columns, then the values of row `i`
_KEYS = {
    "integer": ("id INT PRIMARY KEY", "i"),
    "negative": ("id BIGINT PRIMARY KEY", "(i - 500) * 3"),
    "sparse": ("id BIGINT PRIMARY KEY", "i * i * i * 1000 - 9223372036854775807"),
    "unsigned": ("id BIGINT UNSIGNED PRIMARY KEY", "18446744073709551615 - i * 2"),
    "text": (
        "id VARCHAR(40) PRIMARY KEY",
        "CONCAT(CHAR(65 + i % 26 USING utf8mb4), IF(i % 2, 'ä', 'Z'), '\\'', i, ' ')",
    ),
    "latin1": ("id CHAR(20) CHARACTER SET latin1 PRIMARY KEY", "CONCAT(IF(i % 3, 'é', 'E'), i)"),
    "binary": ("id BINARY(16) PRIMARY KEY", "UNHEX(LEFT(SHA2(i, 256), 32))"),
    "uuid text": ("id CHAR(36) CHARACTER SET ascii PRIMARY KEY", "INSERT(LEFT(SHA2(i, 256), 32), 9, 0, '-')"),
    "decimal": ("id DECIMAL(30,10) PRIMARY KEY", "(i - 500) / 7"),
    "time": ("id DATETIME(3) PRIMARY KEY", "'2024-01-01' + INTERVAL i * 7000 MICROSECOND"),
    "composite": ("a VARCHAR(9), b INT, PRIMARY KEY (a, b)", "CONCAT('k', i % 3), i"),
    "many alike": ("a INT, b ENUM('x', 'y'), c INT, PRIMARY KEY (a, b, c)", "i % 2, 'x', i"),
    "unique": ("a INT NOT NULL, b VARCHAR(5) NOT NULL, UNIQUE (b, a)", "i, 'v'"),
    "enumeration": ("a ENUM('b', 'a'), b INT, PRIMARY KEY (a, b)", "'a', i"),
    "none": ("a INT, b INT", "i % 10, NULL"),
}
_ONE_CHUNK = ("enumeration", "none")


def test_chunks_lose_no_row_and_double_none(shop: MysqlServer) -> None:
    keys = dict(_KEYS)
    if shop.kind is MARIADB:
        version = "IF(i % 2, '4', '7')"  # which are stored in different orders
        keys["uuid"] = (
            "id UUID PRIMARY KEY",
            f"INSERT(INSERT(LEFT(SHA2(i, 256), 32), 13, 1, {version}), 17, 1, '8')",
        )
    with connect(_url(shop)) as connection:
        for number, (name, (columns, values)) in enumerate(keys.items()):
            _run(
                shop,
                f"CREATE TABLE keyed{number} ({columns})",
                f"INSERT INTO keyed{number} {_SERIES.format(values)}",
                f"ANALYZE TABLE keyed{number}",
            )
            [table] = discover(connection, [StreamId("shop", f"keyed{number}")])
            chunks = plan_chunks(connection, table, rows_per_chunk=300)
            whole = _sorted(_read(shop, table, _whole(table)))
            parts = [_read(shop, table, chunk) for chunk in chunks]
            assert whole.num_rows == 1000
            assert _sorted(pa.concat_tables(parts)).equals(whole), name
            assert (len(chunks) == 1) == (name in _ONE_CHUNK), name
            if name not in ("many alike", *_ONE_CHUNK):
                assert max(part.num_rows for part in parts) <= 600, name
            inner = [chunk.min for chunk in chunks if chunk.min is not None]
            if len(inner) > 2:
                assert bounds_after(connection, inner[::-1], inner[1]) == inner[2:], name


def _sorted(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in table.column_names])


def test_typed_values_and_what_does_not_fit(shop: MysqlServer) -> None:
    _run(
        shop,
        "CREATE TABLE held (id BIGINT UNSIGNED PRIMARY KEY, day DATE, at TIMESTAMP(3) NULL, "
        "data BLOB, flag BIT)",
        "SET sql_mode = 'ALLOW_INVALID_DATES'",
        "INSERT INTO held VALUES (18446744073709551615, '2024-02-29', '2024-02-29 01:02:03.004', x'00ff', 1),"
        " (2, '2023-02-29', NULL, '', 0), (3, '0000-00-00', '2038-01-19 03:14:07', NULL, NULL)",
    )
    table = _table(shop, "held")
    [block] = MysqlChunk(_url(shop), "penstock test", _whole(table)).blocks(table.schema)
    names = table.schema.names
    rows = {str(row["id"]): row for row in pa.table(block.values, list(names)).to_pylist()}
    assert rows["18446744073709551615"]["data"] == b"\x00\xff"
    assert [row["flag"] for _, row in sorted(rows.items())] == [True, False, None]
    assert rows["2"]["day"] is rows["3"]["day"] is None
    assert block.bad is not None
    assert block.bad["day"].sum() == 2
    assert set(block.bad) == {"day"}
    assert block.printed is None
    for array, column in zip(block.values, table.schema.columns, strict=True):
        assert array.type == TYPES.arrow_type(column)


def test_what_there_is(shop: MysqlServer) -> None:
    _run(
        shop,
        "CREATE TABLE parent (id INT PRIMARY KEY)",
        "CREATE TABLE child (id INT AUTO_INCREMENT PRIMARY KEY, parent INT, amount DECIMAL(12,2) NOT NULL, "
        "size INT UNSIGNED NOT NULL DEFAULT 7, word VARCHAR(20) CHARACTER SET latin1 DEFAULT 'it''s', "
        "twice INT AS (size * 2) STORED, "
        "CONSTRAINT cascading FOREIGN KEY (parent) REFERENCES parent (id) ON DELETE CASCADE)",
        "CREATE TABLE `odd name` (a VARCHAR(30) NOT NULL, b INT NOT NULL, c INT, UNIQUE long_one (a, b), "
        "UNIQUE short (b), UNIQUE nullable (c)) ENGINE = MyISAM",
        "CREATE TABLE parted (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 3",
        "CREATE TABLE prefixed (t TEXT, PRIMARY KEY (t(10)))",
        "CREATE VIEW looking AS SELECT * FROM parent",
        "INSERT INTO parent VALUES (1), (2), (3)",
        "ANALYZE TABLE parent",
    )
    with connect(_url(shop)) as connection:
        tables = {table.stream.name: table for table in discover(connection)}
        assert [str(table.stream) for table in discover(connection, [StreamId("sho*", "par*")])] == [
            "shop.parent",
            "shop.parted",
        ]
        [view] = discover(connection, [StreamId("shop", "looking")])
        assert discover(connection, [StreamId("shop", "missing"), StreamId("nowhere", "*")]) == []
    assert sorted(tables) == ["child", "odd name", "parent", "parted", "prefixed"]
    assert (view.kind, view.can_be_captured) == ("view", False)
    child = tables["child"]
    assert child.schema.key == child.primary_key == ("id",)
    assert [(c.name, c.type_name, c.nullable, c.missing_value) for c in child.schema.columns] == [
        ("id", "int", False, "0"),
        ("parent", "int", True, None),
        ("amount", "decimal", False, "0.00"),
        ("size", "int unsigned", False, "7"),
        ("word", "varchar", True, "it's"),
    ]
    rule = child.cascades[0].on_update
    assert child.cascades == (Cascade("cascading", StreamId("shop", "parent"), rule, "CASCADE"),)
    assert child.generated_columns == ("twice",)
    odd = tables["odd name"]
    assert (odd.schema.key, odd.primary_key, odd.is_transactional) == (("b",), (), False)
    assert (tables["parted"].kind, len(tables["parted"].leaves)) == ("partitioned", 1)
    assert (tables["prefixed"].schema.key, tables["prefixed"].range_key) == (("t",), ())
    assert tables["parent"].estimated_rows == 3


def test_a_table_that_changed_is_told(shop: MysqlServer) -> None:
    _run(shop, "CREATE TABLE going (id INT PRIMARY KEY, a INT)", "INSERT INTO going VALUES (1, 2)")
    table = _table(shop, "going")
    _run(shop, "ALTER TABLE going DROP COLUMN a")
    with pytest.raises(TableRewrittenError):
        _read(shop, table, _whole(table))


def test_connections_fail_with_a_remedy_and_without_the_password(shop: MysqlServer) -> None:
    shop.execute("CREATE USER IF NOT EXISTS 'poor'@'%' IDENTIFIED BY 'right'")
    port = shop.port
    for url, words in (
        (f"mysql://poor:secret@127.0.0.1:{port}/", "password is wrong"),
        (f"mysql://root@127.0.0.1:{port}/nowhere", "no such database"),
        (f"mysql://poor:right@127.0.0.1:{port}/shop", "may not use this database"),
        ("mysql://root:secret@127.0.0.1:1/shop", "cannot be reached"),
    ):
        with pytest.raises(SourceError, match=words) as refused:
            connect(url)
        assert refused.value.remedy
        assert "secret" not in str(refused.value)


def test_tls_is_used_when_asked_for_and_never_left_out_in_silence(shop: MysqlServer) -> None:
    authority = shop.directory / "data" / "ca.pem"
    if not authority.exists():
        pytest.skip("the server of the tests makes no certificate")
    for options in ("?ssl_mode=required", f"?ssl-mode=VERIFY_CA&ssl_ca={authority}"):
        with connect(_url(shop, options)) as connection, connection.cursor() as cursor:
            cursor.execute("SHOW STATUS LIKE 'Ssl_cipher'")
            [(_, cipher)] = cursor.fetchall()
            assert cipher
    with pytest.raises(SourceError, match="TLS"):
        connect(_url(shop, "?ssl_mode=verify_identity"))

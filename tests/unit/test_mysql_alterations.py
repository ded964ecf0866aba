"""An ALTER TABLE is followed only if all of it is understood, and the catalog bears it out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.capture.mysql.alter_clauses import read_changes
from penstock.capture.mysql.alterations import alteration
from penstock.capture.mysql.statements import read_statement
from penstock.core.alteration import Alteration
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.lake.evolve import ColumnSource
from penstock.lake.work import MustReload, SchemaPlan, plan_schema
from penstock.log.manifest import TableEntry
from penstock.log.reader import LogFile
from penstock.sources.mysql.binlog.events import Statement, parse_query
from penstock.sources.mysql.catalog import MysqlTable
from penstock.sources.mysql.types import FAMILY, decimal_modifier

STREAM = StreamId("shop", "t")


def column(name: str, type_name: str = "int", modifier: int = -1, **more: object) -> SourceColumn:
    fields = {"type_text": type_name, "family": FAMILY, "attribute_number": sum(map(ord, name)), **more}
    return SourceColumn(name, 0, modifier, type_name, **fields)  # type: ignore[arg-type]


ID = column("id", nullable=False)
A, B = column("a", nullable=False), column("b", "varchar", 10)


def schema(*columns: SourceColumn) -> TableSchema:
    return TableSchema(STREAM, (ID, *columns), ("id",), "f", relation_oid=1)


def catalog(*columns: SourceColumn) -> MysqlTable:
    return MysqlTable(
        stream=STREAM,
        oid=1,
        kind="table",
        schema=schema(*columns),
        leaves=(),
        primary_key=("id",),
        engine="InnoDB",
        range_key=(),
        generated_columns=("g",),
        invisible_columns=(),
        compressed_columns=(),
        charsets=frozenset({"utf8mb4"}),
    )


def made(text: str, *columns: SourceColumn, is_strict: bool = True) -> Alteration | None:
    changes = read_changes(text, is_strict=is_strict)
    return alteration(changes, catalog(*columns)) if changes is not None else None


def test_a_statement_says_where_columns_come_from() -> None:
    told = made(
        "ADD COLUMN c INT DEFAULT 5 AFTER id, DROP d, RENAME COLUMN x TO a",
        A,
        B,
        column("c", missing_value="5"),
    )
    assert told is not None
    assert told.origins == {"id": "id", "a": "x", "b": "b", "c": None}
    assert told.dropped == ("d",)


@pytest.mark.parametrize(
    "text",
    [
        "ADD c INT; DROP a",
        "ADD c INT DEFAULT 5 + 1",
        "ADD COLUMN c INT DEFAULT (1 + 1)",
        "ADD COLUMN c DATETIME DEFAULT CURRENT_TIMESTAMP",
        "ADD COLUMN c DATETIME NULL ON UPDATE CURRENT_TIMESTAMP",
        "ADD COLUMN c INT GENERATED ALWAYS AS (a + 1) STORED",
        "ADD COLUMN c INT AS (a + 1)",
        "ADD COLUMN c INT AUTO_INCREMENT",
        "ADD COLUMN IF NOT EXISTS c INT",
        "ADD COLUMN (c INT, d INT)",
        'ADD COLUMN c VARCHAR(9) DEFAULT "x"',
        r"ADD COLUMN c VARCHAR(9) DEFAULT 'a\'b'",
        "ADD COLUMN c VARCHAR(9) DEFAULT _latin1'x'",
        "ADD COLUMN c VARCHAR(9) DEFAULT 'a' 'b'",
        "ADD PRIMARY KEY (a)",
        "DROP PRIMARY KEY",
        "DROP INDEX `primary`",
        "DROP PARTITION p",
        "TRUNCATE PARTITION p",
        "EXCHANGE PARTITION p WITH TABLE q",
        "ADD PARTITION (PARTITION p VALUES LESS THAN (1))",
        "ADD FOREIGN KEY (a) REFERENCES q (id) ON DELETE CASCADE",
        "ADD CONSTRAINT c CHECK (a > 0)",
        "ADD SYSTEM VERSIONING",
        "CONVERT TO CHARACTER SET latin1",
        "MODIFY b VARCHAR(20) CHARACTER SET latin1",
        "RENAME TO other",
        "RENAME other",
        "ENGINE = MyISAM",
        "ORDER BY a",
        "DROP a, ADD a INT",
        "RENAME COLUMN a TO b, RENAME COLUMN b TO a",
        "ADD c INT /*!80000 DEFAULT 5 */",
        "WAIT 5 ADD c INT",
        "",
    ],
)
def test_a_statement_that_is_not_understood_to_its_end_says_nothing(text: str) -> None:
    assert read_changes(text, is_strict=True) is None


def test_comments_say_nothing() -> None:
    said = read_changes(" ADD /* a, b */ c -- now\n INT # so\n, DROP d /* by: app */ ; ", is_strict=True)
    assert said is not None
    assert said == read_changes("ADD c INT, DROP d", is_strict=True)


def test_words_before_the_table_that_change_what_is_done_are_not_passed_over() -> None:
    assert read_statement(Statement("shop", "ALTER TABLE t ADD c INT")).columns is not None
    assert (
        read_statement(Statement("shop", "ALTER ONLINE TABLE IF EXISTS `t` ADD c INT;")).columns is not None
    )
    for text in (
        "ALTER IGNORE TABLE t ADD UNIQUE (a)",
        "SET STATEMENT sql_mode='' FOR ALTER TABLE t ADD c INT",
        "/*!50000 ALTER TABLE t ADD c INT */",
    ):
        told = read_statement(Statement("shop", text))
        assert told.changed == (STREAM,)
        assert told.columns is None
    renamed = read_statement(Statement("shop", "ALTER TABLE t RENAME COLUMN a TO c"))
    assert renamed.changed == (STREAM,), "there is no table `COLUMN`"


@pytest.mark.parametrize(
    ("text", "now", "is_told"),
    [
        ("ADD c INT DEFAULT 5", column("c", missing_value="5"), True),
        ("ADD c INT DEFAULT 5", column("c", missing_value="7"), False),  # it has another default since
        ("ADD c INT DEFAULT 5", column("c", "bigint", missing_value="5"), False),
        ("ADD c INT DEFAULT 1.5", column("c", missing_value="2"), False),
        ("ADD c DECIMAL(5,2) DEFAULT 1.5",
         column("c", "decimal", decimal_modifier(5, 2), missing_value="1.50"), True),
        ("ADD c INT", column("c"), True),
        ("ADD c INT", column("c", missing_value="7"), False),
        ("ADD c INT", column("c", nullable=False, missing_value="0"), False),
        ("ADD c INT NOT NULL", column("c", nullable=False, missing_value="0"), True),
        ("ADD c INT NOT NULL", column("c", nullable=False, missing_value="7"), False),
        ("ADD c DATE NOT NULL", column("c", "date", nullable=False), False),
        ("ADD c DATE DEFAULT '2026-01-01'", column("c", "date"), False),
        ("ADD c TIMESTAMP", column("c", "timestamp", 0), False),  # settings of the server decide
        ("ADD c TIMESTAMP NULL", column("c", "timestamp", 0), True),
        ("ADD c VARCHAR(5)", column("c", "varbinary", 5), False),  # the table's character set is binary
        ("ADD c VARCHAR(5) DEFAULT 'x'", column("c", "varchar", 5, missing_value="x"), True),
        ("ADD c CHAR(5) DEFAULT 'x '", column("c", "char", 5, missing_value="x "), False),
        ("MODIFY c BIGINT", column("c", "bigint"), True),
        ("MODIFY c BIGINT", column("c"), False),
        ("MODIFY c INT NOT NULL", column("c"), False),
        ("MODIFY c VARCHAR(20)", column("c", "varchar", 20), True),
        ("MODIFY c VARCHAR(20)", column("c", "varchar", 30), False),  # it may have been cut between
        ("MODIFY c ENUM('x','y')", column("c", "enum", type_text="enum('x','y')"), True),
        ("MODIFY c ENUM('x')", column("c", "enum", type_text="enum('x','y')"), False),
        ("DROP c", column("c"), False),  # it is there again
        ("DROP g", column("c"), False),  # a generated one, which is there again
        ("RENAME COLUMN c TO d", column("c"), False),
        ("RENAME COLUMN d TO c", column("c"), True),
        ("RENAME COLUMN a TO c", column("c"), False),  # `a` is there too
    ],
)  # fmt: skip
def test_the_catalog_must_have_what_the_statement_says(
    text: str, now: SourceColumn, *, is_told: bool
) -> None:
    assert (made(text, A, B, now) is not None) is is_told


def test_texts_are_written_anew_only_where_the_server_refuses_to_cut_them() -> None:
    widened = replace(B, type_modifier=20)
    assert made("MODIFY b VARCHAR(20)", A, widened, is_strict=True) is not None
    assert made("MODIFY b VARCHAR(20)", A, widened, is_strict=False) is None
    assert made("MODIFY a BIGINT NOT NULL", replace(A, type_name="bigint"), B, is_strict=False) is not None


@pytest.mark.parametrize(
    ("mode", "is_strict"), [(0, False), (1 << 21, True), (1 << 22, True), (1 << 20, False)]
)
def test_a_statement_tells_whether_it_ran_under_strict_mode(mode: int, *, is_strict: bool) -> None:
    status = b"\0\0\0\0\0\1" + mode.to_bytes(8, "little") + b"\6\3std\4\x2d\0\x2d\0\x2d\0"
    body = (
        b"\0" * 8
        + b"\4"
        + b"\0\0"
        + len(status).to_bytes(2, "little")
        + status
        + b"shop\0ALTER TABLE t ADD c INT"
    )
    assert parse_query(body) == Statement("shop", "ALTER TABLE t ADD c INT", is_strict)


def test_indexes_are_others_business_only_where_rows_are_known_by_a_primary_key() -> None:
    changes = read_changes("DROP INDEX u, ADD KEY (a), RENAME INDEX v TO w", is_strict=True)
    assert changes is not None
    assert alteration(changes, catalog(A)) is not None
    assert alteration(changes, replace(catalog(A), primary_key=())) is None
    assert alteration(changes, replace(catalog(A), kind="versioned")) is None
    assert alteration(changes, replace(catalog(A), engine="MyISAM")) is None


# What a table makes of it


def unnumbered(table: TableSchema) -> TableSchema:
    return replace(table, columns=tuple(replace(each, attribute_number=0) for each in table.columns))


def planned(
    base: TableSchema, *steps: tuple[int, TableSchema | Alteration | tuple[TableSchema, int]]
) -> SchemaPlan | MustReload:
    """Files that begin there, with the last transaction of theirs, and statements."""
    versions = {}
    files, statements = [], []
    for tx, step in steps:
        if isinstance(step, Alteration):
            statements.append((tx, 0, step))
            continue
        table, last = step if isinstance(step, tuple) else (step, tx)
        version = unnumbered(table)
        versions[version.id] = version
        files.append(LogFile(Path("f"), version.id, "shop.t", 1, 1, {}, tx, last))
    return plan_schema(base, files, versions.__getitem__, alterations=statements)


def of(text: str, *columns: SourceColumn) -> Alteration:
    told = made(text, *columns)
    assert told is not None
    return told


C = column("c", missing_value="5")


def test_rows_from_before_and_after_a_statement_get_the_table_s_columns() -> None:
    base, after = schema(A, B), schema(C, B)
    statement = of("RENAME COLUMN a TO z, ADD c INT DEFAULT 5", replace(A, name="z"), B, C)
    after = statement.schema
    plan = planned(base, (1, base), (2, statement), (3, after))
    assert isinstance(plan, SchemaPlan)
    expected = (
        ColumnSource("id", "id"),
        ColumnSource("z", "a"),
        ColumnSource("b", "b"),
        ColumnSource("c", None, "5"),
    )
    assert plan.rewrite == expected
    assert plan.columns[unnumbered(base).id] == expected
    assert [each.from_name for each in plan.columns[unnumbered(after).id]] == ["id", "z", "b", "c"]
    assert plan.schema == after, "with the numbers that the catalog has"


def test_a_default_that_is_set_later_is_not_that_of_older_rows() -> None:
    later = replace(C, missing_value="7")
    steps = of("ADD c INT DEFAULT 5", A, C), of("ALTER c SET DEFAULT 7", A, later)
    plan = planned(schema(A), (1, steps[0]), (2, steps[1]))
    assert isinstance(plan, SchemaPlan)
    assert plan.rewrite is not None
    assert plan.rewrite[-1] == ColumnSource("c", None, "5")


def test_a_column_that_is_dropped_and_added_in_two_statements_is_loaded_again() -> None:
    dropped, added = of("DROP c", A), of("ADD c INT DEFAULT 5", A, C)
    plan = planned(schema(A, C), (1, (schema(A, C), 9)), (2, dropped), (3, added))
    assert isinstance(plan, MustReload)
    assert isinstance(planned(schema(A, C), (2, dropped), (3, added)), MustReload)


def test_statements_that_change_no_column_may_be_amid_a_file() -> None:
    plan = planned(
        schema(A), (1, (schema(A), 9)), (2, of("ADD INDEX (a)", A)), (3, of("ALTER a DROP DEFAULT", A))
    )
    assert isinstance(plan, SchemaPlan)
    assert plan.rewrite is None


@pytest.mark.parametrize(
    ("base", "statement"),
    [
        (schema(A, C), of("ADD c INT DEFAULT 5", A, C)),  # the table was read after it
        (schema(A, B), of("ADD c INT DEFAULT 5", A, C)),  # `b` is gone by another statement
        (schema(A), of("RENAME COLUMN x TO c", A, C)),
        (schema(A, replace(C, type_name="bigint")), of("ADD INDEX (a)", A, C)),
        (schema(A, C), of("MODIFY c INT NOT NULL", A, replace(C, nullable=False))),  # nulls may be zeros
        (schema(A, C), of("MODIFY c BIGINT", A, replace(C, type_name="bigint"))),  # of another type in Arrow
        (schema(A, B), of("MODIFY b VARCHAR(5)", A, replace(B, type_modifier=5))),
    ],
)
def test_what_does_not_fit_the_table_has_it_loaded_again(base: TableSchema, statement: Alteration) -> None:
    assert isinstance(planned(base, (1, statement)), MustReload)


def test_a_manifest_keeps_what_a_statement_did() -> None:
    statement = of("ADD c INT DEFAULT 5, DROP d", A, C)
    entry = TableEntry(STREAM, (), altered=((5, 0),), alterations=((5, 0, statement),))
    assert TableEntry.from_json(entry.to_json()) == entry


@pytest.mark.parametrize(
    ("text", "moves"),
    [
        ("ALTER TABLE t DROP PARTITION p, q", True),
        ("ALTER TABLE t truncate\n partition ALL", True),
        ("ALTER TABLE t EXCHANGE PARTITION p WITH TABLE q", True),
        ("ALTER TABLE t CONVERT PARTITION p TO TABLE q", True),
        ("ALTER TABLE t CONVERT TABLE q TO PARTITION p VALUES LESS THAN (9)", True),
        ("ALTER TABLE t DISCARD TABLESPACE", True),
        ("ALTER TABLE t DROP /* now */ PARTITION p", True),
        ("ALTER TABLE t\n--\nDROP PARTITION p", True),
        ("ALTER IGNORE TABLE t ADD UNIQUE (a)", True),
        ("ALTER TABLE t REORGANIZE PARTITION p INTO (PARTITION q VALUES LESS THAN (9))", False),
        ("ALTER TABLE t ADD PARTITION (PARTITION q VALUES LESS THAN (9))", False),
        ("ALTER TABLE t ENGINE = InnoDB COMMENT 'drop partition'", False),
        ("ALTER TABLE t ENGINE = InnoDB /* drop partition p */", False),
        ("ALTER TABLE t ADD c INT", False),
        ("ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4", False),
    ],
)
def test_rows_that_go_or_come_with_their_partition_are_known_to_be_missing(text: str, *, moves: bool) -> None:
    told = read_statement(Statement("shop", text))
    assert STREAM in told.changed
    assert told.moves_rows is moves

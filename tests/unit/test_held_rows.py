"""Which rows a table holds already: exactly those, in memory that the chunk bounds and not the table."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.core.where import Condition
from penstock.destinations.records import HeldDeletes
from penstock.lake import held_rows
from penstock.lake.held_rows import ComparedFile, HeldRange, HeldRows
from penstock.lake.keys import KeySet
from penstock.lake.portions import InPortions, joined
from penstock.lake.target import Target
from penstock.sources.chunk import Block
from penstock.sources.mysql.types import decimal_modifier

COLUMNS = (
    SourceColumn("id", 20, -1, "int8", "bigint", 1),
    SourceColumn("n", 20, -1, "int8", "bigint", 2),
    SourceColumn("v", 25, -1, "text", "text", 3),
)
SCHEMA = TableSchema(StreamId("public", "items"), COLUMNS, ("id",))
TARGET = Target(SCHEMA, "upsert")
Row = tuple[int, int, str | None]


def arrays(rows: Sequence[Row]) -> list[pa.Array]:
    types = (pa.int64(), pa.int64(), pa.string())
    return [pa.array([row[place] for row in rows], kind) for place, kind in enumerate(types)]


def held(
    directory: Path,
    files: Sequence[Sequence[Row]],
    low: str = "7",
    high: str = "7",
    *,
    deleted: Sequence[Collection[int]] = (),
    group: int = 100,
) -> HeldRows:
    """`deleted`: of each file, positions."""
    compared = []
    for number, rows in enumerate(files):
        path = directory / f"{number}.parquet"
        pq.write_table(pa.table(arrays(rows), schema=TARGET.arrow_schema()), path, row_group_size=group)
        gone = sorted(deleted[number]) if deleted else []
        deletes = directory / f"{number}-deletes.parquet"
        if gone:
            pq.write_table(pa.table({"file_path": [str(path)] * len(gone), "pos": gone}), deletes)
        held_deletes = (HeldDeletes(str(deletes), len(gone), 0),) if gone else ()
        compared.append(ComparedFile(path, str(path), held_deletes, (deletes,) if gone else ()))
    return HeldRows(HeldRange(tuple(compared), None, COLUMNS[1], low, high), TARGET)


def test_however_many_rows_share_a_value_only_those_that_are_looked_for_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that are cut inside one value all have the range of that value, which may be the whole table."""
    sizes: list[int] = []

    class Counted(KeySet):
        def __init__(self, keys: pa.Table) -> None:
            sizes.append(keys.num_rows)
            super().__init__(keys)

    looked_up: list[int] = []

    def index(of: Counted, rows: pa.Table) -> Any:
        looked_up.append(rows.num_rows)
        return KeySet.index(of, rows)

    monkeypatch.setattr(Counted, "index", index, raising=False)
    monkeypatch.setattr(held_rows, "KeySet", Counted)
    monkeypatch.setattr(held_rows, "_LOOKUP_BYTES", 4096)
    there = held(tmp_path, [[(number, 7, f"v{number}") for number in range(5000)]])
    found = there.contain(arrays([(number, 7, f"v{number}") for number in range(4900, 5100)]))
    assert found is not None
    assert found.tolist() == [True] * 100 + [False] * 100
    assert sizes == [200]
    assert sum(looked_up) == 5000
    assert max(looked_up) <= 300, "row group by row group, small ones together"


ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(5, 9), st.sampled_from(["", "a", None])), max_size=12
)


@given(table=st.lists(ROWS, max_size=3), gone=st.lists(st.booleans(), min_size=36, max_size=36), chunk=ROWS)
def test_exactly_the_rows_that_are_held_inside_the_range_and_were_not_deleted_are_found(
    tmp_path_factory: pytest.TempPathFactory, table: list[list[Row]], gone: list[bool], chunk: list[Row]
) -> None:
    deleted = [[at for at in range(len(rows)) if gone[12 * number + at]] for number, rows in enumerate(table)]
    there = held(tmp_path_factory.mktemp("held"), table, "6", "8", deleted=deleted, group=5)
    found = there.contain(arrays(chunk))
    left = {
        row
        for rows, dead in zip(table, deleted, strict=True)
        for at, row in enumerate(rows)
        if at not in dead and 6 <= row[1] <= 8
    }
    expected = [row in left for row in chunk]
    assert (found.tolist() if found is not None else [False] * len(chunk)) == expected
    if not there:
        assert found is None
        assert not left


@pytest.mark.parametrize(("name", "kind"), [("float4", pa.float32()), ("float8", pa.float64())])
@pytest.mark.parametrize("held_as", ["", "list"], ids=["value", "list"])
def test_a_zero_whose_sign_changed_is_another_row_and_every_nan_is_the_same(
    tmp_path: Path, name: str, kind: pa.DataType, held_as: str
) -> None:
    value = SourceColumn("v", 0, -1, name, name, 2)
    if held_as:
        value = SourceColumn("v", 0, -1, f"_{name}", f"{name}[]", 2, element=name, held_as=held_as)
        kind = pa.list_(kind)
    target = Target(TableSchema(StreamId("public", "items"), (COLUMNS[0], value), ("id",)), "upsert")

    def rows(*values: float | None) -> list[pa.Array]:
        cells = [[each] if held_as else each for each in values]
        return [pa.array(range(len(values)), pa.int64()), pa.array(cells, kind)]

    other_nan = float(np.array(0x7FF8000020000000).view(np.float64))
    path = tmp_path / "0.parquet"
    pq.write_table(pa.table(rows(0.0, -0.0, 0.0, -0.0, other_nan, None), schema=target.arrow_schema()), path)
    there = HeldRows(HeldRange((ComparedFile(path),), None, COLUMNS[0], None, None), target)
    found = there.contain(rows(0.0, -0.0, -0.0, 0.0, np.nan, None))
    assert found is not None
    assert found.tolist() == [True, True, False, False, True, True]


NINES = "9" * 400
TINY = f"0.{'0' * 400}1"
ANY_SCALE = SourceColumn("n", 1700, -1, "numeric", "numeric", 2)
MANY_DIGITS = SourceColumn("n", 0, decimal_modifier(65, 0), "decimal", "decimal(65,0)", 2, family="mysql")


@pytest.mark.parametrize(
    ("cursor", "values", "low", "high"),
    [
        (ANY_SCALE, ("5", "NaN", "Infinity", NINES), "5", None),
        (ANY_SCALE, ("Infinity", "NaN"), "Infinity", None),
        (ANY_SCALE, ("NaN", "NaN"), "NaN", None),
        (ANY_SCALE, ("Infinity", "NaN"), "Infinity", "NaN"),
        (ANY_SCALE, (NINES, f"{NINES}.5"), NINES, "Infinity"),
        (ANY_SCALE, (f"-{NINES}", "-Infinity", TINY), "-Infinity", TINY),
        (ANY_SCALE, ("-Infinity", "-Infinity"), "-Infinity", "-Infinity"),
        (ANY_SCALE, (f"-{NINES}", "-Infinity"), None, f"-{NINES}"),
        (MANY_DIGITS, ("99", "1000"), "99", None),
    ],
    ids=lambda each: str(each)[:20],
)
def test_numbers_that_are_text_are_found_in_the_order_of_numbers_and_those_without_an_end_too(
    cursor: SourceColumn, values: tuple[str, ...], low: str | None, high: str | None, tmp_path: Path
) -> None:
    target = Target(TableSchema(StreamId("public", "items"), (COLUMNS[0], cursor), ("id",)), "upsert")
    rows = [pa.array(range(len(values)), pa.int64()), pa.array(values)]
    path = tmp_path / "0.parquet"
    pq.write_table(pa.table(rows, names=["id", "n"]), path)
    there = HeldRows(HeldRange((ComparedFile(path),), None, cursor, low, high), target)
    found = there.contain(rows)
    assert found is not None
    assert found.tolist() == [True] * len(values)


def same(printed: pa.RecordBatch) -> pa.RecordBatch:
    return printed


@dataclass(frozen=True, slots=True)
class Reading:
    """Ten blocks of two rows, of which the second has a bad value, every third time."""

    def blocks(
        self,
        schema: TableSchema,
        where: Condition | None = None,
        *,
        outside: Condition | None = None,
        as_text: bool = False,
    ) -> Generator[Block]:
        for number in range(10):
            rows: list[Row] = [(2 * number, 7, "v"), (2 * number + 1, 7, "w")]
            printed = pa.record_batch(arrays(rows), names=["id", "n", "v"])
            bad = {"v": np.array([False, True])} if number % 3 == 0 else None
            yield Block(2, arrays(rows), bad, partial(same, printed) if as_text else None)


def test_blocks_that_are_joined_are_the_same_rows_and_words() -> None:
    one = sum(array.nbytes for array in arrays([(0, 7, "v"), (1, 7, "w")]))
    portions = list(InPortions(Reading(), 4 * one).blocks(SCHEMA, as_text=True))
    assert [each.rows for each in portions] == [8, 8, 4]
    whole = joined(portions)
    assert whole.values == joined(list(Reading().blocks(SCHEMA))).values
    assert whole.values[0].to_pylist() == list(range(20))
    assert whole.bad is not None
    assert np.flatnonzero(whole.bad["v"]).tolist() == [1, 7, 13, 19]
    assert whole.printed is not None
    assert whole.printed().column(0).to_pylist() == list(range(20))
    assert [each.printed for each in InPortions(Reading(), 1).blocks(SCHEMA)] == [None] * 10

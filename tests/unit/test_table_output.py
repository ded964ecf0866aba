"""A task's files: every row once, in the partition it belongs to, in the table's order, within limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.destinations.layout import Layout, Ordering, Partition
from penstock.destinations.parquet_files import DataFileWriter
from penstock.destinations.records import DataFile
from penstock.lake import table_output
from penstock.lake.table_output import TableOutput
from penstock.lake.target import Target

COLUMNS = (
    SourceColumn("id", 20, -1, "int8", "bigint", 1),
    SourceColumn("region", 25, -1, "text", "text", 2),
    SourceColumn("price", 701, -1, "float8", "double precision", 3),
)
TARGET = Target(TableSchema(StreamId("public", "t"), COLUMNS, key=("id",)), "upsert")
IDS = {"id": 1, "region": 2, "price": 3}
BY_REGION = (Partition(1000, 2, "identity"),)
BY_PRICE = (Ordering(3, descending=True, nulls_first=True), Ordering(1, descending=False, nulls_first=True))


def target(layout: Layout) -> Target:
    return Target(TARGET.schema, TARGET.write, field_ids=IDS, layout=layout)


def write(path: Path, layout: Layout, batches: list[dict[str, list[Any]]]) -> tuple[DataFile, ...]:
    with TableOutput(path, target(layout)) as output:
        for rows in batches:
            output.write_table(pa.table(rows, schema=output.schema))
    return output.files


def rows_of(path: Path, file: DataFile) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path.with_name(file.name)).to_pylist()
    assert len(rows) == file.rows
    return rows


def batch(start: int, regions: list[str | None]) -> dict[str, list[Any]]:
    ids = list(range(start, start + len(regions)))
    return {"id": ids, "region": regions, "price": [float(-each % 7) for each in ids]}


def test_rows_of_a_partition_share_a_file_across_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_output, "WINDOW_ROWS", 4)
    regions = ["a", None, "b", "a", "b", "a", None, "a"]
    files = write(tmp_path / "x.parquet", Layout(3, BY_REGION), [batch(0, regions), batch(8, regions)])
    held = {}
    for file in files:
        assert (file.spec_id, file.sort_order_id) == (3, None)
        [(_, region)] = json.loads(file.partition or "").items()
        held[region] = [row["id"] for row in rows_of(tmp_path / "x", file)]
        assert (file.key_min, file.key_max) == (min(held[region]), max(held[region]))
    assert held == {"a": [0, 3, 5, 7, 8, 11, 13, 15], "b": [2, 4, 10, 12], None: [1, 6, 9, 14]}


def test_no_more_files_are_open_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_output, "OPEN_FILES_MAX", 3)
    monkeypatch.setattr(table_output, "WINDOW_ROWS", 10)
    now, most = 0, 0

    class Counted(DataFileWriter):
        def __init__(self, *arguments: Any) -> None:
            nonlocal now, most
            now, most = now + 1, max(most, now + 1)
            super().__init__(*arguments)

        def close(self) -> DataFile:
            nonlocal now
            now -= 1
            return super().close()

    monkeypatch.setattr(table_output, "DataFileWriter", Counted)
    batches = [batch(10 * start, [str(number) for number in range(10)]) for start in range(3)]
    files = write(tmp_path / "x.parquet", Layout(1, BY_REGION), batches)
    assert (now, most) == (0, 3)
    ids = sorted(row["id"] for file in files for row in rows_of(tmp_path / "x", file))
    assert ids == list(range(30))
    assert all(len({row["region"] for row in rows_of(tmp_path / "x", file)}) == 1 for file in files)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", None]), st.one_of(st.none(), st.floats(allow_subnormal=False))),
        max_size=40,
    )
)
def test_every_file_is_in_order_as_a_whole_and_says_so(
    tmp_path_factory: pytest.TempPathFactory, values: list[tuple[str | None, float | None]]
) -> None:
    path = tmp_path_factory.mktemp("sorted") / "x.parquet"
    layout = Layout(1, BY_REGION, 5, BY_PRICE)
    rows: dict[str, list[Any]] = {
        "id": list(range(len(values))),
        "region": [v[0] for v in values],
        "price": [v[1] for v in values],
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_output, "WINDOW_ROWS", 15)
        halves = [{name: column[part] for name, column in rows.items()} for part in HALVES]
        files = write(path, layout, halves)
    written = []
    for file in files:
        assert file.sort_order_id == 5
        held = rows_of(path, file)
        assert [row["id"] for row in held] == [row["id"] for row in sorted(held, key=descending_price)]
        written += [(row["id"], row["region"], str(row["price"])) for row in held]
    assert sorted(written) == sorted((n, v[0], str(v[1])) for n, v in enumerate(values))


HALVES = (slice(0, 20), slice(20, None))


def descending_price(row: dict[str, Any]) -> tuple[Any, ...]:
    """Nulls first, then NaN, then from the highest; 0.0 is above -0.0."""
    price = row["price"]
    if price is None:
        return (0, 0, 0, 0, row["id"])
    if np.isnan(price):
        return (1, 0, 0, 0, row["id"])
    return (1, 1, -price, bool(np.signbit(price)), row["id"])


def test_a_layout_by_columns_that_are_gone_leaves_files_in_no_partition(tmp_path: Path) -> None:
    layout = Layout(1, (Partition(1000, 99, "identity"),), 5, BY_PRICE)
    [file] = write(tmp_path / "x.parquet", layout, [batch(0, ["a", "b"])])
    assert (file.spec_id, file.partition, file.sort_order_id) == (None, None, 5)


def test_a_task_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_output, "OPEN_FILES_MAX", 1)
    monkeypatch.setattr(table_output, "WINDOW_ROWS", 2)

    def write_and_fail() -> None:
        with TableOutput(tmp_path / "x.parquet", target(Layout(1, BY_REGION))) as output:
            output.write_table(pa.table(batch(0, ["a", "b", "c"]), schema=output.schema))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_and_fail()
    assert list(tmp_path.iterdir()) == []

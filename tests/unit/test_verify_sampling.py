"""Ranges of a key that a sample is made of: the same rows on both sides, whatever row groups hold them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.values import share_of
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.core.verify_report import VerifiedStream, VerifyReport
from penstock.lake.target import Target
from penstock.verify import reports
from penstock.verify.sampling import KeyRanges, _joined
from penstock.verify.sides import TableFile, TableSide

ID = SourceColumn("id", 20, -1, "int8", "bigint", 1)
BOUNDS = st.lists(st.integers(-60, 60), unique=True, max_size=8).map(sorted)


def ranges_of(bounds: list[int], chosen: list[bool]) -> tuple[tuple[str | None, str | None], ...]:
    """As the source cuts a table: every row is in one range, and some of them are chosen."""
    texts = [str(bound) for bound in bounds]
    whole = list(zip([None, *texts], [*texts, None], strict=True))
    return tuple(each for each, is_chosen in zip(whole, chosen, strict=True) if is_chosen)


@given(BOUNDS, st.data())
def test_a_row_is_in_a_sample_exactly_if_its_range_is(bounds: list[int], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.booleans(), min_size=len(bounds) + 1, max_size=len(bounds) + 1))
    values = list(range(-70, 71))
    of_value = np.searchsorted(np.array(bounds, np.int64), np.array(values), side="right")
    expected = [chosen[index] for index in of_value]
    ranges = ranges_of(bounds, chosen)
    for each in (ranges, _joined(ranges)):
        assert KeyRanges(ID, each).holds(pa.array(values, pa.int64())).tolist() == expected


def test_row_groups_outside_of_a_sample_are_not_read_and_deleted_rows_stay_deleted(tmp_path: Path) -> None:
    schema = TableSchema(StreamId("public", "t"), (ID,), ("id",))
    target = Target(schema, "upsert")
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": pa.array(range(1000), pa.int64())}), path, row_group_size=100)
    ranges = KeyRanges(ID, (("250", "260"), ("990", None)))
    with pq.ParquetFile(path) as file:
        assert ranges.row_groups(file, "id") == [2, 9]
    side = TableSide((TableFile(path, 1000, 0, ""),), target, ("id",), 1, ranges=ranges)
    found = [value for block in side.blocks() for value in block.columns[0].to_pylist()]
    assert found == [*range(250, 260), *range(990, 1000)]


def test_a_share_is_a_percentage_or_a_fraction() -> None:
    assert [share_of(each) for each in ("5%", 0.05, "100%", 1)] == [0.05, 0.05, 1.0, 1.0]


def test_the_newest_results_are_kept_and_no_values_with_them(tmp_path: Path) -> None:
    for minute in range(60):
        stream = VerifiedStream("public.t", "equal", source_rows=minute)
        moment = f"2026-11-16T13:{minute:02d}:00+00:00"
        reports.save(tmp_path, VerifyReport((stream,), moment, 1.0, shows_values=True, by_schedule=True))
    kept = sorted((tmp_path / "verify").glob("*.json"))
    assert len(kept) == reports.KEPT
    _, newest = next(reports.kept(tmp_path))
    assert newest["streams"][0]["source_rows"] == 59
    assert newest["shows_values"] is False
    last = reports.last_began_s(tmp_path)
    kept[-1].write_text("{")
    assert last is not None
    assert reports.last_began_s(tmp_path) == last - 60

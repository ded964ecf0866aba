"""Five differences, planted behind everybody's back in a table that `verify` is measured with: one flipped
bit in one value, a missing row, an extra row, a swapped pair, and a time zone that changed for twenty rows.

Each must be found and named as what it is, by key and column, and `--repair` must leave none. A file of the
table is written anew in its place, as a disk or a hand would spoil it; nothing in the state tells of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.comparison import Figure
from bench.pipelines import ICEBERG, Lake
from penstock import Pipeline
from penstock.core.verify_report import VerifiedStream

FLIPPED, LOST, SWAPPED, SHIFTED = 100, 200, (300, 301), range(400, 420)  # places in the file
EXTRA_ID = 10**15
_TWO_HOURS_US = 7_200_000_000


@dataclass(frozen=True, slots=True)
class Planted:
    """What is to be told: keys, and in which column."""

    missing: set[str]
    extra: set[str]
    columns: dict[str, set[str]]

    def named(self, told: VerifiedStream) -> int:
        """How many of the five are told exactly so; none where anything else is."""
        missing, extra = (
            {str(each.key["id"]) for each in told.differences if each.kind == kind}
            for kind in ("missing", "extra")
        )
        found: dict[str, set[str]] = {}
        for each in told.differences:
            for column in each.columns:
                found.setdefault(column.name, set()).add(str(each.key["id"]))
        if told.left_out or found.keys() - self.columns.keys():
            return 0
        of_columns = (found.get(name) == keys for name, keys in self.columns.items())
        return sum((missing == self.missing, extra == self.extra, *of_columns))


def plant(path: Path) -> Planted:
    rows = pq.ParquetFile(path).read()
    ids = [str(each) for each in rows.column("id").to_pylist()[: SHIFTED.stop]]
    extra = _with(rows.slice(LOST, 1), "id", lambda _: pa.array([EXTRA_ID], pa.int64()))
    changed = _with(rows, "weight", _flipped)
    changed = _with(changed, "token", _swapped)
    changed = _with(changed, "changed_at", _shifted)
    with open(path, "wb") as sink:  # the same file under all its names
        pq.write_table(pa.concat_tables([changed.slice(0, LOST), changed.slice(LOST + 1), extra]), sink)
    return Planted(
        {ids[LOST]},
        {str(EXTRA_ID)},
        {
            "weight": {ids[FLIPPED]},
            "token": {ids[place] for place in SWAPPED},
            "changed_at": {ids[place] for place in SHIFTED},
        },
    )


def _with(rows: pa.Table, name: str, change: Callable[[pa.Array], pa.Array]) -> pa.Table:
    place = rows.column_names.index(name)
    field = rows.schema.field(name)
    return rows.set_column(place, field, change(rows.column(name).combine_chunks()).cast(field.type))


def _flipped(values: pa.Array) -> pa.Array:
    bits = values.to_numpy(zero_copy_only=False).copy().view(np.uint64)
    bits[FLIPPED] ^= 1
    return pa.array(bits.view(np.float64))


def _swapped(values: pa.Array) -> pa.Array:
    order = np.arange(len(values))
    order[list(SWAPPED)] = order[list(reversed(SWAPPED))]
    return values.take(pa.array(order))


def _shifted(values: pa.Array) -> pa.Array:
    places = np.arange(len(values))
    moved = pc.add(values.view(pa.int64()), _TWO_HOURS_US)
    is_moved = pa.array((places >= SHIFTED.start) & (places < SHIFTED.stop))
    return pc.if_else(is_moved, moved, values.view(pa.int64())).cast(values.type)


def figures(pipeline: Pipeline, table: str, lake: Lake, title: str) -> list[Figure]:
    planted = plant(_file(pipeline, table, lake))
    [told] = pipeline.verify(limit=100).streams
    [left] = pipeline.verify(repair=True).streams
    return [
        Figure(f"planted differences found and named, {title}", planted.named(told), 5, at_least=True),
        Figure(f"differences left after --repair, {title}", left.differing_at_least, 0),
    ]


def _file(pipeline: Pipeline, table: str, lake: Lake) -> Path:
    """The smallest that has room for all of them."""
    if lake is ICEBERG:
        warehouse = pipeline.config.destination.directory
        paths = warehouse.glob(f"{table.replace('.', '/')}/data/*.parquet")
    else:
        paths = pipeline.table(table).path.glob("*.parquet")
    rows = {path: pq.read_metadata(path).num_rows for path in paths}
    return min((path for path in rows if rows[path] > SHIFTED.stop), key=lambda path: rows[path])

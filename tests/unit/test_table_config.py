"""`iceberg:` of a stream: what can be chosen for a table, and what is said when it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core.table_options import PartitionField, SortField
from tests.unit.test_config import load, refused

FILE = """\
source: {{type: postgres, url: "postgresql://app@db/shop"}}
destination: {{{destination}}}
state: ./state
streams:
  - {{table: {table}, iceberg: {{{iceberg}}}}}
  - {{table: public.other, iceberg: {{location: ./far/other}}}}
"""
ICEBERG = "type: iceberg, warehouse: ./lake"


def file(iceberg: str, destination: str = ICEBERG, table: str = "public.orders") -> str:
    text = FILE.format(iceberg=iceberg, destination=destination, table=table)
    return text if destination.startswith(ICEBERG) else text.replace(", iceberg: {location: ./far/other}", "")


def test_what_is_chosen_is_read(tmp_path: Path) -> None:
    text = file(
        'partition_by: ["day(at)", "bucket(16, id)", region], sort_by: [at desc, id], '
        "location: ./far/orders, properties: {write.parquet.page-size-bytes: 1000}"
    )
    options = load(tmp_path, text).streams[0].iceberg.options
    assert options.partition_by == (
        PartitionField("at", "day"),
        PartitionField("id", "bucket", 16),
        PartitionField("region"),
    )
    assert options.sort_by == (SortField("at", descending=True, nulls_first=False), SortField("id"))
    assert options.location == tmp_path.resolve() / "far" / "orders"
    assert options.properties == {"write.parquet.page-size-bytes": "1000"}
    unnamed = load(tmp_path, file("")).streams[0].iceberg.options
    assert (unnamed.partition_by, unnamed.sort_by) == (None, None)
    assert load(tmp_path, file("partition_by: []")).streams[0].iceberg.options.partition_by == ()


@pytest.mark.parametrize(
    ("iceberg", "place", "said"),
    [
        ('partition_by: ["week(at)"]', "iceberg.partition_by[0]", "bucket(16, column)"),
        ('partition_by: ["day(at)", "hour(at)"]', "iceberg.partition_by", "more than one of year"),
        ("sort_by: [id, id desc]", "iceberg.sort_by", "twice"),
        ("properties: {penstock.load: x}", "iceberg.properties", "penstock.load"),
        ("properties: {format-version: 3}", "iceberg.properties", "set `format_version`"),
        ("properties: {current-snapshot-id: 3}", "iceberg.properties", "current-snapshot-id"),
        ("location: ./state/orders", "iceberg.location", "overlaps"),
        ("location: ./", "iceberg.location", "holds the warehouse"),
        ("location: s3://bucket/orders", "iceberg.location", "object store"),
    ],
)
def test_what_cannot_be_is_refused_at_its_place(tmp_path: Path, iceberg: str, place: str, said: str) -> None:
    detail = refused(tmp_path, file(iceberg)).detail
    assert f"streams[0].{place}" in detail
    assert said in detail


def test_a_table_of_plain_files_has_no_options(tmp_path: Path) -> None:
    detail = refused(tmp_path, file("sort_by: [id]", "type: parquet, path: ./lake")).detail
    assert "no meaning for parquet tables" in detail


def test_a_location_is_of_one_table_and_of_catalogs_that_let_it_be_chosen(tmp_path: Path) -> None:
    place = "location: ./far/orders"
    assert "named exactly" in refused(tmp_path, file(place, table="public.o*")).detail
    hadoop = f"{ICEBERG}, catalog: {{type: hadoop}}"
    assert "hadoop" in refused(tmp_path, file(place, hadoop)).detail
    overlapping = refused(tmp_path, file("location: ./far")).detail
    assert "streams[1].iceberg.location" in overlapping

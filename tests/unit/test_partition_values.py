"""Partition values are Iceberg's own: here by PyIceberg's transforms; `test_table_options` asks Java."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyiceberg import transforms, types

from penstock.core.errors import DestinationError
from penstock.core.table_options import PartitionField, SortField, Transform, check_partitions
from penstock.destinations.layout import Partition
from penstock.lake.partition_values import transformed, values_json

MICROSECONDS = timedelta(microseconds=1)
EPOCH = datetime(1970, 1, 1)
WIDTHS = st.integers(1, 2**31 - 1)

ints = st.integers(-(2**31), 2**31 - 1)
longs = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
days = st.dates()
moments = st.datetimes()
decimals = st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**16), max_value=10**16)


def made(kind: pa.DataType, value: object, transform: Transform, width: int = 0) -> Any:
    """The value among others and a null, beyond the start of its buffers."""
    column = pa.array([None, value, None, value], kind).slice(1)
    array = transformed(column, Partition(1000, 1, transform, width))
    assert array[0] == array[2]
    assert not array[1].is_valid
    first = array[0]
    return first.value if pa.types.is_date(array.type) else first.as_py()


@pytest.mark.parametrize(
    ("kind", "iceberg", "values"),
    [
        (pa.int16(), types.IntegerType(), st.integers(-(2**15), 2**15 - 1)),
        (pa.int32(), types.IntegerType(), ints),
        (pa.int64(), types.LongType(), longs),
        (pa.string(), types.StringType(), texts),
        (pa.binary(), types.BinaryType(), st.binary(max_size=20)),
        (pa.decimal128(38, 2), types.DecimalType(38, 2), decimals),
    ],
    ids=str,
)
def test_buckets_are_icebergs(kind: pa.DataType, iceberg: Any, values: st.SearchStrategy[Any]) -> None:
    @given(values, WIDTHS)
    def holds(value: Any, width: int) -> None:
        expected = transforms.BucketTransform(width).transform(iceberg)(value)
        assert made(kind, value, "bucket", width) == expected

    holds()


@given(days, moments, st.integers(0, 86_400_000_000 - 1), WIDTHS)
def test_buckets_of_days_and_times_are_icebergs(day: date, moment: datetime, at: int, width: int) -> None:
    bucket: Any = transforms.BucketTransform(width)
    numbers = (day - EPOCH.date()).days, (moment - EPOCH) // MICROSECONDS
    zoned = moment.replace(tzinfo=UTC)
    clock = (EPOCH + timedelta(microseconds=at)).time()
    assert made(pa.date32(), day, "bucket", width) == bucket.transform(types.DateType())(numbers[0])
    expected = bucket.transform(types.TimestampType())(numbers[1])
    assert made(pa.timestamp("us"), moment, "bucket", width) == expected
    assert made(pa.timestamp("us", "UTC"), zoned, "bucket", width) == expected
    assert made(pa.time64("us"), clock, "bucket", width) == bucket.transform(types.TimeType())(at)


@given(longs, ints, texts, st.binary(max_size=20), WIDTHS)
@example(-(2**63), -(2**31), "", b"", 10)
@example(-1, -1, "🙂🙂🙂é", b"\xff\x00\x01", 2)
def test_what_is_truncated_is_icebergs(long: int, number: int, text: str, raw: bytes, width: int) -> None:
    assert made(pa.string(), text, "truncate", width) == text[:width]
    assert made(pa.binary(), raw, "truncate", width) == raw[:width]
    assert made(pa.int64(), long, "truncate", width) == wrapped(long - long % width, 64)
    if width <= 2**30:  # above, the sum in Java's formula wraps around too
        assert made(pa.int32(), number, "truncate", width) == wrapped(number - number % width, 32)


def wrapped(number: int, bits: int) -> int:
    half = 1 << bits - 1
    return (number + half) % (2 * half) - half


@given(decimals, WIDTHS)
@example(Decimal("-0.01"), 50)
@example(Decimal("12.34"), 2**31 - 1)
def test_decimals_are_rounded_down_by_their_unscaled_value(value: Decimal, width: int) -> None:
    truncate: Any = transforms.TruncateTransform(width)
    expected = truncate.transform(types.DecimalType(38, 2))(value)
    assert made(pa.decimal128(38, 2), value, "truncate", width) == expected


def test_a_decimal_that_is_rounded_out_of_its_type_is_an_error_with_a_remedy() -> None:
    with pytest.raises(DestinationError) as refused:
        made(pa.decimal128(4, 2), Decimal("-99.99"), "truncate", 50)
    assert refused.value.remedy


@given(days, moments)
@example(date(1969, 12, 31), datetime(1969, 12, 31, 23, 59, 59, 999999))
@example(date(1969, 12, 1), datetime(1969, 12, 1))
@example(date(1, 1, 1), datetime(1, 1, 1))
def test_time_is_counted_down_before_1970(day: date, moment: datetime) -> None:
    micros = (moment - EPOCH) // MICROSECONDS
    zoned = moment.replace(tzinfo=UTC)
    for transform, of_day, of_moment in [
        ("year", day.year - 1970, moment.year - 1970),
        ("month", 12 * (day.year - 1970) + day.month - 1, 12 * (moment.year - 1970) + moment.month - 1),
        ("day", (day - EPOCH.date()).days, micros // 86_400_000_000),
        ("hour", None, micros // 3_600_000_000),
    ]:
        if of_day is not None:
            assert made(pa.date32(), day, transform) == of_day  # type: ignore[arg-type]
        assert made(pa.timestamp("us"), moment, transform) == of_moment  # type: ignore[arg-type]
        assert made(pa.timestamp("us", "UTC"), zoned, transform) == of_moment  # type: ignore[arg-type]


def test_values_are_written_as_icebergs_json() -> None:
    values = [
        pa.scalar(None, pa.int32()),
        pa.scalar(7, pa.int64()),
        pa.scalar("ü\n/=", pa.string()),
        pa.scalar(date(1969, 12, 31)),
        pa.scalar(time(1, 2, 3, 4)),
        pa.scalar(datetime(1969, 12, 31, 23, 59, 59, 999999), pa.timestamp("us")),
        pa.scalar(datetime(2026, 2, 28, 1, tzinfo=UTC), pa.timestamp("us", "UTC")),
        pa.scalar(Decimal("-0.10"), pa.decimal128(5, 2)),
        pa.scalar(b"\x00\xff", pa.binary()),
        pa.scalar(True),
        pa.scalar(-719_529, pa.int32()).cast(pa.date32()),  # a year before the first
        pa.scalar(2_932_897, pa.int32()).cast(pa.date32()),
    ]
    fields = [Partition(number, number, "identity") for number in range(len(values))]
    assert list(json.loads(values_json(fields, values)).values()) == [
        None,
        7,
        "ü\n/=",
        "1969-12-31",
        "01:02:03.000004",
        "1969-12-31T23:59:59.999999",
        "2026-02-28T01:00:00.000000+00:00",
        "-0.10",
        "00FF",
        True,
        "-0001-12-31",
        "+10000-01-01",
    ]


def test_partitions_and_orders_are_read_as_people_write_them() -> None:
    assert PartitionField.parse("bucket( 16 , id )") == PartitionField("id", "bucket", 16)
    assert PartitionField.parse("DAY(created_at)") == PartitionField("created_at", "day")
    assert PartitionField.parse('truncate(4, "a ""b"" (c)")') == PartitionField('a "b" (c)', "truncate", 4)
    assert PartitionField.parse("region") == PartitionField("region")
    assert SortField.parse("a") == SortField("a", descending=False, nulls_first=True)
    assert SortField.parse("a DESC") == SortField("a", descending=True, nulls_first=False)
    assert SortField.parse('"x y" asc nulls last') == SortField("x y", descending=False, nulls_first=False)
    for text in ("bucket(id)", "day(4, a)", "week(a)", "bucket(0, a)", f"bucket({2**31}, a)", "", "day(a"):
        with pytest.raises(ValueError, match="should be"):
            PartitionField.parse(text)
    with pytest.raises(ValueError, match="should be"):
        SortField.parse("a upwards")


@given(texts.filter(bool), st.sampled_from(["identity", "bucket", "truncate", "day"]), WIDTHS)
def test_what_is_printed_is_read_again(name: str, transform: Transform, width: int) -> None:
    wide = width if transform in ("bucket", "truncate") else 0
    field, by = PartitionField(name, transform, wide), SortField(name, descending=True, nulls_first=True)
    assert PartitionField.parse(str(field)) == field
    assert SortField.parse(str(by)) == by


def test_partitions_that_say_the_same_are_refused() -> None:
    check_partitions([PartitionField("a"), PartitionField("a", "day"), PartitionField("b", "day")])
    check_partitions([PartitionField("a", "bucket", 4), PartitionField("a", "bucket", 8)])
    for fields in (["a", "a"], ["day(a)", "month(a)"]):
        with pytest.raises(ValueError, match="partitions a"):
            check_partitions(list(map(PartitionField.parse, fields)))

"""Text of Postgres → Arrow: exact where it fits, marked bad where it does not, never an exception."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import ConfigError
from penstock.core.held_as import HeldAs
from penstock.core.schema import SourceColumn
from penstock.sources.postgres.type_table import TYPE_TABLE, TypeEntry
from penstock.sources.postgres.types import arrow_type, cast_text, load_expression, text_expression
from penstock.sources.types import why_unfit


def column(type_name: str, modifier: int = -1) -> SourceColumn:
    return SourceColumn("c", 0, modifier, type_name, type_name)


def numeric(precision: int, scale: int) -> SourceColumn:
    return column("numeric", (precision << 16 | scale & 0x7FF) + 4)


def cast(texts: list[str | None], of: SourceColumn) -> tuple[pa.Array, list[bool]]:
    result = cast_text(pa.array(texts, pa.string()), of)
    result.values.validate(full=True)
    assert result.values.type == arrow_type(of)
    bad = [False] * len(texts) if result.bad is None else result.bad.to_pylist()
    return result.values, bad


def test_a_numeric_is_a_decimal_exactly_where_arrow_can_hold_every_value_of_it() -> None:
    assert arrow_type(numeric(12, 2)) == pa.decimal128(12, 2)
    assert arrow_type(numeric(38, 38)) == pa.decimal128(38, 38)
    assert arrow_type(numeric(39, 2)) == pa.string()
    assert arrow_type(numeric(5, -2)) == pa.string()
    assert arrow_type(numeric(3, 5)) == pa.string()
    assert arrow_type(column("numeric")) == pa.string()


def test_types_that_nobody_taught_us_stay_text_and_are_loaded_as_text() -> None:
    for name in ("mood", "_int4", "time", "interval", "money", "inet", "int4range", "xml", "char", "hstore"):
        assert arrow_type(column(name)) == pa.string()
        assert load_expression(column(name)) == "text"
        array = pa.array(["{1,2}", None, ""])
        assert cast_text(array, column(name)).values.equals(array)


def test_text_is_selected_by_the_output_function_and_not_by_a_cast() -> None:
    assert "::text" not in text_expression('"c"', column("inet"))
    assert "format('%s', \"c\")" in text_expression('"c"', column("inet"))
    assert 'numeric_out("c")' in text_expression('"c"', column("numeric"))


@pytest.mark.parametrize(
    ("type_name", "good", "bad"),
    [
        ("bool", {"t": True, "f": False, "true": True, "false": False}, ["", "x", "tr", "0"]),
        ("int2", {"-32768": -32768, "32767": 32767, "0": 0}, ["32768", "-32769", "", "-", "1.0", "x"]),
        ("int4", {"-2147483648": -(2**31), "2147483647": 2**31 - 1}, ["2147483648", "-2147483649"]),
        (
            "int8",
            {"-9223372036854775808": -(2**63), "9223372036854775807": 2**63 - 1},
            [
                "9223372036854775808",
                "-9223372036854775809",
                "10000000000000000000",
                "99999999999999999999999",
            ],
        ),
        ("float8", {"1.5": 1.5, "-0": -0.0, "Infinity": np.inf, "5e-324": 5e-324}, ["x", "1,5"]),
        (
            "bytea",
            {"\\x": b"", "\\xdeadBEEF": b"\xde\xad\xbe\xef", "\\x00": b"\0"},
            ["\\xd", "\\xzz", "ab", ""],
        ),
    ],
)
def test_values_are_exact_and_what_does_not_fit_is_bad_alone(
    type_name: str, good: dict[str, object], bad: list[str]
) -> None:
    texts: list[str | None] = [None, *good, *bad, None]
    values, marked = cast(texts, column(type_name))
    assert values.to_pylist() == [None, *good.values(), *[None] * len(bad), None]
    assert marked == [False, *[False] * len(good), *[True] * len(bad), False]


def test_all_nans_have_the_same_bits() -> None:
    for type_name, word in (("float8", pa.int64()), ("float4", pa.int32())):
        values, bad = cast(["NaN", "1"], column(type_name))
        nan = np.array([np.nan], values.to_numpy(zero_copy_only=False).dtype).view(word.to_pandas_dtype())[0]
        assert values.view(word)[0].as_py() == nan
        assert not any(bad)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_decimals_of_any_width_are_exact(data: st.DataObject) -> None:
    precision = data.draw(st.integers(1, 38))
    scale = data.draw(st.integers(0, precision))
    unscaled = data.draw(st.lists(st.integers(-(10**precision) + 1, 10**precision - 1), max_size=5))
    numbers = [Decimal(number).scaleb(-scale, _EXACT) for number in unscaled]
    values, bad = cast([f"{number:f}" for number in numbers], numeric(precision, scale))
    assert values.to_pylist() == numbers
    assert not any(bad)


_EXACT = __import__("decimal").Context(prec=80)


def test_a_decimal_that_does_not_fit_is_bad() -> None:
    values, bad = cast(
        ["NaN", "1000.00", "999.99", "1.234", "1.230", "1", "-.5", "", "-", ".", "1.", "1e3"], numeric(5, 2)
    )
    assert (
        values.to_pylist()
        == [None, None, Decimal("999.99"), None, Decimal("1.23"), 1, Decimal("-0.5")] + [None] * 5
    )
    assert bad == [True, True, False, True, False, False, False, True, True, True, True, True]


@given(st.lists(st.dates() | st.none(), max_size=20))
@settings(max_examples=100, deadline=None)
def test_dates_agree_with_the_calendar(days: list[dt.date | None]) -> None:
    values, bad = cast([None if day is None else day.isoformat() for day in days], column("date"))
    assert values.to_pylist() == days
    assert not any(bad)


@given(st.lists(st.datetimes() | st.none(), max_size=20), st.sampled_from(["timestamp", "timestamptz"]))
@settings(max_examples=100, deadline=None)
def test_timestamps_agree_with_the_calendar(times: list[dt.datetime | None], type_name: str) -> None:
    zone = "+00" if type_name == "timestamptz" else ""
    texts = [
        None if time is None else time.isoformat(" ").rstrip("0" if time.microsecond else "") + zone
        for time in times
    ]
    values, bad = cast(texts, column(type_name))
    epoch = dt.datetime(1970, 1, 1)
    expected = [None if time is None else (time - epoch) // dt.timedelta(microseconds=1) for time in times]
    assert values.view(pa.int64()).to_pylist() == expected
    assert not any(bad)


def test_years_outside_of_four_digits_are_held_and_infinity_is_bad() -> None:
    values, bad = cast(
        [
            "0001-12-31 BC",
            "0002-01-01 BC",
            "4714-11-24 BC",
            "5874897-12-31",
            "infinity",
            "-infinity",
            "2024-13-01",
        ],
        column("date"),
    )
    assert values.view(pa.int32()).to_pylist() == [-719163, -719893, -2440588, 2145042905, None, None, None]
    assert bad == [False] * 4 + [True] * 3


def test_a_timestamp_is_held_up_to_the_last_microsecond_of_64_bits() -> None:
    texts: list[str | None] = [
        "294247-01-10 04:00:54.775807",
        "294247-01-10 04:00:54.775808",
        "294276-12-31 23:59:59.999999",
        "0001-01-01 00:00:00 BC",
        "4714-11-24 00:00:00 BC",
        "infinity",
        "-infinity",
        "2024-01-01",
        "2024-01-01 25:00:00",
    ]
    values, bad = cast(texts, column("timestamp"))
    assert values.view(pa.int64()).to_pylist() == [
        2**63 - 1,
        None,
        None,
        -62167219200000000,
        -210866803200000000,
        *[None] * 4,
    ]
    assert bad == [False, True, True, False, False, True, True, True, True]


def test_an_offset_from_utc_is_taken_off() -> None:
    values, bad = cast(
        [
            "2024-01-01 00:00:00+00",
            "2024-01-01 05:45:00+05:45",
            "2023-12-31 23:00:00-01",
            "1800-01-01 00:00:00.5+00:53:28",
        ],
        column("timestamptz"),
    )
    instant = 1704067200000000
    assert values.view(pa.int64()).to_pylist()[:3] == [instant] * 3
    assert values.view(pa.int64()).to_pylist()[3] == -5364662400000000 - (53 * 60 + 28) * 1_000_000 + 500_000
    assert not any(bad)


def test_slices_and_empty_and_all_null_arrays_are_read_like_any_other() -> None:
    whole = pa.array(["x", None, "12", "7", None, "-3"])
    assert cast_text(whole[1:5], column("int4")).values.to_pylist() == [None, 12, 7, None]
    reals = pa.array(["1.5", "not a number", "-2.25", None, "3", "12.125"], pa.string())
    found = cast_text(reals[1:5], column("float8"))
    assert found.values.to_pylist() == [None, -2.25, None, 3.0]
    assert found.bad is not None
    assert found.bad.to_pylist() == [True, False, False, False]
    assert cast_text(pa.array(["9", "8", "7"])[1:], column("int8")).values.to_pylist() == [8, 7]
    for type_name in ("bool", "int8", "float8", "date", "timestamp", "bytea", "text", "mood"):
        assert len(cast_text(pa.array([], pa.string()), column(type_name)).values) == 0
        nulls = cast_text(pa.nulls(3, pa.string()), column(type_name))
        assert nulls.values.null_count == 3
        assert nulls.bad is None
        assert cast_text(pa.nulls(2), column(type_name)).values.type == arrow_type(column(type_name))


@given(
    st.lists(st.text(max_size=12), min_size=1, max_size=10),
    st.sampled_from(
        [
            "bool",
            "int2",
            "int4",
            "int8",
            "float4",
            "float8",
            "numeric",
            "date",
            "timestamp",
            "timestamptz",
            "bytea",
        ]
    ),
)
@settings(max_examples=300, deadline=None)
def test_no_text_whatever_raises_and_each_is_either_a_value_or_bad(texts: list[str], type_name: str) -> None:
    of = numeric(10, 2) if type_name == "numeric" else column(type_name)
    values, bad = cast(list(texts), of)
    assert values.is_null().to_pylist() == bad


def held(type_name: str, as_what: str, element: str = "", modifier: int = -1) -> SourceColumn:
    return SourceColumn("c", 0, modifier, type_name, type_name, element=element, held_as=as_what)


def test_a_column_is_held_as_the_pipeline_chooses_or_refused_with_what_is_possible() -> None:
    assert arrow_type(held("numeric", "decimal(38,9)")) == pa.decimal128(38, 9)
    assert arrow_type(held("time", "time")) == pa.time64("us")
    assert arrow_type(held("_int4", "list", "int4")) == pa.list_(pa.int32())
    assert arrow_type(held("_numeric", "list", "numeric", (10 << 16 | 2) + 4)) == pa.list_(
        pa.decimal128(10, 2)
    )
    assert arrow_type(held("_mood", "list", "public.mood")) == pa.list_(pa.string())
    for type_name in ("date", "timestamptz", "int8", "bytea", "mood"):
        assert arrow_type(held(type_name, "text")) == pa.string()
        assert load_expression(held(type_name, "text")) == "text"
    for type_name, choice in (("int4", "decimal(10,2)"), ("text", "list"), ("timetz", "time")):
        with pytest.raises(ConfigError, match="cannot be held") as refused:
            arrow_type(held(type_name, choice))
        assert "text" in refused.value.remedy


def test_a_type_that_somebody_named_like_a_built_in_one_is_text() -> None:
    assert arrow_type(SourceColumn("c", 20000, -1, "int4", "shop.int4")) == pa.string()
    assert load_expression(SourceColumn("c", 20000, -1, "int4", "shop.int4")) == "text"


@pytest.mark.parametrize(
    "text", ["decimal", "decimal(39,2)", "decimal(5,6)", "decimal(0,0)", "int", "", "TIMES"]
)
def test_what_is_no_choice_says_what_is(text: str) -> None:
    with pytest.raises(ValueError, match="decimal"):
        HeldAs.parse(text)


@given(st.integers(1, 38), st.integers(0, 38))
def test_a_choice_reads_as_it_is_written(precision: int, scale: int) -> None:
    if scale <= precision:
        choice = HeldAs.parse(f" Decimal( {precision} , {scale} )")
        assert HeldAs.parse(str(choice)) == choice == HeldAs("decimal", precision, scale)


def test_a_chosen_decimal_never_rounds() -> None:
    texts: list[str | None] = [
        "1.5",
        "1.500000",
        "1.2345",
        "NaN",
        "Infinity",
        "-Infinity",
        "12345678.9",
        None,
    ]
    values, bad = cast(texts, held("numeric", "decimal(8,3)"))
    assert values.to_pylist() == [Decimal("1.5"), Decimal("1.5"), *[None] * 6]
    assert bad == [False, False, True, True, True, True, True, False]


@given(st.lists(st.times() | st.none(), max_size=20))
@settings(max_examples=100, deadline=None)
def test_times_agree_with_the_clock(times: list[dt.time | None]) -> None:
    values, bad = cast([None if time is None else time.isoformat() for time in times], held("time", "time"))
    assert values.to_pylist() == times
    assert not any(bad)


def test_24_o_clock_is_no_time_of_a_day() -> None:
    texts: list[str | None] = ["24:00:00", "23:59:59.999999", "12:00", "00:00:00.1234567", "00:00:00 ", "x"]
    values, bad = cast(texts, held("time", "time"))
    assert values.to_pylist() == [None, dt.time(23, 59, 59, 999999), *[None] * 4]
    assert bad == [True, False, True, True, True, True]


def array_literal(elements: list[str | None]) -> str:
    """As array_out prints it, with every element that may need quotes within them."""
    quoted = [
        "NULL"
        if each is None
        else each
        if each and each.isascii() and each.isalnum() and each.upper() != "NULL"
        else '"' + each.replace("\\", "\\\\").replace('"', '\\"') + '"'
        for each in elements
    ]
    return "{" + ",".join(quoted) + "}"


@given(st.lists(st.lists(st.text(max_size=6) | st.none(), max_size=6) | st.none(), max_size=10))
@settings(max_examples=200, deadline=None)
def test_lists_hold_the_elements_of_arrays(arrays: list[list[str | None] | None]) -> None:
    texts = [None if array is None else array_literal(array) for array in arrays]
    values, bad = cast(texts, held("_text", "list", "text"))
    assert values.to_pylist() == arrays
    assert not any(bad)


def test_an_array_that_a_list_cannot_hold_is_bad_alone() -> None:
    texts: list[str | None] = [
        "{1,2}",
        "{{1,2},{3,4}}",
        "[0:1]={5,6}",
        "{}",
        "{99999999999}",
        None,
        "{NULL,-7}",
        "{",
        "",
        "{1,}",
        "{,1}",
        "{1}2}",
        '{"1"2}',
        '{"1}',
        '{"1\\}',
        "{3}",
    ]
    values, bad = cast(texts, held("_int4", "list", "int4"))
    assert [value for value, is_bad in zip(values.to_pylist(), bad, strict=True) if not is_bad] == [
        [1, 2],
        [],
        None,
        [None, -7],
        [3],
    ]
    assert values.null_count == len(texts) - 4


@given(st.lists(st.text('{}",\\ NUL[]=:1', max_size=12), min_size=1, max_size=10))
@settings(max_examples=300, deadline=None)
def test_no_text_whatever_breaks_the_reader_of_arrays(texts: list[str]) -> None:
    values, bad = cast(list(texts), held("_text", "list", "text"))
    assert values.is_null().to_pylist() == bad


def test_lists_of_slices_are_read_like_any_other() -> None:
    whole = pa.array(["x", None, "{1}", "{2,3}", "{4}"])
    assert cast_text(whole[1:4], held("_int4", "list", "int4")).values.to_pylist() == [None, [1], [2, 3]]


@pytest.mark.parametrize("entry", TYPE_TABLE, ids=lambda entry: entry.label[:40])
def test_every_row_of_the_table_of_types_has_a_type_in_the_lake_and_a_rule(entry: TypeEntry) -> None:
    assert entry.parquet
    assert entry.iceberg
    assert entry.extremes
    assert why_unfit(entry.column)

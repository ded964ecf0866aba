"""Compiled writers of values against models in plain Python, and against the server's own storage formats."""

from __future__ import annotations

import datetime
import decimal
import json
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.core.errors import SourceError
from penstock.sources.mysql.binlog import column_kernels
from penstock.sources.mysql.binlog import table_map as types
from penstock.sources.mysql.binlog.packets import EventBatch
from penstock.sources.mysql.binlog.rows import RowLayout, decode_rows
from penstock.sources.mysql.binlog.table_map import Column, TableMap, decimal_width

pytestmark = pytest.mark.unit
COLLATIONS = {8: "latin1", 255: "utf8mb4", 63: "binary", 54: "utf16", 56: "utf16le", 60: "utf32"} | {
    92: "geostd8", 13: "sjis", 98: "eucjpms", 1: "big5", 248: "gb18030",
}  # fmt: skip
DECIMALS = decimal.Context(prec=70)


def texts(column: Column, stored: list[bytes | None]) -> list[str | None]:
    """What rows of one column become; `stored` are values as they stand in a row image."""
    present, nulls = b"\1", (b"\0", b"\1")
    rows = [nulls[value is None] + (value or b"") for value in stored]
    batch = EventBatch.join([present, *rows])
    layout = RowLayout.of(TableMap("shop", "typed", (column,)), COLLATIONS)
    kind = np.full(len(rows), ord("i"), np.uint8)
    images = decode_rows(batch, kind, batch.starts[1:].copy(), np.zeros(len(rows), np.int64), layout)
    [decoded] = images.columns
    decoded.validate(full=True)
    assert decoded.type == pa.string()
    assert images.absent is None
    return decoded.to_pylist()  # type: ignore[no-any-return]


def column(code: int, length: int = 0, scale: int = 0, **more: Any) -> Column:
    return Column(code, length, scale, types._width(code, length, scale), True, **more)


def sized(value: bytes, prefix: int) -> bytes:
    return len(value).to_bytes(prefix, "little") + value


@given(st.data())
def test_whole_numbers_of_every_width(data: st.DataObject) -> None:
    code, width = data.draw(
        st.sampled_from(
            [(types.TINY, 1), (types.SHORT, 2), (types.INT24, 3), (types.LONG, 4), (types.LONGLONG, 8)]
        )
    )
    unsigned = data.draw(st.booleans())
    low, high = (0, 2 ** (8 * width) - 1) if unsigned else (-(2 ** (8 * width - 1)), 2 ** (8 * width - 1) - 1)
    numbers = data.draw(st.lists(st.none() | st.integers(low, high), min_size=1))
    stored = [
        None if number is None else number.to_bytes(width, "little", signed=not unsigned)
        for number in numbers
    ]
    expected = [None if number is None else str(number) for number in numbers]
    assert texts(column(code, unsigned=unsigned), stored) == expected


def test_powers_of_ten_have_all_their_digits() -> None:
    numbers = [n for power in range(20) for n in (10**power - 1, 10**power) if n < 2**64]
    stored: list[bytes | None] = [number.to_bytes(8, "little") for number in numbers]
    assert texts(column(types.LONGLONG, unsigned=True), stored) == [str(number) for number in numbers]


def stored_decimal(value: decimal.Decimal, precision: int, scale: int) -> bytes:
    """A model of how MySQL stores decimals: groups of nine digits from the point outward."""
    digits = str(abs(int(value.scaleb(scale, DECIMALS)))).rjust(precision, "0")
    whole, fraction = digits[: precision - scale], digits[precision - scale :]
    groups = [whole[: len(whole) % 9], *(whole[at : at + 9] for at in range(len(whole) % 9, len(whole), 9))]
    groups += [fraction[at : at + 9] for at in range(0, len(fraction), 9)]
    data = bytearray(
        b"".join(int(group).to_bytes(-(-len(group) * 4 // 9), "big") for group in groups if group)
    )
    if value < 0:
        data = bytearray(byte ^ 0xFF for byte in data)
    data[0] ^= 0x80
    assert len(data) == decimal_width(precision, scale)
    return bytes(data)


@given(st.data())
def test_decimals_keep_every_digit(data: st.DataObject) -> None:
    precision = data.draw(st.integers(1, 65))
    scale = data.draw(st.integers(0, min(30, precision)))
    numbers = data.draw(st.lists(st.integers(-(10**precision) + 1, 10**precision - 1), min_size=1))
    values = [decimal.Decimal(number).scaleb(-scale, DECIMALS) for number in numbers]
    stored: list[bytes | None] = [stored_decimal(value, precision, scale) for value in values]
    found = texts(column(types.NEWDECIMAL, precision, scale), stored)
    assert found == [f"{value:f}" for value in values]


def fraction_of(microseconds: int, digits: int) -> tuple[bytes, str]:
    """As stored, and as shown; what the column has no digits for is not stored."""
    kept = microseconds // 10 ** (6 - digits)
    size = (digits + 1) // 2
    stored = (kept * 10 ** (2 * size - digits)).to_bytes(size, "big")
    return stored, f".{kept:0{digits}d}" if digits else ""


@given(st.integers(0, 6), st.lists(st.datetimes(datetime.datetime(1, 1, 1)), min_size=1))
def test_dates_with_time_are_shown_with_the_digits_of_the_column(
    digits: int, moments: list[datetime.datetime]
) -> None:
    stored: list[bytes | None] = []
    expected = []
    for moment in moments:
        packed = ((moment.year * 13 + moment.month) << 5 | moment.day) << 17
        packed |= moment.hour << 12 | moment.minute << 6 | moment.second
        fraction, text = fraction_of(moment.microsecond, digits)
        stored.append((packed + 0x8000000000).to_bytes(5, "big") + fraction)
        expected.append(moment.strftime(f"{moment.year:04d}-%m-%d %H:%M:%S") + text)
    assert texts(column(types.DATETIME2, digits), stored) == expected


@given(st.integers(0, 6), st.lists(st.integers(1, 2**32 - 1), min_size=1), st.integers(0, 999_999))
def test_timestamps_are_shown_in_utc(digits: int, seconds: list[int], microseconds: int) -> None:
    fraction, text = fraction_of(microseconds, digits)
    stored: list[bytes | None] = [second.to_bytes(4, "big") + fraction for second in seconds]
    expected = [
        datetime.datetime.fromtimestamp(second, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S") + text
        for second in seconds
    ]
    assert texts(column(types.TIMESTAMP2, digits), stored) == expected


@given(st.integers(0, 6), st.lists(st.integers(-3_020_399_999_999, 3_020_399_999_999), min_size=1))
def test_times_go_beyond_a_day_and_below_zero(digits: int, spans: list[int]) -> None:
    stored: list[bytes | None] = []
    expected = []
    for span in spans:
        seconds, microseconds = divmod(abs(span), 1_000_000)
        fraction, text = fraction_of(microseconds, digits)
        size = len(fraction)
        packed = (seconds // 3600) << 12 | (seconds // 60 % 60) << 6 | seconds % 60
        whole = packed << (8 * size) | int.from_bytes(fraction, "big")
        stored.append(((0x800000 << (8 * size)) + (whole if span >= 0 else -whole)).to_bytes(3 + size, "big"))
        sign = "-" if span < 0 and whole else ""
        expected.append(f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{text}")
    assert texts(column(types.TIME2, digits), stored) == expected


def test_dates_that_are_zero_stay_as_they_are() -> None:
    assert texts(column(types.DATE), [bytes(3), (2024 << 9).to_bytes(3, "little")]) == [
        "0000-00-00",
        "2024-00-00",
    ]
    assert texts(column(types.DATETIME2, 1), [(0x8000000000).to_bytes(5, "big") + b"\0"]) == [
        "0000-00-00 00:00:00.0"
    ]
    assert texts(column(types.TIMESTAMP2), [bytes(4)]) == ["0000-00-00 00:00:00"]
    assert texts(column(types.YEAR), [b"\0", b"\1", b"\xff"]) == ["0000", "1901", "2155"]


def test_the_formats_before_mysql_5_6_are_read_too() -> None:
    assert texts(column(types.DATETIME), [(20240229235958).to_bytes(8, "little")]) == ["2024-02-29 23:59:58"]
    assert texts(column(types.TIME), [(-8385959).to_bytes(3, "little", signed=True)]) == ["-838:59:59"]
    assert texts(column(types.TIMESTAMP), [(1).to_bytes(4, "little")]) == ["1970-01-01 00:00:01"]


@given(st.integers(1, 64), st.data())
def test_bits_have_as_many_digits_as_the_column(size: int, data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(0, 2**size - 1), min_size=1))
    stored: list[bytes | None] = [number.to_bytes((size + 7) // 8, "big") for number in numbers]
    assert texts(column(types.BIT, size), stored) == [f"{number:0{size}b}" for number in numbers]


@given(
    st.sampled_from([(255, "utf-8"), (54, "utf-16-be"), (56, "utf-16-le"), (60, "utf-32-be")]),
    st.lists(st.text(), min_size=1),
)
def test_text_becomes_utf8(charset: tuple[int, str], values: list[str]) -> None:
    collation, codec = charset
    stored: list[bytes | None] = [sized(value.encode(codec), 4) for value in values]
    assert texts(column(types.BLOB, 4, collation=collation), stored) == values


def test_all_bytes_of_latin1_are_what_the_server_takes_them_for() -> None:
    [found] = texts(column(types.BLOB, 2, collation=8), [sized(bytes(range(256)), 2)])
    assert found is not None
    assert len(found) == 256
    assert found[0x80] == "€"
    assert found[0x81] == "\x81"
    assert found[0xE9] == "é"


@pytest.mark.parametrize(
    ("collation", "stored", "text"),
    [
        (13, b"a\x81\x5f\xb1\x81\xad\x85", "a\\ｱ??"),  # sjis: a code without a character, half a code
        (98, b"\xad\xa1\xa1\xc1\xf5\xa1\x8f\xf4\xfe\x8e\xb1\x8e\xa0z", "①\uff5e\ue000黑ｱ??z"),
        (1, b"\xf9\xd6\xa4\x40\xff\x40", "碁一?@"),
        (248, b"\xa8\xbc\x81\x35\xf4\x37\x84\x31\xa4\x39", "\u1e3f\ue7c7\uffff"),
        (248, b"\x90\x30\x81\x30\xe3\x32\x9a\x35\xe3\x32\x9a\x36\x84\x31\xa5\x30", "\U00010000\U0010ffff??"),
        (248, b"\x81\x30\x81\x3a\x81\x30\x81", "?0?:?0?"),
    ],
)
def test_codes_of_several_bytes_are_what_the_server_takes_them_for(
    collation: int, stored: bytes, text: str
) -> None:
    assert texts(column(types.BLOB, 2, collation=collation), [sized(stored, 2), None]) == [text, None]


def test_bytes_are_hexadecimal_and_binary_columns_get_their_zeros_back() -> None:
    assert texts(column(types.BLOB, 1, collation=63), [b"\2\0\xab", None, b"\0"]) == ["00ab", None, ""]
    assert texts(column(types.STRING, 4, collation=63), [b"\1\x7f", b"\0"]) == ["7f000000", "00000000"]


def test_members_of_enumerations_and_sets() -> None:
    members = tuple(value.encode("latin1") for value in ("a", "é", "b,c"))
    enum = column(types.ENUM, 1, values=members, collation=8)
    assert texts(enum, [b"\1", b"\2", b"\3", b"\0", None]) == ["a", "é", "b,c", "", None]
    chosen = column(types.SET, 1, values=members, collation=8)
    assert texts(chosen, [b"\0", b"\7", b"\5"]) == ["", "a,é,b,c", "a,b,c"]
    # Without the members, which only full metadata has, the number is as exact.
    assert texts(column(types.ENUM, 2), [b"\1\1"]) == ["257"]
    with pytest.raises(SourceError, match="geostd8"):
        texts(column(types.ENUM, 1, values=members, collation=92), [b"\1"])


@given(st.lists(st.none() | st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_floats_read_back_as_the_same_number(numbers: list[float | None]) -> None:
    stored = [None if number is None else struct.pack("<f", number) for number in numbers]
    for number, text in zip(numbers, texts(column(types.FLOAT, 4), stored), strict=True):
        assert (text is None) == (number is None)
        if text is not None:
            assert np.float32(text) == np.float32(number)


@given(st.lists(st.none() | st.floats(), min_size=1))
@example([0.0, -0.0, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, float("inf"), float("-inf")])
@example([1e-7, 1e-6, 9999999999.0, 1e10, 123456.789, 9007199254740993.0, 1e22, 1e23, 2.0**-1022, 0.3])
def test_doubles_have_the_text_that_arrow_gives_them(numbers: list[float | None]) -> None:
    stored = [None if number is None else struct.pack("<d", number) for number in numbers]
    expected = pc.cast(pa.array(numbers, pa.float64(), from_pandas=False), pa.string()).to_pylist()
    assert texts(column(types.DOUBLE, 8), stored) == expected


@pytest.mark.parametrize("seed", range(4))
def test_doubles_of_every_size_have_the_text_that_arrow_gives_them(seed: int) -> None:
    """Any bits, numbers of few digits, whole numbers, and the neighbours of powers of two and ten."""
    some = np.random.default_rng(seed)
    powers = np.concatenate([2.0 ** np.arange(-1074, 1024), 10.0 ** np.arange(-323, 309)])
    numbers = np.concatenate(
        [
            some.integers(0, 2**64, 50_000, np.uint64).view(np.float64),
            some.integers(-(10**9), 10**9, 50_000) / 10.0 ** some.integers(0, 12, 50_000),
            some.integers(-(2**53), 2**53, 50_000).astype(np.float64),
            powers,
            np.nextafter(powers, 0),
            np.nextafter(powers, np.inf),
        ]
    )
    out = np.empty(32 * len(numbers) + 32, np.uint8)
    offsets = np.empty(len(numbers) + 1, np.int32)
    places = 8 * np.arange(len(numbers), dtype=np.int32)
    size = column_kernels.render_doubles(numbers.view(np.uint8), places, offsets, out, 0)
    found = pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(out[:size]))
    assert found.equals(pc.cast(pa.array(numbers), pa.string()))


def test_a_geometry_has_its_reference_system_and_its_wkb() -> None:
    point = struct.pack("<BIdd", 1, 1, 1.0, 2.0)
    stored = sized(struct.pack("<I", 4326) + point, 4)
    assert texts(column(types.GEOMETRY, 4), [stored]) == [f"SRID=4326;{point.hex()}"]


@given(st.lists(st.none() | st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False)), min_size=1))
def test_vectors_are_lists_of_exact_numbers(vectors: list[list[float] | None]) -> None:
    stored = [
        None if vector is None else sized(struct.pack(f"<{len(vector)}f", *vector), 4) for vector in vectors
    ]
    found = texts(column(types.VECTOR, 4), stored)
    for vector, text in zip(vectors, found, strict=True):
        assert (text is None) == (vector is None)
        if text is not None:
            assert np.array(json.loads(text), np.float32).tolist() == vector


def test_signs_that_the_log_does_not_tell_are_not_guessed() -> None:
    with pytest.raises(SourceError, match="unsigned"):
        texts(column(types.LONG), [bytes(4)])


# A model of MySQL's binary JSON, small offsets where they fit.


def _length(value: int) -> bytes:
    data = b""
    while value >= 0x80:
        data += bytes([value & 0x7F | 0x80])
        value >>= 7
    return data + bytes([value])


def _scalar(value: Any) -> tuple[int, bytes]:
    if value is None or isinstance(value, bool):
        return 4, bytes([{None: 0, True: 1, False: 2}[value]])
    if isinstance(value, float):
        return 11, struct.pack("<d", value)
    if isinstance(value, str):
        data = value.encode()
        return 12, _length(len(data)) + data
    for code, size, low, high in (
        (5, 2, -(2**15), 2**15 - 1), (6, 2, 0, 2**16 - 1), (7, 4, -(2**31), 2**31 - 1), (8, 4, 0, 2**32 - 1),
        (9, 8, -(2**63), 2**63 - 1),
    ):  # fmt: skip
        if low <= value <= high:
            return code, value.to_bytes(size, "little", signed=low < 0)
    return 10, value.to_bytes(8, "little")


def _encoded(value: Any, large: bool) -> tuple[int, bytes]:
    if not isinstance(value, list | dict):
        return _scalar(value)
    size = 4 if large else 2
    keys = [key.encode() for key in value] if isinstance(value, dict) else []
    members = list(value.values()) if isinstance(value, dict) else value
    entries = 2 * size + len(keys) * (size + 2)
    body_at = entries + len(members) * (size + 1)
    key_entries, body = b"", b""
    for key in keys:
        key_entries += (body_at + len(body)).to_bytes(size, "little") + len(key).to_bytes(2, "little")
        body += key
    value_entries = b""
    for member in members:
        code, data = _encoded(member, large)
        if code in (4, 5, 6) or (large and code in (7, 8)):
            value_entries += bytes([code]) + data.ljust(size, b"\0")
        else:
            value_entries += bytes([code]) + (body_at + len(body)).to_bytes(size, "little")
            body += data
    content = key_entries + value_entries + body
    header = len(members).to_bytes(size, "little") + (2 * size + len(content)).to_bytes(size, "little")
    code = (0 if isinstance(value, dict) else 2) + (1 if large else 0)
    return code, header + content


_json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=20)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=15,
)  # fmt: skip


@settings(max_examples=200)
@given(st.lists(st.none() | st.tuples(_json_values, st.booleans()), min_size=1, max_size=5))
def test_binary_json_is_the_same_document_as_text(documents: list[tuple[Any, bool] | None]) -> None:
    stored: list[bytes | None] = []
    for document in documents:
        if document is None:
            stored.append(None)
        else:
            code, data = _encoded(*document)
            stored.append(sized(bytes([code]) + data, 4))
    for document, text in zip(documents, texts(column(types.JSON, 4), stored), strict=True):
        if document is None:
            assert text is None
        else:
            assert text is not None
            assert _typed(json.loads(text)) == _typed(document[0])


def _typed(value: Any) -> Any:
    """1, 1.0 and True are three values."""
    if isinstance(value, list):
        return [_typed(member) for member in value]
    if isinstance(value, dict):
        return {key: _typed(member) for key, member in value.items()}
    return type(value), value


def test_json_that_leads_out_of_its_document_is_refused() -> None:
    broken = bytes([2, 1, 0, 7, 0, 12, 200, 0])  # an array whose text is far behind its end
    with pytest.raises(SourceError, match="JSON"):
        texts(column(types.JSON, 4), [sized(broken, 4)])

"""Bytes of a binary COPY, made by hand: every row comes out, or it is said that the bytes are wrong."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sources.postgres import binary_values
from penstock.sources.postgres.copy_binary import BinaryFields, CopyFormatError, CopyStream
from penstock.values.text_casts import CastResult

pytestmark = pytest.mark.unit

HEADER = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
TRAILER = b"\xff\xff"
Row = Sequence[bytes | None]


def field(value: bytes | None) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value


def row_bytes(row: Row) -> bytes:
    return struct.pack(">h", len(row)) + b"".join(map(field, row))


def stream_bytes(rows: Sequence[Row]) -> bytes:
    return HEADER + b"".join(map(row_bytes, rows)) + TRAILER


class Sent:
    """A source that has all of its bytes already."""

    def __init__(self, sent: bytes) -> None:
        self.sent = sent

    def fill(self, buffer: npt.NDArray[np.uint8], used: int) -> tuple[int, bool]:
        part = self.sent[: buffer.size - used]
        buffer[used : used + len(part)] = np.frombuffer(part, np.uint8)
        self.sent = self.sent[len(part) :]
        return used + len(part), used + len(part) < buffer.size


def read(sent: bytes, columns: int, block_bytes: int = 1 << 20) -> tuple[list[Row], CopyStream]:
    """The rows, by nothing but the positions of their values."""
    stream = CopyStream(Sent(sent), columns, block_bytes)
    rows: list[Row] = []
    for block in stream.blocks():
        assert block.rows
        by_column = [values(block.column(index)) for index in range(columns)]
        rows += [tuple(column[row] for column in by_column) for row in range(block.rows)]
    assert stream.rows == len(rows)
    return rows, stream


def values(fields: BinaryFields) -> list[bytes | None]:
    decoded: list[bytes | None] = binary_values.byte_strings(fields, pa.binary()).values.to_pylist()
    return decoded


def decode(decoder: binary_values.Decoder, arrow: pa.DataType, sent: Sequence[bytes | None]) -> CastResult:
    (block,) = CopyStream(Sent(stream_bytes([[each] for each in sent])), 1).blocks()
    result = decoder(block.column(0), arrow)
    result.values.validate(full=True)
    assert result.values.type == arrow
    return result


def tables() -> st.SearchStrategy[tuple[int, list[list[bytes | None]]]]:
    value = st.none() | st.binary(max_size=12) | st.binary(min_size=60, max_size=90)
    return st.integers(0, 4).flatmap(
        lambda columns: st.tuples(
            st.just(columns), st.lists(st.lists(value, min_size=columns, max_size=columns), max_size=25)
        )
    )


@given(table=tables(), block_bytes=st.integers(1, 200))
def test_any_rows_come_out_whole_whatever_the_size_of_a_block(
    table: tuple[int, list[list[bytes | None]]], block_bytes: int
) -> None:
    columns, rows = table
    found, stream = read(stream_bytes(rows), columns, block_bytes)
    assert found == [tuple(row) for row in rows]
    assert stream.complete


def test_a_stream_that_ends_early_is_never_complete_and_gives_whole_rows_only() -> None:
    rows: list[Row] = [(b"one", None), (b"", b"two"), (None, b"three" * 20)]
    sent = stream_bytes(rows)
    for length in range(len(sent)):
        for block_bytes in (20, 1000):
            if 0 < length < len(HEADER):
                with pytest.raises(CopyFormatError):
                    read(sent[:length], 2, block_bytes)
                continue
            found, stream = read(sent[:length], 2, block_bytes)
            assert found == rows[: len(found)]
            assert not stream.complete


def test_bytes_after_the_trailer_are_not_taken_for_a_complete_stream() -> None:
    sent = stream_bytes([(b"x",)])
    for block_bytes in (len(sent), 1000):
        assert not read(sent + b"\0", 1, block_bytes)[1].complete
        assert read(sent, 1, block_bytes)[1].complete


@pytest.mark.parametrize(
    "sent",
    [
        b"PGCOPY\n\xff\n\n\x00" + bytes(8) + TRAILER,
        b"PGCOPY\n\xff\r\n\x00" + struct.pack(">II", 1 << 16, 0) + TRAILER,
        b"PGCOPY\n\xff\r\n\x00" + struct.pack(">II", 0, 4) + bytes(4) + TRAILER,
        HEADER + row_bytes((b"1", b"2")),
        HEADER + row_bytes(()),
        HEADER + struct.pack(">h", -2),
        HEADER + struct.pack(">hi", 1, -2),
    ],
)
def test_what_is_no_binary_copy_of_one_column_is_refused(sent: bytes) -> None:
    with pytest.raises(CopyFormatError):
        read(sent, 1)


def test_a_buffer_that_grew_for_one_row_is_given_back() -> None:
    rows: list[Row] = [(b"a",), (b"x" * 100_000,), *[(b"b",)] * 50_000]
    stream = CopyStream(Sent(stream_bytes(rows)), 1, 1000)
    sizes = [block.raw.size for block in stream.blocks()]
    assert max(sizes) > 100_000
    assert sizes[-1] <= 8 * 1000
    assert (stream.rows, stream.complete) == (len(rows), True)


@pytest.mark.parametrize(("letter", "arrow"), [("h", pa.int16()), ("i", pa.int32()), ("q", pa.int64())])
@given(data=st.data())
def test_integers(letter: str, arrow: pa.DataType, data: st.DataObject) -> None:
    limit = 2 ** (arrow.bit_width - 1)
    drawn = data.draw(st.lists(st.none() | st.integers(-limit, limit - 1), min_size=1))
    sent = [None if each is None else struct.pack(f">{letter}", each) for each in drawn]
    assert decode(binary_values.integers, arrow, sent).values.to_pylist() == drawn


@given(drawn=st.lists(st.none() | st.booleans(), min_size=1))
def test_booleans(drawn: list[bool | None]) -> None:
    sent = [None if each is None else bytes([each]) for each in drawn]
    assert decode(binary_values.booleans, pa.bool_(), sent).values.to_pylist() == drawn


@pytest.mark.parametrize(("letter", "arrow"), [("f", pa.float32()), ("d", pa.float64())])
def test_floats_keep_their_bits_and_all_nans_have_the_same(letter: str, arrow: pa.DataType) -> None:
    width = arrow.bit_width // 8
    numbers = [0.0, -0.0, 1.5, -1e-45 if width == 4 else -5e-324, float("inf"), float("-inf")]
    sent = [struct.pack(f">{letter}", each) for each in numbers]
    nans = [b"\x7f\xf8", b"\xff\xf8", b"\x7f\xf0", b"\xff\xff"] if width == 8 else [b"\x7f\xc0", b"\xff\x81"]
    nans = [head + b"\0" * (width - 3) + b"\1" for head in nans]
    found = decode(binary_values.floats, arrow, [*sent, None, *nans]).values
    raw = found.buffers()[1].to_pybytes()
    pieces = [raw[at : at + width][::-1] for at in range(0, width * len(found), width)]
    assert pieces[: len(sent)] == sent
    canonical = struct.pack(f">{letter}", np.nan)
    assert pieces[len(sent) + 1 :] == [canonical] * len(nans)
    assert found.null_count == 1


def test_days_and_instants_move_to_the_epoch_of_1970_and_what_does_not_fit_is_bad() -> None:
    days = [0, -10957, -2451545, 2145031948, 2**31 - 1, -(2**31), -2451546, 2**31 - 1 - 10956]
    found = decode(binary_values.dates, pa.date32(), [None, *(struct.pack(">i", day) for day in days)])
    assert found.values.view(pa.int32()).to_pylist() == [
        None, 10957, 0, -2440588, 2145042905, None, None, None, None,
    ]  # fmt: skip
    assert found.bad is not None
    assert found.bad.to_pylist() == [False] * 5 + [True] * 4

    shift = 946_684_800_000_000
    instants = [0, -shift, 2**63 - 1 - shift, 2**63 - shift, 2**63 - 1, -(2**63)]
    arrow = pa.timestamp("us", "UTC")
    found = decode(binary_values.timestamps, arrow, [struct.pack(">q", each) for each in instants])
    assert found.values.view(pa.int64()).to_pylist() == [shift, 0, 2**63 - 1, None, None, None]
    assert found.bad is not None
    assert found.bad.to_pylist() == [False] * 3 + [True] * 3


def numeric(value: Decimal, scale: int, leading_groups: int = 0) -> bytes:
    """As Postgres sends it: groups of four digits, without groups of zeros at the ends."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    whole = text[: max(0, len(text) + exponent)] if exponent < 0 else text + "0" * exponent
    fraction = text.rjust(-exponent, "0")[exponent:] if exponent < 0 else ""
    whole = whole.rjust(-(-len(whole) // 4) * 4, "0")
    fraction = fraction.ljust(-(-len(fraction) // 4) * 4, "0")
    groups = [int((whole + fraction)[at : at + 4]) for at in range(0, len(whole + fraction), 4)]
    weight = len(whole) // 4 - 1
    while groups and groups[0] == 0:
        groups, weight = groups[1:], weight - 1
    while groups and groups[-1] == 0:
        groups = groups[:-1]
    groups, weight = [0] * leading_groups + groups, weight + leading_groups
    return struct.pack(f">hhHh{len(groups)}h", len(groups), weight, 0x4000 if sign else 0, scale, *groups)


@given(data=st.data())
def test_decimals_are_exact_or_bad(data: st.DataObject) -> None:
    precision = data.draw(st.integers(1, 38))
    scale = data.draw(st.integers(0, precision))
    arrow = pa.decimal128(precision, scale)
    drawn = data.draw(
        st.lists(
            st.tuples(
                st.integers(0, 10 ** data.draw(st.integers(1, 45))), st.booleans(), st.integers(-45, 12)
            ),
            min_size=1,
            max_size=20,
        )
    )
    numbers = [
        Decimal((int(negative and number > 0), tuple(map(int, str(number))), exponent))
        for number, negative, exponent in drawn
    ]
    leading = data.draw(st.integers(0, 2))
    found = decode(binary_values.decimals, arrow, [None, *(numeric(each, 0, leading) for each in numbers)])
    bad = found.bad.to_pylist() if found.bad is not None else [False] * len(found.values)
    assert not bad[0]
    for number, value, marked in zip(numbers, found.values.to_pylist()[1:], bad[1:], strict=True):
        _, digits, exponent = number.as_tuple()
        assert isinstance(exponent, int)
        scaled = int("".join(map(str, digits))) * 10 ** max(0, exponent + scale)
        rest = 0
        if exponent + scale < 0:
            scaled, rest = divmod(scaled, 10 ** -(exponent + scale))
        fits = rest == 0 and scaled < 10**precision
        assert marked == (not fits)
        assert value == (number if fits else None)


def test_numbers_that_are_none_are_bad() -> None:
    sent = [struct.pack(">hhHh", 0, 0, sign, 0) for sign in (0xC000, 0xD000, 0xF000, 0x0000)]
    found = decode(binary_values.decimals, pa.decimal128(5, 2), sent)
    assert found.bad is not None
    assert found.bad.to_pylist() == [True, True, True, False]
    assert found.values.to_pylist() == [None, None, None, Decimal("0.00")]


def test_values_of_any_length() -> None:
    texts = ["", None, "ünï", "x" * 5000]
    sent = [None if each is None else each.encode() for each in texts]
    assert decode(binary_values.byte_strings, pa.string(), sent).values.to_pylist() == texts
    assert decode(binary_values.byte_strings, pa.binary(), sent).values.to_pylist() == sent
    versioned = [None if each is None else b"\1" + each for each in sent]
    assert decode(binary_values.jsonb, pa.string(), versioned).values.to_pylist() == texts


@given(drawn=st.lists(st.none() | st.uuids(), min_size=1))
def test_uuids(drawn: list[object]) -> None:
    sent = [None if each is None else bytes.fromhex(str(each).replace("-", "")) for each in drawn]
    expected = [None if each is None else str(each) for each in drawn]
    assert decode(binary_values.uuids, pa.string(), sent).values.to_pylist() == expected


@pytest.mark.parametrize(
    ("decoder", "arrow", "wrong"),
    [
        (binary_values.booleans, pa.bool_(), b"\2"),
        (binary_values.booleans, pa.bool_(), b""),
        (binary_values.booleans, pa.bool_(), b"\1\1"),
        (binary_values.integers, pa.int16(), bytes(4)),
        (binary_values.integers, pa.int32(), bytes(2)),
        (binary_values.integers, pa.int64(), b""),
        (binary_values.floats, pa.float32(), bytes(8)),
        (binary_values.floats, pa.float64(), bytes(4)),
        (binary_values.dates, pa.date32(), bytes(8)),
        (binary_values.timestamps, pa.timestamp("us"), bytes(4)),
        (binary_values.uuids, pa.string(), bytes(15)),
        (binary_values.jsonb, pa.string(), b"\2{}"),
        (binary_values.jsonb, pa.string(), b""),
        (binary_values.decimals, pa.decimal128(9, 2), b""),
        (binary_values.decimals, pa.decimal128(9, 2), bytes(7)),
        (binary_values.decimals, pa.decimal128(9, 2), struct.pack(">hhHh", 1, 0, 0, 0)),
        (binary_values.decimals, pa.decimal128(9, 2), struct.pack(">hhHhh", 0, 0, 0, 0, 1)),
        (binary_values.decimals, pa.decimal128(9, 2), struct.pack(">hhHh", -1, 0, 0, 0)),
        (binary_values.decimals, pa.decimal128(9, 2), struct.pack(">hhHh", 0, 0, 0x1234, 0)),
        (binary_values.decimals, pa.decimal128(9, 2), struct.pack(">hhHhh", 1, 0, 0, 0, 10000)),
        (binary_values.decimals, pa.decimal128(9, 2), struct.pack(">hhHhh", 1, 0, 0, 0, -1)),
    ],
)
def test_bytes_that_no_value_of_the_type_has_are_refused_and_not_shown(
    decoder: binary_values.Decoder, arrow: pa.DataType, wrong: bytes
) -> None:
    with pytest.raises(CopyFormatError) as raised:
        decode(decoder, arrow, [None, wrong])
    assert str(raised.value) == "A value has another length or form than its column's type."

"""Raw BSON as JSON text, against the driver's own decoder and Extended JSON."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from decimal import Inexact
from typing import Any

import bson
import numpy as np
import pytest
from bson import Int64, ObjectId
from bson.decimal128 import Decimal128
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import SourceError
from penstock.sources.mongodb.documents import json_texts, key_texts, parse
from penstock.sources.mongodb.fields import Fields
from penstock.sources.mongodb.json_kernels import DEPTH_MAX
from tests import bson_documents as model

pytestmark = pytest.mark.unit


def encoded(*documents: dict[str, Any]) -> bytes:
    return b"".join(bson.encode(document) for document in documents)


def texts_of(raw: bytes) -> list[str]:
    texts: list[str] = json_texts(parse(raw)).to_pylist()
    return texts


def key_of(value: Any) -> str:
    [key] = key_texts(parse(encoded({"a": 1, "_id": value}))).to_pylist()
    assert isinstance(key, str)
    return key


@settings(max_examples=200)
@given(st.lists(model.documents, max_size=5))
def test_a_document_is_what_the_driver_writes_as_canonical_json(documents: list[dict[str, Any]]) -> None:
    raw = encoded(*documents)
    expected = [model.json_of(bson.decode(bson.encode(each), model.EXACT)) for each in documents]
    assert texts_of(raw) == expected


@given(st.lists(model.documents, min_size=1, max_size=3), st.data())
@settings(max_examples=200)
def test_damaged_bytes_are_an_error_or_json_and_never_read_beyond(
    documents: list[dict[str, Any]], data: st.DataObject
) -> None:
    raw = bytearray(encoded(*documents))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw))) :]
    for read in (_texts, key_texts, lambda parsed: list(Fields().read(parsed))):
        with suppress(SourceError):
            read(parse(bytes(raw)))


def _texts(documents: Any) -> None:
    for text in json_texts(documents).to_pylist():
        json.loads(text)


@settings(max_examples=500)
@given(st.tuples(model.numbers, model.numbers))
def test_numbers_have_the_same_key_exactly_if_they_are_equal(pair: tuple[Any, Any]) -> None:
    one, other = pair
    assert (key_of(one) == key_of(other)) == (model.number_of(one) == model.number_of(other))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_has_the_key_of_the_decimal_that_equals_it(number: float) -> None:
    with_room = bson.decimal128.create_decimal128_context()
    with_room.traps[Inexact] = False
    decimal = Decimal128(with_room.create_decimal(number))
    is_equal = model.number_of(decimal) == model.number_of(number)
    assert (key_of(number) == key_of(decimal)) == is_equal


def test_the_four_types_of_one_share_a_key() -> None:
    ones = [1, Int64(1), 1.0, Decimal128("1"), Decimal128("1.000"), Decimal128("100E-2")]
    assert {key_of(one) for one in ones} == {"1"}
    assert {key_of(zero) for zero in (0, -0.0, Decimal128("-0"), Decimal128("0E+9"))} == {"0"}
    assert key_of(0.1) != key_of(Decimal128("0.1"))
    assert key_of({"a": 1}) == key_of({"a": 1.0}) == '{"a":1}'


@given(st.lists(model.values, max_size=6))
def test_ids_of_other_types_have_other_keys(ids: list[Any]) -> None:
    by_key: dict[str, str] = {}
    for value in ids:
        decoded = bson.decode(bson.encode({"_id": value}), model.EXACT)["_id"]
        told = repr(_comparable(decoded))
        assert by_key.setdefault(key_of(value), told) == told


def _comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _comparable(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_comparable(inner) for inner in value]
    is_number = isinstance(value, int | float | Decimal128) and not isinstance(value, bool)
    return hash(model.number_of(value)) if is_number else value


def test_a_document_that_looks_like_a_value_of_another_type_is_told_from_it() -> None:
    inner = {"$oid": "6afa9d21865c9b3a98642006"}
    looks, value, reference = texts_of(
        encoded({"a": inner}, {"a": ObjectId(inner["$oid"])}, {"a": {"$ref": "b", "$id": 1}, "$oid": "top"})
    )
    assert looks == '{"a":{"$document":{"$oid":"6afa9d21865c9b3a98642006"}}}'
    assert value == '{"a":{"$oid":"6afa9d21865c9b3a98642006"}}'
    assert reference == '{"a":{"$ref":"b","$id":{"$numberInt":"1"}},"$oid":"top"}'


def element(kind: int, name: bytes, value: bytes) -> bytes:
    return bytes([kind]) + name + b"\0" + value


def document(*elements: bytes) -> bytes:
    inside = b"".join(elements)
    return struct.pack("<i", len(inside) + 5) + inside + b"\0"


def string(value: bytes) -> bytes:
    return struct.pack("<i", len(value) + 1) + value + b"\0"


def test_types_that_drivers_no_longer_write_are_kept() -> None:
    oid = bytes(range(12))
    raw = document(
        element(0x06, b"u", b""),
        element(0x0C, b"p", string(b"db.c") + oid),
        element(0x0E, b"s", string(b"sym")),
        element(0x05, b"b", struct.pack("<iBi", 6, 2, 2) + b"xy"),
        element(0x05, b"c", struct.pack("<iBi", 6, 2, 9) + b"xy"),
        element(0x08, b"t", b"\1"),
        element(0x08, b"t", b"\0"),
    )
    assert texts_of(raw) == [
        '{"u":{"$undefined":true},"p":{"$dbPointer":{"$ref":"db.c","$id":{"$oid":"000102030405060708090a0b"}}},'
        '"s":{"$symbol":"sym"},"b":{"$binary":{"base64":"eHk=","subType":"02"}},'
        '"c":{"$binary":{"base64":"CQAAAHh5","subType":"02"}},"t":true,"t":false}'
    ]
    symbol = document(element(0x0E, b"_id", string(b"a")))
    assert key_texts(parse(symbol)).to_pylist() == ['"a"']


def test_text_that_is_not_utf8_is_kept_as_it_is() -> None:
    raw = document(
        element(0x02, b"a\xff", string(b"ok \xc3\xa9")),
        element(0x02, b"b", string(b"\xc3(")),
        element(0x0B, b"c", b"\xed\xa0\x80\0i\0"),
    )
    assert texts_of(raw) == [
        '{"a\ufffdff":"ok é","b":{"$invalidUtf8":"wyg="},'
        '"c":{"$regularExpression":{"pattern":"\ufffded\ufffda0\ufffd80","options":"i"}}}'
    ]


def test_levels_are_limited() -> None:
    def nested(levels: int) -> bytes:
        raw = document()
        for _ in range(levels - 1):
            raw = document(element(0x03, b"", raw))
        return raw

    assert texts_of(nested(DEPTH_MAX)) == ['{"":' * (DEPTH_MAX - 1) + "{}" + "}" * (DEPTH_MAX - 1)]
    with pytest.raises(SourceError, match="levels"):
        texts_of(nested(DEPTH_MAX + 1))


@pytest.mark.parametrize("element_of", [
    element(0x0B, b"", b"\0\0"), element(0x06, b"", b""), element(0xFF, b"", b""), element(0x0A, b"", b""),
    element(0x02, b"", string(b"\1")), element(0x02, b"", string(b"\xff")), element(0x10, b"", b"\0\0\0\x80"),
    element(0x03, b"", document(element(0x0A, b"$", b""))),
    element(0x0F, b"", struct.pack("<i", 14) + string(b"") + document()),
    element(0x05, b"", struct.pack("<iB", 0, 0)), element(0x13, b"", b"\xff" * 16),
    element(0x01, b"", b"\xff" * 7 + b"\0"),
])  # fmt: skip
def test_the_largest_documents_have_room_for_their_text(element_of: bytes) -> None:
    raw = document(*([element_of] * (200_000 // len(element_of))))
    [text] = texts_of(raw)
    json.loads(text)
    small = document(element_of)
    assert len(texts_of(small)[0].encode()) <= 16 * len(small) + 128


def test_a_decimal_of_more_digits_than_there_can_be_is_zero() -> None:
    too_many = struct.pack("<QQ", 10**34 & (2**64 - 1), 10**34 >> 64 | 6176 << 49)
    other_form = struct.pack("<QQ", 5, 3 << 61 | (6176 + 2) << 47)
    [text] = texts_of(document(element(0x13, b"a", too_many), element(0x13, b"b", other_form)))
    assert [each["$numberDecimal"] for each in json.loads(text).values()] == ["0", "0E+2"]


def test_a_document_of_16_mib_is_read() -> None:
    raw = encoded({"_id": 1, "s": "ä" * (8 * 1024 * 1024 - 100)})
    [text] = texts_of(raw)
    assert text == '{"_id":{"$numberInt":"1"},"s":"' + "ä" * (8 * 1024 * 1024 - 100) + '"}'


def test_every_power_of_ten_and_of_two_is_written_as_short_as_can_be() -> None:
    doubles = [10.0**power for power in range(-323, 309)] + [2.0**power for power in range(-1074, 1024)]
    neighbours = [float(np.nextafter(each, way)) for each in doubles for way in (-np.inf, np.inf)]
    [text] = texts_of(encoded({"a": doubles + neighbours}))
    found = [each["$numberDouble"] for each in json.loads(text)["a"]]
    assert found == [repr(each).replace("inf", "Infinity") for each in doubles + neighbours]

"""Compiled: BSON as JSON text, in one pass and without recursion.

The text is canonical Extended JSON (version 2), so each type can be told from the others and each value read
back: `{"$numberInt":"1"}`, `{"$numberLong":…}`, `{"$numberDouble":"-0.0"}`, `{"$numberDecimal":"1.10"}`,
`{"$date":{"$numberLong":…}}` in milliseconds, `{"$oid":…}`, `{"$binary":{"base64":…,"subType":"04"}}`. No
spaces, UTF-8 as it is, fields in their order, a name that occurs twice twice. Where Extended JSON says
nothing:

- A string that is not UTF-8 is `{"$invalidUtf8":<base64>}`. In a name, and in a regular expression, each
  byte that belongs to no character is U+FFFD followed by its two hex digits.
- A document inside another one whose first name begins with `$` could be taken for a value of another type:
  it is `{"$document":{…}}`. `$ref` stays as it is, for that is how references between documents are stored.
- Binary of the old subtype 2 has its inner length removed, as everywhere; if that length is wrong it stays.

As a key, for an `_id`, numbers are written by value alone (`number_kernels`) and symbols as strings, because
MongoDB holds those for equal; all else is as above. Two ids have the same text if and only if MongoDB holds
them for equal (save names that are not UTF-8, and collations, which a key knows nothing of).

A value takes at most `ROOM_PER_BYTE` times its size, so room is made once per document; most of it is never
touched. Measured per million documents of 11 fields: see docs/benchmarks.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.compiling import compiled
from penstock.sources.mongodb.bson_kernels import (
    ARRAY,
    BINARY,
    BOOLEAN,
    CODE,
    CODE_WITH_SCOPE,
    DATE,
    DB_POINTER,
    DECIMAL128,
    DOCUMENT,
    DOUBLE,
    INT32,
    INT64,
    MALFORMED,
    MIN_KEY,
    NULL,
    OBJECT_ID,
    REGEX,
    STRING,
    SYMBOL,
    TIMESTAMP,
    TOO_DEEP,
    UNDEFINED,
    text_end,
    value_end,
)
from penstock.sources.mongodb.memory_kernels import (
    Address,
    Number,
    copy,
    load_byte,
    load_int32,
    load_int64,
    load_uint64,
    store_byte,
)
from penstock.sources.mongodb.number_kernels import (
    write_decimal128,
    write_decimal128_key,
    write_digits,
    write_double,
    write_double_key,
    write_integer,
)
from penstock.text_kernels import Bytes, Ints, roomy

#: The most text per byte of BSON (an empty regular expression without a name: 54 of 4), and around it.
ROOM_PER_BYTE, ROOM = 16, 128
#: Documents in documents; the server stores 180 levels.
DEPTH_MAX = 256
QUOTE, _BACKSLASH, _COMMA, _COLON, _ZERO, _DOLLAR, _LETTER_U = (ord(letter) for letter in '"\\,:0$u')
_OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST, _EQUALS = (ord(letter) for letter in "{}[]=")
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_REF = b"$ref\0"
_ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)
_SPACES, _QUOTES, _BACKSLASHES = (np.uint64(_ONES * np.uint64(byte)) for byte in (0x20, QUOTE, _BACKSLASH))
_CLEAN, _SPECIAL, _HIGH = 0, 1, 2
_OLD_BINARY = 2


def _text(text: str) -> Bytes:
    return np.frombuffer(text.encode(), np.uint8)


_END_1, _END_2, _END_3 = _text('"}'), _text('"}}'), _text("}")
_INT, _LONG, _DOUBLE = _text('{"$numberInt":"'), _text('{"$numberLong":"'), _text('{"$numberDouble":"')
_DECIMAL, _OID = _text('{"$numberDecimal":"'), _text('{"$oid":"')
_DATE_OPEN, _BINARY_OPEN, _SUBTYPE = (
    _text('{"$date":{"$numberLong":"'),
    _text('{"$binary":{"base64":"'),
    _text('","subType":"'),
)
_TRUE, _FALSE, _NULL = _text("true"), _text("false"), _text("null")
_UNDEFINED, _MIN_KEY, _MAX_KEY = _text('{"$undefined":true}'), _text('{"$minKey":1}'), _text('{"$maxKey":1}')
_REGEX_OPEN, _OPTIONS = _text('{"$regularExpression":{"pattern":"'), _text('","options":"')
_CODE_OPEN, _SCOPE, _SYMBOL_OPEN = _text('{"$code":'), _text(',"$scope":'), _text('{"$symbol":')
_POINTER_OPEN, _POINTER_ID = _text('{"$dbPointer":{"$ref":'), _text(',"$id":{"$oid":"')
_POINTER_CLOSE = _text('"}}}')
_TIME_OPEN, _TIME_INDEX, _TIME_CLOSE = _text('{"$timestamp":{"t":'), _text(',"i":'), _text("}}")
_DOCUMENT_OPEN, _INVALID = _text('{"$document":'), _text('{"$invalidUtf8":"')


def _escape_letters() -> Bytes:
    """By byte: 0 as it is, `u` as four hex digits, else the letter behind the backslash."""
    letters = np.zeros(256, np.uint8)
    letters[:0x20] = _LETTER_U
    for byte, letter in zip('\b\f\n\r\t"\\', 'bfnrt"\\', strict=True):
        letters[ord(byte)] = ord(letter)
    return letters


_ESCAPE = _escape_letters()


@compiled()
def _put(text: Bytes, out: Address, to: Number) -> Number:
    copy(out + to, np.int64(text.ctypes.data), len(text))
    return to + len(text)


@compiled()
def _looks(at: Address, size: Number) -> Number:
    """Whether there is anything in a text that is not copied as it is: eight bytes at a time."""
    found = _CLEAN
    index = np.int64(0)
    while index + 8 <= size:
        word = load_uint64(at + index)
        if word & _HIGHS != np.uint64(0):
            found |= _HIGH
        quotes, slashes = word ^ _QUOTES, word ^ _BACKSLASHES
        special = ((word - _SPACES) & ~word) | ((quotes - _ONES) & ~quotes) | ((slashes - _ONES) & ~slashes)
        if special & _HIGHS != np.uint64(0):
            found |= _SPECIAL
        index += 8
    while index < size:
        byte = load_byte(at + index)
        if byte < 0x20 or byte in (QUOTE, _BACKSLASH):
            found |= _SPECIAL
        elif byte >= 0x80:
            found |= _HIGH
        index += 1
    return found


@compiled()
def _character(at: Address, size: Number) -> Number:
    """How many bytes the UTF-8 character at `at` has; 0: there is none."""
    first = load_byte(at)
    if first < 0x80:
        return 1
    length = 2 if 0xC2 <= first < 0xE0 else 3 if 0xE0 <= first < 0xF0 else 4 if 0xF0 <= first < 0xF5 else 0
    if length == 0 or length > size:
        return 0
    second = load_byte(at + 1)
    low = 0xA0 if first == 0xE0 else 0x90 if first == 0xF0 else 0x80
    high = 0x9F if first == 0xED else 0x8F if first == 0xF4 else 0xBF
    if second < low or second > high:
        return 0
    for index in range(2, length):
        if load_byte(at + index) & 0xC0 != 0x80:
            return 0
    return length


@compiled()
def is_utf8(at: Address, size: Number) -> bool:
    return _looks(at, size) & _HIGH == 0 or _is_valid(at, size)


@compiled()
def _is_valid(at: Address, size: Number) -> bool:
    index = np.int64(0)
    while index < size:
        length = _character(at + index, size - index)
        if length == 0:
            return False
        index += length
    return True


@compiled()
def _escape(at: Address, size: Number, out: Address, to: Number) -> Number:
    """A text with escapes; bytes that are no UTF-8 as U+FFFD and two hex digits."""
    index = np.int64(0)
    while index < size:
        byte = load_byte(at + index)
        letter = np.int64(_ESCAPE[byte])
        if letter != 0:
            store_byte(out + to, _BACKSLASH)
            store_byte(out + to + 1, letter)
            to += 2
            if letter == _LETTER_U:
                store_byte(out + to, _ZERO)
                store_byte(out + to + 1, _ZERO)
                to = put_hex(byte, out, to + 2)
            index += 1
            continue
        length = _character(at + index, size - index)
        for offset in range(length):
            store_byte(out + to + offset, load_byte(at + index + offset))
        if length == 0:
            store_byte(out + to, 0xEF)
            store_byte(out + to + 1, 0xBF)
            store_byte(out + to + 2, 0xBD)
            to = put_hex(byte, out, to + 3)
        to += length
        index += max(length, 1)
    return to


@compiled()
def put_hex(byte: Number, out: Address, to: Number) -> Number:
    store_byte(out + to, np.int64(_HEX[byte >> 4]))
    store_byte(out + to + 1, np.int64(_HEX[byte & 15]))
    return to + 2


@compiled()
def _put_text(at: Address, size: Number, out: Address, to: Number) -> Number:
    """A name or the like, without its quotes."""
    if _looks(at, size) == _CLEAN:
        copy(out + to, at, size)
        return to + size
    return _escape(at, size, out, to)


@compiled()
def _put_string(at: Address, size: Number, out: Address, to: Number) -> Number:
    found = _looks(at, size)
    if found & _HIGH and not _is_valid(at, size):
        return _put(_END_1, out, put_base64(at, size, out, _put(_INVALID, out, to)))
    store_byte(out + to, QUOTE)
    if found & _SPECIAL:
        to = _escape(at, size, out, to + 1)
    else:
        copy(out + to + 1, at, size)
        to += 1 + size
    store_byte(out + to, QUOTE)
    return to + 1


@compiled()
def put_base64(at: Address, size: Number, out: Address, to: Number) -> Number:
    index = np.int64(0)
    while index < size:
        bits = load_byte(at + index) << 16
        if index + 1 < size:
            bits |= load_byte(at + index + 1) << 8
        if index + 2 < size:
            bits |= load_byte(at + index + 2)
        store_byte(out + to, np.int64(_BASE64[bits >> 18]))
        store_byte(out + to + 1, np.int64(_BASE64[(bits >> 12) & 63]))
        store_byte(out + to + 2, np.int64(_BASE64[(bits >> 6) & 63]) if index + 1 < size else _EQUALS)
        store_byte(out + to + 3, np.int64(_BASE64[bits & 63]) if index + 2 < size else _EQUALS)
        to += 4
        index += 3
    return to


@compiled()
def put_object_id(at: Address, out: Address, to: Number) -> Number:
    for index in range(12):
        to = put_hex(load_byte(at + index), out, to)
    return to


@compiled()
def _put_number(kind: Number, at: Address, as_key: bool, out: Address, to: Number) -> Number:
    if as_key:
        if kind == INT32:
            return write_integer(load_int32(at), out, to)
        if kind == INT64:
            return write_integer(load_int64(at), out, to)
        if kind == DOUBLE:
            return write_double_key(load_uint64(at), out, to)
        return write_decimal128_key(at, out, to)
    if kind == INT32:
        to = write_integer(load_int32(at), out, _put(_INT, out, to))
    elif kind == INT64:
        to = write_integer(load_int64(at), out, _put(_LONG, out, to))
    elif kind == DOUBLE:
        to = write_double(load_uint64(at), out, _put(_DOUBLE, out, to))
    else:
        to = write_decimal128(at, out, _put(_DECIMAL, out, to))
    return _put(_END_1, out, to)


@compiled()
def _put_binary(at: Address, out: Address, to: Number) -> Number:
    size, subtype = load_int32(at), load_byte(at + 4)
    start = at + 5
    if subtype == _OLD_BINARY and size >= 4 and load_int32(start) == size - 4:
        start, size = start + 4, size - 4
    to = put_base64(start, size, out, _put(_BINARY_OPEN, out, to))
    to = put_hex(subtype, out, _put(_SUBTYPE, out, to))
    return _put(_END_2, out, to)


@compiled()
def _put_scalar(
    source: Address, kind: Number, at: Number, end: Number, as_key: bool, out: Address, to: Number
) -> Number:
    """A value that holds no document; it was measured."""
    place = source + at
    if kind == STRING or (as_key and kind == SYMBOL):
        return _put_string(place + 4, end - at - 5, out, to)
    if kind in (INT32, INT64, DOUBLE, DECIMAL128):
        return _put_number(kind, place, as_key, out, to)
    if kind == OBJECT_ID:
        return _put(_END_1, out, put_object_id(place, out, _put(_OID, out, to)))
    if kind == BOOLEAN:
        return _put(_TRUE, out, to) if load_byte(place) else _put(_FALSE, out, to)
    if kind == DATE:
        return _put(_END_2, out, write_integer(load_int64(place), out, _put(_DATE_OPEN, out, to)))
    if kind == NULL:
        return _put(_NULL, out, to)
    if kind == BINARY:
        return _put_binary(place, out, to)
    return _put_rare(source, kind, at, end, out, to)


@compiled()
def _put_rare(source: Address, kind: Number, at: Number, end: Number, out: Address, to: Number) -> Number:
    place = source + at
    if kind == TIMESTAMP:
        value = load_uint64(place)
        to = write_digits(value >> np.uint64(32), out, _put(_TIME_OPEN, out, to))
        to = write_digits(value & np.uint64(0xFFFFFFFF), out, _put(_TIME_INDEX, out, to))
        return _put(_TIME_CLOSE, out, to)
    if kind == REGEX:
        options = text_end(source, at, end) + 1
        to = _put_text(place, options - 1 - at, out, _put(_REGEX_OPEN, out, to))
        to = _put_text(source + options, end - 1 - options, out, _put(_OPTIONS, out, to))
        return _put(_END_2, out, to)
    if kind in (CODE, SYMBOL):
        to = _put(_CODE_OPEN, out, to) if kind == CODE else _put(_SYMBOL_OPEN, out, to)
        return _put(_END_3, out, _put_string(place + 4, end - at - 5, out, to))
    if kind == DB_POINTER:
        to = _put_string(place + 4, end - at - 17, out, _put(_POINTER_OPEN, out, to))
        to = put_object_id(source + end - 12, out, _put(_POINTER_ID, out, to))
        return _put(_POINTER_CLOSE, out, to)
    if kind == UNDEFINED:
        return _put(_UNDEFINED, out, to)
    return _put(_MIN_KEY, out, to) if kind == MIN_KEY else _put(_MAX_KEY, out, to)


@compiled()
def _looks_like_a_value(source: Address, at: Number, end: Number) -> bool:
    """Whether the document's first name begins with a dollar, and is not `$ref`."""
    if end - at <= 6 or load_byte(source + at + 5) != _DOLLAR:
        return False
    if end - at < 10:
        return True
    for index in range(5):  # noqa: SIM110 - compiled code has no generators
        if load_byte(source + at + 5 + index) != _REF[index]:
            return True
    return False


@compiled()
def write_value(  # noqa: PLR0912 - one loop over all that is open: compiled recursion would be slower
    source: Address, kind: Number, at: Number, limit: Number, is_root: bool, as_key: bool, out: Address,
    to: Number, ends: Ints, closers: Ints,
) -> Number:  # fmt: skip
    """Write the value of type `kind` at `at`; where the text ends, `MALFORMED` or `TOO_DEEP`.

    `ends` and `closers` are the stack: where the values of each open document end, and what closes it.
    """
    depth = 0
    while True:
        end = value_end(source, kind, at, limit)
        if end < 0:
            return np.int64(MALFORMED)
        if kind in (DOCUMENT, ARRAY, CODE_WITH_SCOPE):
            if depth == DEPTH_MAX:
                return np.int64(TOO_DEEP)
            extra = 0
            if kind == CODE_WITH_SCOPE:
                text = load_int32(source + at + 4)
                to = _put_string(source + at + 8, text - 1, out, _put(_CODE_OPEN, out, to))
                to, extra = _put(_SCOPE, out, to), extra + 1
                at += 8 + text
            if kind != ARRAY and not (is_root and depth == 0) and _looks_like_a_value(source, at, end):
                to, extra = _put(_DOCUMENT_OPEN, out, to), extra + 1
            ends[depth] = end - 1
            closers[depth] = extra if kind != ARRAY else -1
            depth += 1
            store_byte(out + to, _OPEN_LIST if kind == ARRAY else _OPEN)
            to += 1
            at += 4
        else:
            to = _put_scalar(source, kind, at, end, as_key, out, to)
            at = end
        while depth > 0 and at == ends[depth - 1]:
            depth -= 1
            store_byte(out + to, _CLOSE_LIST if closers[depth] < 0 else _CLOSE)
            to += 1
            for _ in range(closers[depth]):
                store_byte(out + to, _CLOSE)
                to += 1
            at += 1
        if depth == 0:
            return to
        limit = ends[depth - 1]
        kind = load_byte(source + at)
        name = at + 1
        at = text_end(source, name, limit) + 1
        if at == 0:
            return np.int64(MALFORMED)
        last = load_byte(out + to - 1)
        if last not in (_OPEN, _OPEN_LIST):  # no value ends with either
            store_byte(out + to, _COMMA)
            to += 1
        if closers[depth - 1] >= 0:
            store_byte(out + to, QUOTE)
            to = _put_text(source + name, at - 1 - name, out, to + 1)
            store_byte(out + to, QUOTE)
            store_byte(out + to + 1, _COLON)
            to += 2


@compiled()
def write_documents(buffer: Bytes, starts: Ints, doc_ends: Ints) -> tuple[Bytes, Any, Any]:
    """A text per document: the bytes of all, Arrow offsets, and the first document that has none (or -1)."""
    rows = len(starts)
    source = np.int64(buffer.ctypes.data)
    offsets = np.zeros(rows + 1, np.int32)
    ends, closers = np.empty(DEPTH_MAX, np.int64), np.empty(DEPTH_MAX, np.int64)
    size = np.int64(0)
    for row in range(rows):
        size += doc_ends[row] - starts[row]
    out = np.empty(4 * size + ROOM, np.uint8)
    to = np.int64(0)
    for row in range(rows):
        at, end = starts[row], doc_ends[row]
        out = roomy(out, to, ROOM_PER_BYTE * (end - at) + ROOM)
        written = write_value(
            source, DOCUMENT, at, end, True, False, np.int64(out.ctypes.data), to, ends, closers
        )
        if written < 0:
            return out[:to], offsets, (row, written)
        to = written
        offsets[row + 1] = to
    return out[:to], offsets, (-1, np.int64(0))


@compiled()
def write_values(
    buffer: Bytes, kinds: Any, positions: Any, limits: Ints, as_key: bool
) -> tuple[Bytes, Any, Any]:
    """A text per value that was found before (type 0: there is none, and the text is empty)."""
    rows = len(kinds)
    source = np.int64(buffer.ctypes.data)
    offsets = np.zeros(rows + 1, np.int32)
    ends, closers = np.empty(DEPTH_MAX, np.int64), np.empty(DEPTH_MAX, np.int64)
    out = np.empty(64 * rows + ROOM, np.uint8)
    to = np.int64(0)
    for row in range(rows):
        kind, at, limit = np.int64(kinds[row]), np.int64(positions[row]), limits[row]
        if kind != 0:
            end = value_end(source, kind, at, limit)
            out = roomy(out, to, ROOM_PER_BYTE * (end - at + 2) + ROOM)
            written = write_value(
                source, kind, at, limit, False, as_key, np.int64(out.ctypes.data), to, ends, closers
            )
            if written < 0:
                return out[:to], offsets, (row, written)
            to = written
        offsets[row + 1] = to
    return out[:to], offsets, (-1, np.int64(0))

"""Compiled: MySQL's binary JSON to the text that the server itself shows for it.

A document is a tree by offsets: an object or array has its count and size, then (objects) where its keys are,
then for each value its type and where it is, or the value itself where it is small. "Large" ones have offsets
of four bytes, others of two. Walked with a stack, a hundred deep at most as the server has it.

Doubles are not written here: the first pass collects them and leaves their places empty; Arrow finds their
digits, all at once, which are laid out as the server does it; a second pass puts them in. Documents without
any, the usual kind, need one pass.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.compiling import compiled
from penstock.sources.mysql.binlog.packet_kernels import Bytes, Ints, Lengths, Number, Places, little_endian
from penstock.sources.mysql.binlog.value_kernels import (
    write_date,
    write_decimal,
    write_packed_datetime,
    write_signed,
    write_time,
    write_unsigned,
)
from penstock.text_kernels import copy_bytes, roomy, write_escaped

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = range(5)
_INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING = range(5, 13)
_OPAQUE = 15
_DATE, _TIME, _DATETIME, _TIMESTAMP, _DECIMAL = 10, 11, 12, 7, 246
_LITERALS = tuple(np.frombuffer(word, np.uint8) for word in (b"null", b"true", b"false"))
_NULL, _TRUE, _FALSE = _LITERALS
_BASE64_PREFIX = np.frombuffer(b"base64:type", np.uint8)
_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_QUOTE, _COMMA, _COLON, _SPACE, _EQUALS = (ord(letter) for letter in '",: =')
_ZERO, _POINT, _MINUS, _PLUS, _LETTER_E = (ord(letter) for letter in "0.-+e")
_POINT_MIN, _POINT_MAX = -14, 15  # where the server writes a double without an exponent
_DEPTH_MAX = 128
_LINE = 76  # the server breaks base64 into lines, which as JSON is a backslash and an n
#: columns of the stack
_BASE, _ENTRIES, _COUNT, _NEXT, _IS_OBJECT, _SIZE = range(6)
_BAD = -1


@compiled()
def _variable_length(buffer: Bytes, at: Number) -> tuple[Number, Number]:
    """Seven bits a byte, lowest first, the highest bit says that more follow; and where it ends."""
    value, shift = np.int64(0), 0
    while shift < 35:
        byte = np.int64(buffer[at])
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return value, at


@compiled()
def _write_base64(buffer: Bytes, at: Number, length: Number, out: Bytes, to: Number) -> Number:
    begin_line = to
    for first in range(0, length, 3):
        if to - begin_line == _LINE:
            out[to], out[to + 1] = 92, 110  # \n
            to += 2
            begin_line = to
        left = length - first
        word = np.int64(buffer[at + first]) << 16
        if left > 1:
            word |= np.int64(buffer[at + first + 1]) << 8
        if left > 2:
            word |= np.int64(buffer[at + first + 2])
        out[to], out[to + 1] = _BASE64[word >> 18], _BASE64[(word >> 12) & 63]
        out[to + 2] = _BASE64[(word >> 6) & 63] if left > 1 else np.uint8(_EQUALS)
        out[to + 3] = _BASE64[word & 63] if left > 2 else np.uint8(_EQUALS)
        to += 4
    return to


@compiled()
def _write_opaque(buffer: Bytes, at: Number, out: Bytes, to: Number) -> Number:
    kind = np.int64(buffer[at])
    length, at = _variable_length(buffer, at + 1)
    if kind == _DECIMAL:
        return write_decimal(buffer, at + 2, np.int64(buffer[at]), np.int64(buffer[at + 1]), out, to)
    out[to] = _QUOTE
    to += 1
    if kind in (_DATE, _TIME, _DATETIME, _TIMESTAMP):
        packed = little_endian(buffer, at, 8)
        negative = packed < 0
        packed = -packed if negative else packed
        microseconds, packed = packed & 0xFFFFFF, packed >> 24
        if kind == _TIME:
            to = write_time(packed, microseconds, negative, 6, out, to)
        elif kind == _DATE:
            to = write_date((packed >> 22) // 13, (packed >> 22) % 13, (packed >> 17) & 31, out, to)
        else:
            to = write_packed_datetime(packed, microseconds, 6, out, to)
    else:
        to = copy_bytes(_BASE64_PREFIX, out, to)
        to = write_unsigned(np.uint64(kind), out, to)
        out[to] = _COLON
        to = _write_base64(buffer, at, length, out, to + 1)
    out[to] = _QUOTE
    return to + 1


@compiled()
def _longest_text(buffer: Bytes, kind: Number, at: Number) -> Number:
    """Room that a value which is neither object nor array takes at most."""
    if kind == _STRING:
        length, _ = _variable_length(buffer, at)
        return 6 * length + 8
    if kind == _OPAQUE:
        length, _ = _variable_length(buffer, at + 1)
        return 3 * length + 128
    return np.int64(40)


@compiled()
def _write_scalar(buffer: Bytes, kind: Number, at: Number, out: Bytes, to: Number) -> Number:
    """Any value but objects, arrays and doubles."""
    if kind == _LITERAL:
        literal = buffer[at]
        word = _NULL if literal == 0 else (_TRUE if literal == 1 else _FALSE)
        return copy_bytes(word, out, to)
    if kind == _INT16:
        return write_signed((little_endian(buffer, at, 2) << 48) >> 48, out, to)
    if kind == _UINT16:
        return write_unsigned(np.uint64(little_endian(buffer, at, 2)), out, to)
    if kind == _INT32:
        return write_signed((little_endian(buffer, at, 4) << 32) >> 32, out, to)
    if kind == _UINT32:
        return write_unsigned(np.uint64(little_endian(buffer, at, 4)), out, to)
    if kind == _INT64:
        return write_signed(little_endian(buffer, at, 8), out, to)
    if kind == _UINT64:
        return write_unsigned(np.uint64(little_endian(buffer, at, 8)), out, to)
    if kind == _STRING:
        length, at = _variable_length(buffer, at)
        out[to] = _QUOTE
        to = write_escaped(buffer[at : at + length], out, to + 1)
        out[to] = _QUOTE
        return to + 1
    if kind == _OPAQUE:
        return _write_opaque(buffer, at, out, to)
    return np.int64(_BAD)


@compiled()
def _push(buffer: Bytes, kind: Number, at: Number, stack: npt.NDArray[np.int64], depth: Number) -> None:
    size = np.int64(4) if kind in (_LARGE_OBJECT, _LARGE_ARRAY) else np.int64(2)
    is_object = kind in (_SMALL_OBJECT, _LARGE_OBJECT)
    count = little_endian(buffer, at, size)
    stack[depth, _BASE], stack[depth, _SIZE], stack[depth, _COUNT] = at, size, count
    stack[depth, _NEXT], stack[depth, _IS_OBJECT] = 0, is_object
    stack[depth, _ENTRIES] = at + 2 * size + (count * (size + 2) if is_object else 0)


@compiled()
def _is_inlined(kind: Number, size: Number) -> bool:
    return kind in (_LITERAL, _INT16, _UINT16) or (size == 4 and kind in (_INT32, _UINT32))


@compiled()
def render_json(  # noqa: PLR0912, PLR0915 - one walk
    buffer: Bytes, places: Places, lengths: Lengths, double_texts: Bytes, double_ends: Ints, filling: bool
) -> tuple[Ints, Bytes, npt.NDArray[np.float64], bool]:
    """One column: offsets of texts, their bytes, doubles met, whether all is well.

    With `filling`, the texts of doubles are those given, in the order they were met.
    """
    rows = len(lengths)
    text_offsets = np.empty(rows + 1, np.int64)
    out = np.empty(1024, np.uint8)
    doubles = np.empty(16, np.float64)
    stack = np.empty((_DEPTH_MAX, 6), np.int64)
    scratch = np.empty(1, np.float64)
    scratch_bytes = scratch.view(np.uint8)
    met = 0
    to = np.int64(0)
    for row in range(rows):
        text_offsets[row] = to
        if places[row] < 0:
            continue
        document = np.int64(places[row])
        end = document + lengths[row]
        depth = -1
        if lengths[row] == 0:  # what the server stores for a value it could not make one of
            out = roomy(out, to, 8)
            to = copy_bytes(_NULL, out, to)
            continue
        kind, at = np.int64(buffer[document]), document + 1
        inlined = False
        while True:
            if kind <= _LARGE_ARRAY:
                depth += 1
                if depth == _DEPTH_MAX:
                    return text_offsets, out, doubles, False
                _push(buffer, kind, at, stack, depth)
                out = roomy(out, to, 2)
                out[to] = 123 if stack[depth, _IS_OBJECT] else 91  # { [
                to += 1
            elif kind == _DOUBLE:
                if filling:
                    start = double_ends[met - 1] if met else np.int64(0)
                    out = roomy(out, to, double_ends[met] - start)
                    to = copy_bytes(double_texts[start : double_ends[met]], out, to)
                else:
                    if met == len(doubles):
                        larger = np.empty(2 * met, np.float64)
                        larger[:met] = doubles
                        doubles = larger
                    for index in range(8):
                        scratch_bytes[index] = buffer[at + index]
                    doubles[met] = scratch[0]
                met += 1
            else:
                out = roomy(out, to, _longest_text(buffer, kind, at))
                to = _write_scalar(buffer, kind, at, out, to)
                if to < 0:
                    return text_offsets, out, doubles, False
            # Close what is complete, then go on with the next member of what is open.
            while depth >= 0 and stack[depth, _NEXT] == stack[depth, _COUNT]:
                out = roomy(out, to, 2)
                out[to] = 125 if stack[depth, _IS_OBJECT] else 93  # } ]
                to += 1
                depth -= 1
            if depth < 0:
                break
            member, size, base = stack[depth, _NEXT], stack[depth, _SIZE], stack[depth, _BASE]
            stack[depth, _NEXT] = member + 1
            if member > 0:
                out = roomy(out, to, 2)
                out[to], out[to + 1] = _COMMA, _SPACE
                to += 2
            if stack[depth, _IS_OBJECT]:
                entry = base + 2 * size + member * (size + 2)
                key, length = (
                    base + little_endian(buffer, entry, size),
                    little_endian(buffer, entry + size, 2),
                )
                if key + length > end:
                    return text_offsets, out, doubles, False
                out = roomy(out, to, 6 * length + 4)
                out[to] = _QUOTE
                to = write_escaped(buffer[key : key + length], out, to + 1)
                out[to], out[to + 1], out[to + 2] = _QUOTE, _COLON, _SPACE
                to += 3
            entry = stack[depth, _ENTRIES] + member * (size + 1)
            kind = np.int64(buffer[entry])
            inlined = _is_inlined(kind, size)
            at = entry + 1 if inlined else base + little_endian(buffer, entry + 1, size)
            if at >= end:
                return text_offsets, out, doubles, False
    text_offsets[rows] = to
    return text_offsets, out[:to], doubles[: 0 if filling else met], True


@compiled()
def lay_out_doubles(starts: Ints, texts: Bytes) -> tuple[Ints, Bytes]:
    """Shortest texts of doubles, as the server writes them in JSON: where each ends, and their bytes.

    It writes up to 15 digits before the point, or more if some follow it, and up to 14 zeros behind it; an
    exponent otherwise. What is whole ends in `.0`, so that it stays a double.
    """
    ends = np.empty(len(starts) - 1, np.int64)
    out = np.empty(48 * len(ends), np.uint8)
    digits = np.empty(32, np.uint8)
    to: Number = np.int64(0)
    for index in range(len(ends)):
        count, point, negative = _digits_of(texts, starts[index], starts[index + 1], digits)
        if negative:
            out[to] = _MINUS
            to += 1
        if point >= _POINT_MIN and (point <= _POINT_MAX or count > point):
            to = _write_plain(digits, count, point, out, to)
        else:
            to = _write_exponent(digits, count, point - 1, out, to)
        ends[index] = to
    return ends, out[:to]


@compiled()
def _digits_of(texts: Bytes, at: Number, end: Number, digits: Bytes) -> tuple[Number, Number, bool]:
    """How many digits there are, none of them a zero at an end; how many stand before the point; the sign."""
    negative = texts[at] == _MINUS
    count, point, zeros = np.int64(0), np.int64(0), np.int64(0)
    is_fraction = False
    for position in range(at + np.int64(negative), end):
        letter = texts[position]
        if letter == _LETTER_E:
            below = texts[position + 1] == _MINUS
            exponent = np.int64(0)
            for rest in range(position + 2 if below or texts[position + 1] == _PLUS else position + 1, end):
                exponent = 10 * exponent + np.int64(texts[rest]) - _ZERO
            point += -exponent if below else exponent
            break
        if letter == _POINT:
            is_fraction = True
            continue
        if not is_fraction and (count + zeros or letter != _ZERO):
            point += 1
        if letter == _ZERO:
            if count:
                zeros += 1  # written when another digit follows
            elif is_fraction:
                point -= 1
            continue
        for _ in range(zeros):
            digits[count] = _ZERO
            count += 1
        zeros = np.int64(0)
        digits[count] = letter
        count += 1
    if count == 0:
        digits[0] = _ZERO
        return np.int64(1), np.int64(1), negative
    return count, point, negative


@compiled()
def _write_plain(digits: Bytes, count: Number, point: Number, out: Bytes, to: Number) -> Number:
    if point <= 0:
        out[to], out[to + 1] = _ZERO, _POINT
        to += 2
        for _ in range(-point):
            out[to] = _ZERO
            to += 1
        return copy_bytes(digits[:count], out, to)
    for index in range(max(count, point)):
        if index == point:
            out[to] = _POINT
            to += 1
        out[to] = digits[index] if index < count else _ZERO
        to += 1
    if count <= point:
        out[to], out[to + 1] = _POINT, _ZERO
        to += 2
    return to


@compiled()
def _write_exponent(digits: Bytes, count: Number, exponent: Number, out: Bytes, to: Number) -> Number:
    out[to] = digits[0]
    to += 1
    if count > 1:
        out[to] = _POINT
        to = copy_bytes(digits[1:count], out, to + 1)
    out[to] = _LETTER_E
    return write_signed(exponent, out, to + 1)

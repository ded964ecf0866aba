"""Compiled pieces that rendering is made of: reading Arrow's texts by address, writing bytes of JSON.

`Cells` are the addresses of columns' buffers, so whoever makes them keeps the arrays alive. Strings are
escaped exactly as Postgres' `to_json` does it; bytes above 0x7f are UTF-8 already and are copied. Writers
return where they ended, and check nothing: there is room before they are called.

Numba's cache looks at the file of an entry only: after a change here, entries in other files are compiled
again when those are touched.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.numpy_support import carray

from penstock.compiling import compiled

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]
Addresses: TypeAlias = tuple[int, int, int, int]
Cells: TypeAlias = npt.NDArray[np.int64]  # a row per column: address of values, offsets, validity; first row
Number: TypeAlias = Any  # a machine integer inside compiled code

QUOTE, _BACKSLASH, _ZERO, _LETTER_U = (ord(letter) for letter in '"\\0u')
LONGEST_ESCAPE = 6  # \u001f
_VALUES, _OFFSETS, _VALIDITY, _FIRST = range(4)
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


def addresses(column: pa.Array) -> Addresses:
    """A row of `Cells`."""
    assert column.type in (pa.string(), pa.binary())
    validity, offsets, values = column.buffers()
    return (
        values.address if values is not None else 0,
        offsets.address if offsets is not None else 0,
        validity.address if validity is not None else 0,
        column.offset,
    )


def _escape_letters() -> Bytes:
    """By byte: 0 as it is, `u` as four hex digits, else the letter behind the backslash."""
    letters = np.zeros(256, np.uint8)
    letters[:0x20] = _LETTER_U
    for byte, letter in zip('\b\f\n\r\t"\\', 'bfnrt"\\', strict=True):
        letters[ord(byte)] = ord(letter)
    return letters


_ESCAPE = _escape_letters()


def _as_pointer(typing_context: Any, address: Any) -> Any:
    """An address as a pointer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


def _as_memcpy(typing_context: Any, target: Any, source: Any, size: Any) -> Any:
    """A copy between addresses."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, source = (builder.inttoptr(address, cgutils.voidptr_t) for address in arguments[:2])
        _raw_memcpy(builder, target, source, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


# Numba's annotations say how these look to the compiler, not to compiled code.
_array: Any = carray
_raw_memcpy: Any = cgutils.raw_memcpy
_pointer: Any = intrinsic(_as_pointer)
_memcpy: Any = intrinsic(_as_memcpy)


@compiled()
def length_of(cells: Cells, column: Number, row: Number) -> Number:
    """How long a value is; -1: it is null."""
    index = cells[column, _FIRST] + row
    validity = cells[column, _VALIDITY]
    if validity != 0:
        bits = _array(_pointer(validity), ((index >> 3) + 1,), np.uint8)
        if (bits[index >> 3] >> np.uint8(index & 7)) & 1 == 0:
            return np.int64(-1)
    offsets = _array(_pointer(cells[column, _OFFSETS]), (index + 2,), np.int32)
    return np.int64(offsets[index + 1]) - np.int64(offsets[index])


@compiled()
def value_of(cells: Cells, column: Number, row: Number, length: Number) -> Bytes:
    index = cells[column, _FIRST] + row
    offsets = _array(_pointer(cells[column, _OFFSETS]), (index + 2,), np.int32)
    address = cells[column, _VALUES] + np.int64(offsets[index])
    value: Bytes = _array(_pointer(address), (length,), np.uint8)
    return value


@compiled()
def differs(old: Cells, new: Cells, column: Number, row: Number) -> bool:
    length = length_of(old, column, row)
    if length != length_of(new, column, row):
        return True
    difference = np.uint8(0)
    if length > 0:
        before, after = value_of(old, column, row, length), value_of(new, column, row, length)
        for index in range(length):  # to the end: without a way out it is done 16 bytes at a time
            difference |= before[index] ^ after[index]
    return bool(difference != 0)


@compiled()
def copy_bytes(source: Bytes, out: Bytes, at: Number) -> Number:
    _memcpy(np.int64(out.ctypes.data) + at, np.int64(source.ctypes.data), np.int64(len(source)))
    return at + len(source)


@compiled()
def constant(text: Bytes, ends: Ints, part: Number, out: Bytes, at: Number) -> Number:
    """One of several texts that lie one after the other."""
    return copy_bytes(text[ends[part - 1] if part > 0 else np.int64(0) : ends[part]], out, at)


@compiled()
def write_escaped(source: Bytes, out: Bytes, at: Number) -> Number:
    special = False
    for index in range(len(source)):
        byte = source[index]
        special |= (byte < 0x20) | (byte == QUOTE) | (byte == _BACKSLASH)
    if not special:
        return copy_bytes(source, out, at)
    for index in range(len(source)):
        byte = source[index]
        letter = _ESCAPE[byte]
        if letter == 0:
            out[at] = byte
            at += 1
            continue
        out[at] = _BACKSLASH
        out[at + 1] = letter
        at += 2
        if letter == _LETTER_U:
            out[at], out[at + 1] = _ZERO, _ZERO
            out[at + 2], out[at + 3] = _HEX[byte >> 4], _HEX[byte & 15]
            at += 4
    return at


@compiled()
def write_decimal(number: Number, out: Bytes, at: Number) -> Number:
    digits, rest = 1, number // 10
    while rest > 0:
        digits, rest = digits + 1, rest // 10
    for index in range(digits):
        out[at + digits - 1 - index] = _ZERO + number % 10
        number //= 10
    return at + digits


@compiled()
def roomy(buffer: Bytes, used: Number, wanted: Number) -> Bytes:
    if used + wanted <= len(buffer):
        return buffer
    larger = np.empty(max(2 * len(buffer), used + wanted), np.uint8)
    copy_bytes(buffer[:used], larger, 0)
    return larger


@compiled()
def trimmed(buffer: Bytes, used: Number) -> Bytes:
    """What was written. A copy where a fourth of the buffer or more would be kept with it for nothing."""
    written = buffer[:used]
    return written.copy() if 4 * used <= 3 * len(buffer) else written

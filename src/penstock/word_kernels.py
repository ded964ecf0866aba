"""Compiled pieces that handle eight bytes at a time, at any address: loads, stores, and digits of numbers.

Numba reads and writes arrays a byte at a time; texts of numbers made so cost several times what these do.

Nothing is checked here. Whoever loads has eight bytes to read, whoever stores eight to write, though fewer
may count: buffers that are written to end in `SLACK` bytes that no text reaches, and next to the end of
bytes that are read the caller goes another way (`little_at`, `big_at` do).

Functions that are called for every value take addresses: an array as an argument is seven numbers, and
handing them over costs more than what is done with them, where the compiler does not do away with the call.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from penstock.compiling import compiled

Bytes = npt.NDArray[np.uint8]
Number: TypeAlias = Any  # a machine integer inside compiled code
#: what a copy or store may write beyond the text that it is about
SLACK = 32

_WORD, _HALF = ir.IntType(64), ir.IntType(32)
_ZEROS = np.uint64(0x3030303030303030)
_HUNDRED, _E4, _E8, _E16 = np.uint64(100), np.uint64(10**4), np.uint64(10**8), np.uint64(10**16)
_LAST_DIGIT = np.uint64(1 << 56)


def _loading(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], _WORD.as_pointer()), align=1)

    return types.uint64(types.int64), generate


def _loading_byte(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = builder.load(builder.inttoptr(arguments[0], ir.IntType(8).as_pointer()))
        return builder.zext(byte, _WORD)

    return types.uint64(types.int64), generate


def _storing_byte(typing_context: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = builder.trunc(arguments[1], ir.IntType(8))
        builder.store(byte, builder.inttoptr(arguments[0], ir.IntType(8).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64), generate


def _storing(typing_context: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], _WORD.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64), generate


def _storing_half(typing_context: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], _HALF.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int32), generate


def _copying(typing_context: Any, target: Any, source: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, source = (builder.inttoptr(address, cgutils.voidptr_t) for address in arguments)
        raw_memcpy: Any = cgutils.raw_memcpy
        raw_memcpy(builder, target, source, _WORD(SLACK), 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _swapping(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bswap(arguments[0])

    return types.uint64(types.uint64), generate


def _counting(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.uint64(types.uint64), generate


def _counting_high(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.IntType(1)(1))

    return types.uint64(types.uint64), generate


def _multiplying(typing_context: Any, left: Any, right: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(factor, wide) for factor in arguments))
        return builder.trunc(builder.lshr(product, wide(64)), _WORD)

    return types.uint64(types.uint64, types.uint64), generate


# Numba's annotations say how these look to the compiler, not to compiled code.
#: eight bytes at an address, lowest first
load_word: Any = intrinsic(_loading)
store_word: Any = intrinsic(_storing)
#: one byte, as a number
load_byte: Any = intrinsic(_loading_byte)
store_byte: Any = intrinsic(_storing_byte)
#: four bytes
store_half: Any = intrinsic(_storing_half)
#: `SLACK` bytes from one address to another
copy_slack: Any = intrinsic(_copying)
swap_bytes: Any = intrinsic(_swapping)
#: how many of the lowest bits are 0, in a number that is not
low_zeros: Any = intrinsic(_counting)
#: the same of the highest bits
high_zeros: Any = intrinsic(_counting_high)
#: the upper half of a product
multiply_high: Any = intrinsic(_multiplying)


@compiled()
def address_of(array: Any) -> Number:
    """Good for as long as the array lives."""
    return np.int64(array.ctypes.data)


@compiled()
def little_at(source: Number, end: Number, at: Number, size: Number) -> Number:
    """A number of up to eight bytes, lowest first, `at` bytes behind `source`; `end` is where bytes end."""
    if at + 8 <= end and size > 0:
        unused = np.uint64(64 - 8 * size)
        return load_word(source + at) << unused >> unused
    value = np.uint64(0)
    for index in range(size):
        value |= load_byte(source + at + index) << np.uint64(8 * index)
    return value


@compiled()
def big_at(source: Number, end: Number, at: Number, size: Number) -> Number:
    """The same, highest first."""
    if at + 8 <= end and size > 0:
        return swap_bytes(load_word(source + at)) >> np.uint64(64 - 8 * size)
    value = np.uint64(0)
    for index in range(size):
        value = value << np.uint64(8) | load_byte(source + at + index)
    return value


@compiled()
def load_little(buffer: Bytes, at: Number, size: Number) -> Number:
    """A number of up to eight bytes, lowest first."""
    return little_at(np.int64(buffer.ctypes.data), len(buffer), np.int64(at), size)


@compiled()
def load_big(buffer: Bytes, at: Number, size: Number) -> Number:
    """A number of up to eight bytes, highest first."""
    return big_at(np.int64(buffer.ctypes.data), len(buffer), np.int64(at), size)


@compiled()
def copy_text(source: Number, size: Number, target: Number) -> None:
    """Between addresses; both sides may be touched up to `SLACK` bytes beyond. Texts are short, mostly."""
    copy_slack(target, source)
    done = np.int64(SLACK)
    while done < size:
        copy_slack(target + done, source + done)
        done += SLACK


@compiled()
def eight_digits(number: Number) -> Number:
    """Digits of a number below 10^8, the first in the lowest byte: halves, their halves, their halves."""
    high = number // _E4
    parts = high | (number - high * _E4) << np.uint64(32)
    tens = (parts * np.uint64(10_486)) >> np.uint64(20) & np.uint64(0x7F0000007F)
    parts = tens | (parts - tens * np.uint64(100)) << np.uint64(16)
    tens = (parts * np.uint64(103)) >> np.uint64(10) & np.uint64(0x000F000F000F000F)
    return tens | (parts - tens * np.uint64(10)) << np.uint64(8)


@compiled()
def store_digits(number: Number, address: Number) -> Number:
    """A number without zeros in front; the address behind it."""
    if number < _E8:
        head = number
    elif number < _E16:
        head = number // _E8
    else:
        head = number // _E16
    digits = eight_digits(head)
    missing = low_zeros(digits | _LAST_DIGIT) & np.uint64(0x38)
    store_word(address, (digits | _ZEROS) >> missing)
    address += 8 - np.int64(missing >> np.uint64(3))
    if number >= _E16:
        rest = number - head * _E16
        high = rest // _E8
        store_word(address, eight_digits(high) | _ZEROS)
        store_word(address + 8, eight_digits(rest - high * _E8) | _ZEROS)
        return address + 16
    if number >= _E8:
        store_word(address, eight_digits(number - head * _E8) | _ZEROS)
        return address + 8
    return address


@compiled()
def zeros_behind(number: Number) -> Number:
    """How many zeros a number ends in that is not one."""
    found = np.int64(0)
    rest = number // _E8
    while rest * _E8 == number:
        found += 8
        number = rest
        rest = number // _E8
    return found + np.int64(high_zeros(eight_digits(number - rest * _E8)) >> np.uint64(3))


@compiled()
def store_padded(number: Number, digits: Number, address: Number) -> Number:
    """The last `digits` digits, up to eight of a number below 10^8, with zeros in front."""
    store_word(address, (eight_digits(number) | _ZEROS) >> np.uint64(64 - 8 * digits))
    return address + digits


@compiled()
def date_digits(year: Number, month: Number, day: Number) -> Number:
    """The eight digits of a date whose parts may be zero, for `store_date`; the last four of a year."""
    return eight_digits(year % _E4 * _E4 + month * _HUNDRED + day) | _ZEROS


@compiled()
def store_date(digits: Number, address: Number) -> Number:
    """`YYYY-MM-DD`."""
    store_word(
        address,
        digits & np.uint64(0xFFFFFFFF)
        | (digits >> np.uint64(32) & np.uint64(0xFFFF)) << np.uint64(40)
        | np.uint64(0x2D00002D00000000),
    )
    store_word(address + 8, digits >> np.uint64(48))
    return address + 10


@compiled()
def store_clock(hours: Number, minutes: Number, seconds: Number, address: Number) -> Number:
    """`HH:MM:SS`, each below 100."""
    digits = eight_digits(hours * _E4 + minutes * _HUNDRED + seconds) | _ZEROS
    store_word(
        address,
        digits >> np.uint64(16) & np.uint64(0xFFFF)
        | (digits >> np.uint64(32) & np.uint64(0xFFFF)) << np.uint64(24)
        | (digits >> np.uint64(48)) << np.uint64(48)
        | np.uint64(0x00003A00003A0000),
    )
    return address + 8


@compiled()
def store_fraction(microseconds: Number, digits: Number, address: Number) -> Number:
    """A point and so many of six digits; nothing for none."""
    if digits <= 0:
        return address
    text = (eight_digits(microseconds) | _ZEROS) >> np.uint64(8) & ~np.uint64(0xFF) | np.uint64(0x2E)
    store_word(address, text)
    return address + 1 + digits

"""Compiled: numbers as decimal text, exactly.

`write_double` writes the shortest text that reads back as the same double, and of those the nearest: the
Schubfach method, over a table of powers of ten of 128 bits each that is made here with whole numbers. The
text looks as Python's `repr` does. `write_decimal128` writes what IEEE's decimals say of themselves, as
MongoDB's drivers do, with the digits and the exponent that were stored.

`write_double_key` and `write_decimal128_key` write another text: the same for equal numbers of any of the
four types, another one for others. MongoDB holds 1, 1.0 and Decimal128 1.00 for the same `_id`, and lets a
replacement change one into the other, while 0.1 and Decimal128 0.1 are two. So the value is written as whole
digits and an exponent wherever 34 digits are enough for it, which they are for every decimal; a double that
needs more is no decimal's equal and is written by its shortest text in a form of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.compiling import compiled
from penstock.sources.mongodb.memory_kernels import (
    Address,
    Number,
    copy,
    load_byte,
    load_uint64,
    multiply_high,
    store_byte,
)

_ZERO, _MINUS, _PLUS, _POINT, _SMALL_E, _LARGE_E = (ord(letter) for letter in "0-+.eE")
_POWER_MIN, _POWER_MAX = -292, 324
_ONE = np.uint64(1)
_LOW_32 = np.uint64(0xFFFFFFFF)
_SHIFT_32 = np.uint64(32)
_BILLION = np.uint64(10**9)
_FRACTION = np.uint64(2**52 - 1)
_HIDDEN = np.uint64(2**52)
_DECIMAL_BIAS = 6176
#: 10^34, above any coefficient of a Decimal128, as two halves.
_COEFFICIENT_HIGH, _COEFFICIENT_LOW = np.uint64(10**34 >> 64), np.uint64(10**34 & (2**64 - 1))
_NAN = np.frombuffer(b"NaN", np.uint8)
_INFINITY = np.frombuffer(b"Infinity", np.uint8)
_NUMBER_OPEN = np.frombuffer(b'{"$number":"', np.uint8)
_NUMBER_CLOSE = np.frombuffer(b'"}', np.uint8)
#: what a number is besides its digits
FINITE, INFINITE, NOT_A_NUMBER = 0, 1, 2


def _powers_of_ten() -> np.ndarray[Any, np.dtype[np.uint64]]:
    """10^k for each k, rounded up to 128 bits of which the first is set: upper and lower half."""
    table = np.empty((_POWER_MAX - _POWER_MIN + 1, 2), np.uint64)
    for power in range(_POWER_MIN, _POWER_MAX + 1):
        over, under = (10**power, 1) if power >= 0 else (1, 10**-power)
        shift = 128 - (over.bit_length() - under.bit_length())
        scaled = -(-(over << shift if shift >= 0 else over) // (under if shift >= 0 else under << -shift))
        while scaled.bit_length() > 128:
            shift -= 1
            scaled = -(-(over << shift if shift >= 0 else over) // (under if shift >= 0 else under << -shift))
        assert scaled.bit_length() == 128
        table[power - _POWER_MIN] = scaled >> 64, scaled & (2**64 - 1)
    return table


_POWERS = _powers_of_ten()


@compiled()
def write_digits(number: Number, out: Address, to: Number) -> Number:
    """An uint64 in decimal."""
    digits, rest = 1, number // np.uint64(10)
    while rest > np.uint64(0):
        digits, rest = digits + 1, rest // np.uint64(10)
    for index in range(digits):
        rest = number // np.uint64(10)
        store_byte(out + to + digits - 1 - index, _ZERO + np.int64(number - rest * np.uint64(10)))
        number = rest
    return to + digits


@compiled()
def write_integer(number: Number, out: Address, to: Number) -> Number:
    """An int64 in decimal."""
    if number < 0:
        store_byte(out + to, _MINUS)
        return write_digits(np.uint64(0) - np.uint64(number), out, to + 1)
    return write_digits(np.uint64(number), out, to)


@compiled()
def _round_to_odd(high: Number, low: Number, number: Number) -> Number:
    carried = multiply_high(low, number)
    middle = high * number
    upper = multiply_high(high, number)
    total = middle + carried
    if total < middle:
        upper += _ONE
    return upper | (_ONE if total > _ONE else np.uint64(0))


@compiled()
def shortest(bits: Number) -> tuple[Any, Any]:
    """Digits and exponent of ten of the shortest decimal for the finite, positive double of these bits."""
    fraction = bits & _FRACTION
    exponent = np.int64((bits >> np.uint64(52)) & np.uint64(0x7FF))
    if exponent != 0:
        mantissa, binary = fraction | _HIDDEN, exponent - 1075
        if -52 <= binary <= 0:
            whole = mantissa >> np.uint64(-binary)
            if whole << np.uint64(-binary) == mantissa:
                return whole, 0
    else:
        mantissa, binary = fraction, np.int64(-1074)
    odd = mantissa & _ONE
    closer = _ONE if fraction == np.uint64(0) and exponent > 1 else np.uint64(0)
    scaled = mantissa << np.uint64(2)
    # floor(log10(2^binary)), or of 3/4 of it where the neighbour below is nearer
    power = (binary * 1262611 - (524031 if closer else 0)) >> 22
    shift = np.uint64(binary + ((-power * 1741647) >> 19) + 1)
    high, low = _POWERS[-power - _POWER_MIN, 0], _POWERS[-power - _POWER_MIN, 1]
    lower = _round_to_odd(high, low, (scaled - np.uint64(2) + closer) << shift) + odd
    value = _round_to_odd(high, low, scaled << shift)
    upper = _round_to_odd(high, low, (scaled + np.uint64(2)) << shift) - odd
    digits = value >> np.uint64(2)
    if digits >= np.uint64(10):
        tenth = digits // np.uint64(10)
        below = lower <= np.uint64(40) * tenth
        above = np.uint64(40) * tenth + np.uint64(40) <= upper
        if below != above:
            return tenth + (_ONE if above else np.uint64(0)), power + 1
    below = lower <= np.uint64(4) * digits
    above = np.uint64(4) * digits + np.uint64(4) <= upper
    if below != above:
        return digits + (_ONE if above else np.uint64(0)), power
    middle = np.uint64(4) * digits + np.uint64(2)
    up = value > middle or (value == middle and (digits & _ONE) == _ONE)
    return digits + (_ONE if up else np.uint64(0)), power


@compiled()
def _write_text(text: Any, out: Address, to: Number) -> Number:
    copy(out + to, np.int64(text.ctypes.data), len(text))
    return to + len(text)


@compiled()
def _fill(letter: Number, count: Number, out: Address, to: Number) -> Number:
    for index in range(count):
        store_byte(out + to + index, letter)
    return to + max(count, 0)


@compiled()
def point_after(digits: Number, whole: Number, out: Address, to: Number) -> Number:
    """Make room for a point behind the first `whole` of `digits` digits that were written at `to`."""
    for index in range(digits - 1, whole - 1, -1):
        store_byte(out + to + index + 1, load_byte(out + to + index))
    store_byte(out + to + whole, _POINT)
    return to + digits + 1


@compiled()
def zeros_before(digits: Number, zeros: Number, out: Address, to: Number) -> Number:
    """Put `0.` and zeros before the digits that were written at `to`."""
    for index in range(digits - 1, -1, -1):
        store_byte(out + to + index + 2 + zeros, load_byte(out + to + index))
    store_byte(out + to, _ZERO)
    store_byte(out + to + 1, _POINT)
    _fill(_ZERO, zeros, out, to + 2)
    return to + 2 + zeros + digits


@compiled()
def write_double(bits: Number, out: Address, to: Number) -> Number:
    """The double of these bits, as `repr` has it; NaN and infinities as Extended JSON has them."""
    magnitude = bits & np.uint64(0x7FFFFFFFFFFFFFFF)
    if magnitude > np.uint64(0x7FF0000000000000):
        return _write_text(_NAN, out, to)
    if bits != magnitude:
        store_byte(out + to, _MINUS)
        to += 1
    if magnitude == np.uint64(0x7FF0000000000000):
        return _write_text(_INFINITY, out, to)
    if magnitude == np.uint64(0):
        return _finish_plain(_fill(_ZERO, 1, out, to), out)
    number, power = shortest(magnitude)
    while number % np.uint64(10) == np.uint64(0):
        number, power = number // np.uint64(10), power + 1
    end = write_digits(number, out, to)
    digits = end - to
    whole = digits + power
    if 0 < whole <= 16:
        if power >= 0:
            return _finish_plain(_fill(_ZERO, power, out, end), out)
        return point_after(digits, whole, out, to)
    if -4 < whole <= 0:
        return zeros_before(digits, -whole, out, to)
    if digits > 1:
        end = point_after(digits, 1, out, to)
    store_byte(out + end, _SMALL_E)
    store_byte(out + end + 1, _MINUS if whole < 1 else _PLUS)
    end += 2
    exponent = abs(whole - 1)
    if exponent < 10:
        store_byte(out + end, _ZERO)
        end += 1
    return write_digits(np.uint64(exponent), out, end)


@compiled()
def _finish_plain(to: Number, out: Address) -> Number:
    store_byte(out + to, _POINT)
    store_byte(out + to + 1, _ZERO)
    return to + 2


@compiled()
def parse_decimal128(at: Address) -> tuple[Any, Any, Any, Any, Any]:
    """What it is, whether it is negative, upper and lower half of the coefficient, exponent of ten."""
    low, high = load_uint64(at), load_uint64(at + 8)
    negative = high >> np.uint64(63) == _ONE
    marks = (high >> np.uint64(58)) & np.uint64(31)
    if marks >= np.uint64(30):
        what = INFINITE if marks == np.uint64(30) else NOT_A_NUMBER
        return what, negative, np.uint64(0), np.uint64(0), 0
    if marks >= np.uint64(24):  # a coefficient of 10^34 or more, which stands for 0
        exponent = np.int64((high >> np.uint64(47)) & np.uint64(0x3FFF)) - _DECIMAL_BIAS
        return FINITE, negative, np.uint64(0), np.uint64(0), exponent
    exponent = np.int64((high >> np.uint64(49)) & np.uint64(0x3FFF)) - _DECIMAL_BIAS
    high &= np.uint64(2**49 - 1)
    if _has_35_digits(high, low):
        high, low = np.uint64(0), np.uint64(0)
    return FINITE, negative, high, low, exponent


@compiled()
def _has_35_digits(high: Number, low: Number) -> bool:
    return bool(high > _COEFFICIENT_HIGH or (high == _COEFFICIENT_HIGH and low >= _COEFFICIENT_LOW))


@compiled()
def divide_billion(high: Number, low: Number) -> tuple[Any, Any, Any]:
    """Quotient, as two halves, and remainder of a number of 128 bits by 10^9."""
    rest = np.uint64(0)
    first = high >> _SHIFT_32
    quotient_3, rest = first // _BILLION, first % _BILLION
    part = (rest << _SHIFT_32) | (high & _LOW_32)
    quotient_2, rest = part // _BILLION, part % _BILLION
    part = (rest << _SHIFT_32) | (low >> _SHIFT_32)
    quotient_1, rest = part // _BILLION, part % _BILLION
    part = (rest << _SHIFT_32) | (low & _LOW_32)
    quotient_0, rest = part // _BILLION, part % _BILLION
    return (quotient_3 << _SHIFT_32) | quotient_2, (quotient_1 << _SHIFT_32) | quotient_0, rest


@compiled()
def _write_nine(number: Number, out: Address, to: Number) -> Number:
    for index in range(9):
        store_byte(out + to + 8 - index, _ZERO + np.int64(number % np.uint64(10)))
        number //= np.uint64(10)
    return to + 9


@compiled()
def write_digits_128(high: Number, low: Number, out: Address, to: Number) -> Number:
    if high == np.uint64(0):
        return write_digits(low, out, to)
    high, low, third = divide_billion(high, low)
    high, low, second = divide_billion(high, low)
    if high == np.uint64(0):
        to = write_digits(low, out, to)
    else:
        high, low, first = divide_billion(high, low)  # 2^128 / 10^27 is below 2^64
        to = _write_nine(first, out, write_digits(low, out, to))
    return _write_nine(third, out, _write_nine(second, out, to))


@compiled()
def write_decimal128(at: Address, out: Address, to: Number) -> Number:
    what, negative, high, low, power = parse_decimal128(at)
    if what == NOT_A_NUMBER:
        return _write_text(_NAN, out, to)
    if negative:
        store_byte(out + to, _MINUS)
        to += 1
    if what == INFINITE:
        return _write_text(_INFINITY, out, to)
    end = write_digits_128(high, low, out, to)
    digits = end - to
    whole = digits + power
    if power <= 0 and whole > -6:
        if power == 0:
            return end
        if whole > 0:
            return point_after(digits, whole, out, to)
        return zeros_before(digits, -whole, out, to)
    if digits > 1:
        end = point_after(digits, 1, out, to)
    store_byte(out + end, _LARGE_E)
    store_byte(out + end + 1, _MINUS if whole < 1 else _PLUS)
    return write_digits(np.uint64(abs(whole - 1)), out, end + 2)


@compiled()
def _without_zeros(high: Number, low: Number, power: Number) -> tuple[Any, Any, Any]:
    """The same number without zeros at its end."""
    while True:
        next_high, next_low = tenth(high, low)
        if next_low * np.uint64(10) != low:  # the lower halves tell: a remainder is below 10
            return high, low, power
        high, low, power = next_high, next_low, power + 1


@compiled()
def tenth(high: Number, low: Number) -> tuple[Any, Any]:
    """The quotient by ten, as two halves."""
    ten = np.uint64(10)
    first, rest = high // ten, high % ten
    part = (rest << _SHIFT_32) | (low >> _SHIFT_32)
    second, rest = part // ten, part % ten
    part = (rest << _SHIFT_32) | (low & _LOW_32)
    return first, (second << _SHIFT_32) | part // ten


@compiled()
def _double_parts(bits: Number) -> tuple[Any, Any, Any, Any]:
    """Whether 34 digits are enough for a double, finite and not 0; its digits (two halves) and exponent."""
    fraction = bits & _FRACTION
    exponent = np.int64((bits >> np.uint64(52)) & np.uint64(0x7FF))
    low = fraction | _HIDDEN if exponent != 0 else fraction
    binary = exponent - 1075 if exponent != 0 else np.int64(-1074)
    high, power = np.uint64(0), np.int64(0)
    while low & _ONE == np.uint64(0):
        low, binary = low >> _ONE, binary + 1
    while binary < 0:  # a factor of 1/2 is one of 5/10
        carried = multiply_high(low, np.uint64(5))
        high, low = high * np.uint64(5) + carried, low * np.uint64(5)
        binary, power = binary + 1, power - 1
        if _has_35_digits(high, low):
            return False, high, low, power
    while binary > 0 and low % np.uint64(5) == np.uint64(0):  # one of 5 and one of 2 are one of 10
        low, binary, power = low // np.uint64(5), binary - 1, power + 1
    while binary > 0:
        high, low = (high << _ONE) | (low >> np.uint64(63)), low << _ONE
        binary -= 1
        if _has_35_digits(high, low):
            return False, high, low, power
    return True, high, low, power


@compiled()
def _write_named(bits: Number, out: Address, to: Number) -> Number:
    """NaN, an infinity, or a double that has more than 34 digits."""
    to = write_double(bits, out, _write_text(_NUMBER_OPEN, out, to))
    return _write_text(_NUMBER_CLOSE, out, to)


@compiled()
def _write_value(
    negative: bool, high: Number, low: Number, power: Number, out: Address, to: Number
) -> Number:
    if high == np.uint64(0) and low == np.uint64(0):
        store_byte(out + to, _ZERO)
        return to + 1
    if negative:
        store_byte(out + to, _MINUS)
        to += 1
    high, low, power = _without_zeros(high, low, power)
    start, to = to, write_digits_128(high, low, out, to)
    if power == 0:
        return to
    if 0 < power <= 34 - (to - start):
        return _fill(_ZERO, power, out, to)
    store_byte(out + to, _LARGE_E)
    return write_integer(power, out, to + 1)


@compiled()
def write_double_key(bits: Number, out: Address, to: Number) -> Number:
    magnitude = bits & np.uint64(0x7FFFFFFFFFFFFFFF)
    if magnitude >= np.uint64(0x7FF0000000000000):
        return _write_named(bits, out, to)
    if magnitude == np.uint64(0):
        return _write_value(False, np.uint64(0), np.uint64(0), 0, out, to)
    exact, high, low, power = _double_parts(magnitude)
    if not exact:
        return _write_named(bits, out, to)
    return _write_value(bits != magnitude, high, low, power, out, to)


@compiled()
def write_decimal128_key(at: Address, out: Address, to: Number) -> Number:
    what, negative, high, low, power = parse_decimal128(at)
    if what == FINITE:
        return _write_value(negative, high, low, power, out, to)
    if what == NOT_A_NUMBER:
        return _write_named(np.uint64(0x7FF8000000000000), out, to)
    return _write_named(np.uint64(0xFFF0000000000000 if negative else 0x7FF0000000000000), out, to)

"""Compiled: doubles to the shortest text that reads back as the same number, laid out as Arrow does it.

The digits are those of Raffaele Giulietti's Schubfach ("The Schubfach way to render doubles", 2020). A double
is c × 2^q, and what rounds to it lies between the middles to its two neighbours. Scaled by the power of ten
that makes this interval at least 1 and less than 10 wide, it holds an integer, and at most one multiple of
ten per neighbour of the scaled number: that multiple is the shorter text, else the nearer integer is taken.
Products are with 128 bits of the power, rounded to odd, which is exact enough for every double and every
comparison that follows (proved there). About 30 ns a number; Arrow's own takes 60 to 75.

Between 10^-6 and 10^10 the text has no exponent.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.compiling import compiled
from penstock.word_kernels import load_word, multiply_high, store_digits, store_word, zeros_behind

Number: TypeAlias = Any  # a machine integer inside compiled code

#: bytes that a text takes at most, and room for stores beyond it
LONGEST = 26
_POWER_MIN, _POWER_MAX = -292, 324
_BIAS, _FRACTION_BITS = 1075, 52
_HIDDEN = np.uint64(1 << _FRACTION_BITS)
_FRACTION = np.uint64((1 << _FRACTION_BITS) - 1)
_ONE, _TWO, _FOUR, _TEN, _FORTY = (np.uint64(number) for number in (1, 2, 4, 10, 40))
_INFINITY = np.uint64(2047 << _FRACTION_BITS)
_SIGN_BIT, _EIGHT_BITS = np.uint64(1 << 63), np.uint64(8)
_ZEROS = np.uint64(0x3030303030303030)
_ZERO_POINT = np.uint64(0x3030303030302E30)  # 0.000000, the first in the lowest byte
_MINUS, _POINT, _ZERO, _EXPONENT, _PLUS = (np.uint64(ord(letter)) for letter in "-.0e+")
_INFINITE, _NOT_A_NUMBER = (np.uint64(int.from_bytes(word, "little")) for word in (b"inf", b"nan"))
_POINT_MIN, _POINT_MAX = -5, 10  # digits before the point, where there is no exponent


def _powers() -> npt.NDArray[np.uint64]:
    """10^e in 128 bits of which the highest is set, rounded up: upper half, lower half."""
    powers = np.empty((_POWER_MAX - _POWER_MIN + 1, 2), np.uint64)
    for number, exponent in enumerate(range(_POWER_MIN, _POWER_MAX + 1)):
        shift = 127 - (exponent * 1_741_647 >> 19)
        numerator, denominator = 10 ** max(exponent, 0), 10 ** max(-exponent, 0)
        if shift >= 0:
            numerator <<= shift
        else:
            denominator <<= -shift
        power = -(-numerator // denominator)
        assert power >> 127 == 1
        powers[number] = power >> 64, power & (2**64 - 1)
    return powers


_POWERS = _powers()


@compiled()
def _round_to_odd(high: Number, low: Number, number: Number) -> Number:
    carried = multiply_high(low, number)
    middle = high * number + carried
    upper = multiply_high(high, number) + np.uint64(middle < carried)
    return upper | np.uint64(middle > _ONE)


@compiled()
def shortest_decimal(bits: Number) -> tuple[Number, Number]:
    """A finite double that is not zero, without its sign: digits as a number, and its power of ten."""
    fraction, exponent = bits & _FRACTION, np.int64(bits >> np.uint64(_FRACTION_BITS)) & 2047
    if exponent != 0:
        c, q = fraction | _HIDDEN, exponent - _BIAS
        if -53 < q <= 0 and c & ((_ONE << np.uint64(-q)) - _ONE) == np.uint64(0):
            return c >> np.uint64(-q), np.int64(0)
    else:
        c, q = fraction, np.int64(1 - _BIAS)
    odd = c & _ONE  # the ends of the interval round to an even number only
    closer = fraction == np.uint64(0) and exponent > 1  # the next lower double is half as far away
    k = (q * 1_262_611 - (524_031 if closer else 0)) >> 22
    h = np.uint64(q + ((-k * 1_741_647) >> 19) + 1)
    high, low = _POWERS[-k - _POWER_MIN, 0], _POWERS[-k - _POWER_MIN, 1]
    four_c = c << _TWO
    lower = _round_to_odd(high, low, (four_c - _TWO + np.uint64(closer)) << h) + odd
    middle = _round_to_odd(high, low, four_c << h)
    upper = _round_to_odd(high, low, (four_c + _TWO) << h) - odd
    digits = middle >> _TWO
    if digits >= _TEN:
        tens = digits // _TEN
        below, above = lower <= tens * _FORTY, tens * _FORTY + _FORTY <= upper
        if below != above:
            return tens + np.uint64(above), k + 1
    below, above = lower <= digits << _TWO, (digits << _TWO) + _FOUR <= upper
    if below != above:
        return digits + np.uint64(above), k
    half = (digits << _TWO) + _TWO
    rounds_up = middle > half or (middle == half and digits & _ONE != np.uint64(0))
    return digits + np.uint64(rounds_up), k


@compiled()
def _put_point(address: Number) -> None:
    """Between digits, up to 16 of which stand at the address and move on."""
    first, second = load_word(address), load_word(address + 8)
    store_word(address, _POINT | first << _EIGHT_BITS)
    store_word(address + 8, first >> np.uint64(56) | second << _EIGHT_BITS)
    store_word(address + 16, second >> np.uint64(56))


@compiled()
def store_double(bits: Number, to: Number) -> Number:
    """The text of a double's bits, at an address; the address behind it."""
    magnitude = bits & ~_SIGN_BIT
    if magnitude > _INFINITY:
        store_word(to, _NOT_A_NUMBER)
        return to + 3
    store_word(to, _MINUS)  # a digit takes its place if there is none
    to += np.int64(bits != magnitude)
    if magnitude == np.uint64(0):
        store_word(to, _ZERO)
        return to + 1
    if magnitude == _INFINITY:
        store_word(to, _INFINITE)
        return to + 3
    digits, power = shortest_decimal(magnitude)
    zeros = zeros_behind(digits)
    begin, power = to, power + zeros
    end = store_digits(digits, to) - zeros
    count = end - begin
    point = count + power
    if point < _POINT_MIN or point > _POINT_MAX:
        if count > 1:
            _put_point(begin + 1)
            end += 1
        exponent = point - 1
        store_word(end, _EXPONENT | (_MINUS if exponent < 0 else _PLUS) << _EIGHT_BITS)
        return store_digits(np.uint64(abs(exponent)), end + 2)
    if point <= 0:
        first, second, third = load_word(begin), load_word(begin + 8), load_word(begin + 16)
        store_word(begin, _ZERO_POINT)
        moved = begin + 2 - point
        store_word(moved, first)
        store_word(moved + 8, second)
        store_word(moved + 16, third)
        return moved + count
    if power < 0:
        _put_point(begin + point)
        return end + 1
    store_word(end, _ZEROS)
    store_word(end + 8, _ZEROS)
    return end + power

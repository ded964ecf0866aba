"""SHA-256 (FIPS 180-4), compiled: the hash of each value of a column, without a call per row."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.compiling import compiled
from penstock.text_kernels import Bytes, Cells, Number, copy_bytes, length_of, value_of

BLOCK = 64
_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)


def _roots(count: int, power: int) -> npt.NDArray[np.uint32]:
    """The first 32 bits behind the point of the roots of the first primes, exactly."""
    primes = [n for n in range(2, 312) if all(n % d for d in range(2, int(n**0.5) + 1))][:count]
    return np.array([_root(prime << (32 * power), power) & 0xFFFFFFFF for prime in primes], np.uint32)


def _root(number: int, power: int) -> int:
    """The largest integer whose power is not above the number."""
    low, high = 0, 1 << (number.bit_length() // power + 1)
    while low < high - 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle**power <= number else (low, middle)
    return low


_INITIAL = _roots(8, 2)
_ROUNDS = _roots(64, 3)


@compiled()
def _rotated(word: Number, by: Number) -> Number:
    return np.uint32((word >> np.uint32(by)) | (word << np.uint32(32 - by)))


@compiled()
def digest(message: Bytes, size: Number) -> npt.NDArray[np.uint32]:
    """Of the first `size` bytes; behind them there is room for the padding, two blocks."""
    padded = (size + 8) // BLOCK * BLOCK + BLOCK
    message[size] = 0x80
    for index in range(size + 1, padded - 8):
        message[index] = 0
    for index in range(8):
        message[padded - 1 - index] = ((size * 8) >> (8 * index)) & 0xFF
    state, words = _INITIAL.copy(), np.empty(64, np.uint32)
    for start in range(0, padded, BLOCK):
        for index in range(16):
            at = start + 4 * index
            words[index] = (
                np.uint32(message[at]) << np.uint32(24)
                | np.uint32(message[at + 1]) << np.uint32(16)
                | np.uint32(message[at + 2]) << np.uint32(8)
                | np.uint32(message[at + 3])
            )
        for index in range(16, 64):
            early, late = words[index - 15], words[index - 2]
            first = _rotated(early, 7) ^ _rotated(early, 18) ^ (early >> np.uint32(3))
            second = _rotated(late, 17) ^ _rotated(late, 19) ^ (late >> np.uint32(10))
            words[index] = np.uint32(words[index - 16] + first + words[index - 7] + second)
        a, b, c, d, e, f, g, h = (
            state[0], state[1], state[2], state[3], state[4], state[5], state[6], state[7],
        )  # fmt: skip
        for index in range(64):
            mixed = _rotated(e, 6) ^ _rotated(e, 11) ^ _rotated(e, 25)
            chosen = (e & f) ^ (~e & g)
            one = np.uint32(h + mixed + chosen + _ROUNDS[index] + words[index])
            other = _rotated(a, 2) ^ _rotated(a, 13) ^ _rotated(a, 22)
            majority = (a & b) ^ (a & c) ^ (b & c)
            h, g, f, e = g, f, e, np.uint32(d + one)
            d, c, b, a = c, b, a, np.uint32(one + np.uint32(other + majority))
        state[0] += a
        state[1] += b
        state[2] += c
        state[3] += d
        state[4] += e
        state[5] += f
        state[6] += g
        state[7] += h
    return state


@compiled()
def write_hex(state: npt.NDArray[np.uint32], size: Number, out: Bytes, at: Number) -> Number:
    """The first `size` bytes in hexadecimal."""
    for index in range(size):
        byte = (state[index // 4] >> np.uint32(24 - 8 * (index % 4))) & np.uint32(0xFF)
        out[at], out[at + 1] = _DIGITS[byte >> 4], _DIGITS[byte & 15]
        at += 2
    return at


@compiled("(int64[:,::1], int64, uint8[::1])")
def hash_column(cells: Cells, count: int, salt: Bytes) -> tuple[Any, ...]:
    """The hashes of salt and value in hexadecimal, and where each ends; nulls are empty."""
    ends = np.empty(count + 1, np.int32)
    ends[0] = 0
    out, at = np.empty(64 * count, np.uint8), 0
    message = np.empty(1024, np.uint8)
    for row in range(count):
        length = length_of(cells, 0, row)
        if length >= 0:
            needed = len(salt) + length + 2 * BLOCK
            if needed > len(message):
                message = np.empty(2 * needed, np.uint8)
            size = copy_bytes(salt, message, 0)
            if length > 0:
                size = copy_bytes(value_of(cells, 0, row, length), message, size)
            at = write_hex(digest(message, size), 32, out, at)
        ends[row + 1] = at
    return ends, out[:at]

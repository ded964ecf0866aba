"""Compiled code that decides conditions: programs of tests, over columns of a batch.

A program is a list of tests. Each test looks at one value of the row and says where to go on: if it is true,
if it is false, if it is unknown; `ACCEPT` and `REJECT` end it. So the three values of logic are in the jumps,
and there is neither a stack nor a value in between.

A value is a pair. Of a number (whole numbers, days, microseconds, booleans, and floats mapped to whole
numbers in Postgres' order) it is the number and a length of 0; of a text, where it starts in the shared bytes
and its length. A length of -1 is null. Columns are rows of two matrices, and constants of a program are laid
out alike.

A test of a number costs about 5 ns, a search for `%text%` in 45 characters 60 ns; all runs without the GIL.
Signatures are explicit: arrays that must not be written are taken too, and nothing compiles at first use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from penstock.compiling import compiled

Number: TypeAlias = Any  # a machine integer inside compiled code
_Function = TypeVar("_Function", bound=Callable[..., Any])

ACCEPT, REJECT = -1, -2
#: What a test does: is the operand null, like a pattern; how does it compare with a constant, with another
#: operand; is it one of a sorted range of constants.
IS_NULL, IS_LIKE, COMPARE, COMPARE_OPERAND, IS_IN = range(5)
#: What is compared: numbers, bytes, or numerics in their digits.
NUMBERS, BYTES, DECIMALS = range(3)
#: Results of a comparison that make a test true, as bits.
LESS, EQUAL, GREATER = 1, 2, 4
#: Fields of a test. `ARGUMENT`: the bits above, or how many constants there are.
OPCODE, FORM, OPERAND, RIGHT, ARGUMENT, IF_TRUE, IF_FALSE, IF_UNKNOWN = range(8)
FIELDS = 8
#: Fields of a program: where its tests, constants and bytes are, and how many; its first test; is it one.
CODE_AT, CODE_LENGTH, CONSTANT_AT, CONSTANT_LENGTH, DATA_AT, DATA_LENGTH, ENTRY, IS_PROGRAM = range(8)
PROGRAM_FIELDS = 8
#: In a pattern, bytes that no text has: any text, any one character.
ANY_TEXT, ANY_CHARACTER = 0xFF, 0xFE

INSERTED, UPDATED, DELETED = 1, 2, 3
_ZERO, _POINT, _MINUS, _NAN, _INFINITY = (ord(letter) for letter in "0.-NI")


def readonly(kind: Any, dimensions: int = 1) -> Any:
    return types.Array(kind, dimensions, "C", readonly=True)


BYTES_IN_ARRAY, INTS, LENGTHS = readonly(types.uint8), readonly(types.int64), readonly(types.int32)
_CODE, _MATRIX, _LENGTH_MATRIX = readonly(types.int32, 2), readonly(types.int64, 2), readonly(types.int32, 2)
#: programs, their tests, constants with lengths and bytes
_PROGRAMS = (_MATRIX, _CODE, INTS, LENGTHS, BYTES_IN_ARRAY)
#: where an operand's row is; values, lengths, bytes
_FRAME = (LENGTHS, _MATRIX, _LENGTH_MATRIX, BYTES_IN_ARRAY)


def inlined(function: _Function) -> _Function:
    """A part of compiled functions; a call with all its arrays would cost more than most of them do."""
    return cast("_Function", numba.njit(nogil=True, forceinline=True)(function))


@inlined
def _compare_bytes(
    left: npt.NDArray[np.uint8], left_at: Number, left_length: Number,
    right: npt.NDArray[np.uint8], right_at: Number, right_length: Number,
) -> Number:  # fmt: skip
    for index in range(min(left_length, right_length)):
        before, after = left[left_at + index], right[right_at + index]
        if before != after:
            return -1 if before < after else 1
    return 0 if left_length == right_length else (-1 if left_length < right_length else 1)


@inlined
def _decimal_sign(text: npt.NDArray[np.uint8], at: Number, length: Number) -> Number:
    """-2 and 2 for the infinities, 3 for NaN, else the sign."""
    first = text[at]
    if first == _NAN:
        return 3
    negative = first == _MINUS
    if text[at + negative] == _INFINITY:
        return -2 if negative else 2
    for index in range(at + negative, at + length):
        if text[index] not in (_ZERO, _POINT):
            return -1 if negative else 1
    return 0


@inlined
def _compare_decimals(
    left: npt.NDArray[np.uint8], left_at: Number, left_length: Number,
    right: npt.NDArray[np.uint8], right_at: Number, right_length: Number,
) -> Number:  # fmt: skip
    """Numbers as Postgres prints them: no leading zeros but one before the point, no exponent."""
    sign, other = _decimal_sign(left, left_at, left_length), _decimal_sign(right, right_at, right_length)
    if sign != other:
        return -1 if sign < other else 1
    if sign not in (-1, 1):
        return 0
    left_end, right_end = left_at + left_length, right_at + right_length
    if sign < 0:
        left_at, right_at = left_at + 1, right_at + 1
    left_whole = right_whole = 0
    while left_at + left_whole < left_end and left[left_at + left_whole] != _POINT:
        left_whole += 1
    while right_at + right_whole < right_end and right[right_at + right_whole] != _POINT:
        right_whole += 1
    if left_whole != right_whole:
        return -sign if left_whole < right_whole else sign
    for index in range(max(left_end - left_at, right_end - right_at)):
        # The points are at the same place; what is not there is a zero of the fraction.
        before = left[left_at + index] if left_at + index < left_end else _ZERO
        after = right[right_at + index] if right_at + index < right_end else _ZERO
        if before != after and _POINT not in (before, after):
            return -sign if before < after else sign
    return 0


@inlined
def _next_character(text: npt.NDArray[np.uint8], at: Number, end: Number) -> Number:
    at += 1
    while at < end and (text[at] & 0xC0) == 0x80:
        at += 1
    return at


@inlined
def _is_like(
    text: npt.NDArray[np.uint8], at: Number, length: Number,
    pattern: npt.NDArray[np.uint8], pattern_at: Number, pattern_length: Number,
) -> bool:  # fmt: skip
    """Goes back to the newest `ANY_TEXT` only: what an earlier one took is never too little."""
    end, pattern_end = at + length, pattern_at + pattern_length
    retry_at, retry_pattern = -1, -1
    while True:
        if pattern_at < pattern_end and pattern[pattern_at] == ANY_TEXT:
            pattern_at += 1
            if pattern_at == pattern_end:
                return True
            retry_at, retry_pattern = at, pattern_at
            continue
        if at < end and pattern_at < pattern_end:
            wanted = pattern[pattern_at]
            if wanted == ANY_CHARACTER:
                at = _next_character(text, at, end)
                pattern_at += 1
                continue
            if wanted == text[at]:
                at += 1
                pattern_at += 1
                continue
        elif at == end and pattern_at == pattern_end:
            return True
        if retry_at < 0 or retry_at >= end:
            return False
        retry_at = _next_character(text, retry_at, end)
        pattern_at = retry_pattern
        wanted = pattern[pattern_at]
        if wanted < ANY_CHARACTER:  # a literal begins where a character does
            while retry_at < end and text[retry_at] != wanted:
                retry_at += 1
        at = retry_at


@inlined
def _order(
    form: Number, value: Number, length: Number, data: npt.NDArray[np.uint8],
    other: Number, other_length: Number, other_data: npt.NDArray[np.uint8],
) -> Number:  # fmt: skip
    """-1, 0 or 1."""
    if form == NUMBERS:
        return -1 if value < other else (0 if value == other else 1)
    if form == BYTES:
        return _compare_bytes(data, value, length, other_data, other, other_length)
    return _compare_decimals(data, value, length, other_data, other, other_length)


@inlined
def _is_among(
    form: Number, value: Number, length: Number, data: npt.NDArray[np.uint8],
    first: Number, end: Number, base: Number, constants: npt.NDArray[np.int64],
    constant_lengths: npt.NDArray[np.int32], constant_data: npt.NDArray[np.uint8],
) -> bool:  # fmt: skip
    while first < end:
        middle = (first + end) >> 1
        other, other_length = base + constants[middle], constant_lengths[middle]
        order = _order(form, value, length, data, other, other_length, constant_data)
        if order == 0:
            return True
        if order < 0:
            end = middle
        else:
            first = middle + 1
    return False


@inlined
def _run(  # noqa: PLR0912 - one pass; what it calls per row must not take arrays needlessly
    program: Number, programs: npt.NDArray[np.int64], code: npt.NDArray[np.int32],
    constants: npt.NDArray[np.int64], constant_lengths: npt.NDArray[np.int32],
    constant_data: npt.NDArray[np.uint8],
    place: npt.NDArray[np.int32], values: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32],
    data: npt.NDArray[np.uint8], images: npt.NDArray[np.int32], state: npt.NDArray[np.int32],
) -> None:  # fmt: skip
    """Leaves in `state` how the program ends for each image.

    A test goes on to tests before it only, so one pass from the last test to the first takes every image
    along: what is decided once per test is not decided once per row.
    """
    at, data_at = programs[program, CODE_AT], programs[program, DATA_AT]
    state[:] = programs[program, ENTRY]
    for number in range(programs[program, CODE_LENGTH] - 1, -1, -1):
        opcode, form, argument = (
            code[at + number, OPCODE],
            code[at + number, FORM],
            code[at + number, ARGUMENT],
        )
        if_true, if_false = code[at + number, IF_TRUE], code[at + number, IF_FALSE]
        if_unknown = code[at + number, IF_UNKNOWN]
        operand = place[code[at + number, OPERAND]]
        right, second = code[at + number, RIGHT], np.int32(0)
        other, other_length, base = np.int64(0), np.int32(0), np.int64(0)
        if form != NUMBERS:
            base = data_at
        if opcode == COMPARE_OPERAND:
            second = place[right]
        elif opcode != IS_NULL:
            right += programs[program, CONSTANT_AT]
            if opcode != IS_IN:
                other, other_length = base + constants[right], constant_lengths[right]
        for index in range(len(images)):
            if state[index] != number:
                continue
            image = images[index]
            value, length = values[operand, image], lengths[operand, image]
            if opcode == IS_NULL:
                state[index] = if_true if length < 0 else if_false
                continue
            if opcode == COMPARE_OPERAND:
                other, other_length = values[second, image], lengths[second, image]
            if length < 0 or other_length < 0:
                state[index] = if_unknown
                continue
            if opcode == IS_LIKE:
                holds = _is_like(data, value, length, constant_data, other, other_length)
            elif opcode == IS_IN:
                holds = _is_among(
                    form, value, length, data, right, right + argument, base,
                    constants, constant_lengths, constant_data,
                )  # fmt: skip
            elif form == NUMBERS:
                holds = argument & (LESS if value < other else EQUAL if value == other else GREATER) != 0
            else:
                if opcode == COMPARE_OPERAND:
                    order = _order(form, value, length, data, other, other_length, data)
                else:
                    order = _order(form, value, length, data, other, other_length, constant_data)
                holds = (argument >> (order + 1)) & 1 == 1
            state[index] = if_true if holds else if_false


@compiled(types.uint8[:, ::1](LENGTHS, LENGTHS, types.int64, *_PROGRAMS, *_FRAME))
def run_over_rows(
    chosen: npt.NDArray[np.int32], images: npt.NDArray[np.int32], rows: int,
    programs: npt.NDArray[np.int64], code: npt.NDArray[np.int32], constants: npt.NDArray[np.int64],
    constant_lengths: npt.NDArray[np.int32], constant_data: npt.NDArray[np.uint8],
    place: npt.NDArray[np.int32], values: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32],
    data: npt.NDArray[np.uint8],
) -> Any:  # fmt: skip
    """For each program and row what the change is for it, or 0. The old row's image is `rows` further on,
    and all new rows' images come first."""
    actions = np.zeros((len(chosen), rows), np.uint8)
    state = np.empty(len(images), np.int32)
    for index in range(len(chosen)):
        _run(
            chosen[index], programs, code, constants, constant_lengths, constant_data,
            place, values, lengths, data, images, state,
        )  # fmt: skip
        for number in range(len(images)):
            if state[number] != ACCEPT:
                continue
            image = images[number]
            if image < rows:
                actions[index, image] = INSERTED
            else:
                was = actions[index, image - rows]
                actions[index, image - rows] = UPDATED if was == INSERTED else DELETED
    return actions


@compiled(types.boolean[::1](LENGTHS, LENGTHS, *_PROGRAMS, *_FRAME))
def run_over_pairs(
    chosen: npt.NDArray[np.int32], images: npt.NDArray[np.int32],
    programs: npt.NDArray[np.int64], code: npt.NDArray[np.int32], constants: npt.NDArray[np.int64],
    constant_lengths: npt.NDArray[np.int32], constant_data: npt.NDArray[np.uint8],
    place: npt.NDArray[np.int32], values: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32],
    data: npt.NDArray[np.uint8],
) -> Any:  # fmt: skip
    """Whether each image is what the program beside it wants."""
    found = np.empty(len(chosen), np.bool_)
    state = np.empty(1, np.int32)
    for index in range(len(chosen)):
        _run(
            chosen[index], programs, code, constants, constant_lengths, constant_data,
            place, values, lengths, data, images[index : index + 1], state,
        )  # fmt: skip
        found[index] = state[0] == ACCEPT
    return found


@compiled(types.boolean[::1](LENGTHS, _MATRIX, _CODE, types.int64))
def operands_of(
    chosen: npt.NDArray[np.int32], programs: npt.NDArray[np.int64], code: npt.NDArray[np.int32], operands: int
) -> Any:
    """Which of the operands at least one of these programs looks at."""
    used = np.zeros(operands, np.bool_)
    for program in chosen:
        at = programs[program, CODE_AT]
        for step in range(at, at + programs[program, CODE_LENGTH]):
            used[code[step, OPERAND]] = True
            if code[step, OPCODE] == COMPARE_OPERAND:
                used[code[step, RIGHT]] = True
    return used


def warm_up() -> None:
    """Importing has compiled, or loaded, everything."""

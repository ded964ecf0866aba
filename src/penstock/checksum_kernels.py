"""Compiled: CRC-32 as zlib has it.

Where the processor multiplies without carries (PCLMULQDQ) 64 bytes are folded at a time: what they would
leave behind 64 bytes further on is a product with two constants, which is added to the bytes there. The last
16 bytes that remain, and what is behind them, are taken by tables, 16 bytes a turn; so is everything on
other processors. Measured: 7 GB/s for 8 KiB and 13 GB/s for 1 MiB by folding, 1.7 GB/s by tables.

The constants are x^n modulo the polynomial, bits reversed, with n the distance in bits, 32 more or less for
the two halves; from Intel's "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ".
"""

from __future__ import annotations

import zlib
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from penstock.compiling import compiled
from penstock.word_kernels import address_of, load_word, store_word

Bytes = npt.NDArray[np.uint8]
Number: TypeAlias = Any  # a machine integer inside compiled code

_VECTOR = ir.VectorType(ir.IntType(64), 2)
_BLOCK = 64
_FAR, _NEAR = (0x154442BD4, 0x1C6E41596), (0x1751997D0, 0x0CCAA009E)  # over 64 bytes, over 16
_FOLDS = "+pclmul" in str(cpu_target.target_context.codegen().magic_tuple()[-1])


def _crc_tables() -> npt.NDArray[np.uint32]:
    """Table t has what a byte does to the checksum when t more bytes follow it."""
    tables = np.zeros((16, 256), np.uint32)
    tables[0] = [zlib.crc32(bytes([value]), 0xFFFFFFFF) ^ 0xFFFFFFFF for value in range(256)]
    tables[0] ^= tables[0, 0]
    for number in range(1, 16):
        before = tables[number - 1]
        tables[number] = (before >> 8) ^ tables[0][before & 0xFF]
    return tables


_CRC = _crc_tables()


def _folding(constants: tuple[int, int], vectors: int) -> Any:
    """Move the sums at an address over the bytes at another, so many times 16 of both."""

    def typed(typing_context: Any, sums: Any, data: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = ir.FunctionType(_VECTOR, [_VECTOR, _VECTOR, ir.IntType(8)])
            multiply = builder.module.declare_intrinsic("llvm.x86.pclmulqdq", fnty=kind)
            sums, data = (builder.inttoptr(address, _VECTOR.as_pointer()) for address in arguments)
            factors = ir.Constant(_VECTOR, list(constants))
            for number in range(vectors):
                place = builder.gep(sums, [ir.IntType(64)(number)])
                held = builder.load(place, align=1)
                met = builder.load(builder.gep(data, [ir.IntType(64)(number)]), align=1)
                low, high = (
                    builder.call(multiply, [held, factors, ir.IntType(8)(half)]) for half in (0x00, 0x11)
                )
                builder.store(builder.xor(builder.xor(low, high), met), place, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return typed


# Numba's annotations say how these look to the compiler, not to compiled code.
_fold_block: Any = intrinsic(_folding(_FAR, 4))
_fold_one: Any = intrinsic(_folding(_NEAR, 1))


@compiled()
def _by_tables(buffer: Bytes, at: Number, end: Number, value: Number) -> Number:
    while at + 16 <= end:
        mixed = np.uint32(0)
        for index in range(4):
            low = np.uint8((value >> np.uint32(8 * index)) & np.uint32(0xFF))
            mixed ^= _CRC[15 - index, buffer[at + index] ^ low]
        for index in range(4, 16):
            mixed ^= _CRC[15 - index, buffer[at + index]]
        value = mixed
        at += 16
    while at < end:
        value = _CRC[0, np.uint8(value & np.uint32(0xFF)) ^ buffer[at]] ^ (value >> np.uint32(8))
        at += 1
    return value


def _folded(buffer: Bytes, start: Number, end: Number) -> Number:
    value, at = np.uint32(0xFFFFFFFF), start
    if end - at >= _BLOCK:
        sums = np.empty(_BLOCK, np.uint8)
        base, data = address_of(sums), address_of(buffer)
        for index in range(0, _BLOCK, 8):
            store_word(base + index, load_word(data + at + index))
        store_word(base, load_word(base) ^ np.uint64(0xFFFFFFFF))
        at += _BLOCK
        while at + _BLOCK <= end:
            _fold_block(base, data + at)
            at += _BLOCK
        for vector in range(3):
            # The sum of each 16 bytes is moved over the next 16, in whose place the new sum is.
            _fold_one(base + 16 * vector, base + 16 * vector + 16)
            store_word(base + 16 * vector + 16, load_word(base + 16 * vector))
            store_word(base + 16 * vector + 24, load_word(base + 16 * vector + 8))
        while at + 16 <= end:
            _fold_one(base + 48, data + at)
            at += 16
        value = _by_tables(sums, 48, 64, np.uint32(0))
    return np.int64(_by_tables(buffer, at, end, value) ^ np.uint32(0xFFFFFFFF))


@compiled()
def crc32_by_tables(buffer: Bytes, start: Number, end: Number) -> Number:
    return np.int64(_by_tables(buffer, start, end, np.uint32(0xFFFFFFFF)) ^ np.uint32(0xFFFFFFFF))


crc32 = compiled()(_folded) if _FOLDS else crc32_by_tables

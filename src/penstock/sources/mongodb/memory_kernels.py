"""Compiled reads and writes at addresses, little-endian, of any alignment.

They check nothing. Whoever reads has compared the position with the end of what it reads from; whoever
writes has room for the longest text there can be (`json_kernels.ROOM_PER_BYTE`).
"""

from __future__ import annotations

from typing import Any, TypeAlias

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

Address: TypeAlias = Any  # of a byte, as a machine integer inside compiled code
Number: TypeAlias = Any
_raw_memcpy: Any = cgutils.raw_memcpy


def _loader(loaded: Any, made: Any) -> Any:
    """Reads a value of the machine type `made`; in compiled code it is of the type `loaded`."""

    def load(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], made.as_pointer())
            value = builder.load(pointer, align=1)
            if made == ir.IntType(8):
                return builder.zext(value, ir.IntType(64))
            if made == ir.IntType(32):
                return builder.sext(value, ir.IntType(64))
            return value

        return loaded(types.int64), generate

    return intrinsic(load)


def _storer(given: Any, made: Any) -> Any:
    def store(typing_context: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value = arguments[1]
            if made.width < 64:
                value = builder.trunc(value, made)
            builder.store(value, builder.inttoptr(arguments[0], made.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, given), generate

    return intrinsic(store)


def _copy(typing_context: Any, target: Any, source: Any, size: Any) -> Any:
    """Copy `size` bytes between places that do not overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, source = (builder.inttoptr(address, cgutils.voidptr_t) for address in arguments[:2])
        _raw_memcpy(builder, target, source, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _multiply_high(typing_context: Any, left: Any, right: Any) -> Any:
    """The upper 64 bits of a product of two numbers without sign."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(argument, wide) for argument in arguments))
        return builder.trunc(builder.lshr(product, wide(64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


load_byte: Any = _loader(types.int64, ir.IntType(8))
load_int32: Any = _loader(types.int64, ir.IntType(32))
load_int64: Any = _loader(types.int64, ir.IntType(64))
load_uint64: Any = _loader(types.uint64, ir.IntType(64))
load_double: Any = _loader(types.float64, ir.DoubleType())
store_byte: Any = _storer(types.int64, ir.IntType(8))
copy: Any = intrinsic(_copy)
multiply_high: Any = intrinsic(_multiply_high)

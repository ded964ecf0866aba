"""Memory is used again when nobody holds it, and never before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.recycled_memory import RecycledMemory

pytestmark = pytest.mark.unit
MIB = 1 << 20


def test_what_nobody_holds_is_used_again() -> None:
    memory = RecycledMemory(8 * MIB)
    first = memory.take(MIB).ctypes.data
    assert memory.take(MIB).ctypes.data == first
    assert memory.take(MIB // 2 + 1).ctypes.data == first
    assert len(memory.take(2 * MIB)) == 2 * MIB


@pytest.mark.parametrize(
    "view",
    [
        lambda array: array[10:20],
        lambda array: array[:8].view(np.int32)[1:],
        lambda array: array.data[3:],
        lambda array: pa.py_buffer(array[5:9]),
        lambda array: pa.Array.from_buffers(pa.uint8(), 4, [None, pa.py_buffer(array[:4])]).slice(1),
        lambda array: pa.record_batch([pa.array(array[:16])], ["numbers"]),
    ],
)
def test_whatever_is_made_of_an_array_keeps_it(view: Any) -> None:
    memory = RecycledMemory(8 * MIB)
    array = memory.take(MIB)
    first = array.ctypes.data
    held = view(array)
    del array
    assert memory.take(MIB).ctypes.data != first
    del held
    both = [memory.take(MIB), memory.take(MIB)]
    assert first in {array.ctypes.data for array in both}


def test_no_more_is_kept_than_was_said() -> None:
    memory = RecycledMemory(4 * MIB)
    held = [memory.take(MIB) for _ in range(8)]
    assert len({array.ctypes.data for array in held}) == 8
    assert sum(map(len, memory._kept)) <= 4 * MIB
    del held
    memory.take(3 * MIB)
    assert sum(map(len, memory._kept)) <= 4 * MIB
    assert len(memory.take(64 * MIB)) == 64 * MIB
    assert sum(map(len, memory._kept)) <= 4 * MIB


@given(st.lists(st.tuples(st.integers(1, 5_000), st.integers(0, 8)), max_size=60))
def test_arrays_that_are_held_have_nothing_in_common(steps: list[tuple[int, int]]) -> None:
    memory = RecycledMemory(20_000)
    held: list[tuple[np.ndarray[Any, np.dtype[np.uint8]], int]] = []
    for number, (size, dropped) in enumerate(steps):
        array = memory.take(size)
        assert size <= len(array) <= 2 * size
        array[:] = number % 256
        held.append((array, number % 256))
        del array
        if dropped < len(held):
            del held[dropped]
        for other, value in held:
            assert (other == value).all()

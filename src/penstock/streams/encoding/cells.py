"""Arrow's texts as the compiled loops take them, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Cells: TypeAlias = npt.NDArray[np.int64]


def cells_of(columns: Sequence[pa.Array]) -> Cells:
    """Addresses of the columns' buffers: whoever uses them keeps the columns alive."""
    return np.array([_addresses(column) for column in columns], np.int64).reshape(len(columns), 4)


def _addresses(column: pa.Array) -> tuple[int, int, int, int]:
    assert column.type in (pa.string(), pa.binary())
    validity, offsets, values = column.buffers()
    return (
        values.address if values is not None else 0,
        offsets.address if offsets is not None else 0,
        validity.address if validity is not None else 0,
        column.offset,
    )


def packed(
    ends: npt.NDArray[np.int32],
    data: npt.NDArray[np.uint8],
    valid: npt.NDArray[np.bool_] | None = None,
    arrow: pa.DataType | None = None,
) -> pa.Array:
    """An array of what the compiled loops wrote: `ends` begins with 0."""
    assert len(data) < 1 << 31, "more than 2 GiB in one batch"
    validity = None
    if valid is not None and not valid.all():
        validity = pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [validity, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(arrow or pa.binary(), len(ends) - 1, buffers)


def is_valid(column: pa.Array) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return found

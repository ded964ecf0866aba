"""Arrow's texts as the compiled loops take them, and back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.text_kernels import Cells, addresses


def cells_of(columns: Sequence[pa.Array]) -> Cells:
    """Addresses of the columns' buffers: whoever uses them keeps the columns alive."""
    return np.array([addresses(column) for column in columns], np.int64).reshape(len(columns), 4)


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

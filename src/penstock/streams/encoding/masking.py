"""What is sent in place of values that nobody should see.

`sha256` is the hash of salt and text in hexadecimal: the same value gives the same hash, so rows can still be
joined, and a key still says which row it is. `redact` is `***`, `null` is null; a null stays one. A masked
column is text in every format, whatever its type was. Masks are put on before anything else looks at a row.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import ConfigError
from penstock.streams.encoding.cells import cells_of, is_valid, packed
from penstock.streams.encoding.sha256_kernels import hash_column
from penstock.streams.encoding.view import MaskKind, StreamView

REDACTED = "***"


def check_masks(view: StreamView) -> None:
    """A key that is redacted would be the same for all rows."""
    for column, kind in view.masks:
        if column in view.key and kind != "sha256":
            raise ConfigError(
                f"The column {column} is part of the key and cannot be masked by `{kind}`.",
                stream=str(view.stream),
                remedy="Mask it by `sha256`: equal keys stay equal.",
            )


def masked(column: pa.StringArray, kind: MaskKind, salt: bytes) -> pa.StringArray:
    if kind == "null":
        return pa.nulls(len(column), pa.string())
    if kind == "redact":
        return pc.if_else(
            column.is_valid(),
            pa.array([REDACTED] * len(column), pa.string()),
            pa.nulls(len(column), pa.string()),
        )
    ends, data = hash_column(cells_of([column]), len(column), np.frombuffer(salt, np.uint8).copy())
    return packed(ends, data, is_valid(column), pa.string())

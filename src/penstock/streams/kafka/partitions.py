"""Which partition a key belongs to: the same as for Java's and librdkafka's `murmur2` clients.

We choose it, from the number of partitions that is written down, and not the client library, which would
begin to use new partitions whenever it hears of them: a key's events would then be in two places.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.compiling import read_only
from penstock.streams.kafka.partition_kernels import hash_texts

Int32s = npt.NDArray[np.int32]
NO_KEY = -1


def partitions_of(keys: pa.Array, count: int) -> Int32s:
    """`NO_KEY` where the key is null: such events have no order, and go anywhere."""
    if not len(keys):
        return np.empty(0, np.int32)
    _, offsets, values = keys.buffers()
    ends = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    data = np.frombuffer(values, np.uint8) if values is not None and values.size else np.empty(0, np.uint8)
    # Positive as Java's client makes it: the sign is dropped, not the number negated.
    places = ((hash_texts(read_only(data), read_only(ends)) & 0x7FFFFFFF) % count).astype(np.int32)
    if keys.null_count:
        places[keys.is_null().to_numpy(zero_copy_only=False)] = NO_KEY
    return places


def warm_up() -> None:
    """Have it compiled."""
    partitions_of(pa.array([b"key"]), 1)

"""A batch of raw BSON documents, and each of them as JSON text.

Promise: every document of the batch has its text, or an error says which one is no BSON. The rule of the
text is in `json_kernels`. No Python object is made per document or value; compiled code runs without the
GIL.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.core.errors import SourceError
from penstock.sources.mongodb import bson_kernels, column_kernels, json_kernels
from penstock.text_kernels import Bytes, Indices, Ints

#: A reply of the server has at most 48 MB; the text of so much fits the 32-bit offsets of an Arrow column.
BATCH_BYTES_MAX = 64 * 1024 * 1024
_ID = np.frombuffer(b"_id", np.uint8)


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents in one buffer, perhaps with gaps: `starts` and `ends` are where each begins and ends."""

    raw: Bytes
    starts: Ints
    ends: Ints

    @property
    def rows(self) -> int:
        return len(self.starts)

    def part(self, first: int, last: int) -> Documents:
        return Documents(self.raw, self.starts[first:last], self.ends[first:last])


@dataclass(frozen=True, slots=True)
class Values:
    """A value per row: its BSON type (0: there is none), where it begins, where those of its document end."""

    raw: Bytes
    kinds: Bytes
    positions: Indices
    limits: Ints


def parse(raw: bytes | memoryview | Bytes) -> Documents:
    """The documents of a batch, as one buffer."""
    buffer = np.frombuffer(raw, np.uint8)
    if len(buffer) > BATCH_BYTES_MAX:
        raise SourceError(
            f"A batch of {len(buffer):,} bytes is larger than the server sends.",
            remedy="Ask for batches of at most 64 MiB.",
        )
    starts = bson_kernels.find_documents(buffer)
    if starts[-1] < 0:
        raise malformed(len(starts) - 2, bson_kernels.MALFORMED)
    return Documents(buffer, starts[:-1], starts[1:])


def malformed(row: int, outcome: int) -> SourceError:
    """Of which document nothing could be made, and why; never a value."""
    if outcome == bson_kernels.TOO_DEEP:
        what = f"Document {row} of a batch has more than {json_kernels.DEPTH_MAX} levels."
        return SourceError(what, remedy="Find it with its neighbours by `_id`, and flatten it at the source.")
    return SourceError(
        f"Document {row} of a batch is no valid BSON.",
        remedy="Run `validate` on the collection at the server; its data or the connection is damaged.",
    )


def json_texts(documents: Documents) -> pa.Array:
    """Each document as canonical Extended JSON."""
    text, offsets, (row, outcome) = json_kernels.write_documents(
        documents.raw, documents.starts, documents.ends
    )
    if row >= 0:
        raise malformed(row, outcome)
    return _strings(documents.rows, offsets, text)


def json_values(values: Values, *, as_key: bool = False) -> pa.Array:
    """Each value as JSON; null where there is none, and unless it is a key, where it is null."""
    text, offsets, (row, outcome) = json_kernels.write_values(
        values.raw, values.kinds, values.positions, values.limits, as_key
    )
    if row >= 0:
        raise malformed(row, outcome)
    validity, nulls = column_kernels.valid_bits(values.kinds, not as_key)
    return _strings(len(values.kinds), offsets, text, validity, nulls)


def find_ids(documents: Documents) -> Values:
    kinds, positions, row = column_kernels.find_field(documents.raw, documents.starts, documents.ends, _ID)
    if row >= 0:
        raise malformed(row, bson_kernels.MALFORMED)
    return Values(documents.raw, kinds, positions, documents.ends - 1)


def key_texts(documents: Documents) -> pa.Array:
    """The `_id` of each document: the same text for ids that MongoDB holds for equal, and for no others."""
    return json_values(find_ids(documents), as_key=True)


def _strings(
    rows: int, offsets: Indices, text: Bytes, validity: Bytes | None = None, nulls: int = 0
) -> pa.Array:
    bits = pa.py_buffer(validity) if nulls and validity is not None else None
    return pa.Array.from_buffers(
        pa.string(), rows, [bits, pa.py_buffer(offsets), pa.py_buffer(text)], null_count=nulls
    )

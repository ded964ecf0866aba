"""Rows that changed at the source right behind a comparison's position, where the log may be ahead of it.

A change stream of MongoDB has of an update the document as it is when the event is read, which may be a later
state than the event's (`Source.log_may_be_ahead`). So the log up to P may show of a key what the source has
for it only later, by the time that the log was read. That later state was made by a change behind P, and all
such changes were committed before a position Q that is noted when the log up to P is sealed. So every key of
which the log is ahead at P has a change in [P, Q). What differs in such a key is no difference: its row is
written whole by the log's next part. Every other key is in the log as it is at P, and is compared exactly.

Bounded: keys of the changes between P and Q, which are as many as the source makes while a log is sealed.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.position import Lsn
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId
from penstock.log import columns as log_columns
from penstock.log.reader import ChangeLog, read_rows
from penstock.sources.types import cast_text
from penstock.verify.canonical import Secret, hash_rows
from penstock.verify.sip_kernels import Hashes

Keys = tuple[Hashes, Hashes]
NOTHING: Keys = (np.zeros(0, np.uint64), np.zeros(0, np.uint64))


def moved_keys(
    log: ChangeLog, stream: StreamId, schema: TableSchema, after: Lsn, to: Lsn, secret: Secret
) -> Keys | None:
    """Hashes of the keys that changed in `[after, to)`; None: all did, the table was emptied or altered."""
    found = log.files(stream, after, to)
    if found.truncates or found.leaf_truncates or found.altered:
        return None
    names = [log_columns.stored_name(name) for name in schema.key]
    high, low = [NOTHING[0]], [NOTHING[1]]
    for rows in read_rows(found.files, after, to, [*names, log_columns.OLD]):
        old = rows.column(log_columns.OLD).combine_chunks()
        for texts in (
            [rows.column(name).combine_chunks() for name in names],
            [pc.struct_field(old, name) for name in names],
        ):
            keys = pa.table(texts, names=list(schema.key)).drop_null().combine_chunks()
            if keys.num_rows:
                values = [
                    cast_text(keys.column(name).combine_chunks(), schema.column(name)).values
                    for name in schema.key
                ]
                hashes = hash_rows(values, len(values), secret)
                high.append(hashes.key_high)
                low.append(hashes.key_low)
    return np.concatenate(high), np.concatenate(low)

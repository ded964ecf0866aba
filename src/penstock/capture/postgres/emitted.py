"""Messages that applications emit at the source (`pg_logical_emit_message`), as rows of the change log.

They are kept only if a lane asks for their prefixes, under the stream `core.stream.MESSAGES`, which no lane
sees that does not name it. A row has the message's place among the changes of its transaction: `_op_index` is
one below that of the change that follows it, since messages take no ordinal (correctness 35). Several may
stand before the same change; `number` counts the messages of a transaction that are kept.

One that was emitted outside a transaction has no commit. It is a transaction of its own: `_tx` is where its
record begins, `_xid` is 0, and `_commit_ts` is when the server sent it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.capture.log_reading import CapturedTable
from penstock.capture.postgres.marks import OWN_PREFIX
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import MESSAGES
from penstock.log import columns as log_columns
from penstock.sources.postgres.pgoutput import EmittedMessage

_COLUMNS = (
    ("prefix", 25, "text"),
    ("content", 17, "bytea"),
    ("transactional", 16, "bool"),
    ("number", 20, "int8"),
)
_TEXTS = {"int8": "bigint", "bool": "boolean"}

TABLE = CapturedTable(
    TableSchema(
        MESSAGES,
        tuple(
            SourceColumn(name, oid, -1, kind, _TEXTS.get(kind, kind), place, nullable=False)
            for place, (name, oid, kind) in enumerate(_COLUMNS, 1)
        ),
    ),
    MESSAGES,
)


class EmittedMessages:
    """Collects those of a batch. `prefixes` that end in `*` match more."""

    def __init__(self, prefixes: Sequence[str]) -> None:
        self._exact = frozenset(prefix for prefix in prefixes if not prefix.endswith("*"))
        self._beginnings = tuple(prefix[:-1] for prefix in prefixes if prefix.endswith("*"))
        self._rows: list[dict[str, object]] = []
        self._tx = self._number = -1

    def wants(self, prefix: str) -> bool:
        """Our own, by which positions are noted, are nobody's."""
        return prefix != OWN_PREFIX and (prefix in self._exact or prefix.startswith(self._beginnings))

    def add(self, message: EmittedMessage, tx: int, ordinal: int, xid: int, commit_ts_us: int) -> None:
        """`ordinal`: how many changes of its transaction precede it."""
        self._number = self._number + 1 if tx == self._tx else 0
        self._tx = tx
        self._rows.append(
            {
                "prefix": message.prefix,
                "content": f"\\x{message.content.hex()}",
                "transactional": "t" if message.transactional else "f",
                "number": str(self._number),
                log_columns.TX: tx,
                log_columns.OP_INDEX: 2 * ordinal - 1,
                log_columns.OP: "i",
                log_columns.XID: xid,
                log_columns.COMMIT_TS: commit_ts_us,
                log_columns.OLD_KIND: "n",
            }
        )

    def take(self, schema: pa.Schema) -> pa.RecordBatch | None:
        """Those since the last time, in their order; None if there are none."""
        if not self._rows:
            return None
        rows, self._rows = self._rows, []
        return pa.RecordBatch.from_pylist(rows, schema=schema)

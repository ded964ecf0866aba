"""What names an event among dead letters: stream and (tx, op, kind); of a loaded row, chunk and key.

A loaded row's number may be another one when its chunk is read again, so only one without a key goes by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from penstock.streams.events import Bytes, Events, Int64s

LetterName: TypeAlias = tuple[str, str, int, bytes]  # stream, chunk, tx, and the rest


@dataclass(frozen=True, slots=True)
class Names:
    """Of events whose values need not be kept."""

    stream: str
    chunk: str
    tx: Int64s
    op: Int64s
    kind: Bytes
    key: pa.BinaryArray | None

    def name(self, row: int) -> LetterName:
        key = None if self.key is None else self.key[row].as_py()
        rest = b"%d %c" % (int(self.op[row]), int(self.kind[row])) if key is None else b"key " + key
        return self.stream, self.chunk, int(self.tx[row]), rest


def names_of(events: Events) -> Names:
    tx = events.tx
    if len(tx) and (tx == tx[0]).all():
        tx = np.broadcast_to(tx[:1].copy(), len(tx))  # takes no room
    key = events.key if events.chunk else None
    return Names(str(events.stream), events.chunk, tx, events.op, events.kind, key)

"""Events: changes of one stream as they go to a target, encoded, in columns.

An event is named by (tx, op) of its change; of a key change the delete has the change's op and the insert the
one behind it. A tombstone has the name of its delete. Loaded rows have tx 0, the load's chunk in `chunk`, and
the row's number in the chunk as op. Events of one key stand in the order in which they must arrive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.position import Lsn
from penstock.core.stream import StreamId

CREATE, UPDATE, DELETE, READ, TRUNCATE, MESSAGE, TOMBSTONE = (ord(letter) for letter in "cudrtmn")

Int64s: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Events:
    """`route` is where they go, such as a topic. A null key: the row has none; a null value: a tombstone.

    `refused`: what the lane's format cannot say, by its number, with code and reason. Nobody sends it; its
    value is the change in our own JSON.
    """

    stream: StreamId
    route: str
    tx: Int64s
    op: Int64s
    kind: Bytes
    xid: Int64s
    key: pa.BinaryArray
    value: pa.BinaryArray
    chunk: str = ""  # of loaded rows: the chunk they are of
    refused: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    headers: Mapping[str, pa.StringArray] = field(default_factory=dict)  # by name; null: this event has none

    def __len__(self) -> int:
        return len(self.tx)

    @property
    def bytes(self) -> int:
        return int(self.key.nbytes + self.value.nbytes)

    def slice(self, start: int, stop: int) -> Events:
        refused = {row - start: why for row, why in self.refused.items() if start <= row < stop}
        return self._made_of(slice(start, stop), lambda column: column.slice(start, stop - start), refused)

    def take(self, rows: npt.NDArray[np.intp]) -> Events:
        chosen = pa.array(rows, pa.int64())
        refused = {}
        if self.refused:
            refused = {n: self.refused[row] for n, row in enumerate(rows.tolist()) if row in self.refused}
        return self._made_of(rows, lambda column: column.take(chosen), refused)

    def _made_of(self, rows: Any, part: Any, refused: Mapping[int, tuple[str, str]]) -> Events:
        return Events(
            self.stream,
            self.route,
            self.tx[rows],
            self.op[rows],
            self.kind[rows],
            self.xid[rows],
            part(self.key),
            part(self.value),
            self.chunk,
            refused,
            {name: part(column) for name, column in self.headers.items()},
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """What is up to `end` and was not in an earlier batch; without `is_last`, more up to there is to come.

    `loads` is what is known of loads once this batch is at the target: written with the position.
    """

    end: Lsn
    events: Sequence[Events]
    is_last: bool = True
    loads: Mapping[str, Any] | None = field(default=None, compare=False)

    def __len__(self) -> int:
        return sum(map(len, self.events))

    @property
    def bytes(self) -> int:
        return sum(events.bytes for events in self.events)

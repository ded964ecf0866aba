"""What the bytes of a stream's events depend on, beside the changes themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from penstock.core.stream import StreamId

MaskKind: TypeAlias = Literal["sha256", "redact", "null"]


@dataclass(frozen=True, slots=True)
class StreamView:
    """`columns` are those the stream holds, in order; `key` is the primary key in its index's order.

    Without a primary key `key` is empty, and events have none, or with `row_keys` a hash of the row. `prefix`
    is the lane's name for the server, `database` the source's name: Debezium's envelope says both.
    """

    stream: StreamId
    route: str
    columns: tuple[str, ...]
    key: tuple[str, ...] = ()
    masks: tuple[tuple[str, MaskKind], ...] = ()
    tombstones: bool = True
    before: bool = True
    row_keys: bool = False
    prefix: str = ""
    database: str = ""

"""Thread ids: the name under which a piece of work is committed at the destination.

Same work, same id, on every machine; other work, another id. A load id or a generation is part of
each and is renewed by every planned load, resync and rewind, so that an old id never makes recovery
skip new data (correctness 15). The readable front is for people, the hash decides.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence
from decimal import Decimal

from penstock.core.cursor import Cursors
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.ledger.state import Chunk

_READABLE_CHARACTERS_MAX = 48


def new_generation(origin: str = "") -> str:
    """A name for a table as of one load; it says from where the rows come (see `origin_of`)."""
    return f"{origin}/{uuid.uuid4().hex}" if origin else uuid.uuid4().hex


def origin_of(generation: str) -> str:
    """The source and slot that a generation was loaded from; empty if it does not say."""
    return generation.rpartition("/")[0]


def new_load_id() -> str:
    return uuid.uuid4().hex


def chunk_thread_id(stream: StreamId, load_id: str, chunk: Chunk) -> str:
    return _thread_id("load", stream, [load_id, chunk.leaf, chunk.min, chunk.max])


def cdc_thread_id(stream: StreamId, generation: str, start: Lsn) -> str:
    return _thread_id("cdc", stream, [generation, str(start)])


def incremental_thread_id(stream: StreamId, generation: str, start: Cursors, names: Sequence[str]) -> str:
    """`names` are all cursor columns; one without a value starts from the beginning."""
    parts: list[str | int | None] = [generation]
    for name in names:
        value = start.get(name)
        parts += [name, f"decimal {value}" if isinstance(value, Decimal) else value]
    return _thread_id("incremental", stream, parts)


def _thread_id(kind: str, stream: StreamId, parts: list[str | int | None]) -> str:
    # JSON keeps the parts apart, and 5 apart from "5".
    content = json.dumps([kind, stream.namespace, stream.name, *parts], separators=(",", ":"))
    digest = hashlib.sha256(content.encode()).hexdigest()[:32]
    readable = stream.file_name[:_READABLE_CHARACTERS_MAX]
    return f"{kind}-{readable}-{digest}"

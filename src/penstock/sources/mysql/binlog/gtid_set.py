"""Sets of global transaction ids as MySQL's protocol has them: `core.gtid` is what they are."""

from __future__ import annotations

import struct
import uuid

from penstock.core.gtid import GtidSet

_TAGGED = 1  # how the wire says that sources may have tags


def to_wire(gtids: GtidSet) -> bytes:
    """As COM_BINLOG_DUMP_GTID wants it, the last number of an interval excluded; the older form unless there
    are tags."""
    sources = list(gtids)
    tagged = any(tag for (_, tag), _ in sources)
    count = len(sources)
    parts = [struct.pack("<Q", (_TAGGED << 56) | (count << 8) | _TAGGED if tagged else count)]
    for (name, tag), intervals in sources:
        parts.append(uuid.UUID(name).bytes)
        if tagged:
            parts.append(bytes([len(tag) << 1]) + tag.encode())  # a length of one byte, as its varint
        parts.append(struct.pack("<Q", len(intervals)))
        parts += [struct.pack("<QQ", first, last + 1) for first, last in intervals]
    return b"".join(parts)

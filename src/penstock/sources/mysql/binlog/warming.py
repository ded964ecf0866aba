"""All compiled code that reading a binary log needs, ready before the first event waits for it."""

from __future__ import annotations

import numpy as np

from penstock.sources.absent_kernels import list_absent
from penstock.sources.mysql.binlog import column_kernels, json_kernels, unwrapping_kernels
from penstock.sources.mysql.binlog import table_map as types
from penstock.sources.mysql.binlog.events import Carry, Tables, scan
from penstock.sources.mysql.binlog.packet_kernels import CHECKSUM_NONE
from penstock.sources.mysql.binlog.packets import EventBatch, Framing
from penstock.sources.mysql.binlog.rows import RowLayout, decode_rows
from penstock.sources.mysql.binlog.table_map import Column, TableMap


def warm_up() -> None:
    """Half a minute the first time, less than a second when the machine code was kept."""
    Framing(CHECKSUM_NONE, 1).frame(np.zeros(1, np.uint8), 0)
    nothing = EventBatch.join([])
    found = scan(nothing, 0, 0, Carry(), Tables())
    kinds = (
        types.LONG, types.NEWDECIMAL, types.FLOAT, types.DOUBLE, types.DATE, types.DATETIME2,
        types.TIMESTAMP2, types.VARCHAR, types.BIT, types.JSON, types.VECTOR,
    )  # fmt: skip
    columns = tuple(Column(code, 4, 0, 4, True, unsigned=True, collation=0) for code in kinds)
    layout = RowLayout.of(TableMap("", "", columns), {0: "utf8mb4"})
    decode_rows(nothing, found.kind, found.row_at, found.present_at, layout)
    column_kernels.valid_bits(np.zeros(0, np.int32))
    list_absent(np.zeros((1, 0), np.int32), 0)
    json_kernels.lay_out_doubles(np.zeros(1, np.int64), nothing.buffer)
    unwrapping_kernels.find_wrapped(nothing.buffer, nothing.starts)
    unwrapping_kernels.join_events(nothing.buffer, nothing.starts, nothing.ends, 0, 0)
    unwrapping_kernels.cut_events(nothing.buffer, np.zeros(4, np.uint8))

"""A chunk's blocks joined to larger ones, for work whose cost is by the block and not by the row."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.core.schema import TableSchema
from penstock.core.where import Condition
from penstock.sources.base import ChunkReading
from penstock.sources.chunk import Block


@dataclass(frozen=True, slots=True)
class InPortions:
    """Reads what `reading` does, in blocks of at least so many bytes, but for the last."""

    reading: ChunkReading
    bytes_min: int

    def blocks(
        self,
        schema: TableSchema,
        where: Condition | None = None,
        *,
        outside: Condition | None = None,
        as_text: bool = False,
    ) -> Generator[Block]:
        waiting: list[Block] = []
        size = 0
        with closing(self.reading.blocks(schema, where, outside=outside, as_text=as_text)) as blocks:
            for block in blocks:
                waiting.append(block)
                size += sum(array.nbytes for array in block.values)
                if size >= self.bytes_min:
                    yield joined(waiting)
                    waiting, size = [], 0
        if waiting:
            yield joined(waiting)


def joined(blocks: Sequence[Block]) -> Block:
    if len(blocks) == 1:
        return blocks[0]
    values = [pa.concat_arrays(arrays) for arrays in zip(*(block.values for block in blocks), strict=True)]
    names = dict.fromkeys(name for block in blocks for name in block.bad or ())
    bad = {
        name: np.concatenate(
            [(block.bad or {}).get(name, np.zeros(block.rows, np.bool_)) for block in blocks]
        )
        for name in names
    }
    printed = [block.printed for block in blocks if block.printed is not None]

    def all_printed() -> pa.RecordBatch:
        return pa.concat_batches([each() for each in printed])

    is_printed = len(printed) == len(blocks)
    rows = sum(block.rows for block in blocks)
    return Block(rows, values, bad or None, all_printed if is_printed else None, blocks[-1].place)

"""A shape's rows as the JSON that clients get: which fields are asked for, and what is made of them.

Postgres sends texts, and compiled code writes the lines (`snapshot_kernels`): made by the query itself, out
of `to_json` and concatenation, they cost Postgres nearly three times as long as the texts alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from psycopg import sql

from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.rendering import row_line_kernels as kernels
from penstock.shapes.rendering.renderer import key_prefix
from penstock.shapes.shape import SnapshotPoint
from penstock.shapes.source.sql import condition_of, output_text, select, value_text
from penstock.sources.postgres.binary_values import text
from penstock.sources.postgres.copy_binary import CopyBlock


class Lines(NamedTuple):
    """Whole rows; `ends` says where each line ends, its newline included, and `key_ends` each key."""

    content: bytes
    ends: npt.NDArray[np.int64]
    keys: bytes
    key_ends: npt.NDArray[np.int64]


class RowLines:
    """The query for rows of a shape, and what its fields become.

    `headers` are further ones that all rows have, `row_headers` an expression that gives each row's own: both
    as JSON text that begins with a comma. Rows meet all `conditions`; None: the shape's own. `beside` names
    columns that are asked for and are no part of the lines.
    """

    def __init__(
        self,
        definition: ShapeDefinition,
        *,
        headers: str = "",
        row_headers: sql.Composable | None = None,
        conditions: Sequence[sql.Composable] | None = None,
        rest: sql.Composable | None = None,
        beside: Sequence[str] = (),
    ) -> None:
        card = definition.card
        fields = [value_text(card.column(name)) for name in definition.columns]
        key = []
        for name in definition.key or card.selectable:
            field = output_text(card.column(name))
            if field not in fields:
                fields.append(field)
            key.append(fields.index(field))
        if row_headers is not None:
            fields.append(row_headers)
        self._line_fields = len(fields)
        self._beside = tuple(beside)
        fields += [output_text(card.column(name)) for name in beside]
        self.fields = len(fields)
        self.query = select(
            card, fields, condition_of(definition) if conditions is None else conditions, rest
        )
        relation = _json([definition.table.namespace, definition.table.name])
        parts = [
            key_prefix(definition.table),
            '{"key":"',
            '","value":{',
            f'}},"headers":{{"operation":"insert","relation":{relation}{headers}',
            "}}\n",
            *(f"{',' if place else ''}{_json(name)}:" for place, name in enumerate(definition.columns)),
        ]
        encoded = [part.encode() for part in parts]
        self._columns = len(definition.columns)
        self._key = np.array(key, np.int64)
        self._text = np.frombuffer(b"".join(encoded), np.uint8).copy()  # compiled code wants it writable
        self._ends = np.cumsum([len(part) for part in encoded], dtype=np.int64)

    def render(self, block: CopyBlock) -> Lines:
        ends, lines, key_ends, keys = kernels.render_lines(
            block.raw, block.positions[: self._line_fields], self._columns, self._key, self._text, self._ends
        )
        return Lines(lines.tobytes(), ends, keys.tobytes(), key_ends)

    def texts_beside(self, block: CopyBlock) -> dict[str, pa.StringArray]:
        return {
            name: text(block.column(self._line_fields + place)) for place, name in enumerate(self._beside)
        }


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def snapshot_end(point: SnapshotPoint) -> bytes:
    """The message that closes a snapshot."""
    return b'{"headers":{"control":"snapshot-end",%s}}' % visibility(point)


def visibility(point: SnapshotPoint) -> bytes:
    """`xmin`, `xmax` and `xip_list` as members of a JSON object."""
    running = ",".join(f'"{xid}"' for xid in point.xip)
    return f'"xmin":"{point.xmin}","xmax":"{point.xmax}","xip_list":[{running}]'.encode()

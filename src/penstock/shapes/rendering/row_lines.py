"""A shape's rows as the JSON that clients get: which fields are asked for, and what is made of them.

Postgres sends texts, and compiled code writes the lines (`snapshot_kernels`): made by the query itself, out
of `to_json` and concatenation, they cost Postgres nearly three times as long as the texts alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from psycopg import sql

from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.rendering import row_line_kernels as kernels
from penstock.shapes.rendering.renderer import key_prefix
from penstock.shapes.shape import SnapshotPoint
from penstock.shapes.source.catalog import TableCard
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
        layout = _layout(card, definition.columns, definition.key)
        fields = [*layout.fields]
        if row_headers is not None:
            fields.append(row_headers)
        self._line_fields = len(fields)
        self._beside = tuple(beside)
        fields += [output_text(card.column(name)) for name in beside]
        self.fields = len(fields)
        self.query = select(
            card, fields, condition_of(definition) if conditions is None else conditions, rest
        )
        self._columns = len(definition.columns)
        self._key = layout.key
        parts = [*layout.parts]
        parts[kernels.TAIL] += headers.encode()
        self._text = np.frombuffer(b"".join(parts), np.uint8).copy()  # compiled code wants it writable
        self._ends = np.cumsum([len(part) for part in parts], dtype=np.int64)

    def render(self, block: CopyBlock) -> Lines:
        ends, lines, key_ends, keys = kernels.render_lines(
            block.raw, block.positions[: self._line_fields], self._columns, self._key, self._text, self._ends
        )
        return Lines(lines.tobytes(), ends, keys.tobytes(), key_ends)

    def texts_beside(self, block: CopyBlock) -> dict[str, pa.StringArray]:
        return {
            name: text(block.column(self._line_fields + place)) for place, name in enumerate(self._beside)
        }


class _Layout(NamedTuple):
    """What all shapes of a table with the same columns share: the fields that are asked for, those of them
    that make the key, and the constant parts of a line (`row_line_kernels`)."""

    fields: tuple[sql.Composable, ...]
    key: npt.NDArray[np.int64]
    parts: tuple[bytes, ...]


@lru_cache(maxsize=256)
def _layout(card: TableCard, columns: tuple[str, ...], key: tuple[str, ...]) -> _Layout:
    fields = [value_text(card.column(name)) for name in columns]
    key_fields = []
    for name in key or card.selectable:
        field = output_text(card.column(name))
        if field not in fields:
            fields.append(field)
        key_fields.append(fields.index(field))
    relation = _json([card.stream.namespace, card.stream.name])
    parts = [
        key_prefix(card.stream),
        '{"key":"',
        '","value":{',
        f'}},"headers":{{"operation":"insert","relation":{relation}',
        "}}\n",
        *(f"{',' if place else ''}{_json(name)}:" for place, name in enumerate(columns)),
    ]
    return _Layout(
        tuple(sql.SQL(field.as_string()) for field in fields),
        np.array(key_fields, np.int64),
        tuple(part.encode() for part in parts),
    )


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def snapshot_end(point: SnapshotPoint) -> bytes:
    """The message that closes a snapshot."""
    return b'{"headers":{"control":"snapshot-end",%s}}' % visibility(point)


def visibility(point: SnapshotPoint) -> bytes:
    """`xmin`, `xmax` and `xip_list` as members of a JSON object."""
    running = ",".join(f'"{xid}"' for xid in point.xip)
    return f'"xmin":"{point.xmin}","xmax":"{point.xmax}","xip_list":[{running}]'.encode()

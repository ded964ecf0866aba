"""Fields that documents show and their table has no column for: which of them get one, and of what form.

Promise: whatever documents bring, this is bounded, and what it finds can be a column of every table. Which
form a column has follows from the values that these documents have in its field, all of them, by the rules
of `fields`; a field that is null in all of them says nothing of its form, and waits for one that is not.

Names of fields may carry data, so that every document brings new ones: `NAMES_MAX` are looked at in a batch,
and no collection gets more columns than its pipeline lets it have. What finds no room stays in `_rest`, where
it is as exact as in a column.

No field becomes a column that a table could not have under its name: one of ours, one that is another's but
for its capitals, one that has a dot or a dollar sign, which the server and Iceberg would take for a path, or
one that is no text that can be printed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.sources.finding import COLUMNS_OF_OURS
from penstock.sources.mongodb import bson_kernels
from penstock.sources.mongodb import column_kernels as kernels
from penstock.sources.mongodb.documents import Documents, malformed
from penstock.sources.mongodb.fields import CELLS_MAX, Column, Form, decide_form, with_room
from penstock.sources.mongodb.names import Names
from penstock.text_kernels import Bytes, Ints

NAMES_MAX = 256
_BYTES_MAX = 255  # of a name; what is longer is data


def new_fields(
    documents: Documents, known: Sequence[str], room: int, taken: Collection[str] = ()
) -> tuple[Column, ...]:
    """At most `room` of them, in the order they come in. `known` are the table's columns, `taken` are names
    that tables have given to others."""
    scan = _Scan(known)
    scan.see(documents)
    refused = {name.casefold() for name in (*known, *taken, *COLUMNS_OF_OURS)}
    found: list[Column] = []
    for column in scan.columns():
        if len(found) < room and column.form is not Form.NOTHING and column.name.casefold() not in refused:
            found.append(replace(column, later=True))
            refused.add(column.name.casefold())
    return with_room(found)


class _Scan:
    """Names that are not known, and what kinds of values they have."""

    def __init__(self, known: Sequence[str]) -> None:
        self._lookup = Names(known)
        self._known = len(known)
        self._names: list[Bytes] = []
        self._seen: list[int] = []
        self._digits: list[Ints] = []

    def see(self, documents: Documents) -> None:
        rows_max = max(1, CELLS_MAX // (self._known + NAMES_MAX))
        for first in range(0, documents.rows, rows_max):
            part = documents.part(first, first + rows_max)
            self._survey(part, *self._locate(part, first))

    def columns(self) -> list[Column]:
        return [
            Column(text, *decide_form(seen, *digits))
            for name, seen, digits in zip(self._names, self._seen, self._digits, strict=True)
            if (text := _text(name)) is not None
        ]

    def _locate(self, part: Documents, first: int) -> tuple[Any, Any]:
        """Matrices (column, row), with a row for each name that may still come."""
        kinds = np.empty((self._known + NAMES_MAX, part.rows), np.uint8)
        positions = np.empty((self._known + NAMES_MAX, part.rows), np.int32)
        row, why = 0, kernels.NEW_NAME
        while why == kernels.NEW_NAME:
            is_full = len(self._names) == NAMES_MAX
            row, why, at, size = kernels.locate(
                part.raw, part.starts, part.ends, row, *self._lookup.arrays, is_full, kinds, positions
            )
            if why == kernels.BROKEN:
                raise malformed(first + row, bson_kernels.MALFORMED)
            if why == kernels.NEW_NAME:
                kinds[self._known + len(self._names), :row] = 0
                self._add(part.raw[at : at + size])
        return kinds, positions

    def _add(self, name: Bytes) -> None:
        self._lookup.add(name)
        self._names.append(name)
        self._seen.append(0)
        self._digits.append(np.zeros(2, np.int64))

    def _survey(self, part: Documents, kinds: Any, positions: Any) -> None:
        for number, digits in enumerate(self._digits):
            column = self._known + number
            self._seen[number] |= kernels.survey(part.raw, kinds[column], positions[column], digits)


def _text(name: Bytes) -> str | None:
    """None: no column can be called so."""
    if not 0 < len(name) <= _BYTES_MAX:
        return None
    try:
        text = name.tobytes().decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() and not {".", "$"} & set(text) else None

"""`BothSides`: the rows of the source and of a shape, by key, in a file; and in what they differ.

A row is its values in the order of the shape's columns: texts and nulls. A value that the shape's row does
not have, because its column is younger than the row, is `false`, which no value is: it is not compared.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any, TypeAlias

import orjson

from penstock.core.verify_report import ColumnDifference, Difference, DifferenceKind
from penstock.shapes.comparison.reading import Item
from penstock.shapes.comparison.visible import Visible
from penstock.shapes.definition import ShapeDefinition

_PAGES_KIB = 64 << 10
_OPENING = f"""
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA cache_size = -{_PAGES_KIB};
CREATE TABLE sides (key TEXT PRIMARY KEY, source BLOB, shape BLOB) WITHOUT ROWID;
BEGIN;
"""
_PUT_SOURCE = "INSERT INTO sides (key, source) VALUES (?, ?) ON CONFLICT (key) DO NOTHING"
_PUT_SHAPE = """
INSERT INTO sides (key, shape) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET shape = excluded.shape
"""
_KINDS: tuple[DifferenceKind, ...] = ("missing", "extra", "different")
_ABSENT = False
_SPELLED = {"t": "true", "f": "false"}
Value: TypeAlias = str | bool | None


class BothSides:
    def __init__(self, path: Path, definition: ShapeDefinition) -> None:
        self._columns = definition.columns
        self._key = definition.key
        self._booleans = frozenset(
            name for name in definition.columns if definition.card.column(name).source.type_name == "bool"
        )
        self._file = sqlite3.connect(path, isolation_level=None)
        self._file.executescript(_OPENING)

    def close(self) -> None:
        self._file.close()

    def put_source(self, items: Sequence[Item]) -> None:
        """Rows of the SELECT. Without a key, rows that are equal in all columns are one, as for clients."""
        self._file.executemany(_PUT_SOURCE, [(item["key"], self._row(item["value"])) for item in items])

    def put_first_rows(self, items: Sequence[Item]) -> None:
        rows = [(item["key"], self._row(item["value"])) for item in items if "key" in item]
        self._file.executemany(_PUT_SHAPE, rows)

    def apply(self, items: Sequence[Item], visible: Visible) -> None:
        """Changes as a client applies them, those that the snapshot shows."""
        for item in items:
            headers = item["headers"]
            operation = headers.get("operation")
            if operation is None or not visible.shows(int(headers["lsn"]), headers["txids"]):
                continue
            self._change(item)

    def counted(self) -> tuple[int, int]:
        """Rows of the source, and of the shape."""
        source, shape = self._file.execute("SELECT count(source), count(shape) FROM sides").fetchone()
        return source, shape

    def differences(self, limit: int, *, show_values: bool) -> Found:
        """Values are told where they are asked for; keys always, as which rows differ."""
        found = Found(limit)
        query = "SELECT key, source, shape FROM sides WHERE source IS NOT shape"
        for key, source, shape in self._file.execute(query):
            difference = self._difference(key, source, shape, found, show_values=show_values)
            if difference is not None:
                found.add(difference)
        return found

    def _difference(
        self, key: str, source: bytes | None, shape: bytes | None, found: Found, *, show_values: bool
    ) -> Difference | None:
        """Of a row that is not the same on both sides; None if only columns differ that are not compared."""
        if source is None or shape is None:
            (there,) = (each for each in (source, shape) if each is not None)
            kind: DifferenceKind = "extra" if source is None else "missing"
            return Difference(kind, self._named(key, _values(there)))
        row = _values(source)
        columns = []
        for name, expected, held in zip(self._columns, row, _values(shape), strict=True):
            if isinstance(held, bool):
                found.not_compared.add(name)
            elif held != expected and not isinstance(expected, bool):
                values = (expected, held) if show_values else ()
                columns.append(ColumnDifference(name, *values))
        return Difference("different", self._named(key, row), tuple(columns)) if columns else None

    def _change(self, item: Item) -> bool:
        """Whether the row is there then."""
        key, operation = item["key"], item["headers"]["operation"]
        if operation == "delete":
            self._remove(key)
            return False
        value = item["value"]
        if operation == "update":
            known = self._file.execute("SELECT shape FROM sides WHERE key = ?", (key,)).fetchone()
            if known is None or known[0] is None:
                return False  # a client can make no row of it
            value = {**dict(zip(self._columns, _values(known[0]), strict=True)), **value}
        self._file.execute(_PUT_SHAPE, (key, self._row(value)))
        return True

    def _remove(self, key: str) -> None:
        self._file.execute("UPDATE sides SET shape = NULL WHERE key = ?", (key,))

    def _row(self, value: dict[str, Any]) -> bytes:
        texts: list[Value] = [value.get(name, _ABSENT) for name in self._columns]
        for place, name in enumerate(self._columns):
            if name in self._booleans:
                text = texts[place]
                texts[place] = _SPELLED.get(text, text) if isinstance(text, str) else text
        return orjson.dumps(texts)

    def _named(self, key: str, row: Sequence[Value]) -> dict[str, str | None]:
        """Without a key it is all values that name a row, and those are not shown: a mark stands for them."""
        if not self._key:
            return {"row": hashlib.sha256(key.encode()).hexdigest()[:16]}
        values = dict(zip(self._columns, row, strict=True))
        return {name: _text(values[name]) for name in self._key}


class Found:
    """What differs: all of it counted, the first of each kind by name."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.counts: Counter[DifferenceKind] = Counter()
        self.columns: Counter[str] = Counter()
        self.not_compared: set[str] = set()
        self._told: dict[DifferenceKind, list[Difference]] = {kind: [] for kind in _KINDS}

    def add(self, difference: Difference) -> None:
        kind = difference.kind
        self.counts[kind] += 1
        self.columns.update(column.name for column in difference.columns)
        if len(self._told[kind]) < self._limit:
            self._told[kind].append(difference)

    def told(self) -> tuple[Difference, ...]:
        """Some of each kind, as many as the limit allows."""
        mixed: Iterator[Difference | None] = chain.from_iterable(zip_longest(*self._told.values()))
        chosen = list(islice((each for each in mixed if each is not None), self._limit))
        return tuple(sorted(chosen, key=lambda each: _KINDS.index(each.kind)))


def _values(row: bytes) -> list[Value]:
    values: list[Value] = orjson.loads(row)
    return values


def _text(value: Value) -> str | None:
    return value if isinstance(value, str) else None

"""`TaggedSides`: the rows of a shape with subqueries as its clients keep them, beside those of its SELECT.

Clients know of each row its tags and active positions, and events move rows by them (`subquery.tags`). So
each row's slots are beside it here, and by slot the keys that had it at any time, of which those count whose
row has it still.

Rows that differ while they are pending (`pending`) are left open and judged with the next look; what differs
and is not pending differs for good. A row that was equal once is not looked at again: it does not differ
lastingly.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from penstock.shapes.comparison.held import BothSides, Found
from penstock.shapes.comparison.reading import Item
from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.subquery.members import form_of
from penstock.shapes.subquery.tags import slots_of

_TABLES = """
CREATE TABLE tags (key TEXT PRIMARY KEY, slots TEXT, active TEXT) WITHOUT ROWID;
CREATE TABLE slotted (position INTEGER, slot TEXT, key TEXT, PRIMARY KEY (position, slot, key)) WITHOUT ROWID;
CREATE TABLE pending (key TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE open (key TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE still_open (key TEXT PRIMARY KEY) WITHOUT ROWID;
"""
_PUT_TAGS = "INSERT OR REPLACE INTO tags (key, slots, active) VALUES (?, ?, ?)"
_PUT_SLOTTED = "INSERT OR IGNORE INTO slotted (position, slot, key) VALUES (?, ?, ?)"
_SLOTTED = """
SELECT t.key, t.slots, t.active FROM slotted AS h JOIN tags AS t ON t.key = h.key
WHERE h.position = ? AND h.slot = ?
"""
_DIFFERING = """
SELECT s.key, s.source, s.shape, EXISTS (SELECT 1 FROM pending AS p WHERE p.key = s.key) FROM sides AS s
WHERE s.source IS NOT s.shape
"""


class TaggedSides(BothSides):
    """`begin`, the rows of both sides, `judge`: as often as rows are left open."""

    def __init__(self, path: Path, definition: ShapeDefinition, limit: int) -> None:
        super().__init__(path, definition)
        form = form_of(definition)
        assert form is not None, "it has subqueries"
        self._form = form
        self._asked = sorted(position for each in form.subqueries.values() for position in each)
        self._file.executescript(_TABLES)
        self._is_first = True
        self.found = Found(limit)
        self.open = 0  # rows that are not judged yet

    def begin(self) -> None:
        for table in ("sides", "tags", "slotted", "pending"):
            self._file.execute(f"DELETE FROM {table}")

    def put_rows(self, items: Sequence[Item]) -> None:
        """What the source has of `pending.rows_to_judge`."""
        self.put_source([item for item in items if item["headers"]["inside"]])
        keys = [(item["key"],) for item in items if item["headers"]["pending"]]
        self._file.executemany("INSERT OR IGNORE INTO pending (key) VALUES (?)", keys)

    def put_first_rows(self, items: Sequence[Item]) -> None:
        super().put_first_rows(items)
        self._put_tags([item for item in items if "key" in item])

    def take(self, items: Sequence[Item]) -> None:
        """Changes and events, as a client takes them."""
        for item in items:
            headers = item["headers"]
            if "event" in headers:
                self._move(headers)
            elif "operation" in headers and self._change(item):
                self._put_tags([item])

    def _put_tags(self, items: Sequence[Item]) -> None:
        slots = [slots_of(item["headers"]["tags"]) for item in items]
        self._file.executemany(
            _PUT_TAGS,
            [
                (item["key"], orjson.dumps(own).decode(), _told(item["headers"]["active_conditions"]))
                for item, own in zip(items, slots, strict=True)
            ],
        )
        self._file.executemany(
            _PUT_SLOTTED,
            [
                (position, own[position], item["key"])
                for item, own in zip(items, slots, strict=True)
                for position in self._asked
            ],
        )

    def _move(self, headers: dict[str, Any]) -> None:
        """An event: of these patterns the positions are active from now on, or they are not."""
        is_active = headers["event"] == "move-in"
        touched: dict[str, list[bool]] = {}
        for pattern in headers["patterns"]:
            position, slot = pattern["pos"], pattern["value"]
            for key, slots, told in self._file.execute(_SLOTTED, (position, slot)):
                if orjson.loads(slots)[position] == slot:  # it has it still
                    touched.setdefault(key, [letter == "t" for letter in told])[position] = is_active
        for key, active in touched.items():
            if is_active or self._form.holds(active):
                self._file.execute("UPDATE tags SET active = ? WHERE key = ?", (_told(active), key))
            else:
                self._remove(key)

    def _remove(self, key: str) -> None:
        super()._remove(key)
        self._file.execute("DELETE FROM tags WHERE key = ?", (key,))

    def judge(self, *, show_values: bool) -> None:
        """Of the rows that were open: those that differ are told, or are open again."""
        query = _DIFFERING if self._is_first else f"{_DIFFERING} AND s.key IN (SELECT key FROM open)"
        self.open, self._is_first = 0, False
        for key, source, shape, is_pending in self._file.execute(query):
            difference = self._difference(key, source, shape, self.found, show_values=show_values)
            if difference is None:
                continue
            if is_pending:
                self._file.execute("INSERT INTO still_open (key) VALUES (?)", (key,))
                self.open += 1
            else:
                self.found.add(difference)
        self._file.execute("DELETE FROM open")
        self._file.execute("INSERT INTO open SELECT key FROM still_open")
        self._file.execute("DELETE FROM still_open")


def _told(active: Sequence[bool]) -> str:
    return "".join("t" if each else "f" for each in active)

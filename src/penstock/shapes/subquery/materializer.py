"""`Materializer`: the values that an inner shape selects, kept as its rows change.

An inner shape without subqueries tells by each change which value goes and which comes: counts are enough.
One with subqueries also has rows that come and go by events, which name no rows; so of such a shape each row
is kept (`RowSet`), as its clients do, with the value it selects.

A materializer begins with what the shape's snapshot and log have, which is read elsewhere; what changes
meanwhile waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import orjson

from penstock.core.offset import LogOffset
from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.engine.consumer import RoutedRows
from penstock.shapes.rendering.renderer import DELETE, INSERT
from penstock.shapes.subquery.normal_form import NormalForm
from penstock.shapes.subquery.tags import Slots, slots_of
from penstock.shapes.subquery.values import Counts, Value, ValueSet, added

if TYPE_CHECKING:
    from penstock.shapes.shape import Shape
    from penstock.shapes.storage import ShapeStorage
    from penstock.shapes.subquery.outer import OuterShape

_BOOLEANS = {"true": "t", "false": "f"}  # first answers say it in words, the log in letters
_LAST_OPERATION = 1 << 60
_KEPT_MAX = 1_000_000  # rows of an inner shape with subqueries: about 1 GiB
_READ_MAX = 4_000_000  # rows of another one, while its values are read
State = Literal["waiting", "reading", "ready"]


class TooManyRowsError(Exception):
    """An inner shape has more of them than are kept in memory."""


class RowSet:
    """The rows of a shape with subqueries, as a client keeps them; `changes` of values since `take`."""

    def __init__(self, form: NormalForm) -> None:
        self._form = form
        self._rows: dict[bytes, tuple[Value, Slots, list[bool]]] = {}
        self._having: dict[tuple[int, str], set[bytes]] = {}
        self._changes: Counts = {}

    def __len__(self) -> int:
        return len(self._rows)

    def value(self, key: bytes) -> Value | None:
        found = self._rows.get(key)
        return None if found is None else found[0]

    def put(self, key: bytes, value: Value, slots: Slots, active: Sequence[bool]) -> None:
        """A row that is in the shape from now on, or is another from now on."""
        self.remove(key)
        if len(self._rows) >= _KEPT_MAX:
            raise TooManyRowsError
        self._rows[key] = value, slots, list(active)
        for pattern in enumerate(slots):
            self._having.setdefault(pattern, set()).add(key)
        added(self._changes, value, 1)

    def remove(self, key: bytes) -> None:
        found = self._rows.pop(key, None)
        if found is None:
            return
        for pattern in enumerate(found[1]):
            keys = self._having[pattern]
            keys.discard(key)
            if not keys:
                del self._having[pattern]
        added(self._changes, found[0], -1)

    def move(self, patterns: Sequence[tuple[int, str]], *, active: bool) -> None:
        """An event."""
        touched: set[bytes] = set()
        for pattern in patterns:
            for key in self._having.get(pattern, ()):
                self._rows[key][2][pattern[0]] = active
                touched.add(key)
        if not active:
            for key in touched:
                if not self._form.holds(self._rows[key][2]):
                    self.remove(key)

    def take(self) -> Counts:
        changes, self._changes = self._changes, {}
        return changes


class Materializer:
    """Of one inner shape, for those who select `columns` of it. Belongs to the engine's thread."""

    def __init__(self, shape: Shape, columns: tuple[str, ...], form: NormalForm | None) -> None:
        self.shape = shape
        self.columns = columns
        self.form = form  # of the inner shape's own condition, if it has subqueries
        self.rows = None if form is None else RowSet(form)
        self.values = ValueSet()
        self.dependents: list[tuple[OuterShape, int]] = []
        self.state: State = "waiting"
        self.loaded: Future[None] = Future()
        self._meanwhile: list[Callable[[], None]] = []

    def changes(self, routed: RoutedRows) -> Iterator[tuple[int, int, Counts]]:
        """By transaction: its id, and what it does to the values; of a shape without subqueries."""
        changes, rows, actions = routed.changes, routed.rows, routed.actions
        taken = np.asarray(rows)
        new = list(zip(*(changes.new(name).take(taken).to_pylist() for name in self.columns), strict=True))
        old = list(zip(*(changes.old(name).take(taken).to_pylist() for name in self.columns), strict=True))
        tx, xid = changes.tx[rows].tolist(), changes.xid[rows].tolist()
        start = 0
        while start < len(tx):
            found: Counts = {}
            at = start
            while at < len(tx) and tx[at] == tx[start]:
                if actions[at] != INSERT:
                    added(found, old[at], -1)
                if actions[at] != DELETE:
                    added(found, new[at], 1)
                at += 1
            if found:
                yield tx[start], xid[start], found
            start = at

    def do(self, call: Callable[[], None]) -> None:
        """At once, or when what was there before is known."""
        if self.state == "ready":
            call()
        elif self.state == "reading":
            self._meanwhile.append(call)

    def put(self, key: bytes, value: Value, slots: Slots, active: Sequence[bool]) -> None:
        """Of a shape with subqueries: it has got this row, or it is another now."""
        self.do(lambda: self._kept_rows.put(key, value, slots, active))

    def remove(self, key: bytes) -> None:
        self.do(lambda: self._kept_rows.remove(key))

    def move(self, patterns: Sequence[tuple[int, str]], *, active: bool) -> None:
        self.do(lambda: self._kept_rows.move(patterns, active=active))

    def take(self) -> Counts:
        """What became of the values since; nothing before it is ready."""
        return self.rows.take() if self.state == "ready" and self.rows is not None else {}

    @property
    def _kept_rows(self) -> RowSet:
        assert self.rows is not None, "of a shape without subqueries no rows are kept"
        return self.rows

    def begin_reading(self) -> LogOffset:
        """From now on what changes is kept; up to where the log is to be read."""
        self.state = "reading"
        return self.shape.storage.last_seen_txn_offset

    def become_ready(self, found: Counts | RowSet) -> None:
        if isinstance(found, RowSet):
            self.rows = found
            self.values.apply(found.take())
        else:
            self.values.apply(found)
        self.state = "ready"
        for call in self._meanwhile:
            call()
        self._meanwhile.clear()
        if self.rows is not None:
            self.values.apply(self.rows.take())
        if not self.loaded.done():
            self.loaded.set_result(None)


def read_values(
    storage: ShapeStorage,
    definition: ShapeDefinition,
    columns: tuple[str, ...],
    form: NormalForm | None,
    up_to: LogOffset,
) -> Counts | RowSet:
    """What a shape's snapshot and log up to there select. Any thread."""
    items = _items(storage, up_to)
    booleans = {name for name in columns if definition.card.column(name).source.type_name == "bool"}
    if form is not None:
        return _read_rows(items, columns, booleans, form)
    return _read_counts(items, columns, booleans, has_key=bool(definition.key))


def below(position: int) -> LogOffset:
    """The last offset that a transaction before this position can have."""
    return LogOffset(position - 1, _LAST_OPERATION)


def _read_counts(
    items: Iterator[dict[str, Any]], columns: tuple[str, ...], booleans: set[str], *, has_key: bool
) -> Counts:
    rows: dict[str, Value] = {}
    counts: Counts = {}
    for item in items:
        operation = item["headers"].get("operation")
        if operation is None:
            continue
        before = rows.get(item["key"])
        value = _value(item["value"], columns, booleans, before)
        if operation == "delete":
            gone = rows.pop(item["key"]) if has_key else value
            added(counts, gone, -1)
            continue
        if before is not None and has_key:
            added(counts, before, -1)
        added(counts, value, 1)
        if max(len(counts), len(rows)) > _READ_MAX:
            raise TooManyRowsError
        if has_key:
            rows[item["key"]] = value
    return counts


def _read_rows(
    items: Iterator[dict[str, Any]], columns: tuple[str, ...], booleans: set[str], form: NormalForm
) -> RowSet:
    rows = RowSet(form)
    for item in items:
        headers = item["headers"]
        if "event" in headers:
            patterns = [(each["pos"], each["value"]) for each in headers["patterns"]]
            rows.move(patterns, active=headers["event"] == "move-in")
        elif headers.get("operation") == "delete":
            rows.remove(item["key"].encode())
        elif "operation" in headers:
            key = item["key"].encode()
            value = _value(item["value"], columns, booleans, rows.value(key))
            rows.put(key, value, slots_of(headers["tags"]), headers["active_conditions"])
    return rows


def _value(
    given: Mapping[str, str | None], columns: tuple[str, ...], booleans: set[str], before: Value | None
) -> Value:
    """An update has only what it changed."""
    return tuple(
        (_BOOLEANS.get(given[name] or "", given[name]) if name in booleans else given[name])
        if name in given
        else (before[place] if before is not None else None)
        for place, name in enumerate(columns)
    )


def _items(storage: ShapeStorage, up_to: LogOffset) -> Iterator[dict[str, Any]]:
    number = 0
    while (chunk := storage.snapshot_chunk(number)) is not None:
        yield from orjson.loads(b"[" + b"".join(chunk.blocks()) + b"]")
        number += 1
        if chunk.is_last:
            break
    for block in storage.get_log_stream(LogOffset.LAST_BEFORE_REAL, up_to):
        yield from orjson.loads(b"[" + block.lstrip(b",\n") + b"]")

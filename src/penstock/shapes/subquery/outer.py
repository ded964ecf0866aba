"""`OuterShape`: which rows are in a shape with subqueries, and what its log is told of changes.

It judges rows by the effective activity of values (the package says why that is right), renders changes with
the headers that events need, and makes the events themselves. It asks nobody for anything: what it is given,
in which order, is `layers`' business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.capture.transactions import DELETE as DELETED
from penstock.capture.transactions import INSERT as INSERTED
from penstock.capture.transactions import ChangeRows
from penstock.core.offset import LogOffset
from penstock.core.where import tree
from penstock.core.where.evaluate import evaluate
from penstock.shapes.engine.consumer import Consumer, RoutedRows
from penstock.shapes.rendering.assembly import assemble
from penstock.shapes.rendering.renderer import DELETE, INSERT, UPDATE, Chosen, render_keys
from penstock.shapes.source.sql import tables_read
from penstock.shapes.storage import LogItems
from penstock.shapes.subquery import values
from penstock.shapes.subquery.materializer import Materializer
from penstock.shapes.subquery.normal_form import NormalForm
from penstock.shapes.subquery.tags import Slots, Tags
from penstock.shapes.subquery.texts import BatchTexts, taken
from penstock.shapes.subquery.values import Value

_TXID_MASK = 0xFFFFFFFF
_XIDS_MAX = 100  # that an event names
_PATTERNS_MAX = 5000  # the same
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Judged:
    """Of some rows: `active` has a line for each position; `values` those of subqueries."""

    active: Bools
    values: list[list[Value] | None]
    inside: Bools


@dataclass(frozen=True, slots=True)
class Flip:
    """The activity of a value as it was before a transaction, and is after it."""

    tx: int
    xid: int
    subquery: int
    value: Value
    before: bool
    after: bool


class OuterShape:
    """Belongs to the engine's thread."""

    def __init__(
        self, consumer: Consumer, form: NormalForm, materializers: Sequence[Materializer], salt: str
    ) -> None:
        self.consumer = consumer
        self.shape = consumer.shape
        self.form = form
        self.materializers = materializers
        self.tags = Tags(form, salt)
        self.held: list[dict[Value, int]] = [{} for _ in materializers]  # with the transaction that did it
        self.trigger = LogOffset.LAST_BEFORE_REAL  # of the newest value that is held
        self.has_turned = False  # nulls came or went in what NOT IN asks about, which was not told yet
        self.sinks: list[Materializer] = []  # of those whose subquery this shape is
        self.overrides: dict[tuple[int, Value], bool] = {}
        self._positions = form.subqueries
        self._negated = {
            atom.subquery: atom.negated for atom in form.positions if isinstance(atom, tree.InSubquery)
        }
        self._value_columns = [
            tuple(column.name for column in atom.columns) if isinstance(atom, tree.InSubquery) else ()
            for atom in form.positions
        ]
        plain = [atom for atom in form.positions if not isinstance(atom, tree.InSubquery)]
        self._plain_columns = sorted({column.name for atom in plain for column in tree.columns_in(atom)})
        self._columns = sorted(
            {*self._plain_columns, *(name for each in self._value_columns for name in each)}
        )
        #: By subquery, of the values with a null those that count for NOT IN.
        self.nulls: list[frozenset[Value]] = [
            frozenset(each.values.nulls if self._negated.get(subquery) else ())
            for subquery, each in enumerate(materializers)
        ]
        self.depth = 1
        self.streams = frozenset(card.stream for card in tables_read(consumer.shape.definition))
        self._held_since: int | None = None
        self._emptied_at = 0
        self._chosen: list[Chosen] = []
        self._before: list[tuple[int, Value, bool]] = []

    @property
    def slot(self) -> int:
        return self.shape.slot

    @property
    def columns(self) -> list[str]:
        """That the condition reads."""
        return self._columns

    @property
    def has_held(self) -> bool:
        """Whether rows are to be asked for."""
        return any(self.held) or bool(self.turning())

    def turning(self) -> list[int]:
        """The subqueries with other nulls than those that count."""
        return [
            subquery
            for subquery, negated in self._negated.items()
            if negated and self.materializers[subquery].values.nulls.keys() != self.nulls[subquery]
        ]

    def note_held(self, tx: int) -> None:
        """What is held may have changed, at that point of the stream."""
        if self.has_held:
            if self._held_since is None:
                self._held_since = tx
        elif self._held_since is not None:
            self._held_since, self._emptied_at = None, tx

    def was_quiet_at(self, tx: int) -> bool:
        """Whether nothing was held when that transaction had been dealt with."""
        return self._emptied_at <= tx and (self._held_since is None or self._held_since > tx)

    # Rows

    def is_active(self, subquery: int, value: Value) -> bool:
        if value in self.held[subquery]:
            return False
        known = self.overrides.get((subquery, value))
        return self._is_raw(subquery, value) if known is None else known

    def _is_raw(self, subquery: int, value: Value) -> bool:
        found = self.materializers[subquery].values
        return found.is_active(value, negated=self._negated[subquery], nulls=self.nulls[subquery])

    def judge(self, columns: Mapping[str, pa.StringArray], count: int) -> Judged:
        active = np.zeros((len(self.form.positions), count), np.bool_)
        found: list[list[Value] | None] = []
        for position, atom in enumerate(self.form.positions):
            if not isinstance(atom, tree.InSubquery):
                active[position] = _truth(atom, columns, count)
                found.append(None)
                continue
            own = list(
                zip(*(columns[name].to_pylist() for name in self._value_columns[position]), strict=True)
            )
            active[position] = self._membership(atom.subquery, own)
            found.append(own)
        return Judged(active, found, self.form.holds_for(active))

    def judge_changes(self, changes: ChangeRows, rows: npt.NDArray[np.int32], *, new: bool) -> Judged:
        side = changes.new if new else changes.old
        taken = pa.array(rows)
        return self.judge({name: side(name).take(taken) for name in self._columns}, len(rows))

    def _judge_routed(self, routed: RoutedRows, texts: BatchTexts, *, new: bool) -> Judged:
        """The same. Which rows meet the rest of the condition, the router has found: where there is but one
        disjunct, nothing else is left of it, and what of it a row outside meets does not matter."""
        rows, count = routed.rows, len(routed.rows)
        active = np.empty((len(self.form.positions), count), np.bool_)
        found: list[list[Value] | None] = []
        met = routed.actions != (DELETE if new else INSERT)
        is_one = len(self.form.disjuncts) == 1
        columns = {} if is_one else taken(texts, self._plain_columns, rows, new=new)
        for position, atom in enumerate(self.form.positions):
            if isinstance(atom, tree.InSubquery):
                own = texts.values(self._value_columns[position], rows, new=new)
                active[position] = self._membership(atom.subquery, own)
                found.append(own)
            else:
                active[position] = met if is_one else _truth(atom, columns, count)
                found.append(None)
        return Judged(active, found, self.form.holds_for(active))

    def _membership(self, subquery: int, own: list[Value]) -> Bools:
        if len(own) == 1:
            return np.array([self.is_active(subquery, own[0])])
        known = {value: self.is_active(subquery, value) for value in set(own)}
        return np.fromiter((known[value] for value in own), np.bool_, len(own))

    def slots_of(self, judged: Judged, row: int) -> Slots:
        return self.tags.slots([None if each is None else each[row] for each in judged.values])

    def change(self, routed: RoutedRows, texts: BatchTexts) -> None:
        """Its own table changed; told with the next `flush`."""
        changes, rows = routed.changes, routed.rows
        new = self._judge_routed(routed, texts, new=True)
        old = self._judge_routed(routed, texts, new=False)
        op = changes.op[rows]
        after, before = new.inside & (op != DELETED), old.inside & (op != INSERTED)
        concerned = np.flatnonzero(after | before)
        if not len(concerned):
            return
        actions = np.where(after & before, UPDATE, np.where(after, INSERT, DELETE)).astype(np.uint8)
        updated = after & before
        moved = np.zeros(len(rows), np.bool_)
        moved[updated] = (new.active[:, updated] != old.active[:, updated]).any(axis=0)
        for mine, theirs in zip(new.values, old.values, strict=True):
            if mine is not None and theirs is not None:
                for row in np.flatnonzero(updated & ~moved).tolist():
                    moved[row] = mine[row] != theirs[row]
        for kept in (concerned[moved[concerned]], concerned[~moved[concerned]]):
            if len(kept):
                unchanged_too = bool(moved[kept[0]])
                rendered = texts.render(
                    self.consumer.view, rows[kept], actions[kept], keep_unchanged=unchanged_too
                )
                chosen = rendered.choose(
                    np.full(len(kept), self.slot, np.int32), np.arange(len(kept), dtype=np.int32)
                )
                self._chosen.append(self._with_headers(chosen, kept, new, old))
        self._tell_sinks(changes, rows[concerned], actions[concerned], concerned, new)

    def _with_headers(self, chosen: Chosen, kept: npt.NDArray[np.intp], new: Judged, old: Judged) -> Chosen:
        kinds = chosen.rendered.kind[chosen.items].tolist()
        headers = []
        for kind, row in zip(kinds, kept[chosen.choices].tolist(), strict=True):
            if kind == ord("d"):
                headers.append(b"")
                continue
            before = self.slots_of(old, row) if kind == ord("u") else None
            headers.append(self.tags.headers(self.slots_of(new, row), new.active[:, row].tolist(), before))
        return chosen.with_extra(pa.array(headers, pa.binary()))

    def _tell_sinks(
        self,
        changes: ChangeRows,
        rows: npt.NDArray[np.int32],
        actions: npt.NDArray[np.uint8],
        places: npt.NDArray[np.intp],
        new: Judged,
    ) -> None:
        """Those who follow this shape's rows: keys, values, and what events need."""
        if not self.sinks:
            return
        old_keys, new_keys = self.keys(changes, rows, new=False), self.keys(changes, rows, new=True)
        for sink in self.sinks:
            selected = _texts(changes, sink.columns, rows)
            for number, place in enumerate(places.tolist()):
                if actions[number] != INSERT:
                    sink.remove(old_keys[number])
                if actions[number] != DELETE:
                    slots, active = self.slots_of(new, place), new.active[:, place].tolist()
                    sink.put(new_keys[number], selected[number], slots, active)

    def keys(self, changes: ChangeRows, rows: npt.NDArray[np.int32], *, new: bool) -> list[bytes]:
        side, taken = (changes.new if new else changes.old), pa.array(rows)
        view = self.consumer.view
        found: list[bytes] = render_keys(
            view.stream, [side(name).take(taken) for name in view.key]
        ).to_pylist()
        return found

    # Values

    def note_before(self, subquery: int, flips: Iterable[Value]) -> None:
        """These are about to come into what the subquery selects, or to go from it."""
        flips = list(flips)
        negated = self._negated[subquery]
        self.has_turned = self.has_turned or (negated and any(None in value for value in flips))
        self._before += [
            (subquery, value, self._is_raw(subquery, value))
            for value in values.affected(flips, negated=negated)
        ]

    def take_flips(self, tx: int, xid: int) -> list[Flip]:
        """They have come or gone."""
        before, self._before = self._before, []
        flips = []
        for subquery, value, was in before:
            now = self._is_raw(subquery, value)
            if was != now:
                flips.append(Flip(tx, xid, subquery, value, was, now))
        return flips

    def turn(self, flips: Iterable[Flip], trigger: LogOffset) -> list[tuple[int, str]]:
        """What became inactive is so, and is told by an event with these patterns; the rest is held."""
        patterns = []
        for flip in flips:
            held = self.held[flip.subquery]
            if flip.after:
                held[flip.value] = flip.xid
                self.trigger = max(self.trigger, trigger)
            elif held.pop(flip.value, None) is None:
                patterns += self.patterns(flip.subquery, flip.value)
        return patterns

    def turn_nulls(self, subquery: int) -> list[int]:
        """Those that are there count from now on, and nothing is held; which transactions activated it."""
        self.nulls[subquery] = frozenset(self.materializers[subquery].values.nulls)
        held, self.held[subquery] = self.held[subquery], {}
        return list(held.values())

    def positions(self, subquery: int) -> list[int]:
        return self._positions[subquery]

    def patterns(self, subquery: int, value: Value) -> list[tuple[int, str]]:
        return [(position, self.tags.slot(position, value)) for position in self._positions[subquery]]

    # The log

    def flush(self, *, event_follows: bool = False) -> LogItems | None:
        """What was changed since; without a boundary if an event of the same transaction follows."""
        for _, items in assemble(self.take_chosen()).by_slot():
            return replace(items, boundary=None) if event_follows else items
        return None

    @property
    def chosen_bytes(self) -> int:
        """About what it takes."""
        return sum(len(part.rendered.json) for part in self._chosen)

    def take_chosen(self) -> list[Chosen]:
        """What was changed since, to be put together with what others have."""
        chosen, self._chosen = self._chosen, []
        return chosen

    def events(
        self, name: str, patterns: Sequence[tuple[int, str]], xids: Iterable[int]
    ) -> list[tuple[str, bytes, bytes]]:
        """As items; and told to those who follow this shape's rows."""
        for sink in self.sinks:
            sink.move(patterns, active=name == "move-in")
        told = ",".join(map(str, sorted({xid & _TXID_MASK for xid in xids if xid})[:_XIDS_MAX]))
        items = []
        for start in range(0, len(patterns), _PATTERNS_MAX):
            shown = ",".join(
                f'{{"pos":{position},"value":"{slot}"}}'
                for position, slot in patterns[start : start + _PATTERNS_MAX]
            )
            text = f'{{"headers":{{"event":"{name}","patterns":[{shown}],"txids":[{told}]}}}}'
            items.append(("e", b"", text.encode()))
        return items

    def next_offset(self, trigger: LogOffset) -> LogOffset:
        """Where events that come of it go: after it, and after everything that is there."""
        last = self.shape.storage.last_seen_offset
        if last.tx < trigger.tx or last < trigger:
            return trigger
        return LogOffset(last.tx, last.op + 2)


def log_items(offset: LogOffset, items: Sequence[tuple[str, bytes, bytes]]) -> LogItems:
    """Items of the kinds, keys and JSON given, one after the other from there on; durable first."""
    ops = np.arange(len(items), dtype=np.int64) + int(offset.op)
    return LogItems(
        tx=np.full(len(items), offset.tx, np.int64),
        op=ops,
        kind=np.array([ord(kind) for kind, _, _ in items], np.uint8),
        key_ends=np.cumsum([len(key) for _, key, _ in items], dtype=np.int64),
        keys=b"".join(key for _, key, _ in items),
        json_ends=np.cumsum([len(text) for _, _, text in items], dtype=np.int64),
        json=b"".join(text for _, _, text in items),
        boundary=LogOffset(offset.tx, int(ops[-1])),
        durable_first=True,
    )


def _truth(atom: tree.Expression, columns: Mapping[str, pa.StringArray], count: int) -> Bools:
    found: Bools = evaluate(atom, columns, count).fill_null(False).to_numpy(zero_copy_only=False)
    return found


def _texts(changes: ChangeRows, columns: Sequence[str], rows: npt.NDArray[np.int32]) -> list[Value]:
    taken = pa.array(rows)
    return list(zip(*(changes.new(name).take(taken).to_pylist() for name in columns), strict=True))

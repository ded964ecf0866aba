"""Shapes with subqueries against a model of a source: whatever commits, becomes visible, is asked and is lost
in whatever order, what a client makes of a shape's snapshot and log is what its condition says."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.capture.transactions import MessageConverter
from penstock.core.offset import LogOffset
from penstock.core.position import Lsn
from penstock.core.where import tree
from penstock.shapes.comparison.at_cuts import ranges
from penstock.shapes.comparison.tagged import TaggedSides
from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.engine.collector import ShapeLogCollector
from penstock.shapes.engine.consumer import Consumer
from penstock.shapes.engine.registry import inner_definitions
from penstock.shapes.rendering.renderer import Chosen
from penstock.shapes.rendering.row_lines import Lines, snapshot_end
from penstock.shapes.shape import Shape, SnapshotPoint
from penstock.shapes.source.moving import MovedRows
from penstock.shapes.storage import LogItems, ShapeStore, store
from penstock.shapes.subquery import layers, starting
from penstock.shapes.subquery.held_state import HeldState
from penstock.shapes.subquery.layers import DependencyLayers
from penstock.shapes.subquery.members import form_of
from penstock.shapes.subquery.moves import Flight
from penstock.shapes.subquery.outer import OuterShape
from penstock.shapes.subquery.tags import Tags
from penstock.shapes.subquery.watch import Cut, Unsettled
from tests.event_client import EventClient
from tests.logged_changes import Logged, Row, item
from tests.subquery_model import (
    COLUMNS,
    START,
    STREAMS,
    ModelSource,
    Tables,
    Transaction,
    defined,
    pieces,
    selected,
    truth,
)

_T = TypeVar("_T")
TEAM_A = "SELECT id FROM teams WHERE kind = 'a'"
FLAGGED = "SELECT id FROM users WHERE flag = 'y'"
OF_TEAM_A = f"SELECT id FROM users WHERE team IN ({TEAM_A})"
CONDITIONS = {
    "one": ("items", f"owner IN ({FLAGGED})"),
    "with another": ("items", f"owner IN ({FLAGGED}) AND note = '1'"),
    "either": ("items", f"owner IN ({FLAGGED}) OR note = '1'"),
    "two columns": ("items", f"owner IN ({FLAGGED}) OR other IN ({TEAM_A})"),
    "same subquery": ("items", f"owner IN ({FLAGGED}) AND other IN ({FLAGGED})"),
    "two levels": ("items", f"owner IN ({OF_TEAM_A})"),
    "two levels and one": ("items", f"owner IN ({OF_TEAM_A}) OR other IN ({FLAGGED}) AND note <> '2'"),
    "negated": ("items", f"owner NOT IN ({FLAGGED})"),
    "negated inside": ("items", f"owner IN (SELECT id FROM users WHERE team NOT IN ({TEAM_A}))"),
    "negated outside": ("items", f"NOT (owner IN ({OF_TEAM_A}) AND note = '1')"),
    "pairs": ("items", "(owner, other) IN (SELECT id, team FROM users)"),
    "no pairs": (
        "items",
        "(owner, other) NOT IN (SELECT id, team FROM users WHERE flag = 'y' AND team IS NOT NULL)",
    ),
    "nullable": ("items", "owner IN (SELECT team FROM users)"),
    "negated nullable": ("items", "owner NOT IN (SELECT team FROM users WHERE flag = 'y')"),
    "negated nullable and more": (
        "items",
        f"owner NOT IN (SELECT team FROM users) AND note = '1' OR other IN ({FLAGGED})",
    ),
    "negated nullable pairs": (
        "items",
        "(owner, other) NOT IN (SELECT id, team FROM users WHERE flag = 'y')",
    ),
    "negated nullable inside": (
        "items",
        "owner IN (SELECT id FROM users WHERE id NOT IN (SELECT team FROM users WHERE flag = 'y'))",
    ),
    "of no use": ("items", f"owner IN ({FLAGGED}) OR owner IN ({FLAGGED}) AND other IN ({TEAM_A})"),
    "users": ("users", f"team IN ({TEAM_A})"),
}


#: A snapshot may be of no use, and then the shape is begun anew; nothing else ends one.
EXPECTED_ENDS = {"dropped", "dependency", "snapshot"}


@dataclass
class Asked:
    outer: OuterShape
    flight: Flight
    point: SnapshotPoint | None = None
    rows: list[Row] = field(default_factory=list)


class Engine:
    """What the engine does for shapes with subqueries, one step at a time; a host of `DependencyLayers`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.asked: list[Asked] = []
        self.reads: list[Callable[[], None]] = []
        self.shapes: dict[str, Shape] = {}
        self.points: dict[str, SnapshotPoint] = {}
        self.ready: set[str] = set()
        self.settled_shapes: set[str] = set()
        self.ended: dict[str, str] = {}
        self._slots = 0
        self.store = ShapeStore(directory)
        found = self.store.recover()
        self.position = Lsn(self.store.position or START)
        self.collector = ShapeLogCollector(self.store, self.position, self.end)
        self.layers = DependencyLayers(self, "stack", 50)
        self.collector.layers = self.layers
        for stream in STREAMS.values():  # else they are published first, when their writers have ended
            self.collector._recent.begin(stream)
        for kept in sorted(found.values(), key=lambda each: json.loads(each.facts)["depth"]):
            self._resume(kept.handle, json.loads(kept.definition_json), json.loads(kept.facts))
        self.store.discard_unopened()

    def _resume(self, handle: str, fields: dict[str, Any], facts: dict[str, Any]) -> None:
        shape = self._open(handle, ShapeDefinition.from_json(fields))
        shape.last_offset = shape.storage.readable_offset
        self.ready.add(handle)
        self.settled_shapes.add(handle)
        self.collector.resume(shape, SnapshotPoint(**{**facts["point"], "xip": tuple(facts["point"]["xip"])}))
        self.points[handle] = SnapshotPoint(**{**facts["point"], "xip": tuple(facts["point"]["xip"])})
        if facts["held"] is not None:
            assert shape.definition.where is not None
            for atom in shape.definition.where.subqueries:
                inner = self.collector.consumer_of(self.existing(atom.definition))
                assert inner is not None
                self.layers.restore_values(inner, atom.columns, int(self.position))
            consumer = self.collector.consumer_of(shape)
            assert consumer is not None
            self.layers.add(consumer, HeldState.from_json(facts["held"]))

    def _open(self, handle: str, definition: ShapeDefinition) -> Shape:
        slot = self._slots
        self._slots += 1
        shape = Shape(handle, definition, slot, self.store.open(handle, slot))
        self.shapes[handle] = shape
        return shape

    def existing(self, definition: ShapeDefinition) -> Shape:
        return next(each for each in self.shapes.values() if each.definition.identity == definition.identity)

    def end(self, shape: Shape, reason: str) -> None:
        if self.shapes.pop(shape.handle, None) is None:
            return
        self.ended[shape.handle] = reason
        self.collector.remove(shape)
        shape.state = "gone"
        shape.storage.cleanup()
        for outer in list(self.shapes.values()):
            if any(
                each.identity == shape.definition.identity for each in inner_definitions(outer.definition)
            ):
                self.end(outer, "dependency")

    # LayersHost

    @property
    def last_tx(self) -> int:
        return self.collector.delivery.last_tx

    def deliver(self, consumer: Consumer, items: LogItems) -> None:
        self.collector.deliver(consumer, items)

    def deliver_all(self, chosen: list[Chosen]) -> None:
        self.collector.deliver_all(chosen)

    def give_up(self, consumer: Consumer, reason: str, error: Exception | None = None) -> None:
        if error is not None:
            raise error
        self.collector.give_up(consumer, reason, error)

    def not_usable(self, shape: Shape) -> None:
        self.end(shape, "snapshot")

    def settled(self, shape: Shape) -> None:
        self.settled_shapes.add(shape.handle)

    def note(self, consumer: Consumer) -> None:
        self.collector.note(consumer)

    def ask(self, outer: OuterShape, flight: Flight) -> None:
        self.asked.append(Asked(outer, flight))

    def read(self, job: Callable[[], _T], then: Callable[[_T], None], failed: object) -> None:
        self.reads.append(lambda: then(job()))

    # Shapes

    def begin(self, definition: ShapeDefinition) -> Shape | None:
        """None: an inner shape is not there yet."""
        where = definition.where
        for atom in where.subqueries if where is not None else ():
            inner = next(
                (s for s in self.shapes.values() if s.definition.identity == atom.definition.identity), None
            )
            if inner is None:
                self.begin(atom.definition)
                return None
            consumer = self.collector.consumer_of(inner)
            assert consumer is not None
            self.layers.require(consumer, atom.columns)
        if where is not None and where.subqueries and not self.layers.are_known(definition):
            return None
        shape = self._open(f"{self._slots}-{definition.identity[:6]}-{random.random()}", definition)
        self.collector.add(shape)
        return shape

    def take_snapshot(self, shape: Shape, point: SnapshotPoint, tables: Tables) -> None:
        if not self.collector.known(shape, point):
            self.end(shape, "snapshot")
            return
        self.points[shape.handle] = point
        writer = shape.storage.make_new_snapshot()
        lines = [
            line(shape, key, row, tables, self.layers.salt(shape))
            for key, row in selected(shape.definition, tables).items()
        ]
        if lines:
            writer.write(b"".join(lines), np.cumsum([len(each) for each in lines]))
        writer.close(snapshot_end(point))

    # Steps

    def advance(self) -> None:
        delivery = self.collector.delivery
        if self.layers.is_open:
            return
        self.layers.advance(int(delivery.position))
        delivery.settle()
        for outer in self.layers.due(int(delivery.position)):
            self.commit()
            had = {shape: shape.storage.last_seen_txn_offset for shape in self.shapes.values()}
            with self.store.together():
                delivery.lsn.transaction(self.layers.splice(outer))
                delivery.settle()
                self.commit()
            for shape, last in had.items():
                # Whoever was sent all of it as events resumes one above (correctness 45).
                assert log_of(shape, LogOffset(last.tx + 1, 0)) == log_of(shape, last)
        self.collector.end_broken()

    def commit(self) -> None:
        for shape in self.layers.take_dirty():
            if shape.handle in self.ready:
                self.ready.discard(shape.handle)
        for shape in self.shapes.values():
            if shape.handle in self.ready or shape.storage.snapshot_state != "complete":
                continue
            outer = form_of(shape.definition) is not None
            if outer and shape.handle not in self.settled_shapes:
                continue
            held = self.layers.held(shape).to_json() if outer else None
            facts = {
                "point": asdict(self.points[shape.handle]),
                "held": held,
                "depth": depth(shape.definition),
            }
            shape.storage.make_ready(json.dumps(shape.definition.to_json()), json.dumps(facts))
            self.ready.add(shape.handle)
        self.store.commit(self.collector.delivery.position)

    def crash(self, chance: random.Random) -> None:
        """Of what was handed over, a first part is durable."""
        commits = self.store.loop._commits
        del commits[chance.randint(0, len(commits)) :]
        self.store.close()


def depth(definition: ShapeDefinition) -> int:
    return 1 + max((depth(each) for each in inner_definitions(definition)), default=0)


def line(shape: Shape, key: str, row: Row, tables: Tables, salt: str) -> bytes:
    definition = shape.definition
    headers = f'"operation":"insert","relation":["public","{definition.table.name}"]'
    form = form_of(definition)
    if form is not None:
        assert definition.where is not None
        whole = tables[definition.table.name][str(row["id"])]
        values: list[Any] = []
        active = []
        for atom in form.positions:
            values.append(
                tuple(whole[column.name] for column in atom.columns)
                if isinstance(atom, tree.InSubquery)
                else None
            )
            active.append(truth(definition.where.condition, atom, [whole], tables)[0])
        tags = Tags(form, salt)
        headers += tags.headers(tags.slots(values), active).decode()
    return f'{{"key":{json.dumps(key)},"value":{json.dumps(row)},"headers":{{{headers}}}}}\n'.encode()


def log_of(shape: Shape, after: LogOffset) -> list[dict[str, Any]]:
    stream = shape.storage.get_log_stream(after, shape.storage.last_seen_txn_offset)
    found: list[dict[str, Any]] = json.loads(b"[" + b"".join(stream) + b"]")
    return found


def complete(asked: Asked) -> None:
    """Its rows are there."""
    outer = asked.outer
    name = outer.shape.definition.table.name
    content, keys = [], []
    for row in asked.rows:
        key = f'"public"."{name}"/"{row["id"]}"'
        shown = {column: row[column] for column in outer.shape.definition.columns}
        content.append(
            f'{{"key":{json.dumps(key)},"value":{json.dumps(shown)},"headers":{{"operation":"insert","is_move_in":true}}}}\n'.encode()
        )
        keys.append(key.encode())
    lines = Lines(
        b"".join(content), np.cumsum([len(each) for each in content], dtype=np.int64),
        b"".join(keys), np.cumsum([len(each) for each in keys], dtype=np.int64),
    )  # fmt: skip
    columns = {
        column.name: pa.array([row[column.name] for row in asked.rows], pa.string())
        for column in COLUMNS[name]
    }
    if asked.rows:
        asked.flight.answer.append(MovedRows(lines, columns))
    asked.flight.is_complete = True


class Run:
    def __init__(self, directory: Path, seed: int, names: list[str]) -> None:
        self.chance = random.Random(seed)
        self.source = ModelSource(self.chance)
        self.directory = directory
        self.engine = Engine(directory)
        self.wanted = [defined(table, where) for table, where in (CONDITIONS[name] for name in names)]
        self.snapshots: list[tuple[Shape, SnapshotPoint, Tables]] = []
        self.registered: list[Shape] = []
        self.done = 0

    def begin(self) -> None:
        self.source.begin()

    def commit(self) -> None:
        self.source.commit()

    def show(self) -> None:
        self.source.show()

    def read(self, *, all_of_it: bool = False) -> None:
        unread = self.source.unread
        count = len(unread) if all_of_it else self.chance.randint(0, len(unread))
        taken, self.source.unread = unread[:count], unread[count:]
        end = taken[-1].tx + 50 if taken else 0
        if count == len(unread):
            end = self.source.lsn
        if end <= self.engine.collector.delivery.position:
            return
        changes = [change for each in taken for change in each.changes]
        for fragment in MessageConverter(self.chance.choice([300, 1 << 20])).fragments(
            item(end, *pieces(changes))
        ):
            self.engine.collector.process(fragment)
        self.engine.advance()

    def create(self) -> None:
        """Shapes that are not there, or whose inner ones are not, are begun."""
        for definition in self.wanted:
            if not any(
                each.definition.identity == definition.identity for each in self.engine.shapes.values()
            ):
                self.engine.begin(definition)
        self.registered = [
            each
            for each in self.engine.shapes.values()
            if each.handle not in self.engine.points and not any(s[0] is each for s in self.snapshots)
        ]

    def look(self) -> None:
        """A snapshot for a new shape, told later."""
        for shape in self.registered:
            self.snapshots.append((shape, *self.source.snapshot()))
        self.registered = []

    def know(self) -> None:
        snapshots, self.snapshots = self.snapshots, []
        for shape, point, tables in snapshots:
            if shape.handle in self.engine.shapes:
                self.engine.take_snapshot(shape, point, tables)
        self.engine.advance()

    def answer(self) -> None:
        for asked in list(self.engine.asked):
            if not self.engine.layers.has_flight(asked.outer, asked.flight):
                self.engine.asked.remove(asked)
            elif asked.point is None:
                if self.chance.random() < 0.6:
                    self._query(asked)
            elif self.chance.random() < 0.6:
                self.engine.asked.remove(asked)
                complete(asked)
        self.engine.advance()

    def _query(self, asked: Asked) -> None:
        asked.point, tables = self.source.snapshot()
        outer, flight = asked.outer, asked.flight
        table = outer.shape.definition.table
        if self.engine.collector.has_missed(table, asked.point, flight.since_tx):
            self.engine.asked.remove(asked)
            self.engine.layers.failed(outer, flight)
            return
        flight.point = asked.point
        for row in tables[table.name].values():
            for atom in outer.form.positions:
                if isinstance(atom, tree.InSubquery):
                    value = tuple(row[column.name] for column in atom.columns)
                    if atom.subquery in flight.whole or value in flight.values[atom.subquery]:
                        asked.rows.append(row)
                        break

    def drop(self) -> None:
        """A shape goes, and is begun anew later."""
        there = [each for each in self.engine.shapes.values() if form_of(each.definition) is not None]
        if there:
            self.engine.end(self.chance.choice(there), "dropped")
            self.engine.collector.end_broken()

    def load(self) -> None:
        reads, self.engine.reads = self.engine.reads, []
        for each in reads:
            with suppress(FileNotFoundError):  # it has gone meanwhile
                each()
        self.engine.advance()

    def write(self) -> None:
        """What was handed over is durable, though its commit may still be to come."""
        self.engine.store.loop.turn()

    def flush(self) -> None:
        self.engine.commit()
        self.engine.store.loop.turn()

    def crash(self) -> None:
        """What was not made durable is gone; it is read again."""
        # By the time it runs again, whoever committed before can be seen.
        self.source.show(all_of_them=True)
        self.engine.crash(self.chance)
        self.engine = Engine(self.directory)
        self.snapshots, self.registered = [], []
        everything = self.source.all_transactions
        self.source.unread = [each for each in everything if each.tx >= self.engine.position]

    def settle(self) -> None:
        """Until nothing is left to be done."""
        source, engine = self.source, self.engine
        while source.running:
            source.commit()
        for _ in range(200):
            source.show(all_of_them=True)
            self.read(all_of_it=True)
            for step in (self.create, self.look, self.know, self.load, self.answer, self.flush):
                step()
            there = {
                each.definition.identity for each in engine.shapes.values() if each.handle in engine.ready
            }
            is_quiet = not engine.asked and not any(o.has_held for o in engine.layers._outers.values())
            if is_quiet and all(each.identity in there for each in self.wanted):
                return
        raise AssertionError("it does not come to an end")

    def _followed(self, shape: Shape) -> EventClient:
        client = EventClient()
        number = 0
        while (chunk := shape.storage.snapshot_chunk(number)) is not None:
            client.take(json.loads(b"[" + b"".join(chunk.blocks()) + b"]"))
            number += 1
        client.take(log_of(shape, LogOffset.LAST_BEFORE_REAL))
        return client

    def check(self) -> None:
        assert set(self.engine.ended.values()) <= EXPECTED_ENDS
        for shape in self.engine.shapes.values():
            client = self._followed(shape)
            assert client.rows == selected(shape.definition, self.source.committed), shape.definition.where


WEIGHTS = {
    "begin": 4,
    "commit": 5,
    "show": 3,
    "read": 5,
    "create": 3,
    "look": 3,
    "know": 3,
    "load": 3,
    "answer": 6,
    "flush": 2,
    "write": 2,
    "drop": 1,
}
STEPS = [step for step, weight in WEIGHTS.items() for _ in range(weight)]


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits come in several parts, between which a crash may fall."""
    monkeypatch.setattr(store, "_HAND_OVER_BYTES", 400)


def play(seed: int, names: list[str], steps: int, *, crashes: bool) -> Run:
    chance = random.Random(seed)
    with TemporaryDirectory() as directory:
        run = Run(Path(directory), seed, names)
        try:
            if chance.random() < 0.7:
                run.settle()
            for _ in range(steps):
                step = chance.choice(STEPS + ["crash"] * crashes)
                getattr(run, step)()
            run.settle()
            run.check()
        finally:
            run.engine.crash(chance)
        return run


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_shape_is_what_its_condition_says(name: str) -> None:
    for seed in range(3):
        play(seed, [name], 60, crashes=True)


@settings(max_examples=15)
@given(
    st.integers(0, 1 << 32), st.lists(st.sampled_from(list(CONDITIONS)), min_size=2, max_size=4, unique=True)
)
def test_shapes_that_share_their_subqueries_are_what_their_conditions_say(
    seed: int, names: list[str]
) -> None:
    play(seed, sorted(names), 80, crashes=bool(seed % 2))


def compared(directory: Path, shape: Shape, cut: Cut, tables: Tables) -> tuple[list[str], int]:
    """What is told of a shape that is held against what a snapshot shows, and how many rows are left open."""
    definition = shape.definition
    pending, inside = pending_rows(definition, cut.unsettled, tables), selected(definition, tables)
    with closing(TaggedSides(directory / "sides", definition, 20)) as sides:
        for number, row in tables[definition.table.name].items():
            key = f'"public"."{definition.table.name}"/"{number}"'
            headers = {"inside": key in inside, "pending": number in pending}
            value = {column: row[column] for column in definition.columns}
            sides.put_rows([{"key": key, "value": value, "headers": headers}])
        chunk = 0
        while (first := shape.storage.snapshot_chunk(chunk)) is not None:
            sides.put_first_rows(json.loads(b"[" + b"".join(first.blocks()) + b"]"))
            chunk += 1
        for after, until in ranges(cut):
            stream = shape.storage.get_log_stream(after, until)
            sides.take(json.loads(b"[" + b"".join(stream) + b"]"))
        sides.judge(show_values=True)
        told = [f"{each.kind} {each.key['id']}" for each in sides.found.told()]
    (directory / "sides").unlink()
    return told, sides.open


class ComparedRun(Run):
    """In which shapes are held against their SELECTs again and again (`comparison`)."""

    def __init__(self, directory: Path, seed: int, names: list[str]) -> None:
        super().__init__(directory, seed, names)
        self.watched: dict[str, Shape] = {}
        self.marked: dict[str, Shape] = {}
        self.unseen: list[Transaction] = []  # that were handed out before a watch began
        self.looks: list[tuple[str, Shape, SnapshotPoint, Tables]] = []
        self.cuts: list[Cut] = []
        self.left_open = 0

    def watch(self) -> None:
        there = [each for each in self.engine.shapes.values() if form_of(each.definition) is not None]
        for shape in there:
            name = self.engine.layers.watch(shape, None)
            if name is not None:
                self.watched[name] = shape
        self.unseen = [each for each in self.source.invisible if each not in self.source.unread]

    def mark(self) -> None:
        """Those who were committing are waited for."""
        if any(each in self.source.invisible for each in self.unseen):
            return
        for before, shape in self.watched.items():
            name = self.engine.layers.watch(shape, before) if shape.state != "gone" else None
            if name is not None:
                self.marked[name] = shape
        self.watched = {}

    def snapshot(self) -> None:
        self.looks += [(name, shape, *self.source.snapshot()) for name, shape in self.marked.items()]
        self.marked = {}

    def compare(self) -> None:
        looks, self.looks = self.looks, []
        for name, shape, point, tables in looks:
            position = int(self.engine.collector.delivery.position)
            cut = self.engine.layers.cut(name, point, position)
            if cut == "behind":
                self.looks.append((name, shape, point, tables))
            elif isinstance(cut, Cut):
                assert Cut.from_json(json.loads(json.dumps(cut.to_json()))) == cut
                told, left_open = compared(self.directory, shape, cut, tables)
                assert told == []
                self.cuts.append(cut)
                self.left_open += left_open

    def crash(self) -> None:
        self.watched, self.marked, self.looks = {}, {}, []
        super().crash()


def pending_rows(definition: ShapeDefinition, unsettled: Unsettled | None, tables: Tables) -> set[str]:
    """The keys of the rows that `comparison.pending` asks for."""
    form = form_of(definition)
    if form is None or unsettled is None:
        return set()
    assert definition.where is not None
    found = set()
    for atom in form.positions:
        if not isinstance(atom, tree.InSubquery):
            continue
        inner = definition.where.subqueries[atom.subquery]
        keys = pending_rows(inner.definition, unsettled.inside[atom.subquery], tables)
        rows = tables[inner.definition.table.name]
        values = {tuple(rows[key][name] for name in inner.columns) for key in keys}
        values.update(unsettled.held[atom.subquery])
        for key, row in tables[definition.table.name].items():
            is_any = atom.subquery in unsettled.whole or (atom.negated and keys)
            if is_any or tuple(row[column.name] for column in atom.columns) in values:
                found.add(key)
    return found


COMPARED_STEPS = [
    *(step for step in STEPS if step != "drop"),
    *(3 * ["watch"] + 5 * ["mark"] + 5 * ["snapshot"] + 6 * ["compare"]),
]


def play_compared(seed: int, names: list[str], steps: int, *, crashes: bool) -> ComparedRun:
    chance = random.Random(seed)
    with TemporaryDirectory() as directory:
        run = ComparedRun(Path(directory), seed, names)
        try:
            run.settle()
            for _ in range(steps):
                step = chance.choice(COMPARED_STEPS + ["crash"] * crashes)
                getattr(run, step)()
        finally:
            run.engine.crash(chance)
        return run


def test_a_shape_is_found_equal_to_its_select_whenever_it_is_held_against_it() -> None:
    """Whatever is held at that time, in it or inside, and whatever is spliced in later as of before."""
    cuts, left_open = list[Cut](), 0
    for seed, name in enumerate(CONDITIONS):
        run = play_compared(seed, [name], 300, crashes=bool(seed % 2))
        cuts, left_open = cuts + run.cuts, left_open + run.left_open
    told = f"{len(cuts)} cuts, {left_open} rows left open"
    assert len(cuts) > 60, told
    assert any(cut.unsettled is None for cut in cuts), "all was told"
    assert any(cut.unsettled is not None and cut.unsettled.inside[0] for cut in cuts), (
        "of what is inside, too"
    )
    assert left_open, told


def test_rows_that_are_spliced_in_later_as_of_before_the_cut_cause_no_false_alarm(tmp_path: Path) -> None:
    """They are as they were by then: here with an owner that the snapshot does not show."""
    engine = Engine(tmp_path)
    shape = begun(engine)
    engine.take_snapshot(shape, SnapshotPoint(10, 10, (), START), NOTHING)
    engine.position = Lsn(START)
    one: Row = {"id": "1", "owner": "7", "other": None, "note": "1"}
    two: Row = {"id": "2", "owner": "8", "other": None, "note": "1"}
    flagged: Row = {"id": "7", "team": None, "flag": "y"}
    hand_in(engine, 1, ("items", one), ("items", two))
    hand_in(engine, 2, ("users", flagged))
    (asked,) = engine.asked
    watch = engine.layers.watch(shape, None)
    assert watch is not None
    moved: Row = {**two, "owner": "7"}
    hand_in(engine, 3, ("items", moved), old=two)
    asked.flight.point = asked.point = SnapshotPoint(24, 24, (), START + 301)
    asked.rows = [one, moved]
    complete(asked)
    engine.advance()
    cut = engine.layers.cut(watch, SnapshotPoint(23, 23, (), START + 250), START + 350)
    assert isinstance(cut, Cut)
    assert (cut.tx, cut.late) == (START + 299, (START + 202,))
    tables = {"items": {"1": one, "2": two}, "users": {"7": flagged}, "teams": {}}
    assert compared(tmp_path, shape, cut, tables) == ([], 1)
    assert compared(tmp_path, shape, replace(cut, late=()), tables) == (["extra 2"], 0)
    engine.store.close()


def test_a_snapshot_that_shows_what_an_inner_shape_was_still_waiting_for_is_not_used() -> None:
    play(675, ["two levels", "two levels and one", "negated outside"], 60, crashes=True)


NOTHING: Tables = {name: {} for name in COLUMNS}


def begun(engine: Engine) -> Shape:
    """A shape with a subquery, whose inner shape's values are known."""
    definition = defined("items", f"owner IN ({FLAGGED})")
    while (outer := engine.begin(definition)) is None:
        for shape in list(engine.shapes.values()):
            if shape.handle not in engine.points:
                engine.take_snapshot(shape, SnapshotPoint(10, 10, (), START), NOTHING)
        engine.advance()
        while engine.reads:
            engine.reads.pop()()
    return outer


def hand_in(engine: Engine, number: int, *changes: tuple[str, Row], old: Row | None = None) -> None:
    tx, kind = START + 100 * number, "i" if old is None else "u"
    logged = [
        (table, Logged(tx, 2 * n, kind, row, old, xid=20 + number)) for n, (table, row) in enumerate(changes)
    ]
    for fragment in MessageConverter().fragments(item(tx + 50, *pieces(logged))):
        engine.collector.process(fragment)
    engine.advance()


@pytest.mark.parametrize("shown", [True, False])
def test_what_is_kept_until_a_snapshots_position_is_reached_is_bounded_and_none_of_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: bool
) -> None:
    monkeypatch.setattr(layers, "_WAITING_BYTES_MAX", 20_000)
    engine = Engine(tmp_path)
    outer = begun(engine)
    xmax = 1000 if shown else 10
    engine.take_snapshot(outer, SnapshotPoint(xmax, xmax, (), 1 << 40), NOTHING)
    for number in range(1, 41):
        hand_in(engine, number, ("items", {"id": str(number), "owner": "1", "note": "x" * 1000}))
    assert engine.ended == ({} if shown else {outer.handle: "too much to keep"})
    assert engine.layers._waiting.bytes == 0
    engine.store.close()


def test_values_that_come_and_go_until_a_snapshots_position_is_reached_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "_FLIPS_BYTES_MAX", 20_000)
    engine = Engine(tmp_path)
    outer = begun(engine)
    engine.take_snapshot(outer, SnapshotPoint(1000, 1000, (), 1 << 40), NOTHING)
    for number in range(1, 5):
        hand_in(engine, number, ("users", {"id": f"{number}" * 4_000, "flag": "y"}))
    assert engine.ended == {}
    for number in range(5, 10):
        hand_in(engine, number, ("users", {"id": f"{number}" * 4_000, "flag": "y"}))
    assert engine.ended == {outer.handle: "too much to keep"}
    engine.store.close()


def test_values_of_one_transaction_are_bounded_and_end_the_shapes_they_are_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "_WAITING_BYTES_MAX", 20_000)
    engine = Engine(tmp_path)
    outer = begun(engine)
    (inner,) = (shape for shape in engine.shapes.values() if shape is not outer)
    rows: list[tuple[str, Row]] = [("users", {"id": str(n), "flag": "y"}) for n in range(200)]
    hand_in(engine, 1, *rows[:50])
    assert engine.ended == {}
    hand_in(engine, 2, *rows[50:])
    assert engine.ended == {inner.handle: "too much to keep", outer.handle: "dependency"}
    engine.store.close()

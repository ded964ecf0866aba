"""Every crash point of a whole pipeline against a model of destination, log and state.

The model pipeline uses the ledger's moves and decisions as the lake lane does: loads in chunks, swaps,
rounds of streams that are not level, joins, global rounds. Each durable effect is one step; the
process may end before any of them, twice. The tables and the state must come out as if it had not. Tables
are append tables, so that a lost and a doubled row both show.

The same model runs for each kind of source. Whatever it saves goes through the words of the file and back, so
that what a crash leaves is what a file can say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.binlog_place import BinlogPlace
from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.ledger import recovery, state_json, two_phase
from penstock.ledger.dialect import PlaceOf, SourceName
from penstock.ledger.state import Chunk, StateDocument, StreamState
from penstock.ledger.threads import cdc_thread_id, chunk_thread_id

STREAMS = tuple(StreamId("public", name) for name in "abc")
CHUNKS = (Chunk(None, 1), Chunk(1, 2), Chunk(2, None))
NOWHERE = Lsn(0)


SOURCES: tuple[SourceName, ...] = ("postgres", "mysql", "mongodb")


def binlog_place(position: Lsn) -> Place:
    return Place(str(BinlogPlace.of_number("bin", int(position))), f"0-1-{int(position)}")


def token(position: Lsn) -> Place:
    return Place(f"82{int(position):016X}2B0429296E1404")


PLACES: dict[SourceName, PlaceOf] = {
    "postgres": lambda position: Place(str(position)),
    "mysql": binlog_place,
    "mongodb": token,
}


class CrashError(Exception):
    pass


@dataclass
class Table:
    rows: list[str] = field(default_factory=list)
    generation: str = ""
    to: Lsn | None = None
    threads: set[str] = field(default_factory=set)
    pending: dict[str, list[str]] = field(default_factory=dict)  # chunk thread id → rows
    pending_load: str = ""
    last_load: str = ""


@dataclass
class World:
    """What survives a crash: the state, the tables, the acknowledgement; and the log that is read."""

    streams: tuple[StreamId, ...]
    changes: dict[StreamId, tuple[int, ...]]  # _tx of each change
    points: dict[StreamId, Lsn]
    orders: tuple[int, ...] = (0,)  # in which order the streams of a round come to their commit
    source: SourceName = "postgres"
    state: StateDocument = field(default_factory=lambda: StateDocument.new("p"))
    tables: dict[StreamId, Table] = field(default_factory=dict)
    acknowledged: Lsn = NOWHERE
    steps: int = 0
    crash_at: int | None = None
    rounds: int = 0

    def __post_init__(self) -> None:
        self.state = StateDocument.new("p", self.source)

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.crash_at:
            raise CrashError

    def save(self, document: StateDocument) -> StateDocument:
        self.step()
        written = document.placed(PLACES[self.source])
        self.state = StateDocument(state_json.decode(state_json.encode(written.to_json())))
        return self.state

    def acknowledge(self) -> None:
        self.step()
        position = two_phase.flushed_position(self.state, self.open_points())
        assert position is not None
        assert position >= self.acknowledged
        # Whatever is acknowledged is lost at the source: every table must have it, or need it no more.
        for stream, table in self.tables.items():
            if table.to is not None:
                needed = {str(tx) for tx in self.changes[stream] if self.points[stream] <= tx < position}
                assert needed <= set(table.rows)
        self.acknowledged = position

    def open_points(self) -> list[Lsn]:
        loads = (state.stream for state in self.state.stream_states if state.is_loading)
        return [self.points[stream] for stream in loads]

    def is_thread_committed(self, stream: StreamId, thread_id: str) -> bool:
        table = self.tables.get(stream, Table())
        return thread_id in table.threads or thread_id in table.pending

    def rows(self, stream: StreamId, start: Lsn, to: Lsn) -> list[str]:
        return [str(tx) for tx in self.changes[stream] if start <= tx < to]


def state_of(document: StateDocument, stream: StreamId) -> StreamState:
    state = document.stream(stream)
    assert state is not None
    return state


def sync(world: World, target: Lsn, chunks_per_commit: int) -> None:
    recover(world)
    for stream in world.streams:
        load(world, stream, chunks_per_commit)
    for stream in world.streams:
        catch_up(world, stream, target)
    document = world.state
    if document.lsn is not None and target > document.lsn:
        start, members = document.lsn, document.global_streams
        changed = [stream for stream in members if world.rows(stream, start, target)]
        world.save(two_phase.prepare_round(document, target, changed))
        finish(world, changed)
    for stream in world.streams:
        joined = two_phase.join_global(world.state, stream)
        if joined != world.state:
            world.save(joined)
    world.acknowledge()


def recover(world: World) -> None:
    found = recovery.recover_round(world.state, set(world.streams), world.is_thread_committed)
    if found.document != world.state:
        world.save(found.document)
    if found.kind == "bounded":
        finish(world, found.streams)
    for state in world.state.stream_states:
        own = recovery.recover_stream_round(world.state, state.stream, world.is_thread_committed)
        if own.document != world.state:
            world.save(own.document)
        if own.kind == "bounded":
            finish_own(world, state.stream)
        assert (own.kind == "again") <= (world.source == "mongodb")  # then it goes on with the others


def load(world: World, stream: StreamId, chunks_per_commit: int) -> None:
    state = world.state.stream(stream)
    if state is None:
        generation = f"generation-{stream}"
        planned = two_phase.plan_load(
            world.state,
            stream,
            sync_mode="cdc",
            load_id=f"load-{stream}",
            generation=generation,
            chunks=CHUNKS,
        )
        world.save(planned)
    elif not state.is_loading:
        return
    found = recovery.recover_chunks(world.state, stream, world.is_thread_committed)
    if found.document != world.state:
        world.save(found.document)
    table = world.tables.setdefault(stream, Table())
    state = state_of(world.state, stream)
    assert state.load_id is not None
    assert state.load_generation is not None
    for first in range(0, len(found.to_read), chunks_per_commit):
        chunks = found.to_read[first : first + chunks_per_commit]
        world.save(two_phase.chunks_preparing(world.state, stream, chunks))
        world.step()
        for chunk in chunks:  # one commit
            thread_id = chunk_thread_id(stream, state.load_id, chunk)
            assert thread_id not in table.pending, "a chunk was written twice"
            table.pending[thread_id] = [f"load {chunk.min}"]
        world.save(two_phase.chunks_committed(world.state, stream, chunks))
    world.step()
    if table.last_load != state.load_id:  # the swap
        assert len(table.pending) == len(CHUNKS)
        table.rows = [row for rows in table.pending.values() for row in rows]
        table.threads, table.pending = set(table.pending), {}
        table.last_load, table.generation = state.load_id, state.load_generation
        table.to = world.points[stream]
    world.save(two_phase.load_done(world.state, stream, world.points[stream]))


def catch_up(world: World, stream: StreamId, target: Lsn) -> None:
    start = state_of(world.state, stream).cdc_from
    if start is None or target <= start:
        return
    world.save(two_phase.prepare_stream_round(world.state, stream, target))
    finish_own(world, stream)


def finish_own(world: World, stream: StreamId) -> None:
    state = state_of(world.state, stream)
    assert state.cdc_from is not None
    assert state.next_cdc_pos is not None
    changed = bool(world.rows(stream, state.cdc_from, state.next_cdc_pos))
    if changed:
        commit(world, stream, state.cdc_from, state.next_cdc_pos)
    world.save(two_phase.finish_stream_round(world.state, stream, committed=changed))
    world.acknowledge()


def finish(world: World, streams: Iterable[StreamId]) -> None:
    start, to = world.state.lsn, world.state.next_cdc_pos
    assert start is not None
    assert to is not None
    world.rounds += 1
    turn = world.orders[world.rounds % len(world.orders)]
    for stream in sorted(streams, key=lambda s: (STREAMS.index(s) + turn) % len(STREAMS)):
        commit(world, stream, start, to)
        world.save(two_phase.stream_committed(world.state, stream, to))
    world.save(two_phase.finish_round(world.state))
    world.acknowledge()


def commit(world: World, stream: StreamId, start: Lsn, to: Lsn) -> None:
    world.step()
    table, state = world.tables[stream], state_of(world.state, stream)
    assert state.generation == table.generation
    assert table.to == state.committed_to, "the table is not where the state says"
    table.rows += world.rows(stream, start, to)
    table.threads = {cdc_thread_id(stream, state.generation, start)}
    table.to = to


def run(world: World, targets: list[Lsn], crashes: Iterable[int], chunks_per_commit: int = 2) -> int:
    """Sync to each target, ending the process before the given steps; the number of crashes that struck."""
    pending, struck = list(crashes), 0
    for target in targets:
        while True:
            world.steps, world.crash_at = 0, pending.pop(0) if pending else None
            try:
                sync(world, target, chunks_per_commit)
                break
            except CrashError:
                struck += 1
    return struck


def outcome(world: World) -> tuple[StateDocument, dict[StreamId, tuple[list[str], Lsn | None]], Lsn]:
    tables = {stream: (sorted(table.rows), table.to) for stream, table in world.tables.items()}
    return world.state, tables, world.acknowledged


def world_of(count: int, source: SourceName = "postgres") -> World:
    streams = STREAMS[:count]
    changes = {STREAMS[0]: (11, 25, 31, 45), STREAMS[1]: (8, 26, 28), STREAMS[2]: (33, 41)}
    points = {STREAMS[0]: Lsn(10), STREAMS[1]: Lsn(12), STREAMS[2]: Lsn(10)}
    return World(streams, changes, points, source=source)


def stands_at(world: World) -> set[Lsn | None]:
    """The positions of all streams."""
    own = {state.cdc_from for state in world.state.stream_states}
    if world.source == "mongodb":
        assert world.state.lsn is None
        return own
    assert set(world.state.global_streams) == set(world.streams)
    assert own == {None}
    return {world.state.lsn}


TARGETS = [Lsn(20), Lsn(30), Lsn(50)]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_model_itself_holds_every_row_once(count: int, source: SourceName) -> None:
    world = world_of(count, source)
    run(world, TARGETS, [])
    for stream in world.streams:
        expected = ["load None", "load 1", "load 2", *world.rows(stream, world.points[stream], Lsn(50))]
        assert sorted(world.tables[stream].rows) == sorted(expected)
    assert stands_at(world) == {50}
    assert world.acknowledged == 50


@pytest.mark.parametrize(
    ("source", "count", "chunks_per_commit"),
    [
        *(("postgres", count, chunks) for count in (1, 2, 3) for chunks in (1, 2, 3)),
        *((source, count, 2) for source in SOURCES[1:] for count in (1, 2, 3)),
    ],
)
def test_a_crash_before_any_step_changes_nothing_in_the_end(
    source: SourceName, count: int, chunks_per_commit: int
) -> None:
    reference = world_of(count, source)
    run(reference, TARGETS, [], chunks_per_commit)
    for round_number in range(len(TARGETS)):
        crash_at = 1
        while True:
            world = world_of(count, source)
            run(world, TARGETS[:round_number], [], chunks_per_commit)
            struck = run(world, TARGETS[round_number:], [crash_at], chunks_per_commit)
            assert outcome(world) == outcome(reference), (
                f"crash before step {crash_at} of round {round_number}"
            )
            if not struck:
                break
            crash_at += 1
        assert crash_at > 5


@pytest.mark.parametrize("source", SOURCES)
def test_a_crash_during_the_recovery_from_a_crash_changes_nothing_in_the_end(source: SourceName) -> None:
    reference = world_of(2, source)
    run(reference, TARGETS, [])
    pairs = 0
    for first in range(1, 40):
        for second in range(1, 40):
            world = world_of(2, source)
            if run(world, TARGETS, [first, second]) < 2:
                break
            pairs += 1
            assert outcome(world) == outcome(reference), f"crashes before steps {first}, {second}"
    assert pairs > 200


transactions = st.lists(st.integers(1, 60), max_size=6, unique=True).map(lambda tx: tuple(sorted(tx)))


@settings(max_examples=300, deadline=None)
@given(
    changes=st.tuples(transactions, transactions, transactions),
    points=st.tuples(*[st.integers(5, 30).map(Lsn)] * 3),
    cuts=st.lists(st.integers(31, 70).map(Lsn), min_size=1, max_size=3, unique=True).map(sorted),
    crashes=st.lists(st.integers(1, 30), max_size=5),
    count=st.integers(1, 3),
    orders=st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple),
    source=st.sampled_from(SOURCES),
)
def test_whatever_changes_orders_and_crashes_come_every_row_is_there_once(
    *,
    changes: tuple[tuple[int, ...], ...],
    points: tuple[Lsn, ...],
    cuts: list[Lsn],
    crashes: list[int],
    count: int,
    orders: tuple[int, ...],
    source: SourceName,
) -> None:
    def fresh() -> World:
        streams = STREAMS[:count]
        return World(
            streams,
            dict(zip(STREAMS, changes, strict=True)),
            dict(zip(STREAMS, points, strict=True)),
            source=source,
        )

    reference, world = fresh(), fresh()
    world.orders = orders
    run(reference, cuts, [])
    run(world, cuts, crashes)
    assert outcome(world) == outcome(reference)
    for stream in world.streams:
        expected = ["load None", "load 1", "load 2", *world.rows(stream, world.points[stream], cuts[-1])]
        assert sorted(world.tables[stream].rows) == sorted(expected)


@pytest.mark.parametrize("source", SOURCES)
def test_writers_going_on_between_crash_and_resume_lose_nothing(source: SourceName) -> None:
    for crash_at in range(1, 40):
        world = world_of(3, source)
        run(world, TARGETS[:1], [])
        world.steps, world.crash_at = 0, crash_at
        try:
            sync(world, TARGETS[1], 2)
        except CrashError:
            world.crash_at = None
            sync(world, TARGETS[2], 2)  # the resumed run has a later target than the one that crashed
            for stream in world.streams:
                expected = [
                    "load None",
                    "load 1",
                    "load 2",
                    *world.rows(stream, world.points[stream], Lsn(50)),
                ]
                assert sorted(world.tables[stream].rows) == sorted(expected)
            assert stands_at(world) == {50}

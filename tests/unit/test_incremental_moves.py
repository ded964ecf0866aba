"""The moves and recovery decisions of incremental streams: the contract's table, and every crash point."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.cursor import CursorValue, cursors_from_json, cursors_to_json, number_value, time_value
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.destinations.moves import follows
from penstock.destinations.records import Marker
from penstock.ledger import incremental, state_check, two_phase
from penstock.ledger.state import Chunk, StateDocument
from penstock.ledger.state_json import decode, encode
from penstock.ledger.threads import incremental_thread_id

A = StreamId("public", "a")
NAMES = ("id", "created_at")
CHUNKS = (Chunk(None, 10), Chunk(10, None))
START: dict[str, CursorValue] = {"id": 100, "created_at": "2024-01-15T10:30:00Z"}


def planned(
    document: StateDocument | None = None, noted: dict[str, CursorValue] | None = None
) -> StateDocument:
    document = two_phase.plan_load(
        document or StateDocument.new("p"),
        A,
        sync_mode="incremental",
        load_id="load",
        generation="g",
        chunks=CHUNKS,
    )
    return incremental.note_load(document, A, NAMES, START if noted is None else noted)


def loaded(noted: dict[str, CursorValue] | None = None) -> StateDocument:
    return incremental.load_moved(two_phase.load_done(planned(noted=noted), A, None), A)


def fields(document: StateDocument) -> dict[str, Any]:
    [entry] = document.to_json()["streams"]
    return {name: value for name, value in entry["state"].items() if name != "penstock"}


def answer(*thread_ids: str) -> Any:
    return lambda stream, thread_id: thread_id in thread_ids


# The contract's table


def test_a_load_notes_its_cursors_with_its_chunks_and_has_them_when_it_is_done() -> None:
    assert fields(planned()) == {
        "chunks": [{"min": None, "max": 10}, {"min": 10, "max": None}],
        "olake_next_cursor_id": 100,
        "olake_next_cursor_created_at": "2024-01-15T10:30:00Z",
    }
    assert fields(loaded()) == {"chunks": [], **START}
    assert loaded().type == "STREAM"


def test_before_the_commit_both_values_are_there_and_after_it_the_new_one_alone() -> None:
    prepared = incremental.prepare(loaded(), A, {"id": 150})
    assert fields(prepared) == {
        "chunks": [],
        **START,
        "olake_next_cursor_id": 150,
        "olake_next_cursor_created_at": "2024-01-15T10:30:00Z",
    }
    assert fields(incremental.move(prepared, A)) == {"chunks": [], **START, "id": 150}
    assert fields(incremental.give_up(prepared, A)) == {"chunks": [], **START}


def test_recovery_rolls_forward_what_the_destination_has_and_back_what_it_has_not() -> None:
    prepared = incremental.prepare(loaded(), A, {"id": 150})
    from_start = incremental_thread_id(A, "g", START, NAMES)
    forward = incremental.recover(prepared, A, answer(from_start))
    assert (forward.kind, fields(forward.document)["id"]) == ("forward", 150)
    back = incremental.recover(prepared, A, answer())
    assert (back.kind, back.document) == ("back", loaded())
    for found in (forward, back):
        assert incremental.recover(found.document, A, answer(from_start)).kind == "none"


def test_a_load_under_way_is_not_taken_for_a_round() -> None:
    found = incremental.recover(planned(), A, answer())
    assert (found.kind, found.document) == ("none", planned())


def test_an_imported_state_has_nothing_in_our_destination() -> None:
    raw = {
        "type": "STREAM",
        "streams": [
            {
                "stream": "a",
                "namespace": "public",
                "sync_mode": "incremental",
                "state": {"id": 100, "olake_next_cursor_id": 150, "chunks": []},
            }
        ],
    }
    found = incremental.recover(StateDocument(raw), A, lambda stream, thread_id: True)
    assert (found.kind, fields(found.document)) == ("back", {"id": 100, "chunks": []})


def test_a_reload_keeps_the_old_cursors_until_it_is_done_and_drops_what_it_has_not() -> None:
    again = planned(loaded(), {"id": 7})
    assert fields(again)["id"] == 100
    assert incremental.cursors(again, A, NAMES) == START
    done = incremental.load_moved(two_phase.load_done(again, A, None), A)
    assert fields(done) == {"chunks": [], "id": 7}


def test_a_stream_of_another_mode_keeps_no_cursor() -> None:
    assert fields(incremental.forget(loaded(), A)) == {"chunks": []}
    assert incremental.forget(incremental.forget(loaded(), A), A) == incremental.forget(loaded(), A)


def test_a_table_that_is_ahead_is_believed() -> None:
    adopted = incremental.adopt(incremental.prepare(loaded(), A, {"id": 150}), A, {"id": 200})
    assert fields(adopted) == {"chunks": [], "id": 200}


@pytest.mark.parametrize("advanced", [{}, {"id": 100}, {"other": 5}])
def test_a_round_that_advances_none_of_its_cursors_is_not_prepared(advanced: dict[str, CursorValue]) -> None:
    with pytest.raises(ValueError, match=r"public\.a"):
        incremental.prepare(loaded(), A, advanced)


def test_two_rounds_are_not_open_at_once() -> None:
    with pytest.raises(ValueError, match="already open"):
        incremental.prepare(incremental.prepare(loaded(), A, {"id": 150}), A, {"id": 160})


def test_state_check_has_nothing_against_an_open_round() -> None:
    for document in (planned(), loaded(), incremental.prepare(loaded(), A, {"id": 150})):
        assert state_check.problems(document) == []


# Values


EXACT: list[CursorValue] = [
    0,
    -(2**63),
    2**63 - 1,
    10**40,
    Decimal("0.12345678901234567890"),
    Decimal("5.00"),
    Decimal("0.0000000001"),
    "2024-01-15T10:30:00.123456Z",
    "0044-03-15 12:00:00+00 BC",
    "-infinity",
    'text with "quotes" and 1e5',
    "5.00",
]


@pytest.mark.parametrize("value", EXACT)
def test_a_value_keeps_its_type_and_every_digit_in_state_and_marker(value: CursorValue) -> None:
    document = StateDocument(decode(encode(loaded({"id": value}).to_json())))
    kept = incremental.cursors(document, A, NAMES)["id"]
    assert (type(kept), str(kept)) == (type(value), str(value))
    [again] = cursors_from_json(json.loads(json.dumps(cursors_to_json({"id": value})))).values()
    assert (type(again), str(again)) == (type(value), str(value))


def test_other_starts_generations_and_types_have_other_thread_ids() -> None:
    starts: list[dict[str, CursorValue]] = [
        {},
        {"id": 5},
        {"id": "5"},
        {"id": Decimal("5.0")},
        {"created_at": 5},
        {"id": 5, "created_at": 5},
    ]
    ids = {incremental_thread_id(A, generation, start, NAMES) for generation in "gh" for start in starts}
    assert len(ids) == 12
    assert incremental_thread_id(A, "g", {"id": 5}, NAMES) == incremental_thread_id(A, "g", {"id": 5}, NAMES)


@pytest.mark.parametrize(
    ("printed", "kept"),
    [
        ("2024-01-15 10:30:00+00", "2024-01-15T10:30:00Z"),
        ("2024-01-15 10:30:00.000001", "2024-01-15T10:30:00.000001Z"),
        ("10000-01-01 00:00:00+00", "10000-01-01 00:00:00+00"),
        ("0044-03-15 00:00:00 BC", "0044-03-15 00:00:00 BC"),
        ("-infinity", "-infinity"),
    ],
)
def test_times_are_kept_as_rfc_3339_where_it_has_a_form_for_them(printed: str, kept: str) -> None:
    assert time_value(printed) == kept


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_any_number_is_kept_with_all_its_digits(value: Decimal) -> None:
    text = format(value, "f")
    assert Decimal(str(number_value(text))) == value


def test_a_marker_without_a_cursor_is_written_as_ever() -> None:
    marker = Marker("g", Lsn(5), Lsn(1), Lsn(2), ("t",))
    assert "cursor" not in marker.to_json()
    assert Marker.from_json(marker.to_json()) == marker
    by_cursor = Marker("g", Lsn(5), None, None, ("t",), {"id": 5})
    assert Marker.from_json(by_cursor.to_json()) == by_cursor
    assert follows(by_cursor, None)
    assert not follows(by_cursor, Lsn(1))
    assert not follows(Marker("g", Lsn(5), None, None, ("t",)), None)


# Every crash point: a source whose rows change and commit late, a table, a state


class CrashError(Exception):
    pass


@dataclass
class World:
    """What survives a crash. `source` has for each key its newest cursor and a version nobody else has."""

    lookback: int = 3
    source: dict[int, tuple[int, int]] = field(default_factory=dict)
    state: StateDocument = field(default_factory=lambda: StateDocument.new("p"))
    rows: dict[int, tuple[int, int]] = field(default_factory=dict)
    marker: tuple[str, ...] = ()
    cursor: dict[str, CursorValue] = field(default_factory=dict)
    pending: dict[int, tuple[int, int]] | None = None
    steps: int = 0
    crash_at: int | None = None

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.crash_at:
            raise CrashError

    def save(self, document: StateDocument) -> None:
        if document != self.state:
            self.step()
            self.state = document


def sync(world: World) -> None:
    """As the lane does it; each `step` is a durable effect."""
    found = incremental.recover(world.state, A, lambda stream, thread_id: thread_id in world.marker)
    world.save(found.document)
    state = world.state.stream(A)
    if state is None or state.is_loading:
        load(world)
    else:
        advance(world)


def load(world: World) -> None:
    seen = dict(world.source)
    noted: dict[str, CursorValue] = {"c": max(n for n, _ in seen.values())} if seen else {}
    document = two_phase.plan_load(
        world.state, A, sync_mode="incremental", load_id="l", generation="g", chunks=CHUNKS
    )
    world.save(incremental.note_load(document, A, ["c"], noted))
    world.save(two_phase.chunks_preparing(world.state, A, CHUNKS))
    world.step()
    world.pending = seen
    world.save(two_phase.chunks_committed(world.state, A, CHUNKS))
    world.step()
    world.rows, world.cursor = world.pending, incremental.noted_by_load(world.state, A)
    world.marker = ("chunks",)
    world.save(incremental.load_moved(two_phase.load_done(world.state, A, None), A))


def advance(world: World) -> None:
    start = incremental.cursors(world.state, A, ["c"])
    assert start == world.cursor, "the commit would be refused"
    seen = dict(world.source)
    last = start.get("c")
    greatest = max((n for n, _ in seen.values()), default=None)
    advanced: dict[str, CursorValue] = {}
    if greatest is not None and (last is None or greatest > int(last)):
        advanced = {"c": greatest}
        world.save(incremental.prepare(world.state, A, advanced))
    low = -1 if last is None else int(last) - world.lookback
    window = {key: row for key, row in seen.items() if row[0] >= low}
    if advanced or any(world.rows.get(key) != row for key, row in window.items()):
        world.step()
        world.rows = {**world.rows, **window}
        if advanced:
            world.marker = (incremental_thread_id(A, "g", start, ["c"]),)
            world.cursor = {**start, **advanced}
    if advanced:
        world.save(incremental.move(world.state, A))


def write(world: World, writes: Iterable[tuple[int, int]], version: int) -> None:
    """Rows whose cursors are at most `lookback` behind the greatest one."""
    clock = max((n for n, _ in world.source.values()), default=0)
    for key, step in writes:
        newest = max(0, clock + step)
        if key not in world.source or world.source[key][0] <= newest:
            world.source[key] = (newest, version)
            clock = max(clock, newest)


def run(world: World, rounds: list[list[tuple[int, int]]], crashes: list[int]) -> int:
    struck = 0
    left = list(crashes)
    for version, writes in enumerate(rounds):
        # Late rows may lag behind what the last sync has seen, by no more than the lookback.
        write(world, writes, version)
        while True:
            world.steps, world.crash_at = 0, left.pop(0) if left else None
            try:
                sync(world)
                break
            except CrashError:
                struck += 1
    world.crash_at = None
    sync(world)
    return struck


ROUNDS = [[(1, 5), (2, 1)], [(3, 0), (1, 2)], [(4, -3)], [], [(2, 4), (5, -1)]]


def test_a_crash_before_any_step_changes_nothing_in_the_end() -> None:
    for first in range(1, 30):
        for second in range(1, 30):
            world = World()
            struck = run(world, ROUNDS, [first, second])
            assert world.rows == world.source, f"crashes before steps {first}, {second}"
            assert incremental.cursors(world.state, A, ["c"]) == world.cursor
            if not struck:
                break
    assert first > 5


writes = st.lists(st.tuples(st.integers(1, 6), st.integers(-3, 6)), max_size=5)


@settings(max_examples=300)
@given(rounds=st.lists(writes, min_size=1, max_size=6), crashes=st.lists(st.integers(1, 8), max_size=8))
def test_whatever_is_written_and_wherever_it_crashes_every_row_ends_as_the_source_has_it(
    rounds: list[list[tuple[int, int]]], crashes: list[int]
) -> None:
    world = World()
    run(world, rounds, crashes)
    assert world.rows == world.source
    assert incremental.next_cursors(world.state, A) is None

"""The moves of the two-phase commit and the recovery decisions, row by row of the contract's tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.core.errors import StateError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.ledger import recovery, two_phase
from penstock.ledger.state import Chunk, StateDocument, StreamState
from penstock.ledger.threads import cdc_thread_id, chunk_thread_id, new_generation

A, B, C = (StreamId("public", name) for name in ("a", "b", "c"))
CHUNKS = (Chunk(None, 10), Chunk(10, 20), Chunk(20, None))


def state_of(document: StateDocument, stream: StreamId) -> StreamState:
    state = document.stream(stream)
    assert state is not None
    return state


def raw_state(document: StateDocument, stream: StreamId) -> dict[str, Any]:
    entries = document.to_json()["streams"]
    return next(
        e["state"] for e in entries if (e["namespace"], e["stream"]) == (stream.namespace, stream.name)
    )


def loading(stream: StreamId = A) -> StateDocument:
    return two_phase.plan_load(
        StateDocument.new("p"), stream, sync_mode="cdc", load_id="load", generation="g", chunks=CHUNKS
    )


def level(*streams: StreamId, lsn: int = 100) -> StateDocument:
    document = StateDocument.new("p")
    for stream in streams:
        document = two_phase.plan_load(
            document, stream, sync_mode="cdc", load_id="load", generation=f"g-{stream.name}", chunks=CHUNKS
        )
        document = two_phase.load_done(document, stream, Lsn(lsn))
        document = two_phase.join_global(document, stream)
    return document


def committed_at(*thread_ids: str) -> recovery.IsThreadCommitted:
    return lambda stream, thread_id: thread_id in thread_ids


def nothing_is_committed(stream: StreamId, thread_id: str) -> bool:
    return False


def everything_is_committed(stream: StreamId, thread_id: str) -> bool:
    return True


def thread(stream: StreamId, start: int = 100) -> str:
    return cdc_thread_id(stream, f"g-{stream.name}", Lsn(start))


# Full refresh


def test_planned_chunks_are_listed_without_status() -> None:
    assert raw_state(loading(), A)["chunks"] == [
        {"min": None, "max": 10},
        {"min": 10, "max": 20},
        {"min": 20, "max": None},
    ]


def test_a_chunk_of_a_leaf_names_its_leaf() -> None:
    chunk = Chunk("(0,0)", None, leaf="public.a_2026")
    document = two_phase.plan_load(
        StateDocument.new(), A, sync_mode="full_refresh", load_id="l", generation="g", chunks=[chunk]
    )
    assert raw_state(document, A)["chunks"] == [{"min": "(0,0)", "max": None, "leaf": "public.a_2026"}]


def test_a_picked_up_chunk_is_preparing_and_a_committed_one_is_removed() -> None:
    document = two_phase.chunks_preparing(loading(), A, CHUNKS[:2])
    assert [chunk.preparing for chunk in state_of(document, A).chunks or ()] == [True, True, False]
    document = two_phase.chunks_committed(document, A, CHUNKS[:1])
    assert raw_state(document, A)["chunks"] == [
        {"min": 10, "max": 20, "status": "preparing"},
        {"min": 20, "max": None},
    ]


def test_the_list_does_not_empty_before_the_swap() -> None:
    document = two_phase.chunks_preparing(loading(), A, CHUNKS)
    document = two_phase.chunks_committed(document, A, CHUNKS)
    state = state_of(document, A)
    assert not state.has_completed_backfill
    assert recovery.recover_chunks(document, A, everything_is_committed).to_read == ()
    done = two_phase.load_done(document, A, Lsn(100))
    assert raw_state(done, A)["chunks"] == []
    assert state_of(done, A).has_completed_backfill


def test_chunks_found_committed_are_not_read_again() -> None:
    document = two_phase.chunks_preparing(loading(), A, CHUNKS[:2])
    answer = committed_at(chunk_thread_id(A, "load", CHUNKS[0]))
    recovered = recovery.recover_chunks(document, A, answer)
    assert recovered.committed == CHUNKS[:1]
    assert recovered.to_read == CHUNKS[1:]
    assert state_of(recovered.document, A).chunks == CHUNKS[1:]


def test_a_chunk_that_was_not_picked_up_is_not_asked_for() -> None:
    asked: list[str] = []

    def answer(stream: StreamId, thread_id: str) -> bool:
        asked.append(thread_id)
        return True

    document = two_phase.chunks_preparing(loading(), A, CHUNKS[:1])
    assert recovery.recover_chunks(document, A, answer).to_read == CHUNKS[1:]
    assert asked == [chunk_thread_id(A, "load", CHUNKS[0])]


def test_another_load_has_other_thread_ids() -> None:
    chunk = Chunk(0, 5)
    ids = {
        chunk_thread_id(A, "one", chunk),
        chunk_thread_id(A, "two", chunk),
        chunk_thread_id(B, "one", chunk),
        chunk_thread_id(A, "one", Chunk(0, 6)),
        chunk_thread_id(A, "one", Chunk("0", 5)),
        chunk_thread_id(A, "one", Chunk(0, 5, leaf="public.a_1")),
        chunk_thread_id(StreamId("public.a", "b"), "one", chunk),
        chunk_thread_id(StreamId("public", "a.b"), "one", chunk),
        cdc_thread_id(A, "one", Lsn(5)),
        cdc_thread_id(A, "one", Lsn(6)),
        cdc_thread_id(A, "two", Lsn(5)),
    }
    assert len(ids) == 11
    assert new_generation() != new_generation()


def test_thread_ids_are_the_same_on_every_machine() -> None:
    assert chunk_thread_id(A, "load", Chunk(1, None)) == chunk_thread_id(A, "load", Chunk(1, None))
    assert cdc_thread_id(A, "g", Lsn.parse("0/64")) == "cdc-public.a-539e25f5c0902cf16f18aa364c58e21b"


def test_a_live_table_keeps_its_generation_and_its_place_until_the_new_load_is_swapped_in() -> None:
    document = two_phase.plan_load(
        level(A, B), A, sync_mode="cdc", load_id="second", generation="new", chunks=CHUNKS
    )
    state = state_of(document, A)
    assert (state.generation, state.load_generation, state.load_id) == ("g-a", "new", "second")
    assert A in document.global_streams
    document = two_phase.load_done(document, A, Lsn(150))
    state = state_of(document, A)
    assert (state.generation, state.load_generation) == ("new", "new")
    assert (state.cdc_from, state.committed_to) == (150, 150)
    assert document.global_streams == (B,)


def test_a_full_refresh_without_cdc_needs_no_position() -> None:
    document = two_phase.load_done(loading(), A, None)
    assert document.type == "STREAM"
    assert raw_state(document, A) == {"chunks": [], "penstock": {"load_id": "load", "generation": "g"}}
    assert two_phase.flushed_position(document, []) is None


# Rounds


def test_a_round_goes_through_its_fields_in_order() -> None:
    document = two_phase.prepare_round(level(A, B, C), Lsn(200), [B, A])
    fields = document.to_json()["global"]["state"]
    assert fields == {"lsn": "0/64", "next_cdc_pos": "0/C8", "processing": ["public.a", "public.b"]}
    document = two_phase.stream_committed(document, A, Lsn(200))
    assert document.to_json()["global"]["state"]["processing"] == ["public.b"]
    document = two_phase.stream_committed(document, B, Lsn(200))
    assert document.to_json()["global"]["state"] == {"lsn": "0/64", "next_cdc_pos": "0/C8"}
    document = two_phase.finish_round(document)
    assert document.to_json()["global"]["state"] == {"lsn": "0/C8"}
    assert [state.committed_to for state in document.stream_states] == [200, 200, 100]


def test_the_first_stream_brings_the_global_position_and_others_join_when_level() -> None:
    document = level(A, lsn=100)
    assert document.to_json()["global"] == {"state": {"lsn": "0/64"}, "streams": ["public.a"]}
    assert "cdc_from" not in raw_state(document, A)
    document = two_phase.plan_load(
        document, B, sync_mode="cdc", load_id="l", generation="g", chunks=[Chunk(None, None)]
    )
    document = two_phase.load_done(document, B, Lsn(150))
    assert two_phase.join_global(document, B) == document
    document = two_phase.finish_round(two_phase.prepare_round(document, Lsn(150), []))
    assert two_phase.join_global(document, B).global_streams == (A, B)


def test_no_stream_joins_while_a_round_is_open() -> None:
    document = two_phase.load_done(
        two_phase.plan_load(level(A), B, sync_mode="cdc", load_id="l", generation="g", chunks=CHUNKS),
        B,
        Lsn(100),
    )
    document = two_phase.prepare_round(document, Lsn(200), [A])
    assert two_phase.join_global(document, B) == document
    document = two_phase.finish_round(two_phase.stream_committed(document, A, Lsn(200)))
    assert two_phase.join_global(document, B) == document  # (100, 200] is still missing there


def test_a_global_position_that_no_stream_stands_at_binds_nobody() -> None:
    document = two_phase.remove_stream(level(A, lsn=100), A)
    document = two_phase.load_done(
        two_phase.plan_load(document, B, sync_mode="cdc", load_id="l", generation="g", chunks=CHUNKS),
        B,
        Lsn(300),
    )
    assert two_phase.flushed_position(document, []) == 300
    assert two_phase.join_global(document, B).lsn == 300


def test_a_paused_stream_stands_by_itself() -> None:
    document = two_phase.leave_global(level(A, B), A)
    assert document.global_streams == (B,)
    assert state_of(document, A).cdc_from == 100
    document = two_phase.prepare_round(document, Lsn(200), [B])
    document = two_phase.finish_round(two_phase.stream_committed(document, B, Lsn(200)))
    assert two_phase.flushed_position(document, []) == 100


def test_flushed_is_the_least_of_all_positions() -> None:
    document = two_phase.leave_global(level(A, B, lsn=100), A)
    document = two_phase.finish_round(two_phase.prepare_round(document, Lsn(200), []))
    assert two_phase.flushed_position(document, []) == 100
    assert two_phase.flushed_position(document, [Lsn(90), Lsn(300)]) == 90
    assert two_phase.flushed_position(level(B, lsn=70), [Lsn(80)]) == 70
    assert two_phase.flushed_position(StateDocument.new(), []) is None


@pytest.mark.parametrize(
    "move",
    [
        lambda: two_phase.prepare_round(level(A), Lsn(100), [A]),
        lambda: two_phase.prepare_round(level(A), Lsn(200), [B]),
        lambda: two_phase.prepare_round(two_phase.prepare_round(level(A), Lsn(200), []), Lsn(300), []),
        lambda: two_phase.prepare_round(StateDocument.new(), Lsn(200), []),
        lambda: two_phase.finish_round(level(A)),
        lambda: two_phase.finish_round(two_phase.prepare_round(level(A), Lsn(200), [A])),
        lambda: two_phase.stream_committed(two_phase.prepare_round(level(A), Lsn(200), [A]), A, Lsn(150)),
        lambda: two_phase.chunks_preparing(loading(), A, [Chunk(5, 6)]),
        lambda: two_phase.chunks_committed(loading(), A, CHUNKS[:1]),
        lambda: two_phase.load_done(two_phase.prepare_round(level(A), Lsn(200), [A]), A, Lsn(100)),
        lambda: two_phase.load_done(StateDocument.new(), A, Lsn(100)),
        lambda: two_phase.prepare_stream_round(level(A), A, Lsn(200)),
        lambda: two_phase.finish_stream_round(level(A), A),
        lambda: two_phase.leave_global(StateDocument.new(), A),
        lambda: two_phase.plan_load(
            StateDocument.new(), A, sync_mode="cdc", load_id="l", generation="g", chunks=[]
        ),
    ],
)
def test_a_move_that_does_not_fit_is_refused(move: Callable[[], StateDocument]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        move()


# Recovery of rounds


def test_without_temporary_fields_nothing_is_recovered() -> None:
    recovered = recovery.recover_round(level(A), {A}, nothing_is_committed)
    assert (recovered.kind, recovered.document, recovered.acknowledge) == ("none", level(A), False)


def test_cleanup_pending_moves_the_position_and_acknowledges() -> None:
    document = two_phase.prepare_round(level(A), Lsn(200), [])
    recovered = recovery.recover_round(document, {A}, nothing_is_committed)
    assert (recovered.kind, recovered.acknowledge) == ("finish", True)
    assert recovered.document.to_json()["global"]["state"] == {"lsn": "0/C8"}


def test_after_a_partial_commit_only_the_uncommitted_stream_is_read_again() -> None:
    document = two_phase.prepare_round(level(A, B, C), Lsn(200), [A, B, C])
    recovered = recovery.recover_round(document, {A, B, C}, committed_at(thread(A), thread(C)))
    assert (recovered.kind, recovered.streams, recovered.acknowledge) == ("bounded", (B,), False)
    assert (recovered.start, recovered.to) == (100, 200)
    assert recovered.document.processing == (B,)
    assert recovered.document.lsn == 100
    assert state_of(recovered.document, A).committed_to == 200
    assert state_of(recovered.document, B).committed_to == 100


def test_a_round_whose_streams_are_all_committed_is_finished() -> None:
    document = two_phase.prepare_round(level(A, B), Lsn(200), [A, B])
    recovered = recovery.recover_round(document, {A, B}, committed_at(thread(A), thread(B)))
    assert (recovered.kind, recovered.acknowledge, recovered.document.lsn) == ("finish", True, 200)
    assert recovered.document.next_cdc_pos is None


def test_a_removed_stream_does_not_hold_the_round() -> None:
    document = two_phase.prepare_round(level(A, B), Lsn(200), [A])
    recovered = recovery.recover_round(document, {B}, nothing_is_committed)
    assert (recovered.kind, recovered.dropped, recovered.acknowledge) == ("finish", (A,), True)
    assert recovered.document.to_json()["global"] == {"state": {"lsn": "0/C8"}, "streams": ["public.b"]}
    assert recovered.document.stream(A) is None


def test_a_removed_stream_beside_an_uncommitted_one_leaves_the_round_bounded() -> None:
    document = two_phase.prepare_round(level(A, B), Lsn(200), [A, B])
    recovered = recovery.recover_round(document, {B}, nothing_is_committed)
    assert (recovered.kind, recovered.streams, recovered.dropped) == ("bounded", (B,), (A,))
    assert recovered.document.processing == (B,)


def test_the_thread_of_an_earlier_generation_is_not_taken_for_ours() -> None:
    document = two_phase.prepare_round(level(A), Lsn(200), [A])
    old = cdc_thread_id(A, "generation-before", Lsn(100))
    assert recovery.recover_round(document, {A}, committed_at(old)).kind == "bounded"


def test_a_round_of_an_imported_file_is_bounded() -> None:
    raw = {
        "type": "GLOBAL",
        "global": {
            "state": {"lsn": "0/64", "next_cdc_pos": "0/C8", "processing": ["public.a"]},
            "streams": ["public.a"],
        },
        "streams": [{"stream": "a", "namespace": "public", "sync_mode": "cdc", "state": {"chunks": []}}],
    }
    recovered = recovery.recover_round(StateDocument(raw), {A}, everything_is_committed)
    assert (recovered.kind, recovered.streams) == ("bounded", (A,))


def test_recovery_may_be_repeated() -> None:
    document = two_phase.prepare_round(level(A, B, C), Lsn(200), [A, B, C])
    answer = committed_at(thread(A))
    once = recovery.recover_round(document, {A, B}, answer)
    again = recovery.recover_round(once.document, {A, B}, answer)
    assert (again.kind, again.streams, again.document) == (once.kind, once.streams, once.document)


@pytest.mark.parametrize("fields", [{"processing": ["public.a"]}, {"next_cdc_pos": "0/1"}])
def test_a_state_that_contradicts_itself_is_a_clear_error(fields: dict[str, Any]) -> None:
    draft = level(A).draft()
    draft.global_state().update(fields)
    with pytest.raises(StateError, match="contradicts itself"):
        recovery.recover_round(draft.done(), {A}, nothing_is_committed)


def alone(lsn: int = 100) -> StateDocument:
    return two_phase.leave_global(level(A, B, lsn=lsn), A)


def test_a_stream_that_is_not_level_recovers_by_itself() -> None:
    document = two_phase.prepare_stream_round(alone(), A, Lsn(200))
    assert raw_state(document, A)["next_cdc_pos"] == "0/C8"
    bounded = recovery.recover_stream_round(document, A, nothing_is_committed)
    assert (bounded.kind, bounded.streams, bounded.start, bounded.to) == ("bounded", (A,), 100, 200)
    finished = recovery.recover_stream_round(document, A, committed_at(thread(A)))
    assert finished.kind == "finish"
    state = state_of(finished.document, A)
    assert (state.cdc_from, state.next_cdc_pos, state.committed_to) == (200, None, 200)
    assert recovery.recover_stream_round(finished.document, A, nothing_is_committed).kind == "none"
    assert recovery.recover_round(document, {A, B}, nothing_is_committed).kind == "none"


def test_a_quiet_stream_moves_on_without_a_commit() -> None:
    document = two_phase.prepare_stream_round(alone(), A, Lsn(200))
    document = two_phase.finish_stream_round(document, A, committed=False)
    state = state_of(document, A)
    assert (state.cdc_from, state.committed_to) == (200, 100)

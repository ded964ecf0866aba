"""Pausing and decided reloads as moves of the state: nothing but the stream itself is touched."""

from __future__ import annotations

from penstock.core.position import Lsn
from penstock.ledger import pausing, two_phase
from penstock.ledger.state import Chunk, Paused, Reload, StateDocument
from tests.unit.test_two_phase import A, B, level, state_of

SINCE = "2026-01-01T00:00:00+00:00"


def pause(document: StateDocument) -> StateDocument:
    return pausing.paused(document, A, since=SINCE, reason="a migration")


def test_a_paused_stream_keeps_its_position_and_leaves_the_others() -> None:
    document = pause(level(A, B))
    assert document.global_streams == (B,)
    assert state_of(document, A).cdc_from == Lsn(100)
    assert state_of(document, A).paused == Paused(SINCE, "a migration")
    moved = two_phase.finish_round(two_phase.prepare_round(document, Lsn(200), []))
    assert two_phase.flushed_position(moved, []) == Lsn(100), "the log is kept for the paused stream"


def test_pausing_twice_keeps_the_first_mark_and_resuming_takes_it_away() -> None:
    document = pause(level(A, B))
    again = pausing.paused(document, A, since="later", reason="other")
    assert again == document
    resumed = pausing.resumed(document, A)
    assert state_of(resumed, A).paused is None
    assert state_of(resumed, A).cdc_from == Lsn(100)
    assert two_phase.join_global(resumed, A).global_streams == (B, A)
    assert pausing.resumed(resumed, A) == resumed


def test_a_stream_paused_inside_an_open_round_leaves_when_the_round_is_done() -> None:
    open_round = two_phase.prepare_round(level(A, B), Lsn(200), [A, B])
    document = pause(open_round)
    assert document.processing == (A, B), "the others wait for the round as it was prepared"
    for stream in (A, B):
        document = two_phase.stream_committed(document, stream, Lsn(200))
    document = pausing.stand_aside(two_phase.finish_round(document))
    assert document.global_streams == (B,)
    assert state_of(document, A).cdc_from == Lsn(200)


def test_a_stream_that_was_never_synced_can_be_paused() -> None:
    document = pausing.paused(StateDocument.new("p"), A, since=SINCE, reason="", sync_mode="full_refresh")
    assert state_of(document, A).sync_mode == "full_refresh"
    assert state_of(document, A).chunks is None
    assert two_phase.flushed_position(document, []) is None


def test_a_decided_reload_is_remembered_until_its_load_is_planned() -> None:
    document = pausing.to_be_loaded(level(A), A, "it was not in the publication")
    document = pausing.to_be_loaded(document, A, "it was asked for", replace=True)
    reload = state_of(document, A).reload
    assert reload is not None
    assert (reload.reason, reload.replace) == ("it was not in the publication", True)
    planned = two_phase.plan_load(
        document, A, sync_mode="cdc", load_id="l", generation="g", chunks=[Chunk(None, None)]
    )
    assert state_of(planned, A).reload is None
    assert state_of(planned, A).load_replaces
    assert not state_of(two_phase.load_done(planned, A, Lsn(300)), A).load_replaces


def test_a_decided_comparison_is_remembered_until_it_is_committed_or_taken_back() -> None:
    document = pausing.to_be_compared(StateDocument.new("p"), {A: "cdc"}, "a new slot")
    assert state_of(document, A).reload == Reload("a new slot", replace=False, by_difference=True)
    assert state_of(document, A).chunks is None, "nothing of it is known"
    whole = pausing.to_be_loaded_whole(document, A)
    assert state_of(whole, A).reload == Reload("a new slot", replace=False)
    assert pausing.to_be_loaded_whole(whole, A) == whole
    replaced = pausing.to_be_loaded(document, A, "it was asked for", replace=True)
    assert state_of(replaced, A).reload == Reload("a new slot", replace=True)

    def planned(before: StateDocument) -> StateDocument:
        return two_phase.plan_load(
            before, A, sync_mode="cdc", load_id="l", generation="g", chunks=[Chunk(None, None)]
        )

    assert state_of(planned(document), A).load_by_difference
    assert not state_of(planned(whole), A).load_by_difference
    assert not state_of(planned(pausing.to_be_loaded(planned(document), A, "x")), A).load_by_difference
    assert not state_of(two_phase.load_done(planned(document), A, Lsn(300)), A).load_by_difference


def test_a_stream_the_state_does_not_know_is_loaded_in_any_case() -> None:
    document = StateDocument.new("p")
    assert pausing.to_be_loaded(document, A, "reason") == document


def test_streams_beyond_the_log_of_a_former_server_are_loaded_again() -> None:
    document = two_phase.leave_global(level(A, B), B)  # all at 100
    named = pausing.to_be_loaded_beyond(document, Lsn(100), {}, "another server")
    assert named == document
    named = pausing.to_be_loaded_beyond(document, Lsn(100), {B: Lsn(101)}, "another server")
    assert state_of(named, A).reload is None
    assert state_of(named, B).committed_to == Lsn(100), "where the other server goes on"
    assert state_of(named, B).reload == Reload("another server", replace=False)
    named = pausing.to_be_loaded_beyond(document, Lsn(99), {}, "another server")
    assert all(state_of(named, stream).reload is not None for stream in (A, B))
    assert named.global_streams == (), "a number that no table stands at binds nobody"
    assert [state_of(named, stream).committed_to for stream in (A, B)] == [None, None]
    chunk = Chunk(None, None)
    loading = two_phase.plan_load(document, B, sync_mode="cdc", load_id="1", generation="g2", chunks=[chunk])
    named = pausing.to_be_loaded_beyond(loading, Lsn(100), {}, "another server")
    assert state_of(named, A).reload is None
    assert state_of(named, B).reload is not None, "its chunks were read at moments of their own"
    by_cursor = two_phase.plan_load(
        StateDocument.new("p"), A, sync_mode="incremental", load_id="1", generation="g", chunks=[chunk]
    )
    assert pausing.to_be_loaded_beyond(by_cursor, Lsn(1), {A: Lsn(9)}, "another server") == by_cursor

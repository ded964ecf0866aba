"""Two hands on one state: neither undoes what the other wrote."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.ledger import pausing, two_phase
from penstock.ledger.ledger import Ledger
from penstock.ledger.rebase import rebased
from penstock.ledger.state import StateDocument
from penstock.ledger.store import StateStore
from tests.unit.test_two_phase import CHUNKS, A, B, level, state_of


def loading(document: StateDocument, stream: StreamId) -> StateDocument:
    return two_phase.plan_load(
        document, stream, sync_mode="cdc", load_id="load", generation="g", chunks=CHUNKS
    )


def settled(document: StateDocument) -> StateDocument:
    return StateDocument(document.to_json())


def test_a_load_and_a_round_made_from_the_same_state_both_stand() -> None:
    start = settled(level(A))
    round_open = settled(two_phase.prepare_round(start, Lsn(200), [A]))
    both = rebased(loading(start, B), round_open)
    assert both.next_cdc_pos == Lsn(200)
    assert state_of(both, B).is_loading
    assert both == loading(round_open, B)


def test_several_moves_count_from_the_state_they_began_with() -> None:
    start = settled(level(A))
    mine = two_phase.chunks_preparing(loading(start, B), B, CHUNKS[:1])
    theirs = settled(two_phase.prepare_round(start, Lsn(200), [A]))
    assert rebased(mine, theirs) == two_phase.chunks_preparing(loading(theirs, B), B, CHUNKS[:1])


def test_an_entry_that_one_hand_removed_stays_removed() -> None:
    start = settled(level(A, B))
    theirs = settled(pausing.paused(start, A, since="s", reason=""))
    with pytest.raises(ValueError, match="global"):
        rebased(two_phase.remove_stream(start, B), theirs)  # both took a stream out of the global ones
    alone = settled(loading(settled(level(A)), B))
    gone = rebased(two_phase.remove_stream(alone, B), settled(two_phase.prepare_round(alone, Lsn(200), [A])))
    assert gone.stream(B) is None
    assert gone.next_cdc_pos == Lsn(200)


def test_an_earlier_state_that_nothing_was_made_from_changes_nothing(tmp_path: Path) -> None:
    ledger = Ledger(StateStore(tmp_path))
    ledger.write(loading(ledger.document, A))
    earlier = ledger.document
    ledger.write(two_phase.chunks_preparing(ledger.document, A, CHUNKS[:1]))
    now = ledger.document
    ledger.write(earlier)
    assert ledger.document == now


def test_the_same_entry_changed_by_both_is_refused() -> None:
    start = settled(loading(StateDocument.new("p"), A))
    theirs = settled(two_phase.chunks_preparing(start, A, CHUNKS[:1]))
    with pytest.raises(ValueError, match=r"public\.a"):
        rebased(two_phase.chunks_preparing(start, A, CHUNKS[1:]), theirs)


def test_a_load_counts_its_chunks_while_rounds_move_the_table_it_will_replace() -> None:
    start = settled(loading(settled(level(A, B)), A))
    committed = two_phase.stream_committed(two_phase.prepare_round(start, Lsn(200), [A]), A, Lsn(200))
    both = rebased(two_phase.chunks_preparing(start, A, CHUNKS[:1]), settled(committed))
    assert both == two_phase.chunks_preparing(committed, A, CHUNKS[:1])
    assert state_of(both, A).committed_to == Lsn(200)
    assert next(chunk.preparing for chunk in state_of(both, A).chunks or ())


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_in_whatever_order_the_hands_write_the_end_is_the_same(turns: list[bool]) -> None:
    """One hand goes through a load, the other through rounds; each may have read long before it writes."""
    now = settled(level(A))
    seen = {True: now, False: now}
    chunks, position = 0, 100
    for loads in turns:
        made = seen[loads]
        if loads:
            made = loading(made, B) if chunks == 0 else two_phase.chunks_preparing(made, B, CHUNKS[:chunks])
            chunks = min(chunks + 1, len(CHUNKS))
        elif made.next_cdc_pos is None:
            position += 100
            made = two_phase.prepare_round(made, Lsn(position), [])
        else:
            made = two_phase.finish_round(made)
        now = settled(rebased(made, now))
        seen[loads] = now
    assert now.lsn is not None
    assert (now.next_cdc_pos or now.lsn) == Lsn(position)
    assert (now.stream(B) is not None) == (chunks > 0)
    if chunks:
        preparing = [chunk for chunk in state_of(now, B).chunks or () if chunk.preparing]
        assert len(preparing) == (0 if turns.count(True) == 1 else min(turns.count(True) - 1, len(CHUNKS)))


def test_threads_that_write_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    ledger = Ledger(StateStore(tmp_path))
    streams = [StreamId("public", f"t{number}") for number in range(4)]

    def write(stream: StreamId) -> None:
        ledger.write(loading(ledger.document, stream))
        for count in range(1, len(CHUNKS) + 1):
            ledger.write(two_phase.chunks_preparing(ledger.document, stream, CHUNKS[:count]))

    with ThreadPoolExecutor(len(streams)) as pool:
        list(pool.map(write, streams))
    for stream in streams:
        assert all(chunk.preparing for chunk in state_of(ledger.document, stream).chunks or ())
    assert StateStore(tmp_path).load() == ledger.document
